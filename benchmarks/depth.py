"""What learning depth by default is worth on networks that are far too deep, beside widths alone.

    python -m benchmarks.depth --out results/depth.jsonl --page results/depth.md --mnist mnist

Each run is 1,200 steps of AdamW with default settings; `widths` are the same runs with
`GateSchedule(depth_power=0)`. Rows are appended as they come; a second call makes those that are
missing. `--mnist` adds networks on 10,000 images of MNIST, in 900 steps.
"""

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import archlearn as al
from archlearn_cli.data import load_examples
from benchmarks.circumstances import as_markdown, describe

SEEDS, MNIST_SEEDS = (0, 1, 2, 3, 4), (0, 1, 2)
SHARES = (20, 10, 5)
STEPS, MNIST_STEPS, BATCH, RATE = 1200, 900, 64, 2e-3
SCHEDULES = {"default": al.GateSchedule(), "widths": al.GateSchedule(depth_power=0.0)}
DEAD = 1.5
"""A classifier is dead below this many times the accuracy of chance; a regression above 1/this."""


class Subject(NamedTuple):
    """A task and a network: the widths of its layers, and how many of them are convolutions."""

    task: str
    sizes: tuple[int, ...]
    n_convolutions: int = 0

    def __str__(self) -> str:
        return f"{self.task} {short(self.sizes)}"


class Reference(NamedTuple):
    """A mean and its deviation over seeds: per cent, or 1,000 times the mean squared error."""

    mean: float
    deviation: float


def short(sizes: tuple[int, ...]) -> str:
    """Return sizes with repeated ones counted, as 64-(48x12)-10."""
    first, *hidden, last = sizes
    pieces: list[str] = []
    while hidden:
        n = next((i for i, size in enumerate(hidden) if size != hidden[0]), len(hidden))
        pieces.append(f"({hidden[0]}x{n})" if n > 1 else str(hidden[0]))
        hidden = hidden[n:]
    return "-".join([str(first), *pieces, str(last)])


CHAINS = (
    Subject("digits", (64, *[64] * 8, 10)),
    Subject("digits", (64, *[48] * 12, 10)),
    Subject("digits", (64, *[100] * 7, 10)),
    Subject("digits", (64, *[32] * 16, 10)),
    Subject("spiral", (2, *[32] * 8, 3)),
    Subject("spiral", (2, *[64] * 4, 3)),
    Subject("Friedman", (10, *[64] * 6, 1)),
)
LENETS = (
    Subject("mnist", (1, 20, 50, 500, 10), 2),
    Subject("mnist", (1, 20, 50, 75, 75, 10), 2),
)
# Before the rule was written, in a prototype without archlearn, three seeds: widths alone, and the
# rule itself.
WIDTHS_BEFORE = {
    (CHAINS[0], 20): Reference(93.1, 0.5), (CHAINS[0], 10): Reference(90.9, 2.9),
    (CHAINS[0], 5): Reference(84.7, 6.4), (CHAINS[1], 20): Reference(80.9, 2.0),
    (CHAINS[1], 10): Reference(76.1, 3.3), (CHAINS[1], 5): Reference(58.4, 0.4),
    (CHAINS[2], 10): Reference(94.5, 0.8), (CHAINS[2], 5): Reference(93.5, 1.8),
    (CHAINS[3], 20): Reference(69.8, 3.1), (CHAINS[3], 10): Reference(55.8, 7.4),
    (CHAINS[3], 5): Reference(47.2, 4.4), (CHAINS[4], 20): Reference(81.3, 5.7),
    (CHAINS[4], 10): Reference(76.3, 4.5), (CHAINS[4], 5): Reference(70.1, 0.8),
    (CHAINS[5], 10): Reference(93.5, 0.6), (CHAINS[6], 10): Reference(25.1, 0.2),
    (CHAINS[6], 5): Reference(30.5, 3.1),
}  # fmt: skip
PROTOTYPE = {
    (CHAINS[0], 20): Reference(94.5, 0.4), (CHAINS[0], 10): Reference(94.8, 0.5),
    (CHAINS[0], 5): Reference(94.2, 1.4), (CHAINS[1], 20): Reference(93.7, 0.4),
    (CHAINS[1], 10): Reference(94.0, 0.8), (CHAINS[1], 5): Reference(92.6, 0.8),
    (CHAINS[2], 10): Reference(96.6, 0.6), (CHAINS[2], 5): Reference(97.4, 0.5),
    (CHAINS[3], 20): Reference(84.7, 5.6), (CHAINS[3], 10): Reference(85.0, 4.5),
    (CHAINS[3], 5): Reference(86.4, 4.4), (CHAINS[4], 20): Reference(98.4, 0.7),
    (CHAINS[4], 10): Reference(98.2, 0.8), (CHAINS[4], 5): Reference(93.2, 2.8),
    (CHAINS[5], 10): Reference(98.8, 0.3), (CHAINS[6], 10): Reference(19.7, 0.5),
    (CHAINS[6], 5): Reference(20.9, 1.6),
}  # fmt: skip


