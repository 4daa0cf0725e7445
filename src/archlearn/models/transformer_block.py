"""Transformer block shared by ViT and GPT: attention and an MLP, each behind a LayerNorm.

Xiong et al.: On layer normalization in the transformer architecture, ICML 2020 (pre-norm).
"""

import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Self-attention of several heads by torch's `scaled_dot_product_attention`.

    Args:
        dim: Width of a token; a multiple of the number of heads.
        n_heads: Number of heads.
        causal: Whether a token sees only itself and those before it.
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
