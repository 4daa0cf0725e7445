"""A small vision transformer for images of 32 x 32: patches of 4 x 4, mean over the tokens.

Dosovitskiy et al.: An image is worth 16x16 words, ICLR 2021.
"""

from torch import Tensor, nn

from archlearn.models.initialization import draw_transformer_weights_, position_table
from archlearn.models.transformer_block import TransformerBlock

PATCH = 4
DIM = 192
N_BLOCKS = 6
N_HEADS = 3


class ViT(nn.Module):
    """Patches as tokens, learnt positions, pre-norm blocks, and a linear classifier."""

    def __init__(
        self,
        n_channels: int = 3,
        side: int = 32,
        n_outputs: int = 10,
        dim: int = DIM,
        n_blocks: int = N_BLOCKS,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(n_channels, dim, PATCH, stride=PATCH)
        self.positions = position_table((side // PATCH) ** 2, dim)
        self.blocks = nn.Sequential(*(TransformerBlock(dim, N_HEADS) for _ in range(n_blocks)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, n_outputs)
        draw_transformer_weights_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return one score for each class."""
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(x)).mean(1))
