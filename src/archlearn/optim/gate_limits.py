"""Budgets and other limits: what is asked for, whether it can be reached, what must stay."""

import fnmatch
import logging
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.costs import COSTS, LATENCY, unit_of
from archlearn.errors import LARGEST, InputError, check_kind, lies_in, with_article
from archlearn.gating.gate_container import GateContainer, own_container
from archlearn.gating.selection import LearnableSites
from archlearn.module_utils import check_numbers
from archlearn.tracing.generated_forward import unwrap

Budget = Mapping[str, "float | str"]
_MOST_NAMES = 5
_log = logging.getLogger(__name__)
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])|(?<=_)\d+(?=\.)")
"""The number of a block in a name: that in `blocks.0.up`, and in `layer_0.up`."""
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


def read_budget(budget: Budget, start: Mapping[str, float], n_examples: int) -> dict[str, float]:
    """Return a budget as numbers for a run on the example inputs; percentages are of the start."""
    if not isinstance(budget, Mapping) or not budget:  # pyright: ignore[reportUnnecessaryIsInstance]
        kind = "empty" if budget == {} else with_article(type(budget).__name__)
        raise InputError(
            f"budget is {kind}; give a dict, such as "
            '{"multiply_adds": "50%"} or {"parameters": 10_000}'
        )
    costs = (*COSTS, LATENCY)
    unknown = [name for name in budget if name not in costs]
    if unknown:
        raise InputError(f"budget names {unknown[0]!r}; choose among {', '.join(costs)}")
    return {
        name: _amount(name, value, start[name], unit_of(name, n_examples))
        for name, value in budget.items()
    }


def _amount(name: str, value: Any, start: float, n_rows: int) -> float:
    percent = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if percent is not None:
        share = float(percent[1])
        if not 0 < share <= 100:
            raise InputError(f"budget for {name} is {value!r}; give more than 0%, up to 100%")
        asked = start * share / 100
        return asked if name == LATENCY else float(math.floor(asked))
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number <= 0 or (name != LATENCY and number < 1):
        least = "above 0, in milliseconds" if name == LATENCY else "from 1 on"
        hint = f'; for a share write "{100 * number:g}%"' if 0 < number < 1 else ""
        raise InputError(
            f"budget for {name} is {value!r}; give a number {least}, or a percentage such "
            f'as "50%"{hint}'
        )
    return number * n_rows


def check_reachable(
    asked: Mapping[str, float],
    least: Mapping[str, float],
    present: Mapping[str, float],
    n_examples: int,
) -> None:
    """Raise if a budget is below what the smallest network costs."""
    for name, limit in asked.items():
        if limit < least[name]:
            costs = (limit, least[name], present[name])
            asked_for, left, now = (_write_cost(name, cost, n_examples) for cost in costs)
            raise InputError(
                f"a budget of {asked_for} {name} cannot be reached: with every gate closed that "
                f"may close, {left} are left of the present {now}; ask for more, protect less, or "
                "see what is not learnt and why: archlearn.inspect(model), or the command "
                "archlearn inspect"
            )


def warn_of_no_limit(
    asked: Mapping[str, float], start: Mapping[str, float], n_examples: int
) -> None:
    """Say so if all budgets are above what the whole network costs: nothing would go."""
    if all(limit > start[name] for name, limit in asked.items()):
        name, limit = next(iter(asked.items()))
        _log.warning(
            "nothing will be closed: the network has %s %s, and the budget allows %s",
            _write_cost(name, start[name], n_examples),
            name,
            _write_cost(name, limit, n_examples),
        )


def _write_cost(name: str, cost: float, n_examples: int) -> str:
    cost /= unit_of(name, n_examples)
    return f"{cost:,.3g} ms" if name == LATENCY else f"{cost:,.0f}"


def find_gated(model: nn.Module) -> nn.Module:
    """Return the part of a model that `add_gates` made."""
    modules = [module for module in unwrap(model).modules() if own_container(module) is not None]
    if len(modules) != 1:
        raise InputError(
            f"the model has {len(modules)} sets of gates from add_gates; GateOptimizer learns "
            "those of one. Call add_gates on it, or on one part of it; where several parts have "
            "gates, give one part, and make a GateOptimizer for each; for TriState placed by hand "
            "use parameter_groups and penalty"
        )
    check_numbers(modules[0].named_parameters())
    return modules[0]


def check_arguments(
    total_steps: Any, budget: Any, width_cost: Any, largest_cut: Any, **counts: Any
) -> None:
    """Raise if an argument of `GateOptimizer` means nothing."""
    if not lies_in(total_steps, 1, LARGEST) or total_steps != int(total_steps):
        raise InputError(f"total_steps is {total_steps!r}; give the number of steps of the run")
    if budget is not None and width_cost is not None:
        raise InputError("give a budget or a width_cost, not both: each says when to stop closing")
    if width_cost is not None and not lies_in(width_cost, 0, LARGEST):
        raise InputError(f"width_cost is {width_cost!r}; a price is a number from 0 on")
    for name, count in counts.items():
        if not lies_in(count, 1, LARGEST) or count != int(count):
            raise InputError(f"{name} is {count!r}; give a whole number from 1 on")
    if not lies_in(largest_cut, 0, 1):
        raise InputError(f"largest_cut is {largest_cut!r}; give a part between 0 and 1")


