"""The commands and what happens when one of them fails.

Nothing here imports torch: a command does that when it runs, so that help is shown at once.
"""

import difflib
import io
import logging
import math
import os
import re
import sys
from collections.abc import Sequence

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnknownOptionError,
    UnusedCliTokensError,
)

from archlearn import __version__
from archlearn.errors import ArchlearnError, RunInterruptedError, RunStoppedError
from archlearn_cli.commands import learn_commands, model_commands, paper

FAILED, STOPPED, INTERRUPTED, UNREAD = 1, 3, 130, 141

_ELSEWHERE = {
    "amp": "precision",
    "bs": "batch-size",
    "device": "accelerator",
    "gpu": "accelerator",
    "lr": "learning-rate",
    "pretrained": "start-from",
    "wd": "weight-decay",
}
"""What options are called in other trainers, where no spelling leads to our name."""

_FORMER = re.compile(r"^(--(?:gate-)?)optimiser\b")  # an earlier spelling, which stays


def _show_default(value: object) -> str | None:
    """Return a default as help shows it; that nothing is asked for goes without saying."""
    if value is False or value in (None, (), math.inf):
        return None
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


app = App(
    name="archlearn",
    help="Learn a network's widths and depth in one training run, then compact it exactly.",
    help_format="markdown",
    version=__version__,
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(negative_iterable=(), show_default=_show_default),
)
# In the order of help: those that most people need come first.
_COMMANDS = {
    "learn": (learn_commands.learn_command, learn_commands.LEARN_EXAMPLES),
    "inspect": (model_commands.inspect_command, model_commands.INSPECT_EXAMPLES),
    "evaluate": (model_commands.evaluate_command, model_commands.EVALUATE_EXAMPLES),
    "export": (model_commands.export, model_commands.EXPORT_EXAMPLES),
    "compact": (model_commands.compact_command, model_commands.COMPACT_EXAMPLES),
    "report": (learn_commands.report, learn_commands.REPORT_EXAMPLES),
    "data": (model_commands.data, model_commands.DATA_EXAMPLES),
    "demo": (learn_commands.demo, learn_commands.DEMO_EXAMPLES),
    "compare": (paper.compare, paper.COMPARE_EXAMPLES),
    "paper": (paper.paper, paper.PAPER_EXAMPLES),
}
for _position, (_name, (_command, _examples)) in enumerate(_COMMANDS.items()):
    _config = learn_commands.read_settings_file if _name == "learn" else ()
    app.command(_command, name=_name, help_epilogue=_examples, sort_key=_position, config=_config)


def run_app(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit code.

    0: done; 1: refused or failed; 3: stopped, can be resumed; 130: interrupted, can be resumed;
    141: nobody reads the output any more, as behind `| head`.
    """
    # A sign that the terminal does not have is no reason to stop.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
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
    words = sys.argv[1:] if arguments is None else arguments
    try:
        app([_FORMER.sub(r"\1optimizer", word) for word in words])
    except RunStoppedError as error:
        sys.stderr.write(f"stopped: {error}\n")
        sys.exit(INTERRUPTED if isinstance(error, RunInterruptedError) else STOPPED)
    except (CycloptsError, ArchlearnError) as error:
        sys.stderr.write(f"error: {_say(error)}\n")
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
    finally:
        sys.stdout.flush()


def _say(error: CycloptsError | ArchlearnError) -> str:
    """Return what is wrong; of words that are unknown, too many or missing, what to do as well."""
    if isinstance(error, UnknownOptionError):
        return _say_unknown(error)
    if not isinstance(error, UnusedCliTokensError | MissingArgumentError):
        return str(error)
    command = " ".join(error.command_chain or ())
    see = f"see archlearn {command} --help"
    if isinstance(error, UnusedCliTokensError):
        word = (error.unused_tokens or [""])[0]
        if "=" in word:
            see = f"for several budgets give --budget again before each; {see}"
        return f"{command} has no use for {word!r}; {see}"
    argument = error.argument
    name = error.keyword or (argument.name if argument else "an argument")
    was_given = error.keyword or (argument and argument.tokens)
    return f"{name} needs a value; {see}" if was_given else f"{command} needs {name}; {see}"


def _say_unknown(error: UnknownOptionError) -> str:
    """Return which option is unknown, and the one that is meant if its name is near."""
    option = (error.token.keyword or error.token.value).partition("=")[0]
    word = option.lstrip("-").replace("_", "-")
    names = {name.lstrip("-") for argument in error.argument_collection for name in argument.names}
    usual = _ELSEWHERE.get(word)
    near = [usual] if usual in names else difflib.get_close_matches(word, sorted(names), 1, 0.65)
    asked = f"did you mean --{near[0]}? " if near else ""
    see = " ".join(("archlearn", *(error.command_chain or ()), "--help"))
    return f"there is no option {option}; {asked}see {see}"
