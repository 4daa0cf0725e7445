"""Rules of view, permute, cat, split, pad and indexing: the same is done to the labels.

Embeddings, `index_select`, `gather` and `scatter` pick rows. Message passing on graphs is written
with these: nodes are picked and summed, channels pass.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlearn.analysis.channel_labels import (
    CONSTANT,
    FIXED,
    UNKNOWN,
    ZERO,
    Labels,
    along,
    constant,
    line_along,
    pointwise,
    replaced,
    varying,
    worst_along,
)
from archlearn.analysis.rule_api import OpCall, describe_call, fixed_out, opaque, tree_map
from archlearn.op_table import ATTRIBUTES
from archlearn.tracing.fx_utils import call_on_labels, leaves_of, map_leaves, source_of


def move(step: OpCall) -> Any:
    """Do to the labels what the call does to the tensor."""
    if not step.labels:
        return step.out
    real = leaves_of((step.real_args, step.real_kwargs))
    for x, labels in zip(real, leaves_of((step.args, step.kwargs)), strict=True):
        is_tensor = isinstance(labels, Labels) and isinstance(x, Tensor)
        if is_tensor and not (x.is_floating_point() or x.is_complex()):
            return opaque(step)
    ids = _call_on(step, lambda labels: labels.ids)
    state = _call_on(step, lambda labels: labels.state)
    if len(step.labels) > 1 and isinstance(ids, Tensor) and not _joins_channels(step, ids):
        state = replaced(state, CONSTANT, UNKNOWN)  # in one part of it another than in the next
    return _zip_labels(ids, state)


def _joins_channels(step: OpCall, joined: Tensor) -> bool:
    """Return whether tensors are put beside one another along a dimension of channels."""
    return any(
        joined.shape[dim] != labels.shape[dim]
        for labels in step.labels
        if labels.ids.dim() == joined.dim()
        for dim in varying(labels.ids)
    )


def shuffle_pixels(step: OpCall) -> Any:
    """Make pixels of channels, or channels of pixels: an image loses whole planes, no pixels."""
    moved = move(step)
    if not step.labels:
        return moved
    images = max((step.labels[0].ids, moved.ids), key=lambda ids: ids.shape[-1])
    planes = images.movedim(-3, 0).flatten(1)
    step.constraints.tie(planes[:, :1].expand_as(planes), planes)
    return moved


def view_as_complex(step: OpCall) -> Any:
    """Two channels become one complex number (rotary positions): they go together."""
    ids, state = step.x.ids, step.x.state
    step.constraints.tie(ids[..., 0], ids[..., 1])
    return Labels(ids[..., 0], state.amax(-1))


def view_as_real(step: OpCall) -> Any:
    """A complex number becomes two channels, which go together."""
    pairs = (*step.x.shape, 2)
    return Labels(step.x.ids[..., None].expand(pairs), step.x.state[..., None].expand(pairs))


def pick(step: OpCall) -> Any:
    """Index a tuple, a list, a dict, a size or a tensor."""
    holder = step.args[0]
    if isinstance(holder, Labels):
        if isinstance(step.args[1], Labels):
            return take(step)
        is_indexed = any(isinstance(leaf, Labels) for leaf in leaves_of(step.args[1]))
        return take_places(step) if is_indexed else move(step)
    return holder[step.args[1]]


def expand_as(step: OpCall) -> Any:
    """`y.expand_as(x)`: what is repeated for each channel of x can lose what x loses."""
    labels = step.labels
    if len(labels) != 2 or not isinstance(step.out, Tensor) or bool((labels[0].ids != FIXED).any()):
        return move(step)
    y, x = labels
    padded = (1,) * (step.out.dim() - y.ids.dim()) + tuple(y.shape)
    if any(padded[dim] != 1 for dim in varying(x.ids)):
        return move(step)
    return Labels(x.ids, constant(UNKNOWN, x.shape))


def attribute(step: OpCall) -> Any:
    """Read an attribute: of a tensor only its description, or its transpose."""
    holder, name = step.args[0], step.args[1]
    if isinstance(holder, tuple) and type(holder) is type(step.real_args[0]):
        return getattr(holder, name)
    if not isinstance(holder, Labels):
        return fixed_out(step.out)
    attribute_of = ATTRIBUTES.get(name)
    if attribute_of is not None and attribute_of.describes:
        return step.out
    return move(step) if attribute_of is not None and attribute_of.views else opaque(step)


def number(step: OpCall) -> Any:
    """A size, a count or another number that describes a tensor."""
    return step.out


def pad(step: OpCall) -> Any:
    """Pad: along space the channel stays what it is; along channels zeros join in."""
    x, amounts, mode, value = _pad_arguments(step)
    dims = varying(x.ids)
    padded = {x.ids.dim() - 1 - i // 2 for i, amount in enumerate(amounts) if amount}
    if len(dims) > 1:
        return opaque(step)
    if not padded & set(dims or [min(1, x.ids.dim() - 1)]):
        return _pad_space(step, x, mode, value, dims)
    if padded != set(dims) or mode != "constant" or min(amounts) < 0:
        return opaque(step)
    return _pad_channels(step, x, amounts, value, dims[0])


def call_on_places(step: OpCall, places: Tensor) -> Tensor:
    """Move the places of a single tensor's elements as the call moves the elements."""
    return _call_on(step, lambda _: places)


