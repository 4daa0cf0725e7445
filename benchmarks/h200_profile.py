"""Where the time of learning LeNet's architecture goes: by step, by kernel, by part of an epoch.

    python benchmarks/h200_profile.py --data idx:carried/mnist

On a GPU the step is timed as it is replayed and profiled kernel by kernel; without one only
the parts of an epoch that run on the host are worth reading. Takes less than a minute.
"""

import argparse
import cProfile
import itertools
import pstats
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from archlearn.data.downloads import no_progress
from archlearn.training import run_setup
from archlearn.training.__main__ import parse_value
from archlearn.training.callbacks import SilentCallback
from archlearn.training.checkpoint import Position, order_of_epoch
from archlearn.training.config import override
from archlearn.training.metrics import read_gates, sum_scores
from archlearn.training.run_setup import Session, prepare, set_layout_
from archlearn.training.settings import RunSettings
from archlearn.training.trainer import Interruption, Loop

ON_GPU = torch.cuda.is_available()


def finish() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def median_ms(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of a piece of work, with what it leaves to the device."""
    times: list[float] = []
    for _ in range(repeats):
        finish()
        started = time.perf_counter()
        work()
        finish()
        times.append(time.perf_counter() - started)
    return 1000 * sorted(times)[len(times) // 2]


def run_steps(session: Session) -> None:
    place = 0
    while place < session.steps_per_epoch:
        place += session.stepper.advance(place, place)


def begin(session: Session) -> None:
    order = order_of_epoch(len(session.dataset.train), 0, 0)
    session.stepper.begin_epoch(order, 0.0, 0.0)


def measure_anew(session: Session, loop: Loop) -> None:
    """Measure an architecture that was not there before, as happens while gates move."""
    width, depth = read_gates(session.work.model)
    moved = {name: torch.rand_like(gate) for name, gate in width.items()}
    loop._journal._observatory.measure(moved, depth, 0.0)


def time_parts(session: Session, folder: Path) -> None:
    """Print milliseconds by part of an epoch, and those of whole epochs."""
    begin(session)
    run_steps(session)
    steps = median_ms(lambda: run_steps(session), 3)
    n_steps = session.steps_per_epoch
    print(f"\n## batch {session.work.batch_size}: {n_steps} steps, {session.stepper}")
    print(f"  a step {steps / n_steps:8.3f} ms; the steps of an epoch {steps:8.2f} ms")
    loop = Loop(session, Position(), SilentCallback(), Interruption())
    split = session.dataset.validation.to(session.fabric.device)
    parts: dict[str, Callable[[], object]] = {
        "order of the examples": lambda: begin(session),
        "validation": lambda: sum_scores(session.work.model, split, session.objective),
        "validation in the loop": loop._validate,
        "record, its writing put off": lambda: loop._record(0.0, 0.0),
        "writing": loop._journal.write,
        "measure with new gates": lambda: measure_anew(session, loop),
        "checkpoint": loop._save,
    }
    (folder / "run").mkdir(exist_ok=True)
    for name, part in parts.items():
        part()
        print(f"  {name:28s} {median_ms(part, 5):8.2f} ms")
    watched = cProfile.Profile()
    times: list[float] = []
    for _ in range(8):
        started = time.perf_counter()
        watched.runcall(loop._run_epoch)
        times.append(1000 * (time.perf_counter() - started))
    print("  whole epochs, ms:", " ".join(f"{t:.1f}" for t in times))
    pstats.Stats(watched, stream=sys.stdout).sort_stats("cumulative").print_stats(25)


def show_kernels(session: Session) -> None:
    """Print the kernels of an epoch of replayed steps."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if ON_GPU else [])]
    begin(session)
    with profile(activities=activities) as profiled:
        run_steps(session)
        finish()
    events = [event for event in profiled.events() or [] if _is_kernel(event)]
    n_steps = session.steps_per_epoch
    spent = sum(event.time_range.elapsed_us() for event in events)
    print(f"\n## kernels: {len(events) / n_steps:.1f} a step, {spent / n_steps:.1f} us busy a step")
    by_name: dict[str, list[float]] = {}
    for event in events:
        by_name.setdefault(event.name, []).append(event.time_range.elapsed_us())
    ordered = sorted(by_name.items(), key=lambda item: -sum(item[1]))
    for name, taken in ordered[:70]:
        print(f"{sum(taken) / n_steps:9.2f} us {len(taken) / n_steps:6.1f} x  {name[:150]}")


def _is_kernel(event: object) -> bool:
    wanted = "CUDA" if ON_GPU else "CPU"
    return wanted in str(getattr(event, "device_type", ""))


def try_variants(given: dict[str, Any], folder: Path) -> None:
    """Print the time of a step, compiled and not, for two layouts in memory."""
    print(f"\n## variants; triton {find_spec('triton') is not None}, gcc {shutil.which('gcc')}")
    for batch, layout, compiled in itertools.product(
        (500, 250, 125), ("channels_last", "contiguous"), (False, True)
    ):
        run_setup.set_layout_ = set_layout_ if layout == "channels_last" else leave_layout
        settings = override(RunSettings(), given | {"batch_size": batch, "compile": compiled})
        started = time.perf_counter()
        session = prepare(settings, folder / "run", no_progress)
        ready = time.perf_counter() - started
        begin(session)
        run_steps(session)
        taken = median_ms(lambda session=session: run_steps(session), 3) / session.steps_per_epoch
        print(
            f"  batch {batch} {layout:14s} {'compiled' if compiled else 'eager':9s} "
            f"{taken:7.3f} ms a step; ready after {ready:.1f} s",
            flush=True,
        )
        if batch == 500 and compiled:
            show_kernels(session)
    run_setup.set_layout_ = set_layout_


def leave_layout(model: nn.Module, layout: torch.memory_format) -> None:
    """Leave the weights as they are."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--batches", type=int, nargs="*", default=[500, 250, 125])
    parser.add_argument("settings", nargs="*", help="name=value")
    asked = parser.parse_args()
    print(torch.__version__, torch.cuda.get_device_name() if ON_GPU else "no GPU")
    given: dict[str, Any] = {"model": "lenet", "data": asked.data, "epochs": 300}
    given |= {n: parse_value(v) for n, _, v in (word.partition("=") for word in asked.settings)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for place, batch in enumerate(asked.batches):
            settings = override(RunSettings(), given | {"batch_size": batch})
            session = prepare(settings, folder / "run", no_progress)
            time_parts(session, folder)
            if place == 0:
                show_kernels(session)
        if ON_GPU:
            try_variants(given, folder)


if __name__ == "__main__":
    main()
