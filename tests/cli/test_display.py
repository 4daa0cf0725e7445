"""What is said of a run fits into lines."""

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from archlearn_cli.commands.display import PlainDisplay, in_a_line, print_wide, show_downloads
from archlearn_cli.training.callbacks import EpochEnd
from tests.cli.commands import exit_code


def test_architecture_that_is_no_chain_is_said_in_one_line() -> None:
    assert in_a_line("20-50-500-10") == "20-50-500-10"
    assert (
        in_a_line("stem  1 of 16\na     13 of 16\nhead  10") == "stem 1 of 16, a 13 of 16, head 10"
    )
    assert in_a_line("\n".join(f"layer{n}  64" for n in range(50))) == "50 layers"


def row(**more: Any) -> dict[str, Any]:
    found = {"epoch": 1, "train_loss": 0.5, "validation_loss": None, "parameters": 100}
    return found | {"widths": {}, "binarisation_gap": 0.25} | more


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (row(), "100 parameters  left 0:05"),
        (row(widths={"a": 3, "b": 4}), "100 parameters, gates 0.250 from 0 or 1  left 0:05"),
        (
            row(
                widths={"a": 3},
                budget_path={"parameters": 120.0, "latency": 2.5},
                latency=2.25,
                price=0.012,
            ),
            "100/120 parameters, 2.25/2.5 ms  left 0:05",
        ),
    ],
)
def test_an_epoch_is_said_in_a_line(
    numbers: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    PlainDisplay().epoch_ended(EpochEnd(row=numbers, seconds_left=5.0))
    assert capsys.readouterr().out.startswith(f"epoch   1  loss 0.5000  not validated  {said}")


def test_an_epoch_under_a_budget_fits_into_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = row(
        epoch=100,
        widths=dict.fromkeys(range(4), 500),
        validation_loss=0.25,
        validation_accuracy=0.9125,
        multiply_adds=20_257_408,
        budget_path={"multiply_adds": 20_275_520.0},
        price=1e-9,
    )
    PlainDisplay().epoch_ended(EpochEnd(row=numbers, seconds_left=599.0))
    said = capsys.readouterr().out
    assert said.endswith("validation 91.25%  20.3M/20.3M multiply-adds  left 9:59\n")
    assert len(said) <= 80


def test_a_long_row_is_broken_between_words_on_a_terminal_and_whole_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    row_ = "layer1.0.conv1  relu  64  depth: 'conv2' pads by (1, 1), so the layer would differ"
    print_wide(Text(row_))
    assert capsys.readouterr().out == f"{row_}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_wide(Text(row_))
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 40
    assert said.split() == row_.split()


def test_a_network_whose_layers_all_merged_is_told_by_more_than_its_outputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    learn = "learn --model mlp:30-20 --data digits --epochs 6 --depth-share 100 --width-cost 1"
    exit_code([*learn.split(), "--threads", "1", "--out", str(tmp_path / "a")])
    shown = capsys.readouterr().out
    assert "after    10 (layers.0, layers.2 merged; 1 layer left)  650 parameters" in shown
    page = (tmp_path / "a" / "report.html").read_text()
    assert re.search(r"<b>30-20-10</b>.*<b>10 \(one layer\)</b>", page)


@pytest.mark.parametrize(
    ("what", "shown"),
    [("images", ("decoding images", "100/3000")), ("mnist", ("fetching mnist", "kB"))],
)
def test_images_are_counted_and_downloads_measured_in_bytes(
    what: str,
    shown: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with show_downloads() as show:
        show(what, 100, 3000)
    output = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert all(part in output for part in shown)


def test_signs_that_a_terminal_does_not_have_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of no epoch is a dash."""
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    words = "learn --model mlp:5 --data digits --epochs 1 --threads 1 --no-report --out"
    assert exit_code([*words.split(), str(tmp_path / "a")]) == 0
    assert b"epoch   0  loss      ?  validation" in shown.getvalue()
