"""`archlearn compare`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

EXAMPLES = """Examples:
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
