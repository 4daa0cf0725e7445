"""`ExampleInputs`: bind a call's arguments, and check later calls against them."""

import inspect as python_inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map_only

from archlearn.errors import InputError, with_article
from archlearn.module_utils import is_exchanged


@dataclass(frozen=True, slots=True)
class ExampleInputs:
    """The arguments of one call of the model, by position and by keyword.

    Attributes:
        are_real: Whether the model runs on them; stand-ins only say which arguments there are.
        may_count_positions: Whether `position_ids`, left out, are 0, 1, 2, ... in every row.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    are_real: bool = True
    may_count_positions: bool = False

    @classmethod
    def of(cls, example_inputs: object) -> "ExampleInputs":
        """Accept a tensor, a tuple of arguments or a dict of keyword arguments."""
        if isinstance(example_inputs, ExampleInputs):
            return example_inputs
        if isinstance(example_inputs, Tensor):
            return cls((example_inputs,), {})
        if isinstance(example_inputs, tuple | list):
            return cls(tuple(example_inputs), {})
        if isinstance(example_inputs, Mapping):
            return cls((), dict(example_inputs))
        raise InputError(
            f"example_inputs is {with_article(type(example_inputs).__name__)}; give a tensor, a "
            "tuple of arguments, or a dict of keyword arguments, as one call of the model takes "
            "them"
        )

    def tensors(self) -> list[Tensor]:
        """Return all tensors, however they are nested."""
        leaves = tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def map(self, change: Callable[[Tensor], Any]) -> "ExampleInputs":
        """Return the same inputs with every tensor changed."""
        args, kwargs = tree_map_only(Tensor, change, (self.args, self.kwargs))
        return replace(self, args=args, kwargs=kwargs)

    def to(self, *args: Any, floating_only: bool = False) -> "ExampleInputs":
        """Return the same inputs with every tensor (or every floating one) moved."""
        return self.map(
            lambda x: x.detach().to(*args) if x.is_floating_point() or not floating_only else x
        )

    def copy(self) -> "ExampleInputs":
        """Return the same inputs with every tensor copied: a model may change them in place."""
        return self.map(lambda x: x.detach().clone())

    def with_other_values(self) -> "ExampleInputs":
        """Return inputs of the same sizes: every tensor turned round, and numbers changed."""

        def change(x: Tensor) -> Tensor:
            turned = x.detach().flip(-1) if x.dim() else x
            return 0.5 * turned + 0.25 if x.dim() and x.is_floating_point() else turned

        return self.map(change)


DEFAULT = "<default>"
"""Stands in a graph for a default that it cannot hold, such as a function."""
_ITS_DEFAULT = object()
_SAID = 200  # longer values are named by their class
_WAY_OUT = "put the value that you use into example_inputs"
_SIZES = (
    "the example chose the path of forward: give inputs of sizes that take the same one, or an "
    "example of the sizes that you use"
)
_ONE_TOKEN = (
    "there a single token takes another path than several do: give more tokens, or gates to a "
    'model that was made with attn_implementation="eager"'
)
_CACHES = (
    "a model with gates, and its compact one, keep no cache of keys and values: leave it out, or "
    "give use_cache=False"
)
_ENCODER = (
    "a model with gates, and its compact one, run encoder and decoder in one call, and generate() "
    "runs them apart: give each gates of its own (model.encoder = al.add_gates(model.encoder, x), "
    'and so the decoder), in a model that was made with attn_implementation="eager"'
)
_GIVEN = "put into example_inputs what you give to the model"
_LEFT_OUT = {
    "labels": "the loss is a part of this model: give any labels of the right shape, or leave them "
    "out of example_inputs and compute the loss outside (Trainer: compute_loss_func=)"
}
_ADVICE = {"use_cache": _CACHES, "past_key_values": _CACHES, "encoder_outputs": _ENCODER}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of `forward`, as it was in the example call.

    Attributes:
        is_followed: Whether it holds tensors; anything else is fixed when the model is traced.
        default: What it is where it is left out; None if it has no default.
    """

    name: str
    value: Any
    is_followed: bool
    by_keyword: bool
    is_given: bool = True
    is_optional: bool = False
    default: Any = None

    def held(self) -> Any:
        """Return the value as a graph can hold it, to be compared with that of another call."""
        if is_plain(self.value):
            return self.value
        if self.value is self.default:
            return DEFAULT
        raise InputError(
            f"the argument {self.name!r} is {with_article(type(self.value).__name__)}, which "
            "cannot be compared with that of a later call; make it an attribute of the model, or "
            "leave it out where it has a default"
        )


def bind_arguments(
    forward: Callable[..., Any], owner: str, inputs: ExampleInputs
) -> list[Argument]:
    """Return the arguments of `forward` in the order of its signature, defaults filled in."""
    signature = python_inspect.signature(forward)
    try:
        bound = signature.bind(None, *inputs.args, **inputs.kwargs)
    except TypeError as error:
        raise InputError(
            f"example_inputs do not fit {owner}.forward{signature}: {error}; give them as one "
            "call of the model takes them"
        ) from error
    named = set(bound.arguments)
    bound.apply_defaults()
    arguments: list[Argument] = []
    for position, (name, value) in enumerate(bound.arguments.items()):
        parameter = signature.parameters[name]
        if parameter.kind is python_inspect.Parameter.VAR_POSITIONAL:
            parts = [(f"{name}_{i}", part, False) for i, part in enumerate(value)]
        elif parameter.kind is python_inspect.Parameter.VAR_KEYWORD:
            parts = [(key, part, True) for key, part in value.items()]
        else:
            parts = [(name, value, position > len(inputs.args))]
        is_optional = parameter.default is not python_inspect.Parameter.empty
        default = parameter.default if is_optional else None
        arguments += [
            Argument(
                name=n,
                value=v,
                is_followed=any(isinstance(leaf, Tensor) for leaf in tree_leaves(v)),
                by_keyword=by_name,
                is_given=name in named,
                is_optional=is_optional,
                default=default,
            )
            for n, v, by_name in parts
        ]
    return arguments[1:]


