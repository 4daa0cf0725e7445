"""What holds for every network and all gates: drawn at random, in float64."""

import pytest
from hypothesis import given, seed, settings

from tests.laws import chains, checking
from tests.laws.networks import NETWORKS, STREAMS, build
from tests.laws.programs import Gates, Program, gates

LEAST_LEARNABLE = 0.9
N_RUNS = 30


@given(program=NETWORKS, gates=gates)
def test_compact_network_computes_what_the_gated_one_did(program: Program, gates: Gates) -> None:
    checking.check_compact(program, gates)


@given(program=NETWORKS, gates=gates)
def test_compacting_twice_is_compacting_once(program: Program, gates: Gates) -> None:
    checking.check_twice(program, gates)


@given(program=NETWORKS, gates=gates)
def test_loaded_network_is_the_saved_one(program: Program, gates: Gates) -> None:
    checking.check_files(program, gates)


@given(program=NETWORKS, gates=gates)
def test_costs_never_rise(program: Program, gates: Gates) -> None:
    checking.check_costs(program, gates)


@given(program=NETWORKS, gates=gates)
def test_plan_foretells_the_counted_costs(program: Program, gates: Gates) -> None:
    checking.check_prediction(program, gates)


@given(program=NETWORKS, gates=gates)
def test_no_group_is_ever_empty(program: Program, gates: Gates) -> None:
    checking.check_never_empty(program, gates)


@given(program=NETWORKS, gates=gates)
def test_plan_read_from_json_is_the_plan(program: Program, gates: Gates) -> None:
    checking.check_json(program, gates)


@given(program=NETWORKS, gates=gates)
def test_gates_as_they_start_change_nothing(program: Program, gates: Gates) -> None:
    checking.check_open(program, gates)


@given(program=NETWORKS, gates=gates)
def test_state_of_a_gated_network_carries_its_function(program: Program, gates: Gates) -> None:
    checking.check_states(program, gates)


@given(program=NETWORKS, gates=gates)
def test_penalty_has_the_gradient_of_its_value(program: Program, gates: Gates) -> None:
    checking.check_penalty(program, gates)


@given(program=NETWORKS, gates=gates)
def test_cost_on_the_device_is_the_cost_of_the_plan(program: Program, gates: Gates) -> None:
    checking.check_device_costs(program, gates)


@given(program=NETWORKS, gates=gates)
def test_every_gate_learns_in_training_mode(program: Program, gates: Gates) -> None:
    checking.check_training(program, gates)


@settings(max_examples=60)
@given(program=NETWORKS, gates=gates)
def test_a_model_computes_the_same_when_channels_are_cut_out(
    program: Program, gates: Gates
) -> None:
    checking.check_shrink(program, gates)


@given(program=STREAMS, gates=gates)
def test_streams_through_norms_and_branches_are_compacted_exactly(
    program: Program, gates: Gates
) -> None:
    checking.check_compact(program, gates)


@given(program=STREAMS, gates=gates)
def test_open_gates_on_streams_change_nothing(program: Program, gates: Gates) -> None:
    checking.check_open(program, gates)


@given(program=STREAMS, gates=gates)
def test_plan_foretells_the_counted_costs_of_streams(program: Program, gates: Gates) -> None:
    checking.check_prediction(program, gates)


@settings(max_examples=60)
@given(program=STREAMS, gates=gates)
def test_streams_shrink_exactly(program: Program, gates: Gates) -> None:
    checking.check_shrink(program, gates)


@given(chain=chains.CHAINS)
def test_merged_layer_computes_what_the_pair_computed(chain: chains.Chain) -> None:
    chains.check_merge(chain)


@given(chain=chains.CHAINS)
def test_merging_is_associative(chain: chains.Chain) -> None:
    chains.check_associative(chain)


@given(chain=chains.CHAINS)
def test_folding_and_merging_may_change_places(chain: chains.Chain) -> None:
    chains.check_fold(chain)


@pytest.mark.slow
def test_something_can_be_learnt_in_nine_of_ten_networks() -> None:
    """Networks of one run resemble each other, so that many short runs are needed."""
    learnable: list[bool] = []

    def look(program: Program) -> None:
        learnable.append(checking.gate_if_learnable(build(program), program) is not None)

    for number in range(N_RUNS):
        run = seed(number)(given(program=NETWORKS)(look))
        settings(derandomize=False, max_examples=300 // N_RUNS)(run)()
    assert len(learnable) >= 250
    assert sum(learnable) >= LEAST_LEARNABLE * len(learnable)
