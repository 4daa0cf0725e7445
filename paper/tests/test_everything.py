"""Every experiment, very small, from its first run to its page and its figure."""

from dataclasses import replace
from pathlib import Path

import pytest

from archlearn_paper.commands import find_results
from archlearn_paper.experiment import QUICK
from archlearn_paper.experiments import find_experiment
from archlearn_paper.plots import find_drawing, write_figure
from archlearn_paper.results import Results, read_results, write_results
from archlearn_paper.runner import RunRequest, run_stages
from archlearn_paper.tables import write_documentation, write_page
from paper.tests.making import Counter

pytestmark = pytest.mark.slow

TINY = replace(QUICK, seeds=(0,), epochs=1, limit=650, data="digits:28", probes=20)
MADE = {
    "figure-1b": 0,
    "table-1": 20,
    "table-2": 12,
    "figure-3a": 5,
    "figure-3b": 9,
    "table-3": 1,
    "properties": 10,
    "ablation": 8,
}
"""How many runs each makes."""


PAGE = """Before.
<!-- results: table-1 -->
old
<!-- end of results -->
After.
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


def carry_out(name: str, folder: Path) -> tuple[Results, int]:
    counter = Counter()
    order = RunRequest(experiment=find_experiment(name), scale=TINY, folder=folder, command="tiny")
    return run_stages(order, counter), counter.n


def test_every_experiment_is_drawn() -> None:
    drawn = {name for name in MADE if find_drawing(name) is not None}
    assert set(MADE) - drawn <= {"ablation"}


def test_experiments_run_and_are_written_and_drawn(folder: Path) -> None:
    for name, n_runs in MADE.items():
        experiment = find_experiment(name)
        results, made = carry_out(name, folder)
        assert made == n_runs, name
        assert results.complete
        drawn = write_figure(name, results.derived, folder)
        assert all(path.stat().st_size > 5000 for path in drawn)
        page = write_page(experiment, results, folder).read_text()
        assert all(check.what in page for check in experiment.check(results.derived))
        assert (f"]({name}.svg)" in page) == bool(drawn)
        assert "the bounds below are those of the full run" in page.splitlines()[2]
        again = folder / "again"
        again.mkdir(exist_ok=True)
        drawn_again = write_figure(name, results.derived, again)
        assert [p.read_bytes() for p in drawn_again[:1]] == [p.read_bytes() for p in drawn[:1]]
    _check_documentation(folder)


def _check_documentation(folder: Path) -> None:
    docs = folder / "docs"
    docs.mkdir()
    (docs / "own.md").write_text(PAGE)
    page = write_documentation(find_results(folder), folder, docs).read_text()
    assert "No full results are there yet of figure-1b, table-1" in page
    assert "## table-1" not in page
    results = read_results(folder, "table-1")
    assert results is not None
    write_results(folder, replace(results, quick=False))
    page = write_documentation(find_results(folder), folder, docs).read_text()
    assert "## table-1" in page
    assert "accuracy of the baseline" in page.split("## table-1")[0]
    assert (docs / "figures" / "table-1.svg").is_file()
    own = (docs / "own.md").read_text()
    assert own.startswith("Before.\n")
    assert own.endswith("<!-- end of results -->\nAfter.\n")
    assert "| AL1 | (1,x)-(1,x)-(1,1) | 16-26-10 | 15,012 |" in own
    assert "old" not in own
