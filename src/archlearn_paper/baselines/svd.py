"""A weight matrix of low rank is two thin layers, one behind the other.

The singular value decomposition `W = U S V` cut at a rank is the nearest matrix of that rank; the
first thin layer is `sqrt(S) V`, the second `U sqrt(S)` with the bias. A convolution is taken as
the matrix of its filters: a convolution to few channels, and a 1 x 1 behind it.

`SVD-quarter-F` of Yang et al. (2014), "Deep Fried Convnets": every fully connected layer at a
quarter of its full rank, then fine-tuned. Only this reading gives CaffeNet their 25.6 million
parameters. Fine-tuning is left to the caller.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from archlearn.errors import InputError

Factorisable = nn.Linear | nn.Conv2d


def factorise(model: nn.Module, ranks: Mapping[str, int]) -> nn.Module:
    """Return a copy of a model whose named layers have become pairs of thin ones.

    Args:
        model: Any model; it is left alone.
        ranks: The rank of each layer that is replaced, by its dotted name.

    Raises:
        InputError: If a name is no layer that can be factorised, or a rank does not fit it.
    """
    layers = {name: find_layer(model, name) for name in ranks}
    for name, rank in ranks.items():
        full = full_rank(layers[name])
        if not 1 <= rank <= full:
            raise InputError(f"rank {rank} was asked for {name!r}; give one from 1 to {full}")
    made = copy.deepcopy(model)
    for name, rank in ranks.items():
        made.set_submodule(name, factorise_layer(layers[name], rank))
    return made


@torch.no_grad()
def factorise_layer(layer: Factorisable, rank: int) -> nn.Sequential:
    """Return two thin layers that compute the layer's nearest one of a rank."""
    left, right = cut_svd(layer.weight.flatten(1), rank)
    bias = layer.bias is not None
    if isinstance(layer, nn.Linear):
        first = nn.Linear(layer.in_features, rank, bias=False)
        second: Factorisable = nn.Linear(rank, layer.out_features, bias=bias)
    else:
        first = _narrow_conv(layer, rank)
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
        name: max(1, full_rank(layer) // 4)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
    }


def full_rank(layer: Factorisable) -> int:
    """Return the largest rank that a layer's matrix can have."""
    return min(matrix_shape(layer))


def matrix_shape(layer: Factorisable) -> tuple[int, int]:
    """Return rows and columns of a layer's matrix: outputs, and inputs of one output."""
    rows = layer.weight.shape[0]
    return rows, layer.weight.numel() // rows


def count_factorised(model: nn.Module, ranks: Mapping[str, int]) -> int:
    """Return how many parameters `factorise(model, ranks)` would have."""
    total = sum(parameter.numel() for parameter in model.parameters())
    for name, rank in ranks.items():
        rows, columns = matrix_shape(find_layer(model, name))
        total += rank * (rows + columns) - rows * columns
    return total


def find_layer(model: nn.Module, name: str) -> Factorisable:
    """Return a layer that can be factorised, by its dotted name."""
    layer = dict(model.named_modules()).get(name)
    if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1):
        return layer
    found = "there is no such layer" if layer is None else f"it is a {type(layer).__name__}"
    raise InputError(
        f"cannot factorise {name!r}: {found}; name a Linear, or a Conv2d without groups"
    )


def factorisable_layers(model: nn.Module) -> dict[str, Factorisable]:
    """Return all layers of a model that can be factorised, by name."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1)
    }


def _narrow_conv(layer: nn.Conv2d, n_out: int) -> nn.Conv2d:
    return nn.Conv2d(
        layer.in_channels,
        n_out,
        layer.kernel_size,  # pyright: ignore[reportArgumentType]
        stride=layer.stride,  # pyright: ignore[reportArgumentType]
        padding=layer.padding,  # pyright: ignore[reportArgumentType]
        dilation=layer.dilation,  # pyright: ignore[reportArgumentType]
        padding_mode=layer.padding_mode,  # pyright: ignore[reportArgumentType]
        bias=False,
    )
