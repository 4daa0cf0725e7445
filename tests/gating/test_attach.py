"""Gates are put behind the activations of a copy of the user's model."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al
import archlearn_cli as cli


class Net(nn.Module):
    """A network of one's own, with attributes, a method, a buffer and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.second, self.last = nn.Linear(6, 5), nn.Linear(5, 3)
        self.title = "mine"
        for parameter in self.second.parameters():
            parameter.requires_grad = False

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = F.dropout(x, 0.5, training=self.training)
        return self.last(torch.relu(self.second(x)))

    def classify(self, x: Tensor) -> Tensor:
        return self(x).argmax(1)


X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def gate(**options: float) -> tuple[Net, Net]:
    torch.manual_seed(0)
    net = Net()
    gated = al.add_gates(net, X, **options)  # pyright: ignore[reportArgumentType]
    assert isinstance(gated, Net)
    return net, gated


@torch.no_grad()
def draw_gates_(model: nn.Module, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for each in (*al.width_gates(model).values(), *al.depth_gates(model).values()):
        each.copy_(torch.rand(each.shape, generator=generator))


def test_the_network_is_left_untouched() -> None:
    torch.manual_seed(0)
    net = Net().train()
    net.norm.eval()
    before = copy.deepcopy(net.state_dict())
    al.add_gates(net, X)
    assert type(net) is Net
    assert net.training
    assert not net.norm.training
    assert set(net.state_dict()) == set(before)
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert not any(module._forward_hooks for module in net.modules())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_the_copy_is_of_the_users_class() -> None:
    net, gated = gate()
    assert type(gated).__name__ == "GatedNet"
    assert gated.title == "mine"
    assert torch.equal(gated.eval().classify(X), net.eval().classify(X))


def test_the_copy_keeps_each_modules_mode() -> None:
    net = Net().train()
    net.norm.eval()
    gated = al.add_gates(net, X)
    assert gated.training
    assert not gated.get_submodule("norm").training


def test_names_of_parameters_are_unchanged_and_gates_are_added() -> None:
    net, gated = gate()
    names, old = set(gated.state_dict()), set(net.state_dict())
    assert old < names
    gates = {"width.first", "width.second", "depth.first", "depth.second", "slope"}
    assert names - old == {f"archlearn_gates.{gate}" for gate in gates}
    shared = {id(p) for p in net.parameters()} & {id(p) for p in gated.parameters()}
    assert not shared


def test_gates_are_found_by_name() -> None:
    _, gated = gate()
    widths, depths = al.width_gates(gated), al.depth_gates(gated)
    assert {name: len(gate) for name, gate in widths.items()} == {"first": 6, "second": 5}
    assert list(depths) == ["first", "second"]
    assert all(gate.shape == () for gate in depths.values())
    inside = {id(parameter) for parameter in gated.parameters()}
    assert all(id(gate) in inside for gate in (*widths.values(), *depths.values()))


def test_a_model_without_gates_has_none() -> None:
    assert al.width_gates(Net()) == {}
    assert al.depth_gates(Net()) == {}


def test_gates_are_found_in_a_part_of_a_larger_model() -> None:
    whole = nn.Sequential(gate()[1], nn.Softmax(1))
    assert list(al.width_gates(whole)) == ["first", "second"]
    strengths = al.Strengths(width_cost=1.0, width_binarise=0.0)
    assert al.penalty(whole, strengths).item() == pytest.approx(11 * 0.55)


def test_gates_start_where_they_are_told() -> None:
    _, gated = gate(width_start=0.75, depth_start=0.25)
    assert al.width_gates(gated)["first"].tolist() == [0.75] * 6
    assert al.depth_gates(gated)["first"].item() == 0.25


def test_frozen_parameters_stay_frozen() -> None:
    _, gated = gate()
    frozen = {name for name, p in gated.named_parameters() if not p.requires_grad}
    assert frozen == {"second.weight", "second.bias"}


def test_open_gates_change_nothing_in_either_mode() -> None:
    net, gated = gate()
    assert torch.equal(gated.eval()(X), net.eval()(X))
    torch.manual_seed(1)
    expected = net.train()(X)
    torch.manual_seed(1)
    assert torch.equal(gated.train()(X), expected)


def test_switching_modes_switches_what_depends_on_them() -> None:
    _, gated = gate()
    assert torch.equal(gated.eval()(X), gated(X))
    assert not torch.equal(gated.train()(X), gated(X))
    assert torch.equal(gated.eval()(X), gated(X))


def test_closed_gates_drop_their_channels() -> None:
    net, gated = gate()
    with torch.no_grad():
        al.width_gates(gated)["second"].copy_(torch.tensor([0.0, 1.0, 0.49, 1.0, 1.0]))
        net.last.weight[:, [0, 2]] = 0
    torch.testing.assert_close(gated.eval()(X), net.eval()(X))


def test_open_depth_gate_makes_the_layer_linear() -> None:
    net, gated = gate()
    with torch.no_grad():
        al.depth_gates(gated)["second"].fill_(0.5)
    net.eval()
    expected = net.last(net.second(F.relu(net.norm(net.first(X)))))
    torch.testing.assert_close(gated.eval()(X), expected)


def test_an_activation_that_works_in_place_is_made_linear_too() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 2))
    gated = al.add_gates(net, X)
    with torch.no_grad():
        al.depth_gates(gated)["0"].fill_(1.0)
    torch.testing.assert_close(gated(X), net[2](net[0](X)))
    assert net[1].inplace


