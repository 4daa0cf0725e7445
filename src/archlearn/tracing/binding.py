"""A generated `forward` is bound to a subclass of the user's own class.

So `isinstance` holds, attributes and methods are there, and no parameter changes its name.
"""

import copy
from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from archlearn.tracing.block_hooks import BlockCall, silence_hooks_, without_marks
from archlearn.tracing.generated_forward import GRAPHS, generate_class

_WRAPPERS = ("DataParallel", "DistributedDataParallel", "_FabricModule")


def bind_graphs_(
    net: nn.Module, graphs: Sequence[fx.Graph], prefix: str, blocks: Sequence[BlockCall] = ()
) -> None:
    """Give `net` a `forward` that runs the given graphs.

    Args:
        net: The model to change; its class becomes a subclass of what it was.
        graphs: The graph for evaluation and, if there are two, the one for training.
        prefix: Put in front of the name of the class.
        blocks: Calls of submodules that the graphs hold the calls of, for their hooks.
    """
    silence_hooks_(net, graphs, blocks)
    base = user_class(net)
    plain = [without_marks(graph) for graph in graphs]
    net.__class__ = generate_class(base, f"{prefix}{base.__name__}", graphs, **{GRAPHS: plain})


def without_graph_module(net: nn.Module) -> nn.Module:
    """Return a `torch.fx.GraphModule` as an ordinary module with the same parts; others as is.

    A GraphModule makes a class of its own for each copy, with its own graph as `forward`: what is
    bound to it would be lost. torchvision's feature extractors hold two graphs, one for each mode.
    """
    if not isinstance(net, fx.GraphModule):
        return net
    graphs = [getattr(net, "eval_graph", net.graph), getattr(net, "train_graph", net.graph)]
    if str(graphs[0]) == str(graphs[1]):
        graphs = graphs[:1]
    name = next(c.__name__ for c in type(net).__mro__ if c.__name__ != "GraphModuleImpl")
    made = nn.Module()
    own = vars(fx.GraphModule(nn.Module(), fx.Graph())).keys() - vars(made).keys()
    for key, value in vars(net).items():
        if key not in own and not isinstance(value, fx.Graph):
            vars(made)[key] = value
    made.__class__ = generate_class(nn.Module, name, [copy.deepcopy(graph) for graph in graphs])
    return made


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
