"""A plan is carried out on a copy; the result must compute what the gated model computes."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al
import archlearn_cli as cli

EXACT = {"rtol": 1e-10, "atol": 1e-10}
X = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Layers of one's own, with dropout, a frozen layer and a method."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.second, self.last = nn.Linear(6, 5), nn.Linear(5, 3)
        self.last.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = F.dropout(x, 0.5, training=self.training)
        return self.last(torch.relu(self.second(x)))

    def classify(self, x: Tensor) -> Tensor:
        return self(x).argmax(1)


@torch.no_grad()
def gate(linear: tuple[str, ...] = ()) -> nn.Module:
    torch.manual_seed(0)
    model = al.add_gates(Net().double().eval(), X)
    al.width_gates(model)["first"][[0, 3]] = 0.2
    al.width_gates(model)["second"][1] = 0.0
    for name in linear:
        al.depth_gates(model)[name].fill_(0.5)
    return model


LINEAR = [(), ("first",), ("second",), ("first", "second")]


@pytest.mark.parametrize("linear", LINEAR)
def test_the_compact_model_computes_the_same(linear: tuple[str, ...]) -> None:
    model = gate(linear)
    small = al.compact(model)
    fresh = torch.randn(7, 4, dtype=torch.float64)
    torch.testing.assert_close(small(fresh), model(fresh), **EXACT)
    assert al.count_costs(small) == al.plan(model).after
    assert al.count_costs(small).parameters < al.count_costs(model).parameters


def test_the_compact_model_is_the_users_own_class_and_forward() -> None:
    model = gate()
    small = al.compact(model)
    assert type(small) is Net
    assert torch.equal(small.classify(X), model(X).argmax(1))
    assert set(small.state_dict()) == set(Net().state_dict())
    assert (small.first.out_features, small.norm.num_features) == (4, 4)
    assert (small.second.in_features, small.second.out_features) == (4, 4)


def test_a_literal_in_forward_does_not_stand_in_the_way() -> None:
    class Literal(cli.models.LeNet):
        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(F.max_pool2d(self.conv1(x), 2))
            x = F.relu(F.max_pool2d(self.conv2(x), 2))
            return self.fc2(F.relu(self.fc1(x.view(-1, 800))))

    x = torch.randn(2, 1, 28, 28)
    model = al.add_gates(Literal().eval(), x)
    with torch.no_grad():
        al.width_gates(model)["conv2"][:30] = 0.0
    small = al.compact(model)
    assert isinstance(small, Literal)
    assert small.fc1.in_features == 320
    torch.testing.assert_close(small(x), model(x))


@pytest.mark.parametrize("linear", LINEAR)
def test_the_model_is_left_alone(linear: tuple[str, ...]) -> None:
    model = gate(linear).train()
    model.get_submodule("norm").eval()
    cls, before = type(model), copy.deepcopy(model.state_dict())
    al.compact(model)
    assert type(model) is cls
    assert model.training
    assert not model.get_submodule("norm").training
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize("training", [True, False])
def test_the_compact_model_is_in_the_mode_of_the_gated_one(training: bool) -> None:
    assert al.compact(gate().train(training)).training is training


def test_frozen_parameters_stay_frozen() -> None:
    small = al.compact(gate())
    frozen = {name for name, p in small.named_parameters() if not p.requires_grad}
    assert frozen == {"last.weight", "last.bias"}


def test_the_certificate_comes_with_the_model() -> None:
    certificate = al.compact(gate()).certificate
    assert isinstance(certificate, al.Certificate)
    assert certificate.difference_float64 < 1e-12
    assert certificate.n_inputs >= 2


def test_no_gate_is_left() -> None:
    small = al.compact(gate(("second",)))
    assert al.width_gates(small) == al.depth_gates(small) == {}
    assert not any("archlearn" in name for name in small.state_dict())


def test_compacting_again_changes_nothing() -> None:
    small = al.compact(gate(("second",)))
    again = al.compact(al.add_gates(small, X))
    assert al.count_costs(again) == al.count_costs(small)
    torch.testing.assert_close(again(X), small(X), **EXACT)


def test_training_goes_on_after_compacting() -> None:
    small = al.compact(gate(("second",))).train()
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        loss = small(X).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < sum(losses[:5])


def test_a_copy_of_the_compact_model_is_independent() -> None:
    small = al.compact(gate(("second",)))
    twin = copy.deepcopy(small)
    assert torch.equal(twin(X), small(X))
    with torch.no_grad():
        next(twin.parameters()).zero_()
    assert not torch.equal(twin(X), small(X))


def test_a_plan_that_the_gates_no_longer_say_is_refused() -> None:
    model = gate()
    plan = al.plan(model)
    with torch.no_grad():
        al.width_gates(model)["first"][5] = 0.0
    message = "plan does not fit the model: its widths are not what the gates say now; make the"
    with pytest.raises(al.SurgeryError, match=message):
        al.compact(model, plan=plan)


@pytest.mark.parametrize("plan", ["plan", X])
def test_something_else_than_a_plan_is_refused(plan: object) -> None:
    message = f"plan is a {type(plan).__name__}; give a Plan from archlearn.plan"
    with pytest.raises(al.InputError, match=message):
        al.compact(gate(), plan=plan)  # pyright: ignore[reportArgumentType]


def test_a_plan_of_another_model_is_refused() -> None:
    other = al.add_gates(nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 1)), X.float())
    with pytest.raises(al.SurgeryError, match="plan does not fit the model"):
        al.compact(gate(), plan=al.plan(other))


class Moody(nn.Module):
    """A part that gives something else at each call, so that nothing computes the same."""

    n_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        Moody.n_calls += 1
        return x + 1e-3 * Moody.n_calls


def test_a_certificate_that_would_be_false_is_not_given() -> None:
    """The control: what the gated model computes is not what any other model computes."""
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2), Moody()).double()
    model = al.add_gates(net, X, leaves=[Moody])
    with pytest.raises(al.CertificateError, match="do not compute the same function"):
        al.compact(model)


@pytest.mark.parametrize(
    ("make", "shape", "layout"),
    [
        (nn.Conv2d, (2, 3, 6, 6), torch.channels_last),
        (nn.Conv3d, (2, 3, 5, 5, 5), torch.channels_last_3d),
        (nn.Conv2d, (2, 3, 6, 6), torch.contiguous_format),
        (nn.Conv2d, (2, 1, 6, 6), torch.channels_last),
        (nn.Conv2d, (2, 1, 6, 6), torch.contiguous_format),
    ],
)
def test_weights_lie_in_memory_as_they_did(
    make: Callable[..., nn.Module], shape: tuple[int, ...], layout: torch.memory_format
) -> None:
    net = nn.Sequential(make(shape[1], 8, 3), nn.ReLU(), make(8, 4, 2)).to(memory_format=layout)  # pyright: ignore
    gated = al.add_gates(net, torch.randn(shape))
    with torch.no_grad():
        al.width_gates(gated)["0"][:3] = 0.0
    small = al.compact(gated)
    for name in ("0", "2"):
        weight = small.get_submodule(name).weight
        assert isinstance(weight, Tensor)
        assert 5 in weight.shape
        assert weight.is_contiguous(memory_format=layout)
        # With one channel both layouts are contiguous, and the outputs lie as the strides say.
        assert weight.stride() == torch.empty(weight.shape).to(memory_format=layout).stride()


@pytest.mark.parametrize("pad", [nn.ConstantPad1d((1, 2), 0.7), nn.ZeroPad1d((0, 2))])
@pytest.mark.parametrize("closed", [[0], [1, 2], [0, 1, 3]])
def test_layers_that_pad_channels_pad_those_that_are_left(
    pad: nn.ConstantPad1d, closed: list[int]
) -> None:
    n_padded = 4 + sum(pad.padding)
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), pad, nn.Linear(n_padded, 3)).double()
    model = al.add_gates(net, x := torch.randn(2, 7, 5, dtype=torch.float64))
    with torch.no_grad():
        al.width_gates(model)["0"][closed] = 0.0
    small = al.compact(model.eval())
    assert small.get_parameter("0.weight").shape == (4 - len(closed), 5)
    torch.testing.assert_close(small(x), model(x), rtol=0, atol=1e-12)
