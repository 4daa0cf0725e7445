"""Models made inside torch.inference_mode can be trained outside of it."""

from pathlib import Path

import torch
from torch import nn

import archlearn as al

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def build() -> nn.Module:
    layers = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)
    return nn.Sequential(*layers)


def assert_learns_(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = [p.detach().clone() for p in model.parameters()]
    model.train()(X).square().sum().backward()
    optimizer.step()
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not any(t.is_inference() for t in [*model.parameters(), *model.buffers()])


def test_gates_added_there_learn() -> None:
    with torch.inference_mode():
        model = al.add_gates(build(), X)
    assert_learns_(model)


def test_a_model_compacted_there_learns(tmp_path: Path) -> None:
    model = al.add_gates(build(), X)
    with torch.no_grad():
        al.width_gates(model)["0"][[1, 3]] = 0.0
    with torch.inference_mode():
        al.plan(model)
        small = al.compact(model)
        al.save(small, tmp_path / "small.safetensors")
        loaded = al.load(tmp_path / "small.safetensors")
    torch.testing.assert_close(small.eval()(X), loaded.eval()(X))
    assert_learns_(small)
    assert_learns_(loaded)
    assert_learns_(model)
