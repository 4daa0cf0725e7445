"""Seconds of learning to a budget over seconds of plain training, with and without shrinking.

    python -m benchmarks.shrinking lenet vgg-small --out results/shrinking
    python -m benchmarks.shrinking vgg resnet56 resnet50 gpt --text FILE --out results/shrinking

Each case is three runs with the same epochs and seed, each in a process of its own: plain training,
learning with `shrink_`, and without. They go one after the other, or all at once (`--together`).
Runs that are finished in DIR/runs are not repeated. Two clocks are read: seconds of the training on
the wall, cuts and captures included, and seconds that the processor worked for the whole run, from
reading the data to the compact model's test. The second does not depend on what else the machine
does, and is the one that counts on a CPU.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from subprocess import Popen
from typing import Any

from torch import nn

from archlearn_cli.training import Audience, RunSettings, learn, override
from archlearn_cli.training.callbacks import EpochEnd, SilentCallback
from benchmarks.circumstances import as_markdown, describe
from benchmarks.learning import NETWORKS
from benchmarks.single_run import parse_value
from benchmarks.torchvision_import import import_models

ARMS = {"plain": "learn=nothing", "shrinking": 'budget=["{budget}"] {also} shrink=true',
        "whole": 'budget=["{budget}"] {also} shrink=false'}  # fmt: skip
MOST_LOST = 1.0
"""Points of accuracy that learning may lose to plain training."""
INTRO = """\
# Learning to a budget beside plain training

Seconds that the processor worked (on a GPU: seconds on the wall) for whole runs with the same
epochs, plain training and learning to a budget side by side. `computed` is the mean of what a step
computes, as a part of the original's multiply-adds. Accuracies are those of the test set, read
once; differences are paired and have the error of their mean (with one seed, that of drawing the
test examples). A row is met if the ratio is within its bound, learning loses at most one point to
plain training, and shrinking differs from not shrinking by at most two errors.

"""
BETWEEN = """\
Seconds that the processor worked in each epoch (on a GPU those on the wall, where a run took them
down), and the memory that training took at its end: weights, gradients and what optimisers keep; on
a GPU the most that was allocated since the last cut, the data included:

"""
HEAD = """\
| case | budget | seeds | plain | shrinking / plain | bound | without / plain | on the wall \
| computed | cuts | plain | shrinking | without | shrinking − without | shrinking − plain | met |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|
"""


@dataclass(frozen=True, slots=True)
class Case:
    """What is trained, the budget, and the most that learning may take beside plain training.

    Attributes:
        also: Words for the runs that learn.
    """

    settings: str
    budget: str
    bound: float
    also: str = ""


_CORES = "accelerator=cpu threads"
_EIGHTS = "multiple_of=8"
"""Convolutions of other widths are slower than wider ones on a GPU: VGG-16-BN of 0.53 times all
widths takes 3.4 ms a step on an H200, the whole one 3.0 ms."""
CASES = {
    "lenet": Case(f"{NETWORKS['lenet-mnist']} epochs=10 {_CORES}=1", "parameters=10000", 0.7),
    "vgg-small": Case(
        f"model=vgg16-bn data=cifar-10 limit=5000 epochs=10 learning_rate=0.05 {_CORES}=2",
        "multiply_adds=26%",
        0.6,
    ),
    "vgg": Case(f"{NETWORKS['vgg16-bn']} epochs=30", "multiply_adds=26%", 0.65, _EIGHTS),
    "resnet56": Case(f"{NETWORKS['resnet56']} epochs=30", "multiply_adds=50%", 0.9, _EIGHTS),
    "resnet50": Case(
        "model=benchmarks.shrinking:resnet50 data=cifar-10 resize=224 limit=20000 epochs=8 "
        "batch_size=100 learning_rate=0.05 precision=bf16-mixed",
        "multiply_adds=50%",
        0.8,
        'multiple_of=16 gate_schedule=["branch_discount=16","end=0.5"]',
    ),
    "gpt": Case(f"{NETWORKS['gpt']} epochs=8", "multiply_adds=50%", 0.75),
}
ON_GPU = ("vgg", "resnet56", "resnet50", "gpt")


def resnet50(n_outputs: int) -> nn.Module:
    """Return torchvision's ResNet-50 with fresh weights."""
    return import_models().resnet50(num_classes=n_outputs)


class Meter(SilentCallback):
    """Takes down how long each epoch took, by both clocks, and what memory training took."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.wall: list[float] = []
        self.memory_bytes: list[int] = []

    def epoch_ended(self, end: EpochEnd) -> None:
        """Note an epoch; the first line is of the start."""
        self.cpu.append(time.process_time())
        self.wall.append(time.perf_counter())
        self.memory_bytes.append(end.row["memory_bytes"])


def measure(folder: Path, words: list[str]) -> None:
    """Train as the words say, and write what it took beside the run's folder."""
    pairs = (word.partition("=") for word in words)
    settings = override(RunSettings(), {name: parse_value(value) for name, _, value in pairs})
    meter = Meter()
    started = time.process_time()
    summary = learn(settings, folder, Audience(observer=meter))
    row = {
        "cpu": round(time.process_time() - started, 2),
        "seconds": summary["seconds"],
        "score": summary["test_accuracy"],
        "n_test": summary["n_test"],
        "left": summary["after"]["multiply_adds"] / summary["before"]["multiply_adds"],
        "parameters": summary["after"]["parameters"],
        "shrinking": summary["shrinking"],
        "cpu_by_epoch": [round(b - a, 2) for a, b in pairwise(meter.cpu)],
        "wall_by_epoch": [round(b - a, 2) for a, b in pairwise(meter.wall)],
        "memory_by_epoch": [round(taken / 1e6, 2) for taken in meter.memory_bytes[1:]],
    }
    folder.with_suffix(".json").write_text(json.dumps(row))


