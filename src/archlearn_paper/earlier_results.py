"""Checks that earlier results are added to, never replaced by lesser ones."""

from collections.abc import Sequence
from pathlib import Path

from archlearn.errors import SettingsError
from archlearn_paper.comparison.methods import SCRATCH
from archlearn_paper.comparison.protocol import Contest
from archlearn_paper.comparison.ranking import UNTUNED, read_result
from archlearn_paper.experiment import QUICK, Scale
from archlearn_paper.request_options import QUICK_RESULTS
from archlearn_paper.results import Results, read_results, results_path

_ELSEWHERE = "choose another folder with --out"


def check_earlier_results(folder: Path, name: str, scale: Scale) -> None:
    """Refuse an experiment that would take the place of results it does not include.

    Raises:
        SettingsError: If results are there of the full version where the quick one is asked for,
            on other data, or of more seeds.
    """
    before = read_results(folder, name)
    if before is None:
        return
    path = results_path(folder, name)
    if scale.name == QUICK.name and not before.quick:
        raise SettingsError(
            f"{path} holds results of the full version, and those of the quick one would take "
            f"their place; leave out --out, and they go to {QUICK_RESULTS}, or {_ELSEWHERE}"
        )
    data = before.scale.get("data", scale.data)
    if data != scale.data:
        raise SettingsError(
            f"{path} holds results on {data}, and those on {scale.data} would take their place; "
            f"{_ELSEWHERE}"
        )
    lost = [seed for seed in before.seeds if seed not in scale.seeds]
    if lost and not _grows(before, scale):
        seeds = ",".join(map(str, sorted({*before.seeds, *scale.seeds})))
        raise SettingsError(
            f"{path} holds results of the seeds {', '.join(map(str, before.seeds))}, and some "
            f"would be lost; say --seeds {seeds}, or {_ELSEWHERE}"
        )


def check_earlier_comparison(
    folder: Path, name: str, contest: Contest, methods: Sequence[str]
) -> None:
    """Refuse a comparison that would take the place of one it does not include.

    Raises:
        SettingsError: If one is there with other epochs, or with methods or budgets besides, or
            for what any experiment is refused.
    """
    check_earlier_results(folder, name, contest.scale)
    before = read_results(folder, name)
    if before is None or _grows(before, contest.scale):
        return
    path = results_path(folder, name)
    epochs = before.scale.get("epochs", contest.scale.epochs)
    if epochs != contest.scale.epochs:
        raise SettingsError(
            f"{path} holds results of {epochs} epochs, and those of {contest.scale.epochs} would "
            f"take their place; say --epochs {epochs}, or {_ELSEWHERE}"
        )
    found = [pair for row in before.rows if (pair := read_result(row.row)) is not None]
    there = [method for method, _ in found if method not in (UNTUNED, SCRATCH)]
    _refuse_loss(path, "--methods", "; ", there, methods)
    budgets = sorted(budget for _, budget in found)
    _refuse_loss(path, "--budget", ",", list(map(str, budgets)), list(map(str, contest.budgets)))


def _refuse_loss(
    path: Path, option: str, comma: str, before: Sequence[str], asked: Sequence[str]
) -> None:
    lost = [each for each in dict.fromkeys(before) if each not in asked]
    if lost:
        raise SettingsError(
            f"{path} holds results of {comma.join(lost)} besides, which would be lost; say "
            f"{option} '{comma.join(dict.fromkeys([*before, *asked]))}', or {_ELSEWHERE}"
        )


def _grows(before: Results, scale: Scale) -> bool:
    """Return whether the full version takes the place of a quick one."""
    return before.quick and scale.name != QUICK.name
