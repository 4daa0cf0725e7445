"""What each process of the distributed test does: a few steps on its own share of the data."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import archlearn as al

N_STEPS = 25


def learn_to_budget(
    x: torch.Tensor, y: torch.Tensor, rank: int, world: int, *, shrinks: bool = False
) -> dict[str, Any]:
    """Learn to a budget, each process on its rows of every batch; return gates and costs."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 3))
    model = al.add_gates(net.double(), x[:2])
    wrapped = DistributedDataParallel(model) if world > 1 else model
    schedule = al.GateSchedule(patience=3)
    gates: Any = al.GateOptimizer(wrapped, N_STEPS, budget={"parameters": "40%"}, schedule=schedule)
    optimizer = torch.optim.SGD(al.weights(wrapped), lr=0.05, momentum=0.9)
    for number in range(N_STEPS):
        rows = slice(32 * number, 32 * (number + 1))
        mine = x[rows][rank::world], y[rows][rank::world]
        cross_entropy(wrapped(mine[0]), mine[1]).backward()
        for each in (optimizer, gates):
            each.step()
            each.zero_grad()
        if gates.can_shrink() and shrinks:
            al.shrink_(model, optimizer, gates)
    opened = {name: gate.detach() for name, gate in al.width_gates(model).items()}
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    return {"opened": opened, "weights": weights, **gates.costs()}


def main(folder: Path) -> None:
    """Train under DDP, and write gates, compact outputs and the sum of the own data."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    example = torch.ones(2, 6)
    model = al.add_gates(net, example)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(al.parameter_groups(wrapped, lr=0.05), momentum=0.9)
    strengths = al.Strengths.from_width_cost(2e-2)
    seen = torch.zeros(())
    for _ in range(N_STEPS):
        x = torch.randn(16, 6)
        seen += x.sum()
        y = x[:, :3].argmax(1)
        loss = cross_entropy(wrapped(x), y) + al.penalty(wrapped, strengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        al.clip_gates_(wrapped)
    small = al.compact(model)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(32 * N_STEPS, 6, generator=generator, dtype=torch.float64)
    budget = learn_to_budget(x, x[:, :3].argmax(1), rank, dist.get_world_size())
    alone = learn_to_budget(x, x[:, :3].argmax(1), 0, 1)
    shrunk = learn_to_budget(x, x[:, :3].argmax(1), rank, dist.get_world_size(), shrinks=True)
    shrunk_alone = learn_to_budget(x, x[:, :3].argmax(1), 0, 1, shrinks=True)
    gates = {**al.width_gates(model), **{f"depth {k}": v for k, v in al.depth_gates(model).items()}}
    torch.save(
        {
            "gates": {name: gate.detach() for name, gate in gates.items()},
            "output": small(example).detach(),
            "gated": model(example).detach(),
            "architecture": str(al.read_architecture(model)),
            "seen": seen,
            "budget": budget,
            "alone": alone,
            "shrunk": shrunk,
            "shrunk_alone": shrunk_alone,
        },
        folder / f"{rank}.pt",
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]))
