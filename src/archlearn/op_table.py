"""Tables of torch's activations as modules, functions and methods."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from archlearn.nn.tristate import TriState

ACTIVATION_MODULES: tuple[type[nn.Module], ...] = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU,
    nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardtanh, nn.Tanh, nn.Softplus, nn.Softsign, nn.GLU,
    nn.Tanhshrink, nn.Softshrink, nn.Hardshrink, nn.Threshold, nn.LogSigmoid, TriState,
)  # fmt: skip


ACTIVATION_FUNCTIONS: tuple[Any, ...] = (
    F.relu, F.relu_, torch.relu, torch.relu_, F.relu6, F.leaky_relu, F.leaky_relu_, F.prelu,
    torch.prelu, F.rrelu, F.elu, F.elu_, F.celu, F.selu, F.gelu, F.silu, F.mish, F.hardswish,
    F.hardtanh, F.hardtanh_, F.tanh, torch.tanh, F.softplus, F.softsign, F.glu, F.threshold,
    F.logsigmoid, F.softshrink, F.hardshrink, F.tanhshrink,
)  # fmt: skip


ACTIVATION_METHODS = ("relu", "relu_", "tanh", "tanh_", "prelu")


# A squashing function often is a gate itself (squeeze-and-excite): it becomes a site only
# where its channels have no other.
SQUASHING_MODULES: tuple[type[nn.Module], ...] = (nn.Sigmoid, nn.Hardsigmoid)


SQUASHING_FUNCTIONS: tuple[Any, ...] = (F.sigmoid, torch.sigmoid, F.hardsigmoid)


SQUASHING_METHODS = ("sigmoid", "sigmoid_")


def has_activation(module: nn.Module) -> bool:
    """Return whether a layer and an activation are among a module's parts."""
    parts = list(module.modules())
    has_layer = any(isinstance(part, nn.Linear | nn.modules.conv._ConvNd) for part in parts)
    home = "transformers.activations"  # classes of its own, which call the functions
    return has_layer and any(
        isinstance(p, ACTIVATION_MODULES) or type(p).__module__ == home for p in parts
    )
