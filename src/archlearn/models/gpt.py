"""A small GPT that predicts the next token of a text, at every position at once.

Radford et al.: Language models are unsupervised multitask learners, 2019; the sizes are those of
a character model.
"""

from torch import Tensor, nn

from archlearn.models.initialization import draw_transformer_weights_, position_table
from archlearn.models.transformer_block import TransformerBlock

DIM = 192
N_BLOCKS = 6
N_HEADS = 6
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
            *(TransformerBlock(dim, N_HEADS, causal=True, dropout=DROPOUT) for _ in range(n_blocks))
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, n_tokens, bias=False)
        draw_transformer_weights_(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores for the token behind each position: batch x length x vocabulary."""
        x = self.dropout(self.tokens(tokens) + self.positions[:, : tokens.shape[1]])
        return self.head(self.norm(self.blocks(x)))


def build_gpt(length: int, n_tokens: int, factor: float) -> GPT:
    """Return a GPT whose heads, and with them all widths, are multiplied by a factor."""
    return GPT(n_tokens, length, N_HEADS * max(1, round(DIM / N_HEADS * factor)))
