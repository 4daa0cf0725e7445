"""Local response normalisation keeps original distances, however often a network is narrowed."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al

X = torch.randn(2, 1, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.local_response_norm(F.relu(self.first(x)), 3, alpha=0.5, beta=0.6))


def modules() -> nn.Module:
    norm = nn.LocalResponseNorm(3, alpha=0.5, beta=0.6)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), norm, nn.Conv2d(8, 2, 3))


@torch.no_grad()
def narrow(net: nn.Module, dropped: list[int]) -> tuple[nn.Module, nn.Module]:
    """Return the gated model with some channels dropped, and the compact one."""
    gated = al.add_gates(net, X).eval()
    (gate,) = al.width_gates(gated).values()
    gate[dropped] = 0.0
    return gated, al.compact(gated)


@pytest.mark.parametrize("build", [Functional, modules])
def test_a_narrowed_normalisation_is_narrowed_again(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    net = build().double().eval()
    gated, small = narrow(net, [1, 5])
    again, smaller = narrow(small, [0, 3])  # 0 and 4 of the eight
    fresh = torch.randn(3, 1, 7, 7, dtype=torch.float64)
    torch.testing.assert_close(small(fresh), gated(fresh), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(smaller(fresh), again(fresh), rtol=1e-10, atol=1e-10)
    _, at_once = narrow(net, [0, 1, 4, 5])
    torch.testing.assert_close(smaller(fresh), at_once(fresh), rtol=1e-10, atol=1e-10)
    (kept,) = [tensor for name, tensor in smaller.named_buffers() if name.endswith("kept")]
    assert kept.tolist() == [2, 3, 6, 7]


def test_a_file_brings_a_narrowed_normalisation_back(tmp_path: object) -> None:
    _, small = narrow(modules().double().eval(), [1, 5])
    path = f"{tmp_path}/small.safetensors"
    al.save(small, path)
    _, once = narrow(al.load(path), [0, 3])
    _, other = narrow(small, [0, 3])
    torch.testing.assert_close(once(X), other(X), rtol=0, atol=0)
