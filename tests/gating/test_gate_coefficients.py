"""The price of a neuron follows the network as it acts: closed layers and linear ones, too."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import archlearn as al
from tests.gating.test_penalties import PRICED, mean_one, mlp, prices, set_


def test_a_layer_whose_gates_are_all_closed_has_one_channel_in_the_prices_of_others() -> None:
    """As it acts: the largest gate is open, whatever it says."""
    model = al.add_gates(mlp(7, 4, 3, 2), torch.zeros(1, 7, dtype=torch.float64))
    set_(model, {"0": [0.1, 0.2, 0.3, 0.4]}, {})
    assert prices(model, al.Price.PARAMETERS) == pytest.approx(
        mean_one([7 + 1 + 3, 1 + 1 + 2], [4, 3]), rel=1e-6
    )


@pytest.mark.parametrize("price", PRICED)
def test_a_linear_layer_pays_for_its_width_at_no_price(price: al.Price) -> None:
    model = al.add_gates(mlp(7, 4, 3, 2), torch.zeros(1, 7, dtype=torch.float64))
    before = prices(model, price)
    set_(model, {}, {"0": 0.9})
    assert prices(model, price) == pytest.approx([0.0, before[1]], rel=1e-6)


@pytest.mark.parametrize("price", PRICED)
@pytest.mark.parametrize("normalise", [weight_norm, spectral_norm])
def test_computed_weights_have_the_price_of_plain_ones(
    normalise: Callable[[nn.Module], nn.Module], price: al.Price
) -> None:
    """They become plain ones when they are compacted."""
    example = torch.zeros(1, 7, dtype=torch.float64)
    net = mlp(7, 4, 3, 2)
    plain = prices(al.add_gates(net, example), price)
    for layer in [part for part in net.modules() if isinstance(part, nn.Linear)]:
        normalise(layer)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    assert prices(al.add_gates(net.train(), example), price) == pytest.approx(plain, rel=1e-6)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


STRENGTHS = al.Strengths(width_cost=3.0, width_binarise=5.0, depth_cost=7.0, depth_binarise=11.0)


def afresh(model: nn.Module, strengths: al.Strengths) -> float:
    """Return the penalty of a copy that has never been asked for one."""
    made = al.add_gates(mlp(7, 4, 3, 2), torch.zeros(1, 7, dtype=torch.float64))
    made.load_state_dict(model.state_dict())
    return al.penalty(made, strengths).item()


def test_prices_that_are_kept_follow_the_depth_gates_and_the_strengths() -> None:
    model = al.add_gates(mlp(7, 4, 3, 2), torch.zeros(1, 7, dtype=torch.float64))
    weaker = replace(STRENGTHS, width_cost=0.5)
    for depth in (0.3, 0.9, 0.9, 0.4):
        set_(model, {"0": [0.1, 0.8, 0.6, 0.4]}, {"0": depth})
        for strengths in (STRENGTHS, weaker, STRENGTHS):
            assert al.penalty(model, strengths).item() == afresh(model, strengths)


def test_prices_that_are_kept_follow_the_precision() -> None:
    model = al.add_gates(mlp(7, 4, 3, 2), torch.zeros(1, 7, dtype=torch.float64))
    set_(model, {"0": [0.25] * 4, "2": [0.5] * 3}, {"0": 0.25, "2": 0.75})
    wide = al.penalty(model, STRENGTHS)
    assert al.penalty(model.float(), STRENGTHS).dtype is torch.float32
    assert torch.equal(al.penalty(model.double(), STRENGTHS), wide)


def test_prices_that_were_found_inside_a_transform_or_inference_mode_are_not_kept() -> None:
    model = al.add_gates(mlp(7, 4, 3, 2), torch.zeros(1, 7, dtype=torch.float64))

    def pay(state: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(_Pays(model), state, ())

    state: dict[str, Tensor] = {f"model.{name}": gate for name, gate in model.named_parameters()}
    found = torch.func.grad(pay)(state)
    stacked = {name: torch.stack([gate, gate]) for name, gate in state.items()}
    both = torch.func.vmap(pay)(stacked)
    with torch.inference_mode():
        al.penalty(model, STRENGTHS)
    paid = al.penalty(model, STRENGTHS)
    paid.backward()
    assert torch.equal(both, torch.stack([paid, paid]))
    for name, gate in model.named_parameters():
        if gate.grad is not None:
            assert torch.equal(gate.grad, found[f"model.{name}"])


class _Pays(nn.Module):
    """A penalty as a module, so that its gates can be exchanged."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self) -> Tensor:
        return al.penalty(self.model, STRENGTHS)


