"""The library does, step by step, what the one page without it does."""

import importlib.util
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al

PAGE = Path(__file__).parents[1] / "examples" / "one_file.py"
N_EPOCHS = 20
SAME = {"rtol": 0.0, "atol": 1e-12}


class Net(nn.Module):
    """The page's network as a user would write it: nothing in it knows of gates."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """The page, imported from its file."""
    spec = importlib.util.spec_from_file_location("one_file", PAGE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def add_gates(page: ModuleType, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = Net(page.WIDTHS).double()
    return al.add_gates(net, torch.zeros(2, page.WIDTHS[0], dtype=torch.float64))


def make_page_net(page: ModuleType, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return page.GatedNet()


def widths_of(net: nn.Module) -> list[int]:
    return [layer.out_features for layer in net.modules() if isinstance(layer, nn.Linear)]


def assert_same_gates(net: nn.Module, gated: nn.Module) -> None:
    for ours, theirs in zip(al.width_gates(gated).values(), net.gates, strict=True):
        torch.testing.assert_close(ours, theirs.width, **SAME)
    for ours, theirs in zip(al.depth_gates(gated).values(), net.gates, strict=True):
        torch.testing.assert_close(ours, theirs.depth, **SAME)


@torch.no_grad()
def start_together_(net: nn.Module, gated: nn.Module) -> None:
    """Give the library's gates the page's start, of which they may hold the float32 value."""
    ours = [*al.width_gates(gated).values(), *al.depth_gates(gated).values()]
    theirs = [*(gate.width for gate in net.gates), *(gate.depth for gate in net.gates)]
    for gate, start in zip(ours, theirs, strict=True):
        torch.testing.assert_close(gate, start, rtol=0, atol=1e-7)
        gate.copy_(start)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_library_takes_the_same_steps_as_the_page(page: ModuleType, seed: int) -> None:
    net, gated = make_page_net(page, seed), add_gates(page, seed)
    start_together_(net, gated)
    x, y, x_test, _ = page.read_digits()
    groups = al.parameter_groups(gated, lr=page.LEARNING_RATE, gate_lr=page.GATE_RATE, momentum=0.9)
    optimizer = torch.optim.SGD(groups)
    strengths = al.Strengths(
        width_binarise=page.LAMBDA_1,
        depth_binarise=page.LAMBDA_2,
        width_cost=page.LAMBDA_3,
        depth_cost=page.LAMBDA_4,
    )
    architectures = set()
    losses = page.train(net, x, y, N_EPOCHS)
    for epoch in range(N_EPOCHS):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(page.BATCH):
            loss = F.cross_entropy(gated(x[batch]), y[batch]) + al.penalty(gated, strengths)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            al.clip_gates_(gated)
            assert loss.item() == pytest.approx(next(losses), rel=0, abs=1e-12)
            assert_same_gates(net, gated)
            expected = widths_of(page.compact(net))
            assert str(al.read_architecture(gated)) == "-".join(map(str, expected))
            architectures.add(tuple(expected))
    assert next(losses, None) is None
    assert len(architectures) > 10, "nothing was learnt, so that nothing was compared"
    assert_same_compact(page, net, gated, x_test)


def assert_same_compact(page: ModuleType, net: nn.Module, gated: nn.Module, x: Tensor) -> None:
    ours, theirs = al.compact(gated), page.compact(net)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-10)
    sizes = [m.weight.shape for m in theirs.modules() if isinstance(m, nn.Linear)]
    found = [m.weight.shape for m in ours.modules() if isinstance(m, nn.Linear)]
    assert found == sizes
    assert len(sizes) < len(page.WIDTHS) - 1, (
        "no layer was merged, so that merging was not compared"
    )


@pytest.mark.slow
def test_the_page_runs_and_shrinks_the_network() -> None:
    done = subprocess.run([sys.executable, PAGE], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    before, after = (line for line in lines if "parameters" in line)
    assert "12,060 parameters" in before
    n_after = int(after.split(": ")[1].split(" ")[0].replace(",", ""))
    assert n_after < 3000
    assert before.rsplit(" ", 2)[-2] == after.rsplit(" ", 2)[-2]
    assert float(lines[-1].rsplit(" ", 1)[-1]) < 1e-10


def test_the_page_fits_on_its_page() -> None:
    text = PAGE.read_text()
    assert len(text.splitlines()) <= 150
    assert "archlearn" not in text
