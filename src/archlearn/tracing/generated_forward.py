"""Subclasses with a generated `forward` that can be pickled and copied.

So `isinstance` holds, attributes and methods are there, and no parameter changes its name. A
`forward` that torch.compile, Accelerate or a user put on an instance hides that of its class. It is
mostly a closure, so that a copy would go on calling the original: it is set aside, or refused.
"""

import copy
import copyreg
import functools
import types
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from inspect import Parameter, Signature, signature
from typing import Any, cast

import torch
from torch import fx, nn

from archlearn.errors import InputError, check_kind
from archlearn.tracing.block_hooks import (
    BlockCall,
    call_hooks_at_marks,
    silence_hooks_,
    without_marks,
)
from archlearn.tracing.example_inputs import DEFAULT, check_argument
from archlearn.tracing.fx_utils import Packed, compile_graph, pack_graph, unpack_graph

GRAPHS = "_archlearn_graphs"
MODE_READERS = "_archlearn_mode_readers"
_RECIPE = "_archlearn_recipe"


def generate_class(
    base: type[nn.Module], name: str, graphs: Sequence[fx.Graph], **attributes: Any
) -> type[nn.Module]:
    """Return a subclass of `base` whose `forward` runs the given graphs.

    The first is for evaluation and, if there are two, the second for training.
    """
    runs = [compile_graph(call_hooks_at_marks(graph)) for graph in graphs]
    if GRAPHS in attributes:
        cast(Any, runs[0]).__signature__ = _signature(graphs[0])
    recipe = (base, name, tuple(graphs), attributes)
    namespace = {"__module__": base.__module__, _RECIPE: recipe, **attributes, "forward": runs[0]}
    if GRAPHS in attributes or len(runs) > 1:
        namespace |= {"_evaluate": runs[0], "_train": runs[-1], "forward": _by_mode(runs[0])}
    return _metaclass(type(base))(name, (base,), namespace)


def _signature(graph: fx.Graph) -> Signature:
    """Return the arguments that may differ from call to call.

    An argument that must have its default is left out: `generate` and `Trainer` of transformers
    give to a model whatever its signature names. Labels are not, or they would drop them unseen.
    """
    shown = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    kind = Parameter.POSITIONAL_OR_KEYWORD
    for node in graph.find_nodes(op="placeholder"):
        name, default = str(node.target), node.args[0] if node.args else Parameter.empty
        checks = [user.args for user in node.users if user.target is check_argument]
        is_hidden = any(bool(node.args) and args[1] in (default, DEFAULT) for args in checks)
        if name.startswith("**") or (is_hidden and "label" not in name):
            kind = Parameter.KEYWORD_ONLY
        else:
            shown.append(Parameter(name, kind, default=default))
    return Signature(shown)


