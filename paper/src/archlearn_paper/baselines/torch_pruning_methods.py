"""Torch-Pruning 1.6.1: channels that depend on one another go together, the weakest group first.

By group magnitude, in one shot or in rounds with training between them, and, if the model was
trained by `learn_sparse_groups` before, by group sparse learning (Fang et al. 2023, "DepGraph").
All ranking and surgery is Torch-Pruning's own; this file only finds the ratio for a budget.
"""

import copy
import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.errors import check_installed
from archlearn_paper.baselines.learnt_diagonals import Penalised
from archlearn_paper.baselines.parameter_budget import is_within

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_HALVINGS = 10
"""Enough to tell single channels apart among a thousand."""
MOST_OF_A_LAYER = 0.9
"""The part of a layer that may go, by Torch-Pruning's own `max_pruning_ratio`: without it, ranking
over all layers left single channels of some."""


def import_torch_pruning() -> Any:
    """Return the package, or say how to get it."""
    check_installed("this method", "bench", "torch_pruning")
    return importlib.import_module("torch_pruning")


def reduce_by_torch_pruning(
    model: nn.Module, example: Tensor, budget: int, *, all_layers_together: bool = True
) -> nn.Module:
    """Return a copy pruned by group magnitude, to a budget.

    The smallest pruning ratio that meets the budget is found by halving. Where that jumps over
    the tolerance, the channel whose loss comes nearest to the budget goes instead. Channels of all
    layers are ranked together, or each layer loses the same part of its own.
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
        fitting = [option for option in options if is_within(_count(option), budget)]
        above = [option for option in options if _count(option) > budget]
        if not fitting and not above:
            break
        larger = min(fitting or above, key=_count)
    return larger.train(model.training)


def reduce_evenly(model: nn.Module, example: Tensor, budget: int) -> nn.Module:
    """Return a copy pruned by group magnitude, the same part of every layer, to a budget."""
    return reduce_by_torch_pruning(model, example, budget, all_layers_together=False)


def make_pruner(
    model: nn.Module, example: Tensor, ratio: float, *, all_layers_together: bool = True
) -> Any:
    """Return Torch-Pruning's own pruner, by group magnitude over all layers but the last."""
    tp = import_torch_pruning()
    return tp.pruner.GroupNormPruner(
        model,
        example,
        importance=tp.importance.GroupMagnitudeImportance(p=2),
        global_pruning=all_layers_together,
        pruning_ratio=ratio,
        max_pruning_ratio=MOST_OF_A_LAYER,
        ignored_layers=[layer for layer in model.modules() if isinstance(layer, _LAYERS)][-1:],
    )


def _prune(model: nn.Module, example: Tensor, ratio: float, all_layers_together: bool) -> nn.Module:
    network = _prepare(model)
    pruner = make_pruner(network, example, ratio, all_layers_together=all_layers_together)
    for group in pruner.step(interactive=True):
        n_channels = _width(group[0].dep.target.module)
        if len(group[0].idxs) < n_channels:
            group.prune()
    return network


def _without_one_channel(model: nn.Module, example: Tensor) -> list[nn.Module]:
    """Return, for each layer, a copy without its weakest channel."""
    tp = import_torch_pruning()
    importance = tp.importance.GroupMagnitudeImportance(p=2)
    options: list[nn.Module] = []
    layers = [name for name, layer in model.named_modules() if isinstance(layer, _LAYERS)]
    for name in layers[:-1]:
        network = _prepare(model)
        layer = network.get_submodule(name)
        graph = tp.DependencyGraph().build_dependency(network, example_inputs=example)
        prune = graph.get_pruner_of_module(layer).prune_out_channels
        every = graph.get_pruning_group(layer, prune, idxs=list(range(_width(layer))))
        if _width(layer) > 1:
            weakest = int(importance(every).argmin())
            graph.get_pruning_group(layer, prune, idxs=[weakest]).prune()
            options.append(network)
    return options


