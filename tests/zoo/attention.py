"""Transformers, gated MLPs and other readers that multiply one input by another."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import conv, linear

TOKENS, IMAGE = batch(5, 6), batch(3, 8, 8)


class Block(Net):
    """A transformer block on `nn.MultiheadAttention`."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        y, _ = self.attention(y, y, y, need_weights=False)
        x = x + y
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(x.mean(1))


class CrossBlock(Net):
    """Tokens look at memory, whose channels are those of the stream."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, memory = F.relu(self.first(x)), self.memory(y)
        mixed, shares = self.attention(self.norm(x), memory, memory)
        return self.head(x + mixed), shares


class BlockByHand(Net):
    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        mixed = self.qkv(self.norm1(x)).reshape(n, length, 3, 2, width // 2)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-2, -1)) * (width // 2) ** -0.5
        y = (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(n, length, width)
        x = x + self.out(y)
        x = x + self.down(self.act(self.up(self.norm2(x))))
        return self.head(x[:, 0])


class BlockScaledDotProduct(Net):
    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        x = x + F.scaled_dot_product_attention(query, key, value)
        x = x + self.down(F.relu(self.up(self.norm(x))))
        return self.head(x)


class AttentionOnSites(Net):
    """What attention reads comes from an activation."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        y, _ = self.attention(x, x, x)
        return self.head(F.relu(self.second(y)))


class SwiGLU(Net):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class ConvNeXtBlock(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.down(F.gelu(self.up(self.norm(y))))
        x = x + (self.scale * y).permute(0, 3, 1, 2)
        return self.head(x.mean((-2, -1)))


class MLPMixer(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.tokens_up(x.transpose(1, 2)))
        x = x + self.tokens_down(y).transpose(1, 2)
        return x + self.down(F.gelu(self.up(x)))


class EinsumReader(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = torch.einsum("ntc,cd->ntd", x, self.weight)
        return self.head(F.relu(self.second(x)))


class MatmulReader(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x)) @ self.weight
        return self.head(F.relu(self.second(x)))


class Gram(Net):
    """Two activations are multiplied over their channels."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.head(F.relu(self.second(torch.bmm(x, x.transpose(1, 2)))))


class GramByEinsum(Net):
    """The result is not written: it has what stands for the batch, and letters that occur once."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.head(F.relu(self.second(torch.einsum("...i c, ...j c", x, x))))


KINDS: tuple[Kind, ...] = (
    kind(
        "transformer_block",
        parts(
            Block,
            norm1=lambda: nn.LayerNorm(6),
            attention=lambda: nn.MultiheadAttention(6, 2, batch_first=True),
            norm2=lambda: nn.LayerNorm(6),
            up=linear(6, 11),
            down=linear(11, 6),
            head=linear(6, 3),
        ),
        TOKENS,
        (6, 11),
        (11,),
    ),
    kind(
        "cross_attention",
        parts(
            CrossBlock,
            first=linear(6, 8),
            memory=linear(5, 8),
            norm=lambda: nn.LayerNorm(8),
            attention=lambda: nn.MultiheadAttention(8, 2, batch_first=True),
            head=linear(8, 3),
        ),
        lambda: (TOKENS(), batch(7, 5)()),
        (8,),
        note="queries and keys read two streams with the columns of one weight",
    ),
    kind(
        "transformer_block_by_hand",
        parts(
            BlockByHand,
            norm1=lambda: nn.LayerNorm(6),
            qkv=linear(6, 18),
            out=linear(6, 6),
            norm2=lambda: nn.LayerNorm(6),
            up=linear(6, 11),
            act=nn.GELU,
            down=linear(11, 6),
            head=linear(6, 3),
        ),
        TOKENS,
        (3, 11),
        (11,),
    ),
    kind(
        "transformer_block_sdpa",
        parts(
            BlockScaledDotProduct,
            qkv=linear(6, 18),
            norm=lambda: nn.RMSNorm(6),
            up=linear(6, 11),
            down=linear(11, 6),
            head=linear(6, 3),
        ),
        TOKENS,
        (6, 11),
        (11,),
    ),
    kind(
        "attention_on_sites",
        parts(
            AttentionOnSites,
            first=linear(6, 8),
            attention=lambda: nn.MultiheadAttention(8, 2, batch_first=True),
            second=linear(8, 7),
            head=linear(7, 3),
        ),
        TOKENS,
        (7, 8),
        (7,),
        note="of two heads, channels within are learnt, as many as in front",
    ),
    kind(
        "encoder_layer",
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(6, 2, 11, dropout=0.0, batch_first=True),
            nn.Linear(6, 7),
            nn.ReLU(),
            nn.Linear(7, 3),
        ),
        TOKENS,
        (6, 11, 7),
        (11, 7),
        note="torch's own layer is followed: channels of its heads and hidden units are learnt",
    ),
    kind(
        "swiglu",
        parts(SwiGLU, gate=linear(6, 11), up=linear(6, 11), down=linear(11, 6)),
        TOKENS,
        (11,),
        note="tied to the rows of a layer that has no activation",
    ),
    kind(
        "convnext_block",
        parts(
            ConvNeXtBlock,
            stem=conv(3, 5),
            depthwise=lambda: nn.Conv2d(5, 5, 3, padding=1, groups=5),
            norm=lambda: nn.LayerNorm(5),
            up=linear(5, 11),
            down=linear(11, 5),
            scale=lambda: nn.Parameter(torch.rand(5)),
            head=linear(5, 3),
        ),
        IMAGE,
        (5, 11),
        (11,),
    ),
    kind(
        "mlp_mixer",
        parts(
            MLPMixer,
            tokens_up=linear(5, 9),
            tokens_down=linear(9, 5),
            up=linear(6, 11),
            down=linear(11, 6),
        ),
        TOKENS,
        (9, 11),
        (9, 11),
    ),
    kind(
        "einsum_reader",
        parts(
            EinsumReader,
            first=linear(6, 5),
            weight=lambda: nn.Parameter(torch.randn(5, 8)),
            second=linear(8, 7),
            head=linear(7, 3),
        ),
        TOKENS,
        (5, 7, 8),
        (7,),
    ),
    kind(
        "matmul_reader",
        parts(
            MatmulReader,
            first=linear(6, 5),
            weight=lambda: nn.Parameter(torch.randn(5, 8)),
            second=linear(8, 7),
            head=linear(7, 3),
        ),
        TOKENS,
        (5, 7, 8),
        (7,),
    ),
    *(
        kind(
            name,
            parts(cls, first=linear(6, 8), second=linear(5, 7), head=linear(7, 3)),
            TOKENS,
            (7, 8),
            (7,),
        )
        for name, cls in (("gram_matrix", Gram), ("gram_matrix_by_einsum", GramByEinsum))
    ),
)
