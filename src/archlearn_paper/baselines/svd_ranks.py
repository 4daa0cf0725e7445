"""Ranks are chosen greedily: the next one goes where it adds most per parameter."""

import heapq
import math

import torch
from torch import Tensor, nn

from archlearn_paper.baselines.interface import TOLERANCE, BudgetError
from archlearn_paper.baselines.svd import (
    Factorisable,
    count_factorised,
    factorisable_layers,
    factorise,
    matrix_shape,
)


def choose_ranks(model: nn.Module, budget: int) -> dict[str, int]:
    """Return the rank of every layer for a number of parameters.

    All layers begin at rank 1. Then, again and again, the one layer gets another rank whose next
    singular value raises the logarithm of its energy kept most per parameter, among those that
    still fit: what is made large is the product over all layers, so that none is left at rank 1
    for others where the budget allows more. The last one may pass the budget within its tolerance
    if the model were below it by more without. No layer gets a rank at which its two thin layers
    are as large as the whole one.

    Raises:
        BudgetError: If the layers at rank 1 are too large already.
    """
    layers = factorisable_layers(model)
    ranks = dict.fromkeys(layers, 1)
    shares = {name: _energy_shares(layer) for name, layer in layers.items()}
    left = budget - count_factorised(model, ranks)
    margin = TOLERANCE * budget
    if left < -margin:
        raise BudgetError(
            f"{budget:,} parameters were asked for, but at rank 1 everywhere the model still has "
            f"{budget - left:,}; ask for more"
        )
    waiting = [(-_worth(shares[name], 1, layers[name]), name) for name in layers]
    heapq.heapify(waiting)
    while waiting:
        _, name = heapq.heappop(waiting)
        price = sum(matrix_shape(layers[name]))
        most = left + margin if left > margin else left
        if price > most or ranks[name] + 1 >= _whole_rank(layers[name]):
            continue
        ranks[name] += 1
        left -= price
        heapq.heappush(waiting, (-_worth(shares[name], ranks[name], layers[name]), name))
    return ranks


def reduce_by_svd(model: nn.Module, example: Tensor, budget: int) -> nn.Module:  # noqa: ARG001
    """Return the model with its layers at the ranks that fit a budget."""
    return factorise(model, choose_ranks(model, budget))


def _energy_shares(layer: Factorisable) -> Tensor:
    matrix = layer.weight.detach().flatten(1).double()
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    # The squares of the singular values, many times faster than those themselves.
    energy = torch.linalg.eigvalsh(wide @ wide.T).flip(0).clamp_min(0.0)
    return energy / energy.sum().clamp_min(torch.finfo(energy.dtype).tiny)


def _worth(shares: Tensor, rank: int, layer: Factorisable) -> float:
    """Return what one more rank adds to the logarithm of the energy kept, per parameter."""
    if rank >= len(shares):
        return 0.0
    kept = shares[:rank].sum().clamp_min(torch.finfo(shares.dtype).tiny)
    return math.log1p((shares[rank] / kept).item()) / sum(matrix_shape(layer))


def _whole_rank(layer: Factorisable) -> int:
    """Return the first rank at which two thin layers are as large as the whole one."""
    rows, columns = matrix_shape(layer)
    return max(2, -(-rows * columns // (rows + columns)))