def test_the_last_channel_of_a_layer_stays() -> None:
    net, gated = gate()
    with torch.no_grad():
        al.width_gates(gated)["second"].copy_(torch.tensor([0.0, 0.1, 0.2, 0.0, 0.0]))
        net.last.weight[:, [0, 1, 3, 4]] = 0
    torch.testing.assert_close(gated.eval()(X), net.eval()(X))


def test_a_copy_has_gates_of_its_own() -> None:
    _, gated = gate()
    draw_gates_(gated)
    twin = copy.deepcopy(gated)
    assert torch.equal(twin.eval()(X), gated.eval()(X))
    before = twin.eval()(X)
    with torch.no_grad():
        al.width_gates(gated)["second"].copy_(torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0]))
    assert torch.equal(twin(X), before)
    assert not torch.equal(gated(X), before)
    assert al.read_architecture(twin) != al.read_architecture(gated)


def test_the_state_loads_into_a_fresh_gated_copy() -> None:
    _, gated = gate()
    draw_gates_(gated)
    fresh = al.add_gates(Net(), X)
    fresh.load_state_dict(gated.state_dict())
    assert torch.equal(fresh.eval()(X), gated.eval()(X))
    assert al.plan(fresh) == al.plan(gated)


def test_gates_follow_dtype() -> None:
    _, gated = gate()
    assert {g.dtype for g in al.width_gates(gated.double()).values()} == {torch.float64}
    assert gated.eval()(X.double()).dtype is torch.float64
    wide = al.add_gates(Net().double(), X.double())
    assert {g.dtype for g in al.depth_gates(wide).values()} == {torch.float64}


def test_clipping_brings_gates_back_and_leaves_the_rest_alone() -> None:
    _, gated = gate()
    with torch.no_grad():
        al.width_gates(gated)["second"].copy_(torch.tensor([-0.5, 0.0, 0.3, 1.0, 1.5]))
        al.depth_gates(gated)["first"].fill_(-1e-3)
        al.depth_gates(gated)["second"].fill_(7.0)
        gated.last.weight.fill_(-3.0)
    assert al.clip_gates_(gated) is None
    assert al.width_gates(gated)["second"].tolist() == pytest.approx([0.0, 0.0, 0.3, 1.0, 1.0])
    assert [g.item() for g in al.depth_gates(gated).values()] == [0.0, 1.0]
    assert bool((gated.last.weight == -3.0).all())


def test_clipping_reaches_gates_placed_by_hand() -> None:
    site = al.TriState(2, depth=al.Gate.ABSENT)
    assert site.width is not None
    with torch.no_grad():
        site.width.copy_(torch.tensor([-1.0, 2.0]))
    al.clip_gates_(nn.Sequential(nn.Linear(3, 2), site, nn.Linear(2, 1)))
    assert site.width.tolist() == [0.0, 1.0]


def test_there_is_nothing_to_clip_in_a_model_without_gates() -> None:
    with pytest.raises(al.InputError, match="has no gates; call add_gates on it first"):
        al.clip_gates_(Net())


def test_the_names_of_lenet() -> None:
    gated = al.add_gates(cli.models.LeNet(), torch.zeros(1, 1, 28, 28))
    sizes = {name: len(gate) for name, gate in al.width_gates(gated).items()}
    assert sizes == {"conv1": 20, "conv2": 50, "fc1": 500}
    assert list(al.depth_gates(gated)) == ["fc1"]


def test_gates_cannot_be_added_twice() -> None:
    with pytest.raises(al.InputError, match="has gates already; call add_gates on the model with"):
        al.add_gates(gate()[1], X)


@pytest.mark.parametrize("name", ["width_start", "depth_start"])
@pytest.mark.parametrize("start", [-0.01, 1.01, float("nan")])
def test_a_start_outside_zero_and_one_is_refused(name: str, start: float) -> None:
    with pytest.raises(al.InputError, match=f"{name} is .*; a gate lies in"):
        gate(**{name: start})


def test_a_scripted_model_is_refused_by_name() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))
    with pytest.raises(al.InputError, match=r"compiled by torch.jit .*give the model as it was"):
        al.add_gates(scripted, X)


def test_an_exported_model_is_refused_by_name() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    exported = torch.export.export(net, (X,)).module()
    with pytest.raises(al.InputError, match=r"comes from torch.export.*give the model as it was"):
        al.add_gates(exported, X)


@pytest.mark.filterwarnings("ignore:.*quantiz.*deprecated")
def test_a_quantised_model_is_refused_by_the_name_of_a_layer() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    quantised = torch.ao.quantization.quantize_dynamic(net)  # pyright: ignore[reportDeprecated]
    with pytest.raises(al.InputError, match=r"'0' is quantised.*quantise the compact one"):
        al.add_gates(quantised, X)
    net.insert(0, nn.LSTM(4, 4))
    quantised = torch.ao.quantization.quantize_dynamic(  # pyright: ignore[reportDeprecated]
        net, {nn.LSTM}
    )
    with pytest.raises(al.InputError, match=r"'0' is quantised \(LSTM\)"):
        al.add_gates(quantised, X)
