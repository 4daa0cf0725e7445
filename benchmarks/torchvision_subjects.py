"""The networks of the torchvision benchmark, with no number in them that hides a mistake."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from benchmarks.torchvision_import import import_models

N_CLASSES = 1000
# The smallest images that each family takes; the rest take 64 x 64.
_SIZES = {"vit": 224, "maxvit": 224, "inception": 299, "vgg": 32}
_BATCH = 2


def example(name: str, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Tensor:
    """Return a small batch of random images that the model takes."""
    size = next((size for family, size in _SIZES.items() if name.startswith(family)), 64)
    return torch.randn(_BATCH, 3, size, size, dtype=dtype).to(device)


def build(name: str, dtype: torch.dtype = torch.float64, device: str = "cpu") -> nn.Module:
    """Return a model in evaluation mode with random weights, none of them neutral."""
    torch.manual_seed(0)
    without_slow_start = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    net = import_models().get_model(name, weights=None, **without_slow_start)
    net = net.to(dtype=dtype, device=device).eval()
    disturb_constants_(net)
    calibrate_(net, example(name, dtype, device))
    return net


def relative_difference(first: Tensor, second: Tensor) -> float:
    """Return the largest difference between two outputs, as a share of the largest number."""
    return float((first - second).abs().max() / first.abs().max())


def spread(output: Tensor) -> float:
    """Return how much the images of a batch differ in an output, as a share of its size.

    An output that does not depend on the image would agree with anything.
    """
    return float((output[0] - output[1]).abs().max() / output.abs().max())


@torch.no_grad()
def disturb_constants_(net: nn.Module) -> None:
    """Add noise to every constant: a scale of one or a bias of zero would hide a mistake."""
    for parameter in net.parameters():
        if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
            parameter += 0.2 * torch.randn_like(parameter)
        # Weights start in float32, where two of a million are often equal; now none are.
        parameter += 1e-6 * torch.randn_like(parameter)


@torch.no_grad()
def calibrate_(net: nn.Module, *inputs: Any, **options: Any) -> None:
    """Give every BatchNorm the statistics of these inputs.

    Statistics of real activations keep the signal alive through a hundred layers.
    """
    norms = [module for module in net.modules() if isinstance(module, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    net(*inputs, **options)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.eval()
        norm.momentum = momentum
