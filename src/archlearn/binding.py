"""A generated `forward` is bound to a subclass of the user's own class.

So `isinstance` holds, attributes and methods are there, and no parameter changes its name.
"""

from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from archlearn.classes import GRAPHS, generate_class

_WRAPPERS = ("DataParallel", "DistributedDataParallel", "_FabricModule")


def bind_graphs_(net: nn.Module, graphs: Sequence[fx.Graph], prefix: str) -> None:
    """Give `net` a `forward` that runs the given graphs.

    Args:
        net: The model to change; its class becomes a subclass of what it was.
        graphs: The graph for evaluation and, if there are two, the one for training.
        prefix: Put in front of the name of the class.
    """
    base = user_class(net)
    net.__class__ = generate_class(base, f"{prefix}{base.__name__}", graphs, **{GRAPHS: graphs})


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside torch.compile, DataParallel, DDP or Lightning Fabric."""
    while True:
        inner: Any = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in _WRAPPERS:
            inner = model.module
        if inner is None:
            return model
        model = inner


def is_bound(net: nn.Module) -> bool:
    """Return whether a model runs a generated `forward`."""
    return GRAPHS in vars(type(net))


def user_class(net: nn.Module) -> type[nn.Module]:
    """Return the class that the user wrote, whatever has been bound to it since."""
    cls = type(net)
    while GRAPHS in vars(cls):
        cls = cls.__bases__[0]
    return cls
