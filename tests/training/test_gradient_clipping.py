"""Gradients within their limits are left alone; others are brought back."""

import pytest
import torch
from torch import nn

from archlearn.training.train_step import Limits, limit_gradients_


def make_parameter(*gradient: float) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros(len(gradient)))
    parameter.grad = torch.tensor(gradient)
    return parameter


def limit(weights: list[nn.Parameter], gate: nn.Parameter, limits: Limits) -> None:
    limit_gradients_((torch.optim.SGD(weights, lr=1.0), torch.optim.SGD([gate], lr=1.0)), limits)


def test_weights_are_scaled_together_and_gates_cut_one_by_one() -> None:
    weights = [make_parameter(3.0, 0.0), make_parameter(0.0, 4.0)]
    gate = make_parameter(-3.0, 0.5)
    limit(weights, gate, Limits(norm=1.0, gate=2.0))
    values = [value for weight in weights for value in weight.grad.tolist()]  # pyright: ignore
    assert values == pytest.approx([0.6, 0.0, 0.0, 0.8], rel=1e-5)
    assert gate.grad.tolist() == [-2.0, 0.5]  # pyright: ignore


def test_small_gradients_and_no_limits_change_nothing() -> None:
    weights, gate = [make_parameter(3.0, 4.0)], make_parameter(9.0)
    limit(weights, gate, Limits(norm=5.1, gate=None))
    limit(weights, gate, Limits(norm=None, gate=10.0))
    assert weights[0].grad.tolist() == [3.0, 4.0]  # pyright: ignore
    assert gate.grad.tolist() == [9.0]  # pyright: ignore
