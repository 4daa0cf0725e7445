"""Add methods to an earlier comparison: `python -m archlearn_paper.joining ADDED --to results`.

python -m archlearn_paper.joining ADDED --to results

Methods depend on nothing but the contest, so the rows are those that one command would have made.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from archlearn.errors import ArchlearnError, SettingsError
from archlearn_paper.comparison.methods import CONTENDERS
from archlearn_paper.comparison.ranking import read_result
from archlearn_paper.experiment import Row
from archlearn_paper.method_comparison import find_comparisons, make_experiment
from archlearn_paper.results import Results, read_results, results_path, write_results

_SHARED = ("experiment", "quick", "seeds", "scale", "budgets", "hardware", "versions")
"""What two comparisons must have in common."""


def join(before: Results, added: Results) -> Results:
    """Return one comparison whose methods are those of both; added ones replace earlier ones.

    What is derived of it is still that of the earlier one.

    Raises:
        SettingsError: If the two are not of the same contest on the same hardware.
    """
    for name in _SHARED:
        one, other = _read(before, name), _read(added, name)
        if one != other:
            raise SettingsError(
                f"{name}: {before.experiment} has {one}, and what is to join it {other}; "
                "make the comparison again with the same ones"
            )
    methods = {method for row in added.rows if (method := _method_of(row)) is not None}
    kept = [row for row in before.rows if _method_of(row) not in methods]
    there = {row.asked for row in kept}
    return replace(
        before,
        command=f"{before.command} && {added.command}",
        date=added.date,
        seconds=before.seconds + added.seconds,
        rows=[*kept, *(row for row in added.rows if row.asked not in there)],
    )


def _read(results: Results, name: str) -> object:
    return list(results.derived["ranks"]) if name == "budgets" else getattr(results, name)


def _method_of(row: Row) -> str | None:
    """Return the method that a row belongs to; None for one that several share."""
    result = read_result(row.row)
    if result is not None:
        return result[0]
    first = row.row.partition(", strength")[0]
    return first if any(each.name == first for each in CONTENDERS) else None


def join_folders(added: Path, folder: Path) -> list[Path]:
    """Join all comparisons of a folder to those of the same name in another; return their files.

    Raises:
        SettingsError: If there is nothing to join, or it is of another contest.
    """
    found = find_comparisons(added)
    if not found:
        raise SettingsError(
            f"{added} holds no finished comparison; make one with archlearn compare"
        )
    joined: list[Results] = []
    for _, results in found:
        before = read_results(folder, results.experiment)
        if before is None:
            raise SettingsError(
                f"{results_path(folder, results.experiment)} is not there; there is nothing that "
                f"the comparison in {added} could join"
            )
        joined.append(join(before, results))
    return [_finish(folder, results) for results in joined]


def _finish(folder: Path, results: Results) -> Path:
    """Write what was joined, with what follows from all its rows."""
    settings, methods = results.rows[0].settings, {_method_of(row) for row in results.rows}
    experiment = make_experiment(
        settings["model"],
        settings["data"],
        tuple(int(budget) for budget in results.derived["ranks"]),
        [each for each in CONTENDERS if each.name in methods],
    )
    return write_results(folder, replace(results, derived=experiment.derive(results.rows)))


def main(words: list[str]) -> int:
    """Join, and say which files were changed."""
    parser = argparse.ArgumentParser(prog="python -m archlearn_paper.joining")
    parser.add_argument("added", type=Path, help="folder of the comparison that joins")
    parser.add_argument("--to", type=Path, default=Path("results"), dest="folder")
    given = parser.parse_args(words)
    try:
        paths = join_folders(given.added, given.folder)
    except ArchlearnError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    for path in paths:
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
