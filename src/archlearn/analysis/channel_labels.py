"""Channel labels: which channel each element of a tensor depends on, and how.

Labels have the shape of the tensor they describe. Whatever only moves data (a view, a
permutation, a concat) is understood by doing the same to the labels. Dimensions along which
nothing varies are kept expanded, so that labels cost little.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# What an element is when the channel it belongs to is dropped; the larger, the less is known.
ZERO, CONSTANT, UNKNOWN = 0, 1, 2
FIXED = 0  # the label of everything that must stay


@dataclass(frozen=True, slots=True)
class Labels:
    """Channel and state of each element of one tensor.

    Attributes:
        ids: The channel of each element; `FIXED` where it is not a channel of ours.
        state: What the element is when that channel is dropped.
        name: The parameter or buffer that this is, as it stands.
    """

    ids: Tensor
    state: Tensor
    name: str | None = None

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor described."""
        return self.ids.shape


@dataclass(frozen=True, slots=True)
class SiteChannels:
    """Where gated channels lie, and which they are.

    Attributes:
        dim: The dimension that channels lie along; of what a call reads, counted from behind.
        ids: The atom of each channel; empty if no channels of ours reach the site.
    """

    dim: int
    ids: Tensor


def line_along(tensor: Tensor, dim: int) -> Tensor:
    """Return the elements along a dimension, at the first index of each other one."""
    return tensor.movedim(dim, -1)[(0,) * (tensor.dim() - 1)]


def plane_along(tensor: Tensor, dims: tuple[int, int]) -> Tensor:
    """Return a matrix of two dimensions, at the first index of each other one."""
    return tensor.movedim(dims, (-2, -1))[(0,) * (tensor.dim() - 2)]


def fixed_like(tensor: Tensor) -> Labels:
    """Return labels for a tensor of which nothing may go."""
    return filled(tensor.shape, FIXED, UNKNOWN)


def filled(shape: Sequence[int], label: int, state: int) -> Labels:
    """Return the same label and state for every element."""
    return Labels(constant(label, shape), constant(state, shape))


def constant(value: int, shape: Sequence[int]) -> Tensor:
    """Return a label or a state for every element. Labels are on the CPU, whatever the model is."""
    return torch.tensor(value, device="cpu").expand(shape)


def along(ids: Tensor, state: Tensor, shape: Sequence[int], dim: int) -> Labels:
    """Return labels that vary along one dimension only."""
    view = [1] * len(shape)
    view[dim] = -1
    return Labels(ids.reshape(view).expand(shape), state.reshape(view).expand(shape))


def spread_plane(ids: Tensor, state: Tensor, shape: torch.Size, dims: tuple[int, int]) -> Labels:
    """Return labels that vary along two dimensions as matrices say."""
    one, two = (x if dims[0] < dims[1] else x.T for x in (ids, state))
    view = [n if dim in dims else 1 for dim, n in enumerate(shape)]
    return Labels(one.reshape(view).expand(shape), two.reshape(view).expand(shape))


def varying(ids: Tensor) -> list[int]:
    """Return the dimensions along which labels are not all the same."""
    strides = ids.stride()
    return [dim for dim in spread(ids) if _varies(_lines(ids, dim, strides))]


def spread(ids: Tensor) -> list[int]:
    """Return the dimensions along which labels may vary: they are not one label, expanded."""
    strides = ids.stride()
    return [dim for dim, size in enumerate(ids.shape) if size > 1 and strides[dim] != 0]


def _varies(lines: Tensor) -> bool:
    n = lines.shape[1] - 1
    return not torch.equal(lines.narrow(1, 1, n), lines.narrow(1, 0, n))


def core(ids: Tensor, state: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return ids and state as matrices with `dim` last and everything repeated left out."""
    strides = tuple(map(max, ids.stride(), state.stride()))
    return _lines(ids, dim, strides), _lines(state, dim, strides)


def _lines(tensor: Tensor, dim: int, strides: tuple[int, ...]) -> Tensor:
    """Return a matrix with `dim` last, of one index of each other dimension with a stride of 0."""
    shape = tensor.shape
    dim %= len(shape)
    others = [other for other in range(len(shape)) if other != dim and shape[other] != 1]
    if all(strides[other] == 0 and shape[other] > 0 for other in others):
        # Most labels vary along one dimension only; this is quicker than to narrow all others.
        return tensor.as_strided((1, shape[dim]), (0, tensor.stride(dim)))
    for other in others:
        if strides[other] == 0:
            tensor = tensor.narrow(other, 0, min(1, shape[other]))
    return tensor.movedim(dim, -1).reshape(-1, shape[dim])


def worst_along(state: Tensor, dim: int) -> Tensor:
    """Return what is known of all places along a dimension together, which becomes one."""
    if state.stride(dim) == 0:
        return state.narrow(dim, 0, 1)
    return state.amax(dim, keepdim=True)


def pointwise(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Apply a function of elements at the same place, once for all that is repeated."""
    shapes = {tensor.shape for tensor in tensors}
    shape = shapes.pop() if len(shapes) == 1 else torch.broadcast_shapes(*shapes)
    return function(*_narrow_repeated(*(tensor.expand(shape) for tensor in tensors))).expand(shape)


def _narrow_repeated(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return equally shaped tensors at the first index of dimensions that all of them repeat."""
    for dim, size in enumerate(tensors[0].shape):
        if size > 1 and all(tensor.stride(dim) == 0 for tensor in tensors):
            tensors = tuple(tensor.narrow(dim, 0, 1) for tensor in tensors)
    return tensors


def select(tensor: Tensor, dim: int, kept: Tensor) -> Tensor:
    """Select along a dimension; what is repeated along others stays so."""
    shape = list(tensor.shape)
    shape[dim] = len(kept)
    for other in range(tensor.dim()):
        if other != dim and tensor.stride(other) == 0 and tensor.shape[other] > 1:
            tensor = tensor.narrow(other, 0, 1)
    return tensor.index_select(dim, kept).expand(shape)


def replaced(state: Tensor, old: int, new: int) -> Tensor:
    """Return a state with one value in place of another."""
    if state.numel() and not any(state.stride()):  # one value for all
        value = int(state.as_strided((), ()))
        return constant(new, state.shape) if value == old else state
    return pointwise(lambda values: torch.where(values == old, new, values), state)


def flat_pairs(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return two equally shaped label tensors as vectors, without what is repeated in both."""
    first, second = _narrow_repeated(first, second)
    return first.reshape(-1), second.reshape(-1)


def without_repeats(ids: Tensor) -> Tensor:
    """Return labels as a vector, without what is repeated along expanded dimensions."""
    return _narrow_repeated(ids)[0].reshape(-1)


def where_varying(ids: Tensor) -> Tensor:
    """Return labels at the first index of dimensions along which they do not vary."""
    for dim in set(range(ids.dim())) - set(varying(ids)):
        ids = ids.narrow(dim, 0, min(1, ids.shape[dim]))
    return ids
