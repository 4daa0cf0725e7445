"""Everything that a run needs before its first step: data, model, optimisers."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from archlearn.costs import Costs, Price
from archlearn.errors import CheckpointError, InputError, SettingsError
from archlearn.gating.attach import add_gates
from archlearn.gating.cost_counter import count_costs
from archlearn.gating.gate_container import CONTAINER, find_container
from archlearn.gating.learn import Learn
from archlearn.gating.parameters import width_gates
from archlearn.gating.penalties import Strengths
from archlearn.optim.gate_optimizer import GateOptimizer
from archlearn.optim.gate_schedule import GateSchedule
from archlearn.optim.latency import LatencyTable
from archlearn_cli.data.dataset import Dataset, build_dataset
from archlearn_cli.data.dataset_registry import load_examples
from archlearn_cli.data.file_cache import DownloadProgress, no_progress, write_atomically
from archlearn_cli.data.transforms import ImageTransform
from archlearn_cli.training.checkpoint import (
    OPTIMIZER,
    Position,
    read_checkpoint,
    restore_tensors_,
    seed_everything,
)
from archlearn_cli.training.cuda_graph import (
    MOST_STEPS_IN_A_GRAPH,
    Stepper,
    can_capture,
    largest_divisor,
    make_stepper,
)
from archlearn_cli.training.defaults import (
    count_steps,
    derive_gate_optimizer,
    derive_sizes,
    derive_strengths,
    make_schedule,
    steps_per_epoch,
)
from archlearn_cli.training.hardware import start_fabric
from archlearn_cli.training.initial_model import (
    name_start,
    normalise,
    start_network,
    start_teacher,
)
from archlearn_cli.training.objectives import objective_of
from archlearn_cli.training.run_directory import LATENCY_FILE, read_run_settings
from archlearn_cli.training.settings import GateSettings, RunSettings, check_ranges
from archlearn_cli.training.train_step import (
    StepContext,
    has_gates,
    make_optimizers,
)

_LEARNT = {"width": Learn.WIDTH, "depth": Learn.DEPTH, "all": Learn.WIDTH | Learn.DEPTH}


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """All that a run needs while it goes on.

    Attributes:
        settings: Every setting filled in.
        example: Two normalised inputs, on the CPU.
        network: The plain network before gates and training, on the CPU.
        origin: What the run starts from, by name. The file may be gone when the run ends.
        work: The gated model, its optimisers and what it learns from.
    """

    folder: Path
    settings: RunSettings
    fabric: Fabric
    dataset: Dataset
    example: Tensor
    network: nn.Module
    origin: str
    work: StepContext
    stepper: Stepper

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of steps of an epoch."""
        return steps_per_epoch(len(self.dataset.train), self.work.batch_size)

    @property
    def n_epochs(self) -> int:
        """Return the number of epochs of the whole run."""
        return self.work.schedule.n_steps // self.steps_per_epoch


def prepare(settings: RunSettings, folder: Path, progress: DownloadProgress) -> Session:
    """Return a session at the beginning of its first epoch.

    Raises:
        SettingsError: If a setting lies outside its range or does not fit the data.
    """
    check_ranges(settings)
    fabric = start_fabric(settings.hardware)
    with fabric.rank_zero_first():
        dataset = load_dataset(settings, progress)
    return open_session(settings, folder, fabric, dataset)


def load_dataset(settings: RunSettings, progress: DownloadProgress) -> Dataset:
    """Return the data set that the settings ask for."""
    dataset = build_dataset(
        load_examples(settings.data, progress, skip_broken=settings.skip_broken),
        validation_share=settings.validation,
        limit=settings.limit,
        classes=settings.classes,
        framing=ImageTransform(settings.resize, settings.augment),
    )
    return normalise(settings, dataset)


