"""Norms over the open channels are what plain norms of those channels compute."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archlearn.nn.norms import (
    masked_group_norm,
    masked_layer_norm,
    masked_rms_norm,
    masked_unit_length,
)

OPEN = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])


def draw(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_statistics_by_hand() -> None:
    x = torch.tensor([[1.0, 100.0, 3.0]], dtype=torch.float64)
    gate = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    found = masked_layer_norm(x, gate, None, torch.tensor([5.0, 6.0, 7.0]), eps=0.0)
    torch.testing.assert_close(found, torch.tensor([[4.0, 0.0, 8.0]], dtype=torch.float64))
    root = 5.0**0.5  # of (1 + 9) / 2
    torch.testing.assert_close(
        masked_rms_norm(x, gate, None, 0.0),
        torch.tensor([[1 / root, 0.0, 3 / root]], dtype=torch.float64),
    )


@pytest.mark.parametrize("gate", [OPEN, torch.ones(5)])
def test_open_channels_are_what_a_smaller_norm_gives(gate: Tensor) -> None:
    x, weight, bias, kept = draw(2, 3, 5) + 4, draw(5), draw(5) - 1, gate.bool()
    n = int(kept.sum())
    found = masked_layer_norm(x, gate.double(), weight, bias, 1e-6)
    meant = F.layer_norm(x[..., kept], (n,), weight[kept], bias[kept], 1e-6)
    torch.testing.assert_close(found[..., kept], meant, rtol=1e-12, atol=1e-12)
    assert not found[..., ~kept].any()
    found = masked_rms_norm(x, gate.double(), weight, 1e-6)
    meant = F.rms_norm(x[..., kept], (n,), weight[kept], 1e-6)
    torch.testing.assert_close(found[..., kept], meant, rtol=1e-12, atol=1e-12)
    assert not found[..., ~kept].any()


def test_open_channels_of_groups_are_what_a_smaller_group_norm_gives() -> None:
    gate = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    x, weight, bias, kept = draw(2, 6, 3, 4) + 4, draw(6), draw(6) - 1, gate.bool()
    found = masked_group_norm(x, gate.double(), weight, bias, 1e-6, 2)
    meant = F.group_norm(x[:, kept], 2, weight[kept], bias[kept], 1e-6)
    torch.testing.assert_close(found[:, kept], meant, rtol=1e-12, atol=1e-12)
    assert not found[:, ~kept].any()
    whole = masked_group_norm(x, torch.ones(6), weight, bias, 1e-6, 3)
    torch.testing.assert_close(whole, F.group_norm(x, 3, weight, bias, 1e-6))
    assert masked_group_norm(x.half(), torch.ones(6).half(), n_groups=3).dtype is torch.half


def test_lengths_by_hand() -> None:
    x = torch.tensor([[3.0], [100.0], [4.0]], dtype=torch.float64)
    gate = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    meant = torch.tensor([[0.6], [20.0], [0.8]], dtype=torch.float64)
    torch.testing.assert_close(masked_unit_length(x, gate, -2), meant)
    torch.testing.assert_close(masked_unit_length(x, gate, -2, order=1.0), x / 7)
    assert torch.equal(masked_unit_length(0 * x, gate, -2), 0 * x)


def test_statistics_are_in_single_precision_at_least() -> None:
    x = (draw(1, 4096) * 300).half()
    gate = torch.ones(4096, dtype=torch.half)
    for found, meant in (
        (masked_layer_norm(x, gate), F.layer_norm(x.double(), (4096,))),
        (masked_rms_norm(x, gate, None, 1e-6), F.rms_norm(x.double(), (4096,), eps=1e-6)),
    ):
        assert found.dtype is torch.half
        torch.testing.assert_close(found.double(), meant, rtol=1e-3, atol=1e-3)


def test_gradients_lead_to_closed_channels() -> None:
    x, gate = draw(4, 5), OPEN.double().requires_grad_()
    for norm in (masked_layer_norm, masked_rms_norm):
        (gradient,) = torch.autograd.grad((norm(x, gate) * draw(4, 5)).sum(), gate)
        assert bool(gradient.ne(0).all())
