"""A run that cannot go on says what happened and what to try, and can be resumed."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

import archlearn_cli as cli
from tests.cli.commands import LEARN, run, run_here, start, wait_for_epoch, write_network
from tests.run_files import METRICS, SUMMARY, read_lines

pytestmark = pytest.mark.slow


def test_loss_that_is_no_number_stops_the_run_with_a_way_on(tmp_path: Path) -> None:
    write_network(tmp_path)
    code, output = run_here([*LEARN, "--learning-rate", "1e6", "--out", "a"], tmp_path)
    assert code == 3, output
    assert "stopped: the loss became" in output
    assert "archlearn learn --resume a --learning-rate 250000" in output
    code, output = run_here(["learn", "--resume", "a", "--learning-rate", "0.02"], tmp_path)
    assert code == 0, output
    assert (tmp_path / "a" / SUMMARY).exists()
    assert "learning_rate = 0.02" in (tmp_path / "a" / "config.toml").read_text()


def test_full_disk_stops_the_run_and_room_lets_it_go_on(tmp_path: Path) -> None:
    """Writing to /dev/full fails as a full disk does."""
    write_network(tmp_path)
    with start([*LEARN, "--out", "a"], tmp_path) as process:
        wait_for_epoch(process, tmp_path / "a", 3)
        metrics = tmp_path / "a" / METRICS
        kept = tmp_path / "kept.jsonl"
        shutil.copy(metrics, kept)
        (tmp_path / "link").symlink_to("/dev/full")
        (tmp_path / "link").rename(metrics)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 3, output
    assert "stopped: the disk is full: No space left on device" in output
    found = cli.training.read_checkpoint(tmp_path / "a")
    assert found is not None
    shutil.move(kept, metrics)
    code, output = run_here(["learn", "--resume", "a"], tmp_path)
    assert code == 0, output
    assert read_lines(metrics)[-1]["epoch"] == 30


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder of images, one of which is broken."""
    folder = tmp_path / "photos"
    for name, colour in (("cats", 10), ("dogs", 200)):
        (folder / name).mkdir(parents=True)
        for place in range(20):
            Image.new("RGB", (8, 8), (colour, place, 0)).save(folder / name / f"{place}.png")
    broken = folder / "dogs" / "7.png"
    broken.write_bytes(broken.read_bytes()[:30])
    return folder


def test_broken_image_is_named_and_skipping_it_lets_the_same_command_go_on(
    photos: Path, tmp_path: Path
) -> None:
    learn = "learn --model mlp:8 --data folder:photos:8 --epochs 5 --no-report --out a"
    code, output = run_here(learn.split(), tmp_path)
    assert code == 1, output
    assert "dogs/7.png is broken" in output
    code, output = run([*learn.split(), "--skip-broken"], tmp_path)
    assert code == 0, output
    assert "dogs/7.png is broken" in output
    (photos / "dogs" / "7.png").unlink()
    code, output = run_here([*learn.split()[:-1], "b"], tmp_path)
    assert code == 0, output
    assert (tmp_path / "b" / SUMMARY).exists()


@pytest.mark.parametrize(
    "command", ["data folder:photos:8", "inspect mlp:8 --data folder:photos:8"]
)
@pytest.mark.usefixtures("photos")
def test_every_command_that_advises_to_skip_broken_images_can(command: str, tmp_path: Path) -> None:
    code, output = run_here(command.split(), tmp_path)
    assert code == 1, output
    assert "--skip-broken" in output
    code, output = run([*command.split(), "--skip-broken"], tmp_path)
    assert code == 0, output
    assert "dogs/7.png is broken" in output


@pytest.mark.usefixtures("photos")
def test_a_model_is_measured_on_the_images_that_are_whole(tmp_path: Path) -> None:
    learn = "learn --model mlp:8 --data folder:photos:8 --epochs 2 --no-report --skip-broken"
    code, output = run_here([*learn.split(), "--out", "a"], tmp_path)
    assert code == 0, output
    measure = "evaluate a/compact.safetensors --data folder:photos:8"
    code, output = run_here(measure.split(), tmp_path)
    assert code == 1, output
    code, output = run_here([*measure.split(), "--skip-broken"], tmp_path)
    assert code == 0, output
    assert "on 8 examples" in output


def test_data_that_changed_are_refused_when_a_run_goes_on(tmp_path: Path) -> None:
    write_network(tmp_path)
    learn = [word if word != "digits" else "own_data:build" for word in LEARN]
    data = (
        "import torch\ndef build():\n    draw = torch.Generator().manual_seed({seed})\n"
        "    x = torch.rand(700, 64, generator=draw)\n    y = (x[:, 0] * 10).long()\n"
        "    return (x, y), (x[:50], y[:50])\n"
    )
    (tmp_path / "own_data.py").write_text(data.format(seed=1))
    with start([*learn, "--out", "a"], tmp_path) as process:
        wait_for_epoch(process, tmp_path / "a", 3)
        process.terminate()
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    (tmp_path / "own_data.py").write_text(data.format(seed=2))
    code, output = run_here(["learn", "--resume", "a"], tmp_path)
    assert code == 1, output
    assert "learnt from other data" in output
    (tmp_path / "own_data.py").write_text(data.format(seed=1))
    code, output = run_here(["learn", "--resume", "a"], tmp_path)
    assert code == 0, output


def test_own_network_that_does_not_fit_the_data_is_refused_first(tmp_path: Path) -> None:
    body = "    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 7))\n"
    (tmp_path / "seven.py").write_text(
        "from torch import nn\n\ndef build(input_shape, n_outputs):\n" + body + "    return net\n"
    )
    code, output = run_here(
        ["learn", "--model", "seven:build", "--data", "digits", "--out", "a"], tmp_path
    )
    assert code == 1, output
    assert "the network seven:build gives (2, 7) for two examples, but 'digits' has 10" in output
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [
        (["--start-from", "nothing.pth"], "there is no such file"),
        (["--classes", "30"], "choose 2 to 10 classes"),
        (["--width-spread", "-1"], "give --width-spread a number from 0 to 1"),
    ],
)
def test_a_run_that_never_began_leaves_its_folder_free(
    wrong: list[str], answer: str, tmp_path: Path
) -> None:
    write_network(tmp_path)
    code, output = run_here([*LEARN, *wrong, "--out", "a"], tmp_path)
    assert code == 1, output
    assert answer in output
    assert not (tmp_path / "a").exists()
