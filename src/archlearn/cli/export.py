"""`archlearn export`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor, nn

EXAMPLES = """Examples:
  archlearn export runs/a --to onnx
  archlearn export runs/a --to python --out lenet.py
  archlearn export small.safetensors --to torch-export --shape 1x28x28
"""
_SUFFIXES = {"onnx": ".onnx", "torch-export": ".pt2", "python": ".py"}


def export(
    target: Path,
    /,
    *,
    to: Literal["onnx", "torch-export", "python"],
    out: Path | None = None,
    shape: str | None = None,
) -> None:
    """Write a compact model for other programs, and check that it computes the same there.

    Args:
        target: A run's folder, or a file that `archlearn compact` or archlearn.save wrote.
        to: ONNX, an ExportedProgram of torch.export, or Python source with its weights beside it.
        out: The file to write. [default: beside the compact model, with the suffix of the format]
        shape: Shape of one example, as 3x32x32; a run knows its own.
    """
    from archlearn.cli.model_commands import parse_shape
    from archlearn.cli.output_paths import writing
    from archlearn.errors import SettingsError
    from archlearn.export.programs import export_model
    from archlearn.serialization import load
    from archlearn.training.run_directory import COMPACT

    path = target / COMPACT if target.is_dir() else target
    if target.is_dir() and not path.is_file():
        raise SettingsError(
            f"the run {target} has no compact model yet; let it end (archlearn learn --resume "
            f"{target}), or compact it as it is: archlearn compact {target}"
        )
    if shape is None and not target.is_dir():
        raise SettingsError(f"say what shape an example of {target} has: --shape 1x28x28")
    chosen = out or path.with_suffix(_SUFFIXES[to])
    weights = chosen.with_suffix(".safetensors")
    if to == "python" and weights.resolve() == path.resolve():
        chosen = chosen.with_name(f"{chosen.stem}_source.py")
    with writing(chosen):
        network = load(path).eval()
        if shape is None:
            example, n_before = _read_run(target)
        else:
            example, n_before = _make_example(network, parse_shape(shape)), None
        made = export_model(network, chosen, to, example)
    before = "" if n_before is None else f"{n_before:,} bytes before, "
    sys.stdout.write(f"{made}\nweights: {before}{_count_bytes(network):,} bytes now\n")


def _read_run(folder: Path) -> "tuple[Tensor, int]":
    """Return two examples of a run's data, and what the weights of its network took at first."""
    from archlearn.data.downloads import no_progress
    from archlearn.models.model_registry import build_network
    from archlearn.training.objectives import objective_of
    from archlearn.training.run_directory import read_run_settings
    from archlearn.training.run_setup import load_dataset

    settings = read_run_settings(folder)
    dataset = load_dataset(settings, no_progress)
    network = build_network(settings.model, dataset.input_shape, dataset.n_outputs)
    return objective_of(dataset).inputs(dataset.train.inputs[:2]), _count_bytes(network)


def _make_example(network: "nn.Module", shape: tuple[int, ...]) -> "Tensor":
    """Return two examples of zeros: tokens where the network reads such."""
    import torch
    from torch import nn

    reads_tokens = any(isinstance(module, nn.Embedding) for module in network.modules())
    reference = next(network.parameters())
    return torch.zeros(2, *shape, dtype=torch.long if reads_tokens else reference.dtype)


def _count_bytes(network: "nn.Module") -> int:
    return sum(p.numel() * p.element_size() for p in network.parameters())
