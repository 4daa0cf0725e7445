"""The public names, and where each is; `archlearn.lazy_names` reads this list."""

from collections.abc import Sequence

from archlearn_cli import data as data
from archlearn_cli import models as models
from archlearn_cli import reporting as reporting
from archlearn_cli import training as training

def main(arguments: Sequence[str] | None = None) -> None: ...
