"""What a run measures in each epoch and writes to `metrics.jsonl`: scores, costs and gates."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.costs import Costs
from archlearn.gating.cost_counter import count_costs
from archlearn.gating.gate_container import find_container
from archlearn.gating.parameters import branch_gates, depth_gates, width_gates
from archlearn.module_utils import evaluating, without_cudnn_benchmark
from archlearn.nn.functional import is_open
from archlearn.surgery.architecture import read_architecture
from archlearn.surgery.planning import plan
from archlearn_cli.data.dataset import Split
from archlearn_cli.data.file_cache import GATES, METRICS
from archlearn_cli.training.callbacks import Callback, EpochEnd
from archlearn_cli.training.checkpoint import Position
from archlearn_cli.training.objectives import Objective, in_format_of
from archlearn_cli.training.run_directory import append_line
from archlearn_cli.training.run_setup import Session

_BATCH = {"cpu": 1000, "cuda": 5000}
_MOST_NUMBERS = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Of a batch of inputs; what a network makes of them is some ten times more."""
_NUMBERS_OF_A_TOKEN = 256
"""A token becomes a vector of about this size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How well a network does.

    Attributes:
        accuracy: Share of right classes; None for a regression.
        error: Mean squared error in the targets' own units; None for classes.
    """

    loss: float
    accuracy: float | None
    error: float | None
    n_examples: int


