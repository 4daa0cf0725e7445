"""The results of the laws are a page that the run itself writes; runs of some laws add to it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a law fared.

    Attributes:
        seconds: Wall time over all workers.
        seed: What repeats the run.
    """

    law: str
    n_examples: int
    n_failures: int
    seconds: float
    seed: int
    workers: int


FOUND = """
What runs with 10,000 examples each have found, all mended since, their programs kept as tests in
`tests/laws/test_found.py`: at 172094a eight failures of three laws (seven because a trace
rehearsed in training mode left running statistics of batch normalisation behind, one a random
network that could not run itself), at 7919a56 one of `penalty`: weights that are computed (weight
norm) had no price, which was 0 / 0 in multiply-adds where all weights are such ones, and at
eadb3d5 two of `compact`: a closed branch in front of a shortcut that pads with zeros, and at
833a981 one of `streams`: constants that a layer read were noted after an activation beside it had
changed them in place; the certificate refused that network. At 8fe09bf eleven of `shrink` and
`streams_shrink`: the six that were printed are networks without any width gate, which met an error
of torch's. At f097a53 one of `shrink`: a tied weight that a layer applies to the channels of
another dimension was looked for under its second name (the row above is the run behind the mend).
At 8ec1dd0 one of `compact`: half of the channels that a pixel shuffle makes one plane of were
closed, and surgery refused that; they go together since (the row above is the run behind the
mend, with the same seed). And one of `heads_shrink`:
its outputs are zero but for rounding (a BatchNorm in training behind a norm over one channel), and
two roundings were compared; the law leaves such outputs out since. At 13476412 one of `shrink`: a
layer that pads channels with a number was refused, and the number had gates (the row above is the
run behind the mend, with the same seed).
"""


def write_page(page: Path, outcomes: list[Outcome], circumstances: dict[str, str]) -> None:
    """Write outcomes into the page and the JSON file beside it, over older ones of the same law."""
    data = page.with_suffix(".json")
    known: dict[str, dict[str, object]] = json.loads(data.read_text()) if data.exists() else {}
    known |= {each.law: {**asdict(each), **circumstances} for each in outcomes}
    page.parent.mkdir(parents=True, exist_ok=True)
    data.write_text(json.dumps(known, indent=1) + "\n")
    page.write_text(describe(list(known.values())))


def describe(rows: list[dict[str, object]]) -> str:
    """Return the page for rows of all laws."""
    n_failures = sum(int(str(row["n_failures"])) for row in rows)
    lines = [
        "# Laws on random networks",
        "",
        f"{len(rows)} laws, {n_failures} failures. Written by the commands below.",
        "",
        "| law | examples | failures | s | seed | torch | date | commit |",
        "|---|--:|--:|--:|--:|---|---|---|",
    ]
    for row in rows:
        keys = ("law", "n_examples", "n_failures", "seconds", "seed", "torch", "date", "commit")
        lines.append("| " + " | ".join(_cell(row.get(key, "")) for key in keys) + " |")
    runs = {(_shorten(row), row["hardware"], row["python"]): None for row in rows}
    lines += [
        "",
        *(f"- `{command}` on {where}, Python {python}" for command, where, python in runs),
    ]
    return "\n".join([*lines, FOUND])


def _shorten(row: dict[str, object]) -> str:
    """Return a row's command without the names of laws, which the rows say."""
    return str(row["command"]).partition(" --laws")[0]


def _cell(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
