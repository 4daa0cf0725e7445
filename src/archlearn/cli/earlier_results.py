"""Results that are there already are added to, and never replaced by lesser ones."""

from pathlib import Path

from archlearn.experiments.files import read_results, results_path
from archlearn.experiments.ordering import QUICK_RESULTS
from archlearn.experiments.scales import QUICK, Scale
from archlearn.training.errors import SettingsError


def check_earlier_results(folder: Path, name: str, scale: Scale) -> None:
    """Refuse an experiment that would take the place of results it does not include.

    Raises:
        SettingsError: If results are there of the full version where the quick one is asked for,
            on other data, or of more seeds.
    """
    before = read_results(folder, name)
    if before is None:
        return
    path, elsewhere = results_path(folder, name), "choose another folder with --out"
    if scale.name == QUICK.name and not before.quick:
        raise SettingsError(
            f"{path} holds results of the full version, and those of the quick one would take "
            f"their place; leave out --out, and they go to {QUICK_RESULTS}, or {elsewhere}"
        )
    data = before.scale.get("data", scale.data)
    if data != scale.data:
        raise SettingsError(
            f"{path} holds results on {data}, and those on {scale.data} would take their place; "
            f"{elsewhere}"
        )
    lost = [seed for seed in before.seeds if seed not in scale.seeds]
    if lost and not (before.quick and scale.name != QUICK.name):
        seeds = ",".join(map(str, sorted({*before.seeds, *scale.seeds})))
        raise SettingsError(
            f"{path} holds results of the seeds {', '.join(map(str, before.seeds))}, and some "
            f"would be lost; say --seeds {seeds}, or {elsewhere}"
        )
