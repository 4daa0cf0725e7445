"""The gate optimiser closes residual branches where that pays, once they have grown."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al
import archlearn_cli as cli
from archlearn.gating import insertion
from archlearn.gating.gate_container import find_container
from archlearn.nn.tristate_activation import gate_branch
from archlearn.optim.cost_function import CostFunction
from archlearn.optim.gate_ranking import Holds, fill_up, find_savings, rank_gates
from archlearn.tracing.generated_forward import forward_graphs

N_BLOCKS, WIDTH = 4, 8


class Block(nn.Module):
    """A residual block whose branch ends in a scale."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.full((WIDTH,), scale))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.outer(F.relu(self.inner(x)))


class Net(nn.Module):
    """Blocks of which those with a scale of zero add nothing."""

    def __init__(self, *scales: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*map(Block, scales))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x))


def draw(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(32, WIDTH, generator=generator)
    return x, (x[:, :3].abs() + x[:, 3:6] * x[:, 5:8]).argmax(1)


def learn(
    model: nn.Module,
    n_steps: int,
    share: str,
    *,
    upto: int | None = None,
    rate: float = 0.0,
    discount: float = 1.0,
) -> al.GateOptimizer:
    # the budget falls at once
    sudden = al.GateSchedule(power=100.0, branch_discount=discount)
    gates = al.GateOptimizer(model, n_steps, budget={"multiply_adds": share}, schedule=sudden)
    weights = torch.optim.Adam(al.weights(model), lr=rate)
    for step in range(n_steps if upto is None else upto):
        x, y = draw(step)
        F.cross_entropy(model(x), y).backward()
        weights.step()
        gates.step()
        weights.zero_grad()
        gates.zero_grad()
    return gates


def closed(model: nn.Module) -> list[str]:
    return [name for name, gate in al.branch_gates(model).items() if gate.item() < 0.5]


def test_branches_that_hardly_matter_go_first_and_the_budget_holds() -> None:
    model = al.add_gates(Net(1.0, 1e-3, 1.0, 1e-3), draw(0)[0])
    gates = learn(model, 60, "45%")
    assert set(closed(model)) == {"blocks.1", "blocks.3"}
    small = al.compact(model)
    assert al.count_costs(small).multiply_adds == gates.costs()["multiply_adds"] * 32
    assert gates.costs()["multiply_adds"] <= 0.45 * al.plan(model).before.multiply_adds / 32
    with torch.no_grad():
        assert (small(draw(1)[0]) - model(draw(1)[0])).abs().max() < 1e-5


def test_a_branch_discount_closes_whole_blocks_instead_of_their_channels() -> None:
    found: list[int] = []
    for discount in (1.0, 1e6):
        model = al.add_gates(Net(1.0, 1.0, 1.0, 1.0), draw(0)[0])
        learn(model, 60, "60%", discount=discount)
        found.append(len(closed(model)))
    assert found == [0, 1]


@pytest.mark.parametrize("scale", [0.0, 1e-6])  # of a norm's weight, of LayerScale
def test_a_branch_that_starts_at_zero_is_not_judged_while_it_grows(scale: float) -> None:
    model = al.add_gates(Net(1.0, scale, 1.0, 1.0), draw(0)[0])
    learn(model, 400, "75%", upto=64, rate=0.02)  # gates decide from step 40 on
    assert "blocks.1" not in closed(model)
    idle = al.add_gates(Net(1.0, 1e-3, 1.0, 1.0), draw(0)[0])
    learn(idle, 400, "75%", upto=64)  # nothing grows without a rate
    assert closed(idle) == ["blocks.1"]


def test_a_branch_that_has_not_begun_to_grow_is_not_judged() -> None:
    model = al.add_gates(Net(1.0, 0.0, 1.0, 1.0), draw(0)[0])
    learn(model, 400, "75%", upto=64)
    assert closed(model) == []


def test_what_is_known_inside_a_closed_branch_stands_still() -> None:
    model = al.add_gates(Net(1.0, 1.0, 1.0, 1.0), draw(0)[0])
    gates = learn(model, 400, "80%", upto=20)
    with torch.no_grad():
        al.branch_gates(model)["blocks.1"].fill_(0.0)
    gates.accept_gates()
    inside, outside = (al.width_gates(model)[f"blocks.{i}.inner"] for i in (1, 2))
    before = [gates.state[gate]["mean"].clone() for gate in (inside, outside)]
    x, y = draw(99)
    F.cross_entropy(model(x), y).backward()
    own = al.branch_gates(model)["blocks.1"]
    assert own.grad is not None
    assert own.grad.item() != 0
    gates.observe_()
    assert torch.equal(gates.state[inside]["mean"], before[0])
    assert not torch.equal(gates.state[outside]["mean"], before[1])


@pytest.mark.parametrize("kind", [list, iter])
def test_protected_layers_keep_their_branch(kind: Callable[[list[str]], Iterable[str]]) -> None:
    model = al.add_gates(Net(1.0, 1e-3, 1.0, 1e-3), draw(0)[0])
    names = kind(["blocks.1.inner", "blocks.3"])
    gates = al.GateOptimizer(model, 10, budget={"multiply_adds": "50%"}, protect=names)
    gates.finish()
    assert not {"blocks.1", "blocks.3"} & set(closed(model))


def test_a_budget_below_what_protected_branches_cost_is_refused() -> None:
    model = al.add_gates(Net(1.0, 1e-3, 1.0, 1e-3), draw(0)[0])
    with pytest.raises(al.InputError, match="cannot be reached"):
        al.GateOptimizer(model, 10, budget={"multiply_adds": "20%"}, protect=["blocks.*"])


def test_a_branch_goes_where_the_last_channel_inside_would() -> None:
    """Three channels, of which one stays, inside a branch that earns more than they do."""
    earned = torch.tensor([1.0, 3.0, 2.0, 100.0], dtype=torch.float64)
    cost = torch.ones(4, dtype=torch.float64)
    holds = Holds(
        group=torch.zeros(3, dtype=torch.long),
        least=torch.ones(1, dtype=torch.long),
        step=torch.ones(1, dtype=torch.long),
        alike=torch.zeros(1, dtype=torch.long),
        is_cut=torch.zeros(1, dtype=torch.bool),
        inner=torch.ones(1, 3, dtype=torch.bool),
        others=torch.zeros(1, dtype=torch.bool),
    )
    ranking = rank_gates(earned, cost, torch.zeros(4, dtype=torch.bool), holds, 1.0)
    assert ranking.ratio.tolist() == [1.0, float("inf"), 2.0, 3.0]
    is_open, is_gone = ranking.states(torch.tensor([2, 3]), 3)
    assert is_open.tolist() == [[0.0, 1.0, 0.0]] * 2
    assert is_gone.tolist() == [[0.0], [1.0]]


def test_room_that_a_branch_left_is_filled_up_whole() -> None:
    """A ViT asked for a tenth landed at 8.85 %: of a hundred channels that fitted 16 opened."""
    net = nn.Sequential(nn.Linear(8, 200), nn.ReLU(), nn.Linear(200, 4))
    model = al.add_gates(net, torch.randn(2, 8))
    container = find_container(model)
    assert container is not None
    cost = CostFunction(model, container.learnable)
    opened, gone = torch.zeros(200, dtype=torch.float64), torch.zeros(cost.n_depth).double()
    opened[:10] = 1.0
    limits = cost(torch.cat([torch.ones(120), torch.zeros(80)])[None].double(), gone[None])[0]
    earned = torch.linspace(1.0, 2.0, 200).double()
    n = len(earned) + len(gone)
    group, least = torch.zeros(200, dtype=torch.long), torch.ones(1, dtype=torch.long)
    nothing = torch.zeros(0, 200, dtype=torch.bool), torch.zeros(len(gone), dtype=torch.bool)
    alike, is_cut = torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.bool)
    holds = Holds(group, least, least, alike, is_cut, *nothing)
    ranking = rank_gates(torch.ones(n).double(), torch.ones(n), torch.ones(n) > 0, holds, 1.0)
    filled = fill_up(ranking, earned, (opened, gone), cost, limits)
    assert filled.sum() == 120
    assert filled[-110:].all()


