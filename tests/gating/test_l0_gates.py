"""Gates of the kind "l0": one argument, and the rest goes as with ours."""

import copy
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al
from archlearn.nn.hard_concrete import START, count_expected, settle_gates
from archlearn_cli.models import ConvNet, LeNet

DIGITS = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
WIDTH = {"*": al.Learn.WIDTH}
STRENGTHS = al.Strengths(width_cost=0.01, width_binarise=5.0)


@torch.no_grad()
def spread_(model: nn.Module, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for gate in al.width_gates(model).values():
        gate.copy_(torch.rand(len(gate), generator=generator))


def chain(activation: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), activation or nn.ReLU(), nn.Linear(4, 2))


def test_gates_start_at_even_odds() -> None:
    model = al.add_gates(LeNet(), DIGITS, kind="l0", learn=WIDTH)
    for gate in al.width_gates(model).values():
        torch.testing.assert_close(gate.detach(), torch.full_like(gate, START))


def test_draws_differ_in_training_and_not_in_evaluation() -> None:
    model = al.add_gates(LeNet(), DIGITS, kind="l0", learn=WIDTH)
    assert not torch.equal(model(DIGITS), model(DIGITS))
    model.eval()
    assert torch.equal(model(DIGITS), model(DIGITS))


def test_evaluation_scales_by_the_settled_gates() -> None:
    net = chain()
    model = al.add_gates(net, torch.zeros(1, 3), kind="l0", learn=WIDTH).eval()
    spread_(model)
    (gate,) = al.width_gates(model).values()
    assert 0 < int((gate >= 0.5).sum()) < 4
    scale = settle_gates(gate.detach(), (gate >= 0.5).float())
    x = torch.randn(5, 3)
    torch.testing.assert_close(model(x), net[2](net[1](net[0](x)) * scale))


def test_the_penalty_is_what_is_to_be_expected() -> None:
    model = al.add_gates(chain(), torch.zeros(1, 3), kind="l0", learn=WIDTH)
    spread_(model)
    (gate,) = al.width_gates(model).values()
    expected = 0.01 * count_expected(gate).sum()
    torch.testing.assert_close(al.penalty(model, STRENGTHS), expected)


def test_the_price_may_follow_parameters() -> None:
    model = al.add_gates(LeNet(), DIGITS, kind="l0", learn=WIDTH)
    by_size = al.Strengths(width_cost=0.01, width_binarise=0.0, price=al.Price.PARAMETERS)
    al.penalty(model, by_size).backward()
    gates = al.width_gates(model)
    # a neuron of fc1 has 811 parameters, a channel of conv2 8,501
    ratio = gates["conv2"].grad[0] / gates["fc1"].grad[0]
    assert ratio.item() == pytest.approx(8501 / 811)


@pytest.mark.parametrize("kind", ["lenet", "convnet", "groups"])
def test_compact_computes_the_same(kind: str) -> None:
    torch.manual_seed(0)
    nets: dict[str, nn.Module] = {
        "lenet": LeNet(),
        "convnet": ConvNet(1),
        "groups": nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 6, 3, groups=2),
            nn.LeakyReLU(), nn.Flatten(), nn.Linear(6 * 121, 3),
        ),
    }  # fmt: skip
    model = al.add_gates(nets[kind], DIGITS, kind="l0", learn=WIDTH)
    spread_(model)
    small = al.compact(model)
    assert al.count_costs(small).parameters < al.count_costs(model).parameters
    model.eval()
    small.eval()
    torch.testing.assert_close(small(DIGITS), model(DIGITS), rtol=1e-4, atol=1e-5)
    certificate: Any = small.certificate
    assert certificate.difference_float64 < 1e-10
    assert not any("archlearn" in name for name, _ in small.named_parameters())


def test_the_plan_and_the_architecture_read_the_same_gates() -> None:
    model = al.add_gates(LeNet(), DIGITS, kind="l0", learn=WIDTH)
    spread_(model)
    widths = tuple(int((gate >= 0.5).sum()) for gate in al.width_gates(model).values())
    assert al.read_architecture(model).widths == (*widths, 10)
    plan = al.plan(model)
    assert al.count_costs(al.compact(model, plan)).parameters == plan.after.parameters


def test_depth_gates_go_on_as_ours() -> None:
    model = al.add_gates(LeNet(), DIGITS, kind="l0")
    spread_(model)
    with torch.no_grad():
        al.depth_gates(model)["fc1"].fill_(1.0)
    small = al.compact(model)
    assert "fc1" not in al.read_architecture(model).__str__()
    torch.testing.assert_close(small.eval()(DIGITS), model.eval()(DIGITS), rtol=1e-4, atol=1e-5)


