"""Propositions 1 and 2: no neuron is redundant, and weights are as good as from scratch.

Proposition 1 has a control: the same removals from the large network that nothing was learnt of.
Proposition 3 is figure 3b's.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from archlearn_cli.training.metrics import evaluate
from archlearn_cli.training.objectives import objective_of
from archlearn_cli.training.settings import RunSettings
from archlearn_paper import bounds, statistics, tables
from archlearn_paper.evaluation import best_device, find_dataset
from archlearn_paper.experiment import Derived, Experiment, FinishedRun, Row, Run, Scale
from archlearn_paper.experiments import table_1
from archlearn_paper.recipes import baseline
from archlearn_paper.tables import make_table, spread_in

_PROBE_SEED = 7
_MOST_REMOVALS = 120
"""Of a larger network, evenly spaced neurons are removed."""


@torch.no_grad()
def measure_removals(network: nn.Module, settings: RunSettings, n_examples: int) -> dict[str, Any]:
    """Return the train loss, and its rise without each single hidden neuron of a chain of layers.

    Weights and bias of a neuron are set to zero: what an activation with `act(0) = 0` then gives
    is zero too. The loss is that on always the same part of the train examples.
    """
    dataset, device = find_dataset(settings), best_device()
    generator = torch.Generator().manual_seed(_PROBE_SEED)
    order = torch.randperm(len(dataset.train), generator=generator)
    split = dataset.train[order[:n_examples].sort().values].to(device)
    objective = objective_of(dataset).to(device)
    probed = copy.deepcopy(network).to(device)
    loss = evaluate(probed, split, objective).loss
    rises: list[float] = []
    layers = [m for m in probed.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    neurons = [(m, n) for m in layers[:-1] for n in range(m.weight.shape[0])]
    for layer, neuron in neurons[:: 1 + (len(neurons) - 1) // _MOST_REMOVALS]:
        parameters = list(layer.parameters(recurse=False))
        kept = [parameter[neuron].clone() for parameter in parameters]
        for parameter in parameters:
            parameter[neuron] = 0
        rises.append(evaluate(probed, split, objective).loss - loss)
        for parameter, values in zip(parameters, kept, strict=True):
            parameter[neuron] = values
    return {"loss": loss, "n_examples": len(split), "rises": rises}


_SHARE_BOUND = 0.95
_GAP_BOUND = 0.1
"""How much larger the train loss may be than that from scratch, as a part of it."""
_LEARNT = tuple(table_1.LEARNT)
_CONTROL = table_1.BASELINE


def _learn_rows(scale: Scale, done: Sequence[FinishedRun]) -> list[Run]:
    runs, wanted = table_1.learn_table_1(scale, done), (_CONTROL, *scale.pick(_LEARNT))
    return [run for run in runs if run.row in wanted]


def _measure(scale: Scale, done: FinishedRun) -> dict[str, Any]:
    """Return how the train loss changes without each single neuron."""
    if done.row.row not in (*_LEARNT, _CONTROL):
        return {}
    return measure_removals(done.load_model(), baseline(scale, done.row.seed), scale.probes)


def _derive(rows: Sequence[Row]) -> dict[str, Any]:
    groups = statistics.group(rows)
    measured = [row for row in (*_LEARNT, _CONTROL) if row in groups]
    return {
        "removal": {row: _sum_up_removals(groups[row]) for row in measured},
        "gaps": {
            row: _measure_gaps(groups[row], groups[row + table_1.NN])
            for row in measured
            if row + table_1.NN in groups
        },
    }


def _sum_up_removals(rows: Sequence[Row]) -> dict[str, Any]:
    rises = [rise for row in rows for rise in row.measured["rises"]]
    shares = [_share(row.measured["rises"]) for row in rows]
    return {
        "n": len(rises),
        "share": _share(rises),
        "by_seed": statistics.measure_spread(shares),
        "median_rise": sorted(rises)[len(rises) // 2],
        "rises": [float(f"{rise:.3g}") for rise in sorted(rises)],
    }


def _share(rises: Sequence[float]) -> float:
    return sum(rise > 0 for rise in rises) / len(rises)


def _measure_gaps(learnt: Sequence[Row], scratch: Sequence[Row]) -> dict[str, Any]:
    """Return the train loss of learnt networks less that of the same ones from scratch."""
    losses = {row.seed: row.train_loss for row in scratch}
    return {
        "learnt": statistics.measure_spread([row.train_loss for row in learnt]),
        "scratch": statistics.measure_spread([row.train_loss for row in scratch]),
        "gap": statistics.compare_by_seed(learnt, scratch, lambda row: row.train_loss),
        "relative": statistics.measure_spread(
            [row.train_loss / losses[row.seed] - 1 for row in learnt]
        ),
        "accuracy_gap": statistics.compare_by_seed(learnt, scratch),
    }


def _check(derived: Derived) -> list[bounds.Check]:
    removal = {row: numbers for row, numbers in derived["removal"].items() if row != _CONTROL}
    n = sum(of_row["n"] for of_row in removal.values())
    share = sum(of_row["n"] * of_row["share"] for of_row in removal.values()) / n
    control = derived["removal"][_CONTROL]["share"]
    return [
        bounds.Check(
            what=f"share of the {n:,} kept neurons whose removal raises the train loss",
            measured=f"{share:.1%}",
            bound=f"≥ {_SHARE_BOUND:.0%}",
            met=share >= _SHARE_BOUND,
        ),
        bounds.Check(
            what="control: the same share of the baseline's neurons, of which nothing was learnt",
            measured=f"{control:.1%}",
            bound=f"< {_SHARE_BOUND:.0%}",
            met=control < _SHARE_BOUND,
        ),
        *(
            bounds.at_most(
                f"{row}: train loss above that of the same network from scratch, as a part of it",
                gap["relative"],
                _GAP_BOUND,
                unit="",
            )
            for row, gap in derived["gaps"].items()
        ),
    ]


def _tabulate(derived: Derived) -> list[tables.Table]:
    removal, gaps = (
        [{"row": row, **numbers} for row, numbers in derived[name].items()]
        for name in ("removal", "gaps")
    )
    return [
        make_table(
            removal,
            [
                ("row", "{row}"),
                ("neurons removed", "{n:,}"),
                ("raise the loss", "{share:.1%}"),
                ("by seed", "{by_seed[least]:.1%}–{by_seed[most]:.1%}"),
                ("median rise", "{median_rise:.2g}"),
            ],
            "No neuron is redundant: the train loss without each single one.",
        ),
        make_table(
            gaps,
            [
                ("row", "{row}"),
                ("train loss, learnt", spread_in("learnt", 4)),
                ("from scratch", spread_in("scratch", 4)),
                ("gap", spread_in("gap", 4)),
                ("gap in accuracy, points", spread_in("accuracy_gap", 3)),
            ],
            "Weights are as good as those of training the architecture afresh.",
        ),
    ]


_STAGES = (table_1.try_cost_powers, _learn_rows, table_1.train_from_scratch)
EXPERIMENT = Experiment(_STAGES, _derive, _check, _tabulate, measure=_measure)
