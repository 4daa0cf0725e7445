"""Properties of learnt networks: no neuron is redundant, harder tasks need more."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from archlearn.training.metrics import evaluate
from archlearn.training.objectives import objective_of
from archlearn.training.settings import RunSettings
from archlearn_paper.evaluation import best_device, find_dataset
from archlearn_paper.experiment import (
    Check,
    Derived,
    Experiment,
    FinishedRun,
    ResultTable,
    Row,
    RunTask,
    Scale,
    group,
    measure_spread,
)
from archlearn_paper.experiment_registry import TITLES
from archlearn_paper.experiments import figure_3b, table_1
from archlearn_paper.experiments.table_1 import LINES
from archlearn_paper.parallel_runs import Run
from archlearn_paper.tables import write_spread

_PROBE_SEED = 7


@torch.no_grad()
def measure_removals(network: nn.Module, settings: RunSettings, n_examples: int) -> dict[str, Any]:
    """Return the train loss, and its rise without each single hidden neuron.

    Weights and bias of a neuron are set to zero: what an activation with `act(0) = 0` then gives
    is zero too. The loss is that on always the same part of the train examples.

    Args:
        network: A plain chain of layers; it is left alone.
        settings: Of the run that learnt it: they say which data.
        n_examples: How many train examples are used.
    """
    dataset, device = find_dataset(settings), best_device()
    generator = torch.Generator().manual_seed(_PROBE_SEED)
    order = torch.randperm(len(dataset.train), generator=generator)
    split = dataset.train.take(order[:n_examples].sort().values).to(device)
    objective = objective_of(dataset).to(device)
    probed = copy.deepcopy(network).to(device)
    loss = evaluate(probed, split, objective).loss
    rises: list[float] = []
    for layer in hidden_layers(probed):
        for neuron in range(layer.weight.shape[0]):
            kept = _remove_(layer, neuron)
            rises.append(evaluate(probed, split, objective).loss - loss)
            _restore_(layer, neuron, kept)
    return {"loss": loss, "n_examples": len(split), "rises": rises}


def hidden_layers(network: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    """Return all layers with weights but the last."""
    layers = [m for m in network.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    return layers[:-1]


def _remove_(layer: nn.Linear | nn.Conv2d, neuron: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Set what makes a neuron to zero, and return what it was."""
    bias = None if layer.bias is None else layer.bias[neuron].clone()
    kept = layer.weight[neuron].clone(), bias
    layer.weight[neuron] = 0
    if layer.bias is not None:
        layer.bias[neuron] = 0
    return kept


def _restore_(
    layer: nn.Linear | nn.Conv2d, neuron: int, kept: tuple[torch.Tensor, torch.Tensor | None]
) -> None:
    weight, bias = kept
    layer.weight[neuron] = weight
    if layer.bias is not None and bias is not None:
        layer.bias[neuron] = bias


SHARE_BOUND = 0.95


LEARNT = tuple(line.row for line in LINES if line.terms is not None)


