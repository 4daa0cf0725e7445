"""Rank gates by what they earn for what they cost, and close as many as the budget asks for.

What a channel earns is the mean square of its gate's gradient, and what it costs is what the
network would save without it. Channels stand in one line by what they earn for what they cost, and
go from its end; so do layers where a price says what may stay. A residual branch goes as a whole:
by what its own gate earns, or where the last channel inside would go. Everything here runs on the
device, and reads nothing back but whether there is room to use.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from archlearn.optim.cost_function import CostFunction, flip_each

_AT_ONCE = 128
"""The most states whose costs are computed together while the number to close is searched."""
_MARGIN, _DOUBLINGS = 0.1, 3.0
"""Gates stay this far from one half; further out they say how many doublings the price is away."""
LAST_RESORT = 1e30
"""What a layer seems to earn that goes only if nothing else makes the network fit."""
FILLED, _MOVED = 0.98, 4
"""The part of the limits that is to be used, and how often gates may move for it."""
_FILLS, _HALVINGS = 16, 12
"""How often channels are opened again where the last one to close left room in the budget, and how
many fewer are tried where all that seemed to fit do not."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Everything that could go, by what it earns for what it costs.

    Attributes:
        ratio: Earnings over cost of each gate; infinite where nothing is to be gained, and minus
            infinite where a gate is closed for good.
        rank: The place of each gate in the line of those to go, from 0; all gates of a block have
            that of the first.
        block: One gate of each block, for each width gate: blocks go as a whole, so that the width
            of a group stays a multiple, and that of groups which are alike stays equal.
        is_rest: Whether a width gate is in the block of those that are too few: first to go.
    """

    ratio: Tensor
    rank: Tensor
    block: Tensor
    is_rest: Tensor

    def states(self, counts: Tensor, n_width: int) -> tuple[Tensor, Tensor]:
        """Return which width gates are open, and which layers and branches are gone, then."""
        is_gone = (self.rank < counts[:, None]) & (self.ratio < torch.inf)
        widths, others = is_gone.double().tensor_split([n_width], 1)
        return 1.0 - widths, others

    def move(self, chosen: Tensor, ratio: float) -> "Ranking":
        """Return the ranking with another ratio for what is chosen."""
        return _sort_gates(torch.where(chosen, ratio, self.ratio), self.block, self.is_rest)

    def distances(self, price: Tensor, is_kept: Tensor) -> Tensor:
        """Return values of gates that say how far each is from the price, around one half."""
        away = (self.ratio / price).log2().abs().nan_to_num(nan=_DOUBLINGS, posinf=_DOUBLINGS)
        away = _MARGIN + (0.5 - _MARGIN) * (away / _DOUBLINGS).clamp(max=1.0)
        return 0.5 + (2.0 * is_kept - 1.0) * away


@dataclass(frozen=True, slots=True)
class Holds:
    """What must stay, whatever it earns.

    Attributes:
        group: The group of each width gate.
        least: How many gates of each group must stay open.
        step: The width of each group is a multiple of so many gates, or all of them.
        alike: One group of those that each group is to be as wide as: itself, if of none.
        is_cut: Whether `shrink_` has cut gates of each group out.
        inner: For each branch, the width gates whose channels are all inside it.
        others: Whether each layer, then each branch must stay.
    """

    group: Tensor
    least: Tensor
    step: Tensor
    alike: Tensor
    is_cut: Tensor
    inner: Tensor
    others: Tensor


def find_savings(
    cost: CostFunction, opened: Tensor, gone: Tensor, limits: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what the network would save without each channel, layer (0) and branch.

    And which branches would take the network below its budget by going; one that is gone already
    does not. A channel inside a closed branch costs what it would if the branch were open.
    """
    is_gone = gone[cost.n_depth :]
    states = torch.cat([gone[None], gone[None], flip_each(gone)[cost.n_depth :]])
    states[1:2, cost.n_depth :] = 0.0
    with torch.enable_grad():
        leaf = opened.repeat(len(states), 1).requires_grad_()
        costs = cost(leaf, states)
        weights = _weigh_costs(costs[0].detach(), limits)
        (savings,) = torch.autograd.grad((costs[:2] @ weights).sum(), leaf)
    savings = torch.where(savings[0] > 0, savings[0], savings[1])
    now, _, flipped = costs.detach().tensor_split([1, 2])
    is_there = is_gone[:, None] == 0
    without = torch.where(is_there, flipped, now)
    overshoots = ((without < limits) | limits.isinf()).all(1) & (is_gone == 0)
    there = torch.where(is_there, now, flipped)
    layers = torch.zeros_like(gone[: cost.n_depth])
    return torch.cat([savings, layers, (there - without).mv(weights)]), overshoots


