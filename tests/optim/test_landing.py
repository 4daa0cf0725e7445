"""Small networks, in which a channel is several per cent of a budget, land near it."""

import pytest
import torch
from torch import Tensor, nn

import archlearn as al

STEPS = 60


class DenseLayer(nn.Module):
    def __init__(self, n_in: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(n_in)
        self.conv = nn.Conv2d(n_in, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(self.norm(x).relu())], 1)


class DenseNet(nn.Module):
    """A stem of 16 channels, and six layers that add 8 each."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.layers = nn.Sequential(*[DenseLayer(16 + 8 * place, 8) for place in range(6)])
        self.norm, self.last = nn.BatchNorm2d(64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.layers(self.stem(x))).relu().mean((2, 3)))


class PreActivationResNet(nn.Module):
    """Three blocks on a stream of 24 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 24, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *[nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1, bias=False)],
                *[nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1, bias=False)],
            )
            for _ in range(3)
        )
        self.norm, self.last = nn.BatchNorm2d(24), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(self.norm(x).relu().mean((2, 3)))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("make", "cost", "budget"),
    [
        (DenseNet, "multiply_adds", "25%"),
        (DenseNet, "parameters", "50%"),
        (PreActivationResNet, "parameters", 5000),
    ],
)
def test_a_small_network_lands_within_two_per_cent_under_its_budget(
    make: type[nn.Module], cost: str, budget: str | int, seed: int
) -> None:
    torch.manual_seed(seed)
    model = al.add_gates(make(), torch.randn(1, 1, 8, 8))
    gates = al.GateOptimizer(model, STEPS, budget={cost: budget})
    weights = torch.optim.AdamW(al.weights(model), 2e-3)
    for _ in range(STEPS):
        x = torch.randn(16, 1, 8, 8)
        y = x.mean((1, 2, 3)).mul(20).clamp(-4, 5).round().long() + 4
        nn.functional.cross_entropy(model(x), y).backward()
        for each in (weights, gates):
            each.step()
            each.zero_grad()
    plan = al.plan(model)
    limit = 0.0 if isinstance(budget, str) else budget
    if isinstance(budget, str):
        limit = getattr(plan.before, cost) * float(budget.rstrip("%")) / 100
    assert 0.98 * limit <= getattr(plan.after, cost) <= limit
