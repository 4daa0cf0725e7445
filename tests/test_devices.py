"""On a GPU everything is as on the CPU: gates move with the model, and surgery stays there."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import archlearn as al

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
GPU = "cuda"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(80, 12), nn.ReLU(), nn.Linear(12, 3),
    )  # fmt: skip


X = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def draw_gates_(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    for gate in (*al.width_gates(model).values(), *al.depth_gates(model).values()):
        gate.copy_(torch.rand(gate.shape, generator=generator))


@pytest.mark.parametrize("moved", ["before", "after"])
def test_a_model_is_gated_and_compacted_where_it_is(moved: str) -> None:
    if moved == "before":
        model = al.add_gates(network().to(GPU), X.to(GPU)).eval()
    else:
        model = al.add_gates(network(), X).to(GPU).eval()
    draw_gates_(model)
    small = al.compact(model)
    x = X.to(GPU)
    assert {p.device.type for p in (*model.parameters(), *small.parameters())} == {GPU}
    torch.testing.assert_close(small(x), model(x), rtol=1e-3, atol=1e-4)
    assert al.count_costs(small) == al.plan(model).after


@pytest.mark.parametrize("price", list(al.Price))
def test_the_penalty_is_that_of_the_cpu(price: al.Price) -> None:
    model = al.add_gates(network(), X)
    draw_gates_(model)
    strengths = al.Strengths.from_width_cost(1.0, price=price)
    expected = al.penalty(model, strengths)
    found = al.penalty(model.to(GPU), strengths)
    assert found.device.type == GPU
    torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("autocast", [False, True])
def test_steps_are_taken_there(autocast: bool) -> None:
    model = al.add_gates(network(), X).to(GPU)
    optimizer = torch.optim.SGD(al.parameter_groups(model, lr=0.05), momentum=0.9)
    strengths = al.Strengths.from_width_cost(1e-3)
    x, y = X.to(GPU), torch.tensor([0, 1, 2, 0], device=GPU)
    losses: list[float] = []
    for _ in range(20):
        with torch.autocast(GPU, torch.bfloat16, enabled=autocast):
            loss = cross_entropy(model(x), y)
        losses.append(loss.item())
        optimizer.zero_grad()
        (loss + al.penalty(model, strengths)).backward()
        optimizer.step()
        al.clip_gates_(model)
    assert losses[-1] < losses[0]
    small = al.compact(model.eval())
    torch.testing.assert_close(small(x), model(x), rtol=1e-3, atol=1e-3)


def test_gates_placed_by_hand_work_there() -> None:
    net = nn.Sequential(nn.Linear(64, 6), al.TriState(6), nn.Linear(6, 2)).to(GPU)
    x = X.flatten(1).to(GPU)
    with torch.no_grad():
        net[1].width[[0, 2]] = 0.1
    small = al.compact(net, example_inputs=x)
    assert small[0].out_features == 4
    torch.testing.assert_close(small(x), net(x), rtol=1e-3, atol=1e-4)


def test_a_compact_model_is_saved_and_loaded(tmp_path: object) -> None:
    small = al.compact(al.add_gates(network().to(GPU), X.to(GPU)).eval())
    al.save(small, f"{tmp_path}/small.safetensors")
    loaded = al.load(f"{tmp_path}/small.safetensors").to(GPU)
    torch.testing.assert_close(loaded(X.to(GPU)), small(X.to(GPU)))


def test_a_step_is_captured_as_a_graph() -> None:
    """Nothing in a gated step waits for the CPU."""
    model = al.add_gates(network(), X).to(GPU)
    strengths = al.Strengths.from_width_cost(1e-3, price=al.Price.PARAMETERS)
    x = X.to(GPU)

    def step() -> torch.Tensor:
        loss = model(x).square().mean() + al.penalty(model, strengths)
        model.zero_grad(set_to_none=False)
        loss.backward()
        return loss.detach()

    side, expected = torch.cuda.Stream(), x.new_zeros(())
    with torch.cuda.stream(side):
        for _ in range(3):
            expected = step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.testing.assert_close(captured, expected, rtol=1e-3, atol=1e-6)


class Joined(nn.Module):
    """Two layers side by side and turned round: where their gates stand is kept as an index."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(4, 5), nn.Linear(11, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(torch.cat([self.a(x), self.b(x)], dim=1).flip(1).relu())


def test_all_that_gates_need_is_there_when_they_are_added_or_cut_out() -> None:
    model = al.add_gates(Joined().to(GPU), torch.randn(2, 4, device=GPU))
    assert {buffer.device.type for buffer in model.buffers()} == {GPU}
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate[:2] = 0.0
    al.shrink_(model)
    assert {buffer.device.type for buffer in model.buffers()} == {GPU}
