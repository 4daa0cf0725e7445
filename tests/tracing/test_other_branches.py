"""A graph refuses inputs for which `forward` would have taken another branch."""

import logging
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
from tests.tracing.test_shape_guards import Base


class ByRemainder(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 2 if x.shape[2] % 2 else x
        return self.both(x.unsqueeze(1))


class ByRepeating(Base):
    """Asks twice at one line, and gets two answers."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1)
        while x.shape[2] > 8:
            x = nn.functional.max_pool2d(x, 2)
        return self.both(x)


class ByMembership(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 2 if x.shape[2] in (4, 8) else x
        return self.both(x.unsqueeze(1))


class ByDouble(Base):
    """Asks for the length of a shape, and takes images with and without channels."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1) if len(x.shape) == 3 else x * 2
        return self.both(x)


class ByFloat(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x if x.is_floating_point() else x / 255
        return self.both(x.unsqueeze(1).float())


class ByType(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x / 255 if x.dtype == torch.uint8 else x
        return self.both(x.unsqueeze(1).float())


class ByTypeOfWeights(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x / 255 if x.dtype != next(self.parameters()).dtype else x
        return self.both(x.unsqueeze(1).float())


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (ByRemainder, torch.randn(2, 9, 9)),
        (ByRepeating, torch.randn(2, 20, 20)),
        (ByMembership, torch.randn(2, 9, 9)),
        (ByDouble, torch.randn(2, 1, 8, 8)),
        (ByFloat, torch.ones(2, 8, 8, dtype=torch.uint8)),
        (ByType, torch.ones(2, 8, 8, dtype=torch.uint8)),
        (ByTypeOfWeights, torch.ones(2, 8, 8, dtype=torch.uint8)),
    ],
)
def test_no_other_branch_is_passed_over(kind: type[nn.Module], other: Tensor) -> None:
    size = 10 if kind is ByRepeating else 8
    net, x = kind().eval(), torch.randn(2, size, size)
    net(other)
    model = al.add_gates(net, x)
    torch.testing.assert_close(model(x), net(x))
    with torch.no_grad():
        next(iter(al.width_gates(model).values()))[[1, 4]] = 0.0
    for made in (model, pickle.loads(pickle.dumps(model)), al.compact(model)):
        torch.testing.assert_close(made(x), model(x))
        with pytest.raises(
            al.InputError, match=r"what forward asks at test_other_branches\.py:\d+"
        ):
            made(other)


class ByIsTensor(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 2 if torch.is_tensor(x) else x
        return self.both(x.unsqueeze(1))


def test_torch_is_asked_what_a_tensor_is() -> None:
    net, x = ByIsTensor().eval(), torch.randn(2, 8, 8)
    torch.testing.assert_close(al.add_gates(net, x)(x), net(x))


class ByKey(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.both(x.unsqueeze(1)) * {8: 2.0}.get(x.shape[2], 1.0)


class ByText(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.both(x.unsqueeze(1)) * {"8": 2.0}.get(str(x.shape[2]), 1.0)


class ByFormat(Base):
    def forward(self, x: Tensor) -> Tensor:
        size = f"{x.shape[1]:02d}x{x.shape[2]:02d}"
        return self.both(x.unsqueeze(1)) * (2.0 if size == "08x08" else 1.0)


class ByRepresentation(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.both(x.unsqueeze(1)) * (2.0 if repr(x.shape[2]) == "8" else 1.0)


class ByWhole(Base):
    def forward(self, x: Tensor) -> Tensor:
        side = int((x.shape[1] * x.shape[2]) ** 0.5)
        return self.both(x.reshape(-1, 1, side, side)) * side


class ByRange(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.stack([x[:, i] * i for i in range(x.shape[1])], 1)
        return self.both(x.unsqueeze(1))


NUMBERS = [ByKey, ByText, ByFormat, ByRepresentation, ByWhole, ByRange]


class Behind(nn.Module):
    """Has another module in front of one that decides."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(8, 6, 1), nn.Conv1d(6, 8, 1)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.last(torch.relu(self.first(x))))


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_size_that_is_used_as_a_number_is_asked_again(kind: type[nn.Module]) -> None:
    net, x = kind().eval(), torch.randn(2, 8, 8)
    model = al.add_gates(net, x)
    torch.testing.assert_close(model(x), net(x))
    with pytest.raises(al.InputError, match=r"what forward asks at test_other_branches\.py:\d+"):
        model(torch.randn(2, 9, 9))


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_part_that_uses_sizes_as_numbers_takes_them_all(kind: type[nn.Module]) -> None:
    net, x = Behind(kind()).eval(), torch.randn(2, 8, 8)
    model = al.add_gates(net, x)
    for other in (x, torch.randn(3, 8, 18)):
        if kind is not ByWhole or other is x:
            torch.testing.assert_close(model(other), net(other))
    assert "inner" in al.inspect(net, x).opaque


class ByBatchText(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.both(x.unsqueeze(1)) * {"2": 2.0}.get(f"{x.shape[0]}", 1.0)


class ByValueText(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.both(x.unsqueeze(1)) * len(f"{x.sum()}")


@pytest.mark.parametrize("kind", [ByBatchText, ByValueText])
def test_text_of_what_may_change_is_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(al.TracingError, match="the text of a traced value is not known"):
        al.add_gates(kind(), torch.randn(2, 8, 8))


class Speaking(Base):
    """Says sizes in messages, which decide nothing."""

    def forward(self, x: Tensor) -> Tensor:
        torch._assert(x.dim() == 3, f"three dimensions, not {x.shape}")
        logging.getLogger(__name__).debug("a batch of %s", x.shape[0])
        if x.shape[2] < 2:
            raise ValueError(f"too small: {x.shape}")
        return self.both(x.unsqueeze(1))


def test_a_message_asks_for_nothing() -> None:
    net, x = Speaking().eval(), torch.randn(2, 8, 8)
    model = al.add_gates(net, x)
    for other in (x, torch.randn(5, 9, 9)):
        torch.testing.assert_close(model(other), net(other))


class ByHalf(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 2 if x.dtype == torch.bfloat16 else x
        return self.both(x.unsqueeze(1))


class ByDevice(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 2 if x.device.type == "meta" else x
        return self.both(x.unsqueeze(1))


class ByOwnType(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 2 if x.dtype == torch.float32 else x
        return self.both(x.unsqueeze(1))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (ByHalf, {"dtype": torch.bfloat16}),
        (ByDevice, {"device": "meta"}),
        (ByOwnType, {"dtype": torch.float64}),
    ],
)
def test_another_type_or_device_is_asked_again(
    kind: type[nn.Module], change: dict[str, Any]
) -> None:
    net, x = kind().eval(), torch.randn(2, 8, 8)
    model = al.add_gates(net, x)
    torch.testing.assert_close(model(x), net(x))
    with torch.no_grad():
        next(iter(al.width_gates(model).values()))[[1, 4]] = 0.0
    small = al.compact(model)
    torch.testing.assert_close(small(x), model(x))
    for made in (model, small):
        with pytest.raises(al.InputError, match="what forward asks"):
            made.to(**change)(x.to(**change))


class ByTypeOfTheNextLayer(nn.Module):
    """T5 brings what a layer reads to the type of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.last = nn.Linear(8, 9), nn.Linear(9, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.up(x))
        if x.dtype != self.down.weight.dtype:
            x = x.to(self.down.weight.dtype)
        return self.last(torch.relu(self.down(x)))


def test_types_that_are_compared_answer_otherwise_under_autocast() -> None:
    net, x = ByTypeOfTheNextLayer(), torch.randn(4, 8)
    model = al.add_gates(net, x)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model(x), net(x))
    with torch.no_grad():
        al.width_gates(model)["up"][[1, 4]] = 0.0
        al.depth_gates(model)["up"].fill_(1.0)
    small = al.compact(model)
    assert len([m for m in small.modules() if isinstance(m, nn.Linear)]) == 2  # one is merged
    torch.testing.assert_close(small(x), model(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert small(x).dtype == torch.bfloat16
