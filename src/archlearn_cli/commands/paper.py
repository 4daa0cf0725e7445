"""`archlearn paper` and `archlearn compare`: the only modules that import `archlearn_paper`."""

import math
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

PAPER_EXAMPLES = """Examples:

    archlearn paper
    archlearn paper table-1 --quick
    archlearn paper table-1 --seeds 0,1,2,3,4
    archlearn paper table-1 --draw
    archlearn paper --all --images tiny-imagenet:DIR
    archlearn paper --all --within 500
    archlearn paper --all --quick
    archlearn paper --all --draw
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
    images: str | None = None,
    side_by_side: Annotated[int, Parameter(validator=Number(gte=1))] = 16,
    rows: str | None = None,
    within: Annotated[float, Parameter(validator=Number(gt=0))] = math.inf,
    every: Annotated[bool, Parameter(name="--all")] = False,
    draw: bool = False,
    join: tuple[Path, ...] = (),
    docs: bool = False,
    force: bool = False,
) -> None:
    """Run an experiment of the paper and show its numbers beside ours, or list them all.

    Runs that the results hold already are not made again, so an experiment that was stopped
    goes on where it was.

    Args:
        name: The experiment; left out, they are listed.
        quick: A small version: all of them end within 10 minutes on a CPU.
        out: Where NAME.json, NAME.md and NAME.svg go. [default: results, or runs/quick]
        seeds: Every row is run once for each, as 0,1,2. [default: 0 to 4, 9 in table-1, 0 if quick]
        data: The data set.
        images: With --all, the data of table-4, as tiny-imagenet:DIR; left out, so is table-4.
        side_by_side: How many runs share a GPU at a time.
        rows: Make only these now, as "AL*; baseline"; the page waits for the others.
        within: Seconds after which no run begins; the same command goes on another time.
        every: Make every page, comparisons too: what is there already is not made again.
        draw: Run nothing: draw figure and tables anew from the results.
        join: With --draw, a folder with runs of other seeds or machines that belong to the page.
        docs: Write docs/results.md and its figures from all results.
        force: Replace earlier results even where seeds or data of them would be lost.
    """
    from archlearn_paper.experiments import check_name, list_experiments

    if name is None and not (docs or every):
        sys.stdout.write(list_experiments())
        return
    if name is not None:
        check_name(name)
    from archlearn_paper import commands
    from archlearn_paper.tables import write_documentation

    asked = commands.PageOptions(
        out=out,
        command=shlex.join(["archlearn", *sys.argv[1:]]),
        quick=quick,
        seeds=seeds,
        data=data,
        side_by_side=side_by_side,
        force=force,
        draw=draw,
        join=join,
        rows=rows,
        until=time.monotonic() + within,
    )
    if every:
        commands.make_all(asked, images)
    elif name is not None and not docs:
        commands.make_page(asked, name)
    else:
        results = commands.find_results(asked.folder)
        sys.stdout.write(f"{write_documentation(results, asked.folder, Path('docs'))}\n")


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
    within: Annotated[float, Parameter(validator=Number(gt=0))] = math.inf,
    draw: bool = False,
    force: bool = False,
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
        quick: A small version that ends within 3 minutes on a CPU.
        out: Where table, figure and results go. [default: results, or runs/quick]
        side_by_side: How many runs share a GPU at a time.
        within: Seconds after which no run begins; the same command goes on another time.
        draw: Run nothing: draw figure and tables anew from the results.
        force: Replace earlier results even where methods, budgets or seeds of them would be lost.
    """
    from archlearn_paper import commands
    from archlearn_paper.comparison import choose_setup, find_methods

    setup = choose_setup(
        model=model, data=data, quick=quick, budgets=budget, seeds=seeds, epochs=epochs
    )
    asked = commands.PageOptions(
        out=out,
        command=shlex.join(["archlearn", *sys.argv[1:]]),
        quick=quick,
        side_by_side=side_by_side,
        force=force,
        draw=draw,
        until=time.monotonic() + within,
    )
    commands.make_comparison(asked, setup, find_methods(methods))
