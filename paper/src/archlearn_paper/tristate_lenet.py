"""LeNet with `TriState` in its forward: the paper's equation 2 as it is printed, placed by hand."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlearn.nn.tristate_activation import Gate, TriState
from archlearn_cli.models.lenet import LeNet


class TriStateLeNet(LeNet):
    """20-50-500-10 whose three ReLUs have learnt gates.

    Pooling stands behind both convolutions, which rules out depth there, as in the paper.
    """

    def __init__(self, depth: Gate = Gate.LEARNT) -> None:
        """Learn the third layer's depth, too, unless it is `Gate.ABSENT`."""
        super().__init__()
        self.act1 = TriState(20, depth=Gate.ABSENT)
        self.act2 = TriState(50, depth=Gate.ABSENT)
        self.act3 = TriState(500, depth=depth)

    def forward(self, x: Tensor) -> Tensor:
        """Return one score for each class."""
        x = self.act1(F.max_pool2d(self.conv1(x), 2))
        x = self.act2(F.max_pool2d(self.conv2(x), 2))
        return self.fc2(self.act3(self.fc1(x.flatten(1))))


def make_tristate_lenet(seed: int, *, depth: bool) -> nn.Module:
    """Return a fresh network; torch's generator is afterwards as it was."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return TriStateLeNet(Gate.LEARNT if depth else Gate.ABSENT)
