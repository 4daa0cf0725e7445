"""Noise that is added to channels leaves their width to be learnt."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import archlearn as al

NOISE: dict[str, Callable[[Tensor], Tensor]] = {
    "added": lambda h: h + 0.1 * torch.randn_like(h),
    "multiplied": lambda h: h * torch.rand_like(h),
    "in place": lambda h: h + h.new_empty(h.shape).normal_(),
    "bits": lambda h: h - torch.empty_like(h).bernoulli_(0.5),
    "uniform": lambda h: h * torch.zeros_like(h).uniform_(0.9, 1.1) + torch.rand_like(h),
}


class Noisy(nn.Module):
    """Noise behind the first activation, in training."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 3)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        if self.training:
            h = NOISE[self.kind](h)
        return self.last(self.second(h).relu())


@pytest.mark.parametrize("kind", NOISE)
def test_noise_bars_no_width_and_that_of_closed_channels_reaches_nobody(
    kind: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    x = torch.rand(4, 6).double()
    gated = al.add_gates(Noisy(kind).double(), x)
    with torch.no_grad():
        al.width_gates(gated)["first"][::2] = 0.1
    small = al.compact(gated)
    assert small.get_parameter("first.weight").shape == (4, 6)
    al.save(small, tmp_path / "small.safetensors")
    for model in (small, al.load(tmp_path / "small.safetensors")):
        torch.testing.assert_close(model.eval()(x), gated.eval()(x))
        assert not torch.equal(model.train()(x), model(x))
    assert not torch.equal(gated.train()(x), gated(x))
    with torch.no_grad():
        gated.get_parameter("second.weight")[:, 1::2] = 0
    assert torch.equal(gated(x), gated(x))
