"""What `forward` asks about shapes while it is traced is answered from the example inputs."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archlearn as al

EXACT = {"rtol": 1e-10, "atol": 1e-10}


class Base(nn.Module):
    """Two convolutions; what comes in between is for others to say."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 2, 3)

    def both(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x))).mean((2, 3))


class ByMethod(Base):
    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 3:
            x = x.unsqueeze(1)
        return self.both(x)


class ByAttribute(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None] if x.ndim != 4 else x
        return self.both(x)


class ByLength(Base):
    def forward(self, x: Tensor) -> Tensor:
        if len(x.shape) < 4:
            x = x.unsqueeze(1)
        return self.both(x)


class ByRows(Base):
    """Asks for the length of a tensor, which is the size of the batch, and of a list of them."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(len(x), 1, *x.shape[1:])
        halves = self.both(x).chunk(2, dim=1)
        return torch.cat([halves[i] for i in range(len(halves))], dim=1)


class ByLoop(Base):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4 - x.dim()):
            x = x.unsqueeze(1)
        return self.both(x)


class ByAssertion(Base):
    def forward(self, x: Tensor) -> Tensor:
        assert x.dim() == 3, "give images without channels"
        return self.both(x.unsqueeze(1))


class BySize(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1)
        if x.shape[1] != 1 or x.size(-1) % 2:
            raise ValueError("one channel, an even width")
        return self.both(x)


class ByWidth(Base):
    """Asks for the number of channels that are learnt."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x.unsqueeze(1)))
        if hidden.shape[1] == 6:
            hidden = hidden * 2
        return self.last(hidden).mean((2, 3))


class ByClass(Base):
    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError("give a tensor")
        hidden = self.first(x.unsqueeze(1))
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        return self.last(torch.relu(hidden)).mean((2, 3))


class ByParts(Base):
    def forward(self, x: Tensor) -> Tensor:
        sizes = [size for size in x.shape]  # noqa: C416
        return self.both(x.reshape(sizes[0], 1, *sizes[1:]))


class ByKind(Base):
    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.uint8 or x.is_cuda:
            raise TypeError("give floating numbers")
        return self.both(x.unsqueeze(1))


