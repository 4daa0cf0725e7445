"""A layer whose weight carries gates still calls its hooks."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archlearn as al


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
def test_hooks_of_a_reader_are_called(register: str) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    x = torch.randn(2, 1, 16, 16)
    model = al.add_gates(net, x)
    seen: list[nn.Module] = []

    def note(module: nn.Module, *_: Any) -> Tensor | None:
        seen.append(module)

    layer = model.get_submodule("2")
    getattr(layer, register)(note)
    model(x).sum().backward()
    assert seen == [layer]


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_hooks_of_a_norm_whose_channels_are_gated_are_called(norm: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), norm(8), nn.Linear(8, 3)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    model = al.add_gates(net, x)
    assert len(al.width_gates(model)["0"]) == 8
    seen: list[Tensor] = []
    for each in (net, model):
        layer = each.get_submodule("1")
        layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        layer.register_forward_hook(lambda _, __, out: seen.append(out) or 2 * out)
    torch.testing.assert_close(model(x), net(x), rtol=1e-12, atol=1e-12)
    assert len(seen) == 4
    torch.testing.assert_close(seen[:2], seen[2:], rtol=1e-12, atol=1e-12)
