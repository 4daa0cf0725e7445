"""Callbacks of a training run, and loggers: CSV, TensorBoard, wandb."""

import importlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archlearn.errors import check_installed
from archlearn_cli.data.file_cache import METRICS
from archlearn_cli.training.run_directory import read_lines
from archlearn_cli.training.settings import LoggerName, RunSettings


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
        seconds_left: Time until the last step at the speed of this sitting.
    """

    row: Mapping[str, Any]
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
_LOGGERS = {
    "csv": ("lightning_fabric.loggers", "CSVLogger", {"flush_logs_every_n_steps": 1}),
    "tensorboard": ("lightning_fabric.loggers", "TensorBoardLogger", {"flush_secs": 5}),
    "wandb": ("lightning.pytorch.loggers", "WandbLogger", {"project": "archlearn"}),
}
_NEEDED = {"csv": (), "tensorboard": ("tensorboard",), "wandb": ("wandb", "lightning")}


class EpochLogger(Callback):
    """Writes the numbers of each epoch with a logger of Lightning Fabric, into the run's folder."""

    def __init__(self, kind: LoggerName) -> None:
        check_installed(f"--logger {kind}", kind, *_NEEDED[kind])
        self._kind = kind
        self._logger: Any = None

    def started(self, start: RunStart) -> None:
        """Open the log; in a resumed run it goes on behind the epochs that are kept."""
        module, name, options = _LOGGERS[self._kind]
        make = getattr(importlib.import_module(module), name)
        if self._kind == "wandb":
            earlier = sorted(start.folder.glob("wandb/*run-*-*")) if start.first_step else []
            previous = {"id": earlier[-1].name.split("-")[-1], "resume": "allow"} if earlier else {}
            self._logger = make(
                name=start.folder.name, save_dir=str(start.folder), **options, **previous
            )
            return
        shutil.rmtree(start.folder / self._kind, ignore_errors=True)
        self._logger = make(root_dir=start.folder, name=self._kind, version="", **options)
        for row in read_lines(start.folder / METRICS):
            self._write(row)

    def epoch_ended(self, end: EpochEnd) -> None:
        """Write the numbers of an epoch."""
        self._write(end.row)

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Close the log."""
        del summary
        self._logger.finalize("success")
        if self._kind == "wandb":
            self._logger.experiment.finish()

    def _write(self, row: Mapping[str, Any]) -> None:
        numbers = {
            name: value
            for name, value in row.items()
            if isinstance(value, int | float) and name not in ("epoch", "step")
        }
        widths = {f"width/{layer}": width for layer, width in row["widths"].items()}
        self._logger.log_metrics(numbers | widths, row["epoch"])