def test_prices_are_found_again_after_the_model_was_empty() -> None:
    model = al.add_gates(mlp(7, 4, 3, 2), torch.zeros(1, 7, dtype=torch.float64))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    empty = model.to("meta").to_empty(device="cpu")
    with torch.no_grad():
        for tensor in [*empty.parameters(), *empty.buffers()]:
            tensor.zero_()
    al.penalty(empty, STRENGTHS)
    empty.load_state_dict(state)
    assert al.penalty(empty, STRENGTHS).item() == afresh(empty, STRENGTHS) > 0


@pytest.mark.parametrize(
    "price",
    [
        pytest.param(price, marks=() if price is al.Price.PARAMETERS else pytest.mark.slow)
        for price in al.Price
    ],
)
def test_a_penalty_compiles_to_one_graph_and_follows_the_gates(price: al.Price) -> None:
    strengths = replace(STRENGTHS, price=price)
    model = al.add_gates(mlp(7, 4, 3, 2), torch.zeros(1, 7, dtype=torch.float64))
    al.penalty(model, strengths)
    pay = torch.compile(al.penalty, fullgraph=True, backend="aot_eager")
    for depth in (0.3, 0.9):
        set_(model, {"0": [0.1, 0.8, 0.6, 0.4]}, {"0": depth})
        torch.testing.assert_close(pay(model, strengths), al.penalty(model, strengths))


def test_a_graph_of_operations_follows_the_depth_gates_although_prices_are_kept() -> None:
    model = al.add_gates(mlp(7, 4, 3, 2), torch.zeros(1, 7, dtype=torch.float64))
    al.penalty(model, STRENGTHS)
    state = {f"model.{name}": gate.detach() for name, gate in model.named_parameters()}
    run = make_fx(lambda given: torch.func.functional_call(_Pays(model), given, ()))(state)
    set_(model, {}, {"0": 0.9})
    assert run(state).item() == pytest.approx(al.penalty(model, STRENGTHS).item(), rel=1e-12)


@pytest.mark.filterwarnings("ignore")  # torch's own tracer and what it folds
def test_a_penalty_is_linearised() -> None:
    """One kernel of torch ended the process here: `addcmul` with a `value`."""
    model = al.add_gates(mlp(7, 4, 3, 2), torch.zeros(1, 7, dtype=torch.float64))
    state = {f"model.{name}": gate.detach() for name, gate in model.named_parameters()}
    found, _ = torch.func.linearize(
        lambda given: torch.func.functional_call(_Pays(model), given, ()), state
    )
    assert torch.equal(found, al.penalty(model, STRENGTHS).detach())


def test_strengths_are_what_they_were_made_of() -> None:
    number = torch.tensor(3.0)
    strengths = al.Strengths(width_cost=number, width_binarise=1)  # pyright: ignore
    number.mul_(2)
    assert strengths.numbers() == (3.0, 1.0, 0.0, 0.0)
    assert all(type(each) is float for each in strengths.numbers())


def test_neurons_of_a_shared_gate_are_freed_exactly() -> None:
    """What is left of many neurons when all but one are linear is one, and not nearly one."""
    model = al.add_gates(mlp(7, 4, 3, 2).float(), torch.zeros(1, 7))
    container: Any = model.get_submodule("archlearn_gates")
    shared = torch.tensor([49.0] * 7 + [0.0] * 2)
    container.prices = torch.stack([shared, 1 - shared.clamp(max=1)]).view(torch.int32)
    container.freed_neurons = torch.tensor([[48.0, 48.0, 0.0], [0.0] * 3]).view(torch.int32)
    set_(model, {"0": [1.0] * 4, "2": [1.0] * 3}, {"0": 1.0, "2": 0.0})
    alone = al.Strengths(width_cost=1.0, width_binarise=0.0)
    assert al.penalty(model, alone).item() == 7.0