def learn_rows(scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
    """Return the runs of table 1 that learn an architecture."""
    runs, wanted = table_1.learn_rows(scale, done), scale.pick(LEARNT)
    return [run for run in runs if run.row in wanted]


def measure(scale: Scale, done: FinishedRun) -> dict[str, Any]:
    """Return how the train loss changes without each single neuron of a learnt network."""
    if done.row.row not in LEARNT:
        return {}
    settings = next(
        work.settings
        for work in table_1.learn_rows(scale, ())
        if isinstance(work, Run)
        and work.row == done.row.row
        and work.settings.seed == done.row.seed
    )
    return measure_removals(done.load_model(), settings, scale.probes)


def derive(rows: Sequence[Row]) -> dict[str, Any]:
    """Return shares of useful neurons, loss gaps, and the class experiment."""
    groups = group(rows)
    found = [row for row in LEARNT if row in groups]
    return {
        "removal": {row: _sum_up_removals(groups[row]) for row in found},
        "gaps": {
            row: _measure_gaps(groups[row], groups[row + table_1.NN])
            for row in found
            if row + table_1.NN in groups
        },
        "classes": figure_3b.derive([row for row in rows if row.row.endswith(" classes")]),
    }


def _sum_up_removals(rows: Sequence[Row]) -> dict[str, Any]:
    rises = [rise for row in rows for rise in row.measured["rises"]]
    shares = [_share(row.measured["rises"]) for row in rows]
    return {
        "n": len(rises),
        "share": _share(rises),
        "by_seed": measure_spread(shares).to_json(),
        "median_rise": sorted(rises)[len(rises) // 2],
        "rises": [float(f"{rise:.3g}") for rise in sorted(rises)],
    }


def _share(rises: Sequence[float]) -> float:
    return sum(rise > 0 for rise in rises) / len(rises)


def _measure_gaps(learnt: Sequence[Row], scratch: Sequence[Row]) -> dict[str, Any]:
    """Return the train loss of learnt networks less that of the same ones from scratch."""
    losses = {row.seed: row.train_loss for row in scratch}
    accuracies = {row.seed: row.accuracy for row in scratch}
    return {
        "learnt": measure_spread([row.train_loss for row in learnt]).to_json(),
        "scratch": measure_spread([row.train_loss for row in scratch]).to_json(),
        "gap": measure_spread([row.train_loss - losses[row.seed] for row in learnt]).to_json(),
        "accuracy_gap": measure_spread(
            [row.accuracy - accuracies[row.seed] for row in learnt]
        ).to_json(),
    }


def check(derived: Derived) -> list[Check]:
    """Return what the properties must show."""
    removal = derived["removal"]
    n = sum(of_row["n"] for of_row in removal.values())
    share = sum(of_row["n"] * of_row["share"] for of_row in removal.values()) / n
    checks = [
        Check(
            what=f"share of the {n:,} kept neurons whose removal raises the train loss",
            measured=f"{share:.1%}",
            bound=f"≥ {SHARE_BOUND:.0%}",
            met=share >= SHARE_BOUND,
        )
    ]
    for row, gap in derived["gaps"].items():
        spread = gap["gap"]
        checks.append(
            Check(
                what=f"{row}: train loss less that of the same network from scratch",
                measured=write_spread(spread, 4),
                bound="≤ 0 within its deviation",
                met=spread["mean"] <= spread["deviation"],
            )
        )
    return [*checks, *figure_3b.check(derived["classes"])]


def tabulate(derived: Derived) -> list[ResultTable]:
    """Return removals and loss gaps by row; the class experiment is figure 3b's."""
    removals = tuple(
        (
            row,
            f"{numbers['n']:,}",
            f"{numbers['share']:.1%}",
            f"{numbers['by_seed']['least']:.1%}–{numbers['by_seed']['most']:.1%}",
            f"{numbers['median_rise']:.2g}",
        )
        for row, numbers in derived["removal"].items()
    )
    gaps = tuple(
        (
            row,
            write_spread(numbers["learnt"], 4),
            write_spread(numbers["scratch"], 4),
            write_spread(numbers["gap"], 4),
            write_spread(numbers["accuracy_gap"], 3),
        )
        for row, numbers in derived["gaps"].items()
    )
    return [
        ResultTable(
            title="No neuron is redundant: the train loss without each single one.",
            columns=("row", "neurons kept", "raise the loss", "by seed", "median rise"),
            rows=removals,
        ),
        ResultTable(
            title="Weights are as good as those of training the architecture afresh.",
            columns=("row", "train loss, learnt", "from scratch", "gap", "gap in accuracy, points"),
            rows=gaps,
        ),
        *figure_3b.tabulate(derived["classes"]),
    ]


EXPERIMENT = Experiment(
    name="properties",
    title=TITLES["properties"],
    stages=(learn_rows, table_1.train_from_scratch, figure_3b.learn_rows),
    derive=derive,
    check=check,
    tabulate=tabulate,
    measure=measure,
    borrows=("table-1", "figure-3b"),
)
