"""Figure 4: trainings that Bayesian optimisation needs to match one that learns widths.

(a) the width of the last hidden layer alone, (b) all three widths; each at several prices. Both
ways are judged by the same number, the train loss plus a price for every neuron (the paper's
equation 1), and the search is one in the logarithm of the widths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from archlearn_paper.baselines.bayesian_search import (
    N_TRAININGS,
    Proposal,
    Space,
    Training,
    best_so_far,
    measure_objective,
    propose_widths,
    trainings_to_reach,
    warm_up,
)
from archlearn_paper.experiment import (
    Check,
    Derived,
    Experiment,
    FinishedRun,
    ResultTable,
    Row,
    Run,
    RunTask,
    Scale,
)
from archlearn_paper.recipes import learn_architecture, train_plainly
from archlearn_paper.statistics import measure_spread
from archlearn_paper.tables import write_spread
from archlearn_paper.worker_pool import map_in_processes

WIDTHS = {"conv1": 20, "conv2": 50, "fc1": 500}
PRICES = (1e-5, 1e-4, 1e-3)
"""What a neuron costs; the first is the paper's."""
EARLIER_PRICE = 2.5e-3
"""Of runs made before there were several, whose rows name none: a search in widths as they are."""
EPOCHS, BATCH_SIZE = 20, 500
"""Every training is shorter than those of other experiments, in larger batches: there are 20 in a
row."""
FREEZE_FOR, LARGEST_STEP = 0.4, 0.005
"""Gates of the run that learns need steps to settle, and a short run has few. At a low price their
rate is high, and a bound on their steps keeps noise from closing them (the paper clips them)."""
N_SEEDS, N_QUICK = 3, 3


@dataclass(frozen=True, slots=True)
class Panel:
    """One search: which widths are searched, or learnt, and at which price."""

    name: str
    words: str
    searched: tuple[str, ...]
    price: float

    @property
    def key(self) -> str:
        """Return what tells it from the others."""
        return f"{self.name}, λ = {self.price:g}"

    def space(self) -> Space:
        """Return what is searched."""
        most = {layer: WIDTHS[layer] for layer in self.searched}
        fixed = {layer: width for layer, width in WIDTHS.items() if layer not in most}
        return Space(most=most, fixed=fixed)

    def row(self, number: int | None = None) -> str:
        """Return the row of a training of the search, or of the one that learns."""
        at = "" if self.price == EARLIER_PRICE else f" at {self.price:g}"
        return f"AL ({self.name}){at}" if number is None else f"BO ({self.name}){at} {number + 1}"


PANELS = tuple(
    Panel(name, words, searched, price)
    for price in (*PRICES, EARLIER_PRICE)
    for name, words, searched in (
        ("a", "the last hidden width", ("fc1",)),
        ("b", "all three widths", ("conv1", "conv2", "fc1")),
    )
)


def name_model(widths: Mapping[str, int]) -> str:
    """Return the name of the LeNet that has these widths."""
    return "lenet:" + "-".join(str(widths[layer]) for layer in WIDTHS)


def ask_next(known: tuple[Panel, int, Sequence[Training]]) -> Proposal:
    """Return the next widths of one search."""
    panel, seed, trainings = known
    warm_up()
    return propose_widths(panel.space(), trainings, seed=seed)


_search_seconds: dict[tuple[str, int], float] = {}
"""How long each proposal took, until it is written down with its training."""


