"""Models whose gates the user placed by hand are planned and compacted like all others."""

import pytest
import torch
from torch import Tensor, nn

import archlearn as al

EXACT = {"rtol": 1e-10, "atol": 1e-10}
X = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """4-6-5-2, a TriState behind each of the first two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate_1 = nn.Linear(4, 6), al.TriState(6)
        self.second, self.gate_2 = nn.Linear(6, 5), al.TriState(5, nn.GELU())
        self.last = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.gate_2(self.second(self.gate_1(self.first(x)))))


@torch.no_grad()
def set_(site: al.TriState, closed: list[int], depth: float | None = None) -> None:
    assert site.width is not None
    site.width[closed] = 0.1
    if depth is not None:
        assert site.depth is not None
        site.depth.fill_(depth)


def make(closed: list[int], is_linear: bool) -> Net:
    torch.manual_seed(0)
    net = Net().double().eval()
    set_(net.gate_1, closed)
    set_(net.gate_2, [], 0.9 if is_linear else 0.1)
    return net


@pytest.mark.parametrize("closed", [[], [0], [1, 4], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("is_linear", [False, True])
def test_the_compact_model_computes_the_same(closed: list[int], is_linear: bool) -> None:
    net = make(closed, is_linear)
    small = al.compact(net, example_inputs=X)
    torch.testing.assert_close(small(X + 1), net(X + 1), **EXACT)
    assert isinstance(small, Net)
    assert not any(isinstance(module, al.TriState) for module in small.modules())
    assert al.count_costs(small, X) == al.plan(net, example_inputs=X).after


def test_width_and_depth_worked_by_hand() -> None:
    """4-4-5-2, and the last two layers as one: `(4+1)·4 + (4+1)·2`."""
    net = make([1, 4], is_linear=True)
    plan = al.plan(net, example_inputs=X)
    assert plan.before.parameters == 30 + 35 + 12
    assert plan.after.parameters == 20 + 10
    assert plan.linear == ("second",)
    assert [merge.layers for merge in plan.merges] == [("second", "last")]
    assert str(al.read_architecture(net, X)) == "4-2"


def test_a_plan_made_before_is_carried_out() -> None:
    net = make([1, 4], is_linear=True)
    plan = al.plan(net, example_inputs=X)
    small = al.compact(net, X, plan=plan)
    assert al.count_costs(small, X) == plan.after


def test_fixed_gates_count_like_learnt_ones() -> None:
    site = al.TriState(6, width=al.Gate.FIXED, depth=al.Gate.ABSENT).double()
    set_(site, [2, 3])
    net = nn.Sequential(nn.Linear(4, 6), site, nn.Linear(6, 2)).double()
    small = al.compact(net, example_inputs=X)
    assert small[0].out_features == 4
    torch.testing.assert_close(small(X), net(X), **EXACT)


def test_a_layer_with_no_channel_left_is_refused() -> None:
    net = make([0, 1, 2, 3, 4, 5], is_linear=False)
    with pytest.raises(al.SurgeryError, match="all channels of 'first' are dropped: the network"):
        al.compact(net, example_inputs=X)


class Tied(nn.Module):
    """A residual sum between two TriStates, whose channels are the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.gate_1, self.gate_2 = al.TriState(6), al.TriState(6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.gate_1(self.first(x))
        return self.last(y + self.gate_2(self.second(y)))


def test_tied_gates_that_agree_are_compacted() -> None:
    net = Tied().double()
    set_(net.gate_1, [2, 5])
    set_(net.gate_2, [2, 5])
    small = al.compact(net, example_inputs=X)
    assert small.last.in_features == 4
    torch.testing.assert_close(small(X), net(X), **EXACT)


def test_tied_gates_that_disagree_are_refused() -> None:
    net = Tied().double()
    set_(net.gate_1, [2, 5])
    set_(net.gate_2, [2])
    with pytest.raises(
        al.SurgeryError, match=r"disagree: 'gate_\d' drops .*share one gate.*or use add"
    ):
        al.plan(net, example_inputs=X)


def test_a_channel_that_a_layer_norm_reads_cannot_be_dropped() -> None:
    site = al.TriState(6).double()
    net = nn.Sequential(nn.Linear(4, 6), site, nn.LayerNorm(6), nn.Linear(6, 2)).double()
    set_(site, [])
    assert al.plan(net, example_inputs=X).after.parameters == 30 + 12 + 14
    set_(site, [3])
    message = r"channel that '1' drops cannot go: normalised together .* by '2'; .*BatchNorm"
    with pytest.raises(al.SurgeryError, match=message):
        al.compact(net, example_inputs=X)


def test_inputs_must_be_given() -> None:
    with pytest.raises(al.InputError, match="Net does not know its inputs; give example_inputs"):
        al.compact(make([], is_linear=False))


def test_gates_that_are_none_are_refused_by_the_name_of_their_module() -> None:
    net = make([], is_linear=False)
    with torch.no_grad():
        assert net.gate_1.width is not None
        net.gate_1.width[0] = 1.5
    with pytest.raises(al.GateError, match=r"gate 'gate_1' lies between 0.55 and 1.5, outside"):
        al.plan(net, example_inputs=X)


def test_gates_are_not_added_to_gates() -> None:
    with pytest.raises(al.InputError, match="has gates already"):
        al.add_gates(Net(), X.float())


@pytest.mark.parametrize("activation", [nn.PReLU(), nn.PReLU(6)])
def test_a_learnt_activation(activation: nn.Module) -> None:
    site = al.TriState(6, activation)
    net = nn.Sequential(nn.Linear(4, 6), site, nn.Linear(6, 2)).double()
    set_(site, [0, 3])
    small = al.compact(net, example_inputs=X)
    assert small[0].out_features == 4
    torch.testing.assert_close(small(X), net(X), **EXACT)


@pytest.mark.parametrize("activation", [nn.Softmax(1), nn.LayerNorm(6)])
def test_an_activation_that_mixes_channels_is_refused(activation: nn.Module) -> None:
    site = al.TriState(6, activation)
    net = nn.Sequential(nn.Linear(4, 6), site, nn.Linear(6, 2)).double()
    set_(site, [0, 3])
    with pytest.raises(al.SurgeryError, match=type(activation).__name__):
        al.compact(net, example_inputs=X)


def test_one_gate_shared_by_two_layers_is_compacted() -> None:
    class Shared(Net):
        def __init__(self) -> None:
            super().__init__()
            self.second, self.gate_2 = nn.Linear(6, 6), self.gate_1
            self.last = nn.Linear(6, 2)

    net = Shared().double()
    set_(net.gate_1, [0, 1], depth=0.9)
    small = al.compact(net, example_inputs=X)
    assert str(al.read_architecture(net, X)) == "2"
    torch.testing.assert_close(small(X), net(X), **EXACT)


def test_the_output_is_never_narrowed() -> None:
    site = al.TriState(6).double()
    net = nn.Sequential(nn.Linear(4, 6).double(), site)
    set_(site, [2])
    with pytest.raises(al.SurgeryError, match="the model's output, which keeps its size"):
        al.compact(net, example_inputs=X)


def test_a_linear_site_that_cannot_merge_loses_its_activation() -> None:
    site = al.TriState(3).double()
    net = nn.Sequential(nn.Conv2d(1, 3, 3), site, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2))
    set_(site, [0], depth=0.9)
    x = torch.randn(2, 1, 6, 6, dtype=torch.float64)
    small = al.compact(net.double(), example_inputs=x)
    assert isinstance(small[1], nn.Identity)
    assert al.plan(net, x).merges == ()
    torch.testing.assert_close(small(x), net(x), **EXACT)


