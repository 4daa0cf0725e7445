"""The price of a neuron follows the network as it acts: closed layers and linear ones, too."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import archlearn as al
from tests.test_penalties import PRICED, mean_one, mlp, prices, set_


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
