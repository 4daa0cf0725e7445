"""Layers that cannot be followed are saved or refused by name; a save is all or nothing."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import archlearn as al
from tests.serialization.networks import IMAGES, Residual


class Choosing(nn.Module):
    """Its forward depends on the data, so that no trace can follow it."""

    def __init__(self, inside: nn.Module, bound: float = 0.5, note: object = None) -> None:
        super().__init__()
        self.inside, self.bound, self.note, self.nothing = inside, bound, note, None
        self.sizes = [1, (2, 3)]
        self.scale = nn.Parameter(torch.randn(3))
        self.register_buffer("hidden", torch.randn(3), persistent=False)
        self.register_parameter("missing", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.missing is None and x.sum() > self.bound:
            return self.inside(x) * self.scale
        return x + self.hidden


class Doubling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x if x.sum() > 0 else x


def choosing(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), Choosing(nn.Sequential(nn.Linear(3, 3)), **options))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_leaf_of_the_users_own_is_rebuilt_whole(tmp_path: Path, sign: float) -> None:
    net, path = choosing(bound=0.0), tmp_path / "net.safetensors"
    al.save(net, path, modules={"choosing": Choosing})
    loaded = al.load(path, modules={"choosing": Choosing})
    x = sign * torch.ones(2, 3)
    torch.testing.assert_close(loaded[1](x), net[1](x), rtol=0, atol=0)
    assert list(loaded.state_dict()) == list(net.state_dict())
    assert loaded[1].sizes == [1, (2, 3)]
    al.save(loaded, path, modules={"choosing": Choosing})
    again = al.load(path, modules={"choosing": Choosing})
    torch.testing.assert_close(again(x), net(x), rtol=0, atol=0)


def test_a_leaf_is_not_found_by_its_name_alone(tmp_path: Path) -> None:
    al.save(choosing(), tmp_path / "net.safetensors", modules={"choosing": Choosing})
    assert "Choosing" in vars(sys.modules[__name__])
    with pytest.raises(al.FileError, match=r"'choosing', which is not one .* pass modules="):
        al.load(tmp_path / "net.safetensors")


def test_a_leaf_may_not_take_a_name_that_files_use(tmp_path: Path) -> None:
    with pytest.raises(al.InputError, match=r"'torch.nn.Linear': ...} takes a name that files use"):
        al.save(choosing(), tmp_path / "net.safetensors", modules={"torch.nn.Linear": Choosing})


def parametrised() -> nn.Module:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Twice())
    return nn.Sequential(layer)


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3))
    net[0].register_forward_hook(lambda module, args, output: output * 2)
    return net


def on_meta() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3)).to("meta")


def narrowed_by_hand() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3))
    net[0].weight = nn.Parameter(net[0].weight[:2])
    return net


class CallsUnknown(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x)


class Bent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def hooked_whole() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3))
    net.register_forward_hook(lambda module, args, y: 2 * y)
    return net


def hooked_block() -> nn.Module:
    """One whose `forward` is generated, so that a hook on a block fires there."""
    model = al.add_gates(nn.Sequential(Bent()), torch.randn(2, 3))
    al.depth_gates(model)["0.first"].data.fill_(1.0)
    small = al.compact(model)
    assert type(small).__name__ == "CompactSequential"
    small.get_submodule("0").register_forward_pre_hook(lambda module, args: (2 * args[0],))
    return small


UNSAVABLE: dict[str, tuple[Callable[[], nn.Module], dict[str, type[nn.Module]], str]] = {
    "leaf": (choosing, {}, r"the layer '1' of class Choosing.*pass modules=\{'Choosing': Choosing"),
    "leaf in a leaf": (
        lambda: nn.Sequential(Choosing(Doubling())),
        {"choosing": Choosing},
        "the layer '0.inside' of class Doubling",
    ),
    "attribute": (
        lambda: choosing(note=object()),
        {"choosing": Choosing},
        "the attribute '1.note' is a object, which a file cannot hold; keep numbers",
    ),
    "hooks": (hooked, {}, "'0' has forward hooks, which are code.*remove them first"),
    "hooks of all": (hooked_whole, {}, "the model has forward hooks.*remove them first"),
    "hooks of a block": (hooked_block, {}, "the module '0' has forward hooks"),
    "parametrised": (parametrised, {}, "'0.weight' is parametrised by Twice"),
    "meta": (on_meta, {}, "'0.weight' is torch.float32 on meta"),
    "shape": (narrowed_by_hand, {}, r"'0.weight' has shape \[2, 3\], but its layer takes \[3, 3\]"),
    "call": (CallsUnknown, {}, "calls .*bessel_j0, which is not an operation"),
    "dtype": (
        lambda: nn.Sequential(nn.Linear(3, 3).to(torch.complex128)),
        {},
        "'0.weight' is complex128, which a file cannot hold",
    ),
}


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize("case", UNSAVABLE)
def test_what_cannot_be_described_is_refused_by_name(tmp_path: Path, case: str) -> None:
    make, modules, message = UNSAVABLE[case]
    with pytest.raises(al.FileError, match=message):
        al.save(make(), tmp_path / "net.safetensors", modules=modules)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.safetensors"
    al.save(nn.Sequential(nn.Linear(2, 2)), path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(al.serialization.file_format.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        al.save(nn.Sequential(nn.Linear(3, 3)), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_can_be_replaced_while_its_model_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    al.save(nn.Sequential(nn.Linear(2, 2)), path)
    loaded = al.load(path)
    before = loaded(torch.ones(1, 2))
    path.write_bytes(bytes(path.stat().st_size))
    torch.testing.assert_close(loaded(torch.ones(1, 2)), before)


def test_saving_into_a_missing_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(al.FileError, match=r"gone' is not a folder; make it first"):
        al.save(nn.Sequential(nn.Linear(2, 2)), tmp_path / "gone" / "net.safetensors")


@pytest.fixture
def gated() -> nn.Module:
    """A network with half of its first gates closed and its second layer linear."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.LocalResponseNorm(3), nn.Flatten(), nn.Linear(288, 9),
        nn.ReLU(), nn.Linear(9, 2),
    )  # fmt: skip
    model = al.add_gates(net.double(), torch.randn(2, 3, 8, 8).double())
    with torch.no_grad():
        first, *_ = al.width_gates(model).values()
        first[::2] = 0.1
        *_, depth = al.depth_gates(model).values()
        depth.fill_(0.9)
    return model


