"""What is searched in figure 4: the width of the last hidden layer, and all three widths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from archlearn_paper.baselines.bayesian_search import Proposal, Search, Space, Training, warm_up

WIDTHS = {"conv1": 20, "conv2": 50, "fc1": 500}


@dataclass(frozen=True, slots=True)
class Panel:
    """One half of the figure: which widths are searched, and which are learnt."""

    name: str
    words: str
    searched: tuple[str, ...]

    def space(self) -> Space:
        """Return what is searched."""
        most = {layer: WIDTHS[layer] for layer in self.searched}
        fixed = {layer: width for layer, width in WIDTHS.items() if layer not in most}
        return Space(most=most, fixed=fixed)

    def row(self, number: int | None = None) -> str:
        """Return the row of a training of the search, or of the one that learns."""
        return f"AL ({self.name})" if number is None else f"BO ({self.name}) {number + 1}"


PANELS = (
    Panel("a", "the last hidden width", ("fc1",)),
    Panel("b", "all three widths", ("conv1", "conv2", "fc1")),
)


def name_model(widths: Mapping[str, int]) -> str:
    """Return the name of the LeNet that has these widths."""
    return "lenet:" + "-".join(str(widths[layer]) for layer in WIDTHS)


def ask_next(known: tuple[Panel, int, Sequence[Training]]) -> Proposal:
    """Return the next widths of one search."""
    panel, seed, trainings = known
    warm_up()
    search = Search(f"{panel.name} {seed}", panel.space(), seed=seed)
    for training in trainings:
        search.add(training)
    return search.propose()
