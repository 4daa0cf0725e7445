"""`archlearn compare`: run, show and draw a comparison of methods."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from archlearn.errors import SettingsError
from archlearn_paper.comparison.methods import Contender
from archlearn_paper.comparison.protocol import Contest
from archlearn_paper.earlier_results import check_earlier_comparison
from archlearn_paper.experiment import Experiment
from archlearn_paper.method_comparison import (
    choose_contest,
    find_comparisons,
    find_contenders,
    make_experiment,
)
from archlearn_paper.paper_command import make_watcher
from archlearn_paper.request_options import choose_folder
from archlearn_paper.results import Results, write_results
from archlearn_paper.runner import RunRequest, check_contest, conduct
from archlearn_paper.tables import describe_results, write_page


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What was typed."""

    model: str
    data: str
    budget: str | None
    methods: str | None
    seeds: str | None
    epochs: int | None
    quick: bool
    out: Path | None

    @property
    def folder(self) -> Path:
        """Where results go."""
        return choose_folder(self.out, quick=self.quick)

    def contest(self) -> Contest:
        """Return what is the same for all methods."""
        scale, budgets = choose_contest(
            quick=self.quick,
            budgets=self.budget,
            seeds=self.seeds,
            data=self.data,
            epochs=self.epochs,
        )
        return Contest(model=self.model, budgets=budgets, scale=scale)

    def experiment(self) -> Experiment:
        """Return the comparison."""
        return self.experiment_of(find_contenders(self.methods))

    def experiment_of(self, contenders: Sequence[Contender]) -> Experiment:
        """Return the comparison of some methods."""
        return make_experiment(self.model, self.data, self.contest().budgets, contenders)


def compare_methods(asked: Asked, *, command: str, side_by_side: int) -> None:
    """Make the missing runs of a comparison, then write and show what came of them."""
    contest, contenders = asked.contest(), find_contenders(asked.methods)
    experiment = asked.experiment_of(contenders)
    check_contest(contest)
    methods = [each.name for each in contenders]
    check_earlier_comparison(asked.folder, experiment.name, contest, methods)
    order = RunRequest(
        experiment=experiment,
        scale=contest.scale,
        folder=asked.folder,
        command=command,
        side_by_side=side_by_side,
    )
    with make_watcher() as watcher:
        results = conduct(order, watcher)
    _conclude(experiment, results, asked.folder)


def draw_comparison_anew(asked: Asked) -> None:
    """Write numbers, tables and figure anew from the runs, at the budgets that these were for."""
    name = asked.experiment().name
    found = {e.name: (e, results) for e, results in find_comparisons(asked.folder)}
    if name not in found:
        raise SettingsError(
            f"there are no finished results of {name} in {asked.folder}; run the command without "
            "--draw"
        )
    experiment, results = found[name]
    results = replace(results, derived=experiment.derive(results.rows))
    write_results(asked.folder, results)
    _conclude(experiment, results, asked.folder)


def _conclude(experiment: Experiment, results: Results, folder: Path) -> None:
    from archlearn_paper.plots.figures import draw_comparison, save_figure

    name = experiment.name
    drawn = save_figure(draw_comparison(results.derived), name, folder)
    page = write_page(experiment, results, folder)
    sys.stdout.write(f"{describe_results(experiment, results)}\n\n")
    for path in (folder / f"{name}.json", page, *drawn):
        sys.stdout.write(f"{path}\n")
