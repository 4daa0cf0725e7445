"""`archlearn learn`, `demo` and `report`: commands about runs."""

# Settings are frozen, so that they may be defaults.
# ruff: noqa: B008, RUF009

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import App, ArgumentCollection, Group, Parameter
from cyclopts.config import Dict

from archlearn.errors import SettingsError
from archlearn_cli.data.file_cache import CONFIG, SUMMARY
from archlearn_cli.training.settings import (
    GateSettings,
    HardwareSettings,
    OptimizerSettings,
    RecordSettings,
    RunSettings,
    StrengthSettings,
    flatten,
    from_table,
    read_settings,
    to_table,
)


def _options(title: str) -> Parameter:
    """Return how the settings of a table become options: by their bare names, under a title."""
    return Parameter(name="*", group=Group.create_ordered(title))


_RUN = _options("Run")


@dataclass(frozen=True, kw_only=True)
class Options(RunSettings):
    """The settings of a run as options."""

    optimizer: Annotated[OptimizerSettings, _options("Weights")] = OptimizerSettings()
    gates: Annotated[GateSettings, _options("Gates")] = GateSettings()
    strengths: Annotated[StrengthSettings, _options("Paper's penalty")] = StrengthSettings()
    hardware: Annotated[HardwareSettings, _options("Hardware")] = HardwareSettings()
    record: Annotated[RecordSettings, _options("Record")] = RecordSettings()


def read_settings_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Take options that were not typed from the file of --config, or from the run of --resume."""
    for argument in arguments:
        for token in argument.tokens:  # which cyclopts would round
            if argument.hint in (int, int | None) and "." in token.value:
                raise SettingsError(f"{argument.name} is {token.value!r}; give a whole number")
    for name in ("--config", "--resume"):
        for token in arguments[name].tokens:
            settings = _read(Path(token.value), is_run=name == "--resume")
            values = {name: value for name, value in flatten(settings).items() if value is not None}
            Dict({commands[0]: values})(app, commands, arguments)


def _read(path: Path, *, is_run: bool) -> RunSettings:
    if not is_run:
        return read_settings(path)
    from archlearn_cli.training.run_directory import read_run_settings

    return read_run_settings(path)


LEARN_EXAMPLES = r"""Examples:

    archlearn learn --model lenet --data mnist --out runs/a
    archlearn learn --model lenet --data mnist --width-cost 3e-4 --epochs 30 \
      --out runs/b
    archlearn learn --model resnet20 --data cifar-10 --augment pad-crop-flip \
      --out runs/f
    archlearn learn --model gpt --data tiny-shakespeare:input.txt \
      --optimizer adam --out runs/g
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
    options: Annotated[Options, _RUN] = Options(),
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
    settings = from_table(RunSettings, to_table(options))
    if resume is not None:
        if out is not None or config is not None:
            raise SettingsError(
                "--resume goes on with a run as it is; leave --out and --config out"
            )
        from archlearn_cli.commands.training_run import resume_run

        resume_run(resume, settings)
        return
    if out is None:
        raise SettingsError("say where the run's folder is to be: --out runs/a")
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
        resume_run(out)
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
            from archlearn_cli.commands.display import print_wide
            from archlearn_cli.reporting.run_table import make_run_table

            print_wide(make_run_table(records))
            return
    folder = records[0].folder
    target = out or folder / REPORT
    with writing(target):
        write_report(folder, target)
    sys.stdout.write(f"{target}\n")
