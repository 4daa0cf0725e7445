"""A kind is one way of writing a network, with what can be learnt in it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.utils import _pytree as pytree

BATCH = 4

Part = nn.Module | nn.Parameter | int
Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A tiny network, how to call it, and what archlearn should find in it.

    Attributes:
        name: What the kind is called in test reports.
        build: Returns a new network, in float32 and training mode.
        inputs: Returns new random inputs, as `add_gates` takes them.
        widths: Channels of the sites whose width is learnt. The widths within one
            network differ, so that this says which sites are meant.
        depths: Channels of the sites whose depth is learnt.
        note: What makes this kind hard, where that is not plain.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    widths: frozenset[int] = frozenset()
    depths: frozenset[int] = frozenset()
    note: str = ""

    @property
    def learns_width(self) -> bool:
        """Whether the width of any site is learnt."""
        return bool(self.widths)

    @property
    def learns_depth(self) -> bool:
        """Whether the depth of any site is learnt."""
        return bool(self.depths)


class Net(nn.Module):
    """A module whose parts are given by name; subclasses only write `forward`."""

    def __init__(self, **parts: Part) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def batch(*shape: int) -> Callable[[], Tensor]:
    """Return a function that draws a new batch of this shape."""
    return lambda: torch.randn(BATCH, *shape)


def parts(cls: type[Net], **factories: Callable[[], Part]) -> Callable[[], nn.Module]:
    """Return a function that builds a network with new parts each time."""
    return lambda: cls(**{name: factory() for name, factory in factories.items()})


def kind(
    name: str,
    build: Callable[[], nn.Module],
    inputs: Callable[[], Inputs],
    widths: tuple[int, ...] = (),
    depths: tuple[int, ...] = (),
    note: str = "",
) -> Kind:
    """Return a `Kind`, written on one line."""
    return Kind(
        name=name,
        build=build,
        inputs=inputs,
        widths=frozenset(widths),
        depths=frozenset(depths),
        note=note,
    )


@torch.no_grad()
def randomise_(net: nn.Module, seed: int) -> None:
    """Give every BatchNorm statistics and scales that are far from neutral.

    A fresh BatchNorm is nearly the identity, and would hide a mistake in folding it.
    One scale in each is negative.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in net.modules():
        if not isinstance(module, _BatchNorm):
            continue
        for tensor, low, high in (
            (module.running_mean, -1.0, 1.0),
            (module.running_var, 0.5, 2.0),
            (module.weight, 0.5, 1.5),
            (module.bias, -1.0, 1.0),
        ):
            if tensor is not None:
                drawn = torch.rand(tensor.shape, generator=generator) * (high - low) + low
                tensor.copy_(drawn.to(tensor))
        if module.affine:
            module.weight[0] *= -1


def in_double(inputs: Inputs) -> Any:
    """Return the same inputs with every floating-point tensor in float64."""

    def cast(leaf: Any) -> Any:
        floating = isinstance(leaf, Tensor) and leaf.is_floating_point()
        return leaf.double() if floating else leaf

    return pytree.tree_map(cast, inputs)


def call(net: nn.Module, inputs: Inputs) -> Any:
    """Return what `net` gives for inputs in any of the forms `add_gates` takes."""
    if isinstance(inputs, Tensor):
        return net(inputs)
    if isinstance(inputs, tuple):
        return net(*inputs)
    return net(**inputs)
