"""Rules of embeddings, index_select, gather, scatter and x[index], which pick rows.

Message passing on graphs is written with these: nodes are picked and summed, channels pass.
"""

from typing import Any

import torch
from torch import Tensor

from archlearn.analysis.channel_labels import (
    FIXED,
    UNKNOWN,
    ZERO,
    Labels,
    along,
    pointwise,
    varying,
)
from archlearn.analysis.rule_api import OpCall, describe_call, opaque
from archlearn.tracing.fx_utils import source_of


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
    found = _at_one_place(x, dim)
    _tie_index(step, index, dim, found)
    return _spread(found, step.out)


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
    found = x
    for _ in range(n):
        found = _at_one_place(found, 0)
        found = Labels(found.ids.select(0, 0), found.state.select(0, 0))
    return _spread(found, step.out)


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
    state = labels.state
    known = state.narrow(dim, 0, 1) if state.stride(dim) == 0 else state.amax(dim, keepdim=True)
    return Labels(labels.ids.narrow(dim, 0, 1), known)


def _spread(labels: Labels, out: Tensor) -> Labels:
    return Labels(labels.ids.expand(out.shape), labels.state.expand(out.shape))


def _tie_index(step: OpCall, index: Labels, dim: int, read: Labels) -> None:
    """An index that has a place for each channel must lose the places of those that go."""
    own = index.ids.narrow(dim, 0, 1)
    if bool((own == FIXED).all()):
        step.constraints.block(
            read.ids,
            f"the index of {describe_call(step.node)} has a column for each of its channels",
            "write it as index.unsqueeze(-1).expand_as(x), or use index_select and index_add",
        )
    elif own.shape == read.shape:
        step.constraints.tie(own, read.ids)
    else:
        opaque(step)


def embedding(step: OpCall) -> Any:
    """`nn.Embedding` and `F.embedding` with a plain table."""
    name: str | None = f"{step.node.target}.weight"
    if not step.is_module:
        weight = step.argument(1, "weight")
        name = weight.name if isinstance(weight, Labels) else None
    if (
        name is None or step.option(3, "max_norm") is not None
    ):  # rows that are too long are scaled as a whole
        return opaque(step)
    ids = step.constraints.dim(name, 1)
    unknown = torch.tensor(UNKNOWN).expand(len(ids))
    return along(ids, unknown, step.out.shape, step.out.dim() - 1)
