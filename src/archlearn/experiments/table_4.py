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
from archlearn.experiments.table_4_pages import ALL, PAPER, REFERENCE, check, tabulate
from archlearn.gating import add_gates, width_gates
from archlearn.learning import Learn
from archlearn.storage import load
from archlearn.training.teams import Run

PRUNED, FACTORISED, FASTFOOD = "neuron pruning", "SVD-quarter-F", "Adaptive Fastfood 16"
AT = " at "
PRUNED_SHARE = 0.65
"""Parameters that neuron pruning leaves, as in the paper: 39.6 of 60.9 million."""
FASTFOOD_SHARE = 4
"""Features of Adaptive Fastfood 16 for each neuron of layer 6: 16,384 for 4,096."""

LEARNT = {
    "AL-fc": Terms(leave=("conv*",), costs=(0.05, 0.15)),
    "AL-conv": Terms(leave=("fc*",), costs=(0.03, 0.1), price="parameters"),
    "AL-conv-fc": Terms(leave=("conv[1234]",), costs=(0.05, 0.15)),
    ALL: Terms(leave=(), costs=(0.1, 0.2, 0.4)),
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


def choose(candidates: Sequence[Row], most_parameters: float) -> Row:
    """Return the candidate that is most accurate on the validation part, of those small enough.

    Where none is, the smallest one counts. The test part has no say.
    """
    fitting = [row for row in candidates if row.parameters <= most_parameters]
    best = max(fitting, key=_validation, default=None)
    return best or min(candidates, key=lambda row: row.parameters)


def choose_all(rows: Sequence[Row]) -> dict[str, Row]:
    """Return the row of every method, of one seed.

    A learnt row must be as small as is asked of it; the one that learns all layers, smaller than
    all others that learn.
    """
    methods: dict[str, list[Row]] = {}
    for row in rows:
        methods.setdefault(method_of(row), []).append(row)
    whole = methods[REFERENCE][0].parameters
    chosen: dict[str, Row] = {}
    for name, candidates in methods.items():
        if name != ALL:
            gone = PAPER[name].least or 0.0
            chosen[name] = choose(candidates, (1 - gone / 100) * whole)
    learnt = [row.parameters for name, row in chosen.items() if name in LEARNT]
    if ALL in methods:
        chosen[ALL] = choose(methods[ALL], min(learnt, default=whole) - 1)
    return {name: chosen[name] for name in methods}


def method_of(row: Row) -> str:
    """Return the method that a row is a candidate of."""
    return row.row.partition(AT)[0]


def _validation(row: Row) -> float:
    return 100 * (row.validation_accuracy or 0.0)


def derive(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what the tables state: one line a method, and all candidates."""
    chosen: dict[str, list[Row]] = {}
    for seed in dict.fromkeys(row.seed for row in rows):
        for name, row in choose_all([row for row in rows if row.seed == seed]).items():
            chosen.setdefault(name, []).append(row)
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
            "chosen": any(row is member for member in chosen[method_of(row)]),
        }
        for row in rows
    ]
    return {"rows": summaries, "tried": tried}


EXPERIMENT = Experiment(
    name="table-4",
    title="CaffeNet, pretrained, then learnt smaller; neuron pruning, SVD, Fastfood beside it",
    stages=(train_references, compress),
    derive=derive,
    check=check,
    tabulate=tabulate,
    measure=measure_times,
)
