"""`archlearn learn`, `demo`, `report` and `sweep`: commands about runs."""

import dataclasses
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number

from archlearn.costs import COSTS, LATENCY
from archlearn.errors import SettingsError
from archlearn_cli.data.file_cache import CONFIG, SUMMARY
from archlearn_cli.training.settings import (
    GateSettings,
    HardwareSettings,
    RunSettings,
    flat_settings,
    override,
    read_settings,
)

if TYPE_CHECKING:
    from archlearn_cli.training.sweep import Point, SweepRun

_FIRST = ("model", "data", "budget", "epochs", "batch_size", "seed", "start_from", "teacher")
_OF_THE_PENALTY = (
    *("gate_rate", "travel", "largest_step", "width_start", "width_spread", "depth_start"),
    *("width_cost", "ratio", "depth_share", "price"),
)
_TITLES = {
    "first": "Run",
    "": "Data",
    "optimiser": "Weights",
    "gates": "Gates",
    "penalty": "Paper's penalty",
    "hardware": "Hardware",
    "record": "Record",
}


def _make_options() -> type:
    hints = get_type_hints(RunSettings)
    groups = {panel: Group.create_ordered(title) for panel, title in _TITLES.items()}
    fields: list[tuple[str, Any, Any]] = []
    for section, name, item in sorted(flat_settings(), key=_position):
        hint = get_type_hints(hints[section])[name] if section else hints[name]
        text, default = item.metadata["help"], item.default
        if default is not None and default != ():
            shown = f"{default:g}" if isinstance(default, float) else str(default).lower()
            text = f"{text} [default: {shown}]"
        parameter = Parameter(
            help=text,
            group=groups[_find_panel(section, name)],
            show_default=False,
            converter=_CONVERTERS.get(hint),
        )
        nothing = dataclasses.field(default=None)
        fields.append((name, Annotated[hint | None, parameter], nothing))
    made = dataclasses.make_dataclass("Options", fields, frozen=True, kw_only=True)
    # Left at "types", cyclopts takes the class for one of the standard library's.
    made.__module__ = __name__
    return made


def _position(setting: tuple[str, str, Any]) -> int:
    """Return where an option stands in help; the others stay in the order of the settings."""
    name = setting[1]
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)


def _find_panel(section: str, name: str) -> str:
    """Return the part of help that an option is shown in."""
    if name in _FIRST:
        return "first"
    if name in _OF_THE_PENALTY:
        return "penalty"
    return "gates" if section == "strengths" else section


def _converter(kind: type[int | float], name: str) -> Callable[[Any, Sequence[Token]], float]:
    """Return what reads a number that was typed; cyclopts itself would round 2.5."""

    def read(_: Any, tokens: Sequence[Token]) -> float:
        try:
            return kind(tokens[0].value)
        except ValueError:
            raise ValueError(f"{tokens[0].value!r} is no {name}") from None

    return read


_CONVERTERS: dict[object, Any] = {
    **dict.fromkeys((int, int | None), _converter(int, "whole number")),
    **dict.fromkeys((float, float | None), _converter(float, "number")),
}

_MADE: Any = _make_options()
NONE_GIVEN: Any = _MADE()


if TYPE_CHECKING:
    Options: TypeAlias = Any
else:
    Options = _MADE


def given(options: Any) -> dict[str, Any]:
    """Return the options that were given, by name."""
    values = {item.name: getattr(options, item.name) for item in dataclasses.fields(options)}
    return {name: value for name, value in values.items() if value is not None}


LEARN_EXAMPLES = r"""Examples:
  archlearn learn --model lenet --data mnist --out runs/a
  archlearn learn --model lenet --data mnist --width-cost 3e-4 --epochs 30 \
    --out runs/b
  archlearn learn --model resnet20 --data cifar-10 --augment pad-crop-flip \
    --out runs/f
  archlearn learn --model gpt --data tiny-shakespeare:input.txt \
    --optimiser adam --out runs/g
  archlearn learn --model mypackage.net:build --data folder:photos --out runs/c
  archlearn learn --config run.toml --seed 1 --out runs/d
  archlearn learn --resume runs/a
  torchrun --nproc-per-node 2 -m archlearn_cli learn --data mnist --out runs/e
"""


