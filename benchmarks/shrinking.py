"""Seconds of learning to a budget over seconds of plain training, with and without shrinking.

    python -m benchmarks.shrinking lenet vgg-small --out results/shrinking
    python -m benchmarks.shrinking vgg resnet56 gpt --text FILE --out results/shrinking

Each case is three runs of `python -m archlearn.training` with the same epochs and seed, one after
the other, each alone in a process of its own: plain training, learning with `shrink_`, and without.
Runs that are finished in DIR/runs are not repeated; close other programs. The seconds are those of
the training, cuts and captures included; those of the whole process stand beside them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.circumstances import as_markdown, describe
from benchmarks.learning import NETWORKS

ARMS = {"plain": "learn=nothing", "shrinking": 'budget=["{budget}"] shrink=true',
        "whole": 'budget=["{budget}"] shrink=false'}  # fmt: skip
HEAD = """\
| case | budget | plain, s | shrinking / plain | bound | whole process | without shrinking / plain \
| computed | cuts | plain | shrinking | without | met |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|
"""


@dataclass(frozen=True, slots=True)
class Case:
    """What is trained, the budget, and the most that learning may take beside plain training."""

    settings: str
    budget: str
    bound: float


_CORES = "accelerator=cpu threads=2"
CASES = {
    "lenet": Case(f"{NETWORKS['lenet-mnist']} epochs=10 {_CORES}", "parameters=10000", 0.7),
    "vgg-small": Case(
        f"model=vgg16-bn data=cifar-10 limit=5000 epochs=10 learning_rate=0.05 {_CORES}",
        "multiply_adds=26%",
        0.6,
    ),
    "vgg": Case(f"{NETWORKS['vgg16-bn']} epochs=30", "multiply_adds=26%", 0.65),
    "resnet56": Case(f"{NETWORKS['resnet56']} epochs=30", "multiply_adds=50%", 0.9),
    "gpt": Case(f"{NETWORKS['gpt']} epochs=8", "multiply_adds=50%", 0.75),
}


def run_arm(name: str, arm: str, seed: int, places: dict[str, str], out: Path) -> dict[str, Any]:
    """Return the result of one run, which is made unless it is there."""
    case = CASES[name]
    folder = out / "runs" / f"{name}-{arm}-{seed}"
    known = folder.with_suffix(".json")
    if known.exists():
        return json.loads(known.read_text())
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    words = f"{case.settings} {ARMS[arm]} seed={seed}".format(budget=case.budget, **places)
    command = [sys.executable, "-m", "archlearn.training", str(folder), *words.split()]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} {arm}: {done.stderr[-2000:]}")
    summary = json.loads((folder / "summary.json").read_text())
    row = {
        "seconds": summary["seconds"],
        "process": round(time.monotonic() - started, 1),
        "score": summary["test_accuracy"],
        "loss": summary["test_loss"],
        "left": summary["after"]["multiply_adds"] / summary["before"]["multiply_adds"],
        "parameters": summary["after"]["parameters"],
        "shrinking": summary["shrinking"],
    }
    known.write_text(json.dumps(row))
    print(f"{name} {arm} {seed}: {row}", flush=True)
    return row


def write_row(name: str, found: dict[str, list[dict[str, Any]]]) -> str:
    """Return a row of the table: means over the seeds."""
    case = CASES[name]

    def mean(arm: str, key: str) -> float:
        return statistics.fmean(row[key] for row in found[arm])

    ratio = mean("shrinking", "seconds") / mean("plain", "seconds")
    cuts = [row["shrinking"] for row in found["shrinking"]]
    computed = statistics.fmean(cut.get("multiply_adds", 1.0) for cut in cuts)
    times = statistics.fmean(cut.get("times", 0) for cut in cuts)
    scores = " | ".join(f"{100 * mean(arm, 'score'):.2f} %" for arm in ARMS)
    return (
        f"| {name} | {case.budget.replace('_', '-')} | {mean('plain', 'seconds'):.0f} "
        f"| **{ratio:.3f}** | {case.bound} "
        f"| {mean('shrinking', 'process') / mean('plain', 'process'):.3f} "
        f"| {mean('whole', 'seconds') / mean('plain', 'seconds'):.3f} | {100 * computed:.0f} % "
        f"| {times:.1f} | {scores} | {'yes' if ratio <= case.bound else '**no**'} |"
    )


def main() -> None:
    """Measure, print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", choices=[*CASES])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--text", default="", help="the file of tiny Shakespeare, for gpt")
    parser.add_argument("--weights", default="")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    places = {"text": asked.text, "weights": asked.weights}
    rows: list[str] = []
    for name in asked.cases:
        found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
        for seed in range(asked.seeds):
            for arm in ARMS:
                found[arm].append(run_arm(name, arm, seed, places, asked.out))
        rows.append(write_row(name, found))
    device = "cpu" if set(asked.cases) <= {"lenet", "vgg-small"} else "cuda"
    intro = (
        "# Learning to a budget beside plain training\n\n"
        "Seconds of the training with the same epochs; `computed` is the mean of what a step "
        "computes, as a part of the original's multiply-adds.\n\n"
    )
    page = intro + HEAD + "\n".join(rows) + "\n\n" + as_markdown(describe(device=device)) + "\n"
    (asked.out / ("shrinking.md" if device == "cpu" else "shrinking_gpu.md")).write_text(page)
    print(page)


if __name__ == "__main__":
    main()
