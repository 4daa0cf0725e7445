"""What all methods of the comparison share, and how each is trained and compressed.

All have the same epochs in total, and strengths are chosen on validation data.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.errors import DataError, SettingsError
from archlearn.gating.parameters import width_gates
from archlearn.surgery.compaction import compact
from archlearn_cli.models.model_registry import build_network
from archlearn_cli.training.checkpoint import seed_everything
from archlearn_cli.training.objectives import objective_of
from archlearn_cli.training.settings import RunSettings
from archlearn_paper import recipes
from archlearn_paper.baselines import learnt_diagonals, parameter_budget, torch_pruning_methods
from archlearn_paper.baselines.fastfood import reduce_by_fastfood
from archlearn_paper.baselines.neuron_pruning import reduce_by_merging
from archlearn_paper.baselines.svd import reduce_by_svd
from archlearn_paper.evaluation import find_dataset, list_losses
from archlearn_paper.experiment import Row, Scale

L0_STRENGTHS = tuple(2.5e-4 * 2 ** (step / 2) for step in range(12))
"""Close enough for a rung near each budget: the size of a network falls by less than half from one
to the next."""
L1_STRENGTHS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SPARSE_STRENGTHS = (1e-4, 5e-4, 2e-3, 8e-3, 3e-2)
RATE_FACTORS = (0.25, 0.5, 1.0, 2.0)
"""By which the rate of the weights is multiplied where thin layers are trained on."""


FIRST_PART = 0.4
"""Part of the epochs before a network is brought to its budget; the rest comes after, for small
networks gain from training for long."""
CALIBRATION_SEED = 1000
"""Strengths are chosen on this seed, which is none of those that count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonSetup:
    """What is the same for all methods: the large network, numbers of parameters, and a scale."""

    model: str
    budgets: tuple[int, ...]
    scale: Scale

    @property
    def first_epochs(self) -> int:
        """Epochs before a network is brought to its budget."""
        return max(1, round(FIRST_PART * self.scale.epochs))

    @property
    def last_epochs(self) -> int:
        """Epochs after that."""
        return max(1, self.scale.epochs - self.first_epochs)

    def calibration(self) -> "ComparisonSetup":
        """Return the setup in which strengths are chosen: one other seed, and validation data."""
        share = self.scale.validation or recipes.VALIDATION
        scale = replace(self.scale, seeds=(CALIBRATION_SEED,), validation=share)
        return replace(self, scale=scale)

    def plain(self, seed: int, epochs: int, rate_factor: float = 1.0) -> RunSettings:
        """Return the settings of training without gates of ours."""
        scale, rate = replace(self.scale, epochs=epochs), rate_factor * recipes.RATE_OF_AN_EXAMPLE
        return recipes.train_plainly(scale, seed, model=self.model, rate=rate)

    def to_budget(self, seed: int, budget: int, cost_power: float) -> RunSettings:
        """Return the settings of a run that learns which parameters stay.

        Gates stand still when the networks of other methods are brought to their budget.
        """
        settings = recipes.learn_to_budget(
            self.scale, seed, budget, cost_power, model=self.model, rate=recipes.RATE_OF_AN_EXAMPLE
        )
        return replace(settings, gates=replace(settings.gates, freeze_for=1 - FIRST_PART))

    def example(self) -> Tensor:
        """Return two inputs as the network takes them."""
        dataset = find_dataset(self.plain(0, 1))
        return objective_of(dataset).inputs(dataset.train.inputs[:2])

    def fresh_network(self, seed: int) -> nn.Module:
        """Return the large network as a run of that seed begins with it."""
        dataset = find_dataset(self.plain(0, 1))
        with torch.random.fork_rng([]):
            seed_everything(seed, 0)
            return build_network(self.model, dataset.input_shape, dataset.n_outputs)

    def losses(self, model: nn.Module) -> Iterator[Tensor]:
        """Yield the losses of a model on some batches of train data."""
        return list_losses(self.plain(0, 1), model)


