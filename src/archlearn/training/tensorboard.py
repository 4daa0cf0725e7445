"""The metrics of a run for TensorBoard, beside the lines in its folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from archlearn.errors import SettingsError
from archlearn.training.callbacks import EpochEnd, Observer, RunStart

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


class TensorBoard:
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

    def stepped(self, step: int) -> None:
        """Write nothing for single steps."""

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


class Several:
    """Tells several observers, in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
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
