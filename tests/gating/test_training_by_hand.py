"""A dozen lines of one's own are enough to learn an architecture on real data."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

import archlearn as al

N_TRAIN, N_EPOCHS, BATCH = 1400, 12, 50


class Net(nn.Module):
    """A convolution and three linear layers for digits of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.wide, self.narrow, self.last = nn.Linear(72, 40), nn.Linear(40, 30), nn.Linear(30, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(relu(self.conv(x)), 2).flatten(1)
        return self.last(relu(self.narrow(relu(self.wide(x)))))


@dataclass(frozen=True)
class Run:
    """A run that is over, and what it was made of."""

    net: Net
    start: dict[str, Tensor]
    model: nn.Module
    losses: list[float]
    x_test: Tensor
    y_test: Tensor

    def accuracy(self, model: nn.Module) -> float:
        with torch.no_grad():
            return (model(self.x_test).argmax(1) == self.y_test).double().mean().item()


def read_digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x).float().reshape(-1, 1, 8, 8) / 16, torch.tensor(y)


@pytest.fixture(scope="module")
def run() -> Run:
    """One run of the loop that a user would write."""
    torch.manual_seed(0)
    x, y = read_digits()
    net = Net()
    start = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    model = al.add_gates(net, x[:2])
    groups = al.parameter_groups(model, lr=0.05, weight_decay=5e-4)
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    strengths = al.Strengths.from_width_cost(2e-3, depth_share=1.0)
    losses: list[float] = []
    for _ in range(N_EPOCHS):
        total = 0.0
        for batch in torch.randperm(N_TRAIN).split(BATCH):
            loss = cross_entropy(model(x[batch]), y[batch])
            total += loss.item()
            loss = loss + al.penalty(model, strengths)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            al.clip_gates_(model)
        losses.append(total / (N_TRAIN / BATCH))
    return Run(net, start, model.eval(), losses, x[N_TRAIN:], y[N_TRAIN:])


def test_the_loss_falls_and_the_digits_are_read(run: Run) -> None:
    assert run.losses[-1] < 0.3 * run.losses[0]
    assert run.accuracy(run.model) > 0.85


def test_gates_stay_within_bounds_and_move_apart(run: Run) -> None:
    gates = torch.cat([gate.detach() for gate in al.width_gates(run.model).values()])
    assert bool(((gates >= 0) & (gates <= 1)).all())
    assert (gates < 0.5).any()
    assert (gates > 0.6).any()
    assert all(0 <= gate.item() <= 1 for gate in al.depth_gates(run.model).values())


def test_some_channels_are_dropped_and_none_of_the_outputs(run: Run) -> None:
    layers = {layer.name: layer for layer in al.read_architecture(run.model).layers}
    assert layers["last"].width == 10
    kept = sum(layer.width for layer in layers.values())
    assert kept < 60
    assert all(layer.width >= 1 for layer in layers.values())


def test_the_compact_model_reads_the_same_digits(run: Run) -> None:
    small = al.compact(run.model)
    torch.testing.assert_close(small(run.x_test), run.model(run.x_test), rtol=1e-4, atol=1e-4)
    assert run.accuracy(small) == run.accuracy(run.model)
    assert al.count_costs(small).parameters < 0.7 * al.count_costs(run.net, run.x_test).parameters


def test_a_saved_model_gives_the_same_outputs(run: Run, tmp_path: Path) -> None:
    small = al.compact(run.model)
    al.save(small, tmp_path / "small.safetensors")
    loaded = al.load(tmp_path / "small.safetensors")
    assert torch.equal(loaded(run.x_test), small(run.x_test))


def test_the_network_that_was_given_is_as_it_was(run: Run) -> None:
    assert type(run.net) is Net
    state = run.net.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in run.start.items())