def shorten(scale: Scale) -> Scale:
    """Return the scale of this experiment: three seeds and, unless it is quick, fewer epochs."""
    if scale.points:
        return scale.shorten(scale.epochs // 2, 1)
    return replace(scale.shorten(EPOCHS, N_SEEDS), batch_size=BATCH_SIZE)


def choose_panels(scale: Scale) -> list[Panel]:
    """Return the searches that are made; of a quick version those at one price."""
    prices = PRICES if scale.points is None else PRICES[-1:]
    return [panel for panel in PANELS if panel.price in prices]


def learn_rows(scale: Scale, done: Sequence[FinishedRun]) -> list[RunTask]:
    """Return the runs that learn the widths, for each panel and seed."""
    del done
    short = shorten(scale)
    return [
        Run(
            row=panel.row(),
            settings=learn_architecture(
                short,
                seed,
                panel.price,
                leave=tuple(layer for layer in WIDTHS if layer not in panel.searched),
                freeze_for=FREEZE_FOR,
                largest_step=LARGEST_STEP,
            ),
            finish_compact=True,
        )
        for panel in choose_panels(scale)
        for seed in short.seeds
    ]


def propose(scale: Scale, done: Sequence[FinishedRun], *, number: int) -> list[RunTask]:
    """Return the next training of every search; all searches go on side by side."""
    short, works = shorten(scale), list[RunTask]()
    if number >= (N_QUICK if scale.points else N_TRAININGS):
        return []
    searches = [(panel, seed) for panel in choose_panels(scale) for seed in short.seeds]
    known = [
        (panel, seed, read_trainings(panel, [d.row for d in done if d.row.seed == seed]))
        for panel, seed in searches
    ]
    proposals = map_in_processes(ask_next, known)
    for (panel, seed), proposal in zip(searches, proposals, strict=True):
        row = panel.row(number)
        _search_seconds[row, seed] = proposal.seconds
        model = name_model(proposal.widths)
        works.append(Run(row=row, settings=train_plainly(short, seed, model=model)))
    return works


def measure(scale: Scale, done: FinishedRun) -> dict[str, Any]:
    """Return how long the proposal of a training took."""
    del scale
    seconds = _search_seconds.get((done.row.row, done.row.seed))
    return {} if seconds is None else {"search_seconds": seconds}


def read_trainings(panel: Panel, rows: Sequence[Row]) -> list[Training]:
    """Return the trainings of one search, in order, from the rows of one seed."""
    found = {row.row: row for row in rows}
    names = [panel.row(number) for number in range(N_TRAININGS)]
    return [
        Training(
            widths={layer: row.widths[layer] for layer in WIDTHS},
            objective=objective_of(panel, row),
            search_seconds=row.measured.get("search_seconds", 0.0),
            train_seconds=row.seconds,
        )
        for name in names
        if (row := found.get(name)) is not None
    ]


def objective_of(panel: Panel, row: Row) -> float:
    """Return what both ways minimise."""
    return measure_objective(row.train_loss, row.n_neurons, panel.price)


def derive(rows: Sequence[Row]) -> dict[str, Any]:
    """Return, for each panel and seed, the best objective over trainings and over seconds."""
    panels: dict[str, Any] = {}
    for panel in PANELS:
        seeds = [row.seed for row in rows if row.row == panel.row()]
        curves = [_follow(panel, [row for row in rows if row.seed == seed]) for seed in seeds]
        if curves:
            words = {"name": panel.name, "words": panel.words, "price": panel.price}
            panels[panel.key] = words | {"seeds": seeds, "curves": curves}
    return {"panels": panels}


def _follow(panel: Panel, rows: Sequence[Row]) -> dict[str, Any]:
    learnt = next(row for row in rows if row.row == panel.row())
    trainings = read_trainings(panel, rows)
    seconds: list[float] = []
    for training in trainings:
        before = seconds[-1] if seconds else 0.0
        seconds.append(before + training.search_seconds + training.train_seconds)
    count = trainings_to_reach(trainings, objective_of(panel, learnt))
    return {
        "learnt": {
            "objective": objective_of(panel, learnt),
            "seconds": learnt.seconds,
            "architecture": learnt.architecture,
            "accuracy": learnt.accuracy,
        },
        "best": best_so_far(trainings),
        "objectives": [training.objective for training in trainings],
        "seconds": seconds,
        "trainings_to_match": count,
        "seconds_to_match": None if count is None else seconds[count - 1],
    }


def check(derived: Derived) -> list[Check]:
    """Return how many trainings the search needs to match one that learns."""
    return [
        Check(
            what=f"trainings to match one run, ({key}) {panel['words']}",
            measured=", ".join(_write_count(curve) for curve in panel["curves"]),
            bound=f"at least {N_TRAININGS} for each seed (the paper: about {N_TRAININGS})",
            met=all(_is_late(curve) for curve in panel["curves"]),
        )
        for key, panel in derived["panels"].items()
    ]


def _is_late(curve: Mapping[str, Any]) -> bool:
    """Return whether a search of full length matched at its last training or never."""
    count = curve["trainings_to_match"]
    return len(curve["best"]) >= N_TRAININGS if count is None else count >= N_TRAININGS


def _write_count(curve: Mapping[str, Any]) -> str:
    count = curve["trainings_to_match"]
    return f"not in {len(curve['best'])}" if count is None else str(count)


def tabulate(derived: Derived) -> list[ResultTable]:
    """Return both ways side by side for each panel."""
    rows: list[tuple[str, ...]] = []
    for key, panel in derived["panels"].items():
        curves = panel["curves"]
        learnt = [curve["learnt"] for curve in curves]
        rows.append(
            (
                f"({key}) {panel['words']}",
                ", ".join(one["architecture"] for one in learnt),
                _spread([one["objective"] for one in learnt]),
                _spread([one["seconds"] for one in learnt], 1),
                _spread([curve["best"][-1] for curve in curves if curve["best"]]),
                _spread([curve["seconds"][-1] for curve in curves if curve["best"]], 1),
                ", ".join(_write_count(curve) for curve in curves),
            )
        )
    columns = (
        "widths", "learnt in one run", "its objective", "seconds", "best of the search",
        "seconds of the search, its own time included", "trainings to match, by seed",
    )  # fmt: skip
    return [ResultTable(columns=columns, rows=tuple(rows))]


def _spread(values: Sequence[float], digits: int = 4) -> str:
    return write_spread(measure_spread(values).to_json() if values else None, digits)


EXPERIMENT = Experiment(
    stages=(learn_rows, *(partial(propose, number=number) for number in range(N_TRAININGS))),
    derive=derive,
    check=check,
    tabulate=tabulate,
    measure=measure,
    n_seeds=N_SEEDS,
)
