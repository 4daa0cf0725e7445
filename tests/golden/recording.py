"""One seeded run, as numbers: a change that should not alter results does not alter these.

`python -m tests.golden.recording` writes them anew; do that only when a change is meant to
alter results, and say so in the changelog.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import archlearn as al

FILE = Path(__file__).with_name("digits.json")
N_STEPS = 150


def record(price: al.Price) -> dict[str, Any]:
    """Return losses, penalties and gates of a run in double precision on real digits."""
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels) / 16, torch.tensor(labels)
    sizes = (64, 40, 20)
    layers = [nn.Sequential(nn.Linear(n, m), nn.ReLU()) for n, m in pairwise(sizes)]
    net = nn.Sequential(*layers, nn.Linear(20, 10)).double()
    learn = {"*": al.Learn.WIDTH, "1.0": al.Learn.WIDTH | al.Learn.DEPTH}
    model = al.add_gates(net, x[:2], learn=learn)
    optimizer = torch.optim.SGD(al.parameter_groups(model, lr=0.05), momentum=0.9)
    strengths = al.Strengths.from_width_cost(3e-3, depth_share=0.1, price=price)
    losses: list[float] = []
    penalties: list[float] = []
    for step in range(N_STEPS):
        batch = torch.arange(step * 50, step * 50 + 50) % len(x)
        penalty = al.penalty(model, strengths)
        loss = cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        (loss + penalty).backward()
        optimizer.step()
        al.clip_gates_(model)
        losses.append(loss.item())
        penalties.append(penalty.item())
    plan = al.plan(model)
    return {
        "losses": losses[::10],
        "penalties": penalties[::10],
        "widths": {name: gate.tolist() for name, gate in al.width_gates(model).items()},
        "depths": {name: gate.item() for name, gate in al.depth_gates(model).items()},
        "architecture": str(al.read_architecture(model)),
        "parameters": plan.after.parameters,
        "output": al.compact(model)(x[:1]).flatten().tolist(),
    }


def main() -> None:
    """Write the numbers of a run for each way to price a neuron."""
    found = {price.value: record(price) for price in al.Price}
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