def test_what_is_saved_together_is_what_is_saved_one_by_one() -> None:
    """Of channels the gradient of the cost, of branches the difference."""
    model = al.add_gates(Net(1.0, 1.0, 1.0, 1.0), draw(0)[0])
    container = find_container(model)
    assert container is not None
    cost = CostFunction(model, container.learnable)
    n_others = cost.n_depth + cost.n_branches
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        opened = (torch.rand(cost.n_width, generator=generator) > 0.4).double()
        opened[cost.group.diff(prepend=torch.tensor([-1])) > 0] = 1.0  # the first of each group
        gone = (torch.rand(n_others, generator=generator) > 0.5).double()
        limits = torch.tensor([torch.inf, 1.0], dtype=torch.float64)
        found, overshoots = find_savings(cost, opened, gone, limits)
        meant: list[Tensor] = []
        for open_branches in (False, True):
            state = gone.clone()
            state[cost.n_depth :] *= 1.0 - open_branches
            leaf = opened.clone().requires_grad_()
            meant += torch.autograd.grad(cost(leaf[None], state[None])[0, 1], leaf)
        assert torch.equal(found[: cost.n_width], torch.where(meant[0] > 0, *meant))
        for place in range(cost.n_depth, n_others):
            both = gone.repeat(2, 1)
            both[:, place] = torch.tensor([0.0, 1.0])
            there, without = cost(opened.repeat(2, 1), both)[:, 1]
            assert found[cost.n_width + place] == there - without
        assert not overshoots.any()


