"""What is said of a run fits into lines."""

import re
from pathlib import Path

import pytest

from archlearn.cli.display import in_a_line
from tests.cli.commands import exit_code


def test_architecture_that_is_no_chain_is_said_in_one_line() -> None:
    assert in_a_line("20-50-500-10") == "20-50-500-10"
    assert (
        in_a_line("stem  1 of 16\na     13 of 16\nhead  10") == "stem 1 of 16, a 13 of 16, head 10"
    )
    assert in_a_line("\n".join(f"layer{n}  64" for n in range(50))) == "50 layers"


def test_a_network_whose_layers_all_merged_is_told_by_more_than_its_outputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learn = "learn --model mlp:30-20 --data digits --epochs 6 --depth-share 100 --width-cost 1"
    exit_code([*learn.split(), "--threads", "1", "--out", str(tmp_path / "a")])
    shown = capsys.readouterr().out
    assert "after    10 (layers.0, layers.2 merged; 1 layer left)  650 parameters" in shown
    page = (tmp_path / "a" / "report.html").read_text()
    assert re.search(r"<b>30-20-10</b>.*<b>10 \(one layer\)</b>", page)
