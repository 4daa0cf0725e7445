"""How many neurons go with each gate, as the network is now.

A gate of a residual stream, of a head, of a convolution's group or of a branch stands for many
neurons: it earns what they earn together, and costs what they cost together.
"""

import torch
from torch import Tensor

from archlearn.gating.selection import LearnableSites


class NeuronCounts:
    """Counts the open neurons of a network by the gates that they go with.

    Called with which width gates are open and which branches are closed, it returns the neurons of
    each width gate and of each branch, at least one. Those of a closed gate are the ones that would
    come back with it. What `shrink_` has cut out was not counted before, so nothing changes by it.
    """

    def __init__(self, learnable: LearnableSites) -> None:
        self._n_width = sum(group.channels.numel() for group in learnable.channel_graph.groups)
        layers, rows = zip(*learnable.rows, strict=True) if learnable.rows else ((), ())
        places = learnable.channel_graph.gate_places()[learnable.channel_graph.parents]
        no_gate = torch.where(places < 0, self._n_width, places)
        # Where gates of a neuron are the same, it goes with the one, and an open one beside.
        no_gate[1:][no_gate[1:] == no_gate[0]] = self._n_width
        self._gates = torch.cat([no_gate[:, channels] for channels in rows] + [no_gate[:, :0]], 1)
        sizes = torch.tensor([len(channels) for channels in rows], dtype=torch.long, device="cpu")
        self._layer = torch.repeat_interleave(torch.arange(len(rows), device="cpu"), sizes)
        inside = [[name in b.layers for name in layers] for b in learnable.branches.values()]
        self._inside = torch.tensor(inside, dtype=torch.float64, device="cpu").view(
            len(inside), len(rows)
        )

    def __call__(self, opened: Tensor, closed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the neurons of each width gate, and of each branch, in float64."""
        if self._gates.device != opened.device:
            for name in ("_gates", "_layer", "_inside"):
                setattr(self, name, getattr(self, name).to(opened.device))
        is_open = torch.cat([opened, opened.new_ones(1)])[self._gates]
        is_there = ((closed @ self._inside) == 0).to(opened.dtype)[self._layer]
        widths = opened.new_zeros(self._n_width + 1)
        other = is_there * is_open.roll(1, 0) * is_open.roll(2, 0)
        widths.index_add_(0, self._gates.view(-1), other.view(-1))
        by_layer = opened.new_zeros(self._inside.shape[1])
        by_layer.index_add_(0, self._layer, is_open.prod(0))
        return widths[:-1].clamp(min=1.0), (self._inside @ by_layer).clamp(min=1.0)