def width_steps(container: GateContainer, multiple_of: int) -> Tensor:
    """Return by how many gates each group may narrow, so that every width is a multiple.

    Fewer than `multiple_of` where a gate stands for several channels of every layer.
    """
    channel_graph = container.channel_graph
    sizes = channel_graph.group_sizes()
    channels = torch.zeros_like(sizes)
    for ids in channel_graph.dims.values():
        rows, columns, places = channel_graph.parents[:, ids]
        counts = channel_graph.count_by_group(torch.cat([rows, places[places != rows]])).long()
        channels = torch.where(counts % sizes == 0, torch.gcd(channels, counts // sizes), 1)
        # However many heads are left, each is to be a multiple.
        is_within = channel_graph.count_by_group(columns[rows != columns]) > 0
        channels = torch.where(is_within, 1, channels)
    common = torch.gcd(channels, torch.full_like(sizes, multiple_of))
    return multiple_of // common.clamp(min=1)


def find_alike(container: GateContainer, left_out: Tensor, *, equal_blocks: bool) -> Tensor:
    """Return for each group the widest of those that must stay as wide as it: mostly itself.

    With `equal_blocks` these are the groups whose layers differ in the number of their block alone;
    those of branches that are left out, of which little is left, say nothing of the others.
    """
    groups = container.channel_graph.groups
    is_gone = container.learnable.inner_groups()[left_out].any(0).tolist()
    by_kind: dict[tuple[str, int], list[int]] = {}
    for index, group in enumerate(groups):
        if is_gone[index]:
            continue
        kind = _NUMBER.sub("*", group.name), container.original_sizes[group.name]
        by_kind.setdefault(kind, []).append(index)
    alike = torch.arange(len(groups), device="cpu")
    for places in by_kind.values() if equal_blocks else ():
        alike[places] = max(places, key=lambda index: len(groups[index].channels))
    return alike


def warn_of_none_alike(container: GateContainer, alike: Tensor) -> None:
    """Say so if no groups are asked to be as wide as others."""
    groups = container.channel_graph.groups
    if torch.equal(alike, torch.arange(len(groups), device="cpu")):
        names = [group.name for group in groups]
        _log.warning(
            "equal_blocks=True changes nothing: no two of %s%s began equally wide and differ in "
            "the number of their block alone",
            ", ".join(names[:_MOST_NAMES]),
            ", ..." if len(names) > _MOST_NAMES else "",
        )


def least_widths(
    container: GateContainer,
    protect: Collection[str],
    least_width: int,
    largest_cut: float,
    steps: Tensor,
) -> Tensor:
    """Return how many gates of each group must stay open, in steps of so many."""
    channel_graph = container.channel_graph
    sizes = channel_graph.group_sizes()
    least = torch.ceil(sizes * (1.0 - largest_cut) - 1e-9).long().clamp(min=least_width)
    fewest = torch.tensor(
        [group.least for group in channel_graph.groups], dtype=torch.long, device="cpu"
    )
    least = torch.maximum(least, fewest)
    for pattern in protect:
        check_kind("a name in protect", pattern, str, 'give names of layers, such as ["head"]')
        rows = [ids for name, ids in container.learnable.rows if fnmatch.fnmatch(name, pattern)]
        held = [channel_graph.count_by_group(channels) > 0 for channels in rows]
        held += [
            torch.tensor(
                [fnmatch.fnmatch(g.name, pattern) for g in channel_graph.groups], device="cpu"
            )
        ]
        is_branch = any(fnmatch.fnmatch(name, pattern) for name in container.learnable.branches)
        if not is_branch and not bool(torch.stack(held).any()):
            layers = ", ".join(name for name, _ in container.learnable.rows)
            raise InputError(
                f"protect names {pattern!r}, but no layer is called so; there are {layers}"
            )
        least = torch.where(torch.stack(held).any(0), sizes, least)
    return torch.minimum((least + steps - 1) // steps * steps, sizes)


def find_protected(learnable: LearnableSites, protect: Collection[str]) -> Tensor:
    """Return which layers must not be merged into the next, then which branches must stay.

    They are protected by name; so are the branches of protected layers.
    """
    named = [(pair.first,) for pair in learnable.mergeable.values()]
    named += [(branch.name, *branch.layers) for branch in learnable.branches.values()]
    held = [any(fnmatch.fnmatch(name, p) for name in names for p in protect) for names in named]
    return torch.tensor(held, dtype=torch.bool, device="cpu")


def find_inside(learnable: LearnableSites, inner: Tensor) -> Tensor:
    """Return for each branch which groups, depth gates and branch gates are inside it."""
    weights = [f"{pair.first}.weight" for pair in learnable.mergeable.values()]
    additions = [branch.additions[0].node for branch in learnable.branches.values()]
    n_branches, inside = len(learnable.branches), list[list[bool]]()
    for alone in (frozenset({index}) for index in range(n_branches)):
        tensors = learnable.removals.gone_tensors(alone)
        calls = learnable.removals.gone_calls(0, alone)
        inside.append([*(w in tensors for w in weights), *(node in calls for node in additions)])
    others = torch.tensor(inside, dtype=torch.bool, device="cpu").view(
        n_branches, len(weights) + n_branches
    )
    return torch.cat([inner, others], 1)


def count_units(learnable: LearnableSites) -> Tensor:
    """Return the neurons of each layer that may become linear, then those inside each branch."""
    rows = dict(learnable.rows)
    counts = [len(rows[pair.first]) for pair in learnable.mergeable.values()]
    for branch in learnable.branches.values():
        counts.append(sum(len(rows[layer]) for layer in branch.layers if layer in rows))
    return torch.tensor(counts, dtype=torch.float64, device="cpu")
