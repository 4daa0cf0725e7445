"""A model is copied with whatever its calls left on it.

torch copies no tensor that was computed with gradients. A weight that `weight_norm` computes before
each call is one, and so is what a module keeps to be looked at: such tensors are copied without.

Most of what a module holds are numbers and empty dictionaries of hooks, which Python's own
`copy.deepcopy` takes long for. So modules that are copied in the plain way are copied here, and
`copy.deepcopy` is asked for the rest.
"""

import copy
import copyreg
from collections import OrderedDict
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

_OF_TORCH = frozenset(vars(nn.Module()))
_SIMPLE = frozenset({bool, int, float, str, type(None)})
_WAYS = ("__deepcopy__", "__reduce_ex__", "__reduce__", "__getnewargs__", "__getnewargs_ex__")


def copy_model(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy.

    Args:
        model: Any model.
        memo: What is copied already, by identity, as for `copy.deepcopy`.
    """
    known = dict(memo or {})
    modules = list(model.modules())
    for module in modules:
        for name, value in vars(module).items():
            if name not in _OF_TORCH:
                _copy_computed_(value, known)
    # What copies or restores itself in its own way may look into its parts: they must be whole.
    odd = {part for m in modules if not _is_plain(type(m)) for part in m.modules()}
    made: list[tuple[nn.Module, Any]] = []
    for module in modules:
        if id(module) not in known and module not in odd:
            known[id(module)] = type(module).__new__(type(module))
            made.append((module, known[id(module)]))
    states: list[Any] = []  # held until the end: what is known is known by its identity
    for module, copied in made:  # each finds the others among what is known
        state: Any = module.__getstate__()
        states.append(state)
        if type(state) is dict:
            state = {name: _copy(value, known) for name, value in state.items()}
        else:
            state = copy.deepcopy(state, known)
        copied.__setstate__(state)
    return copy.deepcopy(model, known)


def _is_plain(cls: type[nn.Module]) -> bool:
    """Return whether instances are copied by their state, which they take as it is."""
    own = any(getattr(cls, way, None) is not getattr(object, way, None) for way in _WAYS)
    own = own or not cls.__setstate__.__module__.startswith("torch.")
    return not own and cls not in copyreg.dispatch_table and not _slots_of(cls)


def _slots_of(cls: type) -> Any:
    find: Any = copyreg._slotnames  # pyright: ignore[reportAttributeAccessIssue]
    return find(cls)


def _copy(value: Any, known: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in _SIMPLE or (kind is tuple and _SIMPLE.issuperset(map(type, value))):
        return value
    if kind is OrderedDict and not value and not vars(value):
        return known.setdefault(id(value), OrderedDict())
    if kind is set and not value:
        return known.setdefault(id(value), set())
    if kind is not dict or id(value) in known:
        return copy.deepcopy(value, known)
    made = known[id(value)] = {}
    for key, part in value.items():
        made[_copy(key, known)] = known[id(part)] if id(part) in known else _copy(part, known)
    return made


def _copy_computed_(value: Any, known: dict[int, Any]) -> None:
    """Copy all tensors among an attribute's value that were computed with gradients."""
    kind = type(value)
    if kind in _SIMPLE or (kind is tuple and _SIMPLE.issuperset(map(type, value))):
        return
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor) and not leaf.is_leaf:
            known.setdefault(id(leaf), leaf.detach().clone())