def learn_command(
    *,
    out: Path | None = None,
    config: Path | None = None,
    resume: Path | None = None,
    options: Annotated[Options, Parameter(name="*")] = NONE_GIVEN,
) -> None:
    """Learn an architecture on data, and write the compact model and a report.

    Settings come from their defaults, then from --config, then from options. What is left
    open follows from the number of steps, the initial widths and the loss.

    Args:
        out: The run's folder, which must not hold a run yet.
        config: A TOML file of settings, like the config.toml of a run.
        resume: The folder of a run that was stopped: go on with it.
        options: Single settings.
    """
    asked = given(options)
    if resume is not None:
        if out is not None or config is not None:
            raise SettingsError(
                "--resume goes on with a run as it is; leave out --out and --config"
            )
        from archlearn_cli.commands.training_run import resume_run

        resume_run(resume, asked)
        return
    if out is None:
        raise SettingsError("say where the run's folder is to be: --out runs/a")
    settings = override(read_settings(config) if config else RunSettings(), asked)
    from archlearn_cli.commands.training_run import start_run

    start_run(settings, out)


_MOST_THREADS = 4
DEMO_EXAMPLES = """Examples:
  archlearn demo
  archlearn demo --out runs/mine
"""


def demo(*, out: Path = Path("runs/demo")) -> None:
    """Learn LeNet's architecture on MNIST within 10,000 parameters; show before and after.

    Takes a few minutes on two cores. A demo that was stopped half-way is taken up again.

    Args:
        out: The run's folder.
    """
    # Threads that wait without spinning leave a busy machine to those that work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from archlearn_cli.commands.training_run import resume_run, start_run

    if (out / SUMMARY).exists():
        sys.stdout.write(f"an earlier demo in {out} makes room for this one\n")
        shutil.rmtree(out)
    if (out / CONFIG).exists():
        resume_run(out, {})
        return
    threads = HardwareSettings(threads=min(_MOST_THREADS, os.cpu_count() or 1))
    budget = GateSettings(budget=("parameters=10000",))
    start_run(RunSettings(gates=budget, hardware=threads, epochs=18), out)


REPORT_EXAMPLES = """Examples:
  archlearn report runs/a
  archlearn report runs/a runs/b runs/c --out compare.html
"""


def report(*runs: Path, out: Path | None = None) -> None:
    """Write one self-contained page about one run, or several side by side.

    Args:
        runs: Folders of runs.
        out: The file. [default: report.html, of one run in its folder, of several here]
    """
    from archlearn_cli.reporting import write_report
    from archlearn_cli.reporting.run_reader import explaining_odd_files, read_run
    from archlearn_cli.training.run_directory import REPORT, writing

    with explaining_odd_files(runs):
        for run in runs:  # refused before a folder is made
            read_run(run)
    target = out or (runs[0] / REPORT if len(runs) == 1 else Path(REPORT))
    with writing(target):
        write_report(list(runs), target)
    sys.stdout.write(f"{target}\n")


SWEEP_EXAMPLES = r"""Examples:
  archlearn sweep --budget multiply_adds=75%,50%,25% --seeds 0,1,2 \
    --out runs/sweep
  RAY_ADDRESS=head:6379 archlearn sweep --budget multiply_adds=75%,50% --ray \
    --jobs 8 --out /nfs/s
  archlearn sweep --model resnet20 --data cifar-10 --budget parameters=50% \
    --lose 0.5 --out runs/s
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
    from archlearn_cli.reporting import write_report
    from archlearn_cli.training.sweep import list_runs, run_sweep, summarise

    asked = given(options)
    budgets = _split_budgets(asked.pop("budget", ()))
    if "seed" in asked:
        raise SettingsError(
            f"--seed {asked['seed']} is for one run; a sweep takes --seeds {asked['seed']}"
        )
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
    sys.stdout.write(f"{out}: {len(runs)} runs, {n_at_a_time} at a time; finished ones are kept\n")
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
    page = write_report([run.folder for run in runs], out / "report.html")
    sys.stdout.write(f"report  {page}\n")


def _split_budgets(words: tuple[str, ...]) -> list[str]:
    """Return one word for each budget: multiply_adds=75%,50% are two.

    What is no budget for any network is refused.
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
    from archlearn_cli.training.run_directory import COMPACT
    from archlearn_cli.training.sweep import choose_cheapest, read_summary

    chosen = choose_cheapest(points, lose)
    shutil.copyfile(chosen.best.folder / COMPACT, out / COMPACT)
    tested = (read_summary(chosen.best.folder) or {})["test_accuracy"]
    sys.stdout.write(
        f"within {lose:g} points of plain: {chosen.budget}, {tested:.2%} right on test data\n"
        f"compact model  {out / COMPACT}\n"
    )
