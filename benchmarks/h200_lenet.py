"""300 epochs of architecture learning for LeNet on MNIST, timed on one GPU.

The paper: about 30 minutes on a Titan X. Needs torch, Lightning Fabric, safetensors, numpy and
tomli-w.
The time is that of the whole run as its folder records it, with recording, validation at every
epoch and checkpoints; reading the data and capturing the step come before and are shown apart.

    ARCHLEARN_CACHE=carried python benchmarks/h200_lenet.py --data mnist --out results/h200_lenet \
        "batch_size=500" "batch_size=250 compile=true"

Each argument is a run with its settings. Writes a .json and a .md.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from archlearn_cli.training.callbacks import EpochEnd, SilentCallback
from archlearn_cli.training.run import Audience, learn
from archlearn_cli.training.settings import RunSettings, override
from benchmarks.circumstances import as_markdown, describe
from benchmarks.single_run import parse_value

BOUND_SECONDS = 30.0
PAPER_MINUTES = 30
ALIVE = 0.5
"""A run whose accuracy is below this has died; a guess has 0.1."""
RUNS = ["batch_size=500", "batch_size=500 compile=true", "batch_size=250 compile=true"]


class Printer(SilentCallback):
    """Prints every twentieth epoch."""

    def epoch_ended(self, end: EpochEnd) -> None:
        """Print a line."""
        row = end.row
        if row["epoch"] % 20 == 0:
            widths = "-".join(str(width) for width in row["widths"].values())
            accuracy = row["validation_accuracy"]
            print(f"{row['epoch']:4d} {row['seconds']:7.2f} s {accuracy:.4f} {widths}", flush=True)


def measure(given: dict[str, Any], command: str) -> dict[str, Any]:
    """Return the summary of a run, with the time of everything around it."""
    folder = Path(tempfile.mkdtemp()) / "run"
    started = time.perf_counter()
    try:
        audience = Audience(observer=Printer(), command=command)
        summary = dict(learn(override(RunSettings(), given), folder, audience))
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)
    summary["seconds_with_start_and_end"] = round(time.perf_counter() - started, 3)
    summary.pop("plan", None)
    return {"settings": given, "bound_seconds": BOUND_SECONDS, **summary}


def row(run: dict[str, Any]) -> str:
    """Return a row of the table."""
    given, after = run["settings"], run["after"]
    return (
        f"| {given.get('batch_size', 125)} | {'yes' if given.get('compile') else 'no'} "
        f"| **{run['seconds']:.1f}** | {run['seconds_with_start_and_end']:.1f} "
        f"| {after['architecture']} | {after['parameters']:,} | {run['test_accuracy']:.2%} |"
    )


def page(runs: list[dict[str, Any]], circumstances: dict[str, str]) -> str:
    """Return the runs as a page of Markdown."""
    alive = [run for run in runs if run["test_accuracy"] >= ALIVE]
    within = sum(run["seconds"] <= BOUND_SECONDS for run in alive)
    dead = f" ({len(runs) - len(alive)} died and do not count)" if len(alive) < len(runs) else ""
    rows = "\n".join(row(run) for run in runs)
    return (
        f"# {runs[0]['epochs']} epochs of architecture learning for LeNet on MNIST\n\n"
        f"Written by {as_markdown(circumstances)}\n\n"
        f"`archlearn learn` as it is: validation and recording at every epoch, checkpoints. The "
        f"aim is {BOUND_SECONDS:.0f} s: **met by {within} of\n{len(alive)} runs**{dead}. The "
        f'paper: about {PAPER_MINUTES} minutes on a Titan X. "all" adds reading the data, '
        "compiling and capturing\nthe step, surgery, test and report.\n\n"
        "| batch | compiled | seconds | all | architecture | parameters | test accuracy |\n"
        f"|--:|---|--:|--:|---|--:|--:|\n{rows}\n"
    )


def main() -> None:
    """Measure every run that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--out", type=Path, default=Path("results/h200_lenet"))
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("runs", nargs="*", default=RUNS, help="'name=value name=value'")
    parser.add_argument("--draw", action="store_true", help="only write the page anew")
    asked = parser.parse_args()
    if asked.draw:
        record = json.loads(asked.out.with_suffix(".json").read_text())
        runs = record.pop("runs")
        asked.out.with_suffix(".md").write_text(page(runs, record))
        return
    if not torch.cuda.is_available():
        print("h200_lenet: torch finds no GPU here, so the step is not captured")
    runs: list[dict[str, Any]] = []
    for words in asked.runs:
        given: dict[str, Any] = {"model": "lenet", "data": asked.data, "epochs": asked.epochs}
        pairs = (word.partition("=") for word in words.split())
        given |= {name: parse_value(value) for name, _, value in pairs}
        runs.append(measure(given, " ".join(["python", *sys.argv])))
        print(row(runs[-1]), flush=True)
    circumstances = describe(device="cuda" if torch.cuda.is_available() else "cpu")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    record = {**circumstances, "runs": runs}
    asked.out.with_suffix(".json").write_text(json.dumps(record, indent=1, default=str) + "\n")
    asked.out.with_suffix(".md").write_text(page(runs, circumstances))


if __name__ == "__main__":
    main()
