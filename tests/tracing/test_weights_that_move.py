"""What gates are put on has the weights that the user's model has."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import archlearn as al

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def replace_data(old: nn.Parameter, new: nn.Parameter) -> None:
    old.data = 0.9 * old.data + 0.1 * new.data


def change_data(old: nn.Parameter, new: nn.Parameter) -> None:
    old.data.mul_(0.9).add_(new.data, alpha=0.1)


@torch.no_grad()
def change_in_place(old: nn.Parameter, new: nn.Parameter) -> None:
    old.mul_(0.9).add_(new, alpha=0.1)


MOVES = [replace_data, change_data, change_in_place]
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=NO_GPU)]


def make_mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))


class Momentum(nn.Module):
    """One network follows another, a little at each call."""

    def __init__(
        self, move: Callable[[nn.Parameter, nn.Parameter], None], *, always: bool = True
    ) -> None:
        super().__init__()
        self.move, self.always = move, always
        self.online, self.target = make_mlp(), make_mlp().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.always or self.training:
            pairs = zip(self.target.parameters(), self.online.parameters(), strict=True)
            for old, new in pairs:
                self.move(old, new)
        return self.online(x) + self.target(x)


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("always", [True, False])
@pytest.mark.parametrize("device", DEVICES)
def test_a_model_that_moves_its_weights_is_refused(
    move: Callable[[nn.Parameter, nn.Parameter], None], always: bool, device: str
) -> None:
    net = Momentum(move, always=always).eval().to(device)
    with pytest.raises(al.TracingError, match=r"it changes 'target\.0\.weight' whenever"):
        al.add_gates(net, X.to(device))


@pytest.mark.parametrize("move", MOVES)
def test_a_leaf_that_moves_its_weights_is_refused(
    move: Callable[[nn.Parameter, nn.Parameter], None],
) -> None:
    net = nn.Sequential(make_mlp(), Momentum(move), nn.Dropout()).eval()
    with pytest.raises(al.TracingError, match=r"it changes '1\.target\.0\.weight'.*training loop"):
        al.add_gates(net, X, leaves=[Momentum])


@pytest.mark.parametrize("move", MOVES)
def test_looking_at_a_model_moves_nothing(
    move: Callable[[nn.Parameter, nn.Parameter], None],
) -> None:
    net = Momentum(move)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(al.TracingError, match=r"it changes 'target\.0\.weight' whenever"):
        al.inspect(net, X)
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)


def test_weights_that_are_no_numbers_have_not_moved() -> None:
    net = make_mlp()
    net.get_parameter("0.bias").data[0] = torch.nan
    assert al.add_gates(net, X).get_parameter("0.bias").isnan().sum() == 1


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("look", [al.add_gates, al.inspect, al.count_costs])
def test_weights_that_are_still_to_be_made_are_refused(look: Callable[..., object]) -> None:
    net = nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.Linear(6, 2))
    with pytest.raises(al.InputError, match=r"'0\.weight' has no shape yet.*call the model once"):
        look(net, X)
    net(X)
    look(net, X)
