"""`archlearn paper` and `archlearn compare`: the only modules that import `archlearn_paper`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

PAPER_EXAMPLES = """Examples:
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


COMPARE_EXAMPLES = """Examples:
  archlearn compare --quick
  archlearn compare --model lenet --data mnist --budget 5000,10000,20000,40000
  archlearn compare --data fashion-mnist
  archlearn compare --methods "archlearn; svd; neuron pruning" --budget 40000
  archlearn compare --draw
"""


def compare(
    *,
    model: str = "lenet",
    data: str = "mnist",
    budget: str | None = None,
    methods: str | None = None,
    seeds: str | None = None,
    epochs: int | None = None,
    quick: bool = False,
    out: Path | None = None,
    side_by_side: Annotated[int, Parameter(validator=Number(gte=1))] = 16,
    draw: bool = False,
) -> None:
    """Compare all methods at equal parameters, equal epochs and equal order of data.

    Writes a table, a figure and a results file. Runs that the results hold already are not
    made again, so a comparison that was stopped goes on where it was.

    Args:
        model: The large network that all methods begin with.
        data: The data set.
        budget: Numbers of parameters. [default: 5000,10000,20000,40000]
        methods: Which methods, with semicolons between them. [default: all]
        seeds: Every method is run once for each. [default: 0,1,2,3,4, or 0 if quick]
        epochs: Of every method in total. [default: 30, or 5 if quick]
        quick: A small version that ends within 3 minutes on 2 cores.
        out: Where table, figure and results go. [default: results, or runs/quick]
        side_by_side: How many runs share a GPU at a time.
        draw: Run nothing: draw figure and tables anew from the results.
    """
    from archlearn_paper.compare_command import Asked, compare_methods, draw_comparison_anew

    asked = Asked(
        model=model,
        data=data,
        budget=budget,
        methods=methods,
        seeds=seeds,
        epochs=epochs,
        quick=quick,
        out=out,
    )
    if draw:
        draw_comparison_anew(asked)
        return
    command = shlex.join(["archlearn", *sys.argv[1:]])
    compare_methods(asked, command=command, side_by_side=side_by_side)
