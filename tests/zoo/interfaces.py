"""What goes in and comes out, and parts that cannot be followed."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import conv, linear

IMAGE, VECTOR, SEQUENCE = batch(3, 8, 8), batch(6), batch(5, 6)


class DependsOnData(Net):
    """Its forward looks at the data, so it cannot be followed."""

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) if x.sum() > 0 else self.inside(-x)


class OpaquePart(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = self.opaque(x)
        return self.head(F.relu(self.second(x)))


class LoopsOverLength(Net):
    """A loop over a tensor's length cannot be followed either."""

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x[:, 0])
        for step in range(x.size(1)):
            state = torch.tanh(self.inside(x[:, step] + state))
        return state


class Heads(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.first(x))
        return self.head(F.relu(self.second(x))), self.side(x)


class DictOutput(Net):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = F.relu(self.first(x))
        return {"class": self.head(F.relu(self.second(x))), "side": self.side(x)}


class FeatureOutput(Net):
    """The features are given out, so their number is the caller's business."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = F.relu(self.second(F.relu(self.first(x))))
        return {"features": features, "class": self.head(features)}


class SeveralInputs(Net):
    def forward(self, image: Tensor, extra: Tensor, scale: float = 1.0) -> Tensor:
        image = F.relu(self.first(image)).mean((2, 3))
        extra = F.relu(self.second(extra)) * scale
        return self.head(torch.cat([image, extra], dim=1))


class OptionalInput(Net):
    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        x = F.relu(self.first(x))
        if bias is not None:
            x = x + bias
        return self.head(F.relu(self.second(x)))


class AuxiliaryHead(Net):
    """GoogLeNet's way: a second head that is there in training only."""

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = F.relu(self.first(x))
        side = self.side(x) if self.training else None
        x = self.head(F.relu(self.second(x)))
        return (x, side) if side is not None else x


class Embedded(Net):
    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).mean(1)
        return self.head(F.relu(self.second(F.relu(self.first(x)))))


class Bagged(Net):
    """Embeddings that are averaged as they are looked up, with weights of samples elsewhere."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        scale = tokens.to(x.dtype) / 9
        x = x + F.embedding_bag(tokens, self.embedding.weight, mode="sum", per_sample_weights=scale)
        return self.head(F.relu(self.second(F.relu(self.first(x)))))


class Nested(Net):
    """Submodules in lists and dicts, called in a loop."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.heads["main"](x)


class ActivationLast(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.head(F.relu(self.first(x))))


def _nested() -> nn.Module:
    layers = nn.ModuleList([nn.Linear(6, 5), nn.Linear(5, 7)])
    return Nested(layers=layers, heads=nn.ModuleDict({"main": nn.Linear(7, 3)}))


def _opaque(part: type[Net]) -> nn.Module:
    return OpaquePart(
        first=nn.Linear(6, 5),
        opaque=part(inside=nn.Linear(5, 5)),
        second=nn.Linear(5, 7),
        head=nn.Linear(7, 3),
    )


def _heads(cls: type[Net]) -> Kind:
    build = parts(
        cls, first=linear(6, 5), second=linear(5, 7), side=linear(5, 2), head=linear(7, 3)
    )
    return kind(cls.__name__, build, VECTOR, (5, 7), (7,))


KINDS: tuple[Kind, ...] = (
    *(_heads(cls) for cls in (Heads, DictOutput, AuxiliaryHead)),
    kind(
        "feature_output",
        parts(FeatureOutput, first=linear(6, 5), second=linear(5, 7), head=linear(7, 3)),
        VECTOR,
        (5,),
        (5,),
    ),
    kind(
        "several_inputs",
        parts(SeveralInputs, first=conv(3, 5), second=linear(6, 7), head=linear(12, 3)),
        lambda: (torch.randn(4, 3, 8, 8), torch.randn(4, 6)),
        (5, 7),
    ),
    kind(
        "keyword_inputs",
        parts(SeveralInputs, first=conv(3, 5), second=linear(6, 7), head=linear(12, 3)),
        lambda: {"extra": torch.randn(4, 6), "image": torch.randn(4, 3, 8, 8)},
        (5, 7),
    ),
    kind(
        "optional_input_left_out",
        parts(OptionalInput, first=linear(6, 5), second=linear(5, 7), head=linear(7, 3)),
        VECTOR,
        (5, 7),
        (5, 7),
    ),
    kind("opaque_if", lambda: _opaque(DependsOnData), VECTOR, (7,), (7,)),
    kind("opaque_loop", lambda: _opaque(LoopsOverLength), SEQUENCE, (7,), (7,)),
    kind(
        "embedding",
        parts(
            Embedded,
            embedding=lambda: nn.Embedding(9, 6),
            first=linear(6, 5),
            second=linear(5, 7),
            head=linear(7, 3),
        ),
        lambda: torch.randint(0, 9, (4, 5)),
        (5, 6, 7),
        (5, 7),
    ),
    kind(
        "embedding_bag",
        parts(
            Bagged,
            embedding=lambda: nn.EmbeddingBag(9, 6),
            first=linear(6, 5),
            second=linear(5, 7),
            head=linear(7, 3),
        ),
        lambda: torch.randint(0, 9, (4, 5)),
        (5, 6, 7),
        (5, 7),
    ),
    kind("nested_containers", _nested, VECTOR, (5, 7), (5, 7)),
    kind(
        "activation_last",
        parts(ActivationLast, first=linear(6, 5), head=linear(5, 3)),
        VECTOR,
        (5,),
        (5,),
        note="the output's own activation is never narrowed",
    ),
)
