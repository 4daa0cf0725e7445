"""Where runs land that were asked for a budget, and how much of the way the last decision closed.

    python -m benchmarks.landing --out results/landing.jsonl --page results/landing.md

Short runs on real images: they show where the cost lands, not how well a network can learn. Rows
are appended as they come; a second call makes those that are missing, and `--networks` without
any writes the page alone.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy

import archlearn as al
from archlearn_cli.data import load_examples
from archlearn_cli.models.model_registry import build_network
from benchmarks.circumstances import as_markdown, describe

SHARES = (75, 50, 35, 20, 10)
SEEDS = (0, 1, 2)
FLOOR, LARGEST_LAST_CUT = -2.0, 5.0
"""Per cent of what was asked for, below which no run may land; and of the original cost."""


class Subject(NamedTuple):
    """A network, the cost that is asked for, and the size of its runs."""

    data: str
    cost: str
    n_steps: int
    batch: int
    learning_rate: float


SUBJECTS = {
    "lenet": Subject("mnist", "parameters", 200, 32, 0.02),
    "resnet20": Subject("cifar-10", "multiply_adds", 150, 12, 0.02),
    "vit": Subject("cifar-10", "multiply_adds", 150, 8, 0.005),
    "vgg16-bn": Subject("cifar-10", "multiply_adds", 120, 6, 0.01),
}


def run(network: str, share: int, seed: int) -> dict[str, Any]:
    """Return where one run landed, in per cent of the original cost."""
    subject = SUBJECTS[network]
    torch.manual_seed(seed)
    split = load_examples(subject.data).train
    shape = tuple(split.inputs.shape[1:])
    x = torch.randn(2, *shape)
    model = al.add_gates(build_network(network, shape, 10), x)
    row: dict[str, Any] = {"network": network, "share": share, "seed": seed}
    try:
        gates: Any = al.GateOptimizer(model, subject.n_steps, budget={subject.cost: f"{share}%"})
    except al.InputError as error:
        return row | {"refused": str(error)}
    optimizer = torch.optim.SGD(al.weights(model), lr=subject.learning_rate, momentum=0.9)
    full = gates.costs()[subject.cost]
    before = full
    started = time.monotonic()
    for _ in range(subject.n_steps):
        chosen = torch.randint(len(split.inputs), (subject.batch,))
        images, labels = split.inputs[chosen].float() / 255, split.targets[chosen]
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        was_frozen = gates.param_groups[0]["frozen"]
        left = gates.costs()[subject.cost]
        gates.step()
        gates.zero_grad()
        if not was_frozen:
            before = left
    after = getattr(al.plan(model).after, subject.cost)
    after /= 1 if subject.cost == "parameters" else len(x)
    return row | {
        "landed": 100 * after / full,
        "last_cut": 100 * (before - after) / full,
        "certificate": al.compact(model).certificate.difference_float64,
        "loss": loss.item(),
        "seconds": round(time.monotonic() - started, 1),
    }


def write_page(rows: list[dict[str, Any]], page: Path, measured: str) -> None:
    """Write what was asked for, where it landed and what the last decision closed."""
    sizes = "; ".join(
        f"{name}: {s.n_steps} steps of {s.batch} images of {s.data}, {s.cost}"
        for name, s in SUBJECTS.items()
    )
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    lines = [
        "# Where budgets land",
        "",
        f"Written by {measured} Runs at commit {commits}.",
        "",
        f"Short runs with default settings, without `shrink_`. {sizes}. Bounds, set before: landed "
        f"within [{FLOOR:g} %, 0 %] of what was asked for, and the last decision closes at most "
        f"{LARGEST_LAST_CUT:g} % of the original cost. Costs are in per cent of the original.",
        "",
        "| network | asked | landed, seeds " + ", ".join(map(str, SEEDS))
        + " | furthest from asked | largest last cut | holds |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    n_held = n_asked = 0
    for network in SUBJECTS:
        for share in SHARES:
            found = [r for r in rows if (r["network"], r["share"]) == (network, share)]
            if not found:
                continue
            if "refused" in found[0]:
                lines.append(f"| {network} | {share} % | refused: {found[0]['refused']} | | | |")
                continue
            off = min((r["landed"] / share - 1) * 100 for r in found)
            above = any(r["landed"] > share for r in found)
            last = max(r["last_cut"] for r in found)
            holds = not above and off >= FLOOR and last <= LARGEST_LAST_CUT
            n_held, n_asked = n_held + holds, n_asked + 1
            landed = ", ".join(f"{r['landed']:.2f}" for r in sorted(found, key=lambda r: r["seed"]))
            lines.append(
                f"| {network} | {share} % | {landed} | {off:+.2f} % | {last:.2f} % "
                f"| {'yes' if holds else '**no**'} |"
            )
    missing = len(SUBJECTS) * len(SHARES) * len(SEEDS) - len(rows)
    lines += [f"\n{missing} of the runs were not made."] if missing else []
    lines += ["", f"{n_held} of {n_asked} budgets hold with every seed that was run."]
    page.write_text("\n".join(lines) + "\n")


def main() -> None:
    """Make the rows that are missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=list(SUBJECTS), choices=SUBJECTS)
    parser.add_argument("--out", type=Path, default=Path("results/landing.jsonl"))
    parser.add_argument("--page", type=Path, default=Path("results/landing.md"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    measured = describe()
    rows = [json.loads(line) for line in given.out.open()] if given.out.exists() else []
    known = {(row["network"], row["share"], row["seed"]) for row in rows}
    for seed in SEEDS:
        for network in given.networks:
            for share in SHARES:
                if (network, share, seed) in known:
                    continue
                rows.append(run(network, share, seed) | {"commit": measured["commit"]})
                print(rows[-1], flush=True)
                with given.out.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    write_page(rows, given.page, as_markdown(measured))


if __name__ == "__main__":
    main()
