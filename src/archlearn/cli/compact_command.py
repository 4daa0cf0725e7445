"""`archlearn compact`."""

import sys
from pathlib import Path
from typing import Literal

EXAMPLES = """Examples:
  archlearn compact runs/a
  archlearn compact runs/a --pay multiply_adds --out small.safetensors
"""


def compact(
    run: Path,
    /,
    *,
    out: Path | None = None,
    pay: Literal["parameters", "multiply_adds"] = "parameters",
) -> None:
    """Compact the network of a run as its last checkpoint has it, finished or not.

    Args:
        run: The run's folder.
        out: The file to write. [default: compact.safetensors in the run's folder]
        pay: A linear layer is merged when this becomes less.
    """
    from archlearn.cli.targets import writing
    from archlearn.storage import save
    from archlearn.surgery.compacting import compact as compact_model
    from archlearn.surgery.planning import plan
    from archlearn.training.recording import COMPACT
    from archlearn.training.reviving import revive

    target = out or run / COMPACT
    revived = revive(run)
    with writing(target):
        chosen = plan(revived.model, revived.example, pay=pay)
        small = compact_model(revived.model, chosen)
        save(small, target)
    sys.stdout.write(f"{chosen}\n{small.certificate}\n{target}\n")
