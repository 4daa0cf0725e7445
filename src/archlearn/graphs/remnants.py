"""A call of `forward` may leave something behind on a module: attributes, buffers, counters.

A trace is made by such a call, and what is left then would never be left again. So a module that
leaves something is called as it is, and whatever is looked at by running is put back.
"""

import operator
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.proxy import TraceError

LEFT = (
    "it changes {name!r} whenever it is called, which a trace would do only once; return the "
    "value, or compute it outside of forward"
)
_OF_TORCH = frozenset(vars(nn.Module())) - {"_buffers"}
_CONSTANTS = ("_tensor_constant", "_torchbind_obj")  # fx keeps them on the model that it traces
_CONTAINERS = (dict, list, set)
_PLAIN = (bool, int, float, str, type(None))


class Remnants:
    """What a module holds, to be compared with what it holds later, and to be put back."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.whole = dict(vars(module))
        self.attributes = _attributes(module)
        self.contents = {
            k: _contents(v) for k, v in self.attributes.items() if type(v) in _CONTAINERS
        }
        self.buffers = dict(module._buffers)
        self.numbers = {
            name: (_version(tensor), tensor.detach().clone())
            for name, tensor in self.buffers.items()
            if tensor is not None
        }

    def find_changed(self) -> str:
        """Return the name of something that has changed since, or ''."""
        if not _is_identical(self.whole, vars(self.module)):
            now = _attributes(self.module)
            for name in [*self.attributes, *now]:
                if name not in now or name not in self.attributes:
                    return name
                if not _is_same(self.attributes[name], now[name]):
                    return name
        for name, contents in self.contents.items():
            if not _is_same(contents, _contents(vars(self.module)[name])):
                return name
        if not _is_identical(self.buffers, self.module._buffers):
            for name in [*self.buffers, *self.module._buffers]:
                if self.buffers.get(name) is not self.module._buffers.get(name):
                    return name
        changed = (n for n, (version, _) in self.numbers.items() if version != self._version(n))
        return next(changed, "")

    def put_back(self) -> None:
        """Let the module hold what it held."""
        if self.find_changed():
            self._put_back_attributes()
        for name, (version, numbers) in self.numbers.items():
            tensor: Any = self.buffers[name]
            # A batch norm moves its statistics, and `x.data` is written to, past all versions.
            if version != _version(tensor) or not holds(tensor, numbers):
                with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
                    tensor.copy_(numbers)
                self.numbers[name] = (_version(tensor), numbers)

    def _put_back_attributes(self) -> None:
        for name in _attributes(self.module).keys() - self.attributes.keys():
            del vars(self.module)[name]
        vars(self.module).update(self.attributes)
        for name, contents in self.contents.items():
            _refill(self.attributes[name], contents)
        self.module._buffers.clear()
        self.module._buffers.update(self.buffers)

    def _version(self, name: str) -> int:
        tensor = self.buffers[name]
        return 0 if tensor is None else _version(tensor)


def has_changed(before: list[Remnants]) -> bool:
    """Return whether some module left something behind."""
    return any(each.find_changed() for each in before)


def check_remnants(before: list[Remnants]) -> None:
    """Raise if some module left something behind.

    Raises:
        TraceError: If so; it names what.
    """
    for each in before:
        name = each.find_changed()
        if name:
            raise TraceError(LEFT.format(name=name))


def look_at(net: nn.Module) -> list[Remnants]:
    """Return what all modules of a network hold."""
    return look_at_each(net.modules())


def look_at_each(modules: Iterable[nn.Module]) -> list[Remnants]:
    """Return what modules hold, but those of torch.jit, which keep it out of sight."""
    return [Remnants(m) for m in modules if not isinstance(m, torch.jit.ScriptModule)]


@contextmanager
def restoring(net: nn.Module, before: list[Remnants] | None = None) -> Generator[list[Remnants]]:
    """Put back whatever calls leave behind.

    Args:
        net: The network.
        before: What its modules hold, if that is known already.
    """
    known = look_at(net) if before is None else before
    try:
        yield known
    finally:
        for each in known:
            each.put_back()


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if name not in _OF_TORCH and name != "_buffers" and not name.startswith(_CONSTANTS)
    }


def _is_identical(one: dict[str, Any], two: dict[str, Any]) -> bool:
    """Return at once whether two dictionaries have the same keys and the very same values."""
    return one.keys() == two.keys() and all(map(operator.is_, map(one.get, two), two.values()))


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def holds(tensor: Tensor, numbers: Tensor) -> bool:
    """Return whether a tensor has these numbers, as far as they can be compared."""
    try:
        return torch.equal(tensor, numbers)
    except RuntimeError:  # sparse tensors, and those without numbers, on the meta device
        return True


def _contents(container: Any) -> Any:
    return dict(container) if isinstance(container, dict) else list(container)


def _refill(container: Any, contents: Any) -> None:
    if _is_same(contents, _contents(container)):
        return
    container.clear()
    getattr(container, "extend" if isinstance(container, list) else "update")(contents)


def _is_same(one: Any, two: Any) -> bool:
    if one is two:
        return True
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return list(one) == list(two) and _is_same(list(one.values()), list(two.values()))
    if isinstance(one, list):
        return len(one) == len(two) and all(map(_is_same, one, two))
    return isinstance(one, _PLAIN) and one == two
