"""Torch-Pruning to a budget, and its group sparse learning as a penalty."""

import copy
import sys

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
from archlearn_cli.models import LeNet
from archlearn_paper.baselines.learnt_diagonals import Penalised
from archlearn_paper.baselines.parameter_budget import is_within
from archlearn_paper.baselines.torch_pruning_methods import (
    STRENGTH,
    GroupPenalty,
    learn_sparse_groups,
    make_pruner,
    reduce_by_torch_pruning,
    reduce_evenly,
)

pytest.importorskip("torch_pruning")
DIGITS = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
@pytest.mark.parametrize("budget", [2_000, 5_000, 10_000, 20_000, 40_000])
def test_budgets_are_met(budget: int) -> None:
    torch.manual_seed(0)
    net = LeNet()
    pruned = reduce_by_torch_pruning(net, DIGITS, budget)
    assert is_within(al.count_costs(pruned, DIGITS).parameters, budget)
    assert pruned(DIGITS).shape == (2, 10)
    assert al.count_costs(net, DIGITS).parameters == 431_080


def test_every_layer_can_lose_the_same_part() -> None:
    torch.manual_seed(0)
    pruned = reduce_evenly(LeNet(), DIGITS, 10_000)
    widths = [pruned.get_parameter(f"{n}.weight").shape[0] for n in ("conv1", "conv2", "fc1")]
    assert is_within(al.count_costs(pruned, DIGITS).parameters, 10_000)
    parts = [width / full for width, full in zip(widths, (20, 50, 500), strict=True)]
    assert max(parts) - min(parts) < 0.06


def test_the_weakest_channel_goes_first() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        net[0].weight[2] *= 0.01
        net[0].bias[2] *= 0.01
        net[2].weight[:, 2] *= 0.01
    # without one of six neurons: 6 x 5 + 3 x 7 = 51 become 5 x 5 + 3 x 6 = 43
    pruned = reduce_by_torch_pruning(net, torch.zeros(1, 4), 43)
    others = torch.tensor([0, 1, 3, 4, 5])
    torch.testing.assert_close(pruned.get_parameter("0.weight"), net[0].weight[others])


@pytest.mark.parametrize("with_norm", [False, True])
def test_the_penalty_has_the_gradient_that_torch_pruning_adds(with_norm: bool) -> None:
    torch.manual_seed(0)
    net: nn.Module = LeNet()
    if with_norm:
        net = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4 * 26 * 26, 3),
        )
        nn.init.normal_(net.get_parameter("1.weight"))
    net.eval()
    own, theirs = copy.deepcopy(net), copy.deepcopy(net)
    GroupPenalty(own, DIGITS)(own).backward()
    pruner = make_pruner(theirs, DIGITS, 0.5)
    for parameter in theirs.parameters():
        parameter.grad = torch.zeros_like(parameter)
    pruner.reg = STRENGTH
    pruner.regularize(theirs)
    for name, parameter in own.named_parameters():
        expected = theirs.get_parameter(name).grad
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found, expected, msg=lambda text, name=name: f"{name}: {text}")


def test_channels_that_groups_read_are_pulled_by_their_own_weights() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1, groups=2), nn.Flatten())
    with torch.no_grad():
        net[0].weight.zero_()
        # two filters read channels 0 and 1, the other two read 2 and 3
        read = torch.tensor([[0.0, 2.0], [0.0, 0.0], [3.0, 4.0], [0.0, 0.0]])
        net[2].weight.copy_(read[:, :, None, None])
    GroupPenalty(net, torch.zeros(1, 1, 1, 1), strength=0.1)(net).backward()
    # channels of lengths 0, 2, 3 and 4: the weakest is pulled 16 times as hard as the strongest
    pulls = torch.tensor([[16.0, 16**0.5]] * 2 + [[16**0.25, 1.0]] * 2)
    found = net.get_parameter("2.weight").grad
    assert found is not None
    torch.testing.assert_close(found[:, :, 0, 0], 0.1 * pulls * read)


class Sum(nn.Module):
    def forward(self, network: nn.Module) -> Tensor:
        return 3.0 * network.get_parameter("weight").sum()


def test_a_penalty_that_rides_is_a_penalty_that_is_added() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(2, 2)
    x = torch.randn(4, 2)
    rider = Penalised(copy.deepcopy(layer), Sum())
    assert torch.equal(rider(x), layer(x))
    rider(x).square().mean().backward()
    (layer(x).square().mean() + Sum()(layer)).backward()
    torch.testing.assert_close(rider.network.get_parameter("weight").grad, layer.weight.grad)
    rider.eval()
    rider.zero_grad()
    rider(x).square().mean().backward()
    gone = rider.network.get_parameter("weight").grad
    assert not torch.allclose(gone, layer.weight.grad)


def test_sparse_learning_leaves_weak_channels_weaker() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    sparse = learn_sparse_groups(net, torch.zeros(1, 4), strength=0.05)
    optimizer = torch.optim.SGD(sparse.parameters(), lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        (0.0 * sparse(torch.randn(5, 4)).sum()).backward()
        optimizer.step()
    before = net[0].weight.norm(dim=1)
    after = sparse.network.get_parameter("0.weight").norm(dim=1)
    shrunk = (after / before).detach()
    strength = before.square() + net[2].weight.square().sum(0)
    assert shrunk[strength.argmin()] == shrunk.min()
    assert shrunk[strength.argmax()] == shrunk.max()


def test_the_extra_is_named_where_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    with pytest.raises(al.InputError, match=r"archlearn\[bench\]"):
        reduce_by_torch_pruning(LeNet(), DIGITS, 40_000)
