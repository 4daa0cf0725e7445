"""300 epochs of architecture learning for LeNet on MNIST, timed on one GPU.

The paper: about 30 minutes on a Titan X. Needs torch, Lightning Fabric, safetensors and numpy.
The time is that of the whole run as its folder records it, with recording, validation at every
epoch and checkpoints; reading the data and capturing the step come before and are shown apart.

    python benchmarks/h200_lenet.py --data idx:carried/mnist --out results/h200_lenet.json
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

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from archlearn.training.__main__ import parse_value
from archlearn.training.observing import EpochEnd, SilentObserver
from archlearn.training.running import Audience, learn
from archlearn.training.settings import RunSettings
from archlearn.training.tables import override

BOUND_SECONDS = 30.0


class Printer(SilentObserver):
    """Prints every twentieth epoch."""

    def epoch_ended(self, end: EpochEnd) -> None:
        """Print a line."""
        row = end.row
        if row["epoch"] % 20 == 0:
            widths = "-".join(str(width) for width in row["widths"].values())
            accuracy = row["validation_accuracy"]
            print(f"{row['epoch']:4d} {row['seconds']:7.2f} s {accuracy:.4f} {widths}", flush=True)


def measure(given: dict[str, Any], command: str) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp()) / "run"
    started = time.perf_counter()
    try:
        audience = Audience(observer=Printer(), command=command)
        summary = dict(learn(override(RunSettings(), given), folder, audience))
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)
    summary["seconds_with_start_and_end"] = round(time.perf_counter() - started, 3)
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--out", type=Path, default=Path("results/h200_lenet.json"))
    parser.add_argument("settings", nargs="*", help="name=value")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("h200_lenet: needs a GPU, and torch finds none here; nothing was measured")
        return
    given: dict[str, Any] = {"model": "lenet", "data": asked.data, "epochs": 300}
    given |= {n: parse_value(v) for n, _, v in (word.partition("=") for word in asked.settings)}
    summary = measure(given, " ".join(["python", *sys.argv]))
    chosen = {"settings": given, "bound_seconds": BOUND_SECONDS, **summary}
    chosen.pop("plan", None)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(chosen, indent=1, default=str) + "\n")
    print(
        f"{summary['epochs']} epochs in {summary['seconds']:.1f} s (bound {BOUND_SECONDS:.0f} s), "
        f"{summary['hardware']['name']}: {summary['after']['architecture']}, "
        f"{summary['after']['parameters']:,} parameters, test {summary['test_accuracy']:.2%}"
    )


if __name__ == "__main__":
    main()