def open_session(
    settings: RunSettings,
    folder: Path,
    fabric: Fabric,
    dataset: Dataset,
    network: nn.Module | None = None,
) -> Session:
    """Return a session on data at hand; a plain network to start from is not changed."""
    n_parts, n_train = fabric.world_size * settings.hardware.accumulate, len(dataset.train)
    settings = derive_sizes(settings, n_train, n_parts)
    batch = settings.batch_size
    if batch is None or not n_parts <= batch <= n_train:
        raise SettingsError(
            f"batch_size is {batch}; give --batch-size a whole number from {n_parts} (processes "
            f"times --accumulate) to {n_train} (train examples)"
        )
    seed_everything(settings.seed, 0)
    if network is None:
        network = start_network(settings, dataset)
    example = objective_of(dataset).inputs(dataset.train.inputs[:2].cpu())
    model = gate_network(network, example, settings)
    n_neurons = sum(gate.numel() for gate in width_gates(model).values())
    settings = derive_strengths(derive_gate_optimizer(settings), dataset, n_neurons)
    teacher = start_teacher(settings, dataset, network)
    path, latency = folder / LATENCY_FILE, None
    if path.is_file():  # measured when the run began
        latency = LatencyTable.from_json(path.read_bytes())
    work = _make_work(settings, dataset, (model, teacher), fabric, latency)
    measured = work.gate_optimizer.latency if work.gate_optimizer is not None else None
    if measured is not None and latency is None and fabric.is_global_zero:
        write_atomically(path, measured.to_json().encode())
    seed_everything(settings.seed, fabric.global_rank)
    work, stepper = make_stepper(work, fabric, settings)
    return Session(
        folder=folder,
        settings=settings,
        fabric=fabric,
        dataset=dataset,
        example=example,
        network=network,
        origin=name_start(settings),
        work=work,
        stepper=stepper,
    )


def gate_network(network: nn.Module, example: Tensor, settings: RunSettings) -> nn.Module:
    """Return a gated copy, or a plain one where nothing of the architecture is learnt."""
    gates = settings.gates
    if gates.learn == "nothing":
        if not any(parameter.requires_grad for parameter in network.parameters()):
            raise SettingsError(
                "--learn nothing was asked for, and no weight of the network is to be learnt "
                "either: all are frozen; set requires_grad of some, or learn the architecture"
            )
        return copy.deepcopy(network)
    learn = {"*": _LEARNT[gates.learn], **dict.fromkeys(gates.leave, Learn.NOTHING)}
    everything = gates.learn == "all" and not gates.leave
    try:
        model = add_gates(
            network,
            example,
            learn=None if everything else learn,
            width_start=gates.width_start,
            depth_start=gates.depth_start,
        )
    except InputError as error:
        if everything:
            raise
        raise SettingsError(f"{error} (learn= is what --learn and --leave say)") from error
    spread_gates_(model, gates.width_spread)
    return model


@torch.no_grad()
def spread_gates_(model: nn.Module, spread: float) -> None:
    """Raise every width gate by a random part of `spread`, at most to 1.

    In a network that is trained already, gates feel little of the loss while they are open. Those
    that all start at one place would then all close at once; so they close one after the other.
    """
    if spread:
        for gate in width_gates(model).values():
            gate.add_(spread * torch.rand_like(gate)).clamp_(max=1.0)


def _make_work(
    settings: RunSettings,
    dataset: Dataset,
    networks: tuple[nn.Module, nn.Module | None],
    fabric: Fabric,
    latency: LatencyTable | None,
) -> StepContext:
    assert settings.batch_size is not None
    model, teacher = networks
    for network in (model,) if teacher is None else (model, teacher):
        if len(dataset.input_shape) == 3:
            set_layout_(network, torch.channels_last)
        network.to(fabric.device)
    capture = can_capture(settings, model, dataset, fabric)
    gates = _make_gate_optimizer(settings, model, len(dataset.train), latency, captured=capture)
    strengths, asked = None, settings.strengths
    if has_gates(model) and gates is None:
        assert asked.width_cost is not None
        price, share = Price[asked.price.upper()], asked.depth_share
        strengths = Strengths.from_width_cost(
            asked.width_cost, asked.ratio, depth_share=share, price=price
        )
    rate, step = settings.gates.gate_rate, settings.gates.largest_step
    return StepContext(
        model=model,
        teacher=teacher,
        optimizers=make_optimizers(model, settings.optimizer, gates, on_device=capture),
        train=dataset.train,
        objective=objective_of(dataset).to(fabric.device),
        schedule=make_schedule(settings, len(dataset.train)),
        strengths=strengths,
        batch_size=settings.batch_size,
        accumulate=settings.hardware.accumulate,
        clip_norm=settings.optimizer.clip_norm or None,
        clip_gate=step / rate if rate and step else None,
    )


