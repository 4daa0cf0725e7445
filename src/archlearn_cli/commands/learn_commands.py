"""`archlearn learn`, `demo` and `report`: commands about runs."""

import dataclasses
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

from cyclopts import Group, Parameter, Token

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
  archlearn report runs/a runs/b runs/c
"""


def report(*runs: Path, out: Path | None = None) -> None:
    """Write one self-contained page about one run, or show several runs in a table.

    Args:
        runs: Folders of runs.
        out: The file of the page. [default: report.html in the run's folder]
    """
    from archlearn_cli.reporting import write_report
    from archlearn_cli.reporting.run_reader import explaining_odd_files, read_run
    from archlearn_cli.training.run_directory import REPORT, writing

    if len(runs) != 1 and (out is not None or not runs):
        raise SettingsError(
            f"a page is about one run, and {len(runs)} were named; give one run's folder, or "
            "several without --out for a table of them"
        )
    with explaining_odd_files(runs):
        records = [read_run(run) for run in runs]  # refused before a folder is made
        if len(records) > 1:
            from archlearn_cli.commands.display import print_table
            from archlearn_cli.reporting.run_table import make_run_table

            print_table(make_run_table(records))
            return
    folder = records[0].folder
    target = out or folder / REPORT
    with writing(target):
        write_report(folder, target)
    sys.stdout.write(f"{target}\n")
