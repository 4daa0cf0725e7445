"""Group sparse learning: weak channels are pulled to zero harder than strong ones.

Torch-Pruning's GroupNormPruner adds `reg * 16^s * w` to the gradient of every weight of a channel,
where s goes from 0 for the strongest channel of a group to 1 for the weakest. That is the gradient
of a penalty, which here rides on the network's output; a test holds it to Torch-Pruning's own
numbers. Where a convolution has groups, Torch-Pruning 1.6.1 raises an IndexError; here each channel
is pulled by the weights that read it.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from archlearn_paper.baselines.penalised_module import Penalised
from archlearn_paper.baselines.torch_pruning_methods import import_torch_pruning, make_pruner

STRENGTH = 5e-4
STEEPNESS = 16.0


@dataclass(frozen=True, slots=True)
class _Part:
    """One weight of a group; its indices and channels are buffers under `key`.

    Attributes:
        n_parts: Parts of the weight that read different channels: those of a grouped convolution.
    """

    weight: str
    dim: int
    key: str
    n_parts: int


class GroupPenalty(nn.Module):
    """The penalty of a network's groups of channels.

    Attributes:
        strength: How hard the strongest channel of a group is pulled.
    """

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
        lines = torch.cat([each.reshape(len(each), -1).square().sum(1) for each in moved])
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
