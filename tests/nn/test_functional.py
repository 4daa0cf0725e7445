"""Gates are real numbers while they learn and binary whenever they act."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from archlearn.nn.functional import (
    THRESHOLD,
    binarise,
    binarised_gates,
    is_open,
    open_gates,
)

traced = pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
JUST_BELOW = torch.nextafter(torch.tensor(0.5), torch.tensor(0.0)).item()


def test_a_gate_of_exactly_one_half_is_open() -> None:
    gate = torch.tensor([0.0, JUST_BELOW, 0.5, 0.9, 1.0])
    assert THRESHOLD == 0.5
    assert is_open(gate).tolist() == [False, False, True, True, True]
    assert binarise(gate).tolist() == [0.0, 0.0, 1.0, 1.0, 1.0]


def test_gradient_passes_straight_through() -> None:
    gate = torch.tensor([0.2, 0.5, 0.9], requires_grad=True)
    upstream = torch.tensor([1.0, -2.0, 3.0])
    binarise(gate).backward(upstream)
    torch.testing.assert_close(gate.grad, upstream, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("act", [binarise, open_gates])
def test_acting_gates_are_exactly_zero_or_one(
    act: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    """`gate + (binary − gate)` must not leave a remainder of rounding behind."""
    gate = torch.linspace(0, 1, 4001).to(dtype).requires_grad_()
    acting = act(gate)
    assert acting.dtype is dtype
    assert torch.equal(acting, (gate >= 0.5).to(dtype))


def test_open_gates_are_the_binary_ones_where_any_is_open() -> None:
    gate = torch.tensor([0.1, 0.7, 0.4, 0.5])
    assert open_gates(gate).tolist() == [0.0, 1.0, 0.0, 1.0]


def test_the_largest_of_closed_gates_stays_open() -> None:
    assert open_gates(torch.tensor([0.1, 0.3, 0.2])).tolist() == [0.0, 1.0, 0.0]
    assert open_gates(torch.zeros(3)).tolist() == [1.0, 0.0, 0.0]
    assert open_gates(torch.zeros(1)).tolist() == [1.0]


def test_all_gates_get_a_gradient_also_where_one_is_held_open() -> None:
    gate = torch.tensor([0.1, 0.3, 0.2], requires_grad=True)
    open_gates(gate).backward(torch.tensor([1.0, 2.0, 3.0]))
    assert gate.grad is not None
    assert gate.grad.tolist() == [1.0, 2.0, 3.0]


def test_whether_a_gate_is_open_has_no_gradient() -> None:
    assert not is_open(torch.tensor([0.7], requires_grad=True)).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_all_gates_at_once_are_each_as_it_is_alone(dtype: torch.dtype) -> None:
    """Groups of different sizes, some with no gate open, ties among them, and a depth gate."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.rand(n, generator=generator) for n in (5, 1, 3)]
    groups = [*drawn, torch.zeros(4), torch.tensor([0.2, 0.4, 0.4]), torch.tensor([0.1])]
    gates = [g.to(dtype).requires_grad_() for g in (*groups, torch.tensor(0.3), torch.tensor(0.5))]
    rows = torch.tensor(
        [
            [0, 1, 2, 3, 4],
            [5] * 5,
            [6, 7, 8, 6, 6],
            [9, 10, 11, 12, 9],
            [13, 14, 15, 13, 13],
            [16] * 5,
        ]
    )
    acting = binarised_gates(gates, rows)
    expected = [*(open_gates(g) for g in gates[:6]), *(binarise(g) for g in gates[6:])]
    for found, alone in zip(acting, expected, strict=True):
        assert found.dtype is dtype
        assert torch.equal(found, alone)
    torch.stack([(2 * gate).sum() for gate in acting]).sum().backward()
    for gate in gates:
        assert gate.grad is not None
        assert torch.equal(gate.grad, torch.full_like(gate, 2))


def test_gates_without_groups_may_all_be_closed() -> None:
    acting = binarised_gates(
        [torch.tensor(0.3), torch.tensor(0.8)], torch.zeros(0, 0, dtype=torch.long)
    )
    assert [gate.tolist() for gate in acting] == [0.0, 1.0]


@traced
def test_a_trace_holds_the_largest_gate_open_whatever_the_gates_were() -> None:
    run: Any = torch.jit.trace(open_gates, torch.tensor([0.9, 0.3, 0.2]))
    assert run(torch.tensor([0.1, 0.3, 0.2])).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_a_graph_of_operations_holds_the_largest_gate_open_whatever_the_gates_were(
    pre_dispatch: bool,
) -> None:
    traced = make_fx(lambda gate: open_gates(gate), pre_dispatch=pre_dispatch)
    run = traced(torch.tensor([0.9, 0.3, 0.2]))
    assert run(torch.tensor([0.1, 0.3, 0.2])).tolist() == [0.0, 1.0, 0.0]
