"""Tables 4 and 5: the paper's numbers beside ours, times, checks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archlearn_paper.experiment import Check, Derived, ResultTable, check_at_most
from archlearn_paper.tables import (
    NOTHING,
    join_architectures,
    write_counts,
    write_number,
    write_spread,
)

REFERENCE, FURTHER, ALL = "reference", "reference, trained further", "AL-all"
MOST_LOST = 1.0
MOST_GAINED = 0.5
"""Points that the reference may gain by as many epochs more as the methods have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table4Row:
    """A row of the paper.

    Attributes:
        parameters: In millions.
        compression: Per cent of parameters that are gone.
        least: Per cent that must be gone here; None where nothing is asked.
    """

    layers: str
    parameters: float | None = None
    accuracy: float | None = None
    compression: float | None = None
    architecture: str = ""
    least: float | None = None


PAPER = {
    REFERENCE: Table4Row(
        layers="N/A",
        parameters=60.9,
        accuracy=57.41,
        compression=0,
        architecture="96-256-384-384-256-4096-4096-1000",
    ),
    FURTHER: Table4Row(layers=""),
    "neuron pruning": Table4Row(layers="", parameters=39.6, accuracy=55.60, compression=35),
    "SVD-quarter-F": Table4Row(layers="", parameters=25.6, accuracy=56.19, compression=58),
    "Adaptive Fastfood 16": Table4Row(layers="", parameters=18.7, accuracy=57.10, compression=69),
    "AL-conv-fc": Table4Row(
        layers="conv[5], fc[6,7]",
        parameters=19.6,
        accuracy=55.90,
        compression=68,
        architecture="96-256-384-384-237-1761-1661-1000",
        least=68,
    ),
    "AL-fc": Table4Row(
        layers="fc[6,7]",
        parameters=19.8,
        accuracy=54.30,
        compression=68,
        architecture="96-256-384-384-256-1536-1317-1000",
        least=68,
    ),
    "AL-conv": Table4Row(
        layers="conv[1,2,3,4,5]",
        parameters=47.8,
        accuracy=55.87,
        compression=22,
        architecture="80-127-264-274-183-4096-4096-1000",
        least=22,
    ),
    ALL: Table4Row(layers="conv[1,2,3,4,5], fc[6,7]; less dropout", least=80),
}


def check(derived: Derived) -> list[Check]:
    """Return whether learnt networks are small, and near the reference trained as long."""
    checks: list[Check] = []
    if REFERENCE in derived["lost"]:
        what = "the reference gains no more: points it gains by as many epochs as the methods have"
        found = derived["lost"][REFERENCE]
        checks.append(check_at_most(what, found, MOST_GAINED, unit=" points", digits=2))
    for row, line in PAPER.items():
        if line.least is not None and row in derived["rows"]:
            gone = _compression(derived["rows"], row)
            checks.append(
                Check(
                    what=f"{row}: fewer parameters",
                    measured=f"{gone:.1f} %",
                    bound=f"≥ {line.least:g} %",
                    met=gone >= line.least,
                )
            )
        if line.least is not None and row in derived["lost"]:
            what = f"{row}: points below the reference trained as long"
            checks.append(
                check_at_most(what, derived["lost"][row], MOST_LOST, unit=" points", digits=2)
            )
    return checks


def tabulate(derived: Derived) -> list[ResultTable]:
    """Return tables 4 and 5, the times, and every candidate."""
    summaries = derived["rows"]
    return [
        _table_4(summaries),
        _table_5(summaries),
        _times(summaries),
        _candidates(derived["tried"]),
    ]


def _table_4(summaries: Mapping[str, Any]) -> ResultTable:
    columns = (
        "method", "paper: parameters, M", "accuracy %", "compression %",
        "ours: parameters", "accuracy %", "compression %", "multiply-adds %",
    )  # fmt: skip
    rows = tuple(
        (
            row,
            write_number(line.parameters, 1),
            write_number(line.accuracy),
            write_number(line.compression, 0),
            *_state_ours(summaries, row),
        )
        for row, line in _list_rows(summaries).items()
    )
    return ResultTable(columns=columns, rows=rows, title="Compression of CaffeNet (table 4)")


def _list_rows(summaries: Mapping[str, Any]) -> dict[str, Table4Row]:
    """Return the rows that were made, the paper's first."""
    names = [*(row for row in PAPER if row in summaries), *(r for r in summaries if r not in PAPER)]
    return {name: PAPER.get(name, Table4Row(layers="")) for name in names}


def _state_ours(summaries: Mapping[str, Any], row: str) -> tuple[str, ...]:
    """Return our part of a line of table 4."""
    return (
        write_counts(summaries[row]["parameters"]),
        write_spread(summaries[row]["accuracy"], error=True),
        f"{_compression(summaries, row):.1f}",
        f"{100 * _ratio_of_multiply_adds(summaries, row):.1f}",
    )


def _table_5(summaries: Mapping[str, Any]) -> ResultTable:
    rows = tuple(
        (
            row,
            line.layers,
            summaries[row]["size"],
            line.architecture or NOTHING,
            join_architectures(summaries[row]["architectures"]),
        )
        for row, line in PAPER.items()
        if line.layers and row in summaries
    )
    columns = ("method", "layers learnt", "size by", "paper: architecture", "ours: architecture")
    return ResultTable(columns=columns, rows=rows, title="Architectures learnt (table 5)")


def _times(summaries: Mapping[str, Any]) -> ResultTable:
    rows: list[tuple[str, ...]] = []
    for row in _list_rows(summaries):
        for measured in summaries[row].get("measured", ()):
            for device, found in measured.get("forward", {}).items():
                rows.append(
                    (
                        row,
                        f"{device}, batch {found['batch']}",
                        f"{found['reference_ms']:.2f}",
                        f"{found['own_ms']:.2f}",
                        f"{found['ratio']:.2f}",
                        f"{_ratio_of_multiply_adds(summaries, row):.2f}",
                    )
                )
    columns = (
        "method", "device", "reference, ms", "method, ms", "ratio of times",
        "ratio of multiply-adds",
    )  # fmt: skip
    title = "A forward pass, timed side by side with the reference"
    return ResultTable(columns=columns, rows=tuple(rows), title=title)


def _candidates(tried: list[dict[str, Any]]) -> ResultTable:
    rows = tuple(
        (
            found["row"],
            str(found["seed"]),
            found["architecture"],
            f"{found['parameters']:,}",
            f"{found['validation']:.2f}",
            f"{found['accuracy']:.2f}",
            "yes" if found["chosen"] else "",
        )
        for found in tried
    )
    columns = (
        "run", "seed", "architecture", "parameters", "validation %", "test %", "chosen",
    )  # fmt: skip
    title = "All runs; of earlier ones at several prices one was chosen on the validation part"
    return ResultTable(columns=columns, rows=rows, title=title)


def _compression(summaries: Mapping[str, Any], row: str) -> float:
    sizes = [summaries[name]["parameters"]["mean"] for name in (row, REFERENCE)]
    return 100 * (1 - sizes[0] / sizes[1])


def _ratio_of_multiply_adds(summaries: Mapping[str, Any], row: str) -> float:
    costs = [summaries[name]["multiply_adds"]["mean"] for name in (row, REFERENCE)]
    return costs[0] / costs[1]