def test_a_compact_model_keeps_its_function_and_its_certificate(
    gated: nn.Module, tmp_path: Path
) -> None:
    small = al.compact(gated)
    al.save(small, tmp_path / "small.safetensors")
    loaded, x = al.load(tmp_path / "small.safetensors"), torch.randn(4, 3, 8, 8).double()
    torch.testing.assert_close(loaded(x), small(x), rtol=0, atol=0)
    torch.testing.assert_close(loaded(x), gated(x), rtol=1e-10, atol=1e-10)
    assert loaded.certificate == small.certificate
    assert list(loaded.state_dict()) == list(small.state_dict())


def test_a_loaded_model_can_be_gated_and_compacted_again(tmp_path: Path) -> None:
    net, x = Residual().double().eval(), torch.randn(IMAGES).double()
    whole = nn.Sequential(nn.Conv2d(3, 5, 1), nn.ReLU(), nn.Conv2d(5, 3, 3), net).double()
    al.save(whole, tmp_path / "net.safetensors")
    gated = al.add_gates(al.load(tmp_path / "net.safetensors").eval(), x)
    with torch.no_grad():
        next(iter(al.width_gates(gated).values()))[1:3] = 0.0
    small = al.compact(gated)
    torch.testing.assert_close(small(x), gated(x), rtol=1e-10, atol=1e-10)
    assert small.get_submodule("0").out_channels == 3
    al.save(small, tmp_path / "small.safetensors")
    torch.testing.assert_close(al.load(tmp_path / "small.safetensors")(x), small(x))


