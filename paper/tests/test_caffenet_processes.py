"""`torchrun` with two processes learns a reduced CaffeNet on a folder of images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.commands import run_here, start_command
from tests.cli.test_processes import torchrun
from tests.run_files import METRICS, SUMMARY, read_lines

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_group_of_processes")]

LEARN = [
    "learn", "--data", "folder:photos:24", "--resize", "67",
    "--batch-size", "12", "--epochs", "4", "--learning-rate", "0.01", "--width-cost", "0.02",
    "--gate-rate", "1.0", "--start-after", "0", "--validation", "0.1",
    "--leave", "conv1", "--accelerator", "cpu", "--threads", "1", "--no-report",
]  # fmt: skip


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for number, name in enumerate(("bright", "dark", "middle")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for place in range(16):
            low = 70 * number
            image = random.integers(low, low + 110, (24, 20, 3), dtype=np.uint8)
            Image.fromarray(image).save(tmp_path / "photos" / name / f"{place}.png")
    return tmp_path


def test_two_processes_learn_what_one_learns(photos: Path) -> None:
    # Dropout draws differ from process to process, so it is switched off for the comparison.
    (photos / "still.py").write_text(
        "from torch import nn\n"
        "from archlearn_paper.caffenet import CaffeNet\n"
        "def build(input_shape, n_outputs):\n"
        "    net = CaffeNet(side=input_shape[1], n_outputs=n_outputs, factor=0.04)\n"
        "    net.drop6, net.drop7 = nn.Identity(), nn.Identity()\n"
        "    return net\n"
    )
    arguments = [*LEARN, "--model", "still:build"]
    code, output = run_here([*arguments, "--out", "one"], photos)
    assert code == 0, output
    with start_command([*torchrun(2), *arguments, "--out", "two"], photos) as process:
        output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    ones, twos = (read_lines(photos / name / METRICS) for name in ("one", "two"))
    assert len(ones) == len(twos) == 5
    for one, two in zip(ones[1:], twos[1:], strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-3)
    assert twos[-1]["widths"] == ones[-1]["widths"]
    assert ones[-1]["widths"] != ones[0]["widths"]
    assert (photos / "two" / SUMMARY).is_file()


def test_varied_images_and_dropout_differ_between_processes(photos: Path) -> None:
    (photos / "small.py").write_text(
        "from archlearn_paper.caffenet import build as whole\n"
        "def build(input_shape, n_outputs):\n"
        "    return whole(input_shape, n_outputs, factor=0.04)\n"
    )
    arguments = [*LEARN, "--model", "small:build", "--augment", "crop-flip", "--out", "two"]
    with start_command([*torchrun(2), *arguments], photos) as process:
        output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    rows = read_lines(photos / "two" / METRICS)
    assert rows[-1]["epoch"] == 4
    assert all(row["train_loss"] > 0 for row in rows[1:])
