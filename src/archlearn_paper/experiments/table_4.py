"""Table 4: CaffeNet, pretrained, then learnt smaller; other methods beside it.

Sizes and the validation part decide; the test part has no say.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from archlearn.gating.attach import add_gates
from archlearn.gating.learn import Learn
from archlearn.gating.parameters import width_gates
from archlearn.serialization import load
from archlearn_paper.baselines.fastfood import replace_by_fastfood
from archlearn_paper.baselines.neuron_pruning import reduce_by_merging
from archlearn_paper.baselines.svd import factorise, quarter_ranks
from archlearn_paper.evaluation import best_device, time_side_by_side
from archlearn_paper.experiment import Experiment, FinishedRun, Row, RunTask, Scale, summarise
from archlearn_paper.experiment_registry import TITLES
from archlearn_paper.experiments.caffenet_recipes import (
    ALL,
    FURTHER,
    LEARNT_ROWS,
    REFERENCE,
    CaffeNetTerms,
    choose_plan,
    learn_smaller,
    settled_epoch,
    train_further,
    train_reference,
)
from archlearn_paper.experiments.table_1 import compare_by_seed
from archlearn_paper.experiments.table_4_pages import PAPER, check, tabulate
from archlearn_paper.parallel_runs import Run
from archlearn_paper.parameter_budget import Dropped, Relaxing, Window

AT = " at "


LOSS_ALLOWED = 1.0


"""Points of validation accuracy a row may lose before another price is tried."""


def choose_next(rows: Sequence[Row]) -> dict[str, float]:
    """Return the rows of one seed that need another try, and at which price.

    A row needs one that is too large, that loses too much against the reference (or the one
    trained further, if better), or, if it learns all layers, is not above every other.
    """
    chosen = choose_all(rows)
    costs: dict[str, float] = {}
    for row, terms in LEARNT_ROWS.items():
        tried = {found.row for found in rows}
        left = [cost for cost in terms.others if name_of(row, cost) not in tried]
        if row in chosen and left and not _is_well(row, chosen):
            costs[row] = left[0]
    return costs


def _is_well(row: str, chosen: Mapping[str, Row]) -> bool:
    whole = max(_validation(chosen[name]) for name in (REFERENCE, FURTHER) if name in chosen)
    needed = whole - LOSS_ALLOWED
    found = _validation(chosen[row])
    if row == ALL:
        others = [
            _validation(chosen[name]) for name in LEARNT_ROWS if name != ALL and name in chosen
        ]
        if found <= max(others, default=0.0):
            return False
    return found >= needed and chosen[row].parameters <= most_parameters(row, chosen)


def choose(candidates: Sequence[Row], most: float) -> Row:
    """Return the candidate that is most accurate on the validation part, of those small enough.

    Where none is, the smallest one counts.
    """
    fitting = [row for row in candidates if row.parameters <= most]
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
        chosen[name] = choose(methods[name], most_parameters(name, chosen))
    return {name: chosen[name] for name in methods}


def most_parameters(name: str, chosen: Mapping[str, Row]) -> float:
    """Return how large a method's network may be, given those chosen already."""
    if name == ALL:
        others = [chosen[row].parameters for row in LEARNT_ROWS if row != ALL and row in chosen]
        return min(others, default=chosen[REFERENCE].parameters) - 1
    return (100 - (PAPER[name].least or 0.0)) * chosen[REFERENCE].parameters / 100


def name_of(method: str, cost: float) -> str:
    """Return the name of a run of a method at a price."""
    return f"{method}{AT}{cost:g}"


def method_of(row: Row) -> str:
    """Return the method that a row is a candidate of."""
    return row.row.partition(AT)[0]


def _validation(row: Row) -> float:
    return 100 * (row.validation_accuracy or 0.0)


PRUNED, FACTORISED, FASTFOOD = "neuron pruning", "SVD-quarter-F", "Adaptive Fastfood 16"


PRUNED_SHARE = 0.65


