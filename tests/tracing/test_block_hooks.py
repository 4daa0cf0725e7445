"""Forward hooks of blocks fire on gated and compact models, around the blocks' own values."""

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import archlearn as al


class Block(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(n, 3 * n), nn.Linear(3 * n, n)

    def forward(self, x: Tensor, scale: float = 1.0, *, mask: Tensor) -> tuple[Tensor, Tensor]:
        y = self.second(torch.relu(self.first(x))) * mask
        return x + scale * y, y


class Net(nn.Module):
    """Two blocks that take keywords and return tuples, and one inside another."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.blocks = nn.ModuleList([Block(6), Block(6)])
        self.head = nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 3))

    def forward(self, x: Tensor, *, scale: float = 2.0) -> dict[str, Tensor]:
        x = self.stem(x)
        sides: list[Tensor] = []
        for block in self.blocks:
            x, side = block(x, scale, mask=torch.sigmoid(x))
            sides.append(side)
        return {"y": self.head(x), "side": sides[0] + sides[1]}


NAMES = ("blocks.0", "blocks.1", "head", "head.0")
X = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def network() -> Net:
    torch.manual_seed(0)
    return Net().double()


def compacted() -> tuple[nn.Module, nn.Module]:
    gated = al.add_gates(network(), X)
    with torch.no_grad():
        for gates in al.width_gates(gated).values():
            gates[: len(gates) // 2] = 0.2
        for gate in al.depth_gates(gated).values():
            gate.fill_(0.2)
    return gated, al.compact(gated)


def record(model: nn.Module) -> list[Any]:
    """Register hooks on all blocks; return what they will see."""
    seen: list[Any] = []
    for name in NAMES:
        block = model.get_submodule(name)

        def before(_: Any, args: Any, kwargs: Any, name: str = name) -> None:
            seen.append((name, args, kwargs))

        def after(_: Any, args: Any, output: Any, name: str = name) -> None:
            seen.append((name, args, output))

        block.register_forward_pre_hook(before, with_kwargs=True)
        block.register_forward_hook(after)
    return seen


def assert_same(found: list[Any], meant: list[Any], tolerance: float = 0.0) -> None:
    assert [name for name, *_ in found] == [name for name, *_ in meant]
    values = ([each[1:] for each in seen] for seen in (found, meant))
    torch.testing.assert_close(*values, rtol=tolerance, atol=tolerance)


def test_hooks_see_what_they_see_on_the_model_itself() -> None:
    net = network()
    gated = al.add_gates(net, X)
    meant, found = record(net), record(gated)
    for model in (net, gated):
        model(X)
    assert len(meant) == 2 * len(NAMES)
    assert_same(found, meant)


def test_hooks_fire_on_compact_models_and_their_copies() -> None:
    gated, small = compacted()
    other = copy.deepcopy(small)
    assert type(small).__name__ == "CompactNet"
    meant, found, again = record(gated), record(small), record(other)
    for model in (gated, small, other):
        model(X)
    # The channels behind head.0 are fewer.
    wide = [[each for each in seen if each[0] != "head.0"] for seen in (found, meant)]
    assert_same(*wide, tolerance=1e-10)
    assert_same(again, found)


def test_hooks_that_change_tensors_do_so() -> None:
    net = network()
    gated = al.add_gates(net, X)
    plain = gated(X)["y"]
    for model in (net, gated):
        blocks: Any = model.get_submodule("blocks")
        blocks[0].register_forward_hook(lambda _, args, out: (out[0] * 2, out[1]))
        blocks[1].register_forward_pre_hook(lambda _, args: (args[0] + 1, args[1]))
        model.get_submodule("head").register_forward_pre_hook(lambda _, args: args[0] / 2)
    torch.testing.assert_close(gated(X), net(X), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(gated(X)["y"], plain)


@pytest.mark.parametrize(
    "register",
    [
        lambda block: block.register_forward_pre_hook(lambda _, args: (args[0], 5.0)),
        lambda block: block.register_forward_hook(lambda _, args, out: out[0]),
    ],
)
def test_hooks_that_change_anything_else_are_refused(register: Callable[[Any], Any]) -> None:
    gated = al.add_gates(network(), X)
    register(gated.get_submodule("blocks.0"))
    with pytest.raises(al.InputError, match=r"a forward hook of Block changes .* change tensors"):
        gated(X)


def test_a_hook_that_was_there_before_is_named(caplog: pytest.LogCaptureFixture) -> None:
    net, calls = network(), []
    net.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    with caplog.at_level(logging.WARNING):
        gated = al.add_gates(net, X)
    assert "'blocks.0' has a forward hook, which ran while the model was traced" in caplog.text
    calls.clear()
    gated(X)
    assert not calls


def test_a_hook_of_the_whole_model_that_changes_its_output_is_named() -> None:
    net = network()
    net.register_forward_hook(lambda _, args, out: {**out, "y": 2 * out["y"]})
    with pytest.raises(al.TracingError, match=r"The model has forward hooks.*remove them before"):
        al.add_gates(net, X)


class Streamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.branch(x))


def test_a_hook_that_adds_to_a_closed_branch_is_named() -> None:
    gated = al.add_gates(Streamed().double(), X)
    gated.get_submodule("branch").register_forward_hook(lambda _, args, out: out + 1.0)
    with torch.no_grad():
        al.branch_gates(gated)["branch"].fill_(0.2)
    with pytest.raises(al.CertificateError, match="remove the forward hook of 'branch'"):
        al.compact(gated)
    with pytest.raises(al.SurgeryError, match="remove the forward hook of 'branch'"):
        al.shrink_(gated)


class Options:
    scale = 2.0


class TakesOptions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, options: Options) -> Tensor:
        return self.second(torch.relu(self.first(x))) * options.scale


class GivesOptions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = TakesOptions()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x, Options())


def test_whoever_registers_a_hook_that_cannot_fire_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gated = al.add_gates(GivesOptions().double(), X)
    with caplog.at_level(logging.WARNING):
        gated.get_submodule("block").register_forward_hook(lambda *_: None)
    assert "registered on 'block', but it will not fire" in caplog.text


@pytest.mark.usefixtures("one_group_of_processes")
def test_blocks_can_be_sharded(tmp_path: Path) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    device_mesh = pytest.importorskip("torch.distributed.device_mesh")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        mesh = device_mesh.init_device_mesh("cpu", (1,))
        gated = al.add_gates(network().float(), X.float())
        meant = gated(X.float())["y"]
        gates = {*al.width_gates(gated).values(), *al.depth_gates(gated).values()}
        for name in ("blocks.0", "blocks.1"):
            fsdp.fully_shard(gated.get_submodule(name), mesh=mesh)
        fsdp.fully_shard(gated, mesh=mesh, ignored_params=gates)
        found = gated(X.float())["y"]
        torch.testing.assert_close(found, meant)
        found.sum().backward()
        assert all(p.grad is not None for p in gated.get_submodule("blocks.0").parameters())
    finally:
        dist.destroy_process_group()
