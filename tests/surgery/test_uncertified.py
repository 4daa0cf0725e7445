"""Without a certificate the surgery is the same, and no `forward` serves that is not known to."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
from archlearn.analysis.trace_check import forward_matches_graph, try_graph
from archlearn.tracing.symbolic_trace import ExampleInputs, trace

X = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
EXACT = {"rtol": 1e-10, "atol": 1e-10}


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.second, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.last(torch.relu(self.second(x)))


class BySize(Plain):
    """Reads a width as a number, which is another one once channels are gone."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / self.first.out_features


class BySizeInTraining(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / self.first.out_features if self.training else x)


class BySizeUnseen(Plain):
    """Reads a width, to which only large inputs bear witness: others end in closed units."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.second.bias, -50.0)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x))) * self.first.weight.shape[0]
        return self.last(torch.relu(self.second(x)))


class ByView(Plain):
    """Holds a literal size."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x))).view(-1, 6)
        return self.last(torch.relu(self.second(x)))


class Counting(nn.Module):
    """A part that is not followed, and sees whether it is called."""

    n_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        Counting.n_calls += 1
        return x * 2 if bool(x.sum() > 0) else x


class WithPart(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.part = Counting()

    def forward(self, x: Tensor) -> Tensor:
        return self.part(super().forward(x))


class WithPartBySize(WithPart):
    """Reads a width in training, where a part is called that is not followed."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return Plain.forward(self, x)
        return super().forward(x / self.first.out_features)


class BySizeUnseenWithPart(BySizeUnseen):
    def __init__(self) -> None:
        super().__init__()
        self.part = Counting()

    def forward(self, x: Tensor) -> Tensor:
        return self.part(super().forward(x))


@torch.no_grad()
def gate(kind: type[nn.Module], linear: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = al.add_gates(kind().double().eval(), X)
    al.width_gates(model)["first"][[0, 3]] = 0.2
    al.width_gates(model)["second"][1] = 0.0
    if linear:
        al.depth_gates(model)["second"].fill_(1.0)
    return model


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize(
    "kind", [Plain, BySize, BySizeInTraining, ByView, WithPart, WithPartBySize]
)
def test_the_result_is_that_of_certified_surgery(kind: type[nn.Module], linear: bool) -> None:
    model = gate(kind, linear)
    small, certified = al.compact(model, certified=False), al.compact(model)
    fresh = torch.randn(7, 4, dtype=torch.float64)
    torch.testing.assert_close(small(fresh), model(fresh), **EXACT)
    assert small.certificate is None
    assert certified.certificate is not None
    state, other = small.state_dict(), certified.state_dict()
    assert state.keys() == other.keys()
    assert all(torch.equal(state[name], other[name]) for name in state)
    meant = model.train()(fresh)
    torch.testing.assert_close(small.train()(fresh), meant, **EXACT)
    torch.testing.assert_close(certified.train()(fresh), meant, **EXACT)


def test_the_users_own_forward_serves_where_it_is_known_to() -> None:
    assert type(al.compact(gate(Plain), certified=False)) is Plain


@pytest.mark.parametrize("kind", [BySize, BySizeInTraining, ByView, WithPart, WithPartBySize])
def test_a_generated_forward_serves_where_the_users_own_may_not(kind: type[nn.Module]) -> None:
    small = al.compact(gate(kind), certified=False)
    assert type(small) is not kind
    assert isinstance(small, kind)


@pytest.mark.parametrize("kind", [BySizeUnseen, BySizeUnseenWithPart])
@pytest.mark.parametrize("certified", [True, False])
def test_a_forward_does_not_serve_because_no_input_shows_that_it_differs(
    kind: type[nn.Module], certified: bool
) -> None:
    model = gate(kind)
    small = al.compact(model, certified=certified)
    large = 1000 * X
    assert not torch.equal(model(large)[0], model(large)[1])
    torch.testing.assert_close(small(large), model(large), **EXACT)


@pytest.mark.parametrize("kind", [WithPart, WithPartBySize])
def test_a_part_that_is_not_known_is_not_called(kind: type[nn.Module]) -> None:
    model = gate(kind)
    before = Counting.n_calls
    al.compact(model, certified=False)
    assert Counting.n_calls == before
    al.compact(model)  # a certificate runs models in evaluation mode
    assert (Counting.n_calls > before) is (kind is WithPart)


def test_a_file_has_no_certificate_either(tmp_path: Path) -> None:
    small = al.compact(gate(Plain), certified=False)
    al.save(small, tmp_path / "small.safetensors")
    loaded = al.load(tmp_path / "small.safetensors")
    assert loaded.certificate is None
    torch.testing.assert_close(loaded(X), small(X), **EXACT)


def test_gates_may_be_added_again_and_certified_then() -> None:
    small = al.compact(gate(BySize), certified=False)
    again = al.compact(al.add_gates(small, X))
    assert again.certificate is not None
    torch.testing.assert_close(again(X), small(X), **EXACT)


def test_layers_that_do_not_fit_are_noticed() -> None:
    net, inputs = Plain().double().eval(), ExampleInputs.of(X)
    traces = trace(net, inputs)
    assert forward_matches_graph(net, traces, inputs)
    net.second = nn.Linear(7, 5).double()
    for check in (forward_matches_graph, try_graph):
        with pytest.raises(al.SurgeryError, match="does not run on the example inputs"):
            check(net, traces, inputs)
