"""The methods of the comparison, and how each is trained and compressed.

A `PruningMethod` takes the trained large network and makes it smaller. A `LearningMethod` changes
how the large network is trained, by a strength that is chosen on validation data, and then brings
it to the budget exactly. A `FromScratchMethod` begins with a small network. All have the same
epochs in total. `needs` names a package that a method cannot do without.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from archlearn.gating.attach import add_gates
from archlearn.gating.learn import Learn
from archlearn.gating.parameters import width_gates
from archlearn.surgery.compaction import compact
from archlearn_paper.baselines.budget import ParameterCounts, trim
from archlearn_paper.baselines.fastfood import reduce_by_fastfood
from archlearn_paper.baselines.from_scratch import start_anew
from archlearn_paper.baselines.l1_diagonal import add_diagonals, reduce_by_diagonals
from archlearn_paper.baselines.neuron_pruning import reduce_by_merging
from archlearn_paper.baselines.svd import reduce_by_svd
from archlearn_paper.baselines.torch_pruning_methods import (
    learn_sparse_groups,
    reduce_by_torch_pruning,
    reduce_evenly,
)
from archlearn_paper.comparison.protocol import ComparisonSetup
from archlearn_paper.parallel_runs import Run
from archlearn_paper.recipes import Terms


@dataclass(frozen=True, slots=True)
class Strength:
    """How hard a method pulls, and in which of its variants."""

    value: float
    variant: str = ""

    def weaken(self, factor: float) -> "Strength":
        """Return the same variant at less strength."""
        return Strength(self.value / factor, self.variant)

    def __str__(self) -> str:
        return f"{self.value:.3g} {self.variant}".strip()


def _ladder(first: float, n_steps: int, variant: str = "") -> tuple[Strength, ...]:
    """Return strengths, each twice the one before."""
    return tuple(Strength(first * 2**step, variant) for step in range(n_steps))


VARIANTS: dict[str, Terms] = {
    "on neurons": Terms(cost=0.0, price="neurons"),
    "on neurons and layers": Terms(cost=0.0, price="neurons", learn="all"),
}
"""What our price is on. Like the price itself, it is chosen on validation data. A price on
parameters is not among them: in `results/choosing_prices.jsonl` it is mostly behind where depth is
learnt too, about level where widths alone are, and each variant takes trials."""
PRICES = tuple(price for variant in VARIANTS for price in _ladder(6e-5, 8, variant))
L0_PRICES = _ladder(2.5e-4, 8, "on neurons")
"""Drawn gates are dearer: noise alone makes the loss pull them open. 1e-3 left 25,000 parameters at
most on MNIST, so the ladder starts below it."""
L0_GATE_RATE = 0.2
"""Drawn gates have noise of their own, so their rate does not rise as the price falls."""
LASSO_STRENGTHS = tuple(map(Strength, (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)))
SPARSE_STRENGTHS = tuple(map(Strength, (1e-4, 5e-4, 2e-3, 8e-3, 3e-2)))
"""In a first comparison both ended at their third strength, which was often the best."""


Reduce = Callable[[nn.Module, torch.Tensor, int], nn.Module]
"""Makes a network smaller: from it, example inputs and a budget."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PruningMethod:
    """A method that makes a trained network smaller.

    Attributes:
        rounds: In how many steps the budget is reached, with training after each.
    """

    name: str
    source: str
    reduce: Reduce
    rounds: int = 1
    is_dense: bool = True
    needs: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningMethod:
    """A method that changes how the large network is trained.

    Attributes:
        strengths: What its strength is chosen from.
        begin: The first part of a run, from a setup, a seed and a strength.
        reduce: From a setup, the trained network and a budget.
        n_candidates: How many strengths of each variant are tried to the end for each budget: all
         where the network has the same size at any strength.
        rounds: In how many steps the budget is reached, with training after each.
        again: What reduces it in rounds after the first.
    """

    name: str
    source: str
    strengths: Sequence[Strength]
    begin: Callable[[ComparisonSetup, int, Strength], Run]
    reduce: Callable[[ComparisonSetup, nn.Module, int], nn.Module]
    n_candidates: int = 1
    rounds: int = 1
    again: Reduce | None = None
    is_dense: bool = True
    needs: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FromScratchMethod:
    """A method that begins with a small network.

    Attributes:
        begin: The network, from a setup, a seed and a budget.
    """

    name: str
    source: str
    begin: Callable[[ComparisonSetup, int, int], nn.Module]
    is_dense: bool = True
    needs: str = ""


Method = PruningMethod | LearningMethod | FromScratchMethod
OURS = "archlearn"
SCRATCH = "its architecture from scratch"


def _begin_ours(setup: ComparisonSetup, seed: int, strength: Strength) -> Run:
    terms = replace(VARIANTS[strength.variant], cost=strength.value)
    return Run(row="", settings=setup.gated(seed, terms))


