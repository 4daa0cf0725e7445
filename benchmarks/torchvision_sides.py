"""What archlearn and Torch-Pruning each do to one torchvision model."""

import copy
import importlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.torchvision_subjects import (
    N_CLASSES,
    build,
    example,
    relative_difference,
    spread,
)

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
