"""Table 4: CaffeNet, pretrained, then learnt smaller; other methods beside it.

The reference is trained first, until it gains no more. Every method then starts from that same
reference and has the same number of epochs, rates and data. What learns has a budget of parameters;
other methods are brought to the paper's sizes, and to those that ours has, in seed 0 alone.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.errors import SettingsError
from archlearn.gating.parameters import width_gates
from archlearn.nn.functional import is_open
from archlearn.serialization import load
from archlearn_cli.training import settings
from archlearn_paper import bounds, recipes, statistics, tables
from archlearn_paper.baselines.fastfood import replace_by_fastfood
from archlearn_paper.baselines.neuron_pruning import reduce_by_merging
from archlearn_paper.baselines.parameter_budget import prune_by_taylor
from archlearn_paper.baselines.svd import factorise, quarter_ranks, reduce_by_svd
from archlearn_paper.baselines.torch_pruning_methods import reduce_by_torch_pruning
from archlearn_paper.evaluation import best_device, list_losses, time_side_by_side
from archlearn_paper.experiment import Derived, Experiment, FinishedRun, Origin, Row, Run, Scale
from archlearn_paper.experiments.table_1 import describe_size

_REFERENCE, _FURTHER, _ALL = "reference", "reference, trained further", "AL-all"
_PRUNED, _FACTORISED, _FASTFOOD = "neuron pruning", "SVD-quarter-F", "Adaptive Fastfood 16"
_MOST_LOST = 1.0
_MOST_GAINED = 0.5
"""Points that the reference may gain by as many epochs more as the methods have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table4Row:
    """A row of the paper, and what ours of that name learns.

    Attributes:
        parameters: The paper's, in millions.
        compression: Per cent of parameters that are gone.
        share: Parameters of the reference that ours may keep, in per cent; None for other methods.
        leave: Layers that ours leaves alone.
        relaxes: Whether dropout becomes less with the connections, once gates stand still.
    """

    layers: str = ""
    parameters: float | None = None
    accuracy: float | None = None
    compression: float | None = None
    architecture: str = ""
    share: int | None = None
    leave: Sequence[str] = ()
    relaxes: bool = False


_PAPER = {row: Table4Row(**numbers) for row, numbers in recipes.read_paper("table-4").items()}
SHARES = {name: line.share for name, line in _PAPER.items() if line.share is not None}
"""Of the rows that learn."""
_RIVAL_SEED = 0
RIVALS = {
    "torch-pruning": reduce_by_torch_pruning,
    "svd": reduce_by_svd,
    "neuron pruning": reduce_by_merging,
}

