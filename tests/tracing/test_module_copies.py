"""A model is copied with whatever its calls left on it, and leaves its inputs alone."""

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
from archlearn.module_utils import copy_model

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last, self.seen = nn.Linear(4, 4), None, list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.layer(x)
        self.seen.append(self.last)
        return self.last


def check_surgery(net: nn.Module) -> None:
    net(X)
    model = al.add_gates(net, X)
    torch.testing.assert_close(model(X), net(X))
    with torch.no_grad():
        next(iter(al.width_gates(model).values()))[[1, 2]] = 0.0
    model(X)
    torch.testing.assert_close(al.compact(model)(X), model(X))


def test_a_module_that_keeps_what_it_computed() -> None:
    check_surgery(nn.Sequential(Keeping(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_weight_that_is_computed_before_each_call() -> None:
    first = torch.nn.utils.weight_norm(nn.Linear(4, 6))  # pyright: ignore[reportDeprecated]
    check_surgery(nn.Sequential(first, nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)))


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x.mul_(2.0))))


def test_example_inputs_are_left_alone() -> None:
    x = X.clone()
    model = al.add_gates(InPlace(), x)
    al.compact(model)
    al.inspect(InPlace(), x)
    assert torch.equal(x, X)


def test_example_inputs_may_have_been_computed() -> None:
    x = X.clone().requires_grad_() * 2
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    small = al.compact(al.add_gates(net, x))
    torch.testing.assert_close(small(X), net(X))


class Knowing(nn.Module):
    """Knows the module that holds it, and one that another attribute holds, too."""

    def __init__(self, owner: nn.Module, shared: nn.Module) -> None:
        super().__init__()
        self.known = [owner]
        self.shared, self.again = shared, {"again": shared}
        self.register_forward_hook(self.note)
        self.sizes, self.mark = (1, 2), ([1], 2)

    def note(self, *_: object) -> None:
        self.n_calls = 1

    def forward(self, x: Tensor) -> Tensor:
        return self.shared(x)


class WithState(nn.Linear):
    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "left_out": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__({**state, "restored": True})


class WithCopy(nn.Linear):
    def __deepcopy__(self, memo: dict[int, object]) -> "WithCopy":
        return self


def test_a_copy_is_what_deepcopy_makes() -> None:
    net = nn.Sequential(WithState(4, 4), WithCopy(4, 4))
    net.add_module("part", Knowing(net, net[0]))
    net[0].left_out = "a"
    for copied in (copy_model(net), copy.deepcopy(net)):
        part = copied.get_submodule("part")
        assert part.known[0] is copied
        assert part.shared is copied[0]
        assert part.again["again"] is copied[0]
        assert (part.sizes, part.mark) == ((1, 2), ([1], 2))
        assert part.mark[0] is not net.get_submodule("part").mark[0]
        assert copied[0] is not net[0]
        assert (copied[0].left_out, copied[0].restored) == (None, True)
        assert copied[1] is net[1]
        copied(X)
        assert part.n_calls == 1
        assert not hasattr(net.get_submodule("part"), "n_calls")
        assert torch.equal(copied[0].weight, net[0].weight)
        assert copied[0].weight is not net[0].weight
        assert list(vars(copied[0])) == [*vars(net[0]), "restored"]


def test_what_is_known_already_is_not_copied() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    weight = nn.Parameter(torch.zeros(4, 4))
    copied = copy_model(net, {id(net[0].weight): weight, id(net[1]): None})
    assert copied[0].weight is weight
    assert copied[1] is None


class Counting(nn.Module):
    """Looks at its parts when its state is put back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self.n_rows = len(self.layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_a_state_is_put_back_when_all_parts_are_there() -> None:
    copied = copy_model(nn.Sequential(Counting(), nn.ReLU()))
    assert copied[0].n_rows == 4
    check_surgery(nn.Sequential(Counting(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))


def test_an_attribute_that_cannot_be_copied_is_named() -> None:
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.ReLU()), nn.Linear(6, 2))
    net[0].lock = threading.Lock()  # pyright: ignore
    with pytest.raises(al.InputError, match=r"Sequential cannot be copied for its 0\.lock: cannot"):
        al.add_gates(net, X)


def test_a_note_on_a_parameter_that_cannot_be_copied_is_shared() -> None:
    net: Any = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    net[0].weight.lock = threading.Lock()
    gated: Any = al.add_gates(net, X)
    assert gated[0].weight.lock is net[0].weight.lock
