"""A model is copied with whatever its calls left on it.

torch copies no tensor that was computed with gradients. A weight that `weight_norm` computes before
each call is one, and so is what a module keeps to be looked at: such tensors are copied without.
"""

import copy
from collections import OrderedDict
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

_OF_TORCH = frozenset(vars(nn.Module()))
_SIMPLE = frozenset({bool, int, float, str, type(None)})


def copy_model(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy.

    Args:
        model: Any model.
        memo: What is copied already, by identity, as for `copy.deepcopy`.
    """
    known = dict(memo or {})
    for module in model.modules():
        for name, value in vars(module).items():
            if name not in _OF_TORCH:
                _copy_computed_(value, known)
            elif type(value) is OrderedDict and not value and not vars(value):
                # A module has a dozen of these, for hooks; torch takes long to copy each.
                known.setdefault(id(value), OrderedDict())
    return copy.deepcopy(model, known)


def _copy_computed_(value: Any, known: dict[int, Any]) -> None:
    """Copy all tensors among an attribute's value that were computed with gradients."""
    if type(value) in _SIMPLE or (type(value) is tuple and _SIMPLE.issuperset(map(type, value))):
        return
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor) and not leaf.is_leaf:
            known.setdefault(id(leaf), leaf.detach().clone())
