"""Every method on CaffeNet, with an eighth of its widths: grouped convolutions, LRN, dropout."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
from archlearn_paper.baselines.fastfood import reduce_by_fastfood
from archlearn_paper.baselines.learnt_diagonals import (
    add_diagonals,
    reduce_by_diagonals,
    scaled_layers,
)
from archlearn_paper.baselines.neuron_pruning import reduce_by_merging
from archlearn_paper.baselines.parameter_budget import is_within
from archlearn_paper.baselines.svd import factorise, quarter_ranks, reduce_by_svd
from archlearn_paper.baselines.torch_pruning_methods import (
    learn_sparse_groups,
    reduce_by_torch_pruning,
    reduce_evenly,
)
from archlearn_paper.caffenet import CaffeNet
from archlearn_paper.recipes import reinitialise

IMAGES = torch.randn(2, 3, 67, 67, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return CaffeNet(side=67, n_outputs=10, factor=1 / 8).eval()


@pytest.mark.parametrize(
    "reduce", [reduce_by_merging, reduce_by_svd, reduce_by_fastfood, reduce_by_torch_pruning]
)
def test_half_the_parameters(
    net: nn.Module, reduce: Callable[[nn.Module, Tensor, int], nn.Module]
) -> None:
    if reduce is reduce_by_torch_pruning:
        pytest.importorskip("torch_pruning")
    budget = al.count_costs(net, IMAGES).parameters // 2
    reduced = reduce(net, IMAGES, budget)
    assert is_within(al.count_costs(reduced, IMAGES).parameters, budget)
    assert reduced(IMAGES).shape == (2, 10)


def test_a_quarter_of_each_rank(net: nn.Module) -> None:
    ranks = quarter_ranks(net)
    assert ranks == {"fc6": 8, "fc7": 128, "fc8": 2}
    assert factorise(net, ranks)(IMAGES).shape == (2, 10)


def test_diagonals_fold_through_groups_and_normalisation(net: nn.Module) -> None:
    network = add_diagonals(net, IMAGES, 1e-3).network.eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for scaled in scaled_layers(network).values():
            diagonal = scaled.diagonal
            diagonal.copy_(torch.rand(len(diagonal), generator=generator))
    budget = al.count_costs(net, IMAGES).parameters // 2
    small = reduce_by_diagonals(network, IMAGES, budget)
    assert al.count_costs(small, IMAGES).parameters <= 1.05 * budget


def test_sparse_learning_pulls_on_all_layers_and_prunes(net: nn.Module) -> None:
    pytest.importorskip("torch_pruning")
    sparse = learn_sparse_groups(net, IMAGES).train()
    (0.0 * sparse(IMAGES).sum()).backward()
    for name, parameter in sparse.network.named_parameters():
        if name.endswith("weight"):
            assert parameter.grad is not None
            assert bool((parameter.grad != 0).any()), name
    budget = al.count_costs(net, IMAGES).parameters // 2
    pruned = reduce_evenly(sparse.network.eval(), IMAGES, budget)
    assert is_within(al.count_costs(pruned, IMAGES).parameters, budget)


def test_training_anew(net: nn.Module) -> None:
    fresh = reinitialise(net, seed=1)
    assert not torch.equal(fresh.get_parameter("fc6.weight"), net.get_parameter("fc6.weight"))
