"""Tables 4 and 5: CaffeNet, pretrained, then learnt smaller; beside it the compared methods."""

import copy
import math
from collections.abc import Mapping, Sequence
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
from archlearn.experiments.table_4_pages import ALL, FURTHER, PAPER, REFERENCE, check, tabulate
from archlearn.gating import add_gates, width_gates
from archlearn.learning import Learn
from archlearn.storage import load
from archlearn.training.teams import Run

PRUNED, FACTORISED, FASTFOOD = "neuron pruning", "SVD-quarter-F", "Adaptive Fastfood 16"
AT = " at "
PRUNED_SHARE = 0.65
"""Parameters that neuron pruning leaves, as in the paper: 39.6 of 60.9 million."""
LOSS_ALLOWED = 1.0
"""Points of validation accuracy a row may lose before a gentler price is tried."""
FASTFOOD_SHARE = 4
"""Features of Adaptive Fastfood 16 for each neuron of layer 6: 16,384 for 4,096."""

LEARNT = {
    "AL-fc": Terms(leave=("conv*",), cost=0.2, harder=0.4, gentler=0.1),
    "AL-conv": Terms(leave=("fc*",), cost=0.05, harder=0.1, gentler=0.03),
    "AL-conv-fc": Terms(leave=("conv[1234]",), cost=0.2, harder=0.4, gentler=0.1),
    ALL: Terms(leave=(), cost=0.25, harder=0.5, gentler=0.15),
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
        costs = {row: terms.cost for row, terms in LEARNT.items()}
        works += _learn(scale, seed, network, costs)
        further = train_further(scale, seed)
        works.append(Run(row=FURTHER, settings=further, network=network))
        for row, smaller in _made_smaller(scale, network).items():
            works.append(Run(row=row, settings=further, network=smaller))
    return works


def compress_again(scale: Scale, done: Sequence[Done]) -> list[Work]:
    """Return another try, at another price, for rows that learnt but missed what they must be.

    Sizes and the validation part decide; the test part has no say.
    """
    works: list[Work] = []
    for reference in [finished for finished in done if finished.row.row == REFERENCE]:
        seed = reference.row.seed
        costs = choose_next([finished.row for finished in done if finished.row.seed == seed])
        if costs:
            works += _learn(scale, seed, reference.load_model(), costs)
    return works


def choose_next(rows: Sequence[Row]) -> dict[str, float]:
    """Return the rows of one seed that need another try, and at which price."""
    chosen = choose_all(rows)
    whole = chosen[REFERENCE]
    costs: dict[str, float] = {}
    for row, terms in LEARNT.items():
        most = _most_parameters(row, chosen)
        if chosen[row].parameters > most:
            costs[row] = terms.harder
        elif _validation(chosen[row]) < _validation(whole) - LOSS_ALLOWED:
            costs[row] = terms.gentler
    return costs


def _learn(scale: Scale, seed: int, network: nn.Module, costs: Mapping[str, float]) -> list[Work]:
    guess = math.log(_n_outputs(network))
    works: list[Work] = []
    for row, cost in costs.items():
        terms = LEARNT[row]
        width_cost = cost * guess / _count_gates(scale, network, terms)
        settings = learn_smaller(scale, seed, terms, width_cost)
        name = f"{row}{AT}{cost:g}"
        works.append(Run(row=name, settings=settings, network=network, finish_compact=True))
    return works


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
    chosen = {REFERENCE: methods[REFERENCE][0]}
    # The one that learns all layers comes last, when the others are known.
    for name in sorted(methods, key=lambda name: name == ALL):
        chosen[name] = choose(methods[name], _most_parameters(name, chosen))
    return {name: chosen[name] for name in methods}


def _most_parameters(name: str, chosen: Mapping[str, Row]) -> float:
    """Return how large a method's network may be, given those chosen already."""
    if name == ALL:
        others = [chosen[row].parameters for row in LEARNT if row != ALL and row in chosen]
        return min(others, default=chosen[REFERENCE].parameters) - 1
    return (100 - (PAPER[name].least or 0.0)) * chosen[REFERENCE].parameters / 100


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
    stages=(train_references, compress, compress_again),
    derive=derive,
    check=check,
    tabulate=tabulate,
    measure=measure_times,
)
