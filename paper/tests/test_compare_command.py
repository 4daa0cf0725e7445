"""`archlearn compare` runs a comparison, shows it, and draws it anew."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import assert_refused, run_here

SMALL = [
    "compare", "--quick", "--data", "digits:28", "--epochs", "2", "--budget", "10000",
    "--methods", "even widths from scratch; neuron pruning", "--out", "r",
]  # fmt: skip
NAME = "compare-lenet-digits-28"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ("compare --methods svg", "there is no method 'svg'; choose of archlearn;"),
        ("compare --budget 5k", "write different numbers of parameters, as 5000,10000"),
        ("compare --budget 5000,5000", "write different numbers of parameters"),
        ("compare --budget ²", "--budget '²': write different numbers"),
        ("compare --methods svd;svd", "'svd' is there twice"),
        ("compare --seeds 0,1000", "strengths are chosen on seed 1000; count others"),
        ("compare --epochs 1", "give 2 at least"),
        (
            "compare --quick --data digits:28 --budget 20000,10",
            "--budget 10: lenet has 431,080 parameters, and 89 with one channel in each layer",
        ),
        (
            "compare --quick --model mlp:20 --data digits --budget 1510",
            "--budget 1,510: mlp:20 has 1,510 parameters",
        ),
        ("compare --draw --out nowhere", "run the command without --draw"),
        ("compare --quick --model mlp:20 --data diabetes", "'diabetes' is a regression"),
    ],
)
def test_what_is_wrong_is_answered_with_what_to_do_before_anything_is_trained(
    arguments: str, answer: str, tmp_path: Path
) -> None:
    output = assert_refused(arguments, answer, tmp_path)
    assert "runs to make" not in output


def test_budgets_that_no_method_reaches_are_answered_with_what_to_do(tmp_path: Path) -> None:
    words = "compare --quick --data digits:28 --epochs 2 --budget 10000 --methods fastfood --out r"
    assert_refused(words, "none of fastfood reaches 10,000 parameters; ask for more", tmp_path)
    assert not (tmp_path / "r" / f"{NAME}.json").exists()


RESIDUAL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, n_outputs):
        super().__init__()
        self.first, self.again = nn.Linear(64, 9), nn.Linear(9, 9)
        self.last = nn.Linear(9, n_outputs)

    def forward(self, x):
        x = torch.relu(self.first(x.flatten(1)))
        return self.last(torch.relu(x + self.again(x)))
"""


@pytest.mark.parametrize("method", ["l0 gates", "l1 diagonal"])
def test_a_method_that_a_network_is_not_for_is_named(method: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(RESIDUAL)
    words = ["compare", "--quick", "--data", "digits", "--model", "own:Net", "--budget", "500"]
    code, output = run_here([*words, "--methods", f"svd; {method}"], tmp_path)
    assert code == 1
    assert f"error: {method} cannot be used with this network: " in output
    assert "name the others with --methods" in output
    code, output = run_here([*words, "--methods", "svd; neuron pruning", "--epochs", "2"], tmp_path)
    assert code == 0, output


@pytest.mark.slow
def test_a_comparison_is_run_shown_written_and_not_run_again(tmp_path: Path) -> None:
    code, output = run_here(SMALL, tmp_path)
    assert code == 0, output
    assert "10,000 parameters" in output
    results = json.loads((tmp_path / "r" / f"{NAME}.json").read_text())
    assert set(results["derived"]["results"]["neuron pruning"]) == {"10000"}
    assert {row["row"] for row in results["rows"]} == {
        "large network", "neuron pruning @ 10000", "even widths from scratch @ 10000",
    }  # fmt: skip
    page = (tmp_path / "r" / f"{NAME}.md").read_text()
    assert "| neuron pruning |" in page
    assert "archlearn compare --quick" in page

    code, output = run_here(SMALL, tmp_path)
    assert code == 0
    assert "0 runs to make, 2 are there already" in output

    (tmp_path / "r" / f"{NAME}.svg").unlink()
    draw = ["compare", "--data", "digits:28", "--out", "r", "--draw"]
    code, output = run_here(draw, tmp_path)
    assert code == 0, output
    assert "10,000 parameters" in output
    assert (tmp_path / "r" / f"{NAME}.svg").read_text().startswith("<?xml")