def further_keywords(forward: Callable[..., Any]) -> str:
    """Return the name under which `forward` takes any other keywords (`**kwargs`), or ''."""
    parameters = python_inspect.signature(forward).parameters.values()
    kind = python_inspect.Parameter.VAR_KEYWORD
    return next((parameter.name for parameter in parameters if parameter.kind is kind), "")


def values_for(graph: fx.Graph, inputs: ExampleInputs) -> list[Any]:
    """Return what the placeholders of a traced graph take for the given inputs."""
    names = [(str(n.target), n.args) for n in graph.nodes if n.op == "placeholder"]
    left = iter(inputs.args)
    values: list[Any] = []
    for name, default in names:
        if name.startswith("**"):
            values.append({})
        elif name in inputs.kwargs:
            values.append(inputs.kwargs[name])
        else:
            values.append(next(left, default[0] if default else None))
    return values


def check_argument(value: Any, fixed: Any, name: str, default: Any = None) -> None:
    """Raise if an argument that was fixed when the model was traced is given otherwise.

    `default` is what is meant where it is left out, as a model's `config` says it.
    """
    if default is not None and _is_equal(value, default):
        return
    if fixed == DEFAULT:
        if value is None:
            return
        fixed = _ITS_DEFAULT
    if value is not fixed and not _is_equal(value, fixed):
        raise InputError(
            f"{name} is {_say(value)}, but the model was traced with {_say(fixed)}; {_advise(name)}"
        )


def _advise(name: str) -> str:
    if "sdpa_attention.py" in name:
        return _ONE_TOKEN
    return _SIZES if " at " in name else _ADVICE.get(name, _WAY_OUT)


def check_keywords(keywords: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Raise if `forward` is given a keyword that it was traced without.

    None, and what a model's `config` says anyway, change nothing.
    """
    for name, value in keywords.items():
        if value is not None and not (name in defaults and _is_equal(value, defaults[name])):
            raise InputError(
                f"{name} is {_say(value)}, but the model was traced without {name}; "
                f"{_ADVICE.get(name, _WAY_OUT)}"
            )


def check_given(value: Any, name: str) -> None:
    """Raise if a tensor is left out that was given when the model was traced."""
    if value is None:
        raise InputError(
            f"{name} is left out, but the model was traced with it; {_LEFT_OUT.get(name, _GIVEN)}"
        )


def ones_if_left_out(mask: Tensor | None, tokens: Tensor) -> Tensor:
    """Return an attention mask, or one that hides no token."""
    return torch.ones_like(tokens) if mask is None else mask


def positions_if_left_out(
    positions: Tensor | None, tokens: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Return `position_ids`, or 0, 1, 2, ... in every row.

    Raises:
        InputError: If positions start again within a row and there is no mask: transformers takes
            such a row for several sequences, and hides them from each other.
    """
    if positions is None:
        return torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
    is_exported = torch.compiler.is_compiling() or torch.jit.is_tracing()
    if mask is None and not is_exported and bool((positions.diff(dim=-1) != 1).any()):
        raise InputError(
            "position_ids start again within a row: packed sequences are not followed; give "
            "attention_mask as well, or one sequence a row"
        )
    return positions.expand(tokens.shape)


def check_kind(value: Any, fixed: Any, name: str) -> None:
    """Raise if the type or device of a tensor has another answer than when the model was traced.

    Nothing is asked while a model runs in double precision for a while: that compares models.
    """
    if not is_exchanged():
        check_argument(bool(value), fixed, name)


CHECKS = (check_argument, check_keywords, check_kind, check_given)
"""What a graph calls to refuse inputs that it was not traced for."""


def is_plain(value: Any) -> bool:
    """Return whether a value can stand in a graph as it is."""
    if isinstance(value, dict):
        return all(is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, tuple | list):
        return type(value) in (tuple, list, torch.Size) and all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device)


def _is_equal(value: Any, fixed: Any) -> bool:
    if isinstance(value, Tensor):
        if not torch.jit.is_tracing() or value.dim():
            return False
        value = value.item()  # torch.jit.trace gives sizes as tensors
    if isinstance(value, torch.SymBool):  # torch.export cannot compare what asks for a size
        value = bool(value)
    try:
        return bool(value == fixed)
    except (RuntimeError, ValueError, TypeError):  # tensors and arrays inside
        return False


def _say(value: Any) -> str:
    if isinstance(value, Tensor) and value.dim():
        return f"a tensor of shape {tuple(value.shape)}"
    if value is _ITS_DEFAULT:
        return "its default"
    text = repr(value)
    return text if len(text) <= _SAID else with_article(type(value).__name__)


def count_examples(inputs: ExampleInputs) -> int:
    """Return the number of rows of example inputs; 1 where they have none."""
    return next((x.shape[0] for x in inputs.tensors() if x.dim()), 1)
