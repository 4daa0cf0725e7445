"""The lines of an epoch, which can be written while the device is at the next one already."""

from dataclasses import dataclass

import torch
from torch import Tensor

from archlearn.training.callbacks import EpochEnd, Observer
from archlearn.training.checkpoint import Position
from archlearn.training.evaluation import Score
from archlearn.training.metrics import Gates, Observatory, Snapshot
from archlearn.training.run_directory import GATES, METRICS, append_line, read_lines
from archlearn.training.run_setup import Session


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What is known at the end of an epoch, all of it on the host.

    Attributes:
        loss: Mean loss of the epoch's steps; None before the first.
        penalty: Mean penalty of the epoch's steps; None before the first.
        score: Score on the validation part; None where there is none.
        width: Width gates, from `read_gates`.
        depth: Depth gates.
        market: Where a budget is learnt: its path, and the price at which the network fits.
        epochs_to_move: Epochs in which gates will still move.
        seconds: Time spent so far.
        seconds_left: Time until the last step.
    """

    position: Position
    loss: float | None
    penalty: float | None
    score: Score | None
    width: Gates
    depth: Gates
    market: dict[str, object]
    epochs_to_move: float
    seconds: float
    seconds_left: float


class Journal:
    """Writes entries into the run's folder and tells the observer, in order, when told to."""

    def __init__(self, session: Session, observer: Observer) -> None:
        self._session = session
        self._observer = observer
        self._observatory = Observatory(
            session.work.model, session.example, session.settings.strengths.pay
        )
        self._waiting: list[Entry] = []
        self._take_up()

    def _take_up(self) -> None:
        """Go on from the last line of gates, if the run has been here before."""
        lines = read_lines(self._session.folder / GATES)
        if lines:
            last = lines[-1]
            width = {name: torch.tensor(gate) for name, gate in last["width"].items()}
            depth = {name: torch.tensor([gate]) for name, gate in last["depth"].items()}
            self._observatory.go_on_from(width, depth)

    def note(self, entry: Entry) -> None:
        """Take an entry down; it is not written yet."""
        self._waiting.append(entry)

    def write(self) -> None:
        """Write all entries that wait."""
        while self._waiting:
            self._write_one(self._waiting.pop(0))

    def _write_one(self, entry: Entry) -> None:
        folder, epoch = self._session.folder, entry.position.epoch
        snapshot = self._observatory.measure(entry.width, entry.depth, entry.epochs_to_move)
        row = make_row(self._session, entry, snapshot)
        depth = {name: values[0] for name, values in rounded(entry.depth).items()}
        gates = {"epoch": epoch, "width": rounded(entry.width), "depth": depth}
        append_line(folder / METRICS, row)
        append_line(folder / GATES, gates)
        end = EpochEnd(row=row, projected=snapshot.projected, seconds_left=entry.seconds_left)
        self._observer.epoch_ended(end)


def make_row(session: Session, entry: Entry, snapshot: Snapshot) -> dict[str, object]:
    """Return one line of metrics."""
    score, position = entry.score, entry.position
    last = max(0, position.step - 1)
    classes = session.objective.task != "regression"
    measured = "validation_accuracy" if classes else "validation_error"
    return {
        "epoch": position.epoch,
        "step": position.step,
        "validation_loss": None if score is None else score.loss,
        measured: None if score is None else score.accuracy if classes else score.error,
        "widths": snapshot.widths,
        "linear": snapshot.linear,
        "binarisation_gap": snapshot.gap,
        "binarised_share": snapshot.binary_share,
        "parameters": snapshot.costs.parameters,
        "multiply_adds": snapshot.costs.multiply_adds,
        "learning_rate": session.work.schedule.weight_rate(last),
        "gate_rate": session.work.schedule.gate_rate_at(last),
        "train_loss": entry.loss,
        "penalty": entry.penalty,
        **entry.market,
        "seconds": round(entry.seconds, 3),
    }


def rounded(gates: dict[str, Tensor]) -> dict[str, list[float]]:
    """Return gates as lists of numbers with four decimals."""
    return {name: [round(v, 4) for v in gate.reshape(-1).tolist()] for name, gate in gates.items()}