def check_setup(setup: ComparisonSetup) -> None:
    """Refuse data without classes and budgets out of reach, before anything is trained."""
    data = find_dataset(setup.plain(0, 1))
    if data.task == "regression":
        raise DataError(
            f"{data.name!r} is a regression, but results state an accuracy; choose data with "
            "classes (archlearn data lists them)"
        )
    network, example = setup.fresh_network(0), setup.example()
    gated = parameter_budget.gate_widths(network, example)
    least = parameter_budget.ParameterCounts(gated).parameters([1] * len(width_gates(gated)))
    most = sum(parameter.numel() for parameter in network.parameters())
    for budget in setup.budgets:
        if least > (1 + parameter_budget.BUDGET_TOLERANCE) * budget or budget >= most:
            raise SettingsError(
                f"--budget {budget:,}: {setup.model} has {most:,} parameters, and {least:,} with "
                "one channel in each layer; choose budgets in between"
            )


Reduce = Callable[[ComparisonSetup, int, nn.Module], nn.Module]
"""Makes a network smaller: from a setup, a budget and the network."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A method of the comparison: what it does before a network is at its budget.

    One that does nothing lands there in a run: ours, whose strength is the power of the cost.

    Attributes:
        strengths: What its strength is chosen from; nothing where it has none. Of a method
            that is pruning they are factors of the rate at which the network is trained on.
        begin: Makes the network that is trained, instead of the large one: from a setup, a seed and
            a strength or, where nothing reduces it, a budget.
        reduce: Makes a trained network smaller.
        rounds: In which it does, with training after each.
        again: What reduces it in rounds after the first, if that is another.
        is_dense: Whether the network that comes out is a plain dense one.
        needs: A package that it cannot do without.
    """

    name: str
    source: str
    strengths: Sequence[float] = ()
    begin: Callable[[ComparisonSetup, int, Any], nn.Module] | None = None
    reduce: Reduce | None = None
    rounds: int = 1
    again: Reduce | None = None
    is_dense: bool = True
    needs: str = ""

    @property
    def is_pruning(self) -> bool:
        """Whether it makes the large network smaller that others begin with, too."""
        return self.reduce is not None and self.begin is None


OURS, L0 = "archlearn", "l0 gates"
SCRATCH = "its architecture from scratch"


def name_first(method: Method, strength: float) -> str:
    """Return the row of the first part of a run."""
    return f"{method.name}, strength {strength:.3g}"


def name_trial(method: Method, strength: float, budget: int) -> str:
    """Return the row of a strength that is tried to the end."""
    return f"{name_first(method, strength)}, tried at {budget}"


