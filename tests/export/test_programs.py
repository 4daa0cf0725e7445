"""What is exported computes what the model computes, for batches of any size."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
from archlearn.export.programs import export_model
from archlearn.tracing.example_inputs import ExampleInputs
from tests.cli.commands import exit_code

needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="onnx, onnxscript and onnxruntime are not installed",
)
FORMATS = [pytest.param("onnx", marks=needs_onnx), "torch-export"]
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*")


@torch.no_grad()
def compact() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 3),
    )  # fmt: skip
    model = al.add_gates(net, torch.randn(2, 1, 6, 6)).eval()
    al.width_gates(model)["0"][:3] = 0.0
    return al.compact(model)


@pytest.mark.parametrize("to", FORMATS)
def test_a_model_is_exported_and_compared(to: str, tmp_path: Path) -> None:
    made = export_model(compact(), tmp_path / "small.file", to)
    assert made.difference < 1e-6
    assert made.n_bytes == sum(path.stat().st_size for path in made.paths)
    assert "bytes, differs by" in str(made)


class Inconstant(nn.Module):
    """Computes something else each time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + torch.rand(1)


def test_a_file_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(al.FileError, match="differs from the model by"):
        export_model(Inconstant(), tmp_path / "a.pt2", "torch-export", torch.randn(2, 4))


@pytest.mark.parametrize("wrong", [torch.nan, 1e-4])
def test_small_outputs_and_nan_are_compared(
    wrong: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 1e-5

    load = torch.export.load
    monkeypatch.setattr(torch.export, "load", lambda path: Wrong(load(path).module(), wrong))
    with pytest.raises(al.FileError, match="differs from the model by"):
        export_model(Small(), tmp_path / "a.pt2", "torch-export", torch.randn(2, 4))


@needs_onnx
def test_half_precision_is_allowed_its_rounding(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).half()
    made = export_model(net, tmp_path / "a.onnx", "onnx", torch.randn(8, 64).half())
    assert 0.0 < made.difference < 5e-2


class Wrong:
    """A program that is read as another one."""

    def __init__(self, program: nn.Module, factor: float) -> None:
        self.program, self.factor = program, factor

    def module(self) -> Any:
        return lambda *args: self.program(*args) * self.factor


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.layer(x) * scale


@needs_onnx
def test_arguments_by_place_and_by_name_are_exported(tmp_path: Path) -> None:
    given = ExampleInputs((torch.randn(2, 4),), {"scale": torch.randn(2, 4)})
    assert export_model(Two(), tmp_path / "a.onnx", "onnx", given).difference < 1e-6
    assert export_model(Two(), tmp_path / "a.pt2", "torch-export", given).difference == 0.0


class Optional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, twice: bool = False, scale: Tensor | None = None) -> Tensor:
        x = torch.relu(self.first(2 * x if twice else x))
        return self.last(x if scale is None else x * scale)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("more", [(False,), (False, torch.randn(2, 1)), (False, None), (True,)])
def test_defaults_that_the_example_names_are_exported(
    more: tuple[Any, ...], to: str, tmp_path: Path
) -> None:
    small = al.compact(al.add_gates(Optional(), (x := torch.randn(2, 4), *more)))
    assert export_model(small, tmp_path / "a.file", to).difference < 1e-6
    with pytest.raises(al.InputError, match=r"twice is .*, but the model was traced with"):
        export_model(small, tmp_path / "b.file", to, (x, not more[0], *more[1:]))


class AsksForBatch(nn.Module):
    """Asks for the size of the batch and the device, as the networks of diffusers do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        if x.shape[0] >= 64 or x.device.type == "mps":
            x = x.contiguous()
        return self.last(x)


def test_a_limit_of_the_batch_is_exported(tmp_path: Path) -> None:
    small = al.compact(al.add_gates(AsksForBatch(), torch.randn(2, 4)))
    assert "at most 63 rows" in str(export_model(small, tmp_path / "a.pt2", "torch-export"))
    with pytest.raises(AssertionError, match="Guard failed"):
        torch.export.load(tmp_path / "a.pt2").module()(torch.randn(64, 4))


@needs_onnx
def test_a_limit_that_onnx_cannot_hold_is_told(tmp_path: Path) -> None:
    small = al.compact(al.add_gates(AsksForBatch(), torch.randn(2, 4)))
    assert export_model(small, tmp_path / "a.onnx", "onnx").limits == {0: (0, 63)}
    assert "rows" not in str(export_model(compact(), tmp_path / "b.onnx", "onnx"))


class OnTokens(nn.Module):
    """Reads up to 16 tokens, each with a number for its place."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(9, 4), nn.Parameter(torch.randn(16, 4))
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.places[: tokens.shape[1]]
        return self.last(torch.relu(self.first(x)).mean(1))


@needs_onnx
def test_images_of_any_size_are_exported(tmp_path: Path) -> None:
    import onnxruntime

    small, images = compact(), torch.randn(3, 1, 9, 7)
    made = export_model(small, tmp_path / "a.onnx", "onnx", dynamic_dims=(0, 2, 3))
    assert made.difference < 1e-6
    session: Any = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    assert session.get_inputs()[0].shape == ["batch", 1, "size_2", "size_3"]
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), small(images))


