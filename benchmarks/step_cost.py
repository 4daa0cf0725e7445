"""What a gated training step costs beside the plain one, measured in turns in one run.

    python -m benchmarks.step_cost --out results/step_cost.json

The gated step holds all that a user's loop does: forward, penalty, backward, optimiser, clipping.
A second plain network takes its turn as well; its ratio to the first shows the noise. Ratios are
given of the time on the clock and of the processor's time, which other programs disturb less.
"""

import argparse
import copy
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al
from benchmarks.torchvision_import import import_models

ARMS = ("plain", "plain again", "gated")
LEARNING_RATE, MOMENTUM = 1e-3, 0.9
STRENGTHS = al.Strengths.from_width_cost(3e-4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A network and the batch that it is trained on."""

    name: str
    build: Callable[[], nn.Module]
    batch: int
    shape: tuple[int, int, int]
    steps: int


class Taken(NamedTuple):
    """Seconds for a step."""

    clock: float
    processor: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Medians over the repeats, in milliseconds a step.

    Attributes:
        ratio: Median over the repeats of gated over plain, taken within a repeat.
        noise: The same of a second plain network over the first.
        cpu_ratio: As `ratio`, of the processor's time.
        cpu_noise: As `noise`, of the processor's time.
    """

    case: str
    mode: str
    plain_ms: float
    gated_ms: float
    ratio: float
    noise: float
    cpu_ratio: float
    cpu_noise: float
    repeats: int


def lenet() -> nn.Module:
    """Return the paper's 20-50-500-10, with max-pooling in front of the activation."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(20, 50, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(),
        nn.Linear(500, 10),
    )


def cifar_resnet18() -> nn.Module:
    """Return torchvision's resnet18 with the stem that images of 32 x 32 need."""
    net = import_models().resnet18(num_classes=10)
    net.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    net.maxpool = nn.Identity()
    return net


CASES = {
    "lenet": Case(name="lenet", build=lenet, batch=125, shape=(1, 28, 28), steps=5),
    "resnet18": Case(name="resnet18", build=cifar_resnet18, batch=32, shape=(3, 32, 32), steps=1),
}


def measure(case: Case, mode: str, repeats: int, device: torch.device) -> Result:
    """Time the three arms in turns and return the medians."""
    torch.manual_seed(0)
    net = case.build().to(device)
    images = torch.randn(case.batch, *case.shape, device=device)
    labels = torch.randint(0, 10, (case.batch,), device=device)
    steps = {
        "plain": _plain_step(copy.deepcopy(net), images, labels, mode),
        "plain again": _plain_step(copy.deepcopy(net), images, labels, mode),
        "gated": _gated_step(net, images, labels, mode),
    }
    for step in steps.values():
        _time(step, max(2, case.steps), device)
    times: dict[str, list[Taken]] = {arm: [] for arm in ARMS}
    for turn in range(repeats):
        # The order turns as well, so that no arm always follows the same one.
        for arm in ARMS[turn % 3 :] + ARMS[: turn % 3]:
            times[arm].append(_time(steps[arm], case.steps, device))
    return Result(
        case=case.name,
        mode=mode,
        plain_ms=1000 * statistics.median(taken.clock for taken in times["plain"]),
        gated_ms=1000 * statistics.median(taken.clock for taken in times["gated"]),
        ratio=_median_ratio(times, "gated", "clock"),
        noise=_median_ratio(times, "plain again", "clock"),
        cpu_ratio=_median_ratio(times, "gated", "processor"),
        cpu_noise=_median_ratio(times, "plain again", "processor"),
        repeats=repeats,
    )


def _plain_step(net: nn.Module, images: Tensor, labels: Tensor, mode: str) -> Callable[[], None]:
    net.train()
    optimiser = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    forward = torch.compile(net) if mode == "compiled" else net

    def step() -> None:
        loss = F.cross_entropy(forward(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def _gated_step(net: nn.Module, images: Tensor, labels: Tensor, mode: str) -> Callable[[], None]:
    gated = al.add_gates(net, images).train()
    groups = al.parameter_groups(gated, LEARNING_RATE, momentum=MOMENTUM)
    optimiser = torch.optim.SGD(groups, lr=LEARNING_RATE, momentum=MOMENTUM)
    forward = torch.compile(gated) if mode == "compiled" else gated

    def step() -> None:
        loss = F.cross_entropy(forward(images), labels) + al.penalty(gated, STRENGTHS)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        al.clip_gates_(gated)

    return step


def _time(step: Callable[[], None], n_steps: int, device: torch.device) -> Taken:
    _finish(device)
    clock, processor = time.perf_counter(), time.process_time()
    for _ in range(n_steps):
        step()
    _finish(device)
    return Taken(
        (time.perf_counter() - clock) / n_steps, (time.process_time() - processor) / n_steps
    )


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _median_ratio(times: dict[str, list[Taken]], arm: str, which: str) -> float:
    pairs = zip(times[arm], times["plain"], strict=True)
    return statistics.median(getattr(a, which) / getattr(b, which) for a, b in pairs)


def _hardware(device: torch.device) -> dict[str, str | int]:
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "machine": f"{platform.machine()} {platform.processor()}".strip(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "command": " ".join(["python -m benchmarks.step_cost", *sys.argv[1:]]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--modes", nargs="*", default=["eager", "compiled"])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: list[Result] = []
    print("| network | mode | plain, ms | gated, ms | gated / plain | noise | cpu | cpu noise |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for name in options.cases:
        for mode in options.modes:
            result = measure(CASES[name], mode, options.repeats, options.device)
            results.append(result)
            print(
                f"| {name} | {mode} | {result.plain_ms:.2f} | {result.gated_ms:.2f} "
                f"| {result.ratio:.3f} | {result.noise:.3f} "
                f"| {result.cpu_ratio:.3f} | {result.cpu_noise:.3f} |",
                flush=True,
            )
    if options.out:
        record = {**_hardware(options.device), "results": [asdict(one) for one in results]}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
