"""Which run of a method counts, and which method has another try at another price.

Sizes and the validation part decide; the test part has no say.
"""

from collections.abc import Mapping, Sequence

from archlearn_paper.experiments.caffenet_recipes import ALL, FURTHER, LEARNT, REFERENCE
from archlearn_paper.experiments.table_4_pages import PAPER
from archlearn_paper.run_row import Row

AT = " at "
LOSS_ALLOWED = 1.0
"""Points of validation accuracy a row may lose before another price is tried."""


def choose_next(rows: Sequence[Row]) -> dict[str, float]:
    """Return the rows of one seed that need another try, and at which price.

    A row needs one that is too large, that loses too much against the reference (or the one
    trained further, if better), or, if it learns all layers, is not above every other.
    """
    chosen = choose_all(rows)
    costs: dict[str, float] = {}
    for row, terms in LEARNT.items():
        tried = {found.row for found in rows}
        left = [cost for cost in terms.others if name_of(row, cost) not in tried]
        if row in chosen and left and not _is_well(row, chosen):
            costs[row] = left[0]
    return costs


def _is_well(row: str, chosen: Mapping[str, Row]) -> bool:
    whole = max(_validation(chosen[name]) for name in (REFERENCE, FURTHER) if name in chosen)
    needed = whole - LOSS_ALLOWED
    found = _validation(chosen[row])
    if row == ALL:
        others = [_validation(chosen[name]) for name in LEARNT if name != ALL and name in chosen]
        if found <= max(others, default=0.0):
            return False
    return found >= needed and chosen[row].parameters <= most_parameters(row, chosen)


def choose(candidates: Sequence[Row], most: float) -> Row:
    """Return the candidate that is most accurate on the validation part, of those small enough.

    Where none is, the smallest one counts.
    """
    fitting = [row for row in candidates if row.parameters <= most]
    best = max(fitting, key=_validation, default=None)
    return best or min(candidates, key=lambda row: row.parameters)


def choose_all(rows: Sequence[Row]) -> dict[str, Row]:
    """Return the row of every method, of one seed.

    A learnt row must be as small as is asked of it; the one that learns all layers, smaller than
    all others that learn.
    """
    methods: dict[str, list[Row]] = {}
    for row in rows:
        methods.setdefault(method_of(row), []).append(row)
    chosen = {REFERENCE: methods[REFERENCE][0]}
    # The one that learns all layers comes last, when the others are known.
    for name in sorted(methods, key=lambda name: name == ALL):
        chosen[name] = choose(methods[name], most_parameters(name, chosen))
    return {name: chosen[name] for name in methods}


def most_parameters(name: str, chosen: Mapping[str, Row]) -> float:
    """Return how large a method's network may be, given those chosen already."""
    if name == ALL:
        others = [chosen[row].parameters for row in LEARNT if row != ALL and row in chosen]
        return min(others, default=chosen[REFERENCE].parameters) - 1
    return (100 - (PAPER[name].least or 0.0)) * chosen[REFERENCE].parameters / 100


def name_of(method: str, cost: float) -> str:
    """Return the name of a run of a method at a price."""
    return f"{method}{AT}{cost:g}"


def method_of(row: Row) -> str:
    """Return the method that a row is a candidate of."""
    return row.row.partition(AT)[0]


def _validation(row: Row) -> float:
    return 100 * (row.validation_accuracy or 0.0)
