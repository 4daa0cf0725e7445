"""Land nearer to a budget: close channels of one group, and open channels of another instead.

In a small network a single channel may be several per cent of the budget, so that what is left of
the budget fits none of those that are closed. Exchanging channels that cost differently does.
"""

import itertools
from collections.abc import Iterable

import torch
from torch import Tensor

from archlearn.optim.cost_function import CostFunction
from archlearn.optim.gate_ranking import FILLED, Ranking

_ROUNDS = 4
_MOST = 3
"""How many blocks of channels of one group may be closed, and of another opened, at once."""
_MOST_GROUPS = 16
"""How many groups are looked at; in networks of more, single channels are small enough."""
_AT_ONCE = 128


def exchange(
    ranking: Ranking,
    earned: Tensor,
    states: tuple[Tensor, Tensor],
    cost: CostFunction,
    limits: Tensor,
) -> Tensor:
    """Return the width gates with channels exchanged so that most of the budget is used.

    Among exchanges that use enough of it, the one that gives up least goes first. All stays as it
    is where the budget is used already; waits for the device.
    """
    device = states[0].device
    opened, gone, limits = (tensor.cpu() for tensor in (*states, limits))
    ratio, block = ranking.ratio[: len(opened)].cpu(), ranking.block.cpu()
    earned = torch.where(ranking.is_rest.cpu(), -torch.inf, earned.cpu())
    earned = torch.zeros_like(earned).index_add_(0, block, earned)[block]

    def use(choices: Iterable[Tensor]) -> Tensor:
        batches = torch.stack(list(choices)).split(_AT_ONCE)
        costs = torch.cat([cost(batch, gone.expand(len(batch), -1)) for batch in batches])
        return (costs / limits).amax(1)

    for _ in range(_ROUNDS):
        used = use([opened])
        if used >= FILLED:
            break
        choices, losses = _list_exchanges(opened, earned, ratio, block, cost.group)
        if not choices:
            break
        parts = use(choices)
        lands = (parts <= 1.0) & (parts >= FILLED)
        if lands.any():
            best = torch.where(lands, losses, torch.inf).argmin()
        else:
            best = torch.where(parts <= 1.0, parts, 0.0).argmax()
        if parts[best] <= used or parts[best] > 1.0:
            break
        opened = choices[int(best)]
    return opened.to(device)


def _list_exchanges(
    opened: Tensor, earned: Tensor, ratio: Tensor, block: Tensor, group: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Return states of the width gates after each exchange, and what it gives up in earnings."""
    is_first = block == torch.arange(len(block), device="cpu")
    closable = (opened > 0) & is_first & ratio.isfinite()
    openable = (opened == 0) & is_first & (earned > 0)
    weakest = _first_of_groups(closable, earned, group)
    strongest = _first_of_groups(openable, -earned, group)
    choices: list[Tensor] = []
    losses: list[Tensor] = []
    for closed, back in itertools.product([[], *weakest], strongest):
        if closed and group[closed[0]] == group[back[0]]:
            continue
        state = torch.where(
            torch.isin(block, torch.tensor(closed + back, device="cpu")), 1.0 - opened, opened
        )
        choices.append(state)
        losses.append(earned[closed].sum() - earned[back].sum())
    return choices, torch.stack(losses) if losses else earned[:0]


def _first_of_groups(may_go: Tensor, order: Tensor, group: Tensor) -> list[list[int]]:
    """Return the first gate of each group that may go, the first two of it and so on."""
    firsts: list[list[int]] = []
    gates = order.argsort(stable=True)
    gates = gates[may_go[gates]]
    for number in group[gates].unique().tolist()[:_MOST_GROUPS]:
        members = gates[group[gates] == number][:_MOST].tolist()
        firsts += [members[: n + 1] for n in range(len(members))]
    return firsts