def test_a_branch_that_is_gone_already_does_not_overshoot_the_budget() -> None:
    """What is gone cannot take the network below its budget: it earned its place back so."""
    model = al.add_gates(Net(1.0, 1.0), draw(0)[0])
    container = find_container(model)
    assert container is not None
    cost = CostFunction(model, container.learnable)
    opened = torch.ones(cost.n_width, dtype=torch.float64)
    gone = torch.tensor([*[0.0] * cost.n_depth, 1.0, 0.0], dtype=torch.float64)
    now = cost(opened[None], gone[None])[0]
    limits = torch.stack([now[0] + 1.0, now.new_tensor(torch.inf)])  # one parameter of room
    _, overshoots = find_savings(cost, opened, gone, limits)
    assert overshoots.tolist() == [False, True]


def test_a_channel_of_a_stream_costs_its_places_in_a_table_of_positions() -> None:
    """A table of 5 positions is priced like the other parameters, whether it is open or closed."""
    model = al.add_gates(
        cli.models.GPT(n_tokens=7, length=5, dim=12, n_blocks=1), torch.zeros(1, 5).long()
    )
    container = find_container(model)
    assert container is not None
    cost = CostFunction(model, container.learnable)
    is_open = torch.ones(2, cost.n_width, dtype=torch.float64)
    channel = (cost.group == [*al.width_gates(model)].index("tokens")).nonzero()[0]
    is_open[1, channel] = 0.0
    is_open.requires_grad_()
    costs = cost(is_open, torch.zeros(2, cost.n_depth + cost.n_branches, dtype=torch.float64))
    (prices,) = torch.autograd.grad(costs[:, 0].sum(), is_open)
    assert prices[:, channel].flatten().tolist() == [(costs[0] - costs[1])[0].item()] * 2


@pytest.mark.parametrize("share", ["30%", "10%"])
def test_small_budgets_are_reached_by_leaving_out_branches(share: str) -> None:
    model = al.add_gates(Net(1.0, 1.0, 1.0, 1.0), draw(0)[0])
    gates = learn(model, 60, share)
    assert gates.fits()
    assert al.plan(model).after.multiply_adds == gates.costs()["multiply_adds"] * 32


class OneBlock(nn.Module):
    """Two branches that cost nearly all there is, as in a transformer of one block."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.last = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(self.first(x.view(-1, 8, 8))).mean(1))


@pytest.mark.parametrize("share", [40, 20])
def test_two_branches_do_not_go_at_once_where_that_leaves_half_of_the_budget(share: int) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(200, 64), torch.randint(10, (200,))
    assert 0.97 <= land(OneBlock(), x, y, f"{share}%") <= 1.0


def land(net: nn.Module, x: Tensor, y: Tensor, share: str) -> float:
    """Return what a run leaves, in parts of its budget of parameters."""
    model = al.add_gates(net, x[:2])
    gates: Any = al.GateOptimizer(model, 60, budget={"parameters": share})
    optimizer = torch.optim.SGD(al.weights(model), lr=0.05, momentum=0.9)
    for _ in range(60):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        gates.step()
        model.zero_grad()
    return al.plan(model).after.parameters / gates.describe()["budget_path"]["parameters"]


class FourHeads(nn.Module):
    """One layer of attention, a head of which is an eighth of the network, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(3))
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 16), nn.Linear(16, 32)
        self.last = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        heads = self.qkv(self.norms[0](x)).view(len(x), -1, 3, 4, 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads.unbind(0)).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return self.last(self.norms[2](x).mean(1))


