"""`archlearn sweep`."""

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

import archlearn as al
from archlearn.cli.learn_commands import NONE_GIVEN, Options, given
from archlearn.costs import COSTS, LATENCY
from archlearn.errors import SettingsError
from archlearn.training.settings import RunSettings, override, read_settings

if TYPE_CHECKING:
    from archlearn.training.sweep import Point, SweepRun

SWEEP_EXAMPLES = """Examples:
  archlearn sweep --budget multiply_adds=75%,50%,25% --seeds 0,1,2 --out runs/sweep
  RAY_ADDRESS=head:6379 archlearn sweep --budget multiply_adds=75%,50% --ray --jobs 8 --out /nfs/s
  archlearn sweep --model resnet20 --data cifar-10 --budget parameters=50% --lose 0.5 --out runs/s
"""


def sweep(
    *,
    out: Path,
    seeds: str = "0",
    jobs: Annotated[int, Parameter(validator=Number(gte=1))] = 1,
    ray: bool = False,
    lose: Annotated[float | None, Parameter(validator=Number(gte=0))] = None,
    config: Path | None = None,
    options: Annotated[Options, Parameter(name="*")] = NONE_GIVEN,
) -> None:
    """Learn to several budgets with several seeds, and show what accuracy costs.

    Each run has a folder in --out. Given again, the command goes on where it was stopped. Runs are
    compared by validation data; test scores are for the one that is chosen.

    Args:
        out: The folder of the sweep.
        seeds: Seeds of each budget, as 0,1,2.
        jobs: Runs that are made side by side.
        ray: Let the workers of a Ray cluster make them: the one of RAY_ADDRESS, or one on this
            machine. All of them must see --out.
        lose: Train the network as it is, too, and hand back the cheapest one that is at most so
            many points of accuracy worse.
        config: A TOML file of settings, like the config.toml of a run.
        options: Single settings; --budget takes several values, as multiply_adds=75%,50%.
    """
    from archlearn.training.sweep import list_runs, run_sweep, summarise

    asked = given(options)
    budgets = _split_budgets(asked.pop("budget", ()))
    settings = override(read_settings(config) if config else RunSettings(), asked)
    if not all(part.strip().isdigit() for part in seeds.split(",")):
        raise SettingsError(f"--seeds {seeds!r} are no seeds; write 0,1,2")
    numbers = [int(part) for part in seeds.split(",")]
    runs = list_runs(out, settings, budgets, numbers, with_plain=lose is not None)
    done: list[SweepRun] = []

    def say(run: "SweepRun") -> None:
        done.append(run)
        sys.stdout.write(f"{len(done)} of {len(runs)}: {run.folder}\n")
        sys.stdout.flush()

    n_at_a_time = min(jobs, len(runs))
    sys.stdout.write(f"{out}: runs to make or to keep: {len(runs)}, {n_at_a_time} at a time\n")
    sys.stdout.flush()
    run_sweep(runs, jobs, say, on_ray=ray)
    points = summarise(runs)
    sys.stdout.write(f"{'budget':<24}{'validation':>12}{'parameters':>14}{'multiply-adds':>16}\n")
    for point in points:
        sys.stdout.write(
            f"{point.budget:<24}{point.accuracy:>12.2%}{point.parameters:>14,.0f}"
            f"{point.multiply_adds:>16,.0f}\n"
        )
    if lose is not None:
        _hand_back(points, lose, out)
    page = al.reporting.write_report([run.folder for run in runs], out / "report.html")
    sys.stdout.write(f"report  {page}\n")


def _split_budgets(words: tuple[str, ...]) -> list[str]:
    """Return one word for each budget: multiply_adds=75%,50% are two.

    Raises:
        InputError: If one is no budget for any network.
    """
    from archlearn.optim.gate_limits import read_budget

    start = dict.fromkeys((*COSTS, LATENCY), 1.0)
    found: list[str] = []
    for word in words:
        name, sign, values = word.partition("=")
        if not (name and sign and all(value.strip() for value in values.split(","))):
            raise SettingsError(f"budget is {word!r}; write it as --budget multiply_adds=75%,50%")
        for value in map(str.strip, values.split(",")):
            read_budget({name.strip().replace("-", "_"): value}, start, 1)
            found.append(f"{name.strip()}={value}")
    return found


def _hand_back(points: "list[Point]", lose: float, out: Path) -> None:
    """Copy the compact model that loses little enough, and say what it scores on test data."""
    from archlearn.training.run_directory import COMPACT
    from archlearn.training.sweep import choose_cheapest, read_summary

    chosen = choose_cheapest(points, lose)
    shutil.copyfile(chosen.best.folder / COMPACT, out / COMPACT)
    tested = (read_summary(chosen.best.folder) or {})["test_accuracy"]
    sys.stdout.write(
        f"within {lose:g} points of plain: {chosen.budget}, {tested:.2%} right on test data\n"
        f"compact model  {out / COMPACT}\n"
    )
