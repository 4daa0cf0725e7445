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
from pathlib import Path

from benchmarks.circumstances import describe
from benchmarks.resnet50 import measure as time_resnet50
from benchmarks.torchvision_import import classification_models
from benchmarks.torchvision_pages import page
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


if __name__ == "__main__":
    main()
