"""Snapshot and restore what calls leave on modules: buffers and attributes.

A trace is made by such a call, and what is left then would never be left again. So a module that
leaves something is called as it is, and whatever is looked at by running is put back.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.proxy import TraceError

from archlearn.errors import TracingError


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _holds(tensor: Tensor, numbers: Tensor) -> bool:
    """Return whether a tensor has these numbers, as far as they can be compared."""
    try:
        return torch.equal(tensor, numbers)
    except RuntimeError:  # sparse tensors, rare dtypes, and those on the meta device
        return True


LEFT = (
    "it changes {name!r} whenever it is called, which a trace would do only once; return the "
    "value, or compute it outside of forward"
)
_OF_TORCH = frozenset(vars(nn.Module()))
_CONSTANTS = ("_tensor_constant", "_torchbind_obj")  # fx keeps them on the model that it traces
_CONTAINERS = (dict, list, set)
_BUFFERS, HOOKS = "_buffers", ("_forward_hooks", "_forward_pre_hooks")
_PLAIN = (bool, int, float, str, type(None))


class ModuleState:
    """What modules hold, to be compared with what they hold later, and to be put back."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        # Those of torch.jit keep what they hold out of sight.
        self.holdings = [_Holding(m) for m in modules if not isinstance(m, torch.jit.ScriptModule)]

    def find_changed(self) -> str:
        """Return the name of something that has changed since, or ''."""
        changed = [name for _, name in self.list_changed()]
        changed += [name for holding in self.holdings for name in holding.list_written()]
        return next(iter(changed), "")

    def list_changed(self) -> list[tuple[nn.Module, str]]:
        """Return the attributes and buffers that are others since: their module, and name."""
        return [
            (holding.module, name) for holding in self.holdings for name in holding.list_changed()
        ]

    def check(self) -> None:
        """Raise if some module left something behind."""
        name = self.find_changed()
        if name:
            raise TraceError(LEFT.format(name=name))

    def only_flags_changed(self) -> bool:
        """Return whether nothing changed but attributes that are plain values, and hooks."""
        held = [(name, vars(module).get(name, self)) for module, name in self.list_changed()]
        are_flags = all(name in HOOKS or _is_flag(value) for name, value in held)
        return are_flags and not any(holding.list_written() for holding in self.holdings)

    def put_back(self) -> None:
        """Let the modules hold what they held."""
        for holding in self.holdings:
            holding.put_back()


class _Holding:
    """What one module holds: its attributes, and what is in their containers, buffers and hooks."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.attributes = _own(vars(module))
        containers = {
            name: value for name, value in self.attributes.items() if type(value) in _CONTAINERS
        }
        containers |= {name: vars(module)[name] for name in (_BUFFERS, *HOOKS)}
        self.containers = {name: (value, _contents(value)) for name, value in containers.items()}
        self.buffers: dict[str, Tensor | None] = self.containers[_BUFFERS][1]
        tensors = {name: value for name, value in self.buffers.items() if value is not None}
        self.numbers = {n: (x, _version(x), x.detach().clone()) for n, x in tensors.items()}

    def list_changed(self) -> list[str]:
        """Return the names of attributes, and of buffers, that are others since."""
        now, none = _own(vars(self.module)), object()
        changed = [
            name
            for name in {**self.attributes, **now}
            if not _is_same(self.attributes.get(name, none), now.get(name, none))
        ]
        for name, (container, contents) in self.containers.items():
            if name != _BUFFERS and not _is_same(contents, _contents(container)):
                changed.append(name)
        held = self.module._buffers
        names = {**self.buffers, **held}
        return changed + [n for n in names if self.buffers.get(n) is not held.get(n)]

    def list_written(self) -> list[str]:
        """Return the names of buffers that were written to since, as far as torch counts that."""
        return [n for n, (x, version, _) in self.numbers.items() if _version(x) != version]

    def put_back(self) -> None:
        """Let the module hold the attributes and buffers that it held."""
        for name in _own(vars(self.module)).keys() - self.attributes.keys():
            del vars(self.module)[name]
        vars(self.module).update(self.attributes)
        for container, contents in self.containers.values():
            if not _is_same(contents, _contents(container)):
                container.clear()
                add = container.extend if isinstance(container, list) else container.update
                add(contents)
        for name, (tensor, version, numbers) in self.numbers.items():
            # A batch norm moves its statistics, and `x.data` is written to, past all versions.
            if _version(tensor) != version or not _holds(tensor, numbers):
                # The former may switch gradients on.
                with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                    tensor.copy_(numbers)
            self.numbers[name] = tensor, _version(tensor), numbers


def capture_state(net: nn.Module) -> ModuleState:
    """Return what all modules of a network hold."""
    return ModuleState(net.modules())


@contextmanager
def preserve_state(net: nn.Module, before: ModuleState | None = None) -> Generator[ModuleState]:
    """Put back whatever calls leave behind, also where what modules hold is known already."""
    state = capture_state(net) if before is None else before
    try:
        yield state
    finally:
        state.put_back()


def _is_flag(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_is_flag, value)))


def _own(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that are not torch's."""
    return {
        name: value
        for name, value in attributes.items()
        if name not in _OF_TORCH and not name.startswith(_CONSTANTS)
    }


def _contents(container: Any) -> Any:
    return dict(container) if isinstance(container, dict) else list(container)


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


@torch.no_grad()
def check_weights(copied: nn.Module, net: nn.Module) -> None:
    """Raise if calls have moved weights of a copy: a network that follows another at each call."""
    parameters = dict(net.named_parameters())
    for name, weight in copied.named_parameters():
        if not _holds(weight, parameters[name]) and not torch.allclose(
            weight, parameters[name], rtol=0, atol=0, equal_nan=True
        ):
            raise TracingError(
                f"cannot follow the forward of {type(net).__name__}: it changes {name!r} whenever "
                "it is called, and a model is looked at by calling it; change weights in the "
                "training loop, behind the optimiser's step"
            )
