"""How long networks take that were asked for a share of their time, when measured again.

    python -m benchmarks.latency --page results/latency.md

Short runs on random images: they show what the clock says, not how well a network can learn. Both
networks are timed in turns at the end, medians, by `compare_speed`, three times, of which the
middle one is shown; nothing else should run meanwhile.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import archlearn as al
from archlearn_cli.models.model_registry import build_network
from benchmarks.circumstances import as_markdown, describe

SHAPE, N_STEPS, BATCH = (3, 32, 32), 120, 16
CASES = (("convnet", 1, 50), ("convnet", 8, 75), ("convnet", 8, 50), ("resnet20", 8, 70))
FAR = 10.0
"""Per cent of what was asked for; further away is too far."""


def run(network: str, n_examples: int, share: int) -> dict[str, Any]:
    """Return the shares that were asked for, expected and measured, in per cent."""
    torch.manual_seed(0)
    original = build_network(network, SHAPE, 10)
    x = torch.randn(n_examples, *SHAPE)
    model = al.add_gates(original, x)
    start = time.perf_counter()
    gates: Any = al.GateOptimizer(model, N_STEPS, budget={"latency": f"{share}%"})
    whole, seconds = gates.costs()["latency"], time.perf_counter() - start
    optimizer = torch.optim.SGD(al.weights(model), lr=0.01)
    for _ in range(N_STEPS):
        images, labels = torch.randn(BATCH, *SHAPE), torch.randint(0, 10, (BATCH,))
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        gates.step()
        gates.zero_grad()
    small = al.compact(model)
    speeds = [al.compare_speed(original, small, x, (n_examples,))[0] for _ in range(3)]
    speed = sorted(speeds, key=lambda each: each.ratio)[1]
    plan = al.plan(model)
    return {
        "expected": 100 * gates.costs()["latency"] / whole,
        "measured": 100 / speed.ratio,
        "milliseconds": [1000 * seconds for seconds in speed.seconds],
        "multiply_adds": 100 * plan.after.multiply_adds / plan.before.multiply_adds,
        "seconds": seconds,
    }


def main() -> None:
    """Make all rows and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, required=True)
    page = parser.parse_args().page
    torch.set_num_threads(1)
    lines = [
        "# Budgets on latency, measured again",
        "",
        as_markdown(describe()),
        "",
        "| network | batch | asked | by the table | measured again | off | before | after | "
        "multiply-adds left | seconds to measure the table |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    n_near = 0
    for network, n_examples, share in CASES:
        row = run(network, n_examples, share)
        off = 100 * (row["measured"] / share - 1)
        n_near += abs(off) <= FAR
        before, after = row["milliseconds"]
        lines.append(
            f"| {network} | {n_examples} | {share} % | {row['expected']:.1f} % | "
            f"{row['measured']:.1f} % | {off:+.1f} % | {before:.3g} ms | {after:.3g} ms | "
            f"{row['multiply_adds']:.0f} % | {row['seconds']:.1f} |"
        )
    lines += ["", f"{n_near} of {len(CASES)} are within {FAR:g} % of what was asked for.", ""]
    page.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
