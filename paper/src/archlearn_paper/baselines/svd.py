"""Low-rank factorisation of weight matrices by SVD.

The singular value decomposition `W = U S V` cut at a rank is the nearest matrix of that rank; the
first thin layer is `sqrt(S) V`, the second `U sqrt(S)` with the bias. A convolution is taken as
the matrix of its filters: a convolution to few channels, and a 1 x 1 behind it.

`SVD-quarter-F` of Yang et al. (2014), "Deep Fried Convnets": every fully connected layer at a
quarter of its full rank, then fine-tuned. Only this reading gives CaffeNet their 25.6 million
parameters. Fine-tuning is left to the caller.
"""

import copy
import heapq
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from archlearn_paper.baselines.parameter_budget import BUDGET_TOLERANCE, BudgetError

Factorisable = nn.Linear | nn.Conv2d


def factorise(model: nn.Module, ranks: Mapping[str, int]) -> nn.Module:
    """Return a copy of a model whose named layers have become pairs of thin ones of a rank."""
    layers, network = factorisable_layers(model), copy.deepcopy(model)
    for name, rank in ranks.items():
        network.set_submodule(name, factorise_layer(layers[name], rank))
    return network


@torch.no_grad()
def factorise_layer(layer: Factorisable, rank: int) -> nn.Sequential:
    """Return two thin layers that compute the layer's nearest one of a rank."""
    left, right = cut_svd(layer.weight.flatten(1), rank)
    bias = layer.bias is not None
    if isinstance(layer, nn.Linear):
        first = nn.Linear(layer.in_features, rank, bias=False)
        second: Factorisable = nn.Linear(rank, layer.out_features, bias=bias)
    else:
        first = nn.Conv2d(
            layer.in_channels,
            rank,
            layer.kernel_size,  # pyright: ignore[reportArgumentType]
            stride=layer.stride,  # pyright: ignore[reportArgumentType]
            padding=layer.padding,  # pyright: ignore[reportArgumentType]
            dilation=layer.dilation,  # pyright: ignore[reportArgumentType]
            padding_mode=layer.padding_mode,  # pyright: ignore[reportArgumentType]
            bias=False,
        )
        second = nn.Conv2d(rank, layer.out_channels, 1, bias=bias)
    pair = nn.Sequential(first, second).to(layer.weight)
    first.weight.copy_(right.reshape(first.weight.shape))
    second.weight.copy_(left.reshape(second.weight.shape))
    if layer.bias is not None and second.bias is not None:
        second.bias.copy_(layer.bias)
    return pair.train(layer.training)


def cut_svd(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return two factors whose product is the nearest matrix of a rank.

    The left singular vectors of a wide matrix are the eigenvectors of its product with itself,
    which are found many times faster; the right ones follow from them.
    """
    if matrix.shape[0] > matrix.shape[1]:
        right, left = cut_svd(matrix.T, rank)
        return left.T.contiguous(), right.T.contiguous()
    wide = matrix.double()
    left = torch.linalg.eigh(wide @ wide.T).eigenvectors.flip(1)[:, :rank]
    right = left.T @ wide
    root = right.norm(dim=1).sqrt().clamp_min(torch.finfo(wide.dtype).tiny)
    return (left * root).to(matrix), (right / root[:, None]).to(matrix)


def quarter_ranks(model: nn.Module) -> dict[str, int]:
    """Return a quarter of the full rank for every fully connected layer, by name."""
    return {
        name: max(1, min(matrix_shape(layer)) // 4)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
    }


def matrix_shape(layer: Factorisable) -> tuple[int, int]:
    """Return rows and columns of a layer's matrix: outputs, and inputs of one output."""
    rows = layer.weight.shape[0]
    return rows, layer.weight.numel() // rows


def count_factorised(model: nn.Module, ranks: Mapping[str, int]) -> int:
    """Return how many parameters `factorise(model, ranks)` would have."""
    total = sum(parameter.numel() for parameter in model.parameters())
    for name, rank in ranks.items():
        rows, columns = matrix_shape(factorisable_layers(model)[name])
        total += rank * (rows + columns) - rows * columns
    return total


def factorisable_layers(model: nn.Module) -> dict[str, Factorisable]:
    """Return all layers of a model that can be factorised, by name."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1)
    }


def choose_ranks(model: nn.Module, budget: int) -> dict[str, int]:
    """Return the rank of every layer for a number of parameters.

    All layers begin at rank 1. Then, again and again, the one layer gets another rank whose next
    singular value raises the logarithm of its energy kept most per parameter, among those that
    still fit: what is made large is the product over all layers, so that none is left at rank 1
    for others where the budget allows more. The last one may pass the budget within its tolerance
    if the model were below it by more without. No layer gets a rank at which its two thin layers
    are as large as the whole one.
    """
    layers = factorisable_layers(model)
    ranks = dict.fromkeys(layers, 1)
    shares = {name: _energy_shares(layer) for name, layer in layers.items()}
    left = budget - count_factorised(model, ranks)
    margin = BUDGET_TOLERANCE * budget
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
        rows, columns = matrix_shape(layers[name])
        if price > most or ranks[name] + 1 >= max(2, -(-rows * columns // (rows + columns))):
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
