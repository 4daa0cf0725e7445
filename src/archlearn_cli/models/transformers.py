"""A small ViT, GPT and MLP-Mixer.

Dosovitskiy et al.: An image is worth 16x16 words, ICLR 2021. Radford et al.: Language models are
unsupervised multitask learners, 2019. Tolstikhin et al.: MLP-Mixer, NeurIPS 2021.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_DEVIATION = 0.02
"""Of weights as they start."""


class Attention(nn.Module):
    """Self-attention of several heads by torch's `scaled_dot_product_attention`.

    Where it is causal, a token sees only itself and those before it.
    """

    def __init__(self, dim: int, n_heads: int, *, causal: bool) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.causal = causal
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return each token's mixture of those that it sees."""
        n, length, dim = x.shape
        heads = self.qkv(x).reshape(n, length, 3, self.n_heads, dim // self.n_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(n, length, dim))


class TransformerBlock(nn.Module):
    """Pre-norm attention and an MLP of four times the width with GELU."""

    def __init__(
        self, dim: int, n_heads: int, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, n_heads, causal=causal)
        self.norm2 = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream behind the block."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


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


GPT_HEADS = 6
DROPOUT = 0.1


class GPT(nn.Module):
    """Tokens and learnt positions, causal pre-norm blocks, and a head of its own.

    Args:
        n_tokens: Size of the vocabulary.
        length: The longest context, in tokens.
        dim: Width of a token; a multiple of 6.
        n_blocks: Number of blocks.
    """

    def __init__(
        self, n_tokens: int, length: int = 128, dim: int = DIM, n_blocks: int = N_BLOCKS
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(n_tokens, dim)
        self.positions = position_table(length, dim)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(
            *(
                TransformerBlock(dim, GPT_HEADS, causal=True, dropout=DROPOUT)
                for _ in range(n_blocks)
            )
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, n_tokens, bias=False)
        draw_transformer_weights_(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores for the token behind each position: batch x length x vocabulary."""
        x = self.dropout(self.tokens(tokens) + self.positions[:, : tokens.shape[1]])
        return self.head(self.norm(self.blocks(x)))


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


@torch.no_grad()
def draw_transformer_weights_(net: nn.Module) -> None:
    """Draw linear layers and embeddings from a narrow normal, as GPT-2 and ViT do; biases are zero.

    Convolutions, which only cut images into patches, keep torch's own start.
    """
    for layer in net.modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(layer.weight, std=_DEVIATION)
            bias: Tensor | None = getattr(layer, "bias", None)
            if bias is not None:
                bias.zero_()


def position_table(n_positions: int, dim: int) -> nn.Parameter:
    """Return a learnt vector for each position, to be added to a batch of tokens."""
    table = torch.empty(1, n_positions, dim)
    return nn.Parameter(nn.init.trunc_normal_(table, std=_DEVIATION))
