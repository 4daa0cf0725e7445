"""What `forward` runs under is kept: without gradients, or in a precision of its own."""

import pickle
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import archlearn as al
from archlearn.tracing.symbolic_trace import ExampleInputs, trace

X = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)


class Frozen(Base):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.layer(x)


class Decorated(Base):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


class Wide(Base):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.layer(x.float())


class Asking(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (2 if torch.is_autocast_enabled("cpu") else 1)


@pytest.mark.parametrize("kind", [Frozen, Decorated])
def test_a_part_without_gradients_stays_without(kind: type[nn.Module]) -> None:
    net = nn.Sequential(kind(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    with torch.no_grad():
        model = al.add_gates(net, X)
    model(X).sum().backward()
    assert model[0].layer.weight.grad is None
    assert model[1].weight.grad is not None
    torch.testing.assert_close(model(X), net(X))


@pytest.mark.parametrize("kind", [Wide, Asking])
def test_a_part_with_a_precision_of_its_own_keeps_it(kind: type[nn.Module]) -> None:
    net = nn.Sequential(kind(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    model = al.add_gates(net, X)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model[0](X), net[0](X), rtol=0, atol=0)
        torch.testing.assert_close(model(X), net(X), rtol=0.05, atol=0.05)
    assert "autocast" in al.inspect(net, X).opaque["0"]


@pytest.mark.parametrize(
    ("kind", "why"), [(Frozen, "without gradients"), (Wide, "autocast"), (Asking, "autocast")]
)
def test_a_model_that_does_so_itself_is_refused(kind: type[nn.Module], why: str) -> None:
    with pytest.raises(al.TracingError, match=why):
        al.add_gates(kind(), X)
    assert torch.is_autocast_enabled.__name__ == "is_autocast_enabled"


class Again(Base):
    def __init__(self, *, older: bool) -> None:
        super().__init__()
        self.second, self.older = nn.Linear(5, 5), older

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.layer(x))
        return checkpoint(self.second, x, use_reentrant=self.older)


@pytest.mark.parametrize("older", [False, True])
def test_a_part_that_is_computed_again_is_followed(older: bool) -> None:
    net = Again(older=older)
    model = al.add_gates(net, X)
    torch.testing.assert_close(model(X), net(X))
    for each in (model, net):
        each(X).square().sum().backward()
    torch.testing.assert_close(model.layer.weight.grad, net.layer.weight.grad)


class Places(nn.Module):
    """Makes tensors of the sizes of its input, and reads a buffer as far as that goes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(9, 5), nn.Embedding(16, 5)
        self.first, self.last = nn.Linear(5, 7), nn.Linear(7, 5)
        self.register_buffer("scale", torch.rand(16))
        self.scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        n_rows, n = x.shape
        y = self.words(x) + self.places(torch.arange(n, device=x.device))
        y = y * self.scale[:n].view(1, -1, 1) + torch.full((n_rows, n, 1), 2.0, device=x.device)
        return self.last(torch.relu(self.first(y)))


def test_tensors_made_of_sizes_and_of_buffers_are_made_anew() -> None:
    net = Places()
    model = al.add_gates(net, torch.randint(9, (2, 6)))
    for shape in [(2, 6), (3, 4), (1, 16)]:
        x = torch.randint(9, shape)
        torch.testing.assert_close(model(x), net(x))
    wide = model.double()(torch.randint(9, (2, 6)))
    assert wide.dtype is torch.float64
    assert not any(isinstance(value, Tensor) for value in vars(model).values())


class ByBuffer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("is_started", torch.tensor(False))
        self.is_started: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x if self.is_started else x * 2)


def test_a_branch_on_a_buffer_is_not_frozen() -> None:
    net = nn.Sequential(ByBuffer(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    model = al.add_gates(net, X)
    for each in (net, model):
        each[0].is_started.fill_(True)
    torch.testing.assert_close(model(X), net(X))
    with pytest.raises(al.TracingError, match="control flow"):
        al.add_gates(ByBuffer(), X)


def test_models_may_be_traced_in_several_threads() -> None:
    own = [torch.arange, torch.is_autocast_enabled, torch.autocast.__enter__]
    counts: list[int] = []

    def work() -> None:
        for _ in range(4):
            net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 2))
            trace(net, ExampleInputs.of(X))
            assert not torch.is_autocast_enabled("cpu")
            counts.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counts) == 16
    assert [torch.arange, torch.is_autocast_enabled, torch.autocast.__enter__] == own


def test_gates_may_be_added_in_several_threads() -> None:
    """While one looks at its model, others trace theirs, and torch is changed for them."""
    failed: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(3):
                net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
                al.add_gates(net, X)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


class Masked(nn.Module):
    """Adds the least number of the tensor's type where a mask is zero, as Hugging Face does."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        bias = (1.0 - mask.to(x.dtype)) * torch.finfo(x.dtype).min
        x = (x @ x.transpose(1, 2) + bias[:, None]).softmax(-1) @ x
        return self.down(torch.relu(self.up(x)))


def test_the_least_number_of_a_type_is_a_call(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, mask = torch.randn(2, 3, 6), torch.tensor([[1, 1, 0], [1, 0, 0]])
    net = Masked()
    model = al.add_gates(net, (x, mask)).eval()
    torch.testing.assert_close(model(x, mask), net(x, mask))
    with torch.no_grad():
        al.width_gates(model)["up"][::2] = 0.1
    al.save(al.compact(model), tmp_path / "small.safetensors")
    small = al.load(tmp_path / "small.safetensors")
    torch.testing.assert_close(small(x, mask), model(x, mask))
    half = al.compact(model.bfloat16())
    assert bool(half(x.bfloat16(), mask).isfinite().all())


def test_a_model_that_asks_for_limits_of_a_type_can_be_pickled() -> None:
    x, mask = torch.randn(2, 3, 6), torch.ones(2, 3)
    model = al.add_gates(Masked(), (x, mask)).eval()
    again = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(again(x, mask), model(x, mask), rtol=0, atol=0)
    assert al.compact(again).certificate is not None


class CallsElsewhere(Base):
    """While it is traced, another thread calls a module without gradients."""

    def forward(self, x: Tensor) -> Tensor:
        found: list[object] = []

        def call() -> None:
            with torch.no_grad():
                found.append(nn.Sequential(nn.Linear(2, 3), nn.ReLU())(torch.ones(1, 2)))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert [type(value) for value in found] == [Tensor]
        return torch.relu(self.layer(x))


def test_modules_that_other_threads_call_meanwhile_are_not_traced() -> None:
    graph = trace(CallsElsewhere(), ExampleInputs.of(X)).evaluation
    assert [node.name for node in graph.nodes] == ["x", "layer", "relu", "output"]
