"""Learn a network's architecture by back-propagation: the whole idea, without the package.

A perceptron learns scikit-learn's digits, and with them how many neurons and layers it needs.
Equations as in Srinivas & Babu, Learning Neural Network Architectures using Backpropagation.
"""

from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

WIDTHS = (64, 100, 50, 10)  # input, two hidden layers, output
LAMBDA_1, LAMBDA_2, LAMBDA_3, LAMBDA_4 = 7.5e-3, 2.5e-3, 3e-3, 1e-3
LEARNING_RATE, MOMENTUM, GATE_RATE, N_EPOCHS, BATCH = 0.05, 0.9, 0.05, 40, 50


def binarise(gate: Tensor) -> Tensor:
    """Return 1 from one half on and 0 below; the gradient is that of the identity."""
    return gate + ((gate >= 0.5).to(gate) - gate).detach()


def keep(width: Tensor) -> Tensor:
    """Return which neurons are kept: the open gates, and never none of them."""
    return (width >= 0.5).scatter(0, width.argmax(0, keepdim=True), True)


class TriStateReLU(nn.Module):
    """Equation 2: zero for w = 0, ReLU for w = 1 and d = 0, the identity for w = d = 1."""

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        # Just above one half a neuron is kept; just below, a layer is non-linear. The loss decides.
        self.width = nn.Parameter(torch.full((n_channels,), 0.55, dtype=torch.float64))
        self.depth = nn.Parameter(torch.tensor(0.45, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Return `w·(d·x + (1−d)·relu(x))` with binary gates."""
        width = self.width + (keep(self.width).to(x) - self.width).detach()
        depth = binarise(self.depth)
        return width * (depth * x + (1 - depth) * x.relu())


class GatedNet(nn.Module):
    """Linear layers with a tri-state ReLU behind each but the last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair).double() for pair in pairwise(WIDTHS))
        self.gates = nn.ModuleList(TriStateReLU(n) for n in WIDTHS[1:-1])

    def forward(self, x: Tensor) -> Tensor:
        """Return one score a digit."""
        for layer, gate in zip(self.layers[:-1], self.gates, strict=True):
            x = gate(layer(x))
        return self.layers[-1](x)


def penalty(net: GatedNet) -> Tensor:
    """Return what equations 4 and 5 add to the loss."""
    total = torch.zeros((), dtype=torch.float64)
    for gate in net.gates:
        width, depth = gate.width, gate.depth
        total = total + LAMBDA_1 * (width * (1 - width)).sum()  # equation 4: binary widths
        total = total + LAMBDA_2 * depth * (1 - depth)  # equation 4: binary depths
        if depth < 0.5:  # the indicator of equation 5, a constant for the gradient
            total = total + LAMBDA_3 * width.sum()  # equation 5: few neurons
        total = total - LAMBDA_4 * depth  # equation 5: few layers
    return total


@torch.no_grad()
def clip_(net: GatedNet) -> None:
    """Bring the gates back into [0, 1], where the binarising term has its minima at the ends."""
    for gate in net.gates.parameters():
        gate.clamp_(0, 1)


def read_digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return 1,400 digits to learn from and 397 to test on, with their labels."""
    digits, order = load_digits(), torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(digits.data)[order] / 16, torch.tensor(digits.target)[order]
    return x[:1400], y[:1400], x[1400:], y[1400:]


def train(net: GatedNet, x: Tensor, y: Tensor, n_epochs: int = N_EPOCHS) -> Iterator[float]:
    """Train weights and gates together; yield the loss of each step."""
    gates = {"params": net.gates.parameters(), "lr": GATE_RATE, "momentum": 0.0}
    weights = {"params": net.layers.parameters(), "lr": LEARNING_RATE, "momentum": MOMENTUM}
    optimizer = torch.optim.SGD([weights, gates])
    for epoch in range(n_epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH):
            loss = F.cross_entropy(net(x[batch]), y[batch]) + penalty(net)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            clip_(net)
            yield loss.item()


def make_linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Return a layer with these numbers."""
    layer = nn.Linear(weight.shape[1], weight.shape[0]).double()
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer


@torch.no_grad()
def compact(net: GatedNet) -> nn.Sequential:
    """Return a plain, smaller network that computes the same function."""
    layers, linear = [], []
    kept_in = torch.ones(WIDTHS[0], dtype=torch.bool)
    for place, layer in enumerate(net.layers):  # narrow: drop rows, and columns that read them
        last = place == len(net.gates)
        kept = torch.ones(WIDTHS[-1], dtype=torch.bool) if last else keep(net.gates[place].width)
        layers.append(make_linear(layer.weight[kept][:, kept_in], layer.bias[kept]))
        linear.append(not last and bool(net.gates[place].depth >= 0.5))
        kept_in = kept
    made: list[nn.Module] = [layers[0]]
    for layer, is_linear in zip(layers[1:], linear, strict=False):  # merge: W2 (W1 x + b1) + b2
        before = made[-1]
        weight, bias = layer.weight @ before.weight, layer.weight @ before.bias + layer.bias
        pays = weight.numel() < layer.weight.numel() + before.weight.numel() + len(before.bias)
        if is_linear and pays:
            made[-1] = make_linear(weight, bias)
            continue
        made += [layer] if is_linear else [nn.ReLU(), layer]
    return nn.Sequential(*made)


def describe(net: nn.Module, x: Tensor, y: Tensor) -> str:
    """Return a network's architecture, size and accuracy on one line."""
    widths = "-".join(str(m.out_features) for m in net.modules() if isinstance(m, nn.Linear))
    n_weights = sum(m.weight.numel() + len(m.bias) for m in net.modules() if hasattr(m, "bias"))
    right = (net(x).argmax(1) == y).double().mean()
    return f"{widths}: {n_weights:,} parameters, {right:.1%} right"


if __name__ == "__main__":
    torch.manual_seed(0)
    net, (x, y, x_test, y_test) = GatedNet(), read_digits()
    losses = list(train(net, x, y))
    small = compact(net)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print("before", describe(net, x_test, y_test))
    print("after ", describe(small, x_test, y_test))
    print(f"largest difference {(net(x_test) - small(x_test)).abs().max():.1e}")
