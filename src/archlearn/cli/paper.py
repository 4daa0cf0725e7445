"""`archlearn paper`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

EXAMPLES = """Examples:
  archlearn paper
  archlearn paper table-1 --quick
  archlearn paper table-1 --seeds 0,1,2,3,4
  archlearn paper table-1 --draw
  archlearn paper --docs
"""


def paper(
    name: str | None = None,
    /,
    *,
    quick: bool = False,
    out: Path | None = None,
    seeds: str | None = None,
    data: str = "mnist",
    side_by_side: Annotated[int, Parameter(validator=Number(gte=1))] = 16,
    draw: bool = False,
    docs: bool = False,
) -> None:
    """Run an experiment of the paper and show its numbers beside ours, or list them all.

    Runs that the results hold already are not made again, so an experiment that was stopped
    goes on where it was.

    Args:
        name: The experiment; left out, they are listed.
        quick: A small version that ends within 3 minutes on 2 cores.
        out: Where NAME.json, NAME.md and NAME.svg go. [default: results, or runs/quick]
        seeds: Every row is run once for each, as 0,1,2. [default: 0,1,2,3,4, or 0,1 if quick]
        data: The data set.
        side_by_side: How many runs share a GPU at a time.
        draw: Run nothing: draw figure and tables anew from the results.
        docs: Write docs/results.md and its figures from all results.
    """
    from archlearn_paper.registry import TITLES, check_name
    from archlearn_paper.request_options import choose_folder, choose_scale

    folder = choose_folder(out, quick=quick)
    if docs:
        from archlearn_paper.paper_command import write_docs

        sys.stdout.write(f"{write_docs(folder, Path('docs'))}\n")
        return
    if name is None:
        width = max(map(len, TITLES))
        sys.stdout.write("".join(f"{n:{width}}  {title}\n" for n, title in TITLES.items()))
        return
    check_name(name)
    scale = choose_scale(quick=quick, seeds=seeds, data=data)
    from archlearn_paper.paper_command import draw_results, run_experiment

    if draw:
        draw_results(name, folder)
        return
    command = shlex.join(["archlearn", *sys.argv[1:]])
    run_experiment(name, scale, folder, command=command, side_by_side=side_by_side)
