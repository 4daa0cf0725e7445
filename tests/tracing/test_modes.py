"""A model is looked at in evaluation mode, and left in the mode it was in."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlearn.module_utils import evaluating, noticing_mode_reads
from archlearn.tracing.symbolic_trace import ExampleInputs, trace

X = ExampleInputs.of(torch.randn(2, 3))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layer(x))


class Asks(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return x if self.training else super().forward(x)


class AsksSizes(Plain):
    """Asks for a size, which is answered by running it; dropout inside knows its own mode."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(self.dropout(x))
        return y * 2 if y.shape[1] == 3 else y


class Keeps(Plain):
    """Keeps its mode under a name of its own."""

    learns = True

    def train(self, mode: bool = True) -> nn.Module:
        self.learns = mode
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return x if self.learns else super().forward(x)


class Inside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Asks()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@pytest.mark.parametrize(("kind", "n_graphs"), [(Plain, 1), (Asks, 2), (Keeps, 2), (Inside, 2)])
def test_training_is_traced_where_it_may_differ(kind: type[nn.Module], n_graphs: int) -> None:
    assert len(trace(kind(), X).graphs) == n_graphs


@pytest.mark.parametrize(("kind", "asks"), [(Plain, False), (AsksSizes, False), (Inside, True)])
def test_only_forward_asks_for_the_mode(kind: type[nn.Module], asks: bool) -> None:
    assert trace(kind(), X).asks_mode is asks


def test_a_model_without_a_question_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    forward = Plain.forward

    def counted(self: Plain, x: Tensor) -> Tensor:
        calls.append(True)
        return forward(self, x)

    monkeypatch.setattr(Plain, "forward", counted)
    trace(Plain(), X)
    assert len(calls) == 1


def test_reads_are_noticed_and_modes_are_what_they_were() -> None:
    model = Plain().train()
    with noticing_mode_reads(model) as reads:
        assert not reads.seen
        assert model.training
        assert reads.seen
        model.training = False
    assert model.training is False
    assert "training" not in vars(nn.Module)
    assert "training" in vars(model)


def test_each_submodule_gets_its_own_mode_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model[1].eval()
    with evaluating(model):
        assert not model[0].training
    assert model[0].training
    assert not model[1].training
