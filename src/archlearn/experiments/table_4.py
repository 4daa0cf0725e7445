"""Tables 4 and 5: CaffeNet, pretrained, then learnt smaller; beside it the compared methods."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from archlearn.baselines.fastfood import replace_by_fastfood
from archlearn.baselines.neuron_pruning import reduce_by_merging
from archlearn.baselines.svd import factorise, quarter_ranks
from archlearn.experiments.caffenets import (
    Terms,
    choose_plan,
    learn_smaller,
    train_further,
    train_reference,
)
from archlearn.experiments.definitions import Done, Experiment, Work
from archlearn.experiments.evaluations import best_device
from archlearn.experiments.forward_times import time_side_by_side
from archlearn.experiments.rows import Row, summarise
from archlearn.experiments.scales import Scale
from archlearn.experiments.table_4_pages import check, tabulate
from archlearn.gating import add_gates, width_gates
from archlearn.learning import Learn
from archlearn.storage import load
from archlearn.training.teams import Run

REFERENCE = "reference"
PRUNED, FACTORISED, FASTFOOD = "neuron pruning", "SVD-quarter-F", "Adaptive Fastfood 16"
AT = " at "
PRUNED_SHARE = 0.65
"""Parameters that neuron pruning leaves, as in the paper: 39.6 of 60.9 million."""
FASTFOOD_SHARE = 4
"""Features of Adaptive Fastfood 16 for each neuron of layer 6: 16,384 for 4,096."""
LOSS_ALLOWED = 1.0
"""Points of validation accuracy that the smallest candidate may lose to be the row's own."""

LEARNT = {
    "AL-fc": Terms(leave=("conv*",), costs=(0.1, 0.2)),
    "AL-conv": Terms(leave=("fc*",), costs=(0.05, 0.1), price="parameters"),
    "AL-conv-fc": Terms(leave=("conv[1234]",), costs=(0.1, 0.2)),
    "AL-all": Terms(leave=(), costs=(0.05, 0.1, 0.2), price="parameters", learn="all"),
}


def train_references(scale: Scale, done: Sequence[Done]) -> list[Work]:
    """Return the reference of each seed."""
    del done
    return [Run(row=REFERENCE, settings=train_reference(scale, seed)) for seed in scale.seeds]


def compress(scale: Scale, done: Sequence[Done]) -> list[Work]:
    """Return every method from the same reference, each for the same number of epochs."""
    works: list[Work] = []
    for finished in done:
        network, seed = finished.load_model(), finished.row.seed
        for row in LEARNT:
            works += _learn(scale, seed, network, row)
        further = train_further(scale, seed)
        for row, smaller in _made_smaller(scale, network).items():
            works.append(Run(row=row, settings=further, network=smaller))
    return works


def _learn(scale: Scale, seed: int, network: nn.Module, row: str) -> list[Work]:
    """Return a run for each price of a row."""
    terms = LEARNT[row]
    n_gates = _count_gates(scale, network, terms)
    guess = math.log(_n_outputs(network))
    return [
        Run(
            row=f"{row}{AT}{cost:g}",
            settings=learn_smaller(scale, seed, terms, cost * guess / n_gates),
            network=network,
            finish_compact=True,
        )
        for cost in terms.costs
    ]


def _count_gates(scale: Scale, network: nn.Module, terms: Terms) -> int:
    learn = {"*": Learn.WIDTH, **dict.fromkeys(terms.leave, Learn.NOTHING)}
    gated = add_gates(network, _example(scale), learn=learn)
    return sum(gate.numel() for gate in width_gates(gated).values())


def _made_smaller(scale: Scale, network: nn.Module) -> dict[str, nn.Module]:
    """Return the compared methods' networks before they are trained further."""
    n_parameters = sum(parameter.numel() for parameter in network.parameters())
    sixth = network.get_submodule("fc6")
    assert isinstance(sixth, nn.Linear)
    n_features = FASTFOOD_SHARE * sixth.out_features
    budget = round(PRUNED_SHARE * n_parameters)
    return {
        PRUNED: reduce_by_merging(network, _example(scale), budget),
        FACTORISED: _factorise(network),
        FASTFOOD: replace_by_fastfood(network, ["fc6", "fc7", "fc8"], n_features),
    }


def _factorise(network: nn.Module) -> nn.Module:
    """Return the network at a quarter of its ranks, found on a GPU if there is one."""
    moved = copy.deepcopy(network).to(best_device())
    return factorise(moved, quarter_ranks(moved)).cpu()


def _example(scale: Scale) -> torch.Tensor:
    side = choose_plan(scale).side
    return torch.zeros(2, 3, side, side)


def _n_outputs(network: nn.Module) -> int:
    last = network.get_submodule("fc8")
    assert isinstance(last, nn.Linear)
    return last.out_features


def measure_times(scale: Scale, done: Done) -> dict[str, Any]:
    """Return how long a forward pass takes, beside the reference of the same seed."""
    reference = done.path.with_name(f"{REFERENCE}.seed{done.row.seed}.safetensors")
    times = time_side_by_side(load(reference), done.load_model(), _example(scale))
    return {"forward": times}


def choose(candidates: Sequence[Row], reference: Row) -> Row:
    """Return the smallest candidate whose validation accuracy is near the reference's.

    Where none is near, the most accurate one on the validation part counts. The test part has no
    say.
    """
    least = _validation(reference) - LOSS_ALLOWED
    near = [row for row in candidates if _validation(row) >= least]
    smallest = min(near, key=lambda row: row.parameters, default=None)
    return smallest or max(candidates, key=_validation)


def _validation(row: Row) -> float:
    return 100 * (row.validation_accuracy or 0.0)


def derive(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what the tables state: one line a method, and all candidates."""
    references = {row.seed: row for row in rows if row.row == REFERENCE}
    chosen: dict[str, list[Row]] = {}
    for (name, seed), candidates in _by_method(rows).items():
        chosen.setdefault(name, []).append(choose(candidates, references[seed]))
    summaries = {
        name: summarise(members) | {"measured": [row.measured for row in members]}
        for name, members in chosen.items()
    }
    tried = [
        {
            "row": row.row,
            "seed": row.seed,
            "architecture": row.architecture,
            "parameters": row.parameters,
            "validation": _validation(row),
            "accuracy": row.accuracy,
            "chosen": any(row is member for member in chosen[_method(row)]),
        }
        for row in rows
    ]
    return {"rows": summaries, "tried": tried}


def _by_method(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((_method(row), row.seed), []).append(row)
    return found


def _method(row: Row) -> str:
    return row.row.partition(AT)[0]


EXPERIMENT = Experiment(
    name="table-4",
    title="CaffeNet, pretrained, then learnt smaller; neuron pruning, SVD, Fastfood beside it",
    stages=(train_references, compress),
    derive=derive,
    check=check,
    tabulate=tabulate,
    measure=measure_times,
)
