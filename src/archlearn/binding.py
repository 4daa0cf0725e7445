"""A generated `forward` is bound to a subclass of the user's own class.

So `isinstance` holds, attributes and methods are there, and no parameter changes its name.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx, nn

_WRAPPERS = ("DataParallel", "DistributedDataParallel", "_FabricModule")


def bind_graphs_(net: nn.Module, graphs: Sequence[fx.Graph], prefix: str) -> None:
    """Give `net` a `forward` that runs the given graphs.

    Args:
        net: The model to change; its class becomes a subclass of what it was.
        graphs: The graph for evaluation and, if there are two, the one for training.
        prefix: Put in front of the name of the class.
    """
    runs = [_forward_of(net, graph) for graph in graphs]
    namespace: dict[str, Any] = {"__module__": type(net).__module__, "_archlearn_graphs": graphs}
    if len(runs) == 1:
        namespace["forward"] = runs[0]
    else:
        namespace |= {"_evaluate": runs[0], "_train": runs[1], "forward": _by_mode(runs[0])}
    base = user_class(net)
    net.__class__ = type(f"{prefix}{base.__name__}", (base,), namespace)


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
    return "_archlearn_graphs" in vars(type(net))


def user_class(net: nn.Module) -> type[nn.Module]:
    """Return the class that the user wrote, whatever has been bound to it since."""
    cls = type(net)
    while "_archlearn_graphs" in vars(cls):
        cls = cls.__bases__[0]
    return cls


def _by_mode(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(evaluate)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = self._train if self.training else self._evaluate
        return run(*args, **kwargs)

    return forward


def _forward_of(net: nn.Module, graph: fx.Graph) -> Callable[..., Any]:
    return type(fx.GraphModule(net, graph)).forward