@pytest.mark.parametrize("to", FORMATS)
def test_texts_of_any_length_are_exported_with_their_limit(to: str, tmp_path: Path) -> None:
    small = al.compact(al.add_gates(OnTokens(), torch.randint(9, (2, 9))))
    made = export_model(small, tmp_path / "a", to, dynamic_dims=[0, 1])
    assert made.difference < 1e-6
    assert str(made).endswith(", for at most 16 along dimension 1")


class AsksForLength(OnTokens):
    """Takes another path with long texts, which a file cannot hold."""

    def forward(self, tokens: Tensor) -> Tensor:
        found = super().forward(tokens)
        return found * 2 if tokens.shape[1] > 12 else found


@pytest.mark.parametrize("to", FORMATS)
def test_sizes_that_take_another_path_are_beyond_the_limit(to: str, tmp_path: Path) -> None:
    example = torch.randint(9, (2, 8))
    made = export_model(AsksForLength(), tmp_path / "a", to, example, dynamic_dims=(0, 1))
    assert made.limits == {1: (0, 12)}


def test_sizes_that_the_model_refuses_are_told_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    with pytest.raises(al.InputError, match="along dimension 1 of its inputs; leave it out"):
        export_model(compact(), path, "torch-export", dynamic_dims=(0, 1))
    for wrong in ((), (4,), (-1,), (0.5,), 2, "02"):
        with pytest.raises(al.InputError, match="name dimensions of the inputs, which have 4"):
            export_model(compact(), path, "torch-export", dynamic_dims=wrong)  # pyright: ignore[reportArgumentType]
    assert not path.exists()


def test_a_model_that_asks_for_its_device_is_saved(tmp_path: Path) -> None:
    small = al.compact(al.add_gates(AsksForBatch(), torch.randn(2, 4)))
    al.save(small, tmp_path / "a.safetensors")
    x = torch.randn(3, 4)
    assert torch.equal(al.load(tmp_path / "a.safetensors")(x), small(x))


def test_what_cannot_be_exported_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Asking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(al.FileError, match="torch cannot export Asking"):
        export_model(Asking(), tmp_path / "a.pt2", "torch-export", torch.randn(2, 4))
    with pytest.raises(al.FileError, match="give example_inputs of two rows or more"):
        export_model(nn.Linear(2, 2), tmp_path / "a.pt2", "torch-export", torch.randn(1, 2))
    with pytest.raises(al.InputError, match=r"choose one of onnx, torch-export$"):
        export_model(compact(), tmp_path / "a", "tflite")
    with pytest.raises(al.InputError, match="give example_inputs"):
        export_model(nn.Linear(2, 2), tmp_path / "a.pt2", "torch-export")
    monkeypatch.setattr("archlearn.errors.find_spec", lambda name: None)
    with pytest.raises(al.InputError, match=r"pip install 'archlearn\[export\]'"):
        export_model(compact(), tmp_path / "a.onnx", "onnx")


def call(*arguments: Any) -> object:
    return exit_code([str(argument) for argument in arguments])


def test_the_command_exports_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.safetensors"
    al.save(compact(), path)
    assert call("export", path, "--to", "torch-export", "--shape", "1x6x6") == 0
    assert "small.pt2: " in capsys.readouterr().out
    assert (tmp_path / "small.pt2").is_file()
    sizes = ("--shape", "1x6x6", "--dynamic-dims")
    assert call("export", path, "--to", "torch-export", *sizes, "0,2,3") == 0
    loaded = torch.export.load(tmp_path / "small.pt2").module()
    assert loaded(torch.randn(5, 1, 8, 11)).shape == (5, 3)
    assert call("export", path, "--to", "torch-export", *sizes, "height") == 1
    assert "name dimensions of a batch, as 0,2,3" in capsys.readouterr().err
    assert call("export", path, "--to", "torch-export") == 1
    assert "--shape 1x28x28" in capsys.readouterr().err
    assert call("export", path, "--to", "onnx", "--shape", "3x3") == 1
    assert "small.safetensors does not take examples of shape (3, 3)" in capsys.readouterr().err
    (tmp_path / "run").mkdir()
    assert call("export", tmp_path / "run", "--to", "torch-export") == 1
    assert "holds no run (there is no config.toml in it)" in capsys.readouterr().err
    (tmp_path / "run" / "config.toml").touch()
    assert call("export", tmp_path / "run", "--to", "torch-export") == 1
    assert "no compact model yet" in capsys.readouterr().err


def test_the_command_compares_on_more_than_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class BlindToInputs:
        def module(self) -> Any:
            return lambda x: small(torch.zeros_like(x))

    small, path = compact(), tmp_path / "small.safetensors"
    al.save(small, path)
    monkeypatch.setattr(torch.export, "load", lambda path: BlindToInputs())
    assert call("export", path, "--to", "torch-export", "--shape", "1x6x6") == 1
    assert "differs from the model by" in capsys.readouterr().err


@pytest.mark.parametrize("to", FORMATS)
def test_full_disk_is_no_fault_of_the_model(tmp_path: Path, to: str) -> None:
    for name in ("small", "small.safetensors"):
        (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        export_model(nn.Linear(2, 2), tmp_path / "small", to, torch.zeros(2, 2))