_LEAST_WORK_ON_GPU = 1e14
"""Multiply-adds of a whole run from which on cuts save more than they take on an H200: at a quarter
of that a GPT took 1.04 times as long as without, at 1.7 times that a ResNet-56 0.94 (results/
shrinking/shrinking_gpu.md). To compile anew takes longer than that saves."""
_USUAL_CUTS, _EAGER_CUTS, _STEPS_FOR_A_CAPTURE, _MOST_CAPTURES = GateSchedule().cuts, 20, 2_000, 3


def count_cuts(n_steps: int, *, captured: bool, compiled: bool) -> int:
    """Return how often channels are cut out at most while gates decide; once more at their end.

    A step that is captured must be captured anew: with the cut that takes as long as some 200 steps
    of VGG-16-BN or ResNet-56 on an H200, which are a tenth or two faster then. One that is neither
    captured nor compiled goes on, and on a CPU a cut takes as long as two steps of LeNet.
    """
    if captured:
        return min(_MOST_CAPTURES, n_steps // _STEPS_FOR_A_CAPTURE)
    return _USUAL_CUTS if compiled else _EAGER_CUTS


def shrinks_by_default(device: str, work: float, *, compiled: bool) -> bool:
    """Return whether channels are cut out while a run of so many multiply-adds goes on."""
    return device == "cpu" or (work >= _LEAST_WORK_ON_GPU and not compiled)


def _make_gate_optimizer(
    settings: RunSettings,
    model: nn.Module,
    n_train: int,
    latency: LatencyTable | None,
    *,
    captured: bool,
) -> GateOptimizer | None:
    """Return what learns the gates to a budget; None where a penalty does, or nothing."""
    gates = settings.gates
    if gates.gate_optimizer != "budget" or not has_gates(model):
        return None
    assert settings.batch_size is not None
    per_epoch = steps_per_epoch(n_train, settings.batch_size)
    n_steps = count_steps(settings, n_train)
    device = next(model.parameters()).device.type
    is_dear = settings.hardware.compile or device != "cpu"
    cuts = count_cuts(n_steps, captured=captured, compiled=is_dear)
    optimizer = GateOptimizer(
        model,
        n_steps,
        budget=read_pairs("budget", gates.budget) if gates.budget else None,
        width_cost=settings.strengths.width_cost,
        multiple_of=gates.multiple_of,
        schedule=read_schedule(gates, cuts=cuts),
        every=largest_divisor(per_epoch, MOST_STEPS_IN_A_GRAPH) if captured else 1,
        latency=latency,
    )
    work = n_steps * settings.batch_size * optimizer.costs()["multiply_adds"]
    by_default = shrinks_by_default(device, work, compiled=settings.hardware.compile)
    if not (by_default if settings.hardware.shrink is None else settings.hardware.shrink):
        optimizer.stop_shrinking()
    return optimizer


def read_schedule(gates: GateSettings, *, cuts: int = _USUAL_CUTS) -> GateSchedule:
    """Return when gates decide, from the settings; `cuts` unless they say how many."""
    begin, end = gates.start_after, 1.0 - gates.freeze_for
    options: dict[str, Any] = {"begin": begin, "end": end, "cuts": cuts}
    pairs = read_pairs("gate_schedule", gates.gate_schedule or (), "branch_discount=16")
    for name, value in pairs.items():
        kind = type(getattr(GateSchedule(cost_power=0.0, size_power=0.0), name, None))
        if kind is type(None):
            names = ", ".join(item.name for item in fields(GateSchedule))
            raise SettingsError(f"gate_schedule names {name!r}; there are {names}")
        try:
            options[name] = kind(value)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise SettingsError(f"gate_schedule has {name}={value}; give {what}") from None
    return GateSchedule(**options)


def read_pairs(
    name: str, words: Iterable[str], example: str = "multiply_adds=50%"
) -> dict[str, str]:
    """Return `name=value` words as a dictionary; each name may be given once."""
    pairs = [word.partition("=") for word in words]
    for key, sign, value in pairs:
        if not (key and sign and value):
            option, pair = name.replace("_", "-"), key + sign + value
            raise SettingsError(f"{name} is {pair!r}; write it as --{option} {example}")
    lists: dict[str, list[str]] = {}
    for key, _, value in pairs:
        lists.setdefault(key.strip().replace("-", "_"), []).append(value.strip())
    for key, values in lists.items():
        if len(values) > 1:
            raise SettingsError(
                f"{name} names {key!r} more than once ({', '.join(values)}); give it once"
            )
    return {key: values[0] for key, values in lists.items()}


def set_layout_(model: nn.Module, layout: torch.memory_format) -> None:
    """Lay the weights of a model out in memory anew; convolutions are the ones to gain."""
    model.to(memory_format=layout)  # pyright: ignore[reportCallIssue]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedRun:
    """A gated model with what it was trained on, and what gates earned under a budget.

    `original` is what the network cost on the example before anything was cut out of it.
    """

    model: nn.Module
    original: Costs
    example: Tensor
    dataset: Dataset
    position: Position
    earned: dict[str, Tensor]


def load_gated_model(folder: Path) -> LoadedRun:
    """Return the gated model of a run at its last checkpoint, on the CPU.

    Raises:
        SettingsError: If there is no run, or it learns nothing of the architecture.
        CheckpointError: If the run has no checkpoint yet.
    """
    settings = read_run_settings(folder)
    if settings.gates.learn == "nothing":
        raise SettingsError(f"the run {folder} learns no architecture (learn = 'nothing')")
    checkpoint = read_checkpoint(folder)
    if checkpoint is None:
        raise CheckpointError(f"the run {folder} has no checkpoint yet; let it run for a while")
    dataset = load_dataset(settings, no_progress)
    network = start_network(settings, dataset)
    example = objective_of(dataset).inputs(dataset.train.inputs[:2])
    model = gate_network(network, example, settings)
    restore_tensors_(checkpoint[1], model, ())
    keys = {name: f"{OPTIMIZER}{name}/mean" for name, _ in model.named_parameters()}
    means = {name: checkpoint[1][key] for name, key in keys.items() if key in checkpoint[1]}
    return LoadedRun(
        model=model,
        original=count_costs(network, example),
        example=example,
        dataset=dataset,
        position=checkpoint[0],
        earned=means,
    )


@torch.no_grad()
def cut_to_budget_(
    loaded: LoadedRun, budget: Mapping[str, float | str], multiple_of: int = 1
) -> None:
    """Close more gates of a loaded model, until it fits a budget; none is opened again.

    But where fewer are open than `multiple_of`, so many are.
    """
    gates = GateOptimizer(
        loaded.model, 1, budget=budget or {"parameters": "100%"}, multiple_of=multiple_of
    )
    if gates.fits() and multiple_of == 1:
        return
    container = find_container(loaded.model)
    assert container is not None
    acting = dict(zip(map(id, container.gates()), container(), strict=True))
    depths = set(map(id, container.depth.parameters()))
    for name, gate in loaded.model.named_parameters():
        if id(gate) in acting:
            earned = loaded.earned.get(name, gate).clone()
            in_heads = loaded.earned.get(name.replace(f"{CONTAINER}.width.", f"{CONTAINER}.probe."))
            if in_heads is not None and in_heads.shape != gate.shape:
                earned = in_heads.sum(0)
            if id(gate) not in depths:
                earned.masked_fill_(acting[id(gate)] == 0, -torch.inf)
            gates.state[gate]["mean"] = earned
    gates.finish()
