"""Rules of matmul, einsum and attention: products of two tensors that `forward` computes.

Channels along an index that the result still has pass: heads, which both factors have, or the
columns of one factor. What else a factor has at one index of those goes with it, so a head goes
whole: its queries, keys and values. Channels along the index that is summed over are read: one may
go where it is zero in a factor, and it goes in both.

Heads lose channels within, too: the i-th query of each with the i-th key of each, or the i-th value
of each. Such a channel goes with its head, or with its place in all heads; `head_channels` finds
where places may be others in each head. Keys and values that all heads share (multi-query
attention) go with their place alone; where a call repeats them for every head of queries, each
copy goes with its head. Where several heads are repeated (grouped queries), a head of queries goes
with that of keys and values, or with its place among those that share it: the same in all groups.
Few heads stay, and lose only channels within.

Indices are written as letters, as einsum has them.
"""

import string
from typing import Any

import torch
from torch import Tensor

from archlearn.analysis.channel_labels import (
    FIXED,
    UNKNOWN,
    ZERO,
    Labels,
    along,
    constant,
    core,
    filled,
    plane_along,
    pointwise,
    spread_plane,
    varying,
)
from archlearn.analysis.rule_api import FEW, OpCall, describe_call, opaque

Factor = tuple[Labels, str]


def matmul(step: OpCall) -> Any:
    """`a @ b` of matrices or batches of them."""
    labels = step.labels
    is_reversed = "input" in step.kwargs and next(iter(step.kwargs)) != "input"
    if len(labels) != 2 or min(part.ids.dim() for part in labels) < 2 or is_reversed:
        return opaque(step)
    batch = string.ascii_lowercase[: step.out.dim() - 2]
    a, b = (batch[len(batch) + 2 - part.ids.dim() :] for part in labels)
    return _multiply(step, [(labels[0], f"{a}yz"), (labels[1], f"{b}zx")], f"{batch}yx")


def einsum(step: OpCall) -> Any:
    """`einsum("bhid,bhjd->bhij", q, k)` of two tensors."""
    equation = step.args[0] if step.args else None
    if not isinstance(equation, str) or len(step.labels) != 2:
        return opaque(step)
    letters, out = _read_equation(equation, [labels.ids.dim() for labels in step.labels])
    if any(len(set(part)) < len(part) for part in letters):  # a diagonal
        return opaque(step)
    return _multiply(step, list(zip(step.labels, letters, strict=True)), out)


def _read_equation(equation: str, n_dims: list[int]) -> tuple[list[str], str]:
    """Return the indices of each factor and of the result; those of `...` have letters, too."""
    left, arrow, out = equation.replace(" ", "").replace("...", ".").partition("->")
    parts = left.split(",")
    spare = [c for c in string.ascii_letters if c not in left]
    others = [
        "".join(reversed(spare[: n + 1 - len(part)])) if "." in part else ""
        for part, n in zip(parts, n_dims, strict=True)
    ]
    if not arrow:
        out = "." + "".join(sorted(c for c in left if c.isalpha() and left.count(c) == 1))
    letters = [part.replace(".", rest) for part, rest in zip(parts, others, strict=True)]
    return letters, out.replace(".", max(others, key=len))


def attention(step: OpCall) -> Any:
    """`F.scaled_dot_product_attention`: two products with a softmax in between."""
    names = ("query", "key", "value", "attn_mask")
    q, k, v, mask = (step.argument(index, name) for index, name in enumerate(names))
    if not all(isinstance(part, Labels) and part.ids.dim() == q.ids.dim() for part in (q, k, v)):
        return opaque(step)
    if q is not step.x or q.ids.dim() < 3:
        return opaque(step)
    k, v = (_repeat_heads(step, part, q) for part in (k, v))
    batch = string.ascii_lowercase[: q.ids.dim() - 2]
    scores = _contract(step, [(q, f"{batch}yz"), (k, f"{batch}xz")], f"{batch}yx")
    if scores is None:
        return opaque(step)
    weights = Labels(scores[0].ids, constant(UNKNOWN, scores[0].shape))
    if isinstance(mask, Labels):
        _tie_mask(step, mask, weights)
    contracted = _contract(step, [(weights, f"{batch}yx"), (v, f"{batch}xw")], f"{batch}yw")
    if contracted is None:
        return opaque(step)
    step.products.extend([(q.shape[-1], scores[1]), (v.shape[-1], contracted[1])])
    return contracted[0]


def _multiply(step: OpCall, factors: list[Factor], out: str) -> Any:
    contracted = _contract(step, factors, out)
    if contracted is None:
        return opaque(step)
    step.products.append((1, contracted[1]))
    return contracted[0]


