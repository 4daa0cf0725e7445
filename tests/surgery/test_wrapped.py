"""A gated model that something has been wrapped around is found, or named."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import archlearn as al

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def gate() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    model = al.add_gates(net, X)
    with torch.no_grad():
        al.width_gates(model)["0"][[0, 3]] = 0.1
    return model


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("wrap", [compiled, nn.DataParallel])
def test_a_wrapped_model_is_compacted_like_the_model_itself(
    wrap: Callable[[nn.Module], nn.Module],
) -> None:
    model = gate()
    wrapped = wrap(model)
    assert al.plan(wrapped) == al.plan(model)
    assert str(al.read_architecture(wrapped)) == "4-5-2"
    small = al.compact(wrapped)
    assert type(small) is nn.Sequential
    torch.testing.assert_close(small(X), model(X))


@pytest.mark.parametrize("call", [al.plan, al.compact, al.read_architecture])
def test_gates_deep_inside_a_larger_model_are_named(call: Callable[[nn.Module], object]) -> None:
    whole = nn.Sequential(gate(), nn.Softmax(1))
    with pytest.raises(al.InputError, match="submodule '0'"):
        call(whole)


def test_gates_are_added_before_compiling() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    with pytest.raises(al.InputError, match=r"before torch\.compile"):
        al.add_gates(compiled(net), X)
