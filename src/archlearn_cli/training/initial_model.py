"""The network a run starts from: fresh, pretrained, or of an earlier run.

Gates start open for width and non-linear for depth, so the function at the first step is the
pretrained function. Weights learnt elsewhere expect inputs normalised as they were there, which
`normalise = "imagenet"` does for those of ImageNet.
"""

import copy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from archlearn.errors import ArchlearnError, FileError, InputError, SettingsError, first_line
from archlearn.module_utils import evaluating
from archlearn_cli.data.dataset import Dataset
from archlearn_cli.data.file_cache import CONFIG
from archlearn_cli.models.model_registry import build_network
from archlearn_cli.models.pretrained import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    read_pretrained,
    with_weights,
)
from archlearn_cli.models.user_code import find_line
from archlearn_cli.training.checkpoint import LATEST, PREVIOUS
from archlearn_cli.training.objectives import in_format_of, objective_of
from archlearn_cli.training.run_directory import COMPACT
from archlearn_cli.training.settings import RunSettings


def start_network(settings: RunSettings, dataset: Dataset) -> nn.Module:
    """Return the plain network that a run starts from."""
    start = None if settings.start_from is None else _read(settings.start_from)
    if isinstance(start, nn.Module):
        _check_precision(start, str(settings.start_from))
        check_fit(start, dataset, str(settings.start_from))
        return start
    fresh = build_network(settings.model, dataset.input_shape, dataset.n_outputs)
    _check_precision(fresh, settings.model)
    check_fit(fresh, dataset, settings.model)
    return fresh if start is None else with_weights(fresh, start, dataset.n_outputs)


def start_teacher(settings: RunSettings, dataset: Dataset, network: nn.Module) -> nn.Module | None:
    """Return the frozen network that a run learns from beside the labels, if one was asked for.

    `network` is the plain one that the run starts from; it is not changed.
    """
    if settings.teacher is None:
        return None
    if dataset.task == "regression":
        raise SettingsError(
            f"--teacher was given, but {dataset.name!r} has numbers to predict, and a teacher "
            "teaches classes or tokens; leave it out"
        )
    if settings.teacher != "original":
        if not Path(settings.teacher).exists():
            raise SettingsError(
                f"cannot read the --teacher {settings.teacher}: there is no such file; give one, "
                "or `original` for the network that the run starts from"
            )
        teacher = start_network(replace(settings, start_from=settings.teacher), dataset)
    elif settings.start_from is None:
        raise SettingsError(
            "--teacher original was given, but the run starts from fresh weights, which know "
            "nothing; give trained ones by --start-from FILE, or a teacher by --teacher FILE"
        )
    else:
        teacher = copy.deepcopy(network)
    return teacher.eval().requires_grad_(requires_grad=False)


def _check_precision(network: nn.Module, name: str) -> None:
    """Refuse weights that are not in float32, which runs start in."""
    odd = {p.dtype for p in network.parameters() if p.is_floating_point()} - {torch.float32}
    if odd:
        raise InputError(
            f"the network {name} has weights in {', '.join(sorted(map(str, odd)))}, and runs are "
            "started in torch.float32; use its .float(), and --precision for what it computes in"
        )


def name_start(settings: RunSettings) -> str:
    """Return the network that a run starts from, as a user knows it."""
    if settings.start_from is None:
        return settings.model
    # Of all files only these can hold a network, and not its weights alone.
    may_be_whole = Path(settings.start_from).suffix == ".safetensors"
    if may_be_whole and isinstance(_read(settings.start_from), nn.Module):
        return settings.start_from
    return f"{settings.model} with the weights of {settings.start_from}"


def _read(start_from: str) -> dict[str, Tensor] | nn.Module:
    path = Path(start_from).expanduser()
    run = path.parent if path.name in (LATEST, PREVIOUS) else path
    if (run / CONFIG).is_file():
        raise FileError(
            f"cannot start from {path}: it is a run, or its checkpoint, and not a network; start "
            f"from {run / COMPACT}, which the run writes at its end and `archlearn compact {run}` "
            "at any time"
        )
    return read_pretrained(path)


def normalise(settings: RunSettings, dataset: Dataset) -> Dataset:
    """Return a data set with ImageNet's mean and deviation, where they were asked for."""
    if settings.normalise == "data":
        return dataset
    shape = dataset.input_shape
    if len(shape) != 3 or shape[0] != len(IMAGENET_MEAN):
        raise SettingsError(
            "normalise imagenet is for images of three colours, but an example of "
            f"{dataset.name!r} has shape {shape}; leave it out, or take other data"
        )
    mean, std = (torch.tensor(v).reshape(-1, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    return replace(dataset, mean=mean, std=std)


@torch.no_grad()
def run_once(network: nn.Module, example: Tensor, name: str) -> object:
    """Return what a network makes of examples in evaluation mode; it is left as it was."""
    try:
        with evaluating(network):
            return network(example)
    except (ArchlearnError, MemoryError):
        raise
    except Exception as error:  # whatever a user's forward raises
        raise InputError(
            f"the network {name} does not take examples of shape {tuple(example.shape[1:])}: "
            f"{first_line(error)}{find_line(error)}"
        ) from error


def check_fit(network: nn.Module, dataset: Dataset, name: str) -> None:
    """Refuse a network that does not take these examples or has other outputs.

    The mode of every submodule is afterwards what it was.
    """
    raw = dataset.train.inputs[:1].cpu().expand(2, *dataset.train.inputs.shape[1:])
    example = in_format_of(network, objective_of(dataset).inputs(raw))
    outputs = run_once(network, example, name)
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if not isinstance(outputs, Tensor) or outputs.shape[-1] != dataset.n_outputs:
        raise InputError(
            f"the network {name} gives {shape} for two examples, but {dataset.name!r} has "
            f"{dataset.n_outputs} outputs; start from a network for these data"
        )
    wanted = (*example.shape, dataset.n_outputs)
    if dataset.task == "next_token" and shape != wanted:
        raise InputError(
            f"the network {name} gives {shape} for two examples, but the next token is predicted "
            f"at each position of {dataset.name!r}, {wanted}; give scores for each"
        )
