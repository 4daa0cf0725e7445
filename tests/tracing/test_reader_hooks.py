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
