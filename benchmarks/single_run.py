"""`python -m benchmarks.single_run FOLDER name=value ...`: a run without cyclopts and rich.

For machines that have torch and Lightning Fabric but neither cyclopts nor rich. Values are
written as in TOML; a bare word counts as text. The summary is printed as JSON.
"""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from archlearn.errors import ArchlearnError
from archlearn_cli.training.callbacks import SilentCallback
from archlearn_cli.training.run import Audience, learn
from archlearn_cli.training.settings import RunSettings, override


def parse_value(text: str) -> Any:
    """Return a value as TOML has it, or the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def learn_by_words(words: list[str]) -> int:
    """Run and print the summary; return the exit code."""
    if not words or any("=" not in word for word in words[1:]):
        sys.stderr.write("usage: python -m benchmarks.single_run FOLDER name=value ...\n")
        return 2
    pairs = (word.partition("=") for word in words[1:])
    given = {name.replace("-", "_"): parse_value(value) for name, _, value in pairs}
    command = " ".join(["python -m benchmarks.single_run", *words])
    try:
        settings = override(RunSettings(), given)
        audience = Audience(observer=SilentCallback(), command=command)
        summary = learn(settings, Path(words[0]), audience)
    except ArchlearnError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(json.dumps(dict(summary), indent=1, default=str) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(learn_by_words(sys.argv[1:]))