@pytest.mark.parametrize("is_hook", [True, False])
@pytest.mark.parametrize("kind", [nn.ReLU, nn.GELU, nn.Softplus])
def test_what_is_added_behind_an_activation_goes_into_the_bias(
    kind: type[nn.Module], is_hook: bool
) -> None:
    torch.manual_seed(0)
    other, gate = kind(), al.TriState(6)
    if is_hook:
        other.register_forward_hook(lambda _, __, out: out + 1)
    else:
        other.forward = lambda x: torch.relu(x) + 1
    net = nn.Sequential(nn.Linear(4, 6), gate, other, nn.Linear(6, 2)).double().eval()
    set_(gate, [0, 3])
    torch.testing.assert_close(al.compact(net, example_inputs=X)(X), net(X), **EXACT)


class Attached(nn.Module):
    """Channels last, and a TriState along the last dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(4, 6), al.TriState(6, dim=2), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.gate(self.up(x)))


@pytest.mark.parametrize("dim", [2, -1])
def test_channels_along_another_dimension(dim: int) -> None:
    net = Attached().double()
    net.gate.dim = dim
    set_(net.gate, [0, 1])
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    small = al.compact(net, example_inputs=x)
    assert small.up.out_features == 4
    torch.testing.assert_close(small(x), net(x), **EXACT)


def test_one_site_used_twice_stays_exact() -> None:
    class Twice(Net):
        def forward(self, x: Tensor) -> Tensor:
            y = self.gate_1(self.first(x))
            return self.last(self.gate_2(self.second(self.gate_1(y))))

    net = Twice().double()
    set_(net.gate_1, [0, 1])
    small = al.compact(net, example_inputs=X)
    torch.testing.assert_close(small(X), net(X), **EXACT)
