"""What a gated training step costs beside the plain one, measured in turns in one run.

    python -m benchmarks.step_cost --out results/step_cost

The gated step holds all that a user's loop does: forward, penalty, backward, optimiser, clipping.
A second plain network takes its turn as well; its ratio to the first shows the noise. Ratios are
given of the time on the clock and of the processor's time, which other programs disturb less.
"""

import argparse
import copy
import functools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al
from benchmarks.circumstances import as_markdown, describe
from benchmarks.torchvision_import import import_models

MODES = ("eager", "compiled", "compiled with penalty")
LEARNING_RATE, MOMENTUM = 1e-3, 0.9
_NEVER = al.GateSchedule(begin=0.98, end=0.99)
STRENGTHS = al.Strengths.from_width_cost(3e-4)

Step = Callable[[], None]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A network, the batch that it is trained on, and how often its step is timed."""

    name: str
    build: Callable[[], nn.Module]
    batch: int
    shape: tuple[int, ...]
    turns: int
    warm_up: int


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


class Transformer(nn.Module):
    """Two blocks of a transformer of width 192, a classifier over the mean of all places."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [
            nn.TransformerEncoderLayer(
                192, 4, 768, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(2)
        ]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(192)
        self.head = nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of each example."""
        return self.head(self.norm(self.blocks(x)).mean(1))


CASES = {
    "transformer": Case(
        name="transformer", build=Transformer, batch=16, shape=(64, 192), turns=60, warm_up=5
    ),
    "lenet": Case(name="lenet", build=lenet, batch=125, shape=(1, 28, 28), turns=200, warm_up=30),
    "resnet18": Case(
        name="resnet18", build=cifar_resnet18, batch=32, shape=(3, 32, 32), turns=20, warm_up=3
    ),
}


def plain_step(net: nn.Module, images: Tensor, labels: Tensor, mode: str) -> Step:
    """Return a step of the network as it is."""
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    loss_of = _loss_of(net.train(), None, mode)

    def step() -> None:
        loss = loss_of(images, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def gated_step(net: nn.Module, images: Tensor, labels: Tensor, mode: str) -> Step:
    """Return a step with all that a user's loop does: gates, penalty, clipping."""
    gated = al.add_gates(net, images).train()

    def penalty() -> Tensor:
        return al.penalty(gated, STRENGTHS)

    def clip() -> None:
        al.clip_gates_(gated)

    groups = al.parameter_groups(gated, LEARNING_RATE, momentum=MOMENTUM)
    return _learning_step(_loss_of(gated, penalty, mode), groups, clip, images, labels)


def budget_step(net: nn.Module, images: Tensor, labels: Tensor, mode: str) -> Step:
    """Return a step with a `GateOptimizer`, which decides as often as in a run of 4,400 steps."""
    gated = al.add_gates(net, images).train()
    optimizer = torch.optim.SGD(al.weights(gated), lr=LEARNING_RATE, momentum=MOMENTUM)
    schedule = al.GateSchedule(begin=0.0, end=0.6)
    gates = al.GateOptimizer(gated, 4400, budget={"multiply_adds": "50%"}, schedule=schedule)
    loss_of = _loss_of(gated, None, mode)

    def step() -> None:
        loss = loss_of(images, labels)
        optimizer.zero_grad()
        gates.zero_grad()
        loss.backward()
        optimizer.step()
        gates.step()

    return step


