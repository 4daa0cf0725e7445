"""A layer may be called with its input by name, or with more than its input."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

import archlearn as al


class ByName(nn.Module):
    """Every call names its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 8), nn.Linear(8, 6), nn.Linear(6, 2)
        self.norm, self.activation = nn.BatchNorm1d(6), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(input=self.first(input=x))
        x = F.gelu(input=self.norm(input=self.second(input=x)))
        return self.last(input=x)


class WithSize(nn.Module):
    """A transposed convolution is told how large its output is to be."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 6, 3, 1, 1), nn.Conv2d(6, 8, 3, 2, 1)
        self.up, self.last = nn.ConvTranspose2d(8, 6, 3, 2, 1), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        back = self.up(torch.relu(self.down(x)), output_size=x.size())
        return self.last(x + torch.relu(back))


class WithSizeBehind(WithSize):
    """The size is given by position."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        back = self.up(torch.relu(self.down(x)), x.shape[2:])
        return self.last(x + torch.relu(back))


def check_exact(net: nn.Module, example: Tensor, other: Tensor) -> nn.Module:
    model = al.add_gates(net.double(), example).eval()
    torch.testing.assert_close(model(other), net.eval()(other))
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate[::2] = 0.1
        for gate in al.depth_gates(model).values():
            gate.fill_(0.9)
    small = al.compact(model)
    torch.testing.assert_close(small(other), model(other), rtol=0, atol=1e-10)
    return model


def test_layers_whose_input_is_named_are_learnt() -> None:
    torch.manual_seed(0)
    model = check_exact(ByName(), torch.randn(3, 5).double(), torch.randn(4, 5).double())
    assert set(al.width_gates(model)) == set(al.depth_gates(model)) == {"first", "second"}


@pytest.mark.parametrize("network", [WithSize, WithSizeBehind])
def test_a_layer_that_is_told_its_size_is_told_so_behind_gates(network: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = check_exact(
        network(), torch.randn(2, 3, 8, 8).double(), torch.randn(3, 3, 9, 8).double()
    )
    assert set(al.width_gates(model)) == {"first", "down"}


@fx.wrap
def shrink_windows(windows: list[int], size: int) -> list[int]:
    for place, window in enumerate(windows):
        windows[place] = min(window, size)
    return windows


class ChangesAList(nn.Module):
    """A function that is called as it is changes a list that it is given, as in swin3d."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 8, 1)
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x))
        first, second = shrink_windows([2, 9], x.size(-1))
        return self.out(x[:, :, :first].mean(-1) + x[:, :, :second].mean(-1))


def test_a_list_that_is_changed_in_place_is_a_list() -> None:
    torch.manual_seed(0)
    net, x = ChangesAList().double().eval(), torch.randn(3, 3, 5, dtype=torch.float64)
    gated = al.add_gates(net, x)
    with torch.no_grad():
        al.width_gates(gated)["conv"][:4] = 0.1
    small = al.compact(gated)
    torch.testing.assert_close(small(x), gated(x), rtol=1e-10, atol=1e-10)
    assert small.conv.out_channels == 4
    shorter = x[:, :, :1]
    torch.testing.assert_close(small(shorter), gated(shorter), rtol=1e-10, atol=1e-10)


@fx.wrap
def swap(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


@fx.wrap
def count_up(x: Tensor) -> Tensor:
    for place in range(int(x.sum() > 1e9) + 2):
        x = x + place
    return x


@fx.wrap
def mask_like(x: Tensor) -> Tensor:
    mask = x.new_zeros(x.shape[0], x.shape[1])
    mask[:, 0] = 1.0
    return mask


def swap_both(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch.jit is deprecated, in 2.15 by a FutureWarning
    scripted_swap = torch.jit.script(swap_both)


class Hidden(nn.Module):
    """Channels pass a function that torch.fx.wrap or torch.jit.script would hide."""

    def __init__(self, function: str) -> None:
        super().__init__()
        self.first, self.second, self.function = nn.Linear(5, 8), nn.Linear(8, 2), function

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        if self.function == "swap":
            x = swap(x).transpose(1, 2)
        elif self.function == "count_up":
            x = count_up(x)
        elif self.function == "mask_like":
            x = x * mask_like(x)[..., None]
        else:
            x = scripted_swap(x).transpose(1, 2)
        return self.second(x)


@pytest.mark.parametrize("function", ["swap", "scripted_swap", "mask_like"])
def test_functions_that_fx_or_script_hide_are_followed(function: str) -> None:
    torch.manual_seed(0)
    net = Hidden(function)
    model = check_exact(net, torch.randn(3, 4, 5).double(), torch.randn(2, 4, 5).double())
    assert set(al.width_gates(model)) == {"first"}


def test_a_wrapped_function_that_asks_for_numbers_is_one_call() -> None:
    net = Hidden("count_up").double()
    with pytest.raises(al.InputError, match="read by count_up"):
        al.add_gates(net, torch.randn(3, 4, 5).double())


class TensorOfASize(nn.Module):
    """Divides by the root of a size, as RAFT and attention by hand do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)
        self.scale = Scale()

    def forward(self, x: Tensor) -> Tensor:
        x = self.scale(torch.relu(self.first(x)))
        height, width = x.shape[1:]
        return self.second(x) / torch.tensor([height, width], dtype=x.dtype).sum()