def _contract(step: OpCall, factors: list[Factor], out: str) -> tuple[Labels, Tensor | None] | None:
    """Return the labels of a product, and the channels that its cost is proportional to.

    None if channels lie along both factors in a way that no product of fewer could have.
    """
    sizes = {c: 1 for _, letters in factors for c in letters}
    for labels, letters in factors:
        sizes |= {c: n for c, n in zip(letters, labels.shape, strict=True) if n > 1}
    whole, factors = factors, [_without_repeated(*factor, sizes) for factor in factors]
    along_letters = [{letters[dim] for dim in varying(labels.ids)} for labels, letters in factors]
    shape = torch.Size(sizes[c] for c in out)
    short, long = sorted((letters for _, letters in whole), key=len)
    heads = [c for c in long if c in short and c in out]
    if len(short) < len(long):  # one for all heads may lack their index (einsum)
        heads += [c for c in long if c not in short and c in out]
    grid = _find_grid(heads, along_letters, out)
    if grid is not None and _loses_whole_heads(step, factors, grid):
        if step.may_gate_reads:
            return _pass_grid(step, whole, factors, grid, (out, shape))
    elif grid is not None and {grid[0]} not in along_letters:
        along_letters = [letters_in - {grid[0]} for letters_in in along_letters]
    passing = _find_passing(factors, along_letters, out)
    shared = set.intersection(*along_letters) - set(out)
    if len(shared) == 1 and not all(passing in letters for _, letters in factors):
        # Features of a DLRM: rows of several layers, each with each. The same of each row goes.
        along_letters, passing = [shared, shared], ""
    if passing:
        return _pass(step, whole, factors, passing, (out, shape))
    summed = set[str]().union(*along_letters)
    if len(summed) > 1 or (
        summed and not all(summed <= letters_in for letters_in in along_letters)
    ):
        return None
    ids = _read_summed(step, whole, summed.pop()) if summed else None
    return filled(shape, FIXED, UNKNOWN), ids


def _find_grid(heads: list[str], along_letters: list[set[str]], out: str) -> tuple[str, str] | None:
    """Return the index of heads, and that of channels within them, where both could go."""
    for c in [c for c in heads if any(c in letters_of for letters_of in along_letters)]:
        within = [letters_of - {c} for letters_of in along_letters]
        left = set[str]().union(*within)
        is_summed = all(within) and not left & set(out)
        if len(left) == 1 and (is_summed or left & set(out)):
            return c, left.pop()
    return None


def _loses_whole_heads(step: OpCall, factors: list[Factor], grid: tuple[str, str]) -> bool:
    """Return whether whole heads go: there are many, or what is within a head is tied."""
    heads, within = grid
    with_heads = [(x, letters.index(heads)) for x, letters in factors if heads in letters]
    lines = [core(x.ids, x.state, dim)[0] for x, dim in with_heads]
    n_heads = max(line.unique(dim=1).shape[1] for line in lines)
    decisions = step.constraints.whole_groups
    if step.node.name not in decisions:
        parts = [(x.ids, letters.index(within)) for x, letters in factors if within in letters]
        root = step.constraints.roots() if n_heads <= FEW else torch.zeros(0, device="cpu")
        decisions[step.node.name] = n_heads > FEW or not all(
            dim in varying(pointwise(root.__getitem__, ids)) for ids, dim in parts
        )
    return decisions[step.node.name]


def _pass_grid(
    step: OpCall,
    whole: list[Factor],
    factors: list[Factor],
    grid: tuple[str, str],
    result: tuple[str, torch.Size],
) -> tuple[Labels, Tensor]:
    """Heads pass, and channels within them pass or are summed over: each may go by itself."""
    (heads, within), (out, shape) = grid, result
    rows: Tensor | None = None
    columns: Tensor | None = None
    grid_ids: Tensor | None = None
    states: list[Tensor] = []
    for (original, _), (labels, letters) in zip(whole, factors, strict=True):
        if within not in letters or letters.index(within) not in varying(labels.ids):
            if heads in letters:  # or else the same for all heads
                ids, _ = step.constraints.read(labels, letters.index(heads))
                rows = ids if rows is None else rows
                step.constraints.tie(rows, ids)
        elif heads not in letters:  # one for all heads
            columns, state = step.constraints.read(labels, letters.index(within))
            states.append(state[None])
        else:
            dims = letters.index(heads), letters.index(within)
            if _is_repeated(labels, dims[0]):
                step.repeated.append(original)
            cells, state = (plane_along(x, dims) for x in (labels.ids, labels.state))
            grid_ids = cells if grid_ids is None else grid_ids
            step.constraints.tie(grid_ids, cells)
            states.append(state)
    if grid_ids is None:
        assert rows is not None  # heads vary in one factor
        assert columns is not None  # and channels within them in the other
        grid_ids = step.constraints.new_matrix(rows, columns)
        states = [torch.full_like(grid_ids, UNKNOWN)]
    else:
        rows = step.constraints.new_atoms(len(grid_ids)) if rows is None else rows
        columns = step.constraints.new_atoms(grid_ids.shape[1]) if columns is None else columns
        step.constraints.note_grid(grid_ids, rows, columns)
    state = torch.stack(torch.broadcast_tensors(*states)).amin(0)
    if within in out:
        state = torch.where(state == ZERO, ZERO, UNKNOWN)
        dims = out.index(heads), out.index(within)
        return spread_plane(grid_ids, state, shape, dims), grid_ids.reshape(-1)
    is_open = (state != ZERO).any(0)
    if bool(is_open.any()):
        step.gate_read(whole[0][1].index(within), torch.where(is_open, columns, FIXED))
    unknown = torch.full_like(rows, UNKNOWN)
    return along(rows, unknown, shape, out.index(heads)), grid_ids.reshape(-1)