def _prepare(model: nn.Module) -> nn.Module:
    """Return a copy whose parameters all take gradients: Torch-Pruning follows nothing else."""
    return copy.deepcopy(model).eval().requires_grad_(True)


def _width(layer: Any) -> int:
    return layer.weight.shape[0]


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


STRENGTH = 5e-4
STEEPNESS = 16.0


@dataclass(frozen=True, slots=True)
class _Part:
    """One weight of a group; its indices and channels are buffers under `key`.

    The parts of a grouped convolution's weight read different channels.
    """

    weight: str
    dim: int
    key: str
    n_parts: int


class GroupPenalty(nn.Module):
    """The penalty of a network's groups; the strongest channel of each is pulled by `strength`."""

    def __init__(self, network: nn.Module, example: Tensor, strength: float = STRENGTH) -> None:
        super().__init__()
        self.strength = strength
        self._groups: list[tuple[int, list[_Part]]] = []
        pruner = make_pruner(copy.deepcopy(network).eval(), example, 0.5)
        names = {module: name for name, module in pruner.model.named_modules()}
        for group in pruner._groups:
            parts = [self._keep(item, names) for item in group if _dim(item) is not None]
            self._groups.append((len(group[0].idxs), parts))

    def forward(self, network: nn.Module) -> Tensor:
        """Return the penalty of a network as it now is."""
        terms = [self._price(network, n_channels, parts) for n_channels, parts in self._groups]
        return 0.5 * self.strength * torch.stack(terms).sum()

    def _price(self, network: nn.Module, n_channels: int, parts: list[_Part]) -> Tensor:
        squares = [self._square(network, part, n_channels) for part in parts]
        norm = torch.stack([square.detach() for square in squares]).mean(0).sqrt()
        span = (norm.max() - norm.min()).clamp_min(torch.finfo(norm.dtype).tiny)
        pull = STEEPNESS ** ((norm.max() - norm) / span)
        return (pull * torch.stack(squares).sum(0)).sum()

    def _square(self, network: nn.Module, part: _Part, n_channels: int) -> Tensor:
        """Return the squared length of what a weight holds for each channel."""
        parts = network.get_parameter(part.weight).chunk(part.n_parts)
        moved = [weight.movedim(part.dim, 0) for weight in parts]
        lines = torch.cat([held.reshape(len(held), -1).square().sum(1) for held in moved])
        indices, channels = self.get_buffer(f"i{part.key}"), self.get_buffer(f"c{part.key}")
        # Selected, not indexed: the gradient of that asks nothing of the host.
        chosen = lines.index_select(0, indices)
        return lines.new_zeros(n_channels).index_add(0, channels, chosen)

    def _keep(self, item: Any, names: dict[nn.Module, str]) -> _Part:
        key = str(len(self._buffers))
        self.register_buffer(f"i{key}", torch.tensor(item.idxs), persistent=False)
        self.register_buffer(f"c{key}", torch.tensor(item.root_idxs), persistent=False)
        dim = _dim(item)
        assert dim is not None
        layer = item.dep.target.module
        n_parts = getattr(layer, "groups", 1) if dim == 1 else 1
        return _Part(f"{names[layer]}.weight", dim, key, n_parts)


def learn_sparse_groups(
    network: nn.Module, example: Tensor, strength: float = STRENGTH
) -> Penalised:
    """Return a copy of a network that any training loop will make sparse by groups."""
    return Penalised(copy.deepcopy(network), GroupPenalty(network, example, strength))


def _dim(item: Any) -> int | None:
    """Return the dimension of a weight along which a member of a group lies; None for others."""
    function = import_torch_pruning().pruner.function
    handler = item.dep.handler
    outputs = (
        function.prune_conv_out_channels,
        function.prune_linear_out_channels,
        function.prune_batchnorm_out_channels,
    )
    if handler in outputs:
        return 0
    inputs = (function.prune_conv_in_channels, function.prune_linear_in_channels)
    return 1 if handler in inputs else None
