"""`export_model`: write a model as ONNX or by torch.export, and compare it with the model."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from archlearn.errors import ArchlearnError, FileError, InputError, check_installed, first_line
from archlearn.gating.cost_counter import known_inputs
from archlearn.module_utils import evaluating
from archlearn.tracing.example_inputs import ExampleInputs
from archlearn.tracing.generated_forward import forward_graphs
from archlearn.tracing.output_types import tensors_in
from archlearn.verification.certificate import TOLERANCES, difference

Run = Callable[[ExampleInputs], list[Tensor]]
Limits = Mapping[int, tuple[float, float]]
"""The least and the largest size along a dimension, where not every size will do."""
Written = tuple[tuple[Path, ...], Run, Limits]
"""The files that were written, what runs them, and the sizes that they are right for."""
ANY_BATCH = (0,)
TOLERANCE = 1e-4
"""The largest difference to the model, for the size of its outputs; other programs sum in float32
in an order of their own."""
_OTHERS = "another format or archlearn.save may serve"


@dataclass(frozen=True, slots=True)
class Exported:
    """A file for other programs.

    Attributes:
        paths: The files.
        difference: The largest difference to the model's outputs, for their size.
        n_bytes: What the files take on disk.
        limits: The sizes that they are right for, by dimension, where the model asks for its size.
            ONNX cannot refuse others.
    """

    paths: tuple[Path, ...]
    difference: float
    n_bytes: int
    limits: Limits = field(default_factory=dict[int, tuple[float, float]])

    def __str__(self) -> str:
        names = ", ".join(str(path) for path in self.paths)
        limits = "".join(_describe_limit(dim, *sizes) for dim, sizes in self.limits.items())
        return f"{names}: {self.n_bytes:,} bytes, differs by {self.difference:.1e}{limits}"


def _describe_limit(dim: int, least: float, largest: float) -> str:
    bounds = f"{least} to {largest}" if largest < math.inf else f"at least {least}"
    bounds = f"at most {largest}" if least == 0 else bounds
    return f", for {bounds} {'rows' if dim == 0 else f'along dimension {dim}'}"


def export_model(
    model: nn.Module,
    path: str | PathLike[str],
    to: str,
    example_inputs: object = None,
    *,
    dynamic_dims: Iterable[int] = ANY_BATCH,
) -> Exported:
    """Write a model for other programs, and run what was written beside the model.

    Args:
        model: Any model; it is run in evaluation mode.
        path: The file to write.
        to: "onnx" or "torch-export".
        example_inputs: Arguments for one call, of two rows or more; a compact model knows its own.
        dynamic_dims: The dimensions of inputs that may have any size, that of the batch by default:
            (0, 1) for tokens of any length, (0, 2, 3) for images.

    Raises:
        InputError: If there is no such format, or a package is missing.
        FileError: If the model cannot be exported, or what was written computes something else.
    """
    if to not in FORMATS:
        raise InputError(f"to={to!r} is no format; choose one of {', '.join(FORMATS)}")
    inputs, path = known_inputs(model, example_inputs), Path(path)
    dims = _check_dims(dynamic_dims, inputs)
    if to == "onnx":
        check_installed("export to ONNX", "export", "onnx", "onnxscript", "onnxruntime")
    with evaluating(model), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own parts about one another
        try:
            model(*inputs.args, **inputs.kwargs)  # which refuses what it was not traced for
            inputs = _without_hidden(model, inputs)
            samples = [inputs, *_resized(model, inputs, dims)]
            paths, run, limits = FORMATS[to](model, path, inputs, dims)
            differs_by = _compare(model, [x for x in samples if _is_within(limits, x)], run)
        except (ArchlearnError, OSError):
            raise
        except Exception as error:
            is_one = any(x.shape[:1] == (1,) for x in inputs.tensors())
            more = "give example_inputs of two rows or more" if is_one else _OTHERS
            if dims != ANY_BATCH:
                more = f"leave dimensions out of dynamic_dims={dims}, or {more}"
            raise FileError(
                f"torch cannot export {type(model).__name__} to {to} "
                f"({first_line(error.__cause__ or error)}); {more}"
            ) from error
    n_bytes = sum(written.stat().st_size for written in paths)
    return Exported(paths, differs_by, n_bytes, limits)


def _check_dims(dims: Any, inputs: ExampleInputs) -> tuple[int, ...]:
    """Return dimensions that all are dimensions of an input."""
    most = max((x.dim() for x in inputs.tensors()), default=0)
    chosen = tuple(dims) if isinstance(dims, Iterable) else ()
    if not chosen or not all(isinstance(dim, int) and 0 <= dim < max(most, 1) for dim in chosen):
        raise InputError(
            f"dynamic_dims is {dims!r}; name dimensions of the inputs, which have {most}: (0, 1)"
        )
    return chosen


def _without_hidden(model: nn.Module, inputs: ExampleInputs) -> ExampleInputs:
    """Return inputs less those arguments that may only have their default."""
    graphs, shown = forward_graphs(model)[:1], signature(model.forward).parameters
    names = [str(node.target) for graph in graphs for node in graph.find_nodes(op="placeholder")]
    hidden = [name not in shown for name in names[: len(inputs.args)]]
    n = hidden.index(True) if True in hidden else len(inputs.args)
    named = dict(zip(names[n:], inputs.args[n:], strict=False)) | inputs.kwargs
    left = {name: value for name, value in named.items() if name in shown or name not in names}
    return ExampleInputs(inputs.args[:n], left, inputs.are_real)


def _write_onnx(
    model: nn.Module, path: Path, inputs: ExampleInputs, dims: tuple[int, ...]
) -> Written:
    """Write a model as ONNX, and read it by onnxruntime."""
    import onnxruntime

    program = _export(model, inputs, dims)
    names = {dim: f"size_{dim}" if dim else "batch" for dim in dims}
    torch.onnx.export(
        program, (), path, dynamo=True, verbose=False, external_data=False,
        dynamic_shapes=_any_size(model, inputs, names),
    )  # fmt: skip
    session: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    keys = [node.name for node in session.get_inputs()]

    def run(inputs: ExampleInputs) -> list[Tensor]:
        arrays = [tensor.numpy() for tensor in inputs.tensors()]
        outputs = session.run(None, dict(zip(keys, arrays, strict=True)))
        return [torch.from_numpy(array) for array in outputs]

    return (path,), run, _find_limits(program)


def _write_program(
    model: nn.Module, path: Path, inputs: ExampleInputs, dims: tuple[int, ...]
) -> Written:
    """Write a model as an `ExportedProgram` of torch.export, and read that."""
    program = _export(model, inputs, dims)
    content = BytesIO()  # on a full disk torch's own writer ends the process
    torch.export.save(program, content)
    path.write_bytes(content.getbuffer())
    loaded = torch.export.load(path).module()
    return (path,), _runner(loaded), _find_limits(program)


def _export(
    model: nn.Module, inputs: ExampleInputs, dims: tuple[int, ...]
) -> torch.export.ExportedProgram:
    shapes = _any_size(model, inputs, dict.fromkeys(dims, torch.export.Dim.DYNAMIC))
    return torch.export.export(model, inputs.args, inputs.kwargs, dynamic_shapes=shapes)


def _runner(loaded: Callable[..., Any]) -> Run:
    return lambda inputs: tensors_in(loaded(*inputs.args, **inputs.kwargs))


def _find_limits(program: torch.export.ExportedProgram) -> Limits:
    """Return the sizes of inputs for which the path was taken that was exported."""
    ranges: Any = program.range_constraints
    limits: dict[int, tuple[float, float]] = {}
    for node in program.graph.find_nodes(op="placeholder"):
        shape: Any = getattr(node.meta.get("val"), "shape", ())
        for dim, size in enumerate(shape):
            value_range = ranges.get(size.node.expr) if isinstance(size, torch.SymInt) else None
            if value_range is None:
                continue
            # From two on is what torch assumes of any size.
            least = int(value_range.lower) if value_range.lower > 2 else 0
            largest = int(value_range.upper) if value_range.upper.is_Integer else math.inf
            if least or largest < math.inf:
                before = limits.get(dim, (0, math.inf))
                limits[dim] = max(before[0], least), min(before[1], largest)
    return limits


def _is_within(limits: Limits, inputs: ExampleInputs) -> bool:
    """Return whether inputs have sizes that a file is right for."""
    shapes = [x.shape for x in inputs.tensors()]
    sizes = [(shape[dim], limits[dim]) for shape in shapes for dim in limits if dim < len(shape)]
    return all(least <= size <= largest for size, (least, largest) in sizes)


def _resized(model: nn.Module, inputs: ExampleInputs, dims: tuple[int, ...]) -> list[ExampleInputs]:
    """Return inputs of other sizes that the model takes: larger by one, or twice as large.

    Raises:
        InputError: If it takes no other size along a dimension, that of the batch excepted.
    """
    resized: list[ExampleInputs] = []
    for dim in dims:
        candidates = [inputs.map(partial(_enlarge, dim=dim, by=by)) for by in (1, None)]
        taken = [candidate for candidate in candidates if _takes(model, candidate)]
        if dim and not taken:
            raise InputError(
                f"{type(model).__name__} takes neither one more nor twice as many as the example "
                f"has along dimension {dim} of its inputs; leave it out of dynamic_dims={dims}"
            )
        resized += taken[:1] if dim == 0 else taken
    return resized


def _enlarge(x: Tensor, dim: int, by: int | None) -> Tensor:
    """Return a tensor that begins anew behind its end, for so many places or as a whole."""
    return torch.cat([x, x.narrow(dim, 0, by or x.shape[dim])], dim) if dim < x.dim() else x


def _takes(model: nn.Module, inputs: ExampleInputs) -> bool:
    try:
        model(*inputs.args, **inputs.kwargs)
    except Exception:
        return False
    return True


def _compare(model: nn.Module, samples: Iterable[ExampleInputs], run: Run) -> float:
    """Return the largest difference on some inputs."""
    worst, allowed = 0.0, TOLERANCE
    for inputs in samples:
        expected = tensors_in(model(*inputs.args, **inputs.kwargs))
        worst = max(worst, difference(expected, run(inputs)))
        halves = [y.dtype for y in expected if y.dtype in (torch.float16, torch.bfloat16)]
        allowed = max(allowed, *(TOLERANCES[dtype] for dtype in halves), 0.0)
    if not worst <= allowed:
        raise FileError(
            f"what was exported differs from the model by {worst:.1e} of its outputs' size, more "
            f"than {allowed:.0e}; report the model, and keep the file that archlearn.save writes"
        )
    return worst


def _any_size(model: nn.Module, inputs: ExampleInputs, dims: Mapping[int, Any]) -> Any:
    """Return for each argument what is said of those of its dimensions that may have any size."""

    def describe(value: Any) -> Any:
        n_dims = value.dim() if isinstance(value, Tensor) else 0
        return {dim: name for dim, name in dims.items() if dim < n_dims} or None

    by_place = tuple(tree_map(describe, value) for value in inputs.args)
    if not inputs.kwargs:
        return by_place
    names = signature(model.forward).parameters  # the first of them are given by place
    by_name = {name: tree_map(describe, value) for name, value in inputs.kwargs.items()}
    return dict(zip(names, by_place, strict=False)) | by_name


FORMATS = {"onnx": _write_onnx, "torch-export": _write_program}
