"""What is known of each gate: moving averages of its gradient, and how long it has been closed.

It is in the `state` of the gates' optimiser: `mean`, the moving average; for a branch `later`,
that average when the step was last a power of two, and `grown`; and `closed`, the number of
decisions in a row that found a gate closed. After so many it is for good: `shrink_` cuts it out, or
could have, so it never opens again.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from archlearn.errors import InputError
from archlearn.nn.functional import join_gates, split_gates
from archlearn.optim.gate_ranking import Holds
from archlearn.optim.gate_schedule import GateSchedule

State = Mapping[Tensor, dict[str, Any]]
_GROWTH = 2.0
"""A branch has grown once it no longer earns so many times what it earned in half the time."""


def observe_(gates: list[Tensor], state: State, schedule: GateSchedule, rates: Any) -> None:
    """Add the gradients of this step to what is known of each gate.

    `rates` say how much this step counts for each gate; None where it does for all alike.
    """
    seen = [gate for gate in gates if gate.grad is not None]
    if not seen:
        raise InputError(
            "gates have no gradient: compute the loss by the gated model, not by the network that "
            "add_gates copied; give the other optimiser archlearn.weights(model), for its "
            "zero_grad() clears gates if it has model.parameters(); and call gates.step() behind "
            "loss.backward() and in front of zero_grad(), of the model's as well as of gates"
        )
    states = [state[gate] for gate in seen]
    for gate, statistics in zip(seen, states, strict=True):
        if "mean" not in statistics:
            number_format = torch.promote_types(gate.dtype, torch.float32)
            statistics["mean"] = torch.zeros_like(gate, dtype=number_format)
    means: list[Tensor] = [statistics["mean"] for statistics in states]
    flat = join_gates([gate.grad for gate in seen if gate.grad is not None]).to(means[0].dtype)
    flat.nan_to_num_(0.0, 0.0, 0.0)  # a batch that overflowed in half precision says nothing
    if schedule.signal == "size":
        flat.abs_()
    elif schedule.signal == "square":
        flat.mul_(flat)
    else:
        flat.neg_()
    if rates is None:
        torch._foreach_lerp_(means, split_gates(flat, seen), 1.0 - schedule.memory)
        return
    if len(seen) < len(gates):
        pairs = zip(split_gates(rates, gates), gates, strict=True)
        rates = join_gates([rate for rate, gate in pairs if gate.grad is not None])
    flat.sub_(join_gates(means)).mul_(rates)
    torch._foreach_add_(means, split_gates(flat, seen))


def estimate_earnings(
    means: Mapping[Tensor, Tensor | None], schedule: GateSchedule, n_depth: int, n_branches: int
) -> Tensor:
    """Return what each gate earns: widths, then depths, then branches, in the order of `means`."""
    depths = range(len(means) - n_depth - n_branches, len(means) - n_branches)
    if any(mean is not None for mean in means.values()):
        values = [torch.zeros_like(g) if mean is None else mean for g, mean in means.items()]
    else:  # nothing was observed: gates speak for themselves
        values = [1 - g.detach() if i in depths else g.detach() for i, g in enumerate(means)]
    earned = join_gates(values).double()
    discount = schedule.branch_discount
    earned[len(earned) - n_branches :] /= discount if schedule.signal == "square" else discount**0.5
    return earned


def sort_heads_(
    order: Tensor, mean: Tensor, is_open: Tensor, for_good: Tensor, schedule: GateSchedule
) -> None:
    """Sort the channels of each head by what they earn, in place: the first stand for open gates.

    `order` has a row a head and a column a gate, and so has `mean`, which is sorted with it. Those
    of gates that are open are preferred, and those of gates that are closed for good stay.
    """
    worth = torch.where(is_open > 0, mean * schedule.stay, mean).masked_fill(for_good, -torch.inf)
    source = worth.argsort(dim=1, descending=True, stable=True)
    target = (2 * for_good + (is_open == 0)).argsort(stable=True)
    for values in (order, mean):
        values[:, target] = values.gather(1, source)


def note_growth_(branches: list[Tensor], state: State, weight: float, *, may_judge: bool) -> None:
    """Take down which branches earn something, and not far more than in half the time.

    Averages are too small by `weight`, for they began at zero. `may_judge` says whether it is late
    enough for a branch to have grown.
    """
    for gate in branches:
        statistics = state[gate]
        if "mean" not in statistics:
            continue
        mean = statistics["mean"] / weight
        if "later" in statistics and may_judge:
            grown = ((mean > 0) & (mean <= _GROWTH * statistics["later"])).to(mean.dtype)
            statistics["grown"] = torch.maximum(grown, statistics.get("grown", grown))
        statistics["later"] = mean.clone()


def find_growing(branches: list[Tensor], state: State) -> Tensor:
    """Return which branches have not been seen yet to have grown.

    A branch whose last norm or layer scale starts at zero adds nothing at first, and so earns
    nothing; what it will be worth is seen when it has grown.
    """
    pairs = zip(branches, [state[gate] for gate in branches], strict=True)
    return torch.stack([
        x["grown"] if "grown" in x else torch.full_like(gate, "mean" not in x)
        for gate, x in pairs
    ]) == 0  # fmt: skip


_FOR_GOOD = 2**24
"""Stands for the number of decisions since a gate closed when it never opens again."""
_RESERVE = 4
"""At least so many channels of each group, the last that closed, are never closed for good."""


def find_closed_for_good(gates: list[Tensor], state: State, device: torch.device) -> Tensor:
    """Return which gates have been closed too long to open again."""
    return _times_closed(gates, state, device) == _FOR_GOOD


def count_closed_(
    gates: list[Tensor], state: State, is_open: Tensor, holds: Holds, patience: int
) -> None:
    """Count at how many decisions in a row gates have been closed, until it is for good.

    The last few of each group that closed may always come back: what fits of the budget in the
    end is filled up with them. Gates are those of widths, then those of branches.
    """
    group = holds.group
    times, n_width = _times_closed(gates, state, group.device), len(group)
    counts = torch.where(is_open > 0, 0, (times + 1).clamp(max=_FOR_GOOD - 1))
    recent = torch.where(counts > 0, counts, _FOR_GOOD)[:n_width]
    order = torch.argsort(group * (_FOR_GOOD + 1) + recent, stable=True)
    first = torch.searchsorted(group, group)
    position = torch.empty_like(order)
    position[order] = torch.arange(len(order), device=order.device) - first
    may_return = torch.zeros_like(counts, dtype=torch.bool)
    may_return[:n_width] = position < holds.step[group].clamp(min=_RESERVE)
    is_long = (counts >= patience) & ~may_return
    counts = torch.where(is_long | (times == _FOR_GOOD), _FOR_GOOD, counts)
    for gate in gates:
        if "closed" not in state[gate]:
            state[gate]["closed"] = torch.zeros_like(gate, dtype=counts.dtype)
    if gates:
        closed = [state[gate]["closed"] for gate in gates]
        torch._foreach_copy_(closed, split_gates(counts, gates))


def _times_closed(gates: list[Tensor], state: State, device: torch.device) -> Tensor:
    times = [(state[gate].get("closed"), gate) for gate in gates]
    none = torch.zeros(0, dtype=torch.int32, device=device)
    zeros = torch.zeros_like
    return join_gates([none] + [zeros(g, dtype=none.dtype) if n is None else n for n, g in times])