def as_selection(
    shape: torch.Size, moved: Tensor, dims: Sequence[int] = ()
) -> tuple[int, Tensor] | None:
    """Return the dimension and indices that turn a tensor of places into `moved`.

    The given dimensions are tried first: what changes nothing is a selection along any.
    """
    places = torch.arange(shape.numel(), device="cpu").reshape(shape)
    if moved.dim() != len(shape) or moved.numel() == 0:
        return None
    for dim in [*dims, *range(len(shape))]:
        others = [s for d, s in enumerate(shape) if d != dim]
        if others != [s for d, s in enumerate(moved.shape) if d != dim]:
            continue
        index = (line_along(moved, dim) // places.stride(dim)) % shape[dim]
        if torch.equal(places.index_select(dim, index), moved):
            return dim, index
    return None


def _pad_space(step: OpCall, x: Labels, mode: str, value: float, dims: list[int]) -> Labels:
    dim = dims[0] if dims else min(1, x.ids.dim() - 1)
    ids, state = step.constraints.read(x, dim)
    if mode == "constant":
        kept_zero = (state == ZERO) & (value == 0)
        state = torch.where(kept_zero, ZERO, UNKNOWN)
    return along(ids, state, step.out.shape, dim)


def _pad_channels(step: OpCall, x: Labels, amounts: Any, value: float, dim: int) -> Labels:
    ids, state = step.constraints.read(x, dim)
    offset = 2 * (x.ids.dim() - 1 - dim)
    before, after = amounts[offset], amounts[offset + 1]
    new_state = ZERO if value == 0 else CONSTANT
    joined = torch.cat([step.constraints.new_atoms(before), ids, step.constraints.new_atoms(after)])
    states = F.pad(state, (before, after), value=new_state)
    return along(joined, states, step.out.shape, dim)


def _pad_arguments(step: OpCall) -> tuple[Labels, tuple[int, ...], str, float]:
    if step.is_module:
        module: Any = step.module
        is_constant = isinstance(module, nn.modules.padding._ConstantPadNd)
        value = getattr(module, "value", 0.0)
        return step.x, tuple(module.padding), "constant" if is_constant else "other", value
    amounts = step.argument(1, "pad")
    mode = step.argument(2, "mode", "constant")
    return step.x, tuple(amounts), mode, step.argument(3, "value") or 0.0


def _call_on(step: OpCall, view: Callable[[Labels], Tensor]) -> Any:
    def swap(leaf: Any) -> Any:
        return view(leaf) if isinstance(leaf, Labels) else leaf

    args, kwargs = map_leaves(swap, step.args), map_leaves(swap, step.kwargs)
    try:
        return call_on_labels(step.node, step.net, args, kwargs)
    except (RuntimeError, NotImplementedError):  # no integers, or no view of repeated labels
        args, kwargs = map_leaves(_as_double, args), map_leaves(_as_double, kwargs)
        result = call_on_labels(step.node, step.net, args, kwargs)
        return tree_map(lambda leaf: leaf.long() if isinstance(leaf, Tensor) else leaf, result)


def _as_double(leaf: Any) -> Any:
    return leaf.double().contiguous() if isinstance(leaf, Tensor) else leaf


def _zip_labels(ids: Any, state: Any) -> Any:
    if isinstance(ids, Tensor):
        return Labels(ids, state)
    if isinstance(ids, tuple | list):
        zipped = [_zip_labels(i, s) for i, s in zip(ids, state, strict=True)]
        return zipped if isinstance(ids, list) else tuple(zipped)
    return ids


def index_select(step: OpCall) -> Any:
    """`index_select(x, dim, index)`: whole rows, so channels along other dimensions stay apart."""
    dim = _dim_of(step, [step.x])
    return opaque(step) if dim is None else _spread(_at_one_place(step.x, dim), step.out)


def gather(step: OpCall) -> Any:
    """`gather(x, dim, index)`: the index has a place of its own for each channel."""
    x, index = step.x, step.argument(2, "index")
    dim = _dim_of(step, [x])
    if dim is None or not isinstance(index, Labels) or not _fits(x, index, varying(x.ids)):
        return opaque(step)
    labels = _at_one_place(x, dim)
    _tie_index(step, index, dim, labels)
    return _spread(labels, step.out)


def scatter(step: OpCall) -> Any:
    """`scatter_add(x, dim, index, source)`, `scatter_reduce`, `index_add`: zero where both are."""
    x, index, source = (step.argument(i, n) for i, n in ((0, "input"), (2, "index"), (3, "src")))
    source = step.kwargs.get("source", source)  # as index_add calls it
    if not all(isinstance(part, Labels) for part in (x, index, source)):
        return opaque(step)
    dim = _dim_of(step, [x, source])
    dims = {*varying(x.ids), *varying(source.ids)}
    if dim is None or not _fits(x, source, dims):
        return opaque(step)
    into, read = _at_one_place(x, dim), _at_one_place(source, dim)
    step.constraints.tie(into.ids, read.ids)
    if index.ids.dim() == source.ids.dim() and "index_add" not in step.name:
        if not _fits(source, index, dims):
            return opaque(step)
        _tie_index(step, index, dim, read)
    state = pointwise(
        lambda one, two: torch.where((one == ZERO) & (two == ZERO), ZERO, UNKNOWN),
        into.state, read.state,
    )  # fmt: skip
    return _spread(Labels(into.ids, state), step.out)


def take(step: OpCall) -> Any:
    """`x[index]` with a tensor as index, which stands for the first dimensions.

    A parameter is a table then: of all its rows the same columns go.
    """
    x, index = step.args[0], step.real_args[1]
    n = index.dim() if index.dtype in (torch.bool, torch.uint8) else 1
    if not isinstance(x, Labels) or x.ids.numel() == 0:
        return opaque(step)
    if any(d < n for d in varying(x.ids)):
        if n > 1 or x.name is None:
            return opaque(step)
        step.constraints.tie(x.ids[:1].expand_as(x.ids), x.ids)
    labels = x
    for _ in range(n):
        labels = _at_one_place(labels, 0)
        labels = Labels(labels.ids.select(0, 0), labels.state.select(0, 0))
    return _spread(labels, step.out)


def take_places(step: OpCall) -> Any:
    """`x[rows, index]` and `x[:, :, index]`: places are picked, and channels lie along others.

    What else stands in the index must leave channels whole, so that fewer are picked alike.
    """
    x, index = step.args[0], step.real_args[1]
    picked, n_dims = list[int](), x.ids.dim()
    taking = [part for part in index if part is not None and part is not ...]
    places = iter([*range(n_dims)])
    for part in index:
        if part is ...:
            places = iter([*places][n_dims - len(taking) :])
        elif part is not None:
            dim = next(places)
            if isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8):
                return opaque(step)
            if isinstance(part, Tensor):
                picked.append(dim)
            elif part != slice(None) and dim in varying(x.ids):
                return opaque(step)
    if x.ids.numel() == 0 or (x.name is None and set(picked) & set(varying(x.ids))):
        return opaque(step)
    labels = x
    for dim in picked:
        step.constraints.tie(labels.ids.narrow(dim, 0, 1).expand_as(labels.ids), labels.ids)
        labels = _at_one_place(labels, dim)
    index = tuple(part.cpu() if isinstance(part, Tensor) else part for part in index)
    ids, state = (part.expand(x.shape)[index] for part in (labels.ids, labels.state))
    return Labels(ids, state)


