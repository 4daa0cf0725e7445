"""Arguments that hold no tensor choose the path: another value is refused, not passed over."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archlearn as al


class Net(nn.Module):
    """Takes options of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(
        self,
        x: Tensor,
        twice: bool = False,
        mask: Tensor | None = None,
        *,
        options: dict[str, Any] | None = None,
        sizes: tuple[int, ...] = (1, 2),
        activation: Callable[[Tensor], Tensor] = torch.relu,
        **more: float,
    ) -> Tensor:
        x = activation(self.first(x))
        x = 2 * x if twice else x
        x = x if mask is None else x * mask
        scale = options["scale"] if options else 1.0
        return self.last(x) * scale * sizes[0] + more.get("shift", 0.0)


X, MASK = torch.randn(3, 4), torch.rand(3, 1)

SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"twice": False}),
    ({}, {"sizes": (1, 2)}),
    ({"twice": True}, {"twice": True}),
    ({"options": {"scale": 2.0}}, {"options": {"scale": 2.0}}),
    ({"sizes": (3, 4)}, {"sizes": (3, 4)}),
    ({"mask": MASK}, {"mask": 1 - MASK}),
    ({"shift": 1.0}, {"shift": 1.0}),
]
OTHER: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"twice": True}, {}, "twice is False, but the model was traced with True"),
    ({}, {"sizes": (3, 4)}, r"sizes is \(3, 4\), but the model was traced with \(1, 2\)"),
    ({"sizes": (3, 4)}, {}, r"sizes is \(1, 2\), but the model was traced with \(3, 4\)"),
    ({"options": {"scale": 2.0}}, {"options": {"scale": 3.0}}, "options is .*3.0.*traced with .*2"),
    ({"options": {"scale": 2.0}}, {"options": {"scale": MASK}}, "(?s)options is .*traced with .*2"),
    ({"options": {"scale": 2.0}}, {}, "options is None, but the model was traced with .*2.0"),
    ({}, {"options": {"scale": 2.0}}, "options is .*2.0.*, but the model was traced with None"),
    ({}, {"activation": torch.tanh}, "activation is .*tanh.* traced with its default"),
    ({"mask": MASK}, {}, "mask is left out, but the model was traced with it"),
    ({}, {"mask": MASK}, r"mask is a tensor of shape \(3, 1\), but the model was traced with None"),
    ({"shift": 1.0}, {}, "shift is None, but the model was traced with 1.0"),
]


@pytest.mark.parametrize(("traced", "given"), SAME)
def test_the_same_arguments_do_the_same(
    traced: dict[str, Any], given: dict[str, Any], tmp_path: Path
) -> None:
    net = Net()
    model = al.add_gates(net, {"x": X, **traced})
    small = al.compact(model)
    al.save(small, tmp_path / "small")
    for each in (model, copy.deepcopy(model), small, al.load(tmp_path / "small")):
        torch.testing.assert_close(each(X, **given), net(X, **given))


@pytest.mark.parametrize(("traced", "given", "message"), OTHER)
def test_other_arguments_are_refused(
    traced: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    model = al.add_gates(Net(), {"x": X, **traced})
    for each in (model, al.compact(model)):
        with pytest.raises(al.InputError, match=message):
            each(X, **given)


CPU = torch.device("cpu")


class OnDevice(nn.Module):
    """Is told where to make what it adds, by the name that generated code has for devices."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, device: torch.device = CPU) -> Tensor:
        x = torch.relu(self.first(x.to(device)))
        return self.last(x) + torch.ones(2, device=device)


def test_a_device_may_be_given(tmp_path: Path) -> None:
    net = OnDevice()
    model = al.add_gates(net, (X, CPU))
    small = al.compact(model)
    al.save(small, tmp_path / "small")
    for each in (model, copy.deepcopy(model), small, al.load(tmp_path / "small")):
        torch.testing.assert_close(each(X, device=CPU), net(X))
        with pytest.raises(al.InputError, match=r"device is .*meta"):
            each(X, torch.device("meta"))


def test_an_argument_that_cannot_be_held_is_refused() -> None:
    message = r"'activation' is a builtin_function_or_method.*make it an attribute of the model"
    with pytest.raises(al.InputError, match=message):
        al.add_gates(Net(), {"x": X, "activation": torch.tanh})


class Masked(nn.Module):
    """Takes a tensor that may be left out, right after the input, and any keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None, **more: Any) -> Tensor:
        x = torch.relu(self.first(x))
        x = x if mask is None else x * mask
        return self.last(x) * more.get("scale", 1.0)


def test_a_tensor_that_is_left_out_is_missed_by_name() -> None:
    model = al.add_gates(Masked(), (X, MASK))
    for each in (model, al.compact(model)):
        with pytest.raises(al.InputError, match="mask is left out, but the model was traced with"):
            each(X)


def test_a_keyword_that_the_example_did_not_give_is_refused_by_name() -> None:
    model = al.add_gates(Masked(), X)
    for each in (model, copy.deepcopy(model), al.compact(model)):
        torch.testing.assert_close(each(X, scale=None, other=None), each(X))
        with pytest.raises(al.InputError, match=r"scale is 2\.0, but the model was traced without"):
            each(X, scale=2.0)


class Injecting(Masked):
    """Its forward is wrapped, and what wraps it gives a keyword."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        kwargs.setdefault("mask", None)
        return super().forward(*args, **kwargs)

    forward.__wrapped__ = Masked.forward  # pyright: ignore[reportFunctionMemberAccess]


def test_arguments_that_are_left_out_are_not_given() -> None:
    net = Injecting()
    torch.testing.assert_close(al.add_gates(net, X)(X), net(X))