def choose_strength(method: Method, budget: int, rows: Sequence[Row]) -> float:
    """Return the strength that was best on validation data at a budget.

    Where none was tried it is that in the middle, and 1 for a method without strengths.
    """
    strengths = method.strengths
    scores: Mapping[str, float] = {
        row.row: row.validation_accuracy or 0.0 for row in rows if row.seed == CALIBRATION_SEED
    }
    tried = {s: scores.get(name_trial(method, s, budget)) for s in strengths}
    by_strength = {strength: score for strength, score in tried.items() if score is not None}
    if not by_strength:
        return strengths[len(strengths) // 2] if strengths else 1.0
    return max(by_strength, key=lambda strength: by_strength[strength])


def _add_factors(
    setup: ComparisonSetup, seed: int, strength: float, *, penalty: learnt_diagonals.Penalty
) -> nn.Module:
    return learnt_diagonals.add_diagonals(
        setup.fresh_network(seed), setup.example(), strength, penalty
    )


def _add_group_penalty(setup: ComparisonSetup, seed: int, strength: float) -> nn.Module:
    return torch_pruning_methods.learn_sparse_groups(
        setup.fresh_network(seed), setup.example(), strength
    )


def _by_gradients(setup: ComparisonSetup, budget: int, model: nn.Module) -> nn.Module:
    return parameter_budget.prune_by_taylor(model, setup.example(), budget, setup.losses)


def _by_weights(
    setup: ComparisonSetup,
    budget: int,
    model: nn.Module,
    *,
    reduce: Callable[[nn.Module, Tensor, int], nn.Module],
) -> nn.Module:
    return reduce(model, setup.example(), budget)


def _by_factors(
    setup: ComparisonSetup, budget: int, model: nn.Module, *, penalty: learnt_diagonals.Penalty
) -> nn.Module:
    return learnt_diagonals.reduce_by_diagonals(
        _restore_factors(setup, model, penalty), setup.example(), budget
    )


def _restore_factors(
    setup: ComparisonSetup, model: nn.Module, penalty: learnt_diagonals.Penalty
) -> nn.Module:
    """Put the numbers of a loaded model into a network that has factors."""
    again = learnt_diagonals.add_diagonals(setup.fresh_network(0), setup.example(), 0.0, penalty)
    again.load_state_dict(model.state_dict())
    return again.network


def count_l0_left(setup: ComparisonSetup, model: nn.Module) -> int:
    """Return the parameters that L0 gates leave by themselves, before they meet a budget."""
    return learnt_diagonals.count_left(_restore_factors(setup, model, "l0"), setup.example())


def _by_groups(setup: ComparisonSetup, budget: int, model: nn.Module) -> nn.Module:
    network = setup.fresh_network(0)
    numbers = model.state_dict()
    network.load_state_dict({n.removeprefix("network."): numbers[n] for n in numbers})
    return torch_pruning_methods.reduce_by_torch_pruning(network, setup.example(), budget)


@torch.no_grad()
def narrow(setup: ComparisonSetup, seed: int, kept: Sequence[int]) -> nn.Module:
    """Return a fresh network with so many channels in each group of the large one."""
    gated = parameter_budget.gate_widths(setup.fresh_network(seed), setup.example())
    for gate, n_kept in zip(width_gates(gated).values(), kept, strict=True):
        gate[n_kept:] = 0.0
    return recipes.reinitialise(compact(gated), seed)


def _narrow_evenly(setup: ComparisonSetup, seed: int, budget: int) -> nn.Module:
    """Return a fresh network all of whose widths are the same part of the large one's."""
    gated = parameter_budget.gate_widths(setup.fresh_network(seed), setup.example())
    sizes, full = (
        parameter_budget.ParameterCounts(gated),
        [len(gate) for gate in width_gates(gated).values()],
    )
    parts = [[max(1, round(n * part / 1000)) for n in full] for part in range(1, 1001)]
    return narrow(setup, seed, min(parts, key=lambda kept: abs(sizes.parameters(kept) - budget)))


def _begin_fastfood(setup: ComparisonSetup, seed: int, budget: int) -> nn.Module:
    return reduce_by_fastfood(setup.fresh_network(seed), setup.example(), budget, seed=seed)


_BY_MAGNITUDE = partial(_by_weights, reduce=torch_pruning_methods.reduce_by_torch_pruning)
METHODS: tuple[Method, ...] = (
    Method(name=OURS, source="this package", strengths=recipes.COST_POWERS),
    Method(name=L0, source="Louizos et al. 2018", strengths=L0_STRENGTHS,
        begin=partial(_add_factors, penalty="l0"), reduce=partial(_by_factors, penalty="l0")),
    Method(name="l1 diagonal", source="Kulkarni et al. 2015", strengths=L1_STRENGTHS,
        begin=partial(_add_factors, penalty="l1"), reduce=partial(_by_factors, penalty="l1")),
    Method(name="torch-pruning, sparse learning", source="Fang et al. 2023",
        strengths=SPARSE_STRENGTHS, begin=_add_group_penalty, reduce=_by_groups,
        needs="torch_pruning"),
    Method(name="torch-pruning, sparse learning, iterative", source="Fang et al. 2023",
        strengths=SPARSE_STRENGTHS[1:4], begin=_add_group_penalty, reduce=_by_groups,
        rounds=4, again=_BY_MAGNITUDE, needs="torch_pruning"),
    Method(name="torch-pruning", source="Fang et al. 2023", reduce=_BY_MAGNITUDE,
        needs="torch_pruning"),
    Method(name="torch-pruning, same part of each layer", source="Fang et al. 2023",
        reduce=partial(_by_weights, reduce=torch_pruning_methods.reduce_evenly),
        needs="torch_pruning"),
    Method(name="torch-pruning, iterative", source="Fang et al. 2023",
        reduce=_BY_MAGNITUDE, rounds=4, needs="torch_pruning"),
    Method(name="taylor", source="Molchanov et al. 2019", reduce=_by_gradients),
    Method(name="neuron pruning", source="Srinivas and Babu 2015",
        reduce=partial(_by_weights, reduce=reduce_by_merging)),
    Method(name="svd", source="Denton et al. 2014",
        reduce=partial(_by_weights, reduce=reduce_by_svd), strengths=RATE_FACTORS),
    Method(name="fastfood", source="Yang et al. 2014", begin=_begin_fastfood,
        is_dense=False),
    Method(name="even widths from scratch", source="a control", begin=_narrow_evenly),
)  # fmt: skip
