"""What archlearn and Torch-Pruning each do to one torchvision model."""

import copy
import importlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from benchmarks.torchvision_import import import_models

TOLERANCE = 1e-8
Row = dict[str, Any]


def n_parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@torch.no_grad()
def drop_half_(gated: nn.Module, seed: int) -> None:
    """Close a random half of the width gates of every group, and leave one at least."""
    from archlearn.gating.parameters import width_gates

    generator = torch.Generator().manual_seed(seed)
    for gate in width_gates(gated).values():
        order = torch.randperm(gate.numel(), generator=generator)
        gate.fill_(0.9)
        gate[order[: gate.numel() // 2].to(gate.device)] = 0.1


@torch.no_grad()
def ours(name: str, device: str) -> Row:
    """Add gates, drop half of every group, compact, and compare on new images."""
    import archlearn as al
    from archlearn.gating.parameters import depth_gates, width_gates

    add_gates, compact = al.add_gates, al.compact  # imported by that, before the clock starts
    net, images = build(name, device=device), example(name, device=device)
    before = n_parameters(net)
    start = time.perf_counter()
    gated = add_gates(net, images)
    added = time.perf_counter()
    del net
    drop_half_(gated, seed=1)
    ready = time.perf_counter()
    small = compact(gated)
    seconds = (added - start) + (time.perf_counter() - ready)
    fresh = example(name, device=device)
    expected, found = gated.eval()(fresh), small.eval()(fresh)
    difference = relative_difference(expected, found)
    return {
        "runs": True,
        "exact": difference <= TOLERANCE,
        "difference": difference,
        "spread": spread(expected),
        "groups": len(width_gates(gated)),
        "depth_gates": len(depth_gates(gated)),
        "gates": sum(gate.numel() for gate in width_gates(gated).values()),
        "parameters_before": before,
        "parameters_after": n_parameters(small),
        "seconds": seconds,
    }


@torch.no_grad()
def torch_pruning(name: str, device: str) -> Row:
    """Prune half of every layer but the classifier, as Torch-Pruning's own example does.

    Exact means that the pruned model computes what the full one computes once every
    weight that was removed is set to zero.
    """
    importlib.import_module("torch_pruning")  # neither side's clock counts that
    net, images = build(name, device=device), example(name, device=device)
    full = copy.deepcopy(net)
    start = time.perf_counter()
    prune_half_(net, images)
    seconds = time.perf_counter() - start
    row: Row = {
        "runs": False,
        "exact": False,
        "parameters_before": n_parameters(full),
        "parameters_after": n_parameters(net),
        "seconds": seconds,
    }
    fresh = example(name, device=device)
    try:
        found = net.eval()(fresh)
    except Exception as error:
        return {**row, "error": f"forward after pruning: {type(error).__name__}: {error}"[:300]}
    zero_removed_(full, net)
    difference = relative_difference(full(fresh), found)
    return {**row, "runs": True, "exact": difference <= TOLERANCE, "difference": difference}


@torch.enable_grad()
def prune_half_(net: nn.Module, images: Tensor) -> None:
    """Build Torch-Pruning's dependency graph and take one step at a ratio of one half."""
    import torch_pruning as tp

    heads = getattr(getattr(net, "encoder", None), "layers", None)
    is_vit = type(net).__name__ == "VisionTransformer" and heads is not None
    pruner = tp.pruner.MagnitudePruner(
        net,
        images,
        importance=tp.importance.MagnitudeImportance(p=2),
        pruning_ratio=0.5,
        ignored_layers=_classifiers(net),
        round_to=heads[0].num_heads if is_vit else None,
    )
    pruner.step()
    if is_vit:
        # forward reads it; Torch-Pruning's example sets it by hand as well
        net.hidden_dim = net.conv_proj.out_channels


def _classifiers(net: nn.Module) -> list[nn.Module]:
    return [
        module
        for module in net.modules()
        if N_CLASSES in (getattr(module, "out_features", 0), getattr(module, "out_channels", 0))
    ]


@torch.no_grad()
def zero_removed_(full: nn.Module, pruned: nn.Module) -> None:
    """Set to zero every number of `full` that `pruned` no longer holds.

    All numbers are random and so differ from each other: what is left is found by value.
    """
    left = pruned.state_dict()
    for name, tensor in full.state_dict().items():
        if name in left and tensor.shape != left[name].shape:
            tensor.mul_(torch.isin(tensor, left[name]).to(tensor))


SIDES: dict[str, Callable[[str, str], Row]] = {"archlearn": ours, "torch-pruning": torch_pruning}


def measure(name: str, side: str, device: str) -> Row:
    """Return one row of the table; an exception is a result, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            row = SIDES[side](name, device)
        except Exception as error:
            row = {"runs": False, "exact": False, "error": f"{type(error).__name__}: {error}"[:300]}
    return {"model": name, "side": side, "device": device, **row}


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