def test_a_layer_that_lost_all_is_kept_alive() -> None:
    model = al.add_gates(chain(), torch.zeros(1, 3), kind="l0", learn=WIDTH)
    (gate,) = al.width_gates(model).values()
    with torch.no_grad():
        gate.copy_(torch.tensor([0.1, 0.3, 0.2, 0.0]))
    small = al.compact(model)
    assert small.get_parameter("0.weight").shape[0] == 1
    x = torch.randn(5, 3)
    torch.testing.assert_close(small.eval()(x), model.eval()(x))


def test_it_learns_which_neurons_count() -> None:
    torch.manual_seed(0)
    x = torch.randn(512, 4)
    y = (x[:, 0] + 2 * x[:, 1]).relu()
    net = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1))
    model = al.add_gates(net, x, kind="l0", learn=WIDTH)
    strengths = al.Strengths(width_cost=0.01, width_binarise=0.0)
    optimiser = torch.optim.SGD(
        al.parameter_groups(model, lr=0.03, gate_lr=0.03), lr=0.03, momentum=0.9
    )
    for _ in range(600):
        loss = F.mse_loss(model(x).squeeze(1), y) + al.penalty(model, strengths)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        al.clip_gates_(model)
    small = al.compact(model).eval()
    assert small.get_parameter("0.weight").shape[0] <= 4
    assert F.mse_loss(small(x).squeeze(1), y).item() < 0.05


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.last(torch.relu(y) + torch.relu(-y))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (chain(nn.GELU()), "behind '0' cannot become part of a layer: its activation is GELU"),
        (Twice(), "something else uses 'first', too"),
    ],
)
def test_what_cannot_be_folded_is_refused_at_once(net: nn.Module, message: str) -> None:
    with pytest.raises(al.InputError, match=message):
        al.add_gates(net, torch.zeros(1, 3), kind="l0", learn=WIDTH)


def test_unknown_kinds_are_refused() -> None:
    kind: Literal["l0"] = "l2"  # pyright: ignore[reportAssignmentType]
    with pytest.raises(al.InputError, match="kind is 'l2'; choose one of 'binary', 'l0'"):
        al.add_gates(LeNet(), DIGITS, kind=kind)


class Squared(nn.Module):
    """What stands between a gate and the next layer is not linear."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)) ** 2)


def test_gates_act_in_front_of_what_is_not_linear() -> None:
    torch.manual_seed(0)
    net = Squared().double()
    x = torch.randn(5, 3, dtype=torch.float64)
    model = al.add_gates(net, x, kind="l0", learn=WIDTH).eval()
    spread_(model)
    (gate,) = al.width_gates(model).values()
    scale = settle_gates(gate.detach(), (gate >= 0.5).double())
    torch.testing.assert_close(model(x), net.last((torch.relu(net.first(x)) * scale) ** 2))
    torch.testing.assert_close(al.compact(model)(x), model(x))


def test_a_norm_without_weights_cannot_take_a_gate() -> None:
    norm = nn.BatchNorm1d(4, affine=False)
    net = nn.Sequential(nn.Linear(3, 4), norm, nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(al.InputError, match="no plain layer stands in front of it, but '_1'"):
        al.add_gates(net, torch.zeros(2, 3), kind="l0", learn=WIDTH)


@pytest.mark.parametrize("kinds", [("l0", "binary"), ("binary", "l0")])
@pytest.mark.parametrize("strict", [True, False])
def test_gates_of_another_kind_are_not_loaded(kinds: tuple[Any, Any], strict: bool) -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    one, two = (al.add_gates(net, torch.randn(2, 4), kind=kind) for kind in kinds)
    with torch.no_grad():
        one[0].weight.fill_(7.0)
    with pytest.raises(al.InputError, match=f"width gates of the kind '{kinds[0]}'"):
        two.load_state_dict(one.state_dict(), strict=strict)
    assert not (two[0].weight == 7.0).any()
    copied = copy.deepcopy(one)
    copied.load_state_dict(one.state_dict())
    assert not al.compact(copied)._load_state_dict_pre_hooks


def test_nothing_is_drawn_for_a_model_that_is_evaluated() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    model = al.add_gates(net, torch.randn(2, 4), kind="l0")
    x = torch.randn(3, 4)
    torch.testing.assert_close(model(x), model(x))
    assert not any(module.training for module in model.modules())


def test_depth_alone_is_refused() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    with pytest.raises(al.InputError, match="'l0' is about width gates, but only depth"):
        al.add_gates(net, torch.zeros(1, 4), learn={"*": al.Learn.DEPTH}, kind="l0")
