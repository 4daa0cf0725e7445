"""Compact every classification model of torchvision, with Torch-Pruning beside it.

For each model: add gates, drop a random half of every group of channels, compact, and compare
with the gated model in float64. Each model and side runs in a process of its own under a time
limit; rows are appended to a file as they come, and what is in the file is not run again.

    python -m benchmarks.torchvision_models --out results/torchvision.jsonl
"""

import argparse
import copy
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from benchmarks.torchvision_import import classification_models
from benchmarks.torchvision_sides import SIDES, Row, drop_half_, measure, prune_half_
from benchmarks.torchvision_subjects import build

_MARK = "ROW "


def main() -> None:
    options = _options()
    if options.one:
        print(_MARK + json.dumps(measure(options.one, options.side, options.device)))
        return
    names = options.models or classification_models()
    rows = _run_all(names, options)
    print(table(rows, names))
    print(summary(rows, names))
    if options.repeats:
        print(json.dumps(time_resnet50(options.repeats, options.out)))


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
    return "\n".join(lines)


def time_resnet50(repeats: int, out: Path) -> Row:
    """Time both sides on resnet50 in this process, in turns, and append the medians."""
    import archlearn as al

    net, images = build("resnet50", dtype=torch.float32), torch.randn(1, 3, 224, 224)
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(repeats + 1):
        start = time.perf_counter()
        gated = al.add_gates(net, images)
        added = time.perf_counter()
        drop_half_(gated, seed=1)
        ready = time.perf_counter()
        al.compact(gated)
        seconds["archlearn"].append(added - start + time.perf_counter() - ready)
        victim = copy.deepcopy(net)
        start = time.perf_counter()
        prune_half_(victim, images)
        seconds["torch-pruning"].append(time.perf_counter() - start)
    # The first turn warms both up and is not counted.
    medians = {side: statistics.median(taken[1:]) for side, taken in seconds.items()}
    row: Row = {
        "timing": "resnet50, float32, 1x3x224x224, medians",
        "repeats": repeats,
        "seconds": medians,
        "all_seconds": seconds,
        "ratio": medians["archlearn"] / medians["torch-pruning"],
        "threads": torch.get_num_threads(),
        "machine": f"{platform.machine()} {platform.processor()} {os.cpu_count()} cores",
        "torch": torch.__version__,
    }
    _append(out, row)
    return row


def _run_all(names: list[str], options: argparse.Namespace) -> list[Row]:
    rows = [row for row in _read(options.out) if "model" in row]
    done = {(row["model"], row["side"]) for row in rows}
    todo = [(name, side) for name in names for side in options.sides if (name, side) not in done]

    def run(name: str, side: str) -> Row:
        row = _in_own_process(name, side, options)
        _append(options.out, row)
        print(f"{name} {side}: {row.get('error') or row.get('difference')}", file=sys.stderr)
        return row

    with ThreadPoolExecutor(options.jobs) as pool:
        return rows + list(pool.map(lambda pair: run(*pair), todo))


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


def _number(row: Row, key: str, form: str) -> str:
    return format(row[key], form) if key in row else ""


def _answer(row: Row, key: str) -> str:
    return {True: "yes", False: "no", None: ""}[row.get(key)]


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
    parser.add_argument("--repeats", type=int, default=5, help="of the resnet50 timing; 0: none")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
