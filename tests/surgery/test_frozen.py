"""Weights that a user froze stay frozen in what surgery makes of them."""

import torch
from torch import nn

import archlearn as al


def trainable(model: nn.Module) -> dict[str, bool]:
    return {name: parameter.requires_grad for name, parameter in model.named_parameters()}


def test_a_layer_merged_from_frozen_ones_is_frozen() -> None:
    net = nn.Sequential(
        nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3),
        nn.ReLU(), nn.Linear(3, 2),
    ).requires_grad_(False)  # fmt: skip
    model = al.add_gates(net, torch.randn(2, 6), learn={"0": al.Learn.DEPTH})
    with torch.no_grad():
        al.depth_gates(model)["0"].fill_(0.9)
    small = al.compact(model)
    assert al.plan(model).merges[0].made
    assert trainable(small) == dict.fromkeys(["0.weight", "0.bias", "5.weight", "5.bias"], False)


def test_a_layer_merged_with_one_that_learns_goes_on_learning() -> None:
    for n_space, net in enumerate(
        [
            nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)),
            nn.Sequential(nn.Conv1d(6, 12, 1), nn.ReLU(), nn.Conv1d(12, 3, 1)),
        ]
    ):
        net[0].requires_grad_(False)
        model = al.add_gates(net, torch.randn(2, 6, *[4] * n_space))
        with torch.no_grad():
            al.depth_gates(model)["0"].fill_(0.9)
        assert trainable(al.compact(model)) == {"0.weight": True, "0.bias": True}


def test_a_bias_made_for_constants_is_frozen_with_its_layer() -> None:
    net = nn.Sequential(
        nn.Linear(6, 12), nn.ReLU(), nn.BatchNorm1d(12), nn.Linear(12, 3, bias=False)
    ).requires_grad_(False)
    model = al.add_gates(net, torch.randn(2, 6), learn={"0": al.Learn.WIDTH})
    with torch.no_grad():
        al.width_gates(model)["0"][::2] = 0.1
    small = al.compact(model)
    assert "3.bias" in trainable(small)
    assert not any(trainable(small).values())


def test_a_computed_weight_is_frozen_where_its_parts_were() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 12))
    net = nn.Sequential(layer, nn.ReLU(), nn.Linear(12, 3)).requires_grad_(False)
    model = al.add_gates(net, torch.randn(2, 6))
    with torch.no_grad():
        al.width_gates(model)["0"][::2] = 0.1
    assert not any(trainable(al.compact(model)).values())
