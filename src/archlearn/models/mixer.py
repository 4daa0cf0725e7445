"""A small MLP-Mixer for images of 32 x 32: MLPs over the patches and over the channels, in turn.

Tolstikhin et al.: MLP-Mixer: an all-MLP architecture for vision, NeurIPS 2021.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from archlearn.models.initialization import draw_transformer_weights_

PATCH = 4
DIM = 192
N_BLOCKS = 6


class MixerBlock(nn.Module):
    """An MLP over the tokens, half as wide as they are, and one over the channels, four times."""

    def __init__(self, n_tokens: int, dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.tokens_up = nn.Linear(n_tokens, dim // 2)
        self.tokens_down = nn.Linear(dim // 2, n_tokens)
        self.norm2 = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream behind the block."""
        y = self.norm1(x).transpose(1, 2)
        x = x + self.tokens_down(F.gelu(self.tokens_up(y))).transpose(1, 2)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Mixer(nn.Module):
    """Patches as tokens, Mixer blocks, mean over the tokens, and a linear classifier."""

    def __init__(
        self,
        n_channels: int = 3,
        side: int = 32,
        n_outputs: int = 10,
        dim: int = DIM,
        n_blocks: int = N_BLOCKS,
    ) -> None:
        super().__init__()
        n_tokens = (side // PATCH) ** 2
        self.patches = nn.Conv2d(n_channels, dim, PATCH, stride=PATCH)
        self.blocks = nn.Sequential(*(MixerBlock(n_tokens, dim) for _ in range(n_blocks)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, n_outputs)
        draw_transformer_weights_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return one score for each class."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))
