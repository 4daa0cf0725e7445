"""Runs that were made once are found again by their keys."""

import json
from pathlib import Path
from typing import Any

from archlearn_paper.experiment import FULL, Run
from archlearn_paper.experiments import find_experiment
from archlearn_paper.recipes import Given, Holder
from archlearn_paper.runner import run_key

KEYS = Path(__file__).with_name("golden") / "run_keys.json"


def list_keys() -> dict[str, str]:
    """Return the run keys of some typical runs."""
    works: list[Any] = list(find_experiment("figure-3a").stages[0](FULL, []))[:3]
    settings = works[0].settings
    holder = Holder(given=Given(widths={"fc1": 3}, linear=("fc2",)), first=1.0, last=2.5)
    works.append(Run(row="given", settings=settings, after_epoch=holder, finish_compact=True))
    return {f"{place}: {work.row}": run_key(work) for place, work in enumerate(works)}


def test_the_runs_of_figure_3b_are_among_the_results() -> None:
    results = json.loads((Path(__file__).parents[2] / "results" / "figure-3b.json").read_text())
    assert {run_key(work) for work in find_experiment("figure-3b").stages[0](FULL, [])} <= {
        row["asked"] for row in results["rows"]
    }


def test_runs_that_were_made_are_found_again() -> None:
    assert list_keys() == json.loads(KEYS.read_text())