def build(sizes: tuple[int, ...], n_convolutions: int) -> nn.Sequential:
    """Return layers with ReLU between them; convolutions of 5x5 without padding are pooled."""
    layers: list[nn.Module] = []
    for place, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        if place < n_convolutions:
            layers += [nn.Conv2d(n_in, n_out, 5), nn.ReLU(), nn.MaxPool2d(2)]
            continue
        if n_convolutions and place == n_convolutions:
            layers.append(nn.Flatten())
            n_in *= 16  # places of 28x28 pixels that two convolutions leave
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def load(task: str, mnist: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return inputs and targets to train on, then those to test on."""
    generator = torch.Generator().manual_seed(0)
    if task == "digits":
        x, y = (torch.tensor(array) for array in load_digits(return_X_y=True))
        order = torch.randperm(len(x), generator=generator)
        x, y, n = x[order].float() / 16, y[order], 1400
    elif task == "spiral":  # three arms of two turns
        radius, y = torch.rand(6000, generator=generator) ** 0.5, torch.arange(6000) % 3
        angle = 4 * math.pi * radius + y * 2 * math.pi / 3
        angle += 0.15 * torch.randn(6000, generator=generator)
        x, n = 2 * torch.stack([radius * angle.cos(), radius * angle.sin()], 1), 3000
    elif task == "Friedman":
        x = torch.rand(6000, 10, generator=generator)
        y = 10 * (math.pi * x[:, 0] * x[:, 1]).sin() + 20 * (x[:, 2] - 0.5) ** 2
        y = y + 10 * x[:, 3] + 5 * x[:, 4]
        y = (y - y.mean()) / y.std() + 0.1 * torch.randn(6000, generator=generator)
        x, y, n = 2 * x - 1, y[:, None], 3000
    else:
        examples = load_examples(mnist)
        train, test = examples.train, examples.test
        assert test is not None
        images = train.inputs[:10000].float() / 255, test.inputs.float() / 255
        return images[0], train.targets[:10000].long(), images[1], test.targets.long()
    return x[:n], y[:n], x[n:], y[n:]


def run(subject: Subject, share: int, seed: int, kind: str, mnist: str) -> dict[str, Any]:
    """Return what one run came to."""
    x, y, test_x, test_y = load(subject.task, mnist)
    loss_of: Callable[..., Tensor] = mse_loss if y.is_floating_point() else cross_entropy
    torch.manual_seed(seed)
    net = build(subject.sizes, subject.n_convolutions)
    n_steps = MNIST_STEPS if subject.n_convolutions else STEPS
    started = time.monotonic()
    model = al.add_gates(net, x[:2])
    budget = {"parameters": f"{share}%"}
    gates: Any = al.GateOptimizer(model, n_steps, budget=budget, schedule=SCHEDULES[kind])
    optimizer = torch.optim.AdamW(al.weights(model), RATE)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=n_steps)
    for _ in range(n_steps):
        chosen = torch.randint(len(x), (BATCH,))
        loss_of(model(x[chosen]), y[chosen]).backward()
        for each in (optimizer, gates):
            each.step()
            each.zero_grad()
        rates.step()
    seconds = time.monotonic() - started
    small: Any = al.compact(model).eval()
    with torch.no_grad():
        output = small(test_x)
    if y.is_floating_point():
        score = 1000 * mse_loss(output, test_y).item()
    else:
        score = 100 * (output.argmax(1) == test_y).float().mean().item()
    layers = [m for m in small.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    return {
        "score": score,
        "widths": [layer.weight.shape[0] for layer in layers],
        "parameters": al.count_costs(small).parameters,
        "limit": gates._container.budget["parameters"],
        "certificate": small.certificate.difference_float64,
        "seconds": round(seconds, 1),
        **{f"faster_{n}": compare_times(net.eval(), small, test_x[:n]) for n in (1, 64)},
    }


@torch.no_grad()
def compare_times(net: nn.Module, small: nn.Module, x: Tensor) -> float:
    """Return how many times as fast the small network is: medians of times in turns."""
    times: list[list[float]] = [[], []]
    for _ in range(60):
        for each, found in zip((net, small), times, strict=True):
            started = time.perf_counter()
            each(x)
            found.append(time.perf_counter() - started)
    return round(statistics.median(times[0][10:]) / statistics.median(times[1][10:]), 2)


Rows = list[dict[str, Any]]


def summarise(rows: Rows, key: str = "score") -> Reference:
    """Return mean and deviation of some rows."""
    values = [row[key] for row in rows]
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Reference(statistics.fmean(values), deviation)


def is_dead(subject: Subject, score: float) -> bool:
    """Return whether a network has learnt next to nothing."""
    if subject.task == "Friedman":
        return score > 1000 / DEAD
    return score < DEAD * 100 / subject.sizes[-1]


def is_worse(subject: Subject, one: float, other: float, by: float) -> bool:
    """Return whether a score is worse than another by more than so much."""
    return one - other > by if subject.task == "Friedman" else other - one > by


def describe_row(subject: Subject, share: int, rows: Rows) -> tuple[list[str], list[str]]:
    """Return the cells of a row of the table, and what it misses."""
    known = {kind: [r for r in rows if r["kind"] == kind] for kind in SCHEDULES}
    ours, before = summarise(known["default"]), WIDTHS_BEFORE.get((subject, share))
    n_hidden = len(subject.sizes) - 2
    left = [len(row["widths"]) - 1 for row in known["default"]]
    misses: list[str] = []
    if any(is_dead(subject, row["score"]) for row in known["default"]):
        misses.append("died")
    if before and is_worse(subject, ours.mean, before.mean, before.deviation):
        misses.append("worse than widths alone")
    if share == 10 and not subject.n_convolutions and max(left) > n_hidden / 2:
        misses.append("deep")
    if any(row["parameters"] > row["limit"] for row in known["default"]):
        misses.append("over budget")
    if subject.n_convolutions and known["widths"]:
        here = summarise(known["widths"])
        if is_worse(subject, ours.mean, here.mean, here.deviation):
            misses.append("worse than widths alone")
    faster = (summarise(known["default"], f"faster_{n}").mean for n in (1, 64))
    cells = [
        f"{subject}", f"{share} %", f"**{write(ours)}** ({len(known['default'])})",
        f"{statistics.fmean(left):.1f} of {n_hidden}",
        write(summarise(known["widths"])) if known["widths"] else "",
        write(before), write(PROTOTYPE.get((subject, share))),
        *(f"{each:.1f}" for each in faster),
        "yes" if not misses else f"**no: {', '.join(misses)}**",
    ]  # fmt: skip
    return cells, misses


def write(found: Reference | None) -> str:
    """Return a mean and its deviation as text."""
    return "" if found is None else f"{found.mean:.1f} ± {found.deviation:.1f}"


def write_page(rows: Rows, page: Path, measured: str) -> None:
    """Write the table, with a first sentence that says what its rows say."""
    table: list[str] = []
    n_rows = n_held = n_runs = n_dead = 0
    gaps: list[float] = []
    for subject in (*CHAINS, *LENETS):
        for share in SHARES:
            of_row = [r for r in rows if r["subject"] == str(subject) and r["share"] == share]
            if not any(row["kind"] == "default" for row in of_row):
                continue
            cells, misses = describe_row(subject, share, of_row)
            table.append(f"| {' | '.join(cells)} |")
            n_rows, n_held = n_rows + 1, n_held + (not misses)
            ours = [row["score"] for row in of_row if row["kind"] == "default"]
            n_runs, n_dead = n_runs + len(ours), n_dead + sum(is_dead(subject, s) for s in ours)
            before = WIDTHS_BEFORE.get((subject, share))
            if before and subject.task != "Friedman":
                gaps.append(statistics.fmean(ours) - before.mean)
    missing = len(list_runs("mnist")) - len(rows)
    n_references = sum(reference in WIDTHS_BEFORE for reference in PROTOTYPE)
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    lines = [
        "# Depth by default on networks that are too deep",
        "",
        f"Of {n_rows} rows {n_held} hold all bounds; {n_dead} of {n_runs} runs died; of "
        f"{len(gaps)} rows of accuracies that were measured by widths alone before, "
        f"{sum(gap > 0 for gap in gaps)} are ahead, by {statistics.fmean(gaps):.1f} points in the "
        "mean of all.",
        "",
        f"Written by {measured} Runs at commit {commits}.",
        "",
        f"Each run: {STEPS} steps of AdamW ({RATE:g}, one cycle) in batches of {BATCH}, on MNIST "
        f"{MNIST_STEPS} steps on 10,000 images; default settings, a budget of parameters, seeds "
        f"{', '.join(map(str, SEEDS))} (MNIST {', '.join(map(str, MNIST_SEEDS))}). Scores are test "
        "accuracies in per cent, of Friedman's function 1,000 times the mean squared error (lower "
        "is better), with the deviation over seeds and, in brackets, their number. Bounds, set "
        f"before: no run dies (below {DEAD:g} times chance), none is over its budget, no mean is "
        "worse than widths alone before by more than the deviation printed there (on MNIST: than "
        "widths alone here, by its deviation), and at 10 % half of the hidden "
        "layers or fewer are left in every run.",
        "",
        '"Widths alone" are the same seeds with `GateSchedule(depth_power=0)`; "before" and '
        f'"prototype" are {n_references} rows of three seeds, measured without archlearn before '
        "the rule was built. Times are the original network's over the compact one's, in turns "
        "on one thread of a busy machine.",
        "",
        "| network | parameters | default | hidden layers left | widths alone | widths alone, "
        "before | prototype | faster, batch 1 | batch 64 | holds |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *table,
    ]
    if missing:
        lines += ["", f"{missing} runs are missing: seeds of some rows, or widths alone. The same "
                  "command makes them."]  # fmt: skip
    page.write_text("\n".join(lines) + "\n")


def list_runs(mnist: str) -> list[tuple[Subject, int, int, str]]:
    """Return all runs there are to be, seed by seed, those of widths alone last."""
    runs = [(s, share, seed, "default") for seed in SEEDS for s in CHAINS for share in SHARES]
    lenets = LENETS if mnist else ()
    runs += [(s, 10, seed, kind) for seed in MNIST_SEEDS for s in lenets for kind in SCHEDULES]
    return runs + [(s, share, seed, "widths") for seed in SEEDS for s in CHAINS for share in SHARES]


def main() -> None:
    """Make the rows that are missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/depth.jsonl"))
    parser.add_argument("--page", type=Path, default=Path("results/depth.md"))
    parser.add_argument("--mnist", default="", help="the data set, such as mnist")
    given = parser.parse_args()
    torch.set_num_threads(1)
    measured = describe()
    rows = [json.loads(line) for line in given.out.open()] if given.out.exists() else []
    known = {(row["subject"], row["share"], row["seed"], row["kind"]) for row in rows}
    for subject, share, seed, kind in list_runs(given.mnist):
        if (str(subject), share, seed, kind) in known:
            continue
        row = {"subject": str(subject), "share": share, "seed": seed, "kind": kind}
        row |= run(subject, share, seed, kind, given.mnist) | {"commit": measured["commit"]}
        rows.append(row)
        with given.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
    write_page(rows, given.page, as_markdown(measured))


if __name__ == "__main__":
    main()
