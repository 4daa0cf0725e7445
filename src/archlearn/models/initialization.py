"""Random start weights of convolutional networks and of transformers."""

import torch
from torch import Tensor, nn

_TRANSFORMER_DEVIATION = 0.02


@torch.no_grad()
def draw_weights_(net: nn.Module) -> None:
    """Draw every weight so that a ReLU layer keeps the size of what it reads; biases are zero."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                layer.bias.zero_()


@torch.no_grad()
def draw_transformer_weights_(net: nn.Module) -> None:
    """Draw linear layers and embeddings from a narrow normal, as GPT-2 and ViT do; biases are zero.

    Convolutions, which only cut images into patches, keep torch's own start.
    """
    for layer in net.modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(layer.weight, std=_TRANSFORMER_DEVIATION)
            bias: Tensor | None = getattr(layer, "bias", None)
            if bias is not None:
                bias.zero_()


def position_table(n_positions: int, dim: int) -> nn.Parameter:
    """Return a learnt vector for each position, to be added to a batch of tokens."""
    table = torch.empty(1, n_positions, dim)
    return nn.Parameter(nn.init.trunc_normal_(table, std=_TRANSFORMER_DEVIATION))
