"""Saving writes a model's tensors and the description of its graph into one file."""

from collections.abc import Mapping
from inspect import Parameter, signature
from os import PathLike
from pathlib import Path

import torch
from torch import nn

from archlearn.errors import FileError
from archlearn.serialization.composite_layers import merge_classes
from archlearn.serialization.decoding import rebuild
from archlearn.serialization.encoding import describe
from archlearn.serialization.file_format import DTYPES, FORMAT, VERSION, write
from archlearn.serialization.layer_registry import LayerClass
from archlearn.serialization.schema import Description
from archlearn.serialization.stored_certificates import write_certificate
from archlearn.tracing.instance_forward import check_forwards
from archlearn.tracing.traces import ExampleInputs, Traces, trace


def save(
    model: nn.Module,
    path: str | PathLike[str],
    example_inputs: object = None,
    *,
    modules: Mapping[str, LayerClass] | None = None,
) -> None:
    """Write a model into one safetensors file that `load` needs none of your code to read.

    The model is saved by what its `forward` calls, so its own class need not be there when it
    is loaded. The file appears at `path` whole or not at all, and the same model gives the
    same bytes.

    Args:
        model: Any model whose `forward` can be traced. It is unchanged.
        path: Where to write. A file that is there is replaced.
        example_inputs: A tensor, a tuple of arguments or a dict of keyword arguments. Needed
            only where `forward` is to take arguments that have a default: those that are not
            given keep it for good.
        modules: Leaf classes of your own, by the names under which `load` will be given them.
            They are rebuilt from their attributes, without a call of their constructor.

    Raises:
        FileError: If a layer or a call cannot be written; nothing is written then.
        TracingError: If the model's `forward` cannot be followed.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    path, known = Path(path), merge_classes(modules)
    _refuse_gates(model, path)
    check_forwards(model, "save")
    traces = _find_traces(model, example_inputs, tuple((modules or {}).values()))
    if not path.parent.is_dir():
        raise FileError(
            f"cannot save to {path}: {str(path.parent)!r} is not a folder; make it first"
        )
    if path.is_dir():
        raise FileError(f"cannot save to {path}: it is a folder; name a file in it")
    try:
        description, tensors = describe(model, traces, known)
        _check_dtypes(tensors)
        text = description.to_json()
        rebuild(Description.from_json(text), known)  # what load would refuse is not written
        metadata = {"format": FORMAT, "version": str(VERSION), "description": text}
        certificate = write_certificate(model)
        if certificate is not None:
            metadata["certificate"] = certificate
        write(path, tensors, metadata)
    except FileError as error:
        raise FileError(f"cannot save {type(model).__name__} to {str(path)!r}: {error}") from error


def _find_traces(
    model: nn.Module, example_inputs: object, leaves: tuple[LayerClass, ...]
) -> Traces:
    """Return the graphs that a compact model was given, or follow the model's own forward."""
    graphs = vars(type(model)).get("_archlearn_graphs")
    if graphs is None:
        if example_inputs is None:
            example_inputs = getattr(model, "_archlearn_example", None) or _needed_inputs(model)
        inputs = None if example_inputs is None else ExampleInputs.of(example_inputs)
        return trace(model, inputs, leaves)
    return Traces(graphs[0], graphs[1] if len(graphs) > 1 else None, {})


def _needed_inputs(model: nn.Module) -> ExampleInputs | None:
    """Return a stand-in for each argument of `forward` that has no default."""
    parameters = signature(model.forward).parameters.values()
    needed = [p for p in parameters if p.default is Parameter.empty]
    if not needed or any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in needed):
        return None
    by_name = [p.name for p in needed if p.kind is p.KEYWORD_ONLY]
    n_by_place = len(needed) - len(by_name)
    stand_in = torch.empty(0)
    return ExampleInputs((stand_in,) * n_by_place, dict.fromkeys(by_name, stand_in), are_real=False)


def _refuse_gates(model: nn.Module, path: Path) -> None:
    if hasattr(model, "archlearn_gates"):
        raise FileError(
            f"cannot save {type(model).__name__} to {str(path)!r}: it still has gates; save "
            "archlearn.compact(model), or keep model.state_dict() as a checkpoint"
        )


def _check_dtypes(tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES.values():
            raise FileError(f"the tensor {name!r} is {dtype}, which a file cannot hold; convert it")
