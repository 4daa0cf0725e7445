"""Hard concrete gates: numbers worked by hand, and draws against their distribution."""

import math

import pytest
import torch

from archlearn.nn.functional import open_flat
from archlearn.nn.hard_concrete import (
    START,
    act_concrete,
    count_expected,
    draw_gates,
    log_odds,
    settle_gates,
)

ROW = torch.arange(5)[None]


def settle(gate: torch.Tensor) -> torch.Tensor:
    return settle_gates(gate, open_flat(gate, ROW[:, : len(gate)]))


def gates(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_log_odds_by_hand() -> None:
    torch.testing.assert_close(log_odds(gates(0.5, 0.6)), gates(-math.log(11), 1 - math.log(11)))
    torch.testing.assert_close(log_odds(gates(START)), gates(0.0))


def test_settled_gates_by_hand() -> None:
    # even odds: 1/2 x 1.2 - 0.1; odds of 11 to 1: 11/12 x 1.2 - 0.1 = 1; above that clipped
    eleven = 0.5 + 2 * math.log(11) / 10
    found = settle(gates(START, eleven, 1.0, 0.49, 0.0))
    torch.testing.assert_close(found, gates(0.5, 1.0, 1.0, 0.0, 0.0))
    assert found[3:].tolist() == [0.0, 0.0]


def test_the_gate_closes_at_one_half() -> None:
    torch.testing.assert_close(settle(gates(0.5, 1.0))[0].item(), 0.0, atol=1e-12, rtol=0)
    assert settle(gates(0.501, 1.0))[0].item() > 0


def test_one_gate_stays_open_whatever_they_say() -> None:
    assert settle(gates(0.1, 0.3, 0.2)).tolist() == [0.0, 1.0, 0.0]


def test_draws_are_not_zero_as_often_as_expected() -> None:
    torch.manual_seed(0)
    gate = gates(0.3, 0.5, START, 0.9)
    draws = torch.stack([draw_gates(gate) for _ in range(20_000)])
    assert bool((draws >= 0).all())
    assert bool((draws <= 1).all())
    found = (draws > 0).double().mean(0)
    torch.testing.assert_close(found, count_expected(gate), atol=0.015, rtol=0)
    # by hand: sigmoid(0 + 2/3 log 11) at even odds
    expected = 1 / (1 + 11 ** (-2 / 3))
    assert count_expected(gate)[2].item() == pytest.approx(expected)


def test_draws_lead_the_odds() -> None:
    torch.manual_seed(0)
    gate = torch.full((2000,), START, dtype=torch.float64, requires_grad=True)
    draw_gates(gate).sum().backward()
    assert gate.grad is not None
    assert bool((gate.grad >= 0).all())
    assert gate.grad.mean().item() > 0.5


def test_nothing_is_drawn_in_evaluation() -> None:
    first, second = gates(0.6, 0.8), gates(0.1, 0.3)
    rows = torch.tensor([[0, 1], [2, 3]])
    found = act_concrete([first, second], rows, training=False)
    torch.testing.assert_close(found, (settle(first), gates(0.0, 1.0)))
    torch.manual_seed(0)
    drawn = act_concrete([first, second], rows, training=True)
    assert not torch.equal(drawn[0], act_concrete([first, second], rows, training=True)[0])
