"""Parts that are no ordinary modules are called as they are, or refused by name."""

import warnings

import pytest
import torch
from torch import Tensor, nn

import archlearn as al


class Net(nn.Module):
    """Something is learnt on both sides of a part."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.part = nn.Linear(5, 8), nn.Linear(8, 4), part
        self.third, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.part(self.second(torch.relu(self.first(x))))
        return self.last(torch.relu(self.third(x)))


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))


def compiled() -> nn.Module:
    return torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), backend="eager")  # pyright: ignore


@pytest.mark.parametrize("make", [scripted, compiled])
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_a_part_that_is_compiled_already_is_called_as_it_is(make: object) -> None:
    torch.manual_seed(0)
    net = Net(scripted() if make is scripted else compiled())
    x = torch.randn(3, 5)
    model = al.add_gates(net, x).eval()
    torch.testing.assert_close(model(x), net.eval()(x))
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate[::2] = 0.1
    small = al.compact(model)
    torch.testing.assert_close(small(x), model(x))
    assert {"first", "third"} <= set(al.width_gates(model))


class Force(nn.Module):
    """Returns the gradient of an energy."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.requires_grad_(True)
            energy = self.last(torch.tanh(self.first(x))).sum()
            return torch.autograd.grad(energy, x, create_graph=True)[0]


def test_gradients_inside_forward_are_refused_by_name() -> None:
    with pytest.raises(al.TracingError, match=r"it computes gradients of its own.*leaves"):
        al.add_gates(Force(), torch.randn(3, 5))
