"""Compact every classification model of torchvision, with Torch-Pruning beside it.

For each model: add gates, drop a random half of every group of channels, compact, and compare
with the gated model in float64. Each model and side runs in a process of its own under a time
limit; rows are appended to a file as they come, and what is in the file is not run again. The
page is written from the rows of that file.

    python -m benchmarks.torchvision_models --out results/torchvision.jsonl \
        --page results/torchvision.md
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from math import nan
from pathlib import Path
from statistics import median

from benchmarks.circumstances import as_markdown, describe
from benchmarks.resnet50 import measure as time_resnet50
from benchmarks.resnet50 import table as times_table
from benchmarks.torchvision_import import classification_models
from benchmarks.torchvision_sides import SIDES, Row, measure

PACKAGES = ("torchvision", "torch-pruning")
_MARK = "ROW "


def main() -> None:
    options = _options()
    if options.one:
        row = measure(options.one, options.side, options.device)
        print(_MARK + json.dumps(row | describe(*PACKAGES, device=options.device)))
        return
    names = options.models or classification_models()
    rows = _run_all(names, options)
    fresh = _run_fresh("resnet50", options) if "resnet50" in names else []
    times = [time_resnet50(size, options.repeats, options.device) for size in options.sizes]
    text = page(rows, names, fresh, times, describe(*PACKAGES, device=options.device))
    print(text)
    if options.page:
        options.page.write_text(text)


def _run_all(names: list[str], options: argparse.Namespace) -> list[Row]:
    rows = [row for row in _read(options.out) if "model" in row and "turn" not in row]
    done = {(row["model"], row["side"]) for row in rows}
    todo = [(name, side) for name in names for side in options.sides if (name, side) not in done]

    def run(name: str, side: str) -> Row:
        row = _in_own_process(name, side, options)
        _append(options.out, row)
        print(f"{name} {side}: {row.get('error') or row.get('difference')}", file=sys.stderr)
        return row

    with ThreadPoolExecutor(options.jobs) as pool:
        return rows + list(pool.map(lambda pair: run(*pair), todo))


def _run_fresh(name: str, options: argparse.Namespace) -> list[Row]:
    """Measure one model again, by itself: the sides take turns, each time in a fresh process."""
    rows = [row for row in _read(options.out) if "turn" in row]
    done = {(row["turn"], row["side"]) for row in rows}
    for turn in range(options.repeats):
        for side in options.sides:
            if (turn, side) not in done:
                row = {"turn": turn, **_in_own_process(name, side, options)}
                _append(options.out, row)
                rows.append(row)
    return rows


def _in_own_process(name: str, side: str, options: argparse.Namespace) -> Row:
    limit: float = options.limit
    command = [sys.executable, "-m", "benchmarks.torchvision_models", "--one", name, "--side", side]
    command += ["--device", options.device]
    failed: Row = {"model": name, "side": side, "runs": False, "exact": False}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {**failed, "error": f"not done after {limit:g} s"}
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return json.loads(line.removeprefix(_MARK))
    tail = (done.stderr.strip().splitlines() or [""])[-1]
    return {**failed, "error": f"the process ended with {done.returncode}: {tail}"[:300]}


def _read(out: Path) -> list[Row]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def _append(out: Path, row: Row) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", help="names; all classification models if left out")
    parser.add_argument("--sides", nargs="*", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--out", type=Path, default=Path("results/torchvision.jsonl"))
    parser.add_argument("--jobs", type=int, default=1, help="models measured at the same time")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for a model and side")
    parser.add_argument("--page", type=Path, help="where to write the table, as Markdown")
    parser.add_argument("--repeats", type=int, default=5, help="of the resnet50 timing")
    parser.add_argument("--sizes", type=int, nargs="*", default=[64, 224], help="of its images")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    return parser.parse_args()


_FRESH = """\
resnet50 once more as in the table, by itself: each side in fresh processes, in turns. Seconds of
`add_gates` + `compact` and of Torch-Pruning's build and step: medians (smallest to largest)."""
_HOW = """\
Half of every group of width gates dropped at random, random weights, float64, gated against compact
model on new images. Torch-Pruning (TP): magnitude, ratio 0.5, on the same models; exact means that
it computes what the full model computes once every removed weight is set to zero. A model that did
not end within the time limit counts as not run. Several models run at a time, so seconds in
this table are rough."""


