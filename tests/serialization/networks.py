"""Tiny networks that hold, between them, everything a file must describe."""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

IMAGES = (2, 3, 8, 8)
Maker = Callable[[], nn.Module]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(3, momentum=None)
        self.scale = nn.Parameter(torch.randn(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.scale * self.norm(self.conv(x)))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 2, 1), nn.Conv2d(2, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.up(F.silu(self.down(pooled))))


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(7, 2, 3, stride=2)
        self.pool = nn.MaxPool2d(2, ceil_mode=True)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, self.first(x).relu()], dim=1)
        x = F.max_pool2d(self.second(x), 2) - self.pool(self.second(x))[..., :1, 0:1]
        return x.view(x.size(0), -1).mean(dim=-1, keepdim=True) / x.shape[1]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True, kdim=6)
        self.norm = nn.LayerNorm(6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        attended, _ = self.attention(x, x, x, need_weights=False)
        return self.norm(x + attended)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.cell = nn.GRUCell(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, (hidden, _) = self.lstm(x)
        return self.cell(y[:, -1]), hidden.transpose(0, 1)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.helper = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, ...] | Tensor:
        y = F.dropout(self.layer(x), 0.5, training=self.training)
        return (y, self.helper(y)) if self.training else y


class Outputs(NamedTuple):
    logits: Tensor
    extra: dict[str, Tensor]


class ManyOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"main-part": nn.Linear(6, 4), "aside": nn.Linear(6, 4)})

    def forward(self, x: Tensor, scale: float = 2.0) -> Outputs:
        extra = {"aside": self.body["aside"](x), "scaled": x * scale}
        return Outputs(self.body["main-part"](x), extra)


class Optional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor, more: Tensor | None = None, *, twice: bool = False) -> Tensor:
        y = self.layer(x) if more is None else self.layer(x + more)
        return 2 * y if twice else y


class DictInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self.layer(inputs["a"]) + self.layer(inputs["b"]).abs()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.decode.weight = self.encode.weight
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.again = self.block

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.again(self.block(self.encode(x))))


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.randn(6))
        self.register_buffer("hidden", torch.randn(6), persistent=False)
        self.constant = torch.randn(6).double()
        self.layers = nn.ParameterList([torch.randn(6), torch.randn(6)])
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x.masked_fill(x < -float("inf"), float("-inf"))
        x = x + torch.arange(6, device=x.device, dtype=torch.float32).to(x.dtype)
        return (x + self.offset + self.layers[1]) * self.hidden + self.constant


def sequential(*layers: nn.Module) -> Maker:
    return lambda: nn.Sequential(*copy.deepcopy(layers))


NETWORKS: dict[str, tuple[Maker, tuple[int, ...]]] = {
    "conv": (sequential(nn.Conv2d(3, 4, 3, padding="same"), nn.ReLU(), nn.Flatten()), IMAGES),
    "residual": (Residual, IMAGES),
    "squeeze_excite": (SqueezeExcite, IMAGES),
    "dense": (Dense, IMAGES),
    "transposed": (
        sequential(
            nn.ConvTranspose2d(3, 4, 3, 2, output_padding=1, groups=1),
            nn.LocalResponseNorm(2, 0.1, 0.7),
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
            nn.PixelShuffle(2),
            nn.PReLU(1),
            nn.GroupNorm(1, 1, eps=1e-3),
            nn.InstanceNorm2d(1),
            nn.Hardtanh(-0.5, 0.5),
        ),
        IMAGES,
    ),
    "weight_norm": (lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 3))), (2, 6)),
    "attention": (Attention, (2, 5, 6)),
    "recurrent": (Recurrent, (2, 5, 6)),
    "dropping": (Dropping, (2, 6)),
    "many_outputs": (ManyOutputs, (2, 6)),
    "tied": (Tied, (2, 6)),
    "buffered": (Buffered, (2, 6)),
}
