"""The commands and what happens when one of them fails.

Nothing here imports torch: a command does that when it runs, so that help is shown at once.
"""

import logging
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from archlearn import __version__
from archlearn.cli import learn_commands, model_commands, paper
from archlearn.errors import ArchlearnError, RunInterruptedError, RunStoppedError

FAILED, STOPPED, INTERRUPTED, UNREAD = 1, 3, 130, 141

app = App(
    name="archlearn",
    help="Learn a network's widths and depth in one training run, then compact it exactly.",
    help_format="plaintext",
    version=__version__,
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
)
app.command(learn_commands.learn_command, name="learn", help_epilogue=learn_commands.LEARN_EXAMPLES)
app.command(
    model_commands.inspect_command, name="inspect", help_epilogue=model_commands.INSPECT_EXAMPLES
)
app.command(
    model_commands.compact_command, name="compact", help_epilogue=model_commands.COMPACT_EXAMPLES
)
app.command(
    model_commands.evaluate_command, name="evaluate", help_epilogue=model_commands.EVALUATE_EXAMPLES
)
app.command(model_commands.export, help_epilogue=model_commands.EXPORT_EXAMPLES)
app.command(learn_commands.sweep, help_epilogue=learn_commands.SWEEP_EXAMPLES)
app.command(learn_commands.report, help_epilogue=learn_commands.REPORT_EXAMPLES)
app.command(paper.paper, help_epilogue=paper.PAPER_EXAMPLES)
app.command(paper.compare, help_epilogue=paper.COMPARE_EXAMPLES)
app.command(model_commands.data, help_epilogue=model_commands.DATA_EXAMPLES)
app.command(learn_commands.demo, help_epilogue=learn_commands.DEMO_EXAMPLES)


def run_app(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit code.

    0: done; 1: refused or failed; 3: stopped, can be resumed; 130: interrupted, can be resumed;
    141: nobody reads the output any more, as behind `| head`.
    """
    # Warnings of the library are seen once for all processes.
    first = os.environ.get("RANK", "0") == "0"
    level = logging.WARNING if first else logging.ERROR
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s")
    try:
        _call(arguments)
    except BrokenPipeError as error:
        # Python writes what is left when it ends, and would complain of the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # What was left may have been found while a run that can be resumed was ending.
        ending = error.__context__
        sys.exit(ending.code if isinstance(ending, SystemExit) and ending.code else UNREAD)


def _call(arguments: Sequence[str] | None) -> None:
    try:
        app(arguments)
    except RunStoppedError as error:
        sys.stderr.write(f"stopped: {error}\n")
        sys.exit(INTERRUPTED if isinstance(error, RunInterruptedError) else STOPPED)
    except (CycloptsError, ArchlearnError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
    finally:
        sys.stdout.flush()
