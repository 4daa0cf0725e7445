"""A training step of CaffeNet at 227 x 227, as `archlearn paper table-4` makes it, timed.

Images are random bytes: nothing has to be fetched. For each kind of step it prints milliseconds a
step, and what an epoch of Tiny-ImageNet's 95,000 train images would take; last the time of scoring
10,000 images and of compacting.

    python benchmarks/caffenet_step.py --out results/caffenet_step.json
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from archlearn.data.dataset import Dataset, Examples, Split, build_dataset
from archlearn.data.transforms import Framing
from archlearn.training import cuda_graph, run_setup
from archlearn.training.hardware import start_fabric
from archlearn.training.metrics import evaluate
from archlearn.training.settings import (
    GateSettings,
    HardwareSettings,
    OptimiserSettings,
    RunSettings,
)
from archlearn_paper.outcomes import compact_trained

TRAIN_IMAGES = 95_000


def random_images(n: int, side: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (n, 3, 64, 64), generator=generator, dtype=torch.uint8)
    split = Split(inputs, torch.arange(n) % 200)
    test = Split(inputs[: n // 2], split.targets[: n // 2])
    examples = Examples(name="random", source="random", train=split, test=test)
    framing = Framing(side, "crop-flip")
    return build_dataset(examples, validation_share=0.05, framing=framing)


def settings_of(options: argparse.Namespace, learn: Any, batch: int) -> RunSettings:
    precision = "bf16-mixed" if torch.cuda.is_available() else "32-true"
    return RunSettings(
        model=options.model,
        epochs=1,
        batch_size=batch,
        optimiser=OptimiserSettings(learning_rate=1e-3),
        gates=GateSettings(learn=learn, start_after=0.0, freeze_for=0.0),
        hardware=HardwareSettings(precision=precision, capture=options.capture),
    )


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def time_steps(session: run_setup.Session, n_steps: int) -> float:
    """Return milliseconds a step, after a few that do not count."""
    stepper, place = session.stepper, 0
    order = torch.arange(len(session.dataset.train), device=session.fabric.device)
    stepper.begin_epoch(order, 0.0, 0.0)
    while place < 5:
        place += stepper.advance(place, place)
    wait()
    started, first = time.perf_counter(), place
    while place < min(first + n_steps, session.steps_per_epoch - 20):
        place += stepper.advance(place, place)
    wait()
    return 1000 * (time.perf_counter() - started) / (place - first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/caffenet_step.json"))
    parser.add_argument("--model", default="caffenet")
    parser.add_argument("--side", type=int, default=227)
    parser.add_argument("--images", type=int, default=30_000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--capture", choices=["auto", "no"], default="auto")
    options = parser.parse_args()
    # Whether capturing pays for a network this large is one of the questions.
    cuda_graph._MOST_PARAMETERS_TO_CAPTURE = 10**9
    fabric = start_fabric(HardwareSettings(precision="bf16-mixed"))
    dataset = random_images(options.images, options.side).to(fabric.device)
    rows: list[dict[str, Any]] = []
    for batch in options.batches:
        for learn in ("nothing", "width"):
            for capture in ("no", "auto") if options.capture == "auto" else ("no",):
                asked = settings_of(options, learn, batch)
                asked = replace(asked, hardware=replace(asked.hardware, capture=capture))
                session = run_setup.open_session(asked, Path("unused"), fabric, dataset)
                kind = type(session.stepper).__name__
                took = time_steps(session, options.steps)
                row = {"learn": learn, "batch": batch, "step": kind, "ms": round(took, 3)}
                row["epoch_seconds"] = round(TRAIN_IMAGES / batch * took / 1000, 2)
                rows.append(row)
                print(json.dumps(row), flush=True)
    wait()
    started = time.perf_counter()
    evaluate(session.work.model, dataset.test, session.objective)
    wait()
    scoring = (time.perf_counter() - started) * 10_000 / len(dataset.test)
    started = time.perf_counter()
    compact_trained(session)
    ends = {
        "scoring_10k_s": round(scoring, 2),
        "compact_s": round(time.perf_counter() - started, 2),
    }
    print(json.dumps(ends), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    table = {"device": name, "torch": torch.__version__, "rows": rows, **ends}
    options.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
