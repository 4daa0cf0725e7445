"""`archlearn learn`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from archlearn.cli.options import NONE_GIVEN, Options, given
from archlearn.errors import SettingsError
from archlearn.training.settings import RunSettings

EXAMPLES = """Examples:
  archlearn learn --model lenet --data mnist --out runs/a
  archlearn learn --model lenet --data mnist --width-cost 3e-4 --epochs 30 --out runs/b
  archlearn learn --model resnet20 --data cifar-10 --augment pad-crop-flip --out runs/f
  archlearn learn --model gpt --data tiny-shakespeare:input.txt --optimiser adam --out runs/g
  archlearn learn --model mypackage.net:build --data folder:photos --out runs/c
  archlearn learn --config run.toml --seed 1 --out runs/d
  archlearn learn --resume runs/a
  torchrun --nproc-per-node 2 -m archlearn.cli learn --data mnist --out runs/e
"""


def learn(
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
        from archlearn.cli.run import resume_run

        resume_run(resume, asked)
        return
    if out is None:
        raise SettingsError("say where the run's folder is to be: --out runs/a")
    from archlearn.training.config import override
    from archlearn.training.toml import read_settings

    settings = override(read_settings(config) if config else RunSettings(), asked)
    from archlearn.cli.run import start_run

    start_run(settings, out)
