"""The depth path: merge the last hidden layers, before widths are cut, to pay for half of a budget.

A plain chain that is too deep learns badly however narrow it becomes, so depth is settled before
widths are. In the first half of the time in which gates decide, the cost of the network with all
its channels falls along a geometric path from its start to the geometric mean of start and budget:
hidden layers become linear, the one nearest to the output first, and merge with the next. No loss
and no estimate is needed, so all of it is known before training. A layer becomes linear by and by:
the slope of its linear part rises from 0 to 1.

Layers that a tensor goes around (residual branches, concatenations) are left to other gates, and
of each chain the first hidden layer stays.
`docs/how-gates-learn.md` has the measurements.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from archlearn.analysis.mergeable_layers import is_bypassed
from archlearn.gating.selection import LearnableSites
from archlearn.optim.cost_function import flip_each

Costs = Callable[[Tensor], Tensor]
"""What the network costs, `(states, costs)`, for states `(states, layers)`: 1 where linear."""
_LEAST_SAVING, _OF_A_LAYER = 0.02, 0.5
"""A merge saves this part of the cost, or in a deep network this part of its mean layer's."""
PATH, SLOPE = 0.5, 0.1
"""The parts of the time in which gates decide that the path takes, and the slope of a layer."""


class Merge(NamedTuple):
    """A layer that becomes linear: its depth gate, from when on, and whether it must.

    `begin` is a part of the path, or a step. One must where nothing else reaches the budget.
    """

    layer: int
    begin: float
    is_needed: bool


@dataclass(frozen=True, slots=True)
class DepthChoice:
    """Which depth gates may open, the first to open first, and how far the path goes.

    Attributes:
        order: Of layers that may merge under any budget, the last call first.
        last_resort: Of other layers, that merge only where nothing else reaches the budget.
        power: The power of budget / start that the costs fall to by merges.
        least: The part of a cost that a merge must save.
    """

    order: tuple[int, ...]
    last_resort: tuple[int, ...]
    power: float
    least: float


def choose_layers(learnable: LearnableSites, protected: Tensor, power: float) -> DepthChoice:
    """Return which layers of a network may merge, but for those that are protected."""
    order, last_resort = (
        tuple(layer for layer in places if not protected[layer])
        for places in order_layers(learnable)
    )
    least = min(_LEAST_SAVING, _OF_A_LAYER / max(1, len(learnable.rows)))
    return DepthChoice(order, last_resort, power, least)


def order_layers(learnable: LearnableSites) -> tuple[list[int], list[int]]:
    """Return depth gates of layers that may merge under any budget, then others; last call first.

    The others are layers that a tensor goes around, and the first hidden layer of each chain: a
    chain that has lost all its activations is one matrix, and widths have nothing left to cut.
    """
    seconds = {pair.second for pair in learnable.mergeable.values()}
    graphs, followed = learnable.channel_graph.graphs, learnable.channel_graph.followed
    order, others = list[int](), list[int]()
    for layer, pair in enumerate(learnable.mergeable.values()):
        calls = zip(graphs, followed, pair.nodes, strict=True)
        has_bypass = any(nodes and is_bypassed(g, f.values, nodes[-1]) for g, f, nodes in calls)
        (order if pair.first in seconds and not has_bypass else others).append(layer)
    return order[::-1], others[::-1]


def plan_merges(
    costs: Costs, floors: Costs, linear: Tensor, limits: Tensor, choice: DepthChoice
) -> list[Merge]:
    """Return which layers become linear, in order, and when, as parts of the path.

    Args:
        costs: With all channels open.
        floors: With as few channels and branches as there may be; where these are above a limit,
            layers merge until they are not.
        linear: 1 for the layers that are linear at the start.
        limits: What each cost may be at the end; infinite where it has no limit.
        choice: Which layers may merge, in which order, and how far the path goes.
    """
    state, start = linear.clone(), costs(linear[None])[0]
    left = [layer for layer in (*choice.order, *choice.last_resort) if not linear[layer]]
    merges: list[Merge] = []
    while left:
        now = costs(state[None])[0]
        is_short = bool((floors(state[None])[0] > limits).any())
        due, binding = _due(now, start, limits, 1.0 if is_short else choice.power).min(0)
        if due >= 1.0 and not is_short:
            break
        after = costs(flip_each(state)[left])
        saved = (now - after)[:, binding] / start[binding]
        overshoots = ((after < limits) | limits.isinf()).all(1)
        is_regular = torch.tensor([layer in choice.order for layer in left], device="cpu")
        may_go = (saved > 0) if is_short else (saved >= choice.least) & ~overshoots & is_regular
        if not may_go.any():
            break
        layer = left.pop(int(may_go.long().argmax()))
        merges.append(Merge(layer, min(1.0, due.item()), is_short))
        state[layer] = 1.0
    return merges


def _due(now: Tensor, start: Tensor, limits: Tensor, power: float) -> Tensor:
    """Return when the path of each cost falls below what it is now; infinite where it never does.

    The path is start * (limit / start) ** (power * time).
    """
    falls = (limits < start) & (power > 0)
    pace = torch.where(falls, power * (limits / start).log(), -1.0)
    return torch.where(falls, (now / start).log() / pace, torch.inf).clamp(min=0.0)


def slope_at(step: float, begin: float, duration: int) -> float:
    """Return how linear a layer is at a step, if it becomes so from `begin` on."""
    return min(1.0, max(0.0, (step - begin) / duration))