def _weigh_costs(present: Tensor, limits: Tensor) -> Tensor:
    """Return how much each cost counts: the more, the further it is above its limit.

    A cost without a limit never counts. Where all are within their limits, they count alike.
    """
    excess = (present / limits - 1.0).clamp(min=0.0) / present
    alike = limits.isfinite() / present
    weights = torch.where(excess.sum() > 0, excess, alike)
    return weights / weights.sum()


def rank_gates(earned: Tensor, cost: Tensor, is_kept: Tensor, holds: Holds, stay: float) -> Ranking:
    """Return all gates by what they earn for what they cost.

    Args:
        earned: What each gate earns: first those of widths, then those of depth, then branches;
            minus infinity where it is closed for good.
        cost: What the network saves without it; at most 0 where that is nothing.
        is_kept: Whether it is open now (a depth gate: not linear).
        holds: What must stay.
        stay: By how much those that are open now are preferred.
    """
    group, least, inner = holds.group, holds.least, holds.inner
    n_width = len(group)
    ratio = torch.where(cost > 0, earned / cost, torch.inf)
    ratio = torch.where(is_kept, ratio * stay, ratio)
    places, order = _places_within(ratio[:n_width], group)
    step, alike = holds.step[group], holds.alike[group]
    block = order[torch.searchsorted(group, alike) + places - places % step]
    sizes = torch.zeros_like(group).index_add_(0, block, torch.ones_like(group))[block]
    ratio[:n_width] = _join_blocks(ratio[:n_width], block, sizes)
    is_rest = sizes < step * torch.bincount(holds.alike)[alike]
    ratio[:n_width].masked_fill_(is_rest & holds.is_cut[group], -torch.inf)
    if inner.numel():
        # The best channel inside is the last to go, and the branch goes with it.
        best = torch.where(inner, ratio[:n_width], -torch.inf).amax(1)
        best = torch.where(inner.any(1), best, torch.inf)
        ratio[-len(inner) :].clamp_(max=best)
    ratio[n_width:].masked_fill_(holds.others, torch.inf)
    ratio[:n_width].masked_fill_(places < least[group], torch.inf)
    return _sort_gates(ratio, block, is_rest)


def _sort_gates(ratio: Tensor, block: Tensor, is_rest: Tensor) -> Ranking:
    others = torch.arange(len(block), len(ratio), device=block.device)
    first_of = torch.cat([block, others])
    rest_first = torch.cat([~is_rest, others >= 0]).to(torch.uint8).argsort(stable=True)
    order = rest_first[ratio[rest_first].argsort(stable=True)]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    rank = rank.scatter_reduce(0, first_of, rank, "amin")[first_of]
    return Ranking(ratio, rank, block, is_rest)


