"""Two neurons that are alike become one that speaks for both.

Neuron i computes `a_i act(W_i x + b_i)` towards each neuron behind it. If `W_i` is near `W_j`,
then j can go, and `a_j` is added to `a_i`. What that changes is bounded by the saliency
`||a_j||^2 (||W_i - W_j||^2 + (b_i - b_j)^2)`, which needs no data (Srinivas and Babu 2015,
"Data-free parameter pruning for deep neural networks").
"""

import torch
from torch import Tensor


class Neurons:
    """The neurons of one layer, merged pair by pair.

    Attributes:
        outgoing: What each neuron tells those behind it; a merged one tells nothing.
        is_kept: Whether each neuron is still there.
    """

    def __init__(self, incoming: Tensor, outgoing: Tensor) -> None:
        """Take a layer's weights.

        Args:
            incoming: One row a neuron: its weights and its bias.
            outgoing: One row a neuron: the weights by which the neurons behind read it.
        """
        self.outgoing = outgoing.detach().double().clone()
        self.is_kept = torch.ones(len(incoming), dtype=torch.bool)
        rows = incoming.detach().double()
        self._distances = torch.cdist(rows, rows).square().fill_diagonal_(torch.inf)
        self._nearest = self._distances.min(1)
        self._distance, self._partner = self._nearest.values, self._nearest.indices
        self._weight = self.outgoing.square().sum(1)
        self._energy = (self._weight * rows.square().sum(1)).sum().clamp_min(1e-300).item()

    def __len__(self) -> int:
        """Return how many neurons are left."""
        return int(self.is_kept.sum())

    def saliency(self) -> float:
        """Return the saliency of the next merge."""
        return self._saliencies().min().item()

    def harm(self) -> float:
        """Return the saliency of the next merge as a part of what the whole layer says."""
        return self.saliency() / self._energy

    def close(self) -> None:
        """Merge the two neurons that are most alike."""
        gone = int(self._saliencies().argmin())
        heir = int(self._partner[gone])
        self.outgoing[heir] += self.outgoing[gone]
        self.outgoing[gone] = 0.0
        self._weight[heir] = self.outgoing[heir].square().sum()
        self.is_kept[gone] = False
        self._distances[:, gone] = torch.inf
        self._distance[gone] = torch.inf
        for orphan in torch.nonzero(self.is_kept & (self._partner == gone)).flatten().tolist():
            self._distance[orphan], self._partner[orphan] = self._distances[orphan].min(0)

    def _saliencies(self) -> Tensor:
        """Return what it costs to merge each neuron into the one nearest to it."""
        costs = self._weight * self._distance
        return torch.where(self.is_kept, costs, torch.inf).nan_to_num(nan=torch.inf)
