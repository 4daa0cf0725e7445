"""What a gated training step costs beside the plain one, measured in turns in one run.

    python -m benchmarks.step_cost --out results/step_cost

The gated step holds all that a user's loop does: forward, penalty, backward, optimiser, clipping.
A second plain network takes its turn as well; its ratio to the first shows the noise. Ratios are
given of the time on the clock and of the processor's time, which other programs disturb less.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.circumstances import as_markdown, describe
from benchmarks.step_arms import (
    CASES,
    MODES,
    Case,
    Step,
    budget_step,
    gated_step,
    naive_step,
    plain_step,
)

BOUND = 1.05
ARMS = ("plain", "plain again", "gated", "budget", "naive")
HEAD = """\
| network | mode | plain, ms | penalty / plain | of processor time | budget / plain | of processor \
time | noise | noise of processor time | naive / plain |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|
"""


class Taken(NamedTuple):
    """Seconds for a step."""

    clock: float
    processor: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Medians over the turns, in milliseconds a step.

    Attributes:
        ratio: Median over the turns of gated over plain, taken within a turn.
        budget: The same of a step with a `GateOptimizer`, the mean instead of the median, for it
            does more in some steps than in others.
        noise: The same of a second plain network over the first.
        naive: The same of the naive form.
        cpu_ratio: As `ratio`, of the processor's time.
        cpu_noise: As `noise`, of the processor's time.
    """

    case: str
    mode: str
    plain_ms: float
    gated_ms: float
    ratio: float
    budget: float
    cpu_budget: float
    noise: float
    naive: float
    cpu_ratio: float
    cpu_noise: float
    turns: int

    def row(self) -> str:
        """Return a row of the table."""
        return (
            f"| {self.case} | {self.mode} | {self.plain_ms:.2f} "
            f"| **{self.ratio:.3f}** | {self.cpu_ratio:.3f} | **{self.budget:.3f}** "
            f"| {self.cpu_budget:.3f} | {self.noise:.3f} | {self.cpu_noise:.3f} "
            f"| {self.naive:.3f} |"
        )


def measure(case: Case, mode: str, turns: int, device: torch.device) -> Result:
    """Time the arms in turns and return the medians."""
    steps = _steps(case, mode, device)
    for step in steps.values():
        _time(step, case.warm_up, device)
    times: dict[str, list[Taken]] = {arm: [] for arm in ARMS}
    for turn in range(turns):
        # The order turns as well, so that no arm always follows the same one.
        place = turn % len(ARMS)
        for arm in ARMS[place:] + ARMS[:place]:
            times[arm].append(_time(steps[arm], 1, device))
    return Result(
        case=case.name,
        mode=mode,
        plain_ms=1000 * statistics.median(taken.clock for taken in times["plain"]),
        gated_ms=1000 * statistics.median(taken.clock for taken in times["gated"]),
        ratio=_median_ratio(times, "gated", "clock"),
        budget=_mean_ratio(times, "budget", "clock"),
        cpu_budget=_mean_ratio(times, "budget", "processor"),
        noise=_median_ratio(times, "plain again", "clock"),
        naive=_median_ratio(times, "naive", "clock"),
        cpu_ratio=_median_ratio(times, "gated", "processor"),
        cpu_noise=_median_ratio(times, "plain again", "processor"),
        turns=turns,
    )


def _steps(case: Case, mode: str, device: torch.device) -> dict[str, Step]:
    torch.manual_seed(0)
    net = case.build().to(device)
    images = torch.randn(case.batch, *case.shape, device=device)
    labels = torch.randint(0, 10, (case.batch,), device=device)
    makers: list[Callable[..., Step]] = [
        plain_step, plain_step, gated_step, budget_step, naive_step
    ]  # fmt: skip
    return {
        arm: make(copy.deepcopy(net), images, labels, mode)
        for arm, make in zip(ARMS, makers, strict=True)
    }


def _time(step: Step, n_steps: int, device: torch.device) -> Taken:
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


def _mean_ratio(times: dict[str, list[Taken]], arm: str, which: str) -> float:
    """Return the mean ratio, without the turns in which another program was in the way."""
    ratios = [
        getattr(a, which) / getattr(b, which)
        for a, b in zip(times[arm], times["plain"], strict=True)
    ]
    few = len(ratios) // 100
    return statistics.fmean(sorted(ratios)[few : len(ratios) - few])


def page(results: list[Result], circumstances: dict[str, str]) -> str:
    """Return the results as a page of Markdown."""
    over = [
        f"{r.case} {r.mode} ({max(r.ratio, r.budget):.3f})"
        for r in results
        if max(r.ratio, r.budget) > BOUND
    ]
    verdict = f"not met by {', '.join(over)}" if over else "met everywhere"
    turns = " or ".join(str(n) for n in dict.fromkeys(result.turns for result in results))
    rows = "\n".join(result.row() for result in results)
    done = {(result.case, result.mode) for result in results}
    missing = [f"{case} {mode}" for case in CASES for mode in MODES if (case, mode) not in done]
    left = f"\nNot measured in this run: {', '.join(missing)}.\n" if missing else ""
    return (
        "# What a gated training step costs beside the plain one\n\n"
        f"Written by {as_markdown(circumstances)}\n\n"
        f"Medians of {turns} turns. LeNet 20-50-500-10 at batches of 125, ResNet-18 "
        "for images of 32 x 32 at\nbatches of 32, SGD with momentum. A step with the penalty holds "
        "gates in the optimiser, and clipping;\none with a budget a `GateOptimizer` that decides "
        "every 13 steps (the mean, not the median).\n"
        '"noise" is a second plain network over the first; "naive" is the paper\'s equation '
        "written down as it\nstands, in three passes over the activations. "
        f"The aim is at most {BOUND}: **{verdict}**.\n\n{HEAD}{rows}\n{left}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=MODES)
    parser.add_argument("--turns", type=int, help="instead of each network's own number")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--out", type=Path, help="where the .json and .md go, without an ending")
    options = parser.parse_args()
    results: list[Result] = []
    print(HEAD, end="")
    for name in options.cases:
        for mode in options.modes:
            turns = options.turns or CASES[name].turns
            results.append(measure(CASES[name], mode, turns, options.device))
            print(results[-1].row(), flush=True)
            if options.out:
                write(options.out, results, describe(device=str(options.device)))


def write(out: Path, results: list[Result], circumstances: dict[str, str]) -> None:
    """Write what there is so far, as JSON and as a page."""
    record = {**circumstances, "bound": BOUND, "results": [asdict(one) for one in results]}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    out.with_suffix(".md").write_text(page(results, circumstances))


if __name__ == "__main__":
    main()
