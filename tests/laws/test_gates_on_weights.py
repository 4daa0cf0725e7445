"""Laws of gates on weights, on networks drawn at random."""

from typing import Any

import pytest
import torch
from hypothesis import given

import archlearn as al
from tests.laws import checking, weights
from tests.laws.networks import HEADS, NETWORKS, STREAMS, build
from tests.laws.programs import Block, Gates, Program, gates

PLAIN = (0,) * 10
PROGRAM = Program(
    (2, 6, 6),
    (Block("plain", 5, PLAIN), Block("pair", 6, PLAIN), Block("plain", 4, PLAIN)),
    Block("head", 1, PLAIN),
    3,
)


@given(program=NETWORKS, drawn=gates)
def test_training_with_all_gates_open_is_plain_training_bit_for_bit(
    program: Program, drawn: Gates
) -> None:
    weights.check_open_is_plain(program, drawn)


@given(program=NETWORKS | HEADS | STREAMS, drawn=gates)
def test_closing_by_weights_is_closing_by_a_factor_on_activations(
    program: Program, drawn: Gates
) -> None:
    weights.check_as_on_activations(program, drawn)


@given(program=NETWORKS | HEADS | STREAMS, drawn=gates)
def test_a_gates_gradient_is_that_of_a_factor_of_its_slices(program: Program, drawn: Gates) -> None:
    weights.check_gradients(program, drawn)


@given(program=NETWORKS | HEADS, drawn=gates)
def test_nothing_that_is_closed_is_read_after_any_optimizers_step(
    program: Program, drawn: Gates
) -> None:
    weights.check_nothing_closed_is_read(program, drawn)


# Each of them can fail.


def close_one() -> tuple[Any, Any, torch.optim.Optimizer]:
    """Return a model of which the first gate is closed, its gates, and its optimiser."""
    model = weights.gate_weights(build(PROGRAM).train(), PROGRAM)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    al.GateOptimizer(model, optimizer, total_steps=1000)
    gates: Any = weights.container_of(model).on_weights
    is_open = torch.ones_like(gates.is_open)
    is_open[0] = False
    gates.set_open_(is_open)
    return model, gates, optimizer


def test_a_closed_gate_is_seen_in_a_run() -> None:
    net = build(PROGRAM).train()
    plain = weights.train(net, torch.optim.SGD(net.parameters(), 1e-3), PROGRAM)
    model, _, optimizer = close_one()
    with pytest.raises(AssertionError):
        weights.check_equal_runs(plain, weights.train(model, optimizer, PROGRAM))


def test_one_gate_more_on_weights_is_seen_beside_gates_on_activations() -> None:
    model, _, _ = close_one()
    with pytest.raises(AssertionError, match="differ by"):
        checking.check_same(build(PROGRAM), model.eval(), checking.fresh(PROGRAM))


def test_a_closed_slice_that_is_written_is_seen() -> None:
    model, gates, _ = close_one()
    weights.check_closed_is_zero(model, gates)
    for parameter in model.parameters():
        parameter.data.add_(1e-300)
    with pytest.raises(AssertionError, match="is read"):
        weights.check_closed_is_zero(model, gates)


def test_a_channel_that_is_read_is_seen_by_other_weights_that_write_it() -> None:
    model, gates, _ = close_one()
    weights.check_writers_are_not_seen(model, gates, checking.fresh(PROGRAM))
    for parameter in model.parameters():
        parameter.data.add_(0.1)
    with pytest.raises(AssertionError, match="not close"):
        weights.check_writers_are_not_seen(model, gates, checking.fresh(PROGRAM))
