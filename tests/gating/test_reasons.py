"""What is not learnt has the true reason, and advice that fits it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import archlearn as al

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Swish(torch.autograd.Function):
    """An activation that saves memory by a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradients[0] * s * (1 + x * (1 - s))


class CallsFunction(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return Swish.apply(x)


class WithoutGradients(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return x * 2


def net(*between: nn.Module) -> nn.Sequential:
    first, last = nn.Conv2d(3, 8, 3), [nn.Conv2d(8, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 1)]
    return nn.Sequential(first, *between, *last)


def test_a_function_with_its_own_backward_is_named() -> None:
    reason = al.inspect(net(CallsFunction()), X).opaque["1"]
    assert "Swish, a torch.autograd.Function" in reason
    assert "no_grad" not in reason

    class Itself(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 8, 3)

        def forward(self, x: Tensor) -> Any:
            return Swish.apply(self.layer(x))

    with pytest.raises(al.TracingError, match=r"Swish, a torch\.autograd\.Function"):
        al.add_gates(Itself(), X)


def test_no_grad_is_still_blamed_where_it_is_the_reason() -> None:
    assert "torch.no_grad" in al.inspect(net(WithoutGradients()), X).opaque["1"]


def test_a_norm_over_channels_in_front_of_an_activation_is_named() -> None:
    row = al.inspect(net(nn.LayerNorm([8, 6, 6]), nn.ReLU()), X).rows[0]
    assert not row.width
    assert "normalised together with other channels by '1'" in row.reason


def test_an_unknown_part_in_front_of_an_activation_is_named() -> None:
    row = al.inspect(net(CallsFunction(), nn.ReLU()), X).rows[0]
    assert "read by '1', which may mix channels" in row.reason


class ResponseNorm(nn.Module):
    """Global response normalisation (ConvNeXt V2) of images with channels last."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(n)), nn.Parameter(torch.rand(n))

    def forward(self, x: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(x, 2, (1, 2), keepdim=True)
        size = size / (size.mean(-1, keepdim=True) + 1e-6)
        return self.weight * (x * size) + self.bias + x


class ConvNextBlock(nn.Module):
    def __init__(self, *, has_response_norm: bool) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.LayerNorm(8)
        self.widen, self.back = nn.Linear(8, 12), nn.Linear(12, 8)
        self.response = ResponseNorm(12) if has_response_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.back(self.response(F.gelu(self.widen(y))))
        return x + y.permute(0, 3, 1, 2)


def convnext(*, has_response_norm: bool) -> nn.Module:
    block = ConvNextBlock(has_response_norm=has_response_norm)
    return nn.Sequential(nn.Conv2d(3, 8, 2, 2), block, nn.Flatten(), nn.Linear(128, 2))


def test_the_channels_of_a_response_norm_are_learnt_exactly() -> None:
    torch.manual_seed(0)
    model = al.add_gates(convnext(has_response_norm=True).double(), X.double()).eval()
    with torch.no_grad():
        al.width_gates(model)["1.widen"][::3] = 0.1
    small = al.compact(model)
    x = torch.randn_like(X, dtype=torch.float64)
    torch.testing.assert_close(small(x), model(x), rtol=0, atol=1e-10)
    assert small.get_submodule("1.widen").out_features == 8


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.std(1, keepdim=True)


def test_a_norm_by_hand_over_channels_is_named_and_not_another_one() -> None:
    row = al.inspect(net(Centred(), nn.ReLU()), X).rows[0]
    assert not row.width
    assert "std() at test_reasons.py:" in row.reason
    assert "is taken over its channels" in row.reason


class Multiplied(nn.Module):
    """What something unknown returns meets channels: they stay because of that, not of the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(F.relu(self.first(x)))
        y = F.relu(self.second(x))
        return self.head(y * y.sort(-1)[0])


def test_channels_that_are_tied_to_something_fixed_have_their_own_reason() -> None:
    rows = {row.name: row for row in al.inspect(Multiplied(), torch.randn(3, 6)).rows}
    assert rows["first"].width
    assert "sort() at test_reasons.py" in rows["second"].reason


class Standardised(nn.Module):
    """Weight standardisation in `forward`, as in networks without norms."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True))


def test_a_weight_that_forward_computes_is_named_in_front_and_behind() -> None:
    rows = al.inspect(nn.Sequential(*net(nn.ReLU()), nn.ReLU(), Standardised(2, 4)), X).rows
    assert "conv2d() at test_reasons.py:" in rows[-1].reason
    behind = nn.Sequential(Standardised(3, 4), nn.ReLU(), nn.Conv2d(4, 2, 3))
    (row,) = al.inspect(behind, X).rows
    assert "has a weight or bias that forward computes" in row.reason
    assert "parametrize" in row.fix


class LargestLabel(TorchDispatchMode):
    """Notes the largest tensor of whole numbers that is made."""

    n = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.dtype is torch.int64:
            self.n = max(self.n, out.untyped_storage().nbytes() // 8)
        return out


def test_the_elements_of_a_weight_that_is_computed_have_no_labels() -> None:
    net = nn.Sequential(nn.Conv2d(3, 40, 1), nn.ReLU(), Standardised(40, 40))
    with LargestLabel() as label:
        assert "that forward computes" in al.inspect(net, X).rows[0].reason
    assert label.n < 40 * 40 * 9


class Centring(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight - weight.mean((1, 2, 3), keepdim=True)


def test_a_weight_that_a_parametrization_computes_is_learnt_as_the_advice_says() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).double()
    torch.nn.utils.parametrize.register_parametrization(model[0], "weight", Centring())
    gated = al.add_gates(model, X.double()).eval()
    with torch.no_grad():
        al.width_gates(gated)["0"][:2] = 0.1
    small = al.compact(gated)
    torch.testing.assert_close(small(X.double()), gated(X.double()), rtol=0, atol=1e-10)


class Gated(nn.Module):
    """What is added to the result of a product by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.first, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 2)
        self.mixing = nn.Parameter(torch.rand(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.silu(self.gate(x)) + self.mix(F.relu(self.first(x))))

    def mix(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,ij,j->...j", x, self.mixing, self.mixing[0])


def test_channels_that_meet_unknown_ones_are_told_which() -> None:
    rows = {row.name: row for row in al.inspect(Gated(), torch.randn(3, 6)).rows}
    assert "read by einsum() at test_reasons.py:" in rows["first"].reason
    assert "make it an nn.Linear" in rows["first"].fix
    assert "tied by add() at test_reasons.py:" in rows["gate"].reason
    assert "read by einsum() at test_reasons.py:" in rows["gate"].reason