@pytest.mark.parametrize("share", [85, 70])
def test_a_head_does_not_go_where_that_leaves_much_of_the_budget(share: int) -> None:
    """Else the first run would leave 8 per cent of the budget, and the second 17."""
    torch.manual_seed(0)
    x = torch.randn(256, 6, 8)
    y = (x[:, :, 0].sum(1) > 0).long() + 2 * (x[:, 0, 1] > 0)
    assert 0.98 <= land(FourHeads(), x, y, f"{share}%") <= 1.0


class Ending(nn.Module):
    """A branch that ends with a norm, one with a layer behind a gated one and with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3))
        self.up, self.down = nn.Conv2d(3, 7, 1), nn.Conv2d(7, 3, 1)
        self.dropout, self.head = nn.Dropout(0.0), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(x)
        x = x + self.dropout(self.down(F.relu(self.up(x))))
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("opened", [1.0, 0.0])
def test_a_branchs_gate_acts_on_its_last_layer_as_on_what_it_adds(
    opened: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net, x = Ending().double(), torch.randn(4, 3, 9, 9, dtype=torch.float64)
    model = al.add_gates(net, x)
    monkeypatch.setattr(insertion, "count_activations", lambda _: 0)
    other = al.add_gates(net, x)
    found: list[list[Tensor]] = []
    for each, n_products in ((model, 0), (other, 2)):
        calls = [n.target for n in forward_graphs(each)[0].nodes]
        assert calls.count(gate_branch) == n_products
        with torch.no_grad():
            next(iter(al.branch_gates(each).values())).fill_(opened)
        out = each(x)
        out.square().sum().backward()
        found.append([out, *(p.grad for p in each.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1]) > 10
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


def add_hook(model: Any) -> None:
    model.first[1].register_forward_hook(lambda *given: given[-1] + 1)


def fuse(model: Any) -> None:
    model.first[1] = nn.Identity()


def parametrise(model: Any) -> None:
    nn.utils.parametrize.register_parametrization(model.first[1], "weight", nn.Softplus())


@pytest.mark.parametrize("change", [add_hook, fuse, parametrise])
def test_a_closed_branch_adds_nothing_whatever_becomes_of_its_last_layer(
    change: Callable[[Any], None],
) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 9, 9, dtype=torch.float64)
    model: Any = al.add_gates(Ending().double(), x)
    change(model)
    before = model(x)
    with torch.no_grad():
        for gate in al.branch_gates(model).values():
            gate.fill_(0.0)
    assert not torch.equal(model(x), before)
    assert torch.equal(model(x), model.head(x.mean((2, 3))))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_norm_that_carries_a_branchs_gate_counts_and_averages_as_it_did(
    momentum: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads may read its own weight meanwhile."""
    torch.manual_seed(0)
    x = torch.randn(4, 3, 9, 9, dtype=torch.float64)
    net: Any = Ending().double()
    net.first[1].momentum = momentum
    model: Any = al.add_gates(net, x)
    call, seen = F.batch_norm, list[bool]()

    def watch(*args: Any, **kwargs: Any) -> Tensor:
        seen.append(isinstance(model.first[1].weight, nn.Parameter))
        return call(*args, **kwargs)

    monkeypatch.setattr(F, "batch_norm", watch)
    for _ in range(3):
        assert torch.equal(model(x), net(x))
    assert seen == [True] * 6
    own, other = (m.first[1].state_dict() for m in (model, net))
    assert all(torch.equal(own[key], other[key]) for key in other)


class Mixing(nn.Module):
    """A block of which nothing but the whole can be learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(F.softmax(self.inner(x), -1))


@pytest.mark.parametrize(("n_blocks", "share"), [(1, "30%"), (3, "60%")])
def test_a_model_with_gates_of_branches_alone_is_learnt(n_blocks: int, share: str) -> None:
    """Also once `shrink_` has left all of them out and no gate acts any more."""
    torch.manual_seed(0)
    net = nn.Sequential(*[Mixing() for _ in range(n_blocks)], nn.Linear(WIDTH, 3))
    model = al.add_gates(net, draw(0)[0])
    weights = torch.optim.SGD(al.weights(model), lr=0.01)
    gates = al.GateOptimizer(model, 60, budget={"multiply_adds": share})
    n_shrunk = 0
    for step in range(60):
        model(draw(step)[0]).square().mean().backward()
        for each in (weights, gates):
            each.step()
            each.zero_grad()
        if gates.can_shrink():
            al.shrink_(model, weights, gates)
            n_shrunk += 1
    assert n_shrunk
    most = al.count_costs(net, draw(0)[0]).multiply_adds * float(share.rstrip("%")) / 100
    assert al.count_costs(al.compact(model)).multiply_adds <= most
