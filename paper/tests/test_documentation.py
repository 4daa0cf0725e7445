"""The documentation says what the results say: `archlearn paper --docs` would change nothing."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from archlearn_paper.commands import draw_anew, find_results
from archlearn_paper.experiments import find_experiment
from archlearn_paper.results import read_results
from archlearn_paper.tables import write_documentation, write_page
from paper.tests.making import make_row

ROOT = Path(__file__).parents[2]


def test_pages_and_figures_are_those_of_the_results(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for page in (ROOT / "docs").glob("*.md"):
        shutil.copy(page, docs)
    write_documentation(find_results(ROOT / "results"), ROOT / "results", docs)
    for made in [*docs.glob("*.md"), *(docs / "figures").glob("*.svg")]:
        kept = ROOT / "docs" / made.relative_to(docs)
        assert made.read_bytes() == kept.read_bytes(), f"run: archlearn paper --docs ({made.name})"


def test_a_page_is_written_where_nothing_can_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "archlearn_paper.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    draw_anew(find_experiment("table-3"), read_results(ROOT / "results", "table-3"), tmp_path)
    assert "no figure: matplotlib is not installed" in capsys.readouterr().out
    assert "dead networks" in (tmp_path / "table-3.md").read_text()
    assert not (tmp_path / "table-3.svg").exists()


def test_a_quick_page_says_first_how_small_its_own_runs_are(tmp_path: Path) -> None:
    full = read_results(ROOT / "results", "table-3")
    assert full is not None
    limits_and_epochs = ((1500, 6), (300, 30), (300, 0))
    rows = [make_row("a", settings={"limit": n}, epochs=epochs) for n, epochs in limits_and_epochs]
    quick = replace(full, quick=True, seeds=[0], rows=rows)
    page = write_page(find_experiment("table-3"), quick, tmp_path).read_text().splitlines()
    assert "300 to 1,500 train examples, 6 to 30 epochs a run, 1 seed(s)" in page[2]
    assert page[2].endswith("the bounds below are those of the full run.")
    assert "quick" not in write_page(find_experiment("table-3"), full, tmp_path).read_text()
