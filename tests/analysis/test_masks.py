"""A mask over time or space keeps channels apart, however it is written."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archlearn as al


class Masked(nn.Module):
    """Two convolutions over time, with what lies behind the end of each line left out."""

    def __init__(self, hide: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(3, 8, 3, padding=1), nn.Conv1d(8, 6, 3, padding=1)
        self.last, self.hide = nn.Linear(6, 2), hide

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.hide(torch.relu(self.first(x)), mask[:, None])
        x = self.hide(torch.relu(self.second(x)), mask[:, None])
        return self.last(x.sum(2) / mask.sum(1, keepdim=True))


EXACT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "where, with zeros": lambda x, mask: torch.where(mask, x, torch.zeros_like(x)),
    "where, with a number": lambda x, mask: torch.where(mask, x, 0.0),
    "where of a method": lambda x, mask: x.where(mask, torch.zeros_like(x)),
    "where, turned around": lambda x, mask: torch.where(~mask, 0.0, x),
    "masked_fill": lambda x, mask: x.masked_fill(~mask, 0.0),
    "masked_fill by name": lambda x, mask: torch.masked_fill(x, ~mask, value=0),
    "masked_fill in place": lambda x, mask: x.masked_fill_(~mask, 0.0),
    # What is put in would be read in place of a dropped channel, so gates stand where it is read.
    "another number": lambda x, mask: x.masked_fill(~mask, -1.0),
    "one": lambda x, mask: torch.where(mask, x, torch.ones_like(x)),
    "a computed number": lambda x, mask: torch.where(mask, x, x.shape[2] - 7),
}


def inputs(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(2, 3, n, dtype=torch.float64), torch.arange(n).expand(2, n) < n - 2


@pytest.mark.parametrize("name", EXACT)
def test_channels_are_learnt_in_front_of_a_mask(name: str) -> None:
    torch.manual_seed(0)
    net = Masked(EXACT[name]).double()
    model = al.add_gates(net, inputs(7)).eval()
    x: Any = inputs(9)
    torch.testing.assert_close(model(*x), net(*x))
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate[::2] = 0.1
    small = al.compact(model)
    torch.testing.assert_close(small(*x), model(*x), rtol=0, atol=1e-10)
    assert al.read_architecture(model).widths == (4, 3, 2)
