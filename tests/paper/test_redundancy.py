"""The loss without a neuron is that of the network without it."""

import pytest
import torch
from torch import nn

from archlearn.training.settings import RunSettings
from archlearn_paper.experiments.properties import measure_removals

SETTINGS = RunSettings(data="digits", limit=400)


def make_network() -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10))
    with torch.no_grad():
        # A neuron without its weights would go on giving this.
        network[1].bias[2] = 2.0
    return network


def test_rises_are_those_of_a_network_without_the_neuron() -> None:
    network = make_network()
    measured = measure_removals(network, SETTINGS, 100)
    assert len(measured["rises"]) == 5
    assert measured["n_examples"] == 100
    without = make_network()
    with torch.no_grad():
        without[3].weight[:, 2] = 0
    expected = measure_removals(without, SETTINGS, 100)["loss"] - measured["loss"]
    assert measured["rises"][2] == pytest.approx(expected, abs=1e-6)
    assert abs(expected) > 1e-3


def test_the_network_is_left_alone_and_a_useless_neuron_found() -> None:
    network = make_network()
    with torch.no_grad():
        network[3].weight[:, 4] = 0
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    rises = measure_removals(network, SETTINGS, 100)["rises"]
    assert rises[4] == pytest.approx(0, abs=1e-7)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name])
