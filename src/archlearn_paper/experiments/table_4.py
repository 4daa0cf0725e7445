"""Table 4: CaffeNet, pretrained, then learnt smaller; other methods beside it.

The reference is trained first, until it gains no more. Every method then starts from that same
reference and has the same number of epochs, rates and data. What learns has a budget of parameters;
other methods are brought to the paper's sizes, and to those that ours has, in one seed.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.errors import SettingsError
from archlearn.gating.parameters import width_gates
from archlearn.nn.functional import is_open
from archlearn.serialization import load
from archlearn.training.settings import (
    GateSettings,
    HardwareSettings,
    OptimiserSettings,
    RunSettings,
)
from archlearn_paper.baselines.budget import trim
from archlearn_paper.baselines.fastfood import replace_by_fastfood
from archlearn_paper.baselines.neuron_pruning import reduce_by_merging
from archlearn_paper.baselines.svd import factorise, quarter_ranks, reduce_by_svd
from archlearn_paper.baselines.torch_pruning_methods import reduce_by_torch_pruning
from archlearn_paper.evaluation import best_device, list_losses, time_side_by_side
from archlearn_paper.experiment import Experiment, FinishedRun, Row, Run, RunTask, Scale, summarise
from archlearn_paper.experiment_registry import TITLES
from archlearn_paper.experiments.table_1 import compare_by_seed, describe_size
from archlearn_paper.experiments.table_4_pages import (
    ALL,
    FURTHER,
    PAPER,
    REFERENCE,
    check,
    tabulate,
)

LEARNING_RATE, FURTHER_RATE = 0.02, 0.01
"""Of the reference, at batches of 256, and of what starts from it."""
WEIGHT_DECAY = 5e-4
START_AFTER, FREEZE_FOR = 0.05, 0.5
"""Half of the epochs are the compact network's, which has lost neurons to make up for."""
PRUNED, FACTORISED, FASTFOOD = "neuron pruning", "SVD-quarter-F", "Adaptive Fastfood 16"
PRUNED_SHARE = 0.65
"""Parameters that neuron pruning leaves, as in the paper: 39.6 of 60.9 million."""
FASTFOOD_SHARE = 4
"""Features of Adaptive Fastfood 16 for each neuron of layer 6: 16,384 for 4,096."""
_DROPPED = (("drop6", "fc6", "conv5"), ("drop7", "fc7", "fc6"))
"""A dropout, the layer it stands behind, and the layer in front of that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseStudy:
    """How large the case study is made.

    Attributes:
        further: Epochs of every method, from the trained reference on.
        classes: The first so many; None takes all.
        shares: Other shares for rows that a small network cannot reach, by row.
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