def _begin_l0(setup: ComparisonSetup, seed: int, strength: Strength) -> Run:
    terms = replace(VARIANTS[strength.variant], cost=strength.value, gate_rate=L0_GATE_RATE)
    settings = setup.given_gates(seed, terms)
    network = setup.fresh_network(seed)
    gated = add_gates(network, setup.example(), learn={"*": Learn.WIDTH}, kind="l0")
    return Run(row="", settings=settings, network=gated)


def _begin_lasso(setup: ComparisonSetup, seed: int, strength: Strength) -> Run:
    network = add_diagonals(setup.fresh_network(seed), setup.example(), strength.value)
    return Run(row="", settings=setup.plain(seed, setup.first_epochs), network=network)


def _begin_sparse(setup: ComparisonSetup, seed: int, strength: Strength) -> Run:
    network = learn_sparse_groups(setup.fresh_network(seed), setup.example(), strength.value)
    return Run(row="", settings=setup.plain(seed, setup.first_epochs), network=network)


def _trim(setup: ComparisonSetup, model: nn.Module, budget: int) -> nn.Module:
    return trim(model, setup.example(), budget, setup.losses)


def _cut_lasso(setup: ComparisonSetup, model: nn.Module, budget: int) -> nn.Module:
    """Put the numbers of a loaded model into one that has diagonals, and cut that."""
    again = add_diagonals(setup.fresh_network(0), setup.example(), 0.0)
    again.load_state_dict(model.state_dict())
    return reduce_by_diagonals(again.network, setup.example(), budget)


def _cut_sparse(setup: ComparisonSetup, model: nn.Module, budget: int) -> nn.Module:
    network = setup.fresh_network(0)
    numbers = model.state_dict()
    network.load_state_dict({n.removeprefix("network."): numbers[n] for n in numbers})
    return reduce_by_torch_pruning(network, setup.example(), budget)


@torch.no_grad()
def _narrow_evenly(setup: ComparisonSetup, seed: int, budget: int) -> nn.Module:
    """Return a fresh network all of whose widths are the same part of the large one's."""
    network = setup.fresh_network(seed)
    gated = add_gates(network, setup.example(), learn={"*": Learn.WIDTH}, width_start=1.0)
    gates = width_gates(gated)
    sizes, full = ParameterCounts(gated), [len(gate) for gate in gates.values()]
    parts = [[max(1, round(n * part / 1000)) for n in full] for part in range(1, 1001)]
    kept = min(parts, key=lambda widths: abs(sizes.parameters(widths) - budget))
    for gate, n_kept in zip(gates.values(), kept, strict=True):
        gate[n_kept:] = 0.0
    return start_anew(compact(gated), seed)


def _begin_fastfood(setup: ComparisonSetup, seed: int, budget: int) -> nn.Module:
    return reduce_by_fastfood(setup.fresh_network(seed), setup.example(), budget, seed=seed)


METHODS: tuple[Method, ...] = (
    LearningMethod(name=OURS, source="this package", strengths=PRICES, begin=_begin_ours,
        reduce=_trim),
    LearningMethod(name="l0 gates", source="Louizos et al. 2018", strengths=L0_PRICES,
        begin=_begin_l0, reduce=_trim),
    LearningMethod(name="l1 diagonal", source="Kulkarni et al. 2015", strengths=LASSO_STRENGTHS,
        begin=_begin_lasso, reduce=_cut_lasso, n_candidates=len(LASSO_STRENGTHS)),
    LearningMethod(name="torch-pruning, sparse learning", source="Fang et al. 2023",
        strengths=SPARSE_STRENGTHS, begin=_begin_sparse, reduce=_cut_sparse,
        n_candidates=len(SPARSE_STRENGTHS), needs="torch_pruning"),
    LearningMethod(name="torch-pruning, sparse learning, iterative", source="Fang et al. 2023",
        strengths=SPARSE_STRENGTHS[1:4], begin=_begin_sparse, reduce=_cut_sparse,
        n_candidates=3, rounds=4, again=reduce_by_torch_pruning,
        needs="torch_pruning"),
    PruningMethod(name="torch-pruning", source="Fang et al. 2023", reduce=reduce_by_torch_pruning,
        needs="torch_pruning"),
    PruningMethod(name="torch-pruning, same part of each layer", source="Fang et al. 2023",
        reduce=reduce_evenly, needs="torch_pruning"),
    PruningMethod(name="torch-pruning, iterative", source="Fang et al. 2023",
        reduce=reduce_by_torch_pruning, rounds=4, needs="torch_pruning"),
    PruningMethod(name="neuron pruning", source="Srinivas and Babu 2015", reduce=reduce_by_merging),
    PruningMethod(name="svd", source="Denton et al. 2014", reduce=reduce_by_svd),
    FromScratchMethod(name="fastfood", source="Yang et al. 2014", begin=_begin_fastfood,
        is_dense=False),
    FromScratchMethod(name="even widths from scratch", source="a control", begin=_narrow_evenly),
)  # fmt: skip


def named(run: Run, row: str) -> Run:
    """Return a run under another name."""
    return replace(run, row=row)
