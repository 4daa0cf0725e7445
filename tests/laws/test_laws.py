"""What holds for every network and all gates: drawn at random, in float64."""

import pytest
from hypothesis import given, seed, settings

from tests.laws import chains, checking
from tests.laws.networks import HEADS, NETWORKS, STREAMS, build
from tests.laws.programs import Gates, Program, gates

LEAST_LEARNABLE = 0.9
N_RUNS = 30


# Each of them is dear.
FEW = settings(max_examples=min(60, settings().max_examples))


@given(program=NETWORKS, gates=gates)
def test_compact_network_computes_what_the_gated_one_did(program: Program, gates: Gates) -> None:
    checking.check_compact(program, gates)
    checking.check_twice(program, gates)
    checking.check_files(program, gates)


@given(program=NETWORKS, gates=gates)
def test_plan_foretells_costs_which_never_rise(program: Program, gates: Gates) -> None:
    checking.check_costs(program, gates)
    checking.check_prediction(program, gates)
    checking.check_device_costs(program, gates)
    checking.check_never_empty(program, gates)
    checking.check_json(program, gates)


@given(program=NETWORKS, gates=gates)
def test_gates_start_open_are_told_by_their_state_and_learn(program: Program, gates: Gates) -> None:
    checking.check_open(program, gates)
    checking.check_states(program, gates)
    checking.check_penalty(program, gates)
    checking.check_training(program, gates)


@FEW
@given(program=NETWORKS, gates=gates)
def test_a_model_computes_the_same_when_channels_are_cut_out(
    program: Program, gates: Gates
) -> None:
    checking.check_shrink(program, gates)


@given(program=STREAMS, gates=gates)
def test_streams_through_norms_and_branches_are_compacted_exactly(
    program: Program, gates: Gates
) -> None:
    checking.check_open(program, gates)
    checking.check_compact(program, gates)
    checking.check_prediction(program, gates)


@FEW
@given(program=HEADS, gates=gates)
def test_heads_that_keep_other_channels_each_are_compacted_exactly(
    program: Program, gates: Gates
) -> None:
    checking.check_open(program, gates)
    checking.check_compact(program, gates)
    checking.check_prediction(program, gates)
    checking.check_states(program, gates)


@pytest.mark.slow
@FEW
@given(program=HEADS, gates=gates)
def test_heads_that_keep_other_channels_each_shrink_exactly(program: Program, gates: Gates) -> None:
    checking.check_shrink(program, gates)


@pytest.mark.slow
@FEW
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