def _find_passing(factors: list[Factor], along_letters: list[set[str]], out: str) -> str:
    """Return the index of the result along which channels pass: rather heads than columns."""
    both = set(factors[0][1]) & set(factors[1][1])
    heads = [c for c in out if c in both and any(c in letters_of for letters_of in along_letters)]
    columns = [c for letters_of in along_letters for c in out if c in letters_of]
    return (heads or columns or [""])[0]


def _pass(
    step: OpCall,
    whole: list[Factor],
    factors: list[Factor],
    passing: str,
    result: tuple[str, torch.Size],
) -> tuple[Labels, Tensor | None]:
    out, shape = result
    passed: Tensor | None = None
    state = torch.tensor(UNKNOWN, device="cpu")
    for (original, _), (labels, letters) in zip(whole, factors, strict=True):
        if passing not in letters:
            step.constraints.block(
                labels.ids,
                f"every head reads it in {describe_call(step.node)}; the heads are learnt",
            )
            continue
        if varying(labels.ids) and _is_repeated(labels, letters.index(passing)):
            step.repeated.append(original)
        ids, own_state = step.constraints.read_heads(labels, letters.index(passing))
        state = torch.minimum(state, own_state)
        passed = ids if passed is None else passed
        step.constraints.tie(passed, ids)
    assert passed is not None  # one factor has it
    state = torch.where(state == ZERO, ZERO, UNKNOWN)
    return along(passed, state, shape, out.index(passing)), passed


def _read_summed(step: OpCall, factors: list[Factor], letter: str) -> Tensor:
    """Read channels that are summed over: those that are zero in one factor may go in both."""
    (a, b), (state, other) = zip(
        *(step.constraints.read(labels, letters.index(letter)) for labels, letters in factors),
        strict=True,
    )
    step.constraints.tie(a, b)
    is_open = (torch.minimum(state, other) != ZERO) & (a != FIXED)
    if step.may_gate_reads and bool(is_open.any()):
        step.gate_read(factors[0][1].index(letter), torch.where(is_open, a, FIXED))
    else:
        text = f"summed over in {describe_call(step.node)}"
        step.constraints.block(a[is_open], text)
    return a


def _without_repeated(labels: Labels, letters: str, sizes: dict[str, int]) -> Factor:
    """Return a factor without indices along which it has one place for all."""
    ids, state = labels.ids, labels.state
    for dim in reversed(range(len(letters))):
        if ids.shape[dim] == 1 and sizes[letters[dim]] > 1:
            ids, state = ids.select(dim, 0), state.select(dim, 0)
            letters = letters[:dim] + letters[dim + 1 :]
    return Labels(ids, state), letters


def _is_repeated(labels: Labels, dim: int) -> bool:
    """Return whether several heads have the same channels."""
    lines, _ = core(labels.ids, labels.state, dim)
    return lines.unique(dim=1).shape[1] < lines.shape[1]


def _repeat_heads(step: OpCall, labels: Labels, q: Labels) -> Labels:
    """Return keys or values with a head for each of the queries (`enable_gqa`)."""
    n, dims, heads = q.shape[-3] // max(1, labels.shape[-3]), varying(labels.ids), q.ids.dim() - 3
    if n <= 1 or labels.shape[-3] == 1:
        return labels
    if step.may_gate_reads and heads in dims and len(dims) < 3:
        return step.constraints.copy_for_heads(labels, heads, n)
    return Labels(labels.ids.repeat_interleave(n, -3), labels.state.repeat_interleave(n, -3))


def _tie_mask(step: OpCall, mask: Labels, weights: Labels) -> None:
    """A mask, or a bias, with a place for each head goes with the heads."""
    for dim in varying(weights.ids):
        behind = dim - weights.ids.dim()
        if mask.ids.dim() >= -behind and mask.shape[behind] > 1:
            ids, _ = step.constraints.read(weights, dim)
            step.constraints.tie(ids, step.constraints.read(mask, mask.ids.dim() + behind)[0])
