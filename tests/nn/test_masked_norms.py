"""Norms over the open channels are what plain norms of those channels compute."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archlearn.nn.norms import (
    masked_group_norm,
    masked_layer_norm,
    masked_rms_norm,
    masked_unit_length,
    weigh_channels,
)

OPEN = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])


def draw(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_statistics_by_hand() -> None:
    x = torch.tensor([[1.0, 100.0, 3.0]], dtype=torch.float64)
    gate = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    opened = weigh_channels(gate)
    found = masked_layer_norm(x, opened, None, torch.tensor([5.0, 6.0, 7.0]), eps=0.0)
    torch.testing.assert_close(found, torch.tensor([[4.0, 0.0, 8.0]], dtype=torch.float64))
    root = 5.0**0.5  # of (1 + 9) / 2
    torch.testing.assert_close(
        masked_rms_norm(x, opened, None, 0.0),
        torch.tensor([[1 / root, 0.0, 3 / root]], dtype=torch.float64),
    )


@pytest.mark.parametrize("gate", [OPEN, torch.ones(5)])
def test_open_channels_are_what_a_smaller_norm_gives(gate: Tensor) -> None:
    x, weight, bias, kept = draw(2, 3, 5) + 4, draw(5), draw(5) - 1, gate.bool()
    n, opened = int(kept.sum()), weigh_channels(gate.double())
    found = masked_layer_norm(x, opened, weight, bias, 1e-6)
    meant = F.layer_norm(x[..., kept], (n,), weight[kept], bias[kept], 1e-6)
    torch.testing.assert_close(found[..., kept], meant, rtol=1e-12, atol=1e-12)
    assert not found[..., ~kept].any()
    found = masked_rms_norm(x, opened, weight, 1e-6)
    meant = F.rms_norm(x[..., kept], (n,), weight[kept], 1e-6)
    torch.testing.assert_close(found[..., kept], meant, rtol=1e-12, atol=1e-12)
    assert not found[..., ~kept].any()


def test_open_channels_of_groups_are_what_a_smaller_group_norm_gives() -> None:
    gate = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    x, weight, bias, kept = draw(2, 6, 3, 4) + 4, draw(6), draw(6) - 1, gate.bool()
    found = masked_group_norm(x, weigh_channels(gate.double(), 2), weight, bias, 1e-6, 2)
    meant = F.group_norm(x[:, kept], 2, weight[kept], bias[kept], 1e-6)
    torch.testing.assert_close(found[:, kept], meant, rtol=1e-12, atol=1e-12)
    assert not found[:, ~kept].any()
    all_open = weigh_channels(torch.ones(6), 3)
    whole = masked_group_norm(x, all_open, weight, bias, 1e-6, 3)
    torch.testing.assert_close(whole, F.group_norm(x, 3, weight, bias, 1e-6))
    assert masked_group_norm(x.half(), all_open, n_groups=3).dtype is torch.half


def test_lengths_by_hand() -> None:
    x = torch.tensor([[3.0], [100.0], [4.0]], dtype=torch.float64)
    gate = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    meant = torch.tensor([[0.6], [20.0], [0.8]], dtype=torch.float64)
    torch.testing.assert_close(masked_unit_length(x, gate, -2), meant)
    torch.testing.assert_close(masked_unit_length(x, gate, -2, order=1.0), x / 7)
    assert torch.equal(masked_unit_length(0 * x, gate, -2), 0 * x)


def test_statistics_are_in_single_precision_at_least() -> None:
    x = (draw(1, 4096) * 300).half()
    opened = weigh_channels(torch.ones(4096, dtype=torch.half))
    for found, meant in (
        (masked_layer_norm(x, opened), F.layer_norm(x.double(), (4096,))),
        (masked_rms_norm(x, opened, None, 1e-6), F.rms_norm(x.double(), (4096,), eps=1e-6)),
    ):
        assert found.dtype is torch.half
        torch.testing.assert_close(found.double(), meant, rtol=1e-3, atol=1e-3)


def test_gradients_lead_to_closed_channels() -> None:
    x, gate = draw(4, 5), OPEN.double().requires_grad_()
    for norm in (masked_layer_norm, masked_rms_norm):
        found = norm(x, weigh_channels(gate))
        (gradient,) = torch.autograd.grad((found * draw(4, 5)).sum(), gate)
        assert bool(gradient.ne(0).all())


def layer_norm_as_written(
    x: Tensor, gate: Tensor, weight: Tensor, bias: Tensor, n_groups: int = 1
) -> Tensor:
    """Return the norm of x, batch x channels x space, by its definition, step by step."""
    grouped, opened = x.unflatten(1, (n_groups, -1)), gate.view(n_groups, -1, 1)
    n_open = opened.sum(1, keepdim=True) * x.shape[2]
    centred = (grouped - (grouped * opened).sum((2, 3), keepdim=True) / n_open) * opened
    variance = centred.square().sum((2, 3), keepdim=True) / n_open
    normal = (centred * torch.rsqrt(variance + 1e-3)).flatten(1, 2)
    return normal * weight[:, None] + (gate * bias)[:, None]


def rms_norm_as_written(x: Tensor, gate: Tensor, weight: Tensor, _: Tensor) -> Tensor:
    """Return the same without mean and bias."""
    opened = x * gate[:, None]
    square = opened.square().sum(1, keepdim=True) / gate.sum()
    return opened * torch.rsqrt(square + 1e-3) * weight[:, None]


def layer_norm(x: Tensor, gate: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return masked_layer_norm(x.mT, weigh_channels(gate), weight, bias, 1e-3).mT


def group_norm(x: Tensor, gate: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return masked_group_norm(x, weigh_channels(gate, 3), weight, bias, 1e-3, 3)


def rms_norm(x: Tensor, gate: Tensor, weight: Tensor, _: Tensor) -> Tensor:
    return masked_rms_norm(x.mT, weigh_channels(gate), weight, 1e-3).mT


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize(
    ("norm", "as_written", "space"),
    [
        (layer_norm, layer_norm_as_written, 1),
        (group_norm, lambda *given: layer_norm_as_written(*given, n_groups=3), 4),
        (rms_norm, rms_norm_as_written, 1),
    ],
)
def test_norms_and_all_their_gradients_are_those_of_the_definition(
    norm: Callable[..., Tensor], as_written: Callable[..., Tensor], space: int, is_binary: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        drawn = torch.rand(12, generator=generator, dtype=torch.float64)
        gate = (drawn > 0.6).double() if is_binary else drawn
        gate[::4] = 1.0  # one of each group
        x = torch.randn(5, 12, space, generator=generator, dtype=torch.float64) + 3
        weight, bias = torch.randn(2, 12, generator=generator, dtype=torch.float64)
        given = [each.clone().requires_grad_() for each in (x, gate, weight, bias)]
        above = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        results: list[list[Tensor]] = []
        for function in (norm, as_written):
            out = function(*given)
            grads = torch.autograd.grad(out, given, above, materialize_grads=True)
            results.append([out, *grads])
        for found, meant in zip(*results, strict=True):
            torch.testing.assert_close(found, meant, rtol=1e-12, atol=1e-12)
