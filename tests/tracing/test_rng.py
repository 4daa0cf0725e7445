"""What Python draws by chance while a model is traced does not become a constant."""

import random
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import archlearn as al

X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
DRAWS: list[Callable[[], float]] = [
    lambda: torch.empty(()).uniform_().item(),
    random.random,
    lambda: float(np.random.rand()),
]


class Jittered(nn.Module):
    """Scales by chance while it is trained."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw, self.layer = draw, nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y * self.draw() if self.training else y


@pytest.mark.parametrize("draw", DRAWS)
def test_a_part_that_draws_is_called_as_it_is(draw: Callable[[], float]) -> None:
    net = nn.Sequential(Jittered(draw), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    model = al.add_gates(net, X)
    assert not torch.equal(model(X), model(X))
    assert "random" in al.inspect(net, X).opaque["0"]


@pytest.mark.parametrize("draw", [lambda: torch.rand(()).item(), lambda: torch.randn(5)])
def test_numbers_that_torch_draws_are_drawn_anew_at_each_call(draw: Callable[[], float]) -> None:
    net = nn.Sequential(Jittered(draw), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)).train()
    model = al.add_gates(net, X)
    assert not al.inspect(net, X).opaque
    assert not torch.equal(model(X), model(X))
    torch.manual_seed(1)
    meant = net(X)
    torch.manual_seed(1)
    torch.testing.assert_close(model(X), meant)


def test_a_number_that_becomes_one_of_pythons_makes_a_leaf() -> None:
    net = nn.Sequential(Jittered(lambda: float(torch.rand(()))), nn.Linear(5, 6), nn.ReLU())
    net.append(nn.Linear(6, 2))
    assert "draws random numbers" in al.inspect(net, X).opaque["0"]


def test_a_model_that_draws_itself_is_refused() -> None:
    with pytest.raises(al.TracingError, match="draws random numbers"):
        al.add_gates(Jittered(random.random), X)


@contextmanager
def another_thread_drawing() -> Generator[None]:
    """Let another thread draw from torch's generator all the time."""
    begun, ended = threading.Event(), threading.Event()

    def draw() -> None:
        while not ended.is_set():
            torch.rand(3)
            begun.set()

    thread = threading.Thread(target=draw)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_what_another_thread_draws_is_not_the_models() -> None:
    net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 2))
    with another_thread_drawing():
        found = [al.inspect(net, X).opaque for _ in range(10)]
    assert not any(found)


def test_a_part_that_draws_is_found_beside_another_thread() -> None:
    net = nn.Sequential(Jittered(DRAWS[0]), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    with another_thread_drawing():
        assert list(al.inspect(net, X).opaque) == ["0"]


@pytest.mark.slow
def test_a_rehearsal_is_not_misled_by_what_another_thread_draws() -> None:
    net = nn.Sequential(Jittered(DRAWS[0]), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    with another_thread_drawing():
        found = [list(al.width_gates(al.add_gates(net, X))) for _ in range(40)]
    assert found == [["1"]] * 40
