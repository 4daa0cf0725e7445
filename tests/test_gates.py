"""Gates are real numbers while they learn and binary whenever they act."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from archlearn.gates import THRESHOLD, binarise, is_open, open_gates

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
