"""`export_model`: ONNX, torch.export or Python source of a model, compared with the model."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from archlearn.errors import ArchlearnError, FileError, InputError, check_installed, first_line
from archlearn.export.python_source import write_source
from archlearn.gating.cost_counter import known_inputs
from archlearn.module_utils import evaluating
from archlearn.tracing.example_inputs import ExampleInputs
from archlearn.tracing.output_types import tensors_in
from archlearn.verification.certificate import TOLERANCES, difference

Run = Callable[[ExampleInputs], list[Tensor]]
Written = tuple[tuple[Path, ...], Run, float]
"""The files that were written, what runs them, and the largest batch that they are right for."""
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
        most_rows: The largest batch that they are right for, where the model asks for its size.
            ONNX cannot refuse larger ones.
    """

    paths: tuple[Path, ...]
    difference: float
    n_bytes: int
    most_rows: float = math.inf

    def __str__(self) -> str:
        names = ", ".join(str(path) for path in self.paths)
        limit = f", for at most {self.most_rows} rows" if self.most_rows < math.inf else ""
        return f"{names}: {self.n_bytes:,} bytes, differs by {self.difference:.1e}{limit}"


def export_model(
    model: nn.Module, path: str | PathLike[str], to: str, example_inputs: object = None
) -> Exported:
    """Write a model for other programs, and run what was written beside the model.

    The number of rows of a batch stays free.

    Args:
        model: Any model; it is run in evaluation mode.
        path: The file to write. Python source has its weights beside it, as `.safetensors`.
        to: "onnx", "torch-export" or "python".
        example_inputs: Arguments for one call, of two rows or more; a compact model knows its own.

    Raises:
        InputError: If there is no such format, or a package is missing.
        FileError: If the model cannot be exported, or what was written computes something else.
    """
    if to not in FORMATS:
        raise InputError(f"to={to!r} is no format; choose one of {', '.join(FORMATS)}")
    inputs, path = known_inputs(model, example_inputs), Path(path)
    if to == "onnx":
        check_installed("export to ONNX", "export", "onnx", "onnxscript", "onnxruntime")
    with evaluating(model), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own parts about one another
        try:
            paths, run, most_rows = FORMATS[to](model, path, inputs)
            differs_by = _compare(model, inputs, run)
        except (ArchlearnError, OSError):
            raise
        except Exception as error:
            is_one = any(x.shape[:1] == (1,) for x in inputs.tensors())
            more = "give example_inputs of two rows or more" if is_one else _OTHERS
            raise FileError(
                f"torch cannot export {type(model).__name__} to {to} "
                f"({first_line(error.__cause__ or error)}); {more}"
            ) from error
    n_bytes = sum(each.stat().st_size for each in paths)
    return Exported(paths, differs_by, n_bytes, most_rows)


def _write_onnx(model: nn.Module, path: Path, inputs: ExampleInputs) -> Written:
    """Write a model as ONNX, and read it by onnxruntime."""
    import onnxruntime

    made: Any = torch.onnx.export(
        model, inputs.args, path, kwargs=inputs.kwargs, dynamo=True, verbose=False,
        dynamic_shapes=_any_batch(model, inputs), external_data=False,
    )  # fmt: skip
    session: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(given: ExampleInputs) -> list[Tensor]:
        arrays = [tensor.numpy() for tensor in given.tensors()]
        found = session.run(None, dict(zip(names, arrays, strict=True)))
        return [torch.from_numpy(array) for array in found]

    return (path,), run, _most_rows(made.exported_program)


def _write_program(model: nn.Module, path: Path, inputs: ExampleInputs) -> Written:
    """Write a model as an `ExportedProgram` of torch.export, and read that."""
    shapes = _any_batch(model, inputs)
    program = torch.export.export(model, inputs.args, inputs.kwargs, dynamic_shapes=shapes)
    content = BytesIO()  # on a full disk torch's own writer ends the process
    torch.export.save(program, content)
    path.write_bytes(content.getbuffer())
    loaded = torch.export.load(path).module()
    return (path,), _runner(loaded), _most_rows(program)


def _runner(loaded: Callable[..., Any]) -> Run:
    return lambda given: tensors_in(loaded(*given.args, **given.kwargs))


def _most_rows(program: torch.export.ExportedProgram) -> float:
    """Return the largest batch for which the path was taken that was exported."""
    limits = [each.upper for each in program.range_constraints.values()]
    return min((int(limit) for limit in limits if limit.is_Integer), default=math.inf)


def _write_source(model: nn.Module, path: Path, inputs: ExampleInputs) -> Written:
    """Write a model as Python source and, beside it, a safetensors file with its weights."""
    weights = path.with_suffix(".safetensors")
    text, tensors = write_source(model, weights.name, inputs)
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    weights.write_bytes(to_bytes(stored))  # save_file lets nobody else read it
    path.write_text(text, encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), names)  # what was written a moment ago
    loaded = names["load"](str(weights))
    return (path, weights), _runner(loaded), math.inf


def _compare(model: nn.Module, inputs: ExampleInputs, run: Run) -> float:
    """Return the largest difference on the example and, where that is an input, on one row more."""
    worst, allowed = 0.0, TOLERANCE
    one_row_more = inputs.map(lambda x: torch.cat([x, x[:1]]) if x.dim() else x)
    for given in (inputs, one_row_more):
        try:
            expected = tensors_in(model(*given.args, **given.kwargs))
        except Exception:
            if given is inputs:
                raise
            continue
        worst = max(worst, difference(expected, run(given)))
        halves = [y.dtype for y in expected if y.dtype in (torch.float16, torch.bfloat16)]
        allowed = max(allowed, *(TOLERANCES[dtype] for dtype in halves), 0.0)
    if not worst <= allowed:
        raise FileError(
            f"what was exported differs from the model by {worst:.1e} of its outputs' size, more "
            f"than {allowed:.0e}; report the model, and keep the file that archlearn.save writes"
        )
    return worst


def _any_batch(model: nn.Module, inputs: ExampleInputs) -> Any:
    """Return for each argument that its first dimension may have any size."""

    def describe(value: Any) -> Any:
        return {0: torch.export.Dim.DYNAMIC} if isinstance(value, Tensor) and value.dim() else None

    by_place = tuple(tree_map(describe, value) for value in inputs.args)
    if not inputs.kwargs:
        return by_place
    names = signature(model.forward).parameters  # the first of them are given by place
    by_name = {name: tree_map(describe, value) for name, value in inputs.kwargs.items()}
    return dict(zip(names, by_place, strict=False)) | by_name


FORMATS = {"onnx": _write_onnx, "torch-export": _write_program, "python": _write_source}
