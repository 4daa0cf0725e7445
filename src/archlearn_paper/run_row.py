"""A row is what one run came to, as plain data that can be written down and read again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from archlearn_paper.statistics import Spread, measure_spread


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One finished run.

    Attributes:
        row: Which row or point of the experiment, as "AL1".
        asked: What was asked for, in short; a run of the same is not made again.
        settings: Every setting of the run.
        widths: Channels and neurons by layer, the outputs among them.
        n_layers: Layers with weights.
        parameters: Of the compact model.
        train_loss: Of the final model on all that it learnt from.
        seconds: Wall-clock time of the team the run was in.
        history: One mapping an epoch, where the experiment needs it.
        measured: What was measured on the model besides.
    """

    row: str
    seed: int
    asked: str
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
    history: Sequence[Mapping[str, Any]] = ()
    measured: Mapping[str, Any] = field(default_factory=dict[str, Any])

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
        return {name: table[name] for name in table if table[name] not in ((), {}, [])}


def read_row(table: Mapping[str, Any]) -> Row:
    """Return a row from plain data; names it does not know are left aside."""
    known = {item.name for item in fields(Row)}
    return Row(**{name: value for name, value in table.items() if name in known})


def group(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows by name, in order of their first appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.row, []).append(row)
    return groups


def spread_of(rows: Sequence[Row], number: Callable[[Row], float]) -> Spread:
    """Return the spread of one number over rows."""
    return measure_spread([number(row) for row in rows])


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what a table states of the seeds of one row."""
    return {
        "seeds": [row.seed for row in rows],
        "architectures": [row.architecture for row in rows],
        "parameters": spread_of(rows, lambda row: row.parameters).to_json(),
        "multiply_adds": spread_of(rows, lambda row: row.multiply_adds).to_json(),
        "neurons": spread_of(rows, lambda row: row.n_neurons).to_json(),
        "layers": spread_of(rows, lambda row: row.n_layers).to_json(),
        "accuracy": spread_of(rows, lambda row: row.accuracy).to_json(),
        "train_loss": spread_of(rows, lambda row: row.train_loss).to_json(),
    }