_LEARNING_RATE, _FURTHER_RATE = 0.02, 0.01
"""Of the reference, at batches of 256, and of what starts from it."""
_WEIGHT_DECAY = 5e-4
_START_AFTER, _FREEZE_FOR = 0.05, 0.5
"""Half of the epochs are the compact network's, which has lost neurons to make up for."""
_PRUNED_SHARE = 0.65
"""Parameters that neuron pruning leaves, as in the paper: 39.6 of 60.9 million."""
_FASTFOOD_SHARE = 4
"""Features of Adaptive Fastfood 16 for each neuron of layer 6: 16,384 for 4,096."""
_DROPPED = (("drop6", "fc6", "conv5"), ("drop7", "fc7", "fc6"))
"""A dropout, the layer it stands behind, and the layer in front of that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseStudy:
    """How large the case study is made; `further` are epochs from the trained reference on.

    Rows that a small network cannot reach have other shares.
    """

    model: str
    side: int
    epochs: int
    further: int
    batch_size: int
    validation: float
    limit: int | None = None
    classes: int | None = None
    shares: Mapping[str, int] = field(default_factory=dict[str, int])
    multiple_of: int = 1


_FULL_STUDY = CaseStudy(
    model="archlearn_paper.caffenet:build",
    side=227,
    epochs=40,
    further=8,
    batch_size=256,
    validation=0.05,
    multiple_of=16,
)
"""Widths are multiples of eight in each of two groups: on a CPU the second convolution takes 1.9
times as long with 116 filters in each as with 128, and as long with 120."""
QUICK_STUDY = CaseStudy(
    model="archlearn_paper.caffenet:build_eighth",
    side=67,
    epochs=4,
    further=2,
    batch_size=50,
    validation=0.1,
    limit=1000,
    classes=10,
    shares={"AL-conv": 95},
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RelaxDropout:
    """Lowers dropout by the connections that gates leave, as `Run.after_epoch`.

    As in Han et al. (2015), "Learning both weights and connections for efficient neural networks":
    the rate behind a layer is the original one times the square root of the share of its
    connections that is left. Gates must stand still from the epoch on after which it is done.
    """

    epoch: int

    def __call__(self, model: nn.Module, n_done: int) -> None:
        """Change the rates, if it is time."""
        if n_done != self.epoch:
            return
        gates = width_gates(model)
        shares = {name: is_open(gate).float().mean().item() for name, gate in gates.items()}
        for name, layer, before in _DROPPED:
            dropout = model.get_submodule(name)
            assert isinstance(dropout, nn.Dropout)
            dropout.p *= math.sqrt(shares.get(layer, 1.0) * shares.get(before, 1.0))


def _choose_plan(scale: Scale) -> CaseStudy:
    """Return the plan for a scale; the data must be colour images of many classes."""
    if scale.data.partition(":")[0] not in ("tiny-imagenet", "folder"):
        raise SettingsError(
            f"table-4 was asked for on {scale.data!r}; give images: --data tiny-imagenet:DIR "
            "or folder:DIR"
        )
    return QUICK_STUDY if scale.name == "quick" else _FULL_STUDY


def train_references(scale: Scale, _: Sequence[FinishedRun]) -> list[Run]:
    """Return the reference of each seed."""
    epochs = _choose_plan(scale).epochs
    # Long enough on a GPU for compiled steps to be worth the minute that they take.
    hardware = replace(_choose_hardware(), compile=torch.cuda.is_available())
    asked = [_settings(scale, seed, epochs, _LEARNING_RATE) for seed in scale.seeds]
    return [Run(row=_REFERENCE, settings=replace(run, hardware=hardware)) for run in asked]


def _compress(scale: Scale, done: Sequence[FinishedRun]) -> list[Run]:
    """Return every method from the same reference, each for the same number of epochs.

    What must be shown comes first, lest the time run out.
    """
    works: list[Run] = []
    for finished in done:
        seed = finished.row.seed
        same = Origin(make=copy.deepcopy, parent=finished)
        works.append(Run(row=_FURTHER, settings=_further(scale, seed), origin=same))
        works += [_learn(scale, seed, same, row) for row in SHARES]
    for finished in done:
        if (seed := finished.row.seed) == _RIVAL_SEED:
            works += [
                Run(row=row, settings=_further(scale, seed), origin=origin)
                for row, origin in _list_rivals(scale, finished).items()
            ]
    return works


def _learn(scale: Scale, seed: int, reference: Origin, row: str) -> Run:
    line, plan = _PAPER[row], _choose_plan(scale)
    gates = settings.GateSettings(
        learn="width",
        leave=tuple(line.leave),
        budget=(f"parameters={plan.shares.get(row, SHARES[row])}%",),
        start_after=_START_AFTER,
        freeze_for=_FREEZE_FOR,
        multiple_of=plan.multiple_of,
    )
    relax = RelaxDropout(epoch=math.ceil((1 - _FREEZE_FOR) * plan.further))
    return Run(
        row=row,
        settings=_settings(scale, seed, plan.further, _FURTHER_RATE, gates),
        origin=reference,
        after_epoch=relax if line.relaxes else None,
        finish_compact=True,
    )


def _list_rivals(scale: Scale, reference: FinishedRun) -> dict[str, Origin]:
    """Return the other methods' networks before they are trained further, by their row."""
    row, shared = reference.row, {"example": _example(scale)}
    n_features = _FASTFOOD_SHARE * row.widths["fc6"]
    rivals: dict[str, Callable[..., nn.Module]] = {
        _FACTORISED: _factorise_to_a_quarter,
        _PRUNED: partial(reduce_by_merging, **shared, budget=round(_PRUNED_SHARE * row.parameters)),
        _FASTFOOD: partial(
            replace_by_fastfood, layers=["fc6", "fc7", "fc8"], n_features=n_features
        ),
    }
    taylor = partial(prune_by_taylor, losses=partial(list_losses, _further(scale, row.seed)))
    for share in sorted(set(SHARES.values())):
        budget = round(share * row.parameters / 100)
        for name, reduce in {"taylor": taylor, **RIVALS}.items():
            rivals[f"{name}, {share} %"] = partial(reduce, **shared, budget=budget)
    return {
        name: Origin(make=make, parent=reference, in_worker=True) for name, make in rivals.items()
    }


