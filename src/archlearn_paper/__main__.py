"""`python -m archlearn_paper NAME ...`: an experiment without the command line's parts.

For machines that have torch and Lightning Fabric but neither cyclopts, rich nor matplotlib. What
it writes is the same, less the figure: `archlearn paper NAME --draw` makes that afterwards.
"""

import argparse
import shlex
import sys
from pathlib import Path

from archlearn_paper.earlier_results import check_earlier_results
from archlearn_paper.parallel_runs import SIDE_BY_SIDE
from archlearn_paper.plain_command import carry_out
from archlearn_paper.registry import TITLES, find_experiment
from archlearn_paper.request_options import choose_folder, choose_scale
from archlearn_paper.runner import RunRequest


def main(words: list[str]) -> int:
    """Carry out one experiment, or list them; return the exit code."""
    options = _parse(words)
    if options.name is None:
        sys.stdout.write("\n".join(f"{name:12}{title}" for name, title in TITLES.items()) + "\n")
        return 0
    return carry_out(lambda: _order(options, words))


def _order(options: argparse.Namespace, words: list[str]) -> RunRequest:
    experiment = find_experiment(options.name)
    scale = choose_scale(quick=options.quick, seeds=options.seeds, data=options.data)
    folder = choose_folder(options.out, quick=options.quick)
    check_earlier_results(folder, experiment.name, scale)
    return RunRequest(
        experiment=experiment,
        scale=scale,
        folder=folder,
        command=shlex.join(["python", "-m", "archlearn_paper", *words]),
        side_by_side=options.side_by_side,
        within=options.within,
    )


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m archlearn_paper")
    parser.add_argument("name", nargs="?", help="the experiment; left out, they are listed")
    parser.add_argument("--quick", action="store_true", help="a small version, within 3 minutes")
    parser.add_argument("--out", type=Path, help="where results go")
    parser.add_argument("--seeds", help="seeds with commas, as 0,1,2")
    parser.add_argument("--data", default="mnist", help="the data set")
    parser.add_argument(
        "--side-by-side", type=int, default=SIDE_BY_SIDE, help="runs that share a GPU at a time"
    )
    parser.add_argument("--within", type=float, help="seconds after which no run is begun")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
