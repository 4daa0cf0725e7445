"""Laws of gates on weights, on networks drawn at random."""

from hypothesis import given

from tests.laws import weights
from tests.laws.networks import HEADS, NETWORKS, STREAMS
from tests.laws.programs import Gates, Program, gates


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
