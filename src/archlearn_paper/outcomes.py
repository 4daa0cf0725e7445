"""Outcome of a run: scores, sizes, gate history, and the compact model."""

import copy
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.data.dataset import Dataset, Split
from archlearn.gating.parameters import depth_gates, width_gates
from archlearn.nn.functional import is_open
from archlearn.surgery.architecture import read_architecture
from archlearn.surgery.compaction import compact
from archlearn.surgery.planning import plan
from archlearn.training.config import to_table
from archlearn.training.metrics import Score, costs_of, evaluate
from archlearn.training.run_setup import Session, set_layout_
from archlearn.training.settings import RunSettings
from archlearn.training.train_step import has_gates

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_MOST_NUMBERS = 1 << 31
"""Of all train inputs as the network sees them; of more, evenly spaced ones are scored."""


class GateHistory:
    """Keeps the gates of every epoch where they are, so that nothing waits for them."""

    def __init__(self, gates: Sequence[Tensor], n_epochs: int) -> None:
        self._gates = gates
        n_gates = sum(gate.numel() for gate in gates)
        device = gates[0].device if gates else torch.device("cpu")
        self._rows = torch.zeros(n_epochs + 1, n_gates, device=device)
        self._last = 0

    @torch.no_grad()
    def note(self, epoch: int) -> None:
        """Keep the gates as they are after so many epochs."""
        self._last = epoch
        if self._gates:
            self._rows[epoch] = torch.cat([gate.detach().reshape(-1) for gate in self._gates])

    def rows(self) -> Tensor:
        """Return the gates of every epoch, the beginning first, on the CPU.

        A network that has become compact has the gates that it had then.
        """
        rows = self._rows.cpu()
        rows[self._last + 1 :] = rows[self._last]
        return rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a run came to.

    Attributes:
        settings: Every setting filled in.
        widths: Width of each layer of the compact model, by name.
        train_loss: Loss of the final model on the train part; of very many large images, on some.
        validation_accuracy: None where no validation part was set apart.
        seconds: Time of training, shared by the runs side by side.
        history: One entry an epoch: kept channels by group, linear sites, distance from binary.
        model: The compact model, plain, on the CPU.
    """

    row: str
    seed: int
    settings: RunSettings
    architecture: str
    widths: dict[str, int]
    n_layers: int
    parameters: int
    multiply_adds: int
    train_loss: float
    validation_loss: float | None
    validation_accuracy: float | None
    test_loss: float
    test_accuracy: float | None
    epochs: int
    seconds: float
    history: tuple[dict[str, Any], ...]
    model: nn.Module

    def to_json(self, *, history: bool = False) -> dict[str, Any]:
        """Return everything but the model, and the history only if asked for."""
        table = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del table["model"]
        table["settings"] = to_table(self.settings)
        if not history:
            del table["history"]
        return table


def summarise_run(
    row: str, sessions: tuple[Session, Session], recording: GateHistory, seconds: float
) -> Outcome:
    """Return the outcome of a run whose training has ended.

    The second session is the one that trained the compact network to the end; where there was
    no such part, it is the first one again.

    Losses and accuracies are those of the trained model on its device; the compact model computes
    the same, as its certificate says.
    """
    session, last = sessions
    trained = last.work.model
    device = session.objective.mean.device
    parts = _some(session.dataset), session.dataset.validation, session.dataset.test
    scores = [
        evaluate(trained, part.to(device), session.objective) if len(part) else None
        for part in parts
    ]
    train, validation, test = scores
    assert train is not None
    assert test is not None
    architecture = _architecture(session.work.model, session.settings.strengths.pay)
    small = compact_trained(last)
    costs = costs_of(small, session.example)
    return Outcome(
        row=row,
        seed=session.settings.seed,
        settings=session.settings,
        architecture=architecture,
        widths=widths_of(small),
        n_layers=len(widths_of(small)),
        parameters=costs.parameters,
        multiply_adds=costs.multiply_adds,
        train_loss=train.loss,
        validation_loss=_finite(validation),
        validation_accuracy=None if validation is None else validation.accuracy,
        test_loss=test.loss,
        test_accuracy=test.accuracy,
        epochs=session.n_epochs,
        seconds=round(seconds, 3),
        history=_history(session, recording),
        model=small,
    )


def _some(dataset: Dataset) -> Split:
    """Return the train part, or evenly spaced examples where scoring all would take long."""
    n_numbers = len(dataset.train) * math.prod(dataset.input_shape)
    return dataset.train.every(1 + (n_numbers - 1) // _MOST_NUMBERS, 0)


def widths_of(network: nn.Module) -> dict[str, int]:
    """Return the width of every linear layer and convolution of a plain network, by name."""
    return {
        name: layer.weight.shape[0]
        for name, layer in network.named_modules()
        if isinstance(layer, _LAYERS)
    }


def _finite(score: Score | None) -> float | None:
    return None if score is None or not math.isfinite(score.loss) else score.loss


def _architecture(model: nn.Module, pay: str) -> str:
    if has_gates(model):
        return str(read_architecture(copy.deepcopy(model).cpu(), pay=pay))
    return "-".join(map(str, widths_of(model).values()))


def compact_trained(session: Session) -> nn.Module:
    """Return the trained network of a session as a plain one on the CPU, without its gates."""
    model = copy.deepcopy(session.work.model).cpu().eval()
    set_layout_(model, torch.contiguous_format)
    if not has_gates(model):
        return model
    chosen = plan(model, session.example, pay=session.settings.strengths.pay)
    return compact(model, chosen)


def _history(session: Session, recording: GateHistory) -> tuple[dict[str, Any], ...]:
    model = session.work.model
    width, depth = width_gates(model), depth_gates(model)
    sizes = [gate.numel() for gate in (*width.values(), *depth.values())]
    entries: list[dict[str, Any]] = []
    for epoch, gates in enumerate(recording.rows() if sizes else ()):
        pieces = iter(is_open(gates).split(sizes))
        entries.append(
            {
                "epoch": epoch,
                "step": epoch * session.steps_per_epoch,
                "widths": {name: int(next(pieces).sum()) for name in width},
                "linear": [name for name in depth if bool(next(pieces).all())],
                "gap": round(torch.minimum(gates, 1 - gates).mean().item(), 5),
            }
        )
    return tuple(entries)
