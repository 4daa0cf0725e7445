"""What each of two processes does: learn gates on weights on its own share of the data."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import archlearn as al

N_STEPS = 30


def learn(rank: int, world: int, *, disturbs: bool = False) -> dict[str, Tensor]:
    """Return weights, and which gates are open; disturbed, what each process knows differs."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 3))
    x = torch.randn(
        32 * N_STEPS, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    y = x[:, :3].argmax(1)
    model = al.add_gates(net.double(), x[:2], on="weights")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    gates = al.GateOptimizer(model, optimizer, total_steps=N_STEPS, budget={"parameters": "40%"})
    wrapped = DistributedDataParallel(model) if world > 1 else model
    for number in range(N_STEPS):
        rows = slice(32 * number, 32 * (number + 1))
        mine = x[rows][rank::world], y[rows][rank::world]
        cross_entropy(wrapped(mine[0]), mine[1]).backward()
        optimizer.step()
        optimizer.zero_grad()
        for known in gates.state.values() if disturbs and rank else ():
            if "mean" in known:
                known["mean"] *= torch.rand_like(known["mean"])
    state: dict[str, Any] = gates.state_dict()["on_weights"]
    al.compact(model)
    return {"open": state["is_open"], **model.state_dict()}


def main(folder: Path) -> None:
    """Write what is learnt together, alone, and by processes that know different things."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    found = {
        "together": learn(rank, world),
        "disturbed": learn(rank, world, disturbs=True),
        "alone": learn(0, 1),
    }
    torch.save(found, folder / f"{os.environ['RANK']}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