def _by_mode(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `forward` that asks the model what to run, so that it serves a class to come too.

    `shrink_` changes the class; Accelerate and torch.compile hold the `forward` they wrapped.
    """

    @functools.wraps(evaluate)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name in getattr(self, MODE_READERS, ()):
            _check_mode(self, name)
        run = self._train if self.training else self._evaluate
        return run(*args, **kwargs)

    cast(Any, forward).__signature__ = signature(evaluate)
    del forward.__wrapped__  # Accelerate would take it for what stood there before its own wrapper
    return forward


def _check_mode(model: nn.Module, name: str) -> None:
    """Refuse a submodule in another mode: what it decides by its own is part of the graphs."""
    module = model.get_submodule(name)
    if module.training is not model.training:
        mode, other = ("training", "evaluation")[:: 1 if module.training else -1]
        raise InputError(
            f"{name!r} is in {mode} mode, but the model is in {other} mode, and what {name!r} does "
            "by its mode was followed with the model's; use nn.Dropout there in place of "
            "F.dropout(x, training=self.training), or name it in leaves=[...] of add_gates: "
            "layers of torch and leaves keep their own modes"
        )


@functools.cache
def _metaclass(base: type) -> Any:
    """Return the class of generated classes whose base is of the given class.

    Pickle looks a class up by its name, which a generated one does not have. It asks the class
    of the class first.
    """
    generated = type(f"Generated{base.__name__}", (base,), {})
    copyreg.pickle(cast(Any, generated), _reduce)
    return generated


def _reduce(generated: type[nn.Module]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    base, name, graphs, attributes = vars(generated)[_RECIPE]
    kept = {key: value for key, value in attributes.items() if key != GRAPHS}
    packed = tuple(pack_graph(graph) for graph in graphs)
    return _generate_again, (base, name, packed, kept, GRAPHS in attributes)


def _generate_again(
    base: type[nn.Module], name: str, packed: tuple[Packed, ...], kept: dict[str, Any], bound: bool
) -> type[nn.Module]:
    graphs = [unpack_graph(packed_graph) for packed_graph in packed]
    if bound:
        kept |= {GRAPHS: [without_marks(graph) for graph in graphs]}
    return generate_class(base, name, graphs, **kept)


def generated_graphs(model: nn.Module) -> Sequence[fx.Graph] | None:
    """Return the graphs of a compact model, and of one whose `forward` takes any keyword, or None.

    Other generated ones can be traced, and may hold parts that a user has put there since.
    """
    graphs = forward_graphs(model)
    takes_any = any("**" in str(node.target) for graph in graphs for node in graph.nodes)
    return vars(type(model)).get(GRAPHS, graphs if takes_any else None)


def forward_graphs(model: nn.Module) -> Sequence[fx.Graph]:
    """Return the graphs that a generated `forward` was made from, or none."""
    attributes = vars(type(model))
    return attributes[_RECIPE][2] if _RECIPE in attributes else ()


_WRAPPERS = ("DataParallel", "DistributedDataParallel", "_FabricModule", "AveragedModel")


def bind_graphs_(
    net: nn.Module,
    graphs: Sequence[fx.Graph],
    prefix: str,
    blocks: Sequence[BlockCall] = (),
    **methods: Callable[..., Any],
) -> None:
    """Give `net` a `forward` that runs the given graphs: its class becomes a subclass.

    `blocks` are the submodules whose calls the graphs hold, for their hooks. `methods` take the
    place of the class's own.
    """
    silence_hooks_(net, graphs, blocks)
    base = user_class(net)
    plain = [without_marks(graph) for graph in graphs]
    attributes = {GRAPHS: plain, **methods}
    net.__class__ = generate_class(base, f"{prefix}{base.__name__}", graphs, **attributes)


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
    plain = nn.Module()
    of_graph_modules = vars(fx.GraphModule(nn.Module(), fx.Graph())).keys() - vars(plain).keys()
    for key, value in vars(net).items():
        if key not in of_graph_modules and not isinstance(value, fx.Graph):
            vars(plain)[key] = value
    plain.__class__ = generate_class(nn.Module, name, [copy.deepcopy(graph) for graph in graphs])
    return plain


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside torch.compile, DataParallel, DDP, Fabric or AveragedModel."""
    advice = "give an nn.Module, made already, not its parameters or state_dict"
    check_kind("the model", model, nn.Module, advice)
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


_COMPILED = "_torchdynamo_orig_callable"
_ORIGINAL = "_original_forward"  # where Accelerate keeps what it wraps
_COMPILED_CALL = "_compiled_call_impl"  # of `module.compile()`


@contextmanager
def class_forwards(*models: nn.Module) -> Generator[None]:
    """Let modules run the `forward` of their class, without torch.compile and Accelerate around it.

    What else was put on an instance stays there.
    """
    removed = [(module, remove_wrapper_(module)) for model in models for module in model.modules()]
    try:
        yield
    finally:
        for module, held in removed:
            vars(module).update(held)


def remove_wrapper_(module: nn.Module) -> dict[str, Any]:
    """Take away what torch.compile and Accelerate put on a module; return that."""
    names = ["forward", _ORIGINAL] if _is_wrapped(module) else []
    held = vars(module)
    return {name: held.pop(name) for name in [*names, _COMPILED_CALL] if name in held}


def check_forwards(model: nn.Module, call: str, *, may_be_wrapped: bool = True) -> None:
    """Refuse a model with a `forward` on an instance that a copy would share, or lose.

    torch.compile and Accelerate may stand around the model's own. The error names the `call` that
    was asked for.
    """
    for name, module in model.named_modules():
        forward = vars(module).get("forward")
        if forward is None or (_is_wrapped(module) and (may_be_wrapped or name)):
            continue
        if isinstance(module, torch.jit.ScriptModule) or "_orig_mod" in module._modules:
            continue  # scripted and compiled modules make theirs anew in a copy
        if not name or _holds_module(forward):
            path = f"model.{name}.forward" if name else "model.forward"
            raise InputError(
                f"{path} was put on the instance ({_describe(module)}) and hides the forward of "
                f"{type(module).__name__}: a copy would lose it or go on calling this model. "
                f"`del {path}`, call {call} on the model as it is then, and wrap what that returns"
            )


_EMPTY = types.CellType()  # of a variable that has no value yet


def _holds_module(function: Any) -> bool:
    """Return whether a function holds a module or tensor from around it, which copies would share.

    The module that a method is bound to is copied with it.
    """
    waiting, seen = [function], set[int]()
    while waiting:
        value = waiting.pop()
        seen.add(id(value))
        cells = getattr(getattr(value, "__func__", value), "__closure__", None) or ()
        held = [cell.cell_contents for cell in cells if cell != _EMPTY]
        if any(isinstance(getattr(v, "__self__", v), nn.Module | torch.Tensor) for v in held):
            return True
        waiting += [v for v in held if id(v) not in seen]
    return False


def _is_wrapped(module: nn.Module) -> bool:
    """Return whether an instance's `forward` is its class's, perhaps in wrappers that are known."""
    held = vars(module)
    forward = held.get("forward")
    while forward is not None:
        if getattr(forward, "__func__", forward) is getattr(type(module), "forward", None):
            return True
        if hasattr(forward, _COMPILED):
            forward = getattr(forward, _COMPILED)
        elif _is_of_accelerate(forward):
            forward = held.get(_ORIGINAL)
        else:
            return False
    return False


def _is_of_accelerate(forward: Any) -> bool:
    wrapped = type(getattr(forward, "__wrapped__", None))
    return wrapped.__module__.startswith("accelerate.")


def _describe(module: nn.Module) -> str:
    forward = vars(module)["forward"]
    if hasattr(forward, _COMPILED):
        return "by torch.compile"
    name = getattr(forward, "__qualname__", type(forward).__name__)
    return "by Accelerate" if _is_of_accelerate(forward) else f"it is {name}"