FULL_STUDY = CaseStudy(
    model="caffenet", side=227, epochs=40, further=8, batch_size=256, validation=0.05
)
QUICK_STUDY = CaseStudy(
    model="caffenet:0.125",
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
class LearntRow:
    """What a row learns of the architecture.

    Attributes:
        leave: Layers that are left alone.
        share: Parameters of the reference that it may keep, in per cent.
        relaxes: Whether dropout becomes less with the connections, once gates stand still.
    """

    leave: tuple[str, ...]
    share: int
    relaxes: bool = False


LEARNT_ROWS = {
    "AL-fc": LearntRow(leave=("conv*",), share=32),
    "AL-conv": LearntRow(leave=("fc*",), share=78),
    "AL-conv-fc": LearntRow(leave=("conv[1234]",), share=32),
    ALL: LearntRow(leave=(), share=20, relaxes=True),
}
"""The paper's sizes; that of all layers is what is asked for here."""
RIVAL_SHARES = (32, 20)
RIVALS = {
    "torch-pruning": reduce_by_torch_pruning,
    "svd": reduce_by_svd,
    "neuron pruning": reduce_by_merging,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RelaxDropout:
    """Lowers dropout by the connections that gates leave, as `Run.after_epoch`.

    As in Han et al. (2015), "Learning both weights and connections for efficient neural networks":
    the rate behind a layer is the original one times the square root of the share of its
    connections that is left.

    Attributes:
        epoch: After which it is done; gates must stand still from there on.
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


def choose_plan(scale: Scale) -> CaseStudy:
    """Return the plan for a scale.

    Raises:
        SettingsError: If the data are not colour images of many classes.
    """
    if scale.data.partition(":")[0] not in ("tiny-imagenet", "imagenet", "folder"):
        raise SettingsError(
            f"table-4 was asked for on {scale.data!r}; give images: --data tiny-imagenet:DIR, "
            "imagenet:DIR or folder:DIR"
        )
    return QUICK_STUDY if scale.name == "quick" else FULL_STUDY


def train_references(scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
    """Return the reference of each seed."""
    del done
    epochs = choose_plan(scale).epochs
    return [
        Run(row=REFERENCE, settings=_settings(scale, seed, epochs, LEARNING_RATE))
        for seed in scale.seeds
    ]


def compress(scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
    """Return every method from the same reference, each for the same number of epochs.

    What must be shown comes first, lest the time run out.
    """
    works: list[RunTask] = []
    for finished in done:
        network, seed = finished.load_model(), finished.row.seed
        works.append(Run(row=FURTHER, settings=_further(scale, seed), network=network))
        works += [_learn(scale, seed, network, row) for row in LEARNT_ROWS]
    network, seed = done[0].load_model(), done[0].row.seed
    works += [
        Run(row=row, settings=_further(scale, seed), network=smaller)
        for row, smaller in _made_smaller(scale, network, seed).items()
    ]
    return works


def _learn(scale: Scale, seed: int, network: nn.Module, row: str) -> Run:
    line, plan = LEARNT_ROWS[row], choose_plan(scale)
    gates = GateSettings(
        learn="width",
        leave=line.leave,
        budget=(f"parameters={plan.shares.get(row, line.share)}%",),
        start_after=START_AFTER,
        freeze_for=FREEZE_FOR,
    )
    relax = RelaxDropout(epoch=math.ceil((1 - FREEZE_FOR) * plan.further))
    return Run(
        row=row,
        settings=_settings(scale, seed, plan.further, FURTHER_RATE, gates),
        network=network,
        after_epoch=relax if line.relaxes else None,
        finish_compact=True,
    )


def _made_smaller(scale: Scale, network: nn.Module, seed: int) -> dict[str, nn.Module]:
    """Return the other methods' networks before they are trained further."""
    n_parameters = sum(parameter.numel() for parameter in network.parameters())
    example, sixth = _example(scale), network.get_submodule("fc6")
    assert isinstance(sixth, nn.Linear)
    n_features = FASTFOOD_SHARE * sixth.out_features
    made = {
        FACTORISED: _factorise(network),
        PRUNED: reduce_by_merging(network, example, round(PRUNED_SHARE * n_parameters)),
        FASTFOOD: replace_by_fastfood(network, ["fc6", "fc7", "fc8"], n_features),
    }
    losses = partial(list_losses, _further(scale, seed))
    for share in RIVAL_SHARES:
        budget = round(share * n_parameters / 100)
        made[f"taylor, {share} %"] = trim(network, example, budget, losses)
        for name, reduce in RIVALS.items():
            made[f"{name}, {share} %"] = reduce(network, example, budget)
    return made


def _factorise(network: nn.Module) -> nn.Module:
    """Return the network at a quarter of its ranks, found on a GPU if there is one."""
    moved = copy.deepcopy(network).to(best_device())
    return factorise(moved, quarter_ranks(moved)).cpu()


def _example(scale: Scale) -> Tensor:
    side = choose_plan(scale).side
    return torch.zeros(2, 3, side, side)


def _further(scale: Scale, seed: int) -> RunSettings:
    return _settings(scale, seed, choose_plan(scale).further, FURTHER_RATE)


def _settings(
    scale: Scale, seed: int, epochs: int, rate: float, gates: GateSettings | None = None
) -> RunSettings:
    plan = choose_plan(scale)
    on_gpu = torch.cuda.is_available()
    return RunSettings(
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
        optimiser=OptimiserSettings(
            learning_rate=rate, weight_decay=WEIGHT_DECAY, warmup_epochs=min(1.0, epochs / 10)
        ),
        gates=gates or GateSettings(learn="nothing"),
        hardware=HardwareSettings(precision="bf16-mixed" if on_gpu else "32-true"),
    )


def measure_times(scale: Scale, done: FinishedRun) -> dict[str, Any]:
    """Return how long a forward pass takes, beside the reference of the same seed."""
    reference = done.path.with_name(f"{REFERENCE}.seed{done.row.seed}.safetensors")
    times = time_side_by_side(load(reference), done.load_model(), _example(scale))
    return {"forward": times}


def derive(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what the tables state, one line a method, and how far each is from the reference."""
    chosen: dict[str, list[Row]] = {}
    for seed in dict.fromkeys(row.seed for row in rows):
        for name, row in choose_all([row for row in rows if row.seed == seed]).items():
            chosen.setdefault(name, []).append(row)
    lost = {
        name: compare_by_seed(chosen[FURTHER], members)
        for name, members in chosen.items()
        if FURTHER in chosen and name in (*LEARNT_ROWS, REFERENCE)
    }
    summaries = {
        name: summarise(members)
        | {"measured": [row.measured for row in members], "size": describe_size(members[0])}
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
    return {"rows": summaries, "tried": tried, "lost": lost}


def choose_all(rows: Sequence[Row]) -> Mapping[str, Row]:
    """Return the row of every method, of one seed.

    Earlier runs tried several prices: of those as small as was asked then, which of all layers was
    nothing, the most accurate on the validation part counts, and where none is, the smallest.
    """
    methods: dict[str, list[Row]] = {}
    for row in rows:
        methods.setdefault(method_of(row), []).append(row)
    whole = methods[REFERENCE][0].parameters
    chosen: dict[str, Row] = {}
    for name, tried in methods.items():
        gone = PAPER[name].least if name in PAPER and name != ALL else None
        fitting = [row for row in tried if row.parameters <= (100 - (gone or 0.0)) * whole / 100]
        best = max(fitting, key=lambda row: row.validation_accuracy or 0.0, default=None)
        chosen[name] = best or min(tried, key=lambda row: row.parameters)
    return chosen


def method_of(row: Row) -> str:
    """Return the method of a row, without the price that earlier runs name."""
    return row.row.partition(" at ")[0]


EXPERIMENT = Experiment(
    name="table-4",
    title=TITLES["table-4"],
    stages=(train_references, compress),
    derive=derive,
    check=check,
    tabulate=tabulate,
    measure=measure_times,
    n_seeds=3,
)
