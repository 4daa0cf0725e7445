"""What stays of a tensor follows from its labels: a box, or nothing that a tensor can be."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from archlearn.analysis.labels import Labels, select, without_repeats
from archlearn.tracing.fx_utils import leaves_of, map_leaves


@dataclass(slots=True)
class Cuts:
    """Cuts dropped channels out of tensors.

    Attributes:
        dropped: Whether each channel goes, by its smallest atom.
        root: The channel of each atom.
        known: What has been cut already.
    """

    dropped: Tensor
    root: Tensor
    known: dict[int, Tensor | None] = field(default_factory=dict)

    def reduce_all(self, full: Any) -> Any:
        """Return the ids that stay of all that a call returned."""
        return map_leaves(self.reduce_labels, full)

    def reduce_labels(self, value: Any) -> Any:
        """Return the ids that stay, None where they are no box, other values as they are."""
        if not isinstance(value, Labels):
            return value
        key = id(value.ids)  # calls that change nothing hand on the same ids
        if key not in self.known:
            self.known[key] = self.cut(value, value.ids)
        return self.known[key]

    def cut(self, labels: Labels, tensor: Tensor) -> Tensor | None:
        """Return the part of a tensor with these labels that stays, None if it is no box."""
        ids = labels.ids
        repeated = [dim for dim, stride in enumerate(ids.stride()) if stride == 0]
        for dim in repeated:
            if ids.shape[dim] > 1:
                ids = ids.narrow(dim, 0, 1)
        gone = self.dropped[self.root[ids]]
        if not bool(gone.any()):
            return tensor
        is_empty = bool(gone.all())
        for dim, size in enumerate(ids.shape):
            if dim not in repeated and (size > 1 or is_empty):
                whole = gone.movedim(dim, 0).reshape(gone.shape[dim], -1).all(1)
                kept = torch.nonzero(~whole).flatten()
                gone, tensor = gone.index_select(dim, kept), select(tensor, dim, kept)
        return None if bool(gone.any()) else tensor

    def touches(self, full: Any) -> bool:
        """Return whether anything of what calls returned is dropped."""
        return any(
            bool(self.dropped[self.root[without_repeats(leaf.ids)]].any())
            for leaf in leaves_of(full)
            if isinstance(leaf, Labels)
        )
