"""Set aside a `forward` that was put on an instance: by torch.compile, Accelerate, or by hand.

An attribute of the instance hides the `forward` of its class, which is the one that carries gates
and the one that a compact model is given. It is mostly a closure, so a copy of the model would go
on calling the original.
"""

import functools
import types
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from archlearn.errors import InputError

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

    Args:
        model: Any model.
        call: What was asked for, to be named in the error.
        may_be_wrapped: Whether torch.compile and Accelerate may stand around the model's own.

    Raises:
        InputError: If there is one.
    """
    for name, module in model.named_modules():
        forward = vars(module).get("forward")
        if forward is None or (_is_wrapped(module) and (may_be_wrapped or name)):
            continue
        if isinstance(module, torch.jit.ScriptModule) or "_orig_mod" in module._modules:
            continue  # scripted and compiled modules make theirs anew in a copy
        if not name or _reaches(forward, model):
            path = f"model.{name}.forward" if name else "model.forward"
            raise InputError(
                f"{path} was put on the instance ({_describe(module)}) and hides the forward of "
                f"{type(module).__name__}: a copy would lose it or go on calling this model. "
                f"`del {path}`, call {call} on the model as it is then, and wrap what that returns"
            )


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


def _reaches(forward: Any, model: nn.Module) -> bool:
    """Return whether a copy of `forward` would still hold a module or a tensor of the model.

    Whatever a function holds from around it stays the original's, for functions are not copied.
    All else that leads to a module (a bound method, a partial function) is copied with it.
    """
    own = {id(each) for each in (*model.modules(), *model.parameters(), *model.buffers())}
    waiting, seen = [(forward, False)], set[tuple[int, bool]]()
    while waiting:
        value, is_shared = waiting.pop()
        if is_shared and id(value) in own:
            return True
        if (id(value), is_shared) in seen or isinstance(value, type | nn.Module):
            continue
        seen.add((id(value), is_shared))
        is_shared = is_shared or isinstance(value, types.FunctionType)
        waiting += [(part, is_shared) for part in _parts_of(value)]
    return False


def _parts_of(value: Any) -> Iterable[Any]:
    if isinstance(value, types.FunctionType):
        cells = [_contents(cell) for cell in value.__closure__ or ()]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, tuple | list | set):
        return value
    return vars(value).values() if callable(value) and hasattr(value, "__dict__") else ()


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