def assign(step: OpCall) -> Any:
    """`x[index] = value`: what has no channels, such as a mask, has none behind it; others stay."""
    text = f"items of it are set at {source_of(step.node)}"
    return opaque(step, text, "write it as torch.where or torch.cat, or leave these channels")


def _dim_of(step: OpCall, tensors: list[Labels]) -> int | None:
    """Return the dimension that is indexed, or None if channels lie along it."""
    dim = step.argument(1, "dim")
    if type(dim) is not int or not isinstance(step.out, Tensor):
        return None
    dim %= max(1, tensors[0].ids.dim())
    same_rank = all(part.ids.dim() == step.out.dim() > 0 for part in tensors)
    filled = all(part.ids.numel() > 0 for part in tensors)
    free = same_rank and filled and not any(dim in varying(part.ids) for part in tensors)
    return dim if free else None


def _fits(one: Labels, two: Labels, dims: Any) -> bool:
    """Return whether two tensors have equally many places along the dimensions of channels."""
    same_rank = one.ids.dim() == two.ids.dim() and two.ids.numel() > 0
    return same_rank and all(one.shape[dim] == two.shape[dim] for dim in dims)


def _at_one_place(labels: Labels, dim: int) -> Labels:
    """Return labels with one place in a dimension along which channels do not change."""
    return Labels(labels.ids.narrow(dim, 0, 1), worst_along(labels.state, dim))


