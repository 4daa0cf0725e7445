"""A model is copied with whatever its calls left on it.

torch copies no tensor that was computed with gradients. A weight that `weight_norm` computes before
each call is one, and so is what a module keeps to be looked at: such tensors are copied without.
"""

import copy
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

_OF_TORCH = frozenset(vars(nn.Module()))


def copy_model(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy.

    Args:
        model: Any model.
        memo: What is copied already, by identity, as for `copy.deepcopy`.
    """
    known = dict(memo or {})
    for module in model.modules():
        own = [value for name, value in vars(module).items() if name not in _OF_TORCH]
        for leaf in tree_leaves(own):
            if isinstance(leaf, Tensor) and not leaf.is_leaf:
                known.setdefault(id(leaf), leaf.detach().clone())
    return copy.deepcopy(model, known)