def start_arm(name: str, arm: str, seed: int, asked: argparse.Namespace) -> Popen[bytes] | None:
    """Start one run, unless its result is there."""
    case, folder = CASES[name], asked.out / "runs" / f"{name}-{arm}-{seed}"
    if folder.with_suffix(".json").exists():
        return None
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    words = f"{case.settings} {ARMS[arm]} seed={seed} report=false".format(
        budget=case.budget, also=case.also, text=asked.text, weights=asked.weights
    )
    command = [sys.executable, "-m", "benchmarks.shrinking", "measure", str(folder)]
    return Popen([*command, *words.split()])


def run_seed(name: str, seed: int, asked: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the results of all arms with one seed; those are run that are not there."""
    waiting: list[Popen[bytes]] = []
    for arm in ARMS:
        started = start_arm(name, arm, seed, asked)
        if started is not None:
            waiting.append(started)
        if not asked.together:
            _wait(waiting)
    _wait(waiting)
    files = {arm: asked.out / "runs" / f"{name}-{arm}-{seed}.json" for arm in ARMS}
    return {arm: json.loads(file.read_text()) for arm, file in files.items()}


def _wait(running: list[Popen[bytes]]) -> None:
    if any(process.wait() for process in running):
        raise SystemExit("a run failed; its error is above")


def write_row(name: str, found: list[dict[str, dict[str, Any]]]) -> str:
    """Return a row of the table: means over the seeds, differences with their errors."""
    case = CASES[name]
    clock = "seconds" if name in ON_GPU else "cpu"

    def mean(arm: str, key: str) -> float:
        return statistics.fmean(row[arm][key] for row in found)

    def ratio(arm: str, key: str) -> float:
        return mean(arm, key) / mean("plain", key)

    cuts = [row["shrinking"]["shrinking"] for row in found]
    computed = statistics.fmean(cut.get("multiply_adds", 1.0) for cut in cuts)
    times = statistics.fmean(cut.get("times", 0) for cut in cuts)
    scores = " | ".join(f"{100 * mean(arm, 'score'):.2f} %" for arm in ARMS)
    lost, error = _difference(found, "shrinking", "plain")
    beside, beside_error = _difference(found, "shrinking", "whole")
    is_met = ratio("shrinking", clock) <= case.bound and lost >= -MOST_LOST
    is_met &= abs(beside) <= 2 * beside_error
    return (
        f"| {name} | {case.budget.replace('_', '-')} | {len(found)} | {mean('plain', clock):.0f} s "
        f"| **{ratio('shrinking', clock):.3f}** | {case.bound} | {ratio('whole', clock):.3f} "
        f"| {ratio('shrinking', 'seconds'):.3f} | {100 * computed:.0f} % | {times:.1f} | {scores} "
        f"| {beside:+.2f} ± {beside_error:.2f} | {lost:+.2f} ± {error:.2f} "
        f"| {'yes' if is_met else '**no**'} |"
    )


def _difference(
    found: list[dict[str, dict[str, Any]]], arm: str, other: str
) -> tuple[float, float]:
    """Return by how many points one arm is better than another, and the error of that.

    The error is that of the mean over seeds; with one seed, that of drawing the test examples.
    """
    points = [100 * (row[arm]["score"] - row[other]["score"]) for row in found]
    if len(points) > 1:
        return statistics.fmean(points), statistics.stdev(points) / len(points) ** 0.5
    spread = [row["score"] * (1 - row["score"]) / row["n_test"]
              for row in (found[0][arm], found[0][other])]  # fmt: skip
    return points[0], 100 * sum(spread) ** 0.5


def write_epochs(name: str, found: list[dict[str, dict[str, Any]]]) -> str:
    """Return a table of seconds and memory in each epoch: means over the seeds."""
    n_epochs = len(found[0]["plain"]["cpu_by_epoch"])
    has_wall = all("wall_by_epoch" in row[arm] for row in found for arm in ARMS)
    clock = "wall_by_epoch" if name in ON_GPU and has_wall else "cpu_by_epoch"
    lines = [f"| {name}, epoch | {' | '.join(str(n + 1) for n in range(n_epochs))} |",
             f"|---|{'--:|' * n_epochs}"]  # fmt: skip
    for arm in ARMS:
        for key, unit in ((clock, "s"), ("memory_by_epoch", "MB")):
            epochs = zip(*(row[arm][key] for row in found), strict=True)
            cells = " | ".join(f"{statistics.fmean(each):.3g}" for each in epochs)
            lines.append(f"| {arm}, {unit} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print the tables and write them."""
    if sys.argv[1:2] == ["measure"]:
        measure(Path(sys.argv[2]), sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", choices=[*CASES])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--together", action="store_true", help="all arms of a seed at once")
    parser.add_argument("--text", default="", help="the file of tiny Shakespeare, for gpt")
    parser.add_argument("--weights", default="")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    rows: list[str] = []
    epochs: list[str] = []
    for name in asked.cases:
        found = [run_seed(name, seed, asked) for seed in range(asked.seeds)]
        rows.append(write_row(name, found))
        epochs.append(write_epochs(name, found))
    device = "cuda" if set(asked.cases) & set(ON_GPU) else "cpu"
    page = INTRO + HEAD + "\n".join(rows) + "\n\n" + BETWEEN + "\n\n".join(epochs) + "\n\n"
    page += as_markdown(describe(device=device)) + "\n"
    (asked.out / ("shrinking.md" if device == "cpu" else "shrinking_gpu.md")).write_text(page)
    print(page)


if __name__ == "__main__":
    main()
