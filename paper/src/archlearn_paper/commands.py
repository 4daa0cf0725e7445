"""`archlearn paper` and `archlearn compare`: run experiments, show and draw what came of them."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from archlearn.errors import ArchlearnError, RunInterruptedError, SettingsError
from archlearn_paper import comparison
from archlearn_paper.comparison.methods import ComparisonSetup, Method, check_setup
from archlearn_paper.experiment import FULL, QUICK, Experiment, Scale, parse_seeds
from archlearn_paper.experiments import TITLES, find_experiment
from archlearn_paper.parallel_runs import SIDE_BY_SIDE
from archlearn_paper.results import Results, join_results, read_results, write_results
from archlearn_paper.runner import ProgressLines, RunRequest, run_stages
from archlearn_paper.tables import ResultsFound, write_page

RESULTS, QUICK_RESULTS = Path("results"), Path("runs") / "quick"


@dataclass(frozen=True, kw_only=True, slots=True)
class PageOptions:
    """What was typed of the experiments that are to be made: see `archlearn paper --help`.

    Without `out`, a quick version is never put in a full one's place. `until` is a time of
    `time.monotonic`.
    """

    out: Path | None
    command: str
    quick: bool = False
    seeds: str | None = None
    data: str = "mnist"
    side_by_side: int = SIDE_BY_SIDE
    force: bool = False
    draw: bool = False
    join: tuple[Path, ...] = ()
    rows: str | None = None
    until: float = math.inf

    @property
    def folder(self) -> Path:
        """Return where results go."""
        return self.out or (QUICK_RESULTS if self.quick else RESULTS)


def make_page(asked: PageOptions, name: str) -> bool:
    """Make the missing runs of an experiment and its page, or draw the page from the results.

    Returns whether the page is there: there may be no time for all runs, or only some be asked for.
    """
    experiment = find_experiment(name)
    if asked.draw:
        results = read_results(asked.folder, name)
        if asked.join:
            results = join_results((asked.folder, *asked.join), name)
            results = results and replace(results, derived=experiment.derive(results.rows))
        return draw_anew(experiment, results, asked.folder)
    full = replace(FULL, seeds=tuple(range(experiment.n_seeds)))
    scale = replace(QUICK if asked.quick else full, data=asked.data)
    if asked.seeds is not None:
        scale = replace(scale, seeds=parse_seeds(asked.seeds))
    return _run(request_runs(asked, experiment, scale))


def make_comparison(asked: PageOptions, setup: ComparisonSetup, methods: Sequence[Method]) -> bool:
    """Make the missing runs of a comparison and its page, or draw the page from the results.

    A page that is drawn has the methods and budgets that its runs were for. Returns whether the
    page is there, as `make_page` does.
    """
    if not asked.draw:
        return _run(request_comparison(asked, setup, methods))
    name = comparison.name_comparison(setup.model, setup.scale.data)
    finished = {e.name: (e, results) for e, results in comparison.find_comparisons(asked.folder)}
    if name not in finished:
        raise SettingsError(
            f"there are no finished results of {name} in {asked.folder}; run the command without "
            "--draw"
        )
    return draw_anew(*finished[name], asked.folder)


def make_all(asked: PageOptions, images: str | None) -> None:
    """Make every page, one after the other; what is there already is not made again.

    Once the time is up, no further page is begun. Without `images`, table 4 is left out. Pages that
    could not be made are named at the end, in an error.
    """
    finished = find_results(asked.folder) if asked.draw else []
    drawn = {
        e.name: partial(draw_anew, e, results, asked.folder) for e, results in finished if results
    }
    pages = drawn if asked.draw else _list_pages(asked, images)
    if not pages:
        raise SettingsError(f"there are no finished results in {asked.folder} to draw")
    failed: list[str] = []
    for number, (name, make) in enumerate(pages.items(), start=1):
        sys.stdout.write(f"page {number} of {len(pages)}: {name}\n")
        sys.stdout.flush()
        try:
            if not make() and time.monotonic() > asked.until:
                return
        except RunInterruptedError:
            raise
        except ArchlearnError as error:
            sys.stdout.write(f"{name} was not made: {error}\n")
            failed.append(name)
    if images is None and not asked.draw:
        sys.stdout.write("table-4 was left out: it needs --images tiny-imagenet:DIR\n")
    if failed:
        raise SettingsError(f"{', '.join(failed)} could not be made; the reasons are above")


def find_results(folder: Path) -> list[ResultsFound]:
    """Return all experiments with what is there of their results, and the finished comparisons."""
    named = [(find_experiment(name), read_results(folder, name)) for name in TITLES]
    return [*named, *comparison.find_comparisons(folder)]


def _list_pages(asked: PageOptions, images: str | None) -> dict[str, Callable[[], bool]]:
    """Return what makes each page, by its name."""
    pages: dict[str, Callable[[], bool]] = {}
    for name in TITLES:
        request = asked if name != "table-4" else replace(asked, data=images or "", seeds=None)
        if request.data:
            pages[name] = partial(make_page, request, name)
    for data in dict.fromkeys((asked.data, "fashion-mnist") if not asked.quick else (asked.data,)):
        setup = comparison.choose_setup(
            model="lenet", data=data, quick=asked.quick, seeds=asked.seeds
        )
        name = comparison.name_comparison("lenet", data)
        pages[name] = partial(make_comparison, asked, setup, comparison.find_methods(None))
    return pages


def request_runs(asked: PageOptions, experiment: Experiment, scale: Scale) -> RunRequest:
    """Return what is to be made of an experiment."""
    return RunRequest(
        experiment=experiment,
        scale=scale,
        folder=asked.folder,
        command=asked.command,
        side_by_side=asked.side_by_side,
        force=asked.force,
        rows=tuple(part.strip() for part in (asked.rows or "*").split(";")),
        until=asked.until,
    )


def _run(request: RunRequest) -> bool:
    """Make the missing runs of an experiment, then write and show what came of them."""
    if request.scale.name == QUICK.name:
        # In steps as small as these a second thread waits for the first, and on a busy machine
        # that took four times as much processor time as the work.
        torch.set_num_threads(1)
    results = run_stages(request, ProgressLines(sys.stdout))
    if results is None:
        sys.stdout.write(
            f"runs of {request.experiment.name} are left for another time; those that have ended "
            f"are in {request.folder}, and the same command goes on from there\n"
        )
        return False
    return _show(request.experiment, results, request.folder)


def draw_anew(experiment: Experiment, results: Results | None, folder: Path) -> bool:
    """Write numbers, tables and figure of an experiment anew from its runs."""
    if results is None or not results.complete:
        raise SettingsError(
            f"there are no finished results of {experiment.name} in {folder}; run: archlearn paper "
            f"{experiment.name}"
        )
    results = replace(results, derived=experiment.derive(results.rows))
    write_results(folder, results)
    return _show(experiment, results, folder)


def request_comparison(
    asked: PageOptions, setup: ComparisonSetup, methods: Sequence[Method]
) -> RunRequest:
    """Return what a comparison of some methods asks for."""
    check_setup(setup)
    experiment = comparison.make_experiment(setup.model, setup.scale.data, setup.budgets, methods)
    return request_runs(asked, experiment, setup.scale)


def _show(experiment: Experiment, results: Results, folder: Path) -> bool:
    """Write the page and its figure, and say where they are; return that the page is there."""
    drawn: list[Path] = []
    try:
        from archlearn_paper.plots import write_figure

        drawn = write_figure(experiment.name, results.derived, folder)
    except ImportError:
        # A machine that is lent for its GPU may have little else.
        sys.stdout.write("no figure: matplotlib is not installed; draw it elsewhere by --draw\n")
    page = write_page(experiment, results, folder)
    sys.stdout.write(f"\n{page.read_text(encoding='utf-8')}\n")
    for path in (folder / f"{experiment.name}.json", page, *drawn):
        sys.stdout.write(f"{path}\n")
    return True