class Scale(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt(torch.tensor(x.shape[-1])) + torch.as_tensor(x.size(1)) * x


def test_a_tensor_may_be_made_of_a_size() -> None:
    torch.manual_seed(0)
    net, x = TensorOfASize().double().eval(), torch.randn(3, 5, 6, dtype=torch.float64)
    gated = al.add_gates(net, x)
    torch.testing.assert_close(gated(x), net(x), rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        al.width_gates(gated)["first"][:4] = 0.1
    small = al.compact(gated)
    assert small.first.out_features == 4
    for other in (x, x[:, :2], x[:1]):  # the size is no constant
        torch.testing.assert_close(gated(other), small(other), rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        al.width_gates(gated)["first"].fill_(0.9)
    torch.testing.assert_close(gated(x[:, :2]), net(x[:, :2]), rtol=1e-12, atol=1e-12)


class AsksForLayout(nn.Module):
    """A block that takes sparse tensors as well, as those of torch_geometric do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        if edges.layout == torch.sparse_coo or edges.is_sparse:
            edges = edges.to_dense()
        near = torch.zeros_like(x).index_add(0, edges[1], x.index_select(0, edges[0]))
        return self.second(torch.relu(self.first(near + x)))


def test_a_model_may_ask_whether_a_tensor_is_sparse() -> None:
    torch.manual_seed(0)
    net = nn.ModuleDict({"block": AsksForLayout()}).double().eval()["block"]
    outer = Wrapped(net)
    x, edges = torch.randn(5, 6, dtype=torch.float64), torch.randint(0, 5, (2, 9))
    gated = al.add_gates(outer, (x, edges))
    with torch.no_grad():
        al.width_gates(gated)["block.first"][:4] = 0.1
    small = al.compact(gated)
    assert small.block.first.out_features == 4
    torch.testing.assert_close(gated(x, edges), small(x, edges), rtol=1e-10, atol=1e-10)


class Wrapped(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.block(*inputs)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return torch.abs(x) * 2

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0] * 2


class OwnGradient(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Doubled.apply(x)  # pyright: ignore


def test_a_function_with_a_gradient_of_its_own_is_named() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), OwnGradient())
    net.append(nn.Linear(8, 2))
    opaque = str(al.inspect(al.add_gates(net, torch.randn(3, 4))))
    assert "Doubled, a torch.autograd.Function" in opaque
    assert "no_grad" not in opaque


class CeilOfASize(nn.Module):
    """Chunks a batch by NumPy's arithmetic, as TabNet does."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([*x.chunk(int(np.ceil(x.shape[0] / 2)), 0)])


def test_a_size_that_numpy_reads_is_a_number() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), CeilOfASize())
    told = str(al.inspect(al.add_gates(net, torch.randn(6, 4))))
    assert "cannot be interpreted as a number" in told
    assert "array_struct" not in told


class NumbersOfNumPy(nn.Module):
    """Scales by what NumPy's functions return, on either side, and counts from 0 by NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x / np.sqrt(4)))
        x = x.view(-1, np.prod(x.shape[1:]))
        x = np.sqrt(2) * x - np.float32(0.5) + np.sqrt(x.shape[-1]) * x
        return self.last(x)[:, np.arange(2)[1]]


def test_numbers_of_numpy_are_followed(tmp_path: Path) -> None:
    x = torch.randn(3, 4).double()
    model = check_exact(NumbersOfNumPy(), x, torch.randn(5, 4).double())
    assert [len(gate) for gate in al.width_gates(model).values()] == [8]
    al.save(small := al.compact(model), tmp_path / "small.safetensors")
    torch.testing.assert_close(al.load(tmp_path / "small.safetensors")(x), small(x))


class OwnLinear(nn.Linear):
    """A layer of a class of the user's, as torchvision's video models have them."""


class OwnConv(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # pyright: ignore
        return super()._conv_forward(2 * x, weight, bias)


def test_layers_of_a_class_of_the_users_are_learnt() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        OwnConv(1, 6, 3), nn.ReLU(), nn.Flatten(), OwnLinear(24, 5), nn.ReLU(), nn.Linear(5, 2)
    )
    model = check_exact(net, torch.randn(2, 1, 4, 4).double(), torch.randn(3, 1, 4, 4).double())
    assert [len(gate) for gate in al.width_gates(model).values()] == [6, 5]


class EmptySlice(nn.Module):
    """Turns all tokens but the first none of them, as timm's attention with positions does."""

    def __init__(self) -> None:
        super().__init__()
        self.split, self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.split(x).view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)
        heads = torch.cat([heads[:, :, :0], heads[:, :, 0:] * 2], dim=2)
        return self.last(torch.relu(self.first(heads.transpose(1, 2).flatten(2))))


