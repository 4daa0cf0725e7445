"""Torch-Pruning 1.6.1: channels that depend on one another go together, the weakest group first.

By group magnitude, in one shot or in rounds with training between them, and, if the model was
trained by `learn_sparse_groups` before, by group sparse learning (Fang et al. 2023, "DepGraph").
All ranking and surgery is Torch-Pruning's own; this file only finds the ratio for a budget.
"""

import copy
from typing import Any

from torch import Tensor, nn

from archlearn.errors import InputError
from archlearn_paper.baselines.interface import is_within

_HALVINGS = 10
"""Enough to tell single channels apart among a thousand."""


def import_torch_pruning() -> Any:
    """Return the package, or say how to get it."""
    try:
        import torch_pruning
    except ImportError as error:
        raise InputError(
            "this method needs Torch-Pruning, which is not installed; "
            "pip install 'archlearn[bench]'"
        ) from error
    return torch_pruning


def reduce_by_torch_pruning(
    model: nn.Module, example: Tensor, budget: int, *, all_layers_together: bool = True
) -> nn.Module:
    """Return a copy pruned by group magnitude, to a budget.

    The smallest pruning ratio that meets the budget is found by halving. Where that jumps over
    the tolerance, the channel whose loss comes nearest to the budget goes instead.

    Args:
        model: A trained model; it is left alone.
        example: Inputs of one call.
        budget: The number of parameters wanted.
        all_layers_together: Whether channels of all layers are ranked together, or each layer
            loses the same part of its own.
    """
    low, high = 0.0, 1.0
    larger, smaller = copy.deepcopy(model), None
    for _ in range(_HALVINGS):
        ratio = (low + high) / 2
        pruned = _prune(model, example, ratio, all_layers_together)
        if _count(pruned) > budget:
            low, larger = ratio, pruned
        else:
            high, smaller = ratio, pruned
    if smaller is not None and is_within(_count(smaller), budget):
        return smaller.train(model.training)
    while _count(larger) > budget and not is_within(_count(larger), budget):
        options = _without_one_channel(larger, example)
        fitting = [made for made in options if is_within(_count(made), budget)]
        above = [made for made in options if _count(made) > budget]
        if not fitting and not above:
            break
        larger = min(fitting or above, key=_count)
    return larger.train(model.training)


def prunable_layers(model: nn.Module) -> list[str]:
    """Return the layers whose outputs may go: all linear layers and convolutions but the last."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return [name for name, layer in model.named_modules() if isinstance(layer, kinds)][:-1]


def reduce_evenly(model: nn.Module, example: Tensor, budget: int) -> nn.Module:
    """Return a copy pruned by group magnitude, the same part of every layer, to a budget."""
    return reduce_by_torch_pruning(model, example, budget, all_layers_together=False)


def make_pruner(
    model: nn.Module, example: Tensor, ratio: float, *, all_layers_together: bool = True
) -> Any:
    """Return Torch-Pruning's own pruner, by group magnitude over all layers but the last."""
    tp = import_torch_pruning()
    names = set(prunable_layers(model))
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    fixed = [m for name, m in model.named_modules() if isinstance(m, kinds) and name not in names]
    return tp.pruner.GroupNormPruner(
        model,
        example,
        importance=tp.importance.GroupMagnitudeImportance(p=2),
        global_pruning=all_layers_together,
        pruning_ratio=ratio,
        ignored_layers=fixed,
    )


def _prune(model: nn.Module, example: Tensor, ratio: float, all_layers_together: bool) -> nn.Module:
    made = _prepare(model)
    pruner = make_pruner(made, example, ratio, all_layers_together=all_layers_together)
    for group in pruner.step(interactive=True):
        n_channels = _width(group[0].dep.target.module)
        if len(group[0].idxs) < n_channels:
            group.prune()
    return made


def _without_one_channel(model: nn.Module, example: Tensor) -> list[nn.Module]:
    """Return, for each layer, a copy without its weakest channel."""
    tp = import_torch_pruning()
    importance = tp.importance.GroupMagnitudeImportance(p=2)
    options: list[nn.Module] = []
    for name in prunable_layers(model):
        made = _prepare(model)
        layer = made.get_submodule(name)
        graph = tp.DependencyGraph().build_dependency(made, example_inputs=example)
        prune = graph.get_pruner_of_module(layer).prune_out_channels
        every = graph.get_pruning_group(layer, prune, idxs=list(range(_width(layer))))
        if _width(layer) > 1:
            weakest = int(importance(every).argmin())
            graph.get_pruning_group(layer, prune, idxs=[weakest]).prune()
            options.append(made)
    return options


def _prepare(model: nn.Module) -> nn.Module:
    """Return a copy whose parameters all take gradients: Torch-Pruning follows nothing else."""
    return copy.deepcopy(model).eval().requires_grad_(True)


def _width(layer: Any) -> int:
    return layer.weight.shape[0]


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