def test_a_gated_model_is_not_saved(gated: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(al.FileError, match=r"it still has gates; save archlearn.compact\(model\)"):
        al.save(gated, tmp_path / "gated.safetensors")
    with pytest.raises(
        al.FileError, match=r"'0' still has gates; put archlearn.compact's result there"
    ):
        al.save(nn.Sequential(gated), tmp_path / "gated.safetensors")
    assert list(tmp_path.iterdir()) == []
    by_hand = nn.Sequential(nn.Linear(4, 3), al.TriState(3), nn.Linear(3, 2))
    with pytest.raises(al.FileError, match=r"'1' is a TriState.*save archlearn.compact\(model\)"):
        al.save(by_hand, tmp_path / "by_hand.safetensors", torch.zeros(2, 4))


class Settings:
    """What a leaf keeps its numbers in, as models of transformers keep a config."""

    def __init__(self, factor: float, inner: "Settings | None" = None) -> None:
        self.factor, self.inner, self.names = factor, inner, {0: "a", 1: "b"}


def test_a_leaf_with_an_object_is_rebuilt_if_its_class_is_given(tmp_path: Path) -> None:
    net = choosing(note=Settings(2.0, Settings(3.0)))
    path = tmp_path / "net.safetensors"
    with pytest.raises(al.FileError, match=r"modules={'Choosing': Choosing, 'Settings': Settings}"):
        al.save(net, path)
    with pytest.raises(al.FileError, match=r"'1.note' is a Settings.* modules={..., 'Settings'"):
        al.save(net, path, modules={"Choosing": Choosing})
    al.save(net, path, modules={"Choosing": Choosing, "Settings": Settings})
    loaded: Any = al.load(path, modules={"Choosing": Choosing, "Settings": Settings})
    note = loaded.get_submodule("1").note
    assert (note.factor, note.inner.factor, note.names) == (2.0, 3.0, {0: "a", 1: "b"})
    with pytest.raises(al.FileError, match="the class 'Settings', which is not given"):
        al.load(path, modules={"Choosing": Choosing})
    for odd in (nn.Linear, tuple):
        with pytest.raises(al.FileError, match=r"which is not given|can be made without arguments"):
            al.load(path, modules={"Choosing": Choosing, "Settings": odd})


def test_an_object_is_no_layer(tmp_path: Path) -> None:
    al.save(choosing(), tmp_path / "net.safetensors", modules={"Choosing": Choosing})
    with pytest.raises(al.FileError, match="in the layer '1'"):
        al.load(tmp_path / "net.safetensors", modules={"Choosing": Settings})


class Strides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.as_strided((2,), (2,))


class ReadsData(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.data


@pytest.mark.parametrize(("kind", "named"), [(Strides, "as_strided"), (ReadsData, "data")])
def test_a_call_that_no_file_may_name_comes_with_advice_that_helps(
    kind: type[nn.Module], named: str, tmp_path: Path
) -> None:
    x, path = torch.randn(2, 2), tmp_path / "a.safetensors"
    with pytest.raises(al.FileError, match=rf"{named}.*put the call into a submodule, .*modules="):
        al.save(kind(), path, x)
    net = nn.Sequential(nn.Linear(2, 2), kind())
    al.save(net, path, x, modules={"Own": kind})
    assert torch.equal(al.load(path, modules={"Own": kind})(x), net(x))


def test_a_tensor_that_was_put_into_a_layer_is_named_with_where_it_belongs(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].register_buffer("extra", torch.ones(2))
    with pytest.raises(al.FileError, match=r"'0.extra'.*belongs into a module of one's own"):
        al.save(net, tmp_path / "a.safetensors")