"""Parameters that neuron pruning leaves, as in the paper: 39.6 of 60.9 million."""


_DROPPED = (Dropped("drop6", "fc6", "conv5"), Dropped("drop7", "fc7", "fc6"))


FASTFOOD_SHARE = 4


"""Features of Adaptive Fastfood 16 for each neuron of layer 6: 16,384 for 4,096."""


def train_references(scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
    """Return the reference of each seed."""
    del done
    return [Run(row=REFERENCE, settings=train_reference(scale, seed)) for seed in scale.seeds]


def compress(scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
    """Return every method from the same reference, each for the same number of epochs.

    What must be shown comes first, lest the time run out.
    """
    works: list[RunTask] = []
    for finished in done:
        network, seed = finished.load_model(), finished.row.seed
        further = train_further(scale, seed)
        works.append(Run(row=FURTHER, settings=further, network=network))
        works += _learn(
            scale, seed, network, {row: terms.cost for row, terms in LEARNT_ROWS.items()}
        )
        for row, smaller in _made_smaller(scale, network).items():
            works.append(Run(row=row, settings=further, network=smaller))
    return works


def compress_again(scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
    """Return another try, at another price, for rows that learnt but missed what they must be.

    Sizes and the validation part decide.
    """
    works: list[RunTask] = []
    for reference in [finished for finished in done if finished.row.row == REFERENCE]:
        seed = reference.row.seed
        costs = choose_next([finished.row for finished in done if finished.row.seed == seed])
        if costs:
            works += _learn(scale, seed, reference.load_model(), costs)
    return works


def _learn(
    scale: Scale, seed: int, network: nn.Module, costs: Mapping[str, float]
) -> list[RunTask]:
    guess = math.log(_n_outputs(network))
    works: list[RunTask] = []
    for row, cost in costs.items():
        terms = LEARNT_ROWS[row]
        width_cost = cost * guess / _count_gates(scale, network, terms)
        run = Run(
            row=name_of(row, cost),
            settings=learn_smaller(scale, seed, terms, width_cost),
            network=network,
            after_epoch=_settle(scale, network, terms),
            finish_compact=True,
        )
        works.append(run)
    return works


def _settle(scale: Scale, network: nn.Module, terms: CaffeNetTerms) -> Window | Relaxing:
    """Return what is done to a network when its gates have come to rest."""
    whole = sum(parameter.numel() for parameter in network.parameters())
    least, most = round(terms.least * whole), round(terms.most * whole)
    window = Window(epoch=settled_epoch(scale), least=least, most=most)
    return Relaxing(window=window, layers=_DROPPED) if terms.relaxes else window


def _count_gates(scale: Scale, network: nn.Module, terms: CaffeNetTerms) -> int:
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
        FACTORISED: _factorise(network),
        PRUNED: reduce_by_merging(network, _example(scale), budget),
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


def measure_times(scale: Scale, done: FinishedRun) -> dict[str, Any]:
    """Return how long a forward pass takes, beside the reference of the same seed."""
    reference = done.path.with_name(f"{REFERENCE}.seed{done.row.seed}.safetensors")
    times = time_side_by_side(load(reference), done.load_model(), _example(scale))
    return {"forward": times}


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
            "validation": 100 * (row.validation_accuracy or 0.0),
            "accuracy": row.accuracy,
            "chosen": any(row is member for member in chosen[method_of(row)]),
        }
        for row in rows
    ]
    lost = {
        name: compare_by_seed(chosen[FURTHER], members)
        for name, members in chosen.items()
        if FURTHER in chosen and name in LEARNT_ROWS
    }
    return {"rows": summaries, "tried": tried, "lost": lost}


EXPERIMENT = Experiment(
    name="table-4",
    title=TITLES["table-4"],
    stages=(train_references, compress, compress_again, compress_again),
    derive=derive,
    check=check,
    tabulate=tabulate,
    measure=measure_times,
)