def table(rows: list[Row], names: list[str]) -> str:
    """Return the rows as Markdown, one line a model."""
    lines = [
        "| model | gates | params before | after | difference | s | "
        "TP params after | TP runs | TP exact | TP difference | TP s |",
        "|---|--:|--:|--:|--:|--:|--:|---|---|--:|--:|",
    ]
    found = {(row["model"], row["side"]): row for row in rows}
    for name in names:
        we, they = found.get((name, "archlearn"), {}), found.get((name, "torch-pruning"), {})
        cells = [
            name,
            _number(we, "gates", ","),
            _number(we, "parameters_before", ","),
            _number(we, "parameters_after", ","),
            _number(we, "difference", ".1e") if we.get("runs") else we.get("error", "")[:60],
            _number(we, "seconds", ".1f"),
            _number(they, "parameters_after", ","),
            _answer(they, "runs"),
            _answer(they, "exact"),
            _number(they, "difference", ".1e"),
            _number(they, "seconds", ".1f"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(
    rows: list[Row],
    names: list[str],
    fresh: list[Row],
    times: list[Row],
    circumstances: dict[str, str],
) -> str:
    """Return the whole page: what it is, the table, the summary and the times of resnet50."""
    parts = [
        f"# {len(names)} classification models of torchvision",
        f"Written by {as_markdown(circumstances)}",
        _HOW,
        table(rows, names),
        summary(rows, names),
        _when(rows),
    ]
    if {row["side"] for row in fresh} == SIDES.keys():
        parts += [_FRESH, fresh_table(fresh)]
    if times:
        parts += ["resnet50, both sides in turns in one process:", "\n".join(times_table(times))]
    return "\n\n".join(parts) + "\n"


def fresh_table(rows: list[Row]) -> str:
    """Return the seconds of turns in fresh processes, and their ratio, as Markdown."""
    seconds = [[row.get("seconds", nan) for row in rows if row["side"] == side] for side in SIDES]
    cells = [f"{median(s):.3f} ({min(s):.3f} to {max(s):.3f})" for s in seconds]
    ratio = median(we / they for we, they in zip(*seconds, strict=True))
    lines = [
        "| turns | archlearn, with certificate | Torch-Pruning | archlearn / Torch-Pruning |",
        "|--:|--:|--:|--:|",
        f"| {len(rows) // len(SIDES)} | {' | '.join(cells)} | {ratio:.2f} |",
    ]
    return "\n".join(lines)


def _when(rows: list[Row]) -> str:
    """Return when and where the rows were measured, as they say themselves."""
    keys = ("hardware", "python", "torch", "torchvision", "torch-pruning", "commit")
    lines = [
        f"- {key}: {', '.join(sorted({str(row.get(key, 'not noted')) for row in rows}))}"
        for key in keys
    ]
    dates = sorted(str(row["date"]) for row in rows if "date" in row)
    span = f"{dates[0]} to {dates[-1]}" if dates else "not noted"
    return "\n".join([f"Rows were measured {span}, with", "", *lines])


def summary(rows: list[Row], names: list[str]) -> str:
    """Return one line a side: how many models ran, were exact, and learnt something."""
    lines: list[str] = []
    for side in SIDES:
        side_rows = [row for row in rows if row["side"] == side and row["model"] in names]
        runs = sum(row["runs"] for row in side_rows)
        exact = sum(row["exact"] for row in side_rows)
        worst = max((row["difference"] for row in side_rows if "difference" in row), default=0.0)
        smaller = sum(
            row.get("parameters_after", 0) < row.get("parameters_before", 0) for row in side_rows
        )
        lines.append(
            f"{side}: {len(side_rows)} of {len(names)} models measured, {runs} run, {exact} exact "
            f"(largest relative difference {worst:.1e}), {smaller} with fewer parameters"
        )
    return "\n".join([*lines, "", _larger(rows, names)])


def _larger(rows: list[Row], names: list[str]) -> str:
    """Return where Torch-Pruning is exact, too, and leaves fewer parameters than archlearn."""
    found = {(row["model"], row["side"]): row for row in rows if row["exact"]}
    pairs = [
        (name, found[name, "archlearn"], found[name, "torch-pruning"])
        for name in names
        if all((name, side) in found for side in SIDES)
    ]
    larger = [
        f"{name} ({we['parameters_after'] / they['parameters_after']:.3f} times as many)"
        for name, we, they in pairs
        if we["parameters_after"] > they["parameters_after"]
    ]
    told = f": {', '.join(larger)}" if larger else ""
    return (
        f"Where both are exact ({len(pairs)} models), archlearn leaves more parameters than "
        f"Torch-Pruning in {len(larger)}{told}. Convolutions of many groups (RegNet, ResNeXt) "
        "have gates of two kinds here, for whole groups and for channels within all of them: half "
        "of both is closed, so a quarter of their channels is left, where Torch-Pruning leaves a "
        "half."
    )


def _number(row: Row, key: str, form: str) -> str:
    return format(row[key], form) if key in row else ""


def _answer(row: Row, key: str) -> str:
    return {True: "yes", False: "no", None: ""}[row.get(key)]


if __name__ == "__main__":
    main()