def _join_blocks(ratio: Tensor, block: Tensor, sizes: Tensor) -> Tensor:
    """Return the mean of each block for all its gates; none opens where one may not."""
    mean = torch.zeros_like(ratio).index_add_(0, block, ratio)[block] / sizes
    return mean.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def _places_within(ratio: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Return the place of each gate within its group, the one that earns most first.

    And all gates in that order, group by group.
    """
    by_ratio = ratio.argsort(descending=True, stable=True)
    order = by_ratio[group[by_ratio].argsort(stable=True)]
    first = torch.searchsorted(group, group)  # gates stand by groups
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device) - first
    return places, order


def use_room(
    ranking: Ranking, is_large: Tensor, cost: CostFunction, limits: Tensor
) -> tuple[Ranking, Tensor]:
    """Return the ranking with large gates moved whose going would leave much room.

    And how many gates must go then. Where the last to go so that the network fits is a layer, a
    branch or a head, channels go instead of it and of others like it; if these are not enough, it
    is the first to go, and only as many channels as then must. All stays as it is where that would
    leave more room still. `is_large` are layers, branches, and what takes much of a layer.
    """
    count, landed = fit(ranking, cost, limits)
    for _ in range(_MOVED):
        used = (landed / limits).amax()
        is_last = (ranking.rank == count - 1) & (ranking.ratio > -torch.inf) & is_large
        if not (is_last & (used < FILLED)).any():  # to wait for a GPU once is cheap
            break
        stays = is_large & (ranking.rank >= count - 1)
        moved = ranking.move(stays & (ranking.ratio < LAST_RESORT), LAST_RESORT)
        fitted = fit(moved, cost, limits)
        if (stays & (moved.rank < fitted[0])).any():
            moved = ranking.move(is_last, -LAST_RESORT)
            fitted = fit(moved, cost, limits)
        if (fitted[1] / limits).amax() <= used:
            break
        ranking, (count, landed) = moved, fitted
    return ranking, count


def fit(ranking: Ranking, cost: CostFunction, limits: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many gates must go, in the order of their ranks, and what the network costs then.

    Those that are closed for good are the first of them, and go whether there is room or not.
    """
    device = ranking.rank.device
    low = torch.where(ranking.ratio == -torch.inf, ranking.rank, -1).amax()
    high = torch.full((), len(ranking.rank), device=device)
    span, landed = len(ranking.rank) + 1, limits
    n_states = min(math.isqrt(span) + 1, _AT_ONCE)  # twice is enough, for most networks
    steps = torch.arange(1, n_states + 1, device=device)
    while span > 1:
        counts = low - (low - high) * steps // n_states  # rounded up
        costs = cost(*ranking.states(counts, cost.n_width))
        fits = (costs <= limits).all(1)
        fits[-1:] = True  # not `fits[-1]`: a copy for which a GPU would be waited for
        first = fits.long().argmax(0, keepdim=True)  # torch reads an index without dimensions
        high, landed = counts[first], costs[first][0]
        low = torch.where(first > 0, counts[first - 1], low)
        span = (span + n_states - 1) // n_states
    return high.view(()), landed


def fill_up(
    ranking: Ranking,
    earned: Tensor,
    states: tuple[Tensor, Tensor],
    cost: CostFunction,
    limits: Tensor,
) -> Tensor:
    """Return the width gates with some blocks opened again, as far as the limits allow.

    Those that earn most for what they cost come first; a channel that earns nothing stays closed,
    and so does one that costs nothing, for its branch is closed.
    """
    is_open, is_gone = states
    block = ranking.block

    def add_up(values: Tensor) -> Tensor:
        return torch.zeros_like(values).index_add_(0, block, values)[block]

    earned = add_up(torch.where((earned > 0) & ~ranking.is_rest, earned, -torch.inf))
    is_first = block == torch.arange(len(block), device=block.device)
    parts = 0.5 ** torch.arange(_HALVINGS, device=block.device)
    gone = is_gone.expand(_HALVINGS, -1)
    for _ in range(_FILLS):
        with torch.enable_grad():
            leaf = is_open.repeat(len(limits), 1).requires_grad_()
            costs = cost(leaf, is_gone.expand(len(limits), -1))
            (prices,) = torch.autograd.grad(costs.diagonal().sum(), leaf)
        room, prices = limits - costs[0].detach(), add_up(prices.T)
        may_open = (is_open == 0) & (earned > 0) & (prices <= room).all(1) & (prices > 0).any(1)
        worth = torch.where(may_open & is_first, earned / prices.sum(1).clamp(min=1.0), -1.0)
        order = worth.argsort(descending=True, stable=True)
        seem_to_fit = (prices[order].cumsum(0) <= room).all(1) & (worth[order] > 0)
        counts = (seem_to_fit.cumprod(0).sum() * parts).floor()
        position = torch.empty_like(order)
        position[order] = torch.arange(len(order), device=order.device)
        opened = torch.where(may_open & (position[block] < counts[:, None]), 1.0, is_open)
        fits = (cost(opened, gone) <= limits).all(1)
        first = fits.long().argmax(0, keepdim=True)  # torch reads an index without dimensions
        is_open = torch.where(fits.any(), opened[first].view(-1), is_open)
    return is_open