def _spread(labels: Labels, out: Tensor) -> Labels:
    return Labels(labels.ids.expand(out.shape), labels.state.expand(out.shape))


def _tie_index(step: OpCall, index: Labels, dim: int, read: Labels) -> None:
    """An index that has a place for each channel must lose the places of those that go."""
    index_ids = index.ids.narrow(dim, 0, 1)
    if bool((index_ids == FIXED).all()):
        step.constraints.block(
            read.ids,
            f"the index of {describe_call(step.node)} has a column for each of its channels",
            "write it as index.unsqueeze(-1).expand_as(x), or use index_select and index_add",
        )
    elif index_ids.shape == read.shape:
        step.constraints.tie(index_ids, read.ids)
    else:
        opaque(step)


def embedding(step: OpCall) -> Any:
    """`nn.Embedding`, `nn.EmbeddingBag` and their functions with a plain table."""
    name: str | None = f"{step.node.target}.weight"
    if not step.is_module:
        weight = step.argument(1, "weight")
        name = weight.name if isinstance(weight, Labels) else None
    # Rows that are too long are scaled as a whole; weights of samples may have channels.
    is_plain = step.option(3, "max_norm") is None
    if name is None or not is_plain or any(_has_channels(labels) for labels in step.labels):
        return opaque(step)
    ids = step.constraints.dim(name, 1)
    unknown = constant(UNKNOWN, [len(ids)])
    return along(ids, unknown, step.out.shape, step.out.dim() - 1)


def _has_channels(labels: Labels) -> bool:
    return labels.name is None and bool((labels.ids != FIXED).any())
