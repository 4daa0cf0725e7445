"""`inspect`: list every site of gates and branch, what is learnt there, what is not, and why."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import nn

from archlearn.analysis.constraints import Reason
from archlearn.analysis.gate_sites import Site
from archlearn.costs import unit_of, write_costs
from archlearn.errors import InputError
from archlearn.gating.attach import check_leaves, check_rows, trace_copy
from archlearn.gating.cost_counter import known_inputs
from archlearn.gating.gate_container import find_container, list_gated, own_container
from archlearn.gating.selection import LearnableSites, explain_no_sites, select_tristates
from archlearn.nn.tristate_activation import TriState
from archlearn.optim.cost_function import CostFunction
from archlearn.optim.depth_path import order_layers
from archlearn.tracing.example_inputs import count_examples
from archlearn.tracing.generated_forward import check_forwards, unwrap
from archlearn.tracing.symbolic_trace import Leaf

_HEAD = ("layer", "activation", "channels", "width", "depth", "called at")
_LEGEND = (
    "width: channels that may be removed; depth: the activation may be removed, and the layer "
    "merged with the next; branch: layers that may be removed with their residual sum"
)
_NAMED = 4  # layers that a line of reasons names


@dataclass(frozen=True, slots=True)
class SiteRow:
    """One activation, or channels that no activation stands behind.

    Attributes:
        name: The layer in front of the activation, or that writes the channels first.
        channels: How many channels pass, and in how many of them the width is learnt.
        width: Whether width is learnt.
        depth: Whether depth is learnt.
        source: The line that calls the activation.
        width_reason: Why width is not learnt, and what to do about it.
        depth_reason: The same of depth.
    """

    name: str
    activation: str
    channels: int
    learnt_channels: int
    width: bool
    depth: bool
    source: str
    width_reason: Reason | None = None
    depth_reason: Reason | None = None

    @property
    def reason(self) -> str:
        """Why width or depth is not learnt, or ''."""
        reasons = {"width": self.width_reason, "depth": self.depth_reason}
        return "; ".join(f"{name}: {why.text}" for name, why in reasons.items() if why is not None)

    @property
    def fix(self) -> str:
        """What to do about it, or '' where nothing helps."""
        reason = self.width_reason or self.depth_reason
        return "" if reason is None else reason.fix


@dataclass(frozen=True, slots=True)
class BranchRow:
    """One residual branch.

    Attributes:
        name: The innermost module that holds all its layers.
        layers: Its layers; none are named where it must stay.
        learnt: Whether it has a gate.
        reason: Why not.
        fix: What to do about it.
    """

    name: str
    layers: tuple[str, ...]
    learnt: bool
    reason: str
    fix: str

    def __str__(self) -> str:
        if self.learnt:
            return f"branch {self.name}: learnt: {', '.join(self.layers)}"
        return f"branch {self.name}: not learnt: {Reason(self.reason, self.fix)}"


@dataclass(frozen=True, slots=True)
class Inspection:
    """All sites of gates and residual branches of a model, and what was taken as given.

    Attributes:
        opaque: Submodules that were not looked into, with the reason.
        answers: Lines of `forward` that asked about shapes, with what the example answered;
            the branch that the example takes is the one that is gated.
        start: What the model costs with all gates open, multiply-adds of one example.
        least: What the smallest network costs that gates can leave: no budget may be below.
        branches: The residual branches.
        kept: Layers that are no site and keep all their channels, with the reason; but not those
            that make the output.
        merges: The sites whose layers may merge with the next under a budget, the first to go
            first.
    """

    rows: tuple[SiteRow, ...]
    opaque: dict[str, str]
    answers: dict[str, str]
    start: dict[str, float]
    least: dict[str, float]
    branches: tuple[BranchRow, ...] = ()
    kept: dict[str, str] = field(default_factory=dict)
    merges: tuple[str, ...] = ()

    def __str__(self) -> str:
        table = [_HEAD, *(_cells(row) for row in self.rows)]
        sizes = [max(len(line[i]) for line in table) for i in range(len(_HEAD))]
        lines = [
            "  ".join(cell.ljust(n) for cell, n in zip(line, sizes, strict=True)) for line in table
        ]
        if not self.rows and not self.branches:
            lines = [f"nothing can be learnt: {explain_no_sites(has_opaque=bool(self.opaque))}"]
        lines += self._list_reasons()
        lines += map(str, self.branches)
        if self.merges:
            lines += [f"may merge with the next layer under a budget: {', '.join(self.merges)}"]
        if self.least:
            smallest = f"the smallest network that gates can leave: {write_costs(self.least)}"
            lines += [f"costs: {write_costs(self.start)}; {smallest}"]
        lines += [
            f"called unchanged, nothing inside is learnt: {name}: {why}"
            for name, why in self.opaque.items()
        ]
        if self.answers:
            answers = ", ".join(f"{line} ({answer})" for line, answer in self.answers.items())
            lines += [
                "traced for the shapes of the example; inputs for which these lines find another "
                f"value are refused: {answers}"
            ]
        lines += [_LEGEND] if self.rows or self.branches else []
        return "\n".join(line.rstrip() for line in lines)

    def _list_reasons(self) -> list[str]:
        """Return why widths and depths are not learnt, a line for each reason."""
        layers: dict[tuple[str, str], list[str]] = {}
        for name, why in self.kept.items():
            layers.setdefault(("width", why), []).append(name)
        for what in ("width", "depth"):
            for row in self.rows:
                why = row.width_reason if what == "width" else row.depth_reason
                has_activation = not row.activation.startswith("(")
                if why is not None and (what == "width" or has_activation):
                    layers.setdefault((what, str(why)), []).append(row.name)
        return [
            f"{what} not learnt at {_name_some(names)}: {why}"
            for (what, why), names in layers.items()
        ]


def inspect(
    model: nn.Module, example_inputs: object = None, *, leaves: Iterable[Leaf] = ()
) -> Inspection:
    """Return a table of every site of gates and residual branch of a model.

    Args:
        model: A model with gates, or one without: then `example_inputs` must be given, and the
            table says what `add_gates` would learn.
        example_inputs: Arguments for one call of the model.
        leaves: Submodules that are not to be looked into, as for `add_gates`.

    Raises:
        InputError: If the model does not run on the inputs.
        TracingError: If `add_gates` could not follow the model either.
    """
    model = unwrap(model)
    container = find_container(model)
    if container is not None:
        owners = [module for module in model.modules() if own_container(module) is not None]
        if len(owners) > 1:
            raise InputError(
                f"gates were added to {list_gated(model)} separately; call inspect on each of them"
            )
        return _inspect(container.learnable, CostFunction(owners[0], container.learnable))
    inputs = known_inputs(model, example_inputs)
    if any(isinstance(module, TriState) for module in model.modules()):
        return _inspect(select_tristates(model, inputs))
    check_forwards(model, "inspect")
    marked = check_leaves(model, leaves)
    copied, learnable = trace_copy(model, check_rows(inputs), None, marked, must_learn=False)
    has_gates = learnable.channel_graph.groups or learnable.branches
    return _inspect(learnable, CostFunction(copied, learnable) if has_gates else None)


def _inspect(learnable: LearnableSites, cost: CostFunction | None = None) -> Inspection:
    rows = [_row(learnable, 0, site) for site in learnable.channel_graph.sites[0]]
    names_of_rows = {row.name for row in rows}
    for index, sites in enumerate(learnable.channel_graph.sites):
        rows += [_row(learnable, index, site) for site in sites if site.name not in names_of_rows]
    rows += [_row(learnable, 0, stream.site) for stream in learnable.channel_graph.bare_streams]
    traces = learnable.channel_graph.traces
    start, least = ({}, {}) if cost is None else cost.extremes()
    n_rows = count_examples(learnable.channel_graph.inputs)
    for costs in (start, least):
        costs.update({name: cost / unit_of(name, n_rows) for name, cost in costs.items()})
    names = list(learnable.mergeable)
    branches = [BranchRow(b.name, b.layers, True, "", "") for b in learnable.branches.values()]
    branches += [
        BranchRow(n, (), False, why.text, why.fix) for n, why in learnable.no_branch.items()
    ]
    return Inspection(
        tuple(rows),
        dict(traces.opaque),
        dict(traces.answers),
        start,
        least,
        tuple(branches),
        {name: str(why) for name, why in learnable.channel_graph.kept.items()},
        tuple(names[index] for index in order_layers(learnable)[0]),
    )


def _row(learnable: LearnableSites, index: int, site: Site) -> SiteRow:
    channels = learnable.channel_graph.channels_of(index, site)
    learnt = learnable.n_learnt(index, site)
    width_reason = learnable.width_reason(index, site)
    depth_reason = learnable.not_mergeable.get(site.name)
    return SiteRow(
        name=site.name,
        activation=site.activation,
        channels=0 if channels is None else len(channels),
        learnt_channels=learnt,
        width=width_reason is None,
        depth=site.name in learnable.mergeable,
        source=site.source,
        width_reason=width_reason,
        depth_reason=depth_reason,
    )


def _name_some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _cells(row: SiteRow) -> tuple[str, ...]:
    some = row.width and row.learnt_channels < row.channels
    width = f"{row.learnt_channels} of them" if some else "learnt" if row.width else "-"
    depth = "learnt" if row.depth else "-"
    return (row.name, row.activation, str(row.channels), width, depth, row.source)
