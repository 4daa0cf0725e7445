"""Costs by layer and accuracy can be pasted into a paper, as LaTeX and as Markdown."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import archlearn as al
from tests.cli.commands import exit_code
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


def say(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert exit_code(["report", *words]) == 0
    return capsys.readouterr().out.replace("\u00a0", " ")


def test_markdown_has_each_layer_the_sums_and_the_accuracy(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        say(capsys, str(folder), "--to", "markdown")
        == """\
**lenet on mnist, before and after**

| layer | parameters | after | multiply-adds | after |
|---|---:|---:|---:|---:|
| conv_1 | 520 | 260 | 288,000 | 144,000 |
| fc1 | 430,520 | 18,835 | 2,005,000 | 258,130 |
| norms and others | 40 | 20 | 0 | 0 |
| total | 431,080 | 19,115 | 2,293,000 | 402,130 |
| left |  | 4.4 % |  | 17.5 % |
| accuracy (test) | 99.41 % | 99.32 % |  |  |
"""
    )


def test_several_runs_have_one_row_each(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_run(folder.parent / "b", replace(LENET, name="b|2", test_score=0.98))
    said = say(capsys, str(folder), str(other), "--to", "markdown")
    assert "| a | 99.32 % | 19,115 | 4.4 % | 402,130 | 17.5 % |" in said
    assert "| b\\|2 | 98.00 % | 19,115 |" in said


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex found")
def test_latex_compiles_with_booktabs(folder: Path, tmp_path: Path) -> None:
    exit_code(["report", str(folder), "--to", "latex", "--out", str(tmp_path / "table.tex")])
    document = r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{table}"
    (tmp_path / "paper.tex").write_text(document + r"\end{document}")
    made = subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        text=True,
    )
    assert made.returncode == 0, made.stdout
    assert "Overfull" not in made.stdout
    assert (tmp_path / "paper.pdf").stat().st_size > 10_000


def test_latex_escapes_what_means_something_in_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = say(capsys, str(folder), "--to", "latex")
    assert r"conv\_1 & 520 & 260 & 288,000 & 144,000 \\" in said
    assert r"left &  & 4.4\,\% &  & 17.5\,\% \\" in said
    lines = [line.strip() for line in said.splitlines()]
    assert lines[lines.index(r"\bottomrule") - 4] == r"\midrule"
    assert all(line.count("&") == 4 for line in lines if line.endswith(r"\\"))


def test_the_page_has_them_to_copy(folder: Path) -> None:
    page = al.reporting.write_report([folder], folder / "report.html").read_text("utf-8")
    assert "\\begin{tabular}{lrrrr}" in page
    assert "| conv_1 | 520 | 260 |" in page
    assert "Costs by layer" in page
    assert "on 10,000 test examples, 99.41\u00a0% before" in page