def count_memory(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """Return the bytes that training takes: weights, gradients and what optimisers keep.

    On a GPU all that was allocated at once, at most, since the run began or was last cut.
    """
    parameters = [*model.parameters()]
    if parameters[0].is_cuda:
        return torch.cuda.max_memory_allocated(parameters[0].device)
    states = (state for optimizer in optimizers for state in optimizer.state.values())
    kept = [value for state in states for value in state.values() if isinstance(value, Tensor)]
    gradients = [parameter for parameter in parameters if parameter.requires_grad]
    return sum(tensor.nbytes for tensor in [*parameters, *gradients, *model.buffers(), *kept])


@torch.no_grad()
@without_cudnn_benchmark()
def sum_scores(network: nn.Module, split: Split, objective: Objective) -> Tensor:
    """Return loss sum, score sum and number of examples, in evaluation mode.

    The mode of every submodule is afterwards what it was.
    """
    device = objective.mean.device
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    shape = objective.framing.shape(tuple(split.inputs.shape[1:]))
    numbers = math.prod(shape) * (_NUMBERS_OF_A_TOKEN if objective.task == "next_token" else 1)
    kind = device.type if device.type in _BATCH else "cpu"
    n_at_once = max(1, min(_BATCH[kind], _MOST_NUMBERS[kind] // max(1, numbers)))
    parts = zip(split.inputs.split(n_at_once), split.targets.split(n_at_once), strict=True)
    with evaluating(network):
        for raw, targets in parts:
            raw, targets = raw.to(device), targets.to(device)
            outputs = network(in_format_of(network, objective.inputs(raw)))
            loss = objective.loss(outputs, targets).double() * len(targets)
            score = objective.score_sum(outputs, targets)
            sums += torch.stack([loss, score, torch.full_like(loss, len(targets))])
    return sums


def score_of(sums: Tensor, task: str) -> Score:
    """Return the score that sums over all examples amount to."""
    loss, score, count = sums.tolist()
    classification = task != "regression"
    return Score(
        loss=loss / count,
        accuracy=score / count if classification else None,
        error=None if classification else score / count,
        n_examples=int(count),
    )


def evaluate(network: nn.Module, split: Split, objective: Objective) -> Score:
    """Return the score of a network on a split, on the objective's device."""
    return score_of(sum_scores(network, split, objective), objective.task)


Gates = dict[str, Tensor]
_BRANCH = "branch "


def read_gates(model: nn.Module) -> tuple[Gates, Gates]:
    """Return copies of width gates, and of depth and branch gates, on the CPU.

    Gates that have been cut out are 0, so that an epoch can be set against those before it.
    """
    container = find_container(model)
    width = width_gates(model) if container is None else container.whole_width_gates()
    return _on_cpu(width), _on_cpu(_depth_gates(model))


def _on_cpu(gates: Mapping[str, Tensor]) -> Gates:
    flat = {name: gate.detach().reshape(-1) for name, gate in gates.items()}
    return {name: gate.to("cpu", torch.float, copy=True) for name, gate in flat.items()}


def _depth_gates(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return all gates about depth; those of branches are marked by a word in front."""
    branches = {f"{_BRANCH}{name}": gate for name, gate in branch_gates(model).items()}
    return depth_gates(model) | branches


class GateMonitor:
    """Measures gates on a copy of the model on the CPU, so that training is not disturbed."""

    def __init__(self, model: nn.Module, example: Tensor, pay: str) -> None:
        self._copy = copy.deepcopy(model).cpu()
        self._example = example
        self._pay = pay
        self._known: dict[bytes, tuple[Costs, dict[str, int]]] = {}

    def measure(self, width: Gates, depth: Gates) -> dict[str, object]:
        """Return what the gates of `read_gates` say of the architecture, as a line of metrics does.

        That is the channels kept by layer; whether each depth gate stands at linear, and each
        branch is closed; the mean distance of gates from binary, and the share of those within a
        tenth of 0 or 1; and what the network would cost, compacted now.
        """
        flat = torch.cat([*width.values(), *depth.values(), torch.empty(0)])
        # Costs and widths depend on the binary values alone, and are looked at only once.
        key = is_open(flat).numpy().tobytes()
        if key not in self._known:
            self._known[key] = self._count(width, depth)
        costs, widths = self._known[key]
        distance = torch.minimum(flat, 1 - flat)
        return {
            "widths": widths,
            "linear": {
                name: bool(is_open(gate).item()) != name.startswith(_BRANCH)
                for name, gate in depth.items()
            },
            "binarisation_gap": distance.mean().item() if len(flat) else 0.0,
            "binarised_share": (distance < 0.1).float().mean().item() if len(flat) else 1.0,
            **asdict(costs),
        }

    @torch.no_grad()
    def _count(self, width: Gates, depth: Gates) -> tuple[Costs, dict[str, int]]:
        """Return the costs and widths with these gates."""
        if not width and not depth:
            return costs_of(self._copy, self._example), {}
        container = find_container(self._copy)
        places = {} if container is None else container.original_places()
        for name, gate in width_gates(self._copy).items():
            gate.copy_(width[name][places[name]] if places else width[name])
        for name, gate in _depth_gates(self._copy).items():
            gate.copy_(depth[name].reshape(gate.shape))
        costs = plan(self._copy, self._example, pay=self._pay).after
        layers = read_architecture(self._copy).layers if width else ()
        widths = {layer.name: layer.width for layer in layers}
        return costs.for_one_example(len(self._example)), widths


def costs_of(network: nn.Module, example: Tensor) -> Costs:
    """Return the costs of a network as it stands, multiply-adds for one example."""
    costs = count_costs(network, in_format_of(network, example))
    return costs.for_one_example(len(example))


class RunLog:
    """Writes lines into the run's folder and tells the observers, in order, when told to."""

    def __init__(self, session: Session, observers: Sequence[Callback]) -> None:
        self._session = session
        self._observers = observers
        pay = session.settings.strengths.pay
        self._monitor = GateMonitor(session.work.model, session.example, pay)
        self._waiting: list[tuple[dict[str, Any], dict[str, Any], Gates, Gates, float]] = []

    def note(
        self,
        position: Position,
        score: Score | None,
        losses: tuple[float | None, float | None],
        seconds_left: float,
    ) -> None:
        """Take an epoch down: its score, and the means of loss and penalty of its steps.

        It is not written yet; what the gates say of the architecture is worked out then.
        """
        work, last = self._session.work, max(0, position.step - 1)
        classes = work.objective.task != "regression"
        measured = "validation_accuracy" if classes else "validation_error"
        first = {
            "epoch": position.epoch,
            "step": position.step,
            "validation_loss": None if score is None else score.loss,
            measured: None if score is None else score.accuracy if classes else score.error,
        }
        rest = {
            "learning_rate": work.schedule.weight_rate(last),
            "gate_rate": work.schedule.gate_rate_at(last),
            "train_loss": losses[0],
            "penalty": losses[1],
            **({} if work.gate_optimizer is None else work.gate_optimizer.describe()),
            "memory_bytes": count_memory(work.model, work.optimizers),
            "seconds": round(position.seconds, 3),
        }
        self._waiting.append((first, rest, *read_gates(work.model), seconds_left))

    def write(self) -> None:
        """Write all lines that wait."""
        while self._waiting:
            first, rest, width, depth, seconds_left = self._waiting.pop(0)
            row = {**first, **self._monitor.measure(width, depth), **rest}
            ends = {name: values[0] for name, values in rounded(depth).items()}
            gates = {"epoch": row["epoch"], "width": rounded(width), "depth": ends}
            append_line(self._session.folder / METRICS, row)
            append_line(self._session.folder / GATES, gates)
            for observer in self._observers:
                observer.epoch_ended(EpochEnd(row=row, seconds_left=seconds_left))


def rounded(gates: dict[str, Tensor]) -> dict[str, list[float]]:
    """Return gates as lists of numbers with four decimals."""
    return {name: [round(v, 4) for v in gate.reshape(-1).tolist()] for name, gate in gates.items()}
