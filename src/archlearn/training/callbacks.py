"""Callbacks of a training run, and TensorBoard."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archlearn.errors import SettingsError
from archlearn.training.settings import RunSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStart:
    """What is known before the first step.

    Attributes:
        network: What the run starts from, by name.
        architecture: The network before learning, as "20-50-500-10" where it is a chain.
        widths: Channels of its layers, by name.
        first_epoch: Epochs that were finished before, in a resumed run.
        first_step: Steps that were finished before, more than 0 for a resumed run.
    """

    folder: Path
    settings: RunSettings
    network: str
    data_source: str
    architecture: str
    parameters: int
    widths: Mapping[str, int]
    n_steps: int
    first_epoch: int
    first_step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochEnd:
    """A line of metrics, and what only a display needs.

    Attributes:
        projected: Parameters at the end if gates go on as in the last epoch; None while that is
            not known.
        seconds_left: Time until the last step at the speed of this sitting.
    """

    row: Mapping[str, Any]
    projected: int | None
    seconds_left: float


class Callback:
    """Watches a run; what is not overridden does nothing."""

    def started(self, start: RunStart) -> None:
        """Take note of the start."""

    def stepped(self, step: int) -> None:
        """Take note of finished steps."""

    def epoch_ended(self, end: EpochEnd) -> None:
        """Take note of a finished epoch."""

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Take note of the end."""


SilentCallback = Callback


FOLDER = "tensorboard"


_SCALARS = (
    "train_loss",
    "penalty",
    "validation_loss",
    "validation_accuracy",
    "validation_error",
    "binarisation_gap",
    "parameters",
    "multiply_adds",
    "learning_rate",
    "gate_rate",
)


class TensorBoard(Callback):
    """Writes one point an epoch for each number."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise SettingsError(
                "--tensorboard needs tensorboard, which is not installed; "
                "pip install 'archlearn[tensorboard]'"
            ) from error
        self._make = SummaryWriter
        self._writer: Any = None

    def started(self, start: RunStart) -> None:
        """Open the log; points of epochs that will be done again are taken back."""
        folder = Path(start.folder) / FOLDER
        self._writer = self._make(str(folder), purge_step=start.first_epoch + 1)

    def epoch_ended(self, end: EpochEnd) -> None:
        """Write the numbers of an epoch."""
        row, epoch = end.row, end.row["epoch"]
        for name in _SCALARS:
            if row.get(name) is not None:
                self._writer.add_scalar(name, row[name], epoch)
        for layer, width in row["widths"].items():
            self._writer.add_scalar(f"width/{layer}", width, epoch)
        self._writer.flush()

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Close the log."""
        del summary
        self._writer.close()


class Several(Callback):
    """Tells several observers, in order."""

    def __init__(self, observers: Sequence[Callback]) -> None:
        self._observers = observers

    def started(self, start: RunStart) -> None:
        """Tell of the start."""
        for observer in self._observers:
            observer.started(start)

    def stepped(self, step: int) -> None:
        """Tell of a step."""
        for observer in self._observers:
            observer.stepped(step)

    def epoch_ended(self, end: EpochEnd) -> None:
        """Tell of an epoch."""
        for observer in self._observers:
            observer.epoch_ended(end)

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Tell of the end."""
        for observer in self._observers:
            observer.finished(summary)
