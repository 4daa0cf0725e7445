"""Snapshot and restore what calls leave on modules: buffers, attributes, tensors.

A trace is made by such a call, and what is left then would never be left again. So a module that
leaves something is called as it is, and whatever is looked at by running is put back.
"""

import operator
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.proxy import TraceError


class Snapshot:
    """The numbers that tensors have at one time."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self.versions = [_version(tensor) for tensor in tensors]
        self.numbers = [tensor.detach().clone() for tensor in tensors]

    def find_written(self) -> int | None:
        """Return the place of a tensor that was written to since, as far as torch counts that."""
        for place, tensor in enumerate(self.tensors):
            if _version(tensor) != self.versions[place]:
                return place
        return None

    def put_back_(self) -> None:
        """Let all tensors have the numbers that they had."""
        for tensor, numbers, version in zip(self.tensors, self.numbers, self.versions, strict=True):
            # A batch norm moves its statistics, and `x.data` is written to, past all versions.
            if _version(tensor) != version or not holds(tensor, numbers):
                # The former may switch gradients on.
                with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                    tensor.copy_(numbers)
        self.versions = [_version(tensor) for tensor in self.tensors]


def holds(tensor: Tensor, numbers: Tensor) -> bool:
    """Return whether a tensor has these numbers, as far as they can be compared."""
    try:
        return torch.equal(tensor, numbers)
    except RuntimeError:  # sparse tensors, rare dtypes, and those on the meta device
        return True


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


LEFT = (
    "it changes {name!r} whenever it is called, which a trace would do only once; return the "
    "value, or compute it outside of forward"
)


_OF_TORCH = frozenset(vars(nn.Module()))


_CONSTANTS = ("_tensor_constant", "_torchbind_obj")  # fx keeps them on the model that it traces


_CONTAINERS = (dict, list, set)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


_PLAIN = (bool, int, float, str, type(None))


class ModuleState:
    """What modules hold, to be compared with what they hold later, and to be put back."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        # Those of torch.jit keep what they hold out of sight.
        self.each = [_Holding(m) for m in modules if not isinstance(m, torch.jit.ScriptModule)]
        self.places = [
            (name, tensor)
            for each in self.each
            for name, tensor in each.buffers.items()
            if tensor is not None
        ]
        self.numbers = Snapshot([tensor for _, tensor in self.places])

    def find_changed(self) -> str:
        """Return the name of something that has changed since, or ''."""
        changed = next(filter(None, (each.find_changed() for each in self.each)), "")
        if changed:
            return changed
        place = self.numbers.find_written()
        return "" if place is None else self.places[place][0]

    def check(self) -> None:
        """Raise if some module left something behind.

        Raises:
            TraceError: If so; it names what.
        """
        name = self.find_changed()
        if name:
            raise TraceError(LEFT.format(name=name))

    def only_flags_changed(self) -> bool:
        """Return whether nothing changed but attributes that are plain values, and hooks."""
        tensors = self.numbers.find_written() is None
        return tensors and all(each.only_flags_changed() for each in self.each)

    def put_back(self) -> None:
        """Let the modules hold what they held."""
        for each in self.each:
            if each.find_changed():
                each.put_back()
        self.numbers.put_back_()


class _Holding:
    """What one module holds: its attributes, and which buffers."""

    __slots__ = ("buffers", "contents", "hooks", "module", "whole")

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.whole = dict(vars(module))
        self.buffers = dict(module._buffers)
        self.contents = {
            name: _contents(value)
            for name, value in _own(self.whole).items()
            if type(value) in _CONTAINERS
        }
        self.hooks = {name: dict(self.whole[name]) for name in _HOOKS}

    def find_changed(self) -> str:
        """Return the name of something that has changed since, or ''."""
        if not _is_identical(self.whole, vars(self.module)):
            before, now = _own(self.whole), _own(vars(self.module))
            for name in [*before, *now]:
                if name not in now or name not in before or not _is_same(before[name], now[name]):
                    return name
        for name, contents in (self.contents | self.hooks).items():
            if not _is_same(contents, _contents(vars(self.module)[name])):
                return name
        if not _is_identical(self.buffers, self.module._buffers):
            for name in [*self.buffers, *self.module._buffers]:
                if self.buffers.get(name) is not self.module._buffers.get(name):
                    return name
        return ""

    def only_flags_changed(self) -> bool:
        """Return whether nothing changed but attributes that are plain values, and hooks."""
        before, now = _own(self.whole), _own(vars(self.module))
        changed = [
            now.get(name) for name in now if not _is_same(before.get(name, before), now[name])
        ]
        same = all(_is_same(c, _contents(now.get(name, ()))) for name, c in self.contents.items())
        same = same and _is_identical(self.buffers, self.module._buffers)
        return same and before.keys() <= now.keys() and all(map(_is_flag, changed))

    def put_back(self) -> None:
        """Let the module hold the attributes and buffers that it held."""
        before = _own(self.whole)
        for name in _own(vars(self.module)).keys() - before.keys():
            del vars(self.module)[name]
        vars(self.module).update(before)
        for name, contents in self.contents.items():
            _refill(before[name], contents)
        for name, hooks in self.hooks.items():
            _refill(self.whole[name], hooks)
        self.module._buffers.clear()
        self.module._buffers.update(self.buffers)


def look_at(net: nn.Module) -> ModuleState:
    """Return what all modules of a network hold."""
    return ModuleState(net.modules())


@contextmanager
def preserve_state(net: nn.Module, before: ModuleState | None = None) -> Generator[ModuleState]:
    """Put back whatever calls leave behind.

    Args:
        net: The network.
        before: What its modules hold, if that is known already.
    """
    known = look_at(net) if before is None else before
    try:
        yield known
    finally:
        known.put_back()


def _is_flag(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_is_flag, value)))


def _own(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that are not torch's."""
    return {
        name: value
        for name, value in attributes.items()
        if name not in _OF_TORCH and not name.startswith(_CONSTANTS)
    }


def _is_identical(one: dict[str, Any], two: dict[str, Any]) -> bool:
    """Return at once whether two dictionaries have the same keys and the very same values."""
    return one.keys() == two.keys() and all(map(operator.is_, map(one.get, two), two.values()))


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
