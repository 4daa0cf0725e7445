"""What is written out by hand is known for what it is: GELU, a layer by addmm, losses, sizes."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archlearn as al

EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}
X = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def gelu_tanh(x: Tensor) -> Tensor:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


def gelu_erf(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def almost_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.04 * x * x * x)))


class Columns(nn.Module):
    """A layer as GPT-2 has it: one column of the weight for each output."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.n_out = n_out
        self.weight = nn.Parameter(torch.randn(n_in, n_out) / n_in)
        self.bias = nn.Parameter(torch.randn(n_out))

    def forward(self, x: Tensor) -> Tensor:
        size = x.size()[:-1] + (self.n_out,)  # noqa: RUF005
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size)


class Net(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor], layer: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.second = layer(4, 8), layer(8, 2)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.activation(self.first(x)))


def check(net: nn.Module, inputs: Any, fresh: Any) -> nn.Module:
    """Close some gates of a model; return its compact one, which must do the same."""
    gated = al.add_gates(net, inputs)
    torch.testing.assert_close(gated(*fresh), net(*fresh), **EXACT)
    (gates,) = al.width_gates(gated).values()
    assert len(gates) == 8
    with torch.no_grad():
        gates[[1, 2, 6]] = 0.2
    small = al.compact(gated)
    torch.testing.assert_close(small(*fresh), gated(*fresh), **EXACT)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in net.parameters())
    return small


@pytest.mark.parametrize("layer", [nn.Linear, Columns])
@pytest.mark.parametrize("activation", [gelu_tanh, gelu_erf])
def test_a_gelu_that_is_written_out_is_learnt(
    activation: Callable[[Tensor], Tensor], layer: type[nn.Module], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    small = check(Net(activation, layer).double().eval(), X, (torch.cat([X, X]),))
    al.save(small, tmp_path / "small.safetensors", X)
    loaded = al.load(tmp_path / "small.safetensors")
    torch.testing.assert_close(loaded(X), small(X), **EXACT)


def test_what_is_only_like_a_gelu_is_left_as_it_is() -> None:
    check(Net(almost_gelu, nn.Linear).double(), X, (torch.cat([X, X]),))


class MadeInForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        y = self.second(nn.Sequential(nn.ReLU(), nn.Dropout(0.5).eval())(self.first(x)))
        return nn.CrossEntropyLoss()(y.flatten(0, 1), labels.flatten()), y


def test_modules_made_in_forward_are_followed() -> None:
    labels = torch.tensor([0, 1]).repeat(15)[:15].view(3, 5)
    check(MadeInForward().double().eval(), (X, labels), (2 * X, 1 - labels))


class Padded(nn.Module):
    """A layer that needs a size as a number, as TensorFlow's padding does."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(5, 8, 3)
        self.activation: Callable[[Tensor], Tensor] = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        missing = int(math.ceil(x.shape[-1] / 3) * 3) - int(x.shape[-1])
        return self.activation(self.first(nn.functional.pad(x, (0, missing))))


class OfPadded(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.last = layer, nn.Conv1d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x))


def test_a_size_as_a_number_does_not_hide_a_layer() -> None:
    small = check(OfPadded(Padded()).double().eval(), X, (torch.cat([X, X]),))
    with pytest.raises(al.InputError, match=r"what forward asks at test_written_out\.py"):
        small(torch.randn(3, 5, 9, dtype=torch.float64))


class PaddedByFunction(Padded):
    def __init__(self) -> None:
        super().__init__()
        del self.activation
        self.activation = torch.relu


def test_a_part_that_takes_all_sizes_says_how_it_would_be_followed() -> None:
    with pytest.raises(
        al.InputError,
        match=r"layer was not looked into: .* it is followed, for the example's size",
    ):
        al.add_gates(OfPadded(PaddedByFunction()), X.float())


class FirstCall(nn.Module):
    """Sets a flag when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
        self.is_ready = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_ready:
            self.is_ready = True
        return self.second(torch.relu(self.first(x)))


def test_a_flag_that_the_first_call_sets_is_set() -> None:
    net = nn.Sequential(FirstCall()).double()
    small: Any = check(net, X, (2 * X,))
    assert small[0].is_ready
