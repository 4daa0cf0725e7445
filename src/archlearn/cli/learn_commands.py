"""`archlearn learn`, `demo` and `report`: commands about runs."""

import dataclasses
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_type_hints

from cyclopts import Group, Parameter, Token

from archlearn.data.file_cache import CONFIG, SUMMARY
from archlearn.errors import SettingsError
from archlearn.training.settings import (
    GateSettings,
    HardwareSettings,
    RunSettings,
    flat_settings,
    override,
    read_settings,
)

_TITLES = {
    "": "Run",
    "optimiser": "Weights",
    "gates": "Gates",
    "strengths": "Strengths",
    "hardware": "Hardware",
    "record": "Record",
}


def _make_options() -> type:
    hints = get_type_hints(RunSettings)
    order = {section: place for place, section in enumerate(_TITLES)}
    groups = {s: Group(t, sort_key=1 + order[s]) for s, t in _TITLES.items()}
    fields: list[tuple[str, Any, Any]] = []
    for section, name, item in flat_settings():
        hint = get_type_hints(hints[section])[name] if section else hints[name]
        parameter = Parameter(
            help=_help(item),
            group=groups[section],
            show_default=False,
            converter=_read_whole_number if hint in (int, int | None) else None,
        )
        default = dataclasses.field(default=None)
        fields.append((name, Annotated[hint | None, parameter], default))
    made = dataclasses.make_dataclass("Options", fields, frozen=True, kw_only=True)
    # Left at "types", cyclopts takes the class for one of the standard library's.
    made.__module__ = __name__
    return made


def _read_whole_number(kind: object, tokens: Sequence[Token]) -> int:
    """Return the number that was typed; cyclopts itself would round 2.5."""
    del kind
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is no whole number") from None


def _help(item: dataclasses.Field[Any]) -> str:
    text = item.metadata["help"]
    if item.default is None or item.default == ():
        return text
    shown = f"{item.default:g}" if isinstance(item.default, float) else str(item.default).lower()
    return f"{text} [default: {shown}]"


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


LEARN_EXAMPLES = """Examples:
  archlearn learn --model lenet --data mnist --out runs/a
  archlearn learn --model lenet --data mnist --width-cost 3e-4 --epochs 30 --out runs/b
  archlearn learn --model resnet20 --data cifar-10 --augment pad-crop-flip --out runs/f
  archlearn learn --model gpt --data tiny-shakespeare:input.txt --optimiser adam --out runs/g
  archlearn learn --model mypackage.net:build --data folder:photos --out runs/c
  archlearn learn --config run.toml --seed 1 --out runs/d
  archlearn learn --resume runs/a
  torchrun --nproc-per-node 2 -m archlearn.cli learn --data mnist --out runs/e
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
        from archlearn.cli.training_run import resume_run

        resume_run(resume, asked)
        return
    if out is None:
        raise SettingsError("say where the run's folder is to be: --out runs/a")
    settings = override(read_settings(config) if config else RunSettings(), asked)
    from archlearn.cli.training_run import start_run

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
    from archlearn.cli.training_run import resume_run, start_run

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
  archlearn report runs/a --to latex
"""


def report(
    *runs: Path, to: Literal["html", "latex", "markdown"] = "html", out: Path | None = None
) -> None:
    """Write one self-contained page about one run, or several side by side.

    Args:
        runs: Folders of runs.
        to: A page, or a table of costs and accuracy to paste into a paper.
        out: The file. A page of one run is report.html in the run's folder unless said otherwise,
            one of several report.html here; a table is printed.
    """
    from archlearn.training.run_directory import REPORT

    if not runs:
        raise SettingsError("say which runs: archlearn report runs/a runs/b")
    from archlearn.reporting import write_report
    from archlearn.reporting.paper_table import read_paper_table, write_paper_table
    from archlearn.reporting.run_reader import explaining_odd_files, read_run
    from archlearn.training.run_directory import writing

    with explaining_odd_files(runs):
        found = [read_run(run) for run in runs]  # refused before a folder is made
        text = "" if to == "html" else write_paper_table(read_paper_table(found), to)
    if to == "html":
        target = out or (runs[0] / REPORT if len(runs) == 1 else Path(REPORT))
        with writing(target):
            write_report(list(runs), target)
        sys.stdout.write(f"{target}\n")
        return
    if out is None:
        sys.stdout.write(text)
        return
    with writing(out):
        out.write_text(text, encoding="utf-8")
