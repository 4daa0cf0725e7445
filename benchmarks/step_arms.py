"""The networks and training steps whose costs are compared: plain, gated, and gated naively."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al
from benchmarks.torchvision_import import import_models

MODES = ("eager", "compiled", "compiled with penalty")
LEARNING_RATE, MOMENTUM = 1e-3, 0.9
STRENGTHS = al.Strengths.from_width_cost(3e-4)

Step = Callable[[], None]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A network, the batch that it is trained on, and how often its step is timed."""

    name: str
    build: Callable[[], nn.Module]
    batch: int
    shape: tuple[int, int, int]
    turns: int
    warm_up: int


def lenet() -> nn.Module:
    """Return the paper's 20-50-500-10, with max-pooling in front of the activation."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(20, 50, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(),
        nn.Linear(500, 10),
    )


def cifar_resnet18() -> nn.Module:
    """Return torchvision's resnet18 with the stem that images of 32 x 32 need."""
    net = import_models().resnet18(num_classes=10)
    net.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    net.maxpool = nn.Identity()
    return net


CASES = {
    "lenet": Case(name="lenet", build=lenet, batch=125, shape=(1, 28, 28), turns=200, warm_up=30),
    "resnet18": Case(
        name="resnet18", build=cifar_resnet18, batch=32, shape=(3, 32, 32), turns=20, warm_up=3
    ),
}


def plain_step(net: nn.Module, images: Tensor, labels: Tensor, mode: str) -> Step:
    """Return a step of the network as it is."""
    optimiser = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    loss_of = _loss_of(net.train(), None, mode)

    def step() -> None:
        loss = loss_of(images, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def gated_step(net: nn.Module, images: Tensor, labels: Tensor, mode: str) -> Step:
    """Return a step with all that a user's loop does: gates, penalty, clipping."""
    gated = al.add_gates(net, images).train()

    def penalty() -> Tensor:
        return al.penalty(gated, STRENGTHS)

    def clip() -> None:
        al.clip_gates_(gated)

    groups = al.parameter_groups(gated, LEARNING_RATE, momentum=MOMENTUM)
    return _learning_step(_loss_of(gated, penalty, mode), groups, clip, images, labels)


def budget_step(net: nn.Module, images: Tensor, labels: Tensor, mode: str) -> Step:
    """Return a step with a `GateOptimizer`, which decides as often as in a run of 4,400 steps."""
    gated = al.add_gates(net, images).train()
    optimiser = torch.optim.SGD(al.weights(gated), lr=LEARNING_RATE, momentum=MOMENTUM)
    schedule = al.GateSchedule(begin=0.0, end=0.6)
    gates = al.GateOptimizer(gated, 4400, budget={"multiply_adds": "50%"}, schedule=schedule)
    loss_of = _loss_of(gated, None, mode)

    def step() -> None:
        loss = loss_of(images, labels)
        optimiser.zero_grad()
        gates.zero_grad()
        loss.backward()
        optimiser.step()
        gates.step()

    return step


def naive_step(net: nn.Module, images: Tensor, labels: Tensor, mode: str) -> Step:
    """Return a step with the paper's equations written down as they stand, gate by gate."""
    sites = put_naive_gates_(net, images)
    gates = [gate for site in sites for gate in (site.width, site.depth)]
    known = {id(gate) for gate in gates}
    weights = [parameter for parameter in net.parameters() if id(parameter) not in known]

    def penalty() -> Tensor:
        return sum((site.penalty() for site in sites), torch.zeros(()))

    def clip() -> None:
        for gate in gates:
            gate.data.clamp_(0, 1)

    groups = [{"params": weights, "momentum": MOMENTUM}, {"params": gates, "momentum": 0.0}]
    return _learning_step(_loss_of(net.train(), penalty, mode), groups, clip, images, labels)


class NaiveTriState(nn.Module):
    """Equation 2 in three passes over the activations: `w·(d·x + (1−d)·relu(x))`."""

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.width = nn.Parameter(torch.full((n_channels,), 0.55))
        self.depth = nn.Parameter(torch.tensor(0.45))

    def forward(self, x: Tensor) -> Tensor:
        """Return the gated activation."""
        width = self.width + ((self.width >= 0.5).float() - self.width).detach()
        depth = self.depth + ((self.depth >= 0.5).float() - self.depth).detach()
        mixed = depth * x + (1 - depth) * torch.relu(x)
        return width.view(-1, *[1] * (x.dim() - 2)) * mixed

    def penalty(self) -> Tensor:
        """Return the terms of equations 4 and 5 of this site."""
        width, depth = self.width, self.depth
        complexity = width.sum() * (depth < 0.5)
        return (
            STRENGTHS.width_binarise * (width * (1 - width)).sum()
            + STRENGTHS.depth_binarise * depth * (1 - depth)
            + STRENGTHS.width_cost * complexity
            - STRENGTHS.depth_cost * depth
        )


def put_naive_gates_(net: nn.Module, images: Tensor) -> list[NaiveTriState]:
    """Put a naive site in the place of every ReLU; calls that share one share its gates."""
    channels: dict[str, int] = {}
    hooks = [
        module.register_forward_hook(
            lambda _, inputs, __, name=name: channels.update({name: inputs[0].shape[1]})
        )
        for name, module in net.named_modules()
        if isinstance(module, nn.ReLU)
    ]
    with torch.no_grad():
        net.eval()(images[:2])
    for hook in hooks:
        hook.remove()
    sites = {name: NaiveTriState(n_channels) for name, n_channels in channels.items()}
    for name, site in sites.items():
        net.set_submodule(name, site)
    return list(sites.values())


def _loss_of(net: nn.Module, penalty: Callable[[], Tensor] | None, mode: str) -> Loss:
    forward = torch.compile(net) if mode == "compiled" else net

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(forward(images), labels)
        return loss if penalty is None else loss + penalty()

    return torch.compile(loss_of) if mode == "compiled with penalty" else loss_of


def _learning_step(
    loss_of: Loss,
    groups: list[dict[str, object]],
    clip: Callable[[], None],
    images: Tensor,
    labels: Tensor,
) -> Step:
    optimiser = torch.optim.SGD(groups, lr=LEARNING_RATE, momentum=MOMENTUM)

    def step() -> None:
        loss = loss_of(images, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        clip()

    return step
