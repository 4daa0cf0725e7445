"""Whatever is changed in a file, it is refused with a `FileError` or gives a model."""

import copy
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import archlearn as al


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor, gain: Tensor | float = 1.0) -> dict[str, Tensor]:
        x = F.dropout(self.body(x) * gain, 0.5, training=self.training)
        y = self.head(F.adaptive_avg_pool2d(x, 1).view(x.shape[0], -1))
        return {"y": y * self.scale, "z": y[..., :1] + torch.zeros(1, dtype=y.dtype)}


JUNK = st.one_of(
    st.sampled_from([None, True, -1, 2**70, 1.5, "", "x", "__class__", "a b", "os.system", "0"]),
    st.sampled_from([[], {}, [[]], {"node": "x"}, {"node": 3}, {"tuple": 1}, {"slice": [1]}]),
    st.sampled_from(
        ["torch.relu", "operator.iadd", "output", "self", "torch.nn.LSTM", "x\nimport"]
    ),
    st.integers(-3, 3),
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """The path of a good file, and what it holds."""
    path = tmp_path_factory.mktemp("fuzzing") / "net.safetensors"
    al.save(Net(), path, (torch.ones(1, 3, 8, 8), torch.ones(())))
    return path, path.read_bytes()


def assert_refused_or_read(path: Path) -> nn.Module | None:
    loaded, reason = None, ""
    try:
        loaded = al.load(path)
    except al.FileError as error:
        reason = str(error)
    assert isinstance(loaded, nn.Module) or str(path) in reason
    return loaded


def places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return every container of a JSON value with each of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        found.append((value, key))
        if isinstance(item, dict | list):
            places(item, found)
    return found


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_changed_description_is_refused_or_read(
    saved: tuple[Path, bytes], data: st.DataObject
) -> None:
    path, good = saved
    (length,) = struct.unpack("<Q", good[:8])
    header = json.loads(good[8 : 8 + length])
    description = json.loads(header["__metadata__"]["description"])
    for _ in range(data.draw(st.integers(1, 3))):
        found = places(description, [])
        owner, key = found[data.draw(st.integers(0, len(found) - 1))]
        action = data.draw(st.sampled_from(["replace", "remove", "double"]))
        if action == "replace":
            owner[key] = data.draw(JUNK)
        elif action == "remove":
            del owner[key]
        elif isinstance(owner, list):
            owner.insert(key, copy.deepcopy(owner[key]))
    header["__metadata__"]["description"] = json.dumps(description)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + good[8 + length :])
    assert_refused_or_read(path)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_changed_bytes_are_refused_or_read(saved: tuple[Path, bytes], data: st.DataObject) -> None:
    path, good = saved
    changed = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(changed[: data.draw(st.integers(0, len(good)))])
    assert_refused_or_read(path)


def test_the_control_file_loads(saved: tuple[Path, bytes]) -> None:
    path, good = saved
    path.write_bytes(good)
    assert assert_refused_or_read(path) is not None
