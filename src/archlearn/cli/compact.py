"""`archlearn compact`."""

import sys
from pathlib import Path
from typing import Literal

EXAMPLES = """Examples:
  archlearn compact runs/a
  archlearn compact runs/a --budget parameters=10000 --out small.safetensors
  archlearn compact runs/a --pay multiply_adds
"""


def compact(
    run: Path,
    /,
    *,
    out: Path | None = None,
    pay: Literal["parameters", "multiply_adds"] = "parameters",
    budget: tuple[str, ...] = (),
) -> None:
    """Compact the network of a run as its last checkpoint has it, finished or not.

    Args:
        run: The run's folder.
        out: The file to write. [default: compact.safetensors in the run's folder]
        pay: A linear layer is merged when this becomes less.
        budget: Close more channels until the network costs no more, as parameters=10000 or
            multiply_adds=50%. The weights are not trained after it.
    """
    from archlearn.cli.output_paths import writing
    from archlearn.serialization import save
    from archlearn.surgery.compaction import compact as compact_model
    from archlearn.surgery.planning import plan
    from archlearn.training.run_directory import COMPACT
    from archlearn.training.run_setup import cut_to_budget_, load_gated_model, read_pairs

    target = out or run / COMPACT
    asked = read_pairs("budget", budget)
    revived = load_gated_model(run)
    if asked:
        cut_to_budget_(revived, asked)
    with writing(target):
        chosen = plan(revived.model, revived.example, pay=pay)
        small = compact_model(revived.model, chosen)
        save(small, target)
    sys.stdout.write(f"{chosen}\n{small.certificate}\n{target}\n")
