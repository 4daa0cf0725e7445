"""Costs are counted in single precision, whatever precision a model runs in."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
import archlearn_cli as cli


@pytest.mark.parametrize("price", list(al.Price))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_has_the_same_price(price: al.Price, dtype: torch.dtype) -> None:
    model = al.add_gates(cli.models.LeNet(), torch.randn(2, 1, 28, 28))
    strengths = al.Strengths.from_width_cost(1e-3, price=price)
    whole = al.penalty(model, strengths).item()
    half = al.penalty(model.to(dtype), strengths)
    half.backward()
    assert half.item() == pytest.approx(whole, rel=0.02)
    gates = [*al.width_gates(model).values(), *al.depth_gates(model).values()]
    assert all(gate.grad is not None and gate.grad.isfinite().all() for gate in gates)
    assert al.penalty(model.float(), strengths).item() == pytest.approx(whole, rel=0.02)


def test_autocast_around_surgery_changes_nothing() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(5, 8)
    with torch.autocast("cpu", torch.bfloat16):
        model = al.add_gates(net, x)
        with torch.no_grad():
            al.width_gates(model)["0"][::2] = 0.1
            al.depth_gates(model)["0"].fill_(0.9)
        small = al.compact(model)
        certificate = al.certify(model, small, x)
        assert torch.is_autocast_enabled("cpu")
    assert certificate.difference < 1e-5
    torch.testing.assert_close(small(x), model(x))


class Casts(nn.Module):
    """Computes a norm in float32, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 300), nn.Linear(300, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        norm = hidden.float().norm(dim=1, keepdim=True)
        return self.last(hidden / norm.to(x.dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_part_in_single_precision_is_compared_in_double(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = al.add_gates(Casts().to(dtype), torch.randn(8, 16, dtype=dtype))
    with torch.no_grad():
        al.width_gates(model)["first"][::2] = 0.1
    small: Any = al.compact(model)
    assert small.certificate.difference_float64 < 1e-14
