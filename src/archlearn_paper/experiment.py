"""An experiment says which runs to make, what follows from them, and what it must show."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from archlearn.serialization import load
from archlearn.training.settings import RunSettings
from archlearn_paper.parallel_runs import Run
from archlearn_paper.run_row import Row
from archlearn_paper.scale import Scale


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """A network that is measured as it is, without training.

    Attributes:
        row: Which row of the experiment it is.
        settings: The data and the seed; nothing else of them is used.
    """

    row: str
    settings: RunSettings
    network: nn.Module


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A finished run: its numbers, and where its compact model is."""

    row: Row
    path: Path

    def load_model(self) -> nn.Module:
        """Return the compact model."""
        return load(self.path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that an experiment must show.

    Attributes:
        what: In words.
        measured: What was found, with its unit.
        bound: What was to be found.
    """

    what: str
    measured: str
    bound: str
    met: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """What is printed: the paper's numbers beside ours."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""


Work = Run | Evaluation
Stage = Callable[[Scale, Sequence[Done]], Sequence[Work]]
"""Returns what is to be done next, from the scale and everything done by the stages before."""
Derived = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """One table or figure.

    Attributes:
        name: As on the command line.
        title: One line that says what it is.
        stages: Later ones may need the models that earlier ones learnt.
        derive: Returns the numbers that the table states, as plain data.
        check: Returns what must be shown, and whether it was, from the derived numbers.
        tabulate: Returns the tables, from the derived numbers.
        measure: Returns more numbers of a finished run's model; {} where there are none.
        borrows: Experiments whose finished runs count here too, if the same was asked of them.
        keeps_history: Whether the epochs of every run are written down.
        shows_part: Whether its tables can be made of a part of the runs, the first ones, and say
            what is missing.
    """

    name: str
    title: str
    stages: tuple[Stage, ...]
    derive: Callable[[Sequence[Row]], dict[str, Any]]
    check: Callable[[Derived], list[Check]]
    tabulate: Callable[[Derived], list[Table]]
    measure: Callable[[Scale, Done], dict[str, Any]] | None = None
    borrows: tuple[str, ...] = ()
    keeps_history: bool = False
    shows_part: bool = False
