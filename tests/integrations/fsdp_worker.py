"""One of two processes that learn a gated model together, its blocks sharded by FSDP2."""

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import archlearn as al

N_STEPS = 40


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).relu())


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def main(folder: Path) -> None:
    """Learn to a budget; write the whole gated model's state and the compact one."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Network()
    x = torch.randn(16 * N_STEPS, 8)
    y = x[:, :3].argmax(1)
    model = al.add_gates(net, x[:2])
    gates = al.GateOptimizer(model, N_STEPS, budget={"multiply_adds": "50%"})
    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    optimizer = torch.optim.AdamW(al.weights(model), lr=3e-3)
    whole = [p for p in model.parameters() if not hasattr(p, "full_tensor")]
    for step in range(N_STEPS):
        rows = slice(16 * step + rank, 16 * (step + 1), world)
        cross_entropy(model(x[rows]), y[rows]).backward()
        for parameter in whole:  # gates and what lies outside of the blocks
            dist.all_reduce(parameter.grad, dist.ReduceOp.SUM)
            parameter.grad /= world
        for each in (optimizer, gates):
            each.step()
            each.zero_grad()
    before = [parameter.shape for parameter in model.parameters()]
    with pytest.raises(al.InputError, match="is spread over processes by fully_shard"):
        al.shrink_(model, optimizer, gates)
    assert [parameter.shape for parameter in model.parameters()] == before
    with pytest.raises(al.InputError, match="bring the weights together"):
        al.compact(model)
    plain_net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    sharded = fully_shard(al.add_gates(plain_net, x[:2], learn={"*": al.Learn.WIDTH}), mesh=mesh)
    with pytest.raises(al.InputError, match="give fully_shard the blocks"):
        al.GateOptimizer(sharded, N_STEPS, budget={"multiply_adds": "50%"})
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    torch.save(dict(state), folder / f"{rank}.pt")
    if rank == 0:
        plain = al.add_gates(net, x[:2])
        plain.load_state_dict(state)
        al.save(al.compact(plain), folder / "small.safetensors")
        torch.save((x, plain.eval()(x).detach()), folder / "output.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