def test_a_slice_without_elements_is_followed() -> None:
    torch.manual_seed(0)
    model = check_exact(EmptySlice(), torch.randn(2, 3, 5).double(), torch.randn(4, 6, 5).double())
    assert "first" in al.width_gates(model)


class AsksLate(nn.Module):
    """It asks how wide its input is behind more calls than Python's stack is deep."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        for _ in range(1100):
            x = x.neg()
        if x.shape[-1] != self.last.in_features:
            raise ValueError("another width")
        return self.last(x)


def test_what_hangs_on_many_calls_can_be_asked() -> None:
    """A ViT of 22 blocks had lost its streams and heads: Python's stack ended at a question."""
    assert list(al.width_gates(al.add_gates(AsksLate(), torch.randn(2, 3)))) == ["first"]


class Slices(nn.Module):
    """Calls parts of an `nn.Sequential`, which are modules of no name."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[:2](x)
        return self.last(x + self.layers[2:](x))


def test_slices_of_a_sequential_are_followed() -> None:
    x = torch.randn(2, 5)
    model = al.add_gates(Slices().eval(), x)
    gates = al.width_gates(model)
    with torch.no_grad():
        next(iter(gates.values()))[:3] = 0.0
    small = al.compact(model)
    assert small.layers[0].out_features == 5
    torch.testing.assert_close(small(x), model(x))


class WithChecks(nn.Module):
    """Forward checks its inputs, by their values and by their sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        torch._check_tensor_all(x < 100)
        torch._check(x.amax().item() > -1, lambda: "some number is above -1")
        torch._check_value(x.shape[-1] == 5, lambda: f"{x.shape} has no 5 columns")
        return self.second(torch.relu(self.first(x if not callable(x) else x())))


def test_checks_of_inputs_are_followed_and_kept() -> None:
    gated = al.add_gates(WithChecks().double(), torch.rand(4, 5).double())
    with torch.no_grad():
        al.width_gates(gated)["first"][::2] = 0.2
    small = al.compact(gated)
    assert small.get_parameter("first.weight").shape == (4, 5)
    x = torch.rand(3, 5).double()
    torch.testing.assert_close(small(x), gated(x))
    for model in (gated, small):
        with pytest.raises(AssertionError, match="some number is above -1"):
            model(x - 5)
        with pytest.raises(AssertionError, match="a check in forward"):
            model(200 * x)
