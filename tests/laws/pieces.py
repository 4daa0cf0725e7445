"""Layers, norms and activations from which the blocks are put together."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from tests.laws.programs import Chooser

CONVOLUTIONS: tuple[Any, ...] = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED: tuple[Any, ...] = (None, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
BATCH_NORMS: tuple[Any, ...] = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Calls(nn.Module):
    """A function as a module; tracing looks into it and sees the function."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


RECTIFIERS: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU,
    lambda: Calls(F.relu),
    lambda: Calls(lambda x: x.relu()),
    lambda: Calls(torch.relu),
    lambda: nn.ReLU(inplace=True),
    lambda: Calls(lambda x: F.relu(x, inplace=True)),
)
OTHERS: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU6, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardtanh,
    nn.Tanh, nn.Softsign, nn.Softplus, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink,
    nn.LogSigmoid, nn.Sigmoid, nn.Hardsigmoid, nn.PReLU, nn.RReLU,
    lambda: nn.LeakyReLU(0.1),
    lambda: nn.Threshold(0.1, 0.3),
    lambda: Calls(F.gelu),
    lambda: Calls(lambda x: F.gelu(x, approximate="tanh")),
    lambda: Calls(F.silu),
    lambda: Calls(lambda x: F.leaky_relu(x, 0.2)),
    lambda: Calls(F.elu),
    lambda: Calls(F.hardswish),
    lambda: Calls(F.relu6),
    lambda: Calls(F.softplus),
    lambda: Calls(torch.tanh),
    lambda: Calls(lambda x: x.tanh()),
    lambda: Calls(torch.sigmoid),
    lambda: Calls(lambda x: x.sigmoid()),
    lambda: Calls(lambda x: x.clamp(min=0)),
    lambda: Calls(lambda x: x * torch.sigmoid(x)),
)  # fmt: skip


def activation(n_channels: int, pick: Chooser) -> nn.Module:
    """Return an activation; half of them are rectifiers, as in people's networks."""
    group = pick((RECTIFIERS, OTHERS))
    make = pick(group)
    if make is nn.PReLU:
        return nn.PReLU(pick((1, n_channels)))
    return make()


def norm(n_channels: int, n_space: int, pick: Chooser) -> nn.Module:
    """Return a BatchNorm, with or without weight and bias."""
    return BATCH_NORMS[n_space](n_channels, affine=pick((True, True, False)))


def layer(n_in: int, n_out: int, space: tuple[int, ...], pick: Chooser, groups: int = 1) -> Any:
    """Return a Linear, or a convolution that fits the space, of any kernel and padding."""
    bias = pick((True, False))
    if not space:
        return nn.Linear(n_in, n_out, bias=bias)
    kernel, stride, dilation, padding = pick(KERNELS)
    mode = pick(("zeros", "zeros", "zeros", "reflect", "replicate", "circular"))
    reach = dilation * (kernel - 1) + 1
    room = min(space) + (2 * padding if isinstance(padding, int) else 0)
    if reach > room or (mode != "zeros" and padding not in (0, "valid") and min(space) < 4):
        kernel, stride, dilation, padding = 1, 1, 1, 0
    return CONVOLUTIONS[len(space)](
        n_in, n_out, kernel, stride=stride, padding=padding, dilation=dilation,
        groups=groups, bias=bias, padding_mode=mode,
    )  # fmt: skip


# Kernel, stride, dilation, padding.
KERNELS: tuple[tuple[int, int, int, Any], ...] = (
    (1, 1, 1, 0), (3, 1, 1, 1), (3, 1, 1, 0), (2, 1, 1, 0), (3, 2, 1, 1), (1, 2, 1, 0),
    (3, 1, 2, 2), (2, 2, 1, 0), (3, 1, 1, "same"), (1, 1, 1, "same"), (3, 1, 1, "valid"),
    (1, 1, 1, 1), (2, 1, 1, 1), (3, 1, 1, 0), (1, 1, 1, 0), (3, 1, 1, 1),
)  # fmt: skip


def pointwise(n_in: int, n_out: int, n_space: int, pick: Chooser) -> Any:
    """Return a 1×1 convolution, or a Linear where there is no space."""
    bias = pick((True, False))
    if not n_space:
        return nn.Linear(n_in, n_out, bias=bias)
    return CONVOLUTIONS[n_space](n_in, n_out, 1, bias=bias)


def keeping(n_in: int, n_out: int, n_space: int, pick: Chooser) -> Any:
    """Return a layer that keeps the spatial size."""
    if not n_space:
        return nn.Linear(n_in, n_out, bias=pick((True, False)))
    kernel = pick((3, 1))
    bias = pick((True, False))
    return CONVOLUTIONS[n_space](n_in, n_out, kernel, padding=kernel // 2, bias=bias)


def normalised_weight(made: Any, pick: Chooser) -> Any:
    """Return the layer, one time in six with its weight computed by `weight_norm`."""
    return weight_norm(made) if pick((False,) * 5 + (True,)) else made


def channels_along(values: Tensor, n_space: int) -> Tensor:
    """Return a vector shaped so that it spreads over batch and space."""
    return values.reshape(1, -1, *[1] * n_space)
