"""An experiment as data: stages of runs, rows of results, checks, tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from torch import nn

from archlearn.errors import SettingsError
from archlearn.serialization import load
from archlearn_cli.training.settings import RunSettings
from archlearn_paper.bounds import Check

RunKey = tuple[str, int]
"""The row and the seed of a run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One finished run.

    Attributes:
        row: Which row or point of the experiment, as "AL1".
        widths: Channels and neurons by layer, the outputs among them.
        train_loss: Of the final model on all that it learnt from.
        seconds: Wall-clock time of the team the run was in.
        commit: Of the code that made it; empty where that was not recorded.
        digest: SHA-256 of the file of the compact model, which the same model always gives.
        history: One mapping an epoch, the start first, where the experiment needs it.
        measured: What was measured on the model besides.
    """

    row: str
    seed: int
    settings: Mapping[str, Any]
    architecture: str
    widths: Mapping[str, int]
    n_layers: int
    parameters: int
    multiply_adds: int
    train_loss: float
    validation_accuracy: float | None
    validation_loss: float | None
    test_accuracy: float
    test_loss: float
    epochs: int
    seconds: float
    commit: str = ""
    digest: str = ""
    history: Sequence[Mapping[str, Any]] = ()
    measured: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def key(self) -> RunKey:
        """Return what names the run."""
        return self.row, self.seed

    @property
    def error(self) -> float:
        """Return the test error in per cent."""
        return 100 * (1 - self.test_accuracy)

    @property
    def accuracy(self) -> float:
        """Return the test accuracy in per cent."""
        return 100 * self.test_accuracy

    @property
    def n_neurons(self) -> int:
        """Return the neurons and channels of all layers but the last: the complexity."""
        return sum(list(self.widths.values())[:-1])

    def to_json(self) -> dict[str, Any]:
        """Return plain data; what is empty is left out."""
        table = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: table[name] for name in table if table[name] not in ((), {}, [], "")}


def read_row(table: Mapping[str, Any]) -> Row:
    """Return a row from plain data; names it does not know are left aside."""
    names = {item.name for item in fields(Row)}
    return Row(**{name: value for name, value in table.items() if name in names})


SweepPoint = TypeVar("SweepPoint")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How large an experiment is made.

    Attributes:
        name: "full", or "quick" for a small version that says it is one.
        limit: Train examples used, and about as many are scored; None uses all.
        points: Most points of a sweep that are run; None runs all.
        probes: Train examples on which the loss without single neurons is measured.
        batch_size: Examples a step; the rate of the weights is in proportion.
    """

    name: str
    seeds: tuple[int, ...]
    epochs: int
    limit: int | None = None
    validation: float = 0.0
    points: int | None = None
    probes: int = 10_000
    data: str = "mnist"
    batch_size: int = 250

    def shorten(self, epochs: int, n_seeds: int | None = None) -> "Scale":
        """Return a scale of so many epochs and seeds at most."""
        return replace(self, epochs=min(self.epochs, epochs), seeds=self.seeds[:n_seeds])

    def pick(self, sweep: Sequence[SweepPoint]) -> list[SweepPoint]:
        """Return the points of a sweep that are run, spread evenly, the ends among them."""
        if self.points is None or len(sweep) <= self.points:
            return list(sweep)
        if self.points == 1:
            return [sweep[len(sweep) // 2]]
        last = len(sweep) - 1
        return [sweep[round(index * last / (self.points - 1))] for index in range(self.points)]


FULL = Scale(name="full", seeds=(0, 1, 2, 3, 4), epochs=60)

QUICK = Scale(
    name="quick",
    seeds=(0,),
    epochs=6,
    limit=1500,
    validation=1 / 12,
    points=3,
    probes=500,
    batch_size=50,
)


def parse_numbers(text: str, option: str, advice: str) -> tuple[int, ...]:
    """Return the numbers that were typed with commas between them; each may stand there once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise SettingsError(f"{option} {text!r}: write different numbers {advice}")
    return tuple(int(part) for part in parts)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that were typed."""
    return parse_numbers(text, "--seeds", "with commas, as 0,1,2,3,4")


class MissingModelError(Exception):
    """Models are needed that are not there any more: those of the runs whose keys are `args`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedRun:
    """A finished run: its numbers, and where its compact model is."""

    row: Row
    path: Path

    def load_model(self) -> nn.Module:
        """Return the compact model; where its file is gone, the runner makes the run again."""
        if not self.path.is_file():
            raise MissingModelError(self.row.key)
        return load(self.path)


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Origin:
    """Where the network comes from that a run starts from; runs may share one.

    Attributes:
        make: Makes it, of the parent's compact model if there is a parent.
        parent: The finished run that it is made of.
        in_worker: Whether another process may make it. A penalty is not saved with its network.
    """

    make: Callable[..., nn.Module]
    parent: FinishedRun | None = None
    in_worker: bool = False

    def make_network(self) -> nn.Module:
        """Return the network."""
        return self.make(self.parent.load_model()) if self.parent else self.make()


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of an experiment.

    Attributes:
        origin: Where a network comes from that it starts from, instead of a fresh `settings.model`.
        network: That network, once it is made.
        after_epoch: Called with the model and the epochs done, between two epochs; it may
            change tensors in place. To read them makes the runs beside it wait, so it is for
            once in a run.
        finish_compact: Whether the network becomes compact as soon as gates stand still, and is
            trained in that form to the end. The momentum of its weights starts anew there.
        is_trained: Whether anything is learnt; else the network is measured as it is, and settings
            say the data and the seed.
        measured: What its row is to hold besides.
    """

    row: str
    settings: RunSettings
    origin: Origin | None = None
    network: nn.Module | None = None
    is_trained: bool = True
    after_epoch: Callable[[nn.Module, int], None] | None = None
    finish_compact: bool = False
    measured: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def key(self) -> RunKey:
        """Return what names the run: its settings follow from these, scale and version."""
        return self.row, self.settings.seed


Stage = Callable[[Scale, Sequence[FinishedRun]], Sequence[Run]]
"""Returns what is to be done next, from the scale and everything done by the stages before."""
Derived = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Experiment:
    """One table or figure.

    Attributes:
        name: As on the command line; `find_experiment` gives it, and the title.
        stages: Later ones may need the models that earlier ones learnt.
        derive: Returns the numbers that the table states, as plain data.
        check: Returns what must be shown, and whether it was, from the derived numbers.
        tabulate: Returns the tables, from the derived numbers.
        measure: Returns more numbers of a finished run's model; {} where there are none.
        extra: A last stage that the page does not wait for: it says which of its runs are missing.
        version: Counted up by a change of what a row is: runs of another version are made again.
        keeps_history: Whether the epochs of every run are written down.
        n_seeds: Seeds of the full version, from 0 on; fixed before any of them was run.
    """

    stages: tuple[Stage, ...]
    derive: Callable[[Sequence[Row]], dict[str, Any]]
    check: Callable[[Derived], list[Check]]
    tabulate: Callable[[Derived], list[pd.DataFrame]]
    _: KW_ONLY
    name: str = ""
    title: str = ""
    measure: Callable[[Scale, FinishedRun], dict[str, Any]] | None = None
    extra: Stage | None = None
    version: int = 1
    keeps_history: bool = False
    n_seeds: int = 5
