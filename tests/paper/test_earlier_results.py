"""Results are never replaced by fewer ones, unless that is asked for."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from archlearn import SettingsError
from archlearn_paper.commands import request_comparison
from archlearn_paper.comparison import choose_setup, find_methods
from archlearn_paper.experiment import FULL, QUICK, Scale
from archlearn_paper.experiments import find_experiment
from archlearn_paper.results import Results, write_results
from archlearn_paper.runner import RunRequest, check_earlier
from tests.paper.making import make_row

COMPARISON = "compare-lenet-digits-28"
ROWS = (
    "archlearn, strength 0.1 on neurons", "archlearn @ 5000", "svd @ 5000", "svd @ 10000",
    "svd, not fine-tuned @ 5000", "its architecture from scratch @ 5000",
    "neuron pruning @ 5000, round 1",
)  # fmt: skip
ALL = "archlearn; svd; neuron pruning"
SCALE = replace(FULL, seeds=(0, 1), data="digits:28", epochs=30)


def write_earlier(folder: Path, name: str, *, quick: bool = False) -> None:
    results = Results(
        experiment=name, command="", date="", hardware={}, versions={}, seeds=SCALE.seeds,
        quick=quick, scale=asdict(SCALE),
        rows=[make_row(row, settings={"model": "lenet"}) for row in ROWS],
    )  # fmt: skip
    write_results(folder, results)


def ask(folder: Path, scale: Scale) -> RunRequest:
    experiment = find_experiment("table-3")
    return RunRequest(experiment=experiment, scale=scale, folder=folder, command="")


@pytest.mark.parametrize(
    ("scale", "lost"),
    [
        (replace(SCALE, seeds=(0, 2)), "seed 1"),
        (replace(SCALE, data="mnist"), "data digits:28"),
        (replace(SCALE, name=QUICK.name), "the full version"),
        (replace(SCALE, epochs=5), "epochs 30"),
    ],
)
def test_fewer_results_are_refused_unless_forced(scale: Scale, lost: str, tmp_path: Path) -> None:
    write_earlier(tmp_path, "table-3")
    with pytest.raises(SettingsError, match=rf"table-3.json holds .* lost \({lost}\).*--force"):
        check_earlier(ask(tmp_path, scale))
    check_earlier(replace(ask(tmp_path, scale), force=True))


def test_more_results_are_not_refused(tmp_path: Path) -> None:
    check_earlier(ask(tmp_path, SCALE))
    write_earlier(tmp_path, "table-3")
    check_earlier(ask(tmp_path, replace(SCALE, seeds=(0, 1, 2))))
    write_earlier(tmp_path, "table-3", quick=True)
    check_earlier(ask(tmp_path, replace(SCALE, seeds=(7,), epochs=60)))


@pytest.mark.parametrize(
    ("methods", "budgets", "lost"),
    [
        ("archlearn; neuron pruning", "5000,10000", "svd @ 5000, svd @ 10000"),
        (ALL, "5000", "svd @ 10000"),
        (ALL, "5000,10000", None),
    ],
)
def test_a_comparison_of_fewer_methods_or_budgets_is_refused(
    methods: str, budgets: str, lost: str | None, tmp_path: Path
) -> None:
    write_earlier(tmp_path, COMPARISON)
    contest = choose_setup(model="lenet", data="digits:28", budgets=budgets, seeds="0,1", epochs=30)
    request = request_comparison(contest, find_methods(methods), tmp_path, "")
    if lost is None:
        check_earlier(request)
        return
    with pytest.raises(SettingsError, match=rf"lost \({lost}\); ask for them too"):
        check_earlier(request)
