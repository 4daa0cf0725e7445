"""A traced value answers Python's questions about shapes as the example's value would."""

import operator
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy
import torch
from torch import Tensor, fx
from torch.fx.proxy import Attribute

from archlearn.tracing.caller_bytecode import asks_for_class, is_message
from archlearn.tracing.source_location import is_ours
from archlearn.tracing.transformer_blocks import ASKS_FOR_TENSOR

_OF_NUMPY = ("__array_struct__", "__array_interface__")  # ways to memory that is not there
_SIZES = ("shape", "ndim")
_COUNTS = ("size", "dim", "numel", "ndimension", "nelement", "__len__")


class Asking:
    """What a traced value adds to fx: questions that the example inputs can answer."""

    tracer: Any

    @property
    def __class__(self: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The class of the example's value, for `isinstance` in a user's code.

        To torch's kernels, which ask for it as well, it is what it is: they would take it for a
        tensor in memory.
        """
        frame = sys._getframe(1)
        if frame.f_code is ASKS_FOR_TENSOR:
            return Tensor if self.node.op == "get_attr" else self.tracer.class_of(self)
        is_asked = frame.f_code is torch.is_tensor.__code__ and frame.f_back is not None
        if is_asked and frame.f_back is not None:
            frame = frame.f_back
        if is_ours(frame.f_code.co_filename):  # torch itself asks thousands of times: be quick
            return type(self)
        return self.tracer.class_of(self) if is_asked or asks_for_class(frame) else type(self)

    def __hash__(self) -> int:
        if is_ours(sys._getframe(1).f_code.co_filename):
            return id(self)
        return hash(self.tracer.ask(self, "key"))

    def __len__(self) -> int:
        return len(self.tracer.ask(self, "len"))

    def __index__(self) -> int:
        return operator.index(self.tracer.ask(self, "number"))

    def __int__(self) -> int:
        return int(self.tracer.ask(self, "number"))

    def __float__(self) -> float:
        return float(self.tracer.ask(self, "number"))

    def __round__(self, n_digits: int | None = None) -> Any:
        return round(self.tracer.ask(self, "number"), n_digits)

    def __array__(self, *_: Any, **__: Any) -> Any:
        """NumPy reads a size as a number."""
        return numpy.asarray(self.tracer.ask(self, "number"))

    def __str__(self) -> str:
        return str(self._value_for_text(sys._getframe(1)))

    def __repr__(self) -> str:
        return repr(self._value_for_text(sys._getframe(1)))

    def __format__(self, spec: str) -> str:
        return format(self._value_for_text(sys._getframe(1)), spec)

    def _value_for_text(self: Any, frame: FrameType) -> Any:
        """Return the example's value if `forward` decides by its text; a message may say less."""
        if is_ours(frame.f_code.co_filename):
            return f"{type(self).__name__}({self.node.name})"
        if is_message(frame):
            return f"<{self.node.name}>"
        return self.tracer.ask(self, "text")


class AskingProxy(Asking, fx.Proxy):
    """A traced value."""

    def __getattr__(self, k: str) -> Any:
        if k in _OF_NUMPY:
            raise AttributeError(k)
        own = self.tracer.own_parameter(self) if k in _SIZES else None
        return AskingAttribute(self, k) if own is None else getattr(own, k)


class AskingAttribute(Asking, Attribute):
    """An attribute of a traced value."""

    def __init__(self, root: fx.Proxy, attr: str) -> None:
        super().__init__(root, attr)
        self.tracer.note_proxy(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call a method; of a parameter, those that ask for its sizes are answered at once."""
        own = self.tracer.own_parameter(self.root) if self.attr in _COUNTS else None
        if own is None:
            made = super().__call__(*args, **kwargs)
            if not _is_in_place(self.attr) or type(self.root) is not AskingProxy:
                return made
            self.root.node = made.node  # whoever reads the tensor by its name reads the result
            return self.root
        return getattr(own, self.attr)(*args, **kwargs)

    def __getattr__(self, k: str) -> "AskingAttribute":
        if k in _OF_NUMPY:
            raise AttributeError(k)
        return AskingAttribute(self, k)


def _is_in_place(method: str) -> bool:
    return method.endswith("_") and not method.endswith("__") and method != "requires_grad_"


def parts_of(proxy: Any, n: int) -> Iterator[Any]:
    """Return the sizes of a shape one by one, as traced values."""
    return iter([proxy[i] for i in range(n)])
