"""The page has a table of costs by layer, with their sums and the accuracy."""

import html
import json
import re
from pathlib import Path

import pytest

import archlearn_cli as cli
from tests.reporting.run_folders import LENET, write_run

LAYERS = {"before": {"conv_1": (520, 288000), "bn": (40, 0), "fc1": (430520, 2005000)},
          "after": {"conv_1": (260, 144000), "bn": (20, 0), "fc1": (18835, 258130)}}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with costs by layer, whose network was measured before as well."""
    run = write_run(tmp_path / "a", LENET)
    summary = json.loads((run / "summary.json").read_text())
    for when, layers in LAYERS.items():
        summary[when]["layers"] = [
            {"name": name, "parameters": costs[0], "multiply_adds": costs[1]}
            for name, costs in layers.items()
        ]
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "speed.json").write_text('{"rows": [], "score_before": 0.9941}')
    return run


def test_the_page_has_each_layer_the_sums_and_the_accuracy(folder: Path) -> None:
    page = cli.reporting.write_report(folder, folder / "report.html").read_text("utf-8")
    table = page.partition("<caption>lenet on mnist, before and after</caption>")[2]
    rows = re.findall(r"<tr>(.*?)</tr>", table.partition("</table>")[0])
    said = [[html.unescape(c) for c in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", r)] for r in rows]
    assert [[cell.replace("\u00a0", " ") for cell in row] for row in said] == [
        ["layer", "parameters", "after", "multiply-adds", "after"],
        ["conv_1", "520", "260", "288,000", "144,000"],
        ["fc1", "430,520", "18,835", "2,005,000", "258,130"],
        ["norms and others", "40", "20", "0", "0"],
        ["total", "431,080", "19,115", "2,293,000", "402,130"],
        ["left", "", "4.4 %", "", "17.5 %"],
        ["accuracy (test)", "99.41 %", "99.32 %", "", ""],
    ]
    assert "on 10,000 test examples, 99.41\u00a0% before" in page
