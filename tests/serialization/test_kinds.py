"""Every kind of network, whole and compact, is the same after saving and loading."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import archlearn as al
from tests.zoo import ALL, Kind, call, in_double

OPAQUE = {"opaque_if", "opaque_loop"}


def opaque_classes(kind: Kind, net: nn.Module) -> dict[str, type[nn.Module]]:
    named = net.named_modules() if kind.name in OPAQUE else []
    return {type(module).__name__: type(module) for name, module in named if name == "opaque"}


def assert_same_in_both_modes(net: nn.Module, loaded: nn.Module, inputs: Any) -> None:
    assert list(loaded.state_dict()) == list(net.state_dict())
    for training in (True, False):
        torch.manual_seed(1)
        expected = pytree.tree_leaves(call(net.train(training), inputs))
        torch.manual_seed(1)
        found = pytree.tree_leaves(call(loaded.train(training), inputs))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_every_kind_of_network_survives_saving(kind: Kind, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, inputs = kind.build().double(), in_double(kind.inputs())
    modules = opaque_classes(kind, net)
    al.save(net, tmp_path / "net.safetensors", inputs, modules=modules)
    loaded = al.load(tmp_path / "net.safetensors", modules=modules)
    assert_same_in_both_modes(net, loaded, inputs)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_every_compact_network_survives_saving(kind: Kind, tmp_path: Path) -> None:
    if not (kind.learns_width or kind.learns_depth):
        pytest.skip("nothing is learnt in this kind")
    torch.manual_seed(0)
    net, inputs = kind.build().double().eval(), in_double(kind.inputs())
    gated = al.add_gates(net, inputs)
    with torch.no_grad():
        for gate in (*al.width_gates(gated).values(), *al.depth_gates(gated).values()):
            gate.copy_(torch.where(torch.rand(gate.shape) < 0.5, 0.1, 0.9))
    small, modules = al.compact(gated), opaque_classes(kind, net)
    al.save(small, tmp_path / "small.safetensors", modules=modules)
    loaded = al.load(tmp_path / "small.safetensors", modules=modules)
    assert_same_in_both_modes(small, loaded, inputs)
    assert loaded.certificate == small.certificate
