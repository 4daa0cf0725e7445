"""Units of recurrent layers are learnt: one gate for unit i of all layers and directions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_padded_sequence

import archlearn as al

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
STEPS = 120


class Reader(nn.Module):
    """Reads sequences, and answers from all steps or from the last states of both directions."""

    def __init__(self, recurrent: nn.RNNBase, *, of_states: bool = False) -> None:
        super().__init__()
        self.recurrent, self.of_states = recurrent, of_states
        n_out = recurrent.proj_size or recurrent.hidden_size
        self.head = nn.Linear(n_out * (1 + recurrent.bidirectional), 10)

    def forward(self, x: Tensor) -> Tensor:
        y, states = self.recurrent(x)
        if not self.of_states:
            return self.head(y[:, -1])
        h = states[0] if isinstance(states, tuple) else states
        return self.head(h[-1 - int(self.recurrent.bidirectional) :].transpose(0, 1).flatten(1))


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def step_by_hand(layer: Any, place: str, x: Tensor, state: Any, gate: Tensor) -> Any:
    """Return the next state: matrices read gated units, and each unit goes on from what it was."""
    h, c = state
    names = [f"{kind}_{place}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    ih, hh, b_ih, b_hh = (getattr(layer, name) for name in names)
    if layer.mode == "LSTM":
        return torch.lstm_cell(x, (h * gate, c), ih, hh, b_ih, b_hh)
    given, read = F.linear(x, ih, b_ih), F.linear(h * gate, hh, b_hh)
    if layer.mode != "GRU":
        return torch.tanh(given + read), c
    (r, z, n), (r_h, z_h, n_h) = given.chunk(3, 1), read.chunk(3, 1)
    r, z = torch.sigmoid(r + r_h), torch.sigmoid(z + z_h)
    return (1 - z) * torch.tanh(n + r * n_h) + z * h, c


def read_by_hand(net: Any, x: Tensor, gate: Tensor) -> Tensor:
    """Return what a reader computes, step by step, with a gate on each unit wherever it is read."""
    layer, steps, last = net.recurrent, list(x.unbind(1)), []
    for level in range(layer.num_layers):
        sides = []
        for way in ("", "_reverse") if layer.bidirectional else ("",):
            state: Any = (x.new_zeros(len(x), layer.hidden_size),) * 2
            made = []
            for step in reversed(steps) if way else steps:
                state = step_by_hand(layer, f"l{level}{way}", step, state, gate)
                made.append(state[0] * gate)
            sides.append(made[::-1] if way else made)
            last.append(made[-1])
        steps = [torch.cat(each, 1) for each in zip(*sides, strict=True)]
    return net.head(torch.cat(last[-len(sides) :], 1) if net.of_states else steps[-1])


def make(kind: str, n_layers: int = 2, n: int = 6, **options: Any) -> tuple[Any, Tensor, Any]:
    """Return a gated reader, its gates, and the reader that it is a copy of."""
    torch.manual_seed(0)
    layer = KINDS[kind](5, n, n_layers, batch_first=True, **options)
    net = Reader(layer, of_states=kind == "lstm").double()
    model = al.add_gates(net, draw(2, 4, 5))
    (gate,) = al.width_gates(model).values()
    return model, gate, net


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_gates_act_wherever_units_are_read_and_closed_ones_have_a_gradient(
    kind: str, bidirectional: bool
) -> None:
    model, gate, net = make(kind, bidirectional=bidirectional)
    with torch.no_grad():
        gate[[1, 4]] = 0.2
    x, opened = draw(3, 7, 5, seed=1), (gate.detach() > 0.5).double().requires_grad_()
    expected = read_by_hand(net, x, opened)
    expected.square().sum().backward()
    for mode in (True, False):
        gate.grad = None
        found = model.train(mode)(x)
        found.square().sum().backward()
        assert gate.grad is not None
        assert gate.grad.abs().min() > 1e-6
        torch.testing.assert_close((found, gate.grad), (expected, opened.grad), rtol=0, atol=1e-10)
    assert (al.compact(model)(x) - expected).abs().max() < 1e-10


def test_projections_of_units_are_learnt_and_the_units_stay() -> None:
    model, gate, _ = make("lstm", proj_size=4)
    with torch.no_grad():
        gate[2] = 0.2
    small: Any = al.compact(model)
    assert (small.recurrent.hidden_size, small.recurrent.proj_size) == (6, 3)
    assert al.kept_channels(small)["recurrent.weight_hr_l1"][0] == (0, 1, 3)


def test_layers_that_were_pruned_and_hooked_since_are_gated_all_the_same() -> None:
    model, gate, _ = make("gru")
    called: list[nn.Module] = []
    model.recurrent.register_forward_hook(lambda module, *_: called.append(module))
    prune.random_unstructured(model.recurrent, "weight_hh_l1", 0.5)
    with torch.no_grad():
        gate[[0, 3]] = 0.2
    x = draw(3, 7, 5, seed=1)
    expected = read_by_hand(model, x, (gate.detach() > 0.5).double())
    called.clear()
    assert (model(x) - expected).abs().max() < 1e-12
    assert len(called) == 1
    assert (al.compact(model)(x) - expected).abs().max() < 1e-10


STARTS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "of a parameter": lambda net, x: next(net.parameters()).new_zeros(1, x.size(0), 6),
    "a learning leaf": lambda _, x: torch.zeros(1, x.size(0), 6, dtype=x.dtype).requires_grad_(),
    "a Variable": lambda _, x: torch.autograd.Variable(x.new_zeros(1, x.size(0), 6)),
}


@pytest.mark.parametrize("name", STARTS)
def test_zeros_that_units_start_from_are_made_in_many_ways(name: str, tmp_path: Path) -> None:
    class FromZeros(Reader):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.recurrent(x, STARTS[name](self, x))[0])

    model = al.add_gates(FromZeros(nn.GRU(5, 6, batch_first=True)), torch.randn(2, 3, 5))
    (gate,) = al.width_gates(model).values()
    with torch.no_grad():
        gate[[1, 4]] = 0.2
    small: Any = al.compact(model)
    assert small.recurrent.hidden_size == 4
    al.save(small, tmp_path / "small.safetensors")
    x = torch.randn(3, 7, 5)
    torch.testing.assert_close(al.load(tmp_path / "small.safetensors")(x), model.eval()(x))


class FromOnes(Reader):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x, torch.ones(1, len(x), 6))[0])


def test_units_stay_that_start_from_numbers_that_are_written_down() -> None:
    net = nn.Sequential(nn.Linear(4, 5), FromOnes(nn.GRU(5, 6, batch_first=True)))
    found = al.inspect(net, torch.randn(2, 3, 4))
    assert "recurrent" not in [row.name for row in found.rows if row.width]
    assert "starts from a state hx" in str(found)
    assert "leave hx out, or make it a parameter" in str(found)


def test_a_gate_placed_by_hand_behind_a_recurrent_layer_closes_no_unit() -> None:
    class Gated(Reader):
        def __init__(self) -> None:
            super().__init__(nn.GRU(5, 6, batch_first=True))
            self.act = al.TriState(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.act(self.recurrent(x)[0][:, -1]))

    net = Gated()
    with torch.no_grad():
        net.act.width[2] = 0.2
    with pytest.raises(al.SurgeryError, match="reads them at every step"):
        al.compact(net, example_inputs=torch.randn(2, 3, 5))


class Packing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(6, 5, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.recurrent(pack_padded_sequence(x, lengths, batch_first=True))[1][-1]


class BehindPacking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.packing, self.hidden, self.head = Packing(), nn.Linear(5, 7), nn.Linear(7, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.head(F.relu(self.hidden(self.packing(x, lengths))))


def test_a_part_that_packs_sequences_is_called_as_it_is() -> None:
    inputs = torch.randn(3, 4, 6), torch.tensor([4, 3, 2])
    with pytest.raises(al.TracingError, match="call the recurrent layer and pad in a submodule"):
        al.add_gates(Packing(), inputs)
    model = al.add_gates(BehindPacking(), inputs)
    assert "it packs sequences of several lengths" in str(al.inspect(model))
    with torch.no_grad():
        al.width_gates(model)["hidden"][:3] = 0.2
    small: Any = al.compact(model.eval())
    assert small.hidden.out_features == 4
    torch.testing.assert_close(small(*inputs), model(*inputs))


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    x, y = (torch.tensor(array) for array in load_digits(return_X_y=True))
    return x.float().view(-1, 8, 8) / 16, y


@pytest.mark.parametrize(
    ("make_layer", "of_states"),
    [
        (lambda n: nn.LSTM(8, n, batch_first=True), True),
        (lambda n: nn.GRU(8, n, 2, batch_first=True, bidirectional=True, dropout=0.1), False),
    ],
    ids=["lstm", "gru"],
)
def test_a_run_lands_on_its_budget_shrinks_and_is_saved(
    make_layer: Callable[[int], nn.RNNBase], of_states: bool, digits: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    x, y = digits
    model = al.add_gates(Reader(make_layer(24), of_states=of_states), x[:2])
    gates = al.GateOptimizer(model, STEPS, budget={"multiply_adds": "40%"})
    optimizer = torch.optim.AdamW(al.weights(model), lr=1e-2)
    n_shrinks, losses, start = 0, [], al.plan(model).before
    for step in range(STEPS + 40):
        chosen = torch.randint(len(x), (64,))
        loss = cross_entropy(model(x[chosen]), y[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step < STEPS:
            gates.step()
        gates.zero_grad()
        losses.append(loss.item())
        if gates.can_shrink():
            al.shrink_(model, optimizer, gates)
            n_shrinks += 1
    assert n_shrinks
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    plan = al.plan(model)
    limit = 0.4 * start.multiply_adds
    small: Any = al.compact(model)
    n = small.recurrent.hidden_size
    larger = al.count_costs(Reader(make_layer(n + 1), of_states=of_states), x[:2])
    assert plan.after.multiply_adds <= limit < larger.multiply_adds
    assert al.count_costs(small) == plan.after
    assert al.read_architecture(model).widths == (n, 10)
    assert len(al.kept_channels(small)["recurrent.weight_hh_l0"][1]) == n
    al.save(small, tmp_path / "small.safetensors")
    torch.testing.assert_close(al.load(tmp_path / "small.safetensors").eval()(x), small.eval()(x))


class Stepping(nn.Module):
    """Reads step by step; without a first state, or from zeros, with a second cell behind."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell, self.second, self.head = cell, nn.RNNCell(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        state, h = None, x.new_zeros(x.shape[0], self.second.hidden_size)
        for step in x.unbind(1):
            state = self.cell(step, state)
            h = self.second(state[0] if isinstance(self.cell, nn.LSTMCell) else state, h)
        return self.head(h)