def _factorise_to_a_quarter(network: nn.Module) -> nn.Module:
    moved = network.to(best_device())  # an SVD takes a GPU a moment
    return factorise(moved, quarter_ranks(moved)).cpu()


def _example(scale: Scale) -> Tensor:
    side = _choose_plan(scale).side
    return torch.zeros(2, 3, side, side)


def _further(scale: Scale, seed: int) -> settings.RunSettings:
    return _settings(scale, seed, _choose_plan(scale).further, _FURTHER_RATE)


def _settings(
    scale: Scale, seed: int, epochs: int, rate: float, gates: settings.GateSettings | None = None
) -> settings.RunSettings:
    plan = _choose_plan(scale)
    return settings.RunSettings(
        model=plan.model,
        data=scale.data,
        seed=seed,
        epochs=epochs,
        batch_size=plan.batch_size,
        validation=plan.validation,
        limit=plan.limit,
        classes=plan.classes,
        resize=plan.side,
        augment="crop-flip",
        optimizer=settings.OptimizerSettings(
            learning_rate=rate, weight_decay=_WEIGHT_DECAY, warmup_epochs=min(1.0, epochs / 10)
        ),
        gates=gates or settings.GateSettings(learn="nothing"),
        hardware=_choose_hardware(),
    )


def _choose_hardware() -> settings.HardwareSettings:
    return settings.HardwareSettings(
        precision="bf16-mixed" if torch.cuda.is_available() else "32-true"
    )


def _measure_times(scale: Scale, done: FinishedRun) -> dict[str, Any]:
    """Return how long a forward pass takes beside the reference's, in the seed that rivals have."""
    if done.row.seed != _RIVAL_SEED:
        return {}
    model = done.load_model()
    reference = load(done.path.with_name(f"{_REFERENCE}.seed{done.row.seed}.safetensors"))
    return {"forward": time_side_by_side(reference, model, _example(scale))}


def _derive(rows: Sequence[Row]) -> dict[str, Any]:
    methods = statistics.group(rows)
    lost = {
        name: statistics.compare_by_seed(methods[_FURTHER], members)
        for name, members in methods.items()
        if _FURTHER in methods and name in (*SHARES, _REFERENCE)
    }
    summaries = {
        name: statistics.summarise_rows(members)
        | {"measured": [row.measured for row in members], "size": describe_size(members[0])}
        for name, members in methods.items()
    }
    runs = [
        {
            "row": row.row,
            "seed": row.seed,
            "architecture": row.architecture,
            "parameters": row.parameters,
            "validation": 100 * (row.validation_accuracy or 0.0),
            "accuracy": row.accuracy,
        }
        for row in rows
    ]
    return {"rows": summaries, "runs": runs, "lost": lost}


