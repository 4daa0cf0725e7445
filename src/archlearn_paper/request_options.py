"""Scale and folder of an experiment from command-line options.

Nothing here imports torch.
"""

from dataclasses import replace
from pathlib import Path

from archlearn.errors import SettingsError
from archlearn_paper.experiment import FULL, QUICK, Scale

RESULTS = Path("results")
QUICK_RESULTS = Path("runs") / "quick"


def choose_scale(*, quick: bool, seeds: str | None, data: str) -> Scale:
    """Return the scale that was asked for.

    Raises:
        SettingsError: If the seeds are no numbers.
    """
    scale = replace(QUICK if quick else FULL, data=data)
    return scale if seeds is None else replace(scale, seeds=parse_seeds(seeds))


def choose_folder(out: Path | None, *, quick: bool) -> Path:
    """Return where results go: a quick version never into the place of the full one."""
    if out is not None:
        return out
    return QUICK_RESULTS if quick else RESULTS


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that were typed with commas between them."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise SettingsError(f"--seeds {text!r}: write different numbers with commas, as 0,1,2,3,4")
    return tuple(int(part) for part in parts)