class Inner(nn.Module):
    """Asks inside a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = ByMethod()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


ASKING = [
    ByMethod, ByAttribute, ByLength, ByRows, ByLoop, ByAssertion, BySize, ByWidth, ByClass, ByParts,
    ByKind, Inner,
]  # fmt: skip


@pytest.mark.parametrize("kind", ASKING)
def test_a_question_about_shapes_is_answered(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 8, 8, dtype=torch.float64)
    net = kind().double().eval()
    model = al.add_gates(net, x)
    torch.testing.assert_close(model(x), net(x), **EXACT)
    (gate,) = al.width_gates(model).values()
    assert len(gate) == 6
    with torch.no_grad():
        gate[[1, 4]] = 0.0
    small = al.compact(model)
    fresh = torch.randn(5, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(small(fresh), model(fresh), **EXACT)
    assert al.count_costs(small).parameters < al.count_costs(net, x).parameters


def test_inputs_with_another_answer_are_refused() -> None:
    model = al.add_gates(ByMethod(), torch.randn(2, 8, 8))
    with pytest.raises(
        al.InputError, match=r"what forward asks at test_shape_guards\.py:\d+ is False"
    ):
        model(torch.randn(2, 1, 8, 8))


class BySide(Base):
    """Asks for the side of an image as a number."""

    def forward(self, x: Tensor) -> Tensor:
        return self.both(x) + self.first.weight.new_zeros(int(x.shape[-1] ** 0.5)).sum()


@pytest.mark.filterwarnings("ignore")  # torch.jit.trace warns of the number, and of itself
def test_torch_jit_gives_sizes_as_tensors_which_have_the_answer() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 1, 9, 9)
    model = al.add_gates(BySide(), x).eval()
    small = al.compact(model)
    scripted: Any = torch.jit.trace(small, x)
    torch.testing.assert_close(scripted(x), small(x))
    with pytest.raises(al.InputError, match=r"2\.6.*, but the model was traced with 3"):
        torch.jit.trace(small, torch.randn(2, 1, 7, 7))


def test_the_table_says_what_was_answered() -> None:
    found = al.inspect(ByMethod(), torch.randn(2, 8, 8))
    assert list(found.answers.values()) == ["True"]
    said = r"inputs for which these lines find another value are refused: test_shape_guards.py:\d+"
    assert re.search(said + r" \(True\)", str(found))


class ByBatch(Base):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 1:
            x = x - x.mean(0)
        return self.both(x.unsqueeze(1))


class ByValue(Base):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = -x
        return self.both(x.unsqueeze(1))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (ByBatch, r"if x.shape\[0\] > 1.*the answer depends on the size of the batch"),
        (ByValue, r"if x.sum\(\) > 0.*cannot be used as inputs to control flow"),
    ],
)
def test_what_may_change_is_refused(kind: type[nn.Module], why: str) -> None:
    with pytest.raises(al.TracingError, match=why):
        al.add_gates(kind(), torch.randn(4, 8, 8))


SEEN: list[str] = []


class Noting(nn.Module):
    """Notes where the tensors are that it is called with, and may need their numbers."""

    def __init__(self, *, by_numpy: bool) -> None:
        super().__init__()
        self.by_numpy = by_numpy

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(x.device.type)
        return torch.from_numpy(2 * x.detach().numpy()) if self.by_numpy else 2 * x


class BehindALeaf(Base):
    def __init__(self, *, by_numpy: bool, by_batch: bool) -> None:
        super().__init__()
        self.noting, self.by_batch = Noting(by_numpy=by_numpy), by_batch

    def forward(self, x: Tensor) -> Tensor:
        y = self.noting(x)
        if y.shape[0 if self.by_batch else -1] > 3:
            y = 3 * y
        return self.both(y[:, None])


@pytest.mark.parametrize("by_numpy", [False, True])
def test_batches_of_other_sizes_are_tried_without_numbers_where_that_serves(
    *, by_numpy: bool
) -> None:
    x = torch.randn(4, 8, 8)
    with pytest.raises(al.TracingError, match="depends on the size of the batch"):
        al.add_gates(BehindALeaf(by_numpy=by_numpy, by_batch=True), x, leaves=["noting"])
    SEEN.clear()
    net = BehindALeaf(by_numpy=by_numpy, by_batch=False)
    torch.testing.assert_close(al.add_gates(net, x, leaves=["noting"])(x), net(x))
    place = SEEN.index("meta")
    assert SEEN[place : place + 4] == (["meta", "cpu"] * 2 if by_numpy else ["meta"] * 3 + ["cpu"])


def test_devices_by_context_mean_the_same_after_a_trace() -> None:
    torch.utils._device._device_constructors.cache_clear()
    al.add_gates(BehindALeaf(by_numpy=False, by_batch=False), torch.randn(4, 8, 8))
    with torch.device("meta"):
        assert torch.arange(3).is_meta


class AsksForClasses(Base):
    """Asks for the class of a traced value in all ways but `type`."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        assert torch.is_tensor(hidden)
        assert isinstance(hidden, Tensor | int)
        assert isinstance(hidden, (list, Tensor))
        assert not isinstance(hidden, nn.Parameter)
        assert isinstance(hidden.shape, tuple)
        assert issubclass(hidden.__class__, Tensor)
        assert all(isinstance(each, Tensor) for each in (x, hidden))
        match hidden:
            case Tensor():
                hidden = hidden * 2
            case _:
                raise TypeError(hidden)
        assert isinstance(hidden.shape[0], int)
        return self.last(hidden)


def test_classes_are_those_of_the_example() -> None:
    assert al.inspect(AsksForClasses(), torch.randn(2, 1, 8, 8)).rows[0].width


class PicksByMask(Base):
    """Torch's kernels look for scalars among the arguments, in memory: a traced value is none."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.where(x.mean((1, 2, 3), True) > 0, torch.relu(self.first(x)), 0.0)
        hidden = torch.lerp(hidden, hidden, hidden.abs())
        return self.last(torch.clamp(hidden, hidden.abs(), 2 * hidden.abs()))


def test_traced_values_are_no_scalars_of_torch() -> None:
    assert al.inspect(PicksByMask(), torch.randn(2, 1, 8, 8)).rows


class AsksOften(Base):
    """Asks for a shape in each of many layers, and notes how often it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.ModuleList(nn.Linear(8, 8) for _ in range(30))

    def forward(self, x: Tensor) -> Tensor:
        CALLS.append(1)
        for layer in self.more:
            if x.shape[-1] != 8:
                raise ValueError("eight columns")
            x = layer(x)
        return self.both(x.unsqueeze(1))


CALLS: list[int] = []


def test_a_trace_is_not_begun_anew_for_each_question() -> None:
    CALLS.clear()
    al.add_gates(AsksOften(), torch.randn(2, 8, 8))
    assert len(CALLS) < 10


class AsksForMore(nn.Module):
    """Asks a tensor for what only other libraries' tensors have, as transformers does of jax."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Any = self.a(x).relu()
        return self.b(hidden.jax() if hasattr(hidden, "jax") else hidden)


def test_a_traced_tensor_has_what_tensors_have_and_no_more() -> None:
    model = al.add_gates(AsksForMore(), torch.randn(2, 4))
    assert [len(gate) for gate in al.width_gates(model).values()] == [8]
