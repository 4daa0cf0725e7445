"""Every way of writing an activation."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.kinds import Kind, Net, batch, kind, parts
from tests.zoo.layers import chain, conv, linear

IMAGE = batch(3, 8, 8)
VECTOR = batch(6)


class FunctionalReLU(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = torch.relu(self.second(x))
        return self.head(x.mean((2, 3)).relu())


class MethodReLU(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.head(self.second(x).relu_())


class ReadAgain(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).relu())
        F.relu(x, inplace=True)
        return self.head(x)


class MethodAsStatement(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).relu())
        x.relu_()
        return self.head(x)


class InplaceReLU(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x), inplace=True)
        x = self.act(self.second(x))
        return self.head(x)


class OneModuleManyCalls(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(x))
        x = self.relu(self.second(x))
        return self.head(self.relu(self.third(x)))


class ReLUOfReLU(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(F.relu(self.first(x))))


class ClampAsReLU(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).clamp(min=0)
        return self.head(F.relu(self.second(x)))


class TwoReadersOfOneLayer(Net):
    """The layer's output is read both behind the activation and in front of it."""

    def forward(self, x: Tensor) -> Tensor:
        before = self.first(x)
        x = F.relu(self.second(F.relu(before)) + self.side(before))
        return self.head(x)


class Swish(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x * torch.sigmoid(x)
        return self.head(F.relu(self.second(x)))


class InputActivated(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.first(F.relu(x))))


def _chain(act: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return chain(conv(3, 5), act, conv(5, 7), act, conv(7, 4, 1))


def _functional(cls: type[Net]) -> Callable[[], nn.Module]:
    return parts(
        cls, first=conv(3, 5), second=conv(5, 7), head=conv(7, 4), act=lambda: nn.ReLU(True)
    )


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu_inplace": lambda: nn.ReLU(inplace=True),
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "hardswish": nn.Hardswish,
    "relu6": nn.ReLU6,
    "elu": nn.ELU,
    "celu": nn.CELU,
    "selu": nn.SELU,
    "leaky_relu": lambda: nn.LeakyReLU(0.1, inplace=True),
    "tanh": nn.Tanh,
    "mish": nn.Mish,
    "softsign": nn.Softsign,
}
# These are not zero at zero; the gate behind them is, so a channel can still go.
SHIFTED: dict[str, Callable[[], nn.Module]] = {
    "sigmoid": nn.Sigmoid,
    "hardsigmoid": nn.Hardsigmoid,
    "softplus": nn.Softplus,
}

KINDS: tuple[Kind, ...] = (
    *(kind(f"module_{n}", _chain(a), IMAGE, (5, 7), (7,)) for n, a in ACTIVATIONS.items()),
    *(kind(f"module_{n}", _chain(a), IMAGE, (5, 7), (7,)) for n, a in SHIFTED.items()),
    kind("prelu_one", _chain(nn.PReLU), IMAGE, (5, 7), note="with weights of its own, no depth"),
    kind(
        "prelu_per_channel",
        chain(conv(3, 5), lambda: nn.PReLU(5), conv(5, 7), lambda: nn.PReLU(7), conv(7, 4)),
        IMAGE,
        (5, 7),
        note="the slopes are narrowed with the channels",
    ),
    kind(
        "functional_relu",
        parts(FunctionalReLU, first=conv(3, 5), second=conv(5, 7), head=linear(7, 4)),
        IMAGE,
        (5, 7),
        note="the second and the last activation hold the same channels",
    ),
    kind("method_relu", _functional(MethodReLU), IMAGE, (5, 7)),
    kind(
        "inplace_relu_read_again",
        _functional(ReadAgain),
        IMAGE,
        (5,),
        note="what is read again after a change in place is not followed",
    ),
    kind("method_relu_as_statement", _functional(MethodAsStatement), IMAGE, (5, 7)),
    kind("inplace_relu", _functional(InplaceReLU), IMAGE, (5, 7)),
    kind(
        "clamp_as_relu",
        _functional(ClampAsReLU),
        IMAGE,
        (5, 7),
        note="clamp is no activation: its channels are gated where they are read",
    ),
    kind("swish_by_hand", _functional(Swish), IMAGE, (5, 7)),
    kind(
        "one_relu_called_three_times",
        parts(
            OneModuleManyCalls,
            first=linear(6, 5),
            second=linear(5, 7),
            third=linear(7, 8),
            head=linear(8, 3),
            relu=nn.ReLU,
        ),
        VECTOR,
        (5, 7, 8),
        (5, 7, 8),
    ),
    kind(
        "relu_of_relu",
        parts(ReLUOfReLU, first=linear(6, 5), head=linear(5, 3)),
        VECTOR,
        (5,),
    ),
    kind(
        "two_readers_of_one_layer",
        parts(
            TwoReadersOfOneLayer,
            first=linear(6, 5),
            second=linear(5, 7),
            side=linear(5, 7),
            head=linear(7, 3),
        ),
        VECTOR,
        (5, 7),
        note="the second reader reads the first layer without an activation",
    ),
    kind(
        "activation_on_the_input",
        parts(InputActivated, first=linear(6, 5), head=linear(5, 3)),
        VECTOR,
        (5,),
        (5,),
        note="the input's channels are not ours to drop",
    ),
)