def _check(derived: Derived) -> list[bounds.Check]:
    checks: list[bounds.Check] = []
    if _REFERENCE in derived["lost"]:
        what = "the reference gains no more: points it gains by as many epochs as the methods have"
        gained = derived["lost"][_REFERENCE]
        checks.append(bounds.at_most(what, gained, _MOST_GAINED, unit=" points", digits=2))
    for row, share in SHARES.items():
        if row in derived["rows"]:
            gone = 100 * (1 - _part_left(derived["rows"], row, "parameters"))
            checks.append(
                bounds.Check(
                    what=f"{row}: fewer parameters",
                    measured=f"{gone:.1f} %",
                    bound=f"≥ {100 - share} %",
                    met=gone >= 100 - share,
                )
            )
        if row in derived["lost"]:
            what = f"{row}: points below the reference trained as long"
            checks.append(
                bounds.at_most(what, derived["lost"][row], _MOST_LOST, unit=" points", digits=2)
            )
    return checks


def _tabulate(derived: Derived) -> list[tables.Table]:
    summaries = derived["rows"]
    names = [*(r for r in _PAPER if r in summaries), *(r for r in summaries if r not in _PAPER)]
    rows: list[dict[str, Any]] = [
        {
            "row": name,
            "paper": _PAPER.get(name, Table4Row()),
            "compressed": 100 * (1 - _part_left(summaries, name, "parameters")),
            "ratio": _part_left(summaries, name, "multiply_adds"),
            **summaries[name],
        }
        for name in names
    ]
    times = [
        row | {"device": device, "speed": speed}
        for row in rows
        for measured in row.get("measured", ())
        for device, speed in measured.get("forward", {}).items()
    ]
    return [
        tables.make_table(rows, _TABLE_4, "Compression of CaffeNet (table 4)"),
        tables.make_table(
            [row for row in rows if row["paper"].layers],
            _TABLE_5,
            "Architectures learnt (table 5)",
        ),
        tables.make_table(times, _TIMES, "A forward pass, timed side by side with the reference"),
        tables.make_table(derived["runs"], _RUNS, "All runs"),
    ]


_TABLE_4: list[tables.Column] = [
    ("method", "{row}"),
    ("paper: parameters, M", lambda row: tables.write_number(row["paper"].parameters, 1)),
    ("accuracy %", lambda row: tables.write_number(row["paper"].accuracy)),
    ("compression %", lambda row: tables.write_number(row["paper"].compression, 0)),
    ("ours: parameters", tables.counts_in("parameters")),
    ("accuracy %", tables.spread_in("accuracy", error=True)),
    ("compression %", "{compressed:.1f}"),
    ("multiply-adds %", lambda row: f"{100 * row['ratio']:.1f}"),
]
_TABLE_5: list[tables.Column] = [
    ("method", "{row}"),
    ("layers learnt", "{paper.layers}"),
    ("size by", "{size}"),
    ("paper: architecture", lambda row: row["paper"].architecture or tables.NOTHING),
    ("ours: architecture", lambda row: ", ".join(dict.fromkeys(row["architectures"]))),
]
_TIMES: list[tables.Column] = [
    ("method", "{row}"),
    ("device", "{device}, batch {speed[batch]}"),
    ("reference, ms", "{speed[reference_ms]:.2f}"),
    ("method, ms", "{speed[own_ms]:.2f}"),
    ("ratio of times", "{speed[ratio]:.2f}"),
    ("ratio of multiply-adds", "{ratio:.2f}"),
]
_RUNS: list[tables.Column] = [
    ("run", "{row}"),
    ("seed", "{seed}"),
    ("architecture", "{architecture}"),
    ("parameters", "{parameters:,}"),
    ("validation %", "{validation:.2f}"),
    ("test %", "{accuracy:.2f}"),
]


def _part_left(summaries: Mapping[str, Any], row: str, cost: str) -> float:
    left, whole = (summaries[name][cost]["mean"] for name in (row, _REFERENCE))
    return left / whole


_STAGES = (train_references, _compress)
EXPERIMENT = Experiment(
    _STAGES, _derive, _check, _tabulate, measure=_measure_times, n_seeds=3, version=2
)
