"""The list of models: read `models.toml`, build a model and draw its inputs."""

import importlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.torchvision_import import import_models
from benchmarks.torchvision_sides import calibrate_, disturb_constants_

N_TOKENS = 50
_LIST = Path(__file__).with_name("models.toml")
_KINDS = ("normal", "tokens", "ones")

Entry = dict[str, Any]
Call = tuple[tuple[Any, ...], dict[str, Any]]


def read_entries() -> dict[str, Entry]:
    """Return what is known of each model, by its name."""
    listed = tomllib.loads(_LIST.read_text())
    entries = {entry["name"]: entry for entry in listed["model"]}
    for name, options in listed["timm"].items():
        options = dict(options)
        size = options.pop("pixels")
        arguments = {"model_name": name, "num_classes": 10, **options}
        entries[f"timm/{name}"] = {
            "call": "timm:create_model",
            "arguments": arguments,
            "inputs": [f"normal 2 3 {size} {size}"],
        }
    return entries


def build(entry: Entry) -> nn.Module:
    """Return a model in evaluation mode with random weights, none of them neutral."""
    import_models()  # torchvision first: other packages import it as it is
    torch.manual_seed(0)
    net = _make({key: entry[key] for key in ("call", "positional", "arguments") if key in entry})
    if "part" in entry:
        net = net.get_submodule(entry["part"])
    net = net.to(dtype(entry)).eval()
    disturb_constants_(net)
    return net


def settle_(net: nn.Module, inputs: Call) -> None:
    """Give BatchNorm the statistics of these inputs, so that the signal lives."""
    arguments, options = inputs
    calibrate_(net, *arguments, **options)


def dtype(entry: Entry) -> torch.dtype:
    return getattr(torch, entry.get("dtype", "float64"))


def draw_inputs(entry: Entry, seed: int) -> Call:
    """Return the arguments of a call, by position and by keyword."""
    generator = torch.Generator().manual_seed(seed)
    inputs = entry["inputs"]
    if isinstance(inputs, Mapping):
        return (), {name: _draw(value, generator, entry) for name, value in inputs.items()}
    return tuple(_draw(value, generator, entry) for value in inputs), {}


def _make(value: Any) -> Any:
    """Return a value of the list: what is to be called is called, and an empty text is None."""
    if isinstance(value, Mapping):
        if "call" not in value:
            return {key: _make(item) for key, item in value.items()}
        module, _, name = value["call"].partition(":")
        positional = [_make(item) for item in value.get("positional", ())]
        return getattr(importlib.import_module(module), name)(
            *positional, **_make(value.get("arguments", {}))
        )
    if isinstance(value, list):
        return [_make(item) for item in value]
    return None if value == "" else value


def _draw(value: Any, generator: torch.Generator, entry: Entry) -> Any:
    if isinstance(value, list):
        return [_draw(item, generator, entry) for item in value]
    if not isinstance(value, str):
        return value
    kind, _, sizes = value.partition(" ")
    return _draw_tensor(kind, sizes, generator, dtype(entry)) if kind in _KINDS else _make(value)


def _draw_tensor(kind: str, sizes: str, generator: torch.Generator, real: torch.dtype) -> Tensor:
    shape = tuple(map(int, sizes.split()))
    if kind == "tokens":
        return torch.randint(3, N_TOKENS, shape, generator=generator)
    if kind == "ones":
        return torch.ones(shape, dtype=torch.long)
    return torch.randn(shape, dtype=real, generator=generator)
