"""A file as `save` writes it, and ways to change it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn

Json = dict[str, Any]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.lstm = nn.LSTM(4, 2)
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(torch.relu(self.layer(x)).view(x.shape[0], -1))
        return y * self.scale


def rewrite(path: Path, edit: Callable[[Json, dict[str, Tensor]], None], **metadata: str) -> None:
    """Write the file again with its description or its tensors changed."""
    with safe_open(path, framework="pt") as handle:
        kept = handle.metadata()
        tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    description = json.loads(kept["description"])
    edit(description, tensors)
    kept |= {"description": json.dumps(description)} | metadata
    safetensors.torch.save_file(tensors, path, kept)


def node(description: Json, operation: str) -> Json:
    return next(n for n in description["evaluation"] if n["operation"] == operation)


def module(description: Json, name: str) -> Json:
    return next(m for m in description["modules"] if m["name"] == name)


def tensor(description: Json, name: str) -> Json:
    return next(t for t in description["tensors"] if t["name"] == name)