def weights_step(
    net: nn.Module, images: Tensor, labels: Tensor, mode: str, closed: float = 0.0
) -> Step:
    """Return a step of a model whose gates act on weights, with a part of them closed at random."""
    model: Any = al.add_gates(net, images, on="weights").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    schedule = al.GateSchedule(begin=0.0, end=0.6) if not closed else _NEVER
    al.GateOptimizer(model, optimizer, 4400, budget={"multiply_adds": "99.9%"}, schedule=schedule)
    gates = model.archlearn_gates.on_weights
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(len(gates.is_open), generator=generator) >= closed
    is_branch = torch.cat([torch.full((g.size,), g.kind == "branch") for g in gates.groups])
    gates.set_open_(drawn | is_branch)
    loss_of = _loss_of(model, None, mode)

    def step() -> None:
        loss = loss_of(images, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def naive_step(net: nn.Module, images: Tensor, labels: Tensor, mode: str) -> Step:
    """Return a step with the paper's equations written down as they stand, gate by gate."""
    sites = put_naive_gates_(net, images)
    gates = [gate for site in sites for gate in (site.width, site.depth)]
    known = {id(gate) for gate in gates}
    weights = [parameter for parameter in net.parameters() if id(parameter) not in known]

    def penalty() -> Tensor:
        return sum((site.penalty() for site in sites), torch.zeros(()))

    def clip() -> None:
        for gate in gates:
            gate.data.clamp_(0, 1)

    groups = [{"params": weights, "momentum": MOMENTUM}, {"params": gates, "momentum": 0.0}]
    return _learning_step(_loss_of(net.train(), penalty, mode), groups, clip, images, labels)


class NaiveTriState(nn.Module):
    """Equation 2 in three passes over the activations: `w·(d·x + (1−d)·relu(x))`."""

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.width = nn.Parameter(torch.full((n_channels,), 0.55))
        self.depth = nn.Parameter(torch.tensor(0.45))

    def forward(self, x: Tensor) -> Tensor:
        """Return the gated activation."""
        width = self.width + ((self.width >= 0.5).float() - self.width).detach()
        depth = self.depth + ((self.depth >= 0.5).float() - self.depth).detach()
        mixed = depth * x + (1 - depth) * torch.relu(x)
        return width.view(-1, *[1] * (x.dim() - 2)) * mixed

    def penalty(self) -> Tensor:
        """Return the terms of equations 4 and 5 of this site."""
        width, depth = self.width, self.depth
        complexity = width.sum() * (depth < 0.5)
        return (
            STRENGTHS.width_binarise * (width * (1 - width)).sum()
            + STRENGTHS.depth_binarise * depth * (1 - depth)
            + STRENGTHS.width_cost * complexity
            - STRENGTHS.depth_cost * depth
        )


def put_naive_gates_(net: nn.Module, images: Tensor) -> list[NaiveTriState]:
    """Put a naive site in the place of every ReLU; calls that share one share its gates."""
    channels: dict[str, int] = {}
    hooks = [
        module.register_forward_hook(
            lambda _, inputs, __, name=name: channels.update({name: inputs[0].shape[1]})
        )
        for name, module in net.named_modules()
        if isinstance(module, nn.ReLU)
    ]
    with torch.no_grad():
        net.eval()(images[:2])
    for hook in hooks:
        hook.remove()
    sites = {name: NaiveTriState(n_channels) for name, n_channels in channels.items()}
    for name, site in sites.items():
        net.set_submodule(name, site)
    return list(sites.values())


def _loss_of(net: nn.Module, penalty: Callable[[], Tensor] | None, mode: str) -> Loss:
    forward = torch.compile(net) if mode == "compiled" else net

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(forward(images), labels)
        return loss if penalty is None else loss + penalty()

    return torch.compile(loss_of) if mode == "compiled with penalty" else loss_of


def _learning_step(
    loss_of: Loss,
    groups: list[dict[str, object]],
    clip: Callable[[], None],
    images: Tensor,
    labels: Tensor,
) -> Step:
    optimizer = torch.optim.SGD(groups, lr=LEARNING_RATE, momentum=MOMENTUM)

    def step() -> None:
        loss = loss_of(images, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clip()

    return step


BOUND = 1.05
ARMS = ("plain", "plain again", "gated", "budget", "naive", "weights", "weights closed")
HEAD = """\
| network | mode | plain, ms | penalty / plain | of processor time | budget / plain | of processor \
time | noise | noise of processor time | naive / plain | on weights / plain | of processor time \
| 30 % closed / plain | of processor time |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|
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
        weights: The same of gates on weights, all open; closed: with 30 % of them closed.
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
    weights: float
    cpu_weights: float
    closed: float
    cpu_closed: float
    turns: int

    def row(self) -> str:
        """Return a row of the table."""
        return (
            f"| {self.case} | {self.mode} | {self.plain_ms:.2f} "
            f"| **{self.ratio:.3f}** | {self.cpu_ratio:.3f} | **{self.budget:.3f}** "
            f"| {self.cpu_budget:.3f} | {self.noise:.3f} | {self.cpu_noise:.3f} "
            f"| {self.naive:.3f} | **{self.weights:.3f}** | {self.cpu_weights:.3f} "
            f"| {self.closed:.3f} | {self.cpu_closed:.3f} |"
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
        weights=_median_ratio(times, "weights", "clock"),
        cpu_weights=_median_ratio(times, "weights", "processor"),
        closed=_median_ratio(times, "weights closed", "clock"),
        cpu_closed=_median_ratio(times, "weights closed", "processor"),
        turns=turns,
    )


def _steps(case: Case, mode: str, device: torch.device) -> dict[str, Step]:
    torch.manual_seed(0)
    net = case.build().to(device)
    images = torch.randn(case.batch, *case.shape, device=device)
    labels = torch.randint(0, 10, (case.batch,), device=device)
    makers: list[Callable[..., Step]] = [
        plain_step, plain_step, gated_step, budget_step, naive_step, weights_step,
        functools.partial(weights_step, closed=0.3),
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
        "Gates on weights act by the optimizer's hooks: all open, and with 30 % closed at random.\n"
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