CELLS = {
    "gru": lambda: nn.GRUCell(4, 6),
    "without biases": lambda: nn.GRUCell(4, 6, bias=False),
    "lstm": lambda: nn.LSTMCell(4, 6),
    "rnn": lambda: nn.RNNCell(4, 6, nonlinearity="relu"),
}


@pytest.mark.parametrize("kind", CELLS)
def test_units_of_cells_that_are_called_step_by_step_are_learnt(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x, fresh = Stepping(CELLS[kind]()).double(), draw(2, 3, 4), draw(5, 3, 4, seed=1)
    model = al.add_gates(net, x)
    torch.testing.assert_close(model(fresh), net(fresh), rtol=0, atol=1e-12)
    model(fresh).square().sum().backward()
    gates = al.width_gates(model)
    assert sorted(map(len, gates.values())) == [5, 6]
    assert all(gate.grad is not None and bool((gate.grad != 0).all()) for gate in gates.values())
    with torch.no_grad():
        for gate in gates.values():
            gate[:2] = 0.1
    small: Any = al.compact(model)
    torch.testing.assert_close(small(fresh), model(fresh), rtol=0, atol=1e-10)
    assert (small.cell.hidden_size, small.second.input_size) == (4, 4)
    al.save(small, tmp_path / "small.safetensors")
    loaded = al.load(tmp_path / "small.safetensors")
    torch.testing.assert_close(loaded(fresh), small(fresh), rtol=0, atol=1e-12)


def test_a_cell_whose_state_no_longer_counts_is_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = al.add_gates(Stepping(nn.RNNCell(4, 6)).double(), draw(2, 3, 4))
    with torch.no_grad():
        for gate in al.branch_gates(model).values():
            gate.fill_(0.1)
    small, fresh = al.compact(model), draw(5, 3, 4, seed=1)
    torch.testing.assert_close(small(fresh), model(fresh), rtol=0, atol=1e-10)
    al.save(small, tmp_path / "small.safetensors")
    loaded = al.load(tmp_path / "small.safetensors")
    torch.testing.assert_close(loaded(fresh), small(fresh), rtol=0, atol=1e-12)


def test_a_cell_without_a_batch_is_called_as_it_is() -> None:
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(4, 6)
            self.hidden, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.hidden(self.cell(x))))

    net, x = Alone().double(), draw(4)
    model = al.add_gates(net, x)
    assert list(al.width_gates(model)) == ["hidden"]
    torch.testing.assert_close(al.compact(model)(x), net(x))
