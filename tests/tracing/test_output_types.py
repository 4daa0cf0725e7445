"""What `forward` returns keeps its type on gated, compact and loaded models."""

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import archlearn as al


class OwnDict(dict[str, Any]):
    """A dict subclass, as diffusers and detection models have them."""


class AttributeDict(dict[str, Any]):
    """A dict whose keys are attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Named(NamedTuple):
    y: Tensor
    aux: Any = None


@dataclass
class Record:
    y: Tensor
    aux: Any = None


@dataclass(frozen=True)
class FrozenRecord:
    y: Tensor
    aux: Any = None


class OwnList(list[Any]):
    pass


MAKERS: dict[str, Any] = {
    "own dict": lambda y: OwnDict(y=y, n=3),
    "attribute dict": lambda y: AttributeDict(y=y),
    "ordered dict": lambda y: OrderedDict(y=y, twice=2 * y),
    "named tuple": lambda y: Named(y),
    "dataclass": lambda y: Record(y, aux=[y, Named(y)]),
    "frozen dataclass": lambda y: FrozenRecord(y),
    "own list": lambda y: OwnList([y, y]),
    "namespace": lambda y: SimpleNamespace(y=y),
    "nested": lambda y: {"a": [Named(y, Record(y)), OrderedDict(b=y)]},
}


class Net(nn.Module):
    def __init__(self, maker: str) -> None:
        super().__init__()
        self.maker = maker
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Any:
        return MAKERS[self.maker](scale * self.second(torch.relu(self.first(x))))


def compacted(maker: str) -> tuple[nn.Module, nn.Module, Tensor]:
    """Return a gated model, its compact one with a generated `forward`, and inputs."""
    torch.manual_seed(0)
    x = torch.randn(5, 4, dtype=torch.float64)
    gated = al.add_gates(Net(maker).double(), x)
    with torch.no_grad():
        al.width_gates(gated)["first"][:5] = 0.2
    small = al.compact(gated)
    assert type(small).__name__ == "CompactNet"
    return gated, small, x


def assert_same(one: Any, two: Any) -> None:
    assert type(one) is type(two)
    if isinstance(one, Tensor):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)
    elif isinstance(one, dict):
        assert list(one) == list(two)
        for key in one:
            assert_same(one[key], two[key])
    elif isinstance(one, list | tuple):
        for a, b in zip(one, two, strict=True):
            assert_same(a, b)
    elif isinstance(one, Record | FrozenRecord | SimpleNamespace):
        assert_same(dict(vars(one)), dict(vars(two)))
    else:
        assert one == two


@pytest.mark.parametrize("maker", MAKERS)
def test_outputs_keep_their_types(maker: str) -> None:
    gated, small, x = compacted(maker)
    meant = Net(maker).double()
    meant.load_state_dict({k: v for k, v in gated.state_dict().items() if "gates" not in k})
    assert_same(small(x), gated(x))
    assert type(gated(x)) is type(meant(x))
    certificate: Any = small.certificate
    assert certificate.difference_float64 < 1e-10


@pytest.mark.parametrize(
    ("maker", "kind"),
    [
        ("own dict", dict),
        ("ordered dict", OrderedDict),
        ("own list", list),
        ("nested", dict),
    ],
)
def test_a_loaded_model_returns_plain_types(maker: str, kind: type, tmp_path: Path) -> None:
    _, small, x = compacted(maker)
    al.save(small, tmp_path / "small.safetensors")
    out = al.load(tmp_path / "small.safetensors")(x)
    assert type(out) is kind


@pytest.mark.parametrize("maker", ["named tuple", "dataclass", "frozen dataclass", "namespace"])
def test_a_loaded_model_returns_fields_by_their_names(maker: str, tmp_path: Path) -> None:
    _, small, x = compacted(maker)
    al.save(small, tmp_path / "small.safetensors")
    out = al.load(tmp_path / "small.safetensors")(x)
    torch.testing.assert_close(out.y, small(x).y, rtol=0, atol=0)


def test_models_that_return_dataclasses_are_compared() -> None:
    x = torch.randn(5, 4)
    with pytest.raises(al.CertificateError, match="differ"):
        al.certify(Net("dataclass"), Net("dataclass"), x)


class Odd(dict[str, Any]):
    def __init__(self, y: Tensor, n: int) -> None:
        super().__init__(y=y, n=n)


def test_a_class_that_cannot_be_made_again_is_refused_by_name() -> None:
    MAKERS["odd"] = lambda y: Odd(y, 3)
    try:
        with pytest.raises(al.TracingError, match="Odd"):
            al.add_gates(Net("odd"), torch.randn(5, 4))
    finally:
        del MAKERS["odd"]
