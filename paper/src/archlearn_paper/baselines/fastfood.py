"""Adaptive Fastfood: a fully connected layer whose matrix is `S H G P H B`.

B, G and S are learnt diagonals, P a fixed permutation, and H the Walsh-Hadamard matrix, applied in
`n log n` steps. Inputs are padded to d, the next power of two; more than d features come from
several such products side by side (Yang et al. 2014, "Deep Fried Convnets").
"""

import bisect
import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from archlearn_paper.baselines.parameter_budget import BUDGET_TOLERANCE, BudgetError


def transform(x: Tensor, size: int) -> Tensor:
    """Return the Walsh-Hadamard transform along the last dimension, scaled to keep lengths.

    So scaled, the transform is its own inverse. The size of the dimension is a power of two.
    """
    step = 1
    while step < size:
        first, second = x.unflatten(-1, (size // (2 * step), 2, step)).unbind(-2)
        x = torch.stack((first + second, first - second), -2).flatten(-3)
        step *= 2
    return x / math.sqrt(size)


class Fastfood(nn.Module):
    """Takes `n_in` numbers to `n_features`.

    It has `2 d` numbers a block of d features, and two a feature, one of them its bias. At the
    start the lengths of its rows are about one, and vary as those of Gaussian vectors do.

    Attributes:
        signs: B, a row for each block; random signs at the start.
        gauss: G, a row for each block.
        scale: S, one number a feature.
        order: P, where each number comes from among those of all blocks; never learnt.
    """

    order: Tensor

    def __init__(self, n_in: int, n_features: int) -> None:
        super().__init__()
        self.n_in, self.n_features = n_in, n_features
        self.size = 1 << (n_in - 1).bit_length()
        n_blocks = -(-n_features // self.size)
        self.signs = nn.Parameter(torch.empty(n_blocks, self.size))
        self.gauss = nn.Parameter(torch.empty(n_blocks, self.size))
        self.scale = nn.Parameter(torch.empty(n_features))
        self.bias = nn.Parameter(torch.empty(n_features))
        self.register_buffer("order", torch.empty(n_blocks, self.size, dtype=torch.long))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all diagonals and permutations anew."""
        self.signs.bernoulli_(0.5).mul_(2).sub_(1)
        self.gauss.normal_()
        lengths = torch.randn(self.n_features, self.size).norm(dim=1)
        blocks = torch.arange(self.n_features) // self.size
        self.scale.copy_(lengths / self.gauss.norm(dim=1).cpu()[blocks])
        for block, row in enumerate(self.order):
            row.copy_(block * self.size + torch.randperm(self.size))
        self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of each row of `x`."""
        padded = nn.functional.pad(x, (0, self.size - self.n_in))
        mixed = transform(padded.unsqueeze(-2) * self.signs, self.size).flatten(-2)
        moved = mixed.index_select(-1, self.order.flatten())
        spread = transform(moved.unflatten(-1, self.signs.shape) * self.gauss, self.size)
        return spread.flatten(-2).narrow(-1, 0, self.n_features) * self.scale + self.bias


def replace_by_fastfood(
    model: nn.Module, layers: Sequence[str], n_features: int, *, seed: int = 0
) -> nn.Module:
    """Return a copy in which one Fastfood layer stands for all but the last of some layers.

    The last layer is made anew, to read the features. All weights made here are fresh, and need
    training. The layers are fully connected and stand one behind the other.
    """
    first, last = (model.get_submodule(name) for name in (layers[0], layers[-1]))
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    network = copy.deepcopy(model)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        features = Fastfood(first.in_features, n_features).to(first.weight)
        reader = nn.Linear(
            n_features, last.out_features, bias=getattr(last, "bias", None) is not None
        )
    network.set_submodule(layers[0], features)
    for name in layers[1:-1]:
        network.set_submodule(name, nn.Identity())
    network.set_submodule(layers[-1], reader.to(last.weight))
    return network


def count_fastfood(n_in: int, n_features: int, n_outputs: int) -> int:
    """Return the parameters of a Fastfood layer and the layer behind it, with biases."""
    size = 1 << (n_in - 1).bit_length()
    return 2 * size * -(-n_features // size) + 2 * n_features + (n_features + 1) * n_outputs


def choose_features(model: nn.Module, layers: Sequence[str], budget: int) -> int:
    """Return the largest number of features with which a model fits a budget."""
    first, last = (model.get_submodule(name) for name in (layers[0], layers[-1]))
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    gone = sum(p.numel() for name in layers for p in model.get_submodule(name).parameters())
    fixed = sum(p.numel() for p in model.parameters()) - gone
    most = budget - fixed

    def size(n_features: int) -> int:
        return count_fastfood(first.in_features, n_features, last.out_features)

    if size(1) > most + BUDGET_TOLERANCE * budget:
        raise BudgetError(
            f"{budget:,} parameters were asked for, but {fixed:,} are in layers that Fastfood "
            f"leaves alone, and it takes at least {size(1):,}; ask for more"
        )
    return max(1, bisect.bisect_right(range(1, max(2, most)), most, key=size))


def reduce_by_fastfood(
    model: nn.Module,
    example: Tensor,  # noqa: ARG001
    budget: int,
    *,
    seed: int = 0,
) -> nn.Module:
    """Return the model with its fully connected layers but the last as one Fastfood layer."""
    layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if len(layers) < 2:
        raise BudgetError(
            "the model has fewer than two Linear layers; Fastfood replaces all but one"
        )
    return replace_by_fastfood(model, layers, choose_features(model, layers, budget), seed=seed)
