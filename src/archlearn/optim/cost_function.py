"""The cost of the compact network as a function of the open gates, computed on the device.

It equals what `plan` foretells, weight by weight: narrowed parameters, biases that constants make
new, activations that go, layers that merge, and branches that are left out with all that only they
need. Nothing is read back, so no device is waited for.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from archlearn.analysis.branches import Closings
from archlearn.analysis.cost_model import count_positions_by_call
from archlearn.analysis.labels import CONSTANT, Labels, core
from archlearn.analysis.layer_pairs import MergeablePair
from archlearn.analysis.linear_ops import is_linear_op, read_linear_op
from archlearn.costs import count_parameters
from archlearn.gating.selection import LearnableSites
from archlearn.gating.strengths import COSTS, count_rows
from archlearn.module_utils import find_module, find_tensor
from archlearn.surgery.merge_planning import chain_links, merged_kernel
from archlearn.surgery.planning import PlannedSizes

Named = dict[str, float]
_IMPOSSIBLE = 2.0**50
"""What an impossible merge costs; sums of it stay exact in double precision."""


class CostFunction:
    """Parameters and multiply-adds (one run on the example inputs) for any state of the gates.

    Attributes:
        n_width: The number of width gates.
        n_depth: The number of depth gates.
        n_branches: The number of branch gates.
        group: The group of each width gate.
    """

    def __init__(self, model: nn.Module, choice: LearnableSites) -> None:
        """Take down what each gate touches.

        Args:
            model: The gated model.
            choice: What is learnt in it.
        """
        self.n_depth, self.n_branches = len(choice.links), len(choice.branches)
        self.n_width = sum(len(group.channels) for group in choice.blueprint.groups)
        sizes = choice.blueprint.group_sizes()
        self._least = torch.tensor([g.least for g in choice.blueprint.groups], dtype=torch.long)
        self.group = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        self._tables: dict[torch.device, dict[str, Tensor]] = {}
        self._own = _Builder(model, choice).build()

    def __call__(self, is_open: Tensor, is_gone: Tensor) -> Tensor:
        """Return the costs of several states of the gates, `(states, 2)`, in double precision.

        The gradient with respect to an open width gate is what its channel costs.

        Args:
            is_open: For each state, 1 where a width gate is open; a group has at least one.
            is_gone: For each state, 1 where a depth gate makes its layer linear, and behind those
                where a branch is closed.
        """
        t = self._tables_on(is_open.device)
        is_linear, is_closed = is_gone.tensor_split([self.n_depth], 1)
        alive = self._alive(t, is_closed)
        opened = torch.cat([is_open, is_open.new_ones(len(is_open), 1)], 1)
        kept = opened[:, t["slice_gate"]] * t["slice_count"]
        kept = _add_up(kept, t["slice_of_gate"], len(t["dim_of_slice"]))
        kept = torch.where(t["slice_is_single"], kept, kept.clamp(max=1.0))
        dims = _add_up(kept, t["dim_of_slice"], len(t["full"]))
        dims = torch.cat([dims, t["constants"].expand(len(dims), -1)], 1)
        gone = _add_up(1.0 - opened[:, t["fold_gate"]], t["fold_layer"], len(t["fold_out"])) > 0
        new_bias = gone * alive[:, t["fold_life"]]
        sizes = dims[:, t["entry_dims"]].prod(-1) * alive[:, t["entry_life"]]
        costs = t["fixed"] + sizes @ t["entry_weights"]
        parameters = (new_bias * dims[:, t["fold_out"]]).sum(1)
        parameters = parameters - self._left_out(t, sizes, is_linear, alive)
        touched, saved = self._computed(t, dims, new_bias)
        saved = saved * alive[:, t["computed_life"]]
        parameters = parameters + (saved * touched).sum(1)
        costs = costs + torch.stack([parameters, torch.zeros_like(parameters)], 1)
        if "seg_in" not in t:
            return costs
        is_linear = is_linear * alive[:, t["link_life"]]  # what is gone does not merge
        return costs + self._merged(t, dims, new_bias, is_linear, saved * ~touched)

    def extremes(self, least_widths: Tensor | None = None) -> tuple[Named, Named]:
        """Return the costs with all gates open, and those of the smallest network there can be.

        Args:
            least_widths: How many gates of each group must stay open; left out, one, or
                two where a norm reads them.
        """
        sizes = self.group.bincount()
        if least_widths is None:
            least_widths = self._least
        place = torch.arange(len(self.group)) - (sizes.cumsum(0) - sizes)[self.group]
        opened = torch.stack([place >= 0, place < least_widths[self.group]]).double()
        n_others = self.n_depth + self.n_branches
        gone = torch.stack([torch.zeros(n_others), torch.ones(n_others)]).double()
        start, least = self(opened, gone)
        return name_costs(start), name_costs(least)

    def marginal(self, is_open: Tensor, is_gone: Tensor, weights: Tensor) -> Tensor:
        """Return what one channel of each width gate costs now, both costs weighed together."""
        with torch.enable_grad():
            opened = is_open.detach().clone().requires_grad_()
            total = self(opened[None], is_gone[None]).mv(weights).sum()
            return torch.autograd.grad(total, opened)[0]

    def flipped(self, is_open: Tensor, is_gone: Tensor) -> tuple[Tensor, Tensor]:
        """Return the costs with each layer or branch there and gone, the others as they are."""
        now = is_gone.expand(len(is_gone), -1)
        eye = torch.eye(len(is_gone), dtype=now.dtype, device=now.device)
        both = torch.cat([now * (1 - eye), torch.maximum(now, eye)])
        costs = self(is_open.expand(len(both), -1), both)
        return costs[: len(is_gone)], costs[len(is_gone) :]

    def _tables_on(self, device: torch.device) -> dict[str, Tensor]:
        if device not in self._tables:
            self._tables[device] = {name: t.to(device) for name, t in self._own.items()}
        return self._tables[device]

    def _alive(self, t: dict[str, Tensor], is_closed: Tensor) -> Tensor:
        """Return 1 for what is still there, for each kind of things that go with the same branches.

        The first kind is always there.
        """
        is_whole = is_closed @ t["set_branches"].T == t["set_branches"].sum(1)
        counts = _add_up(is_whole.to(is_closed.dtype), t["set_life"], int(self._own["n_lives"]))
        return (counts == 0).to(is_closed.dtype)

    def _left_out(
        self, t: dict[str, Tensor], sizes: Tensor, is_linear: Tensor, alive: Tensor
    ) -> Tensor:
        """Return the parameters of activations all of whose calls have become linear, or are gone.

        The sizes of those that are gone themselves are 0.
        """
        if not len(t["left_entry"]):
            return sizes.new_zeros(len(sizes))
        idle = torch.maximum(is_linear[:, t["left_site"]], 1.0 - alive[:, t["left_life"]])
        counts = _add_up(idle, t["left_of_site"], len(t["left_entry"]))
        is_gone = counts == t["left_calls"]
        return (sizes[:, t["left_entry"]] * is_gone).sum(1)

    def _computed(
        self, t: dict[str, Tensor], dims: Tensor, new_bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return which layers with computed weights (weight_norm) change, and what that saves."""
        n_owners = len(t["computed_before"])
        if not n_owners:
            nothing = dims.new_zeros(len(dims), 0)
            return nothing > 0, nothing
        n_tied = len(t["full"])
        lost = t["full"][t["touch_dim"]] - dims[:, :n_tied][:, t["touch_dim"]]
        touched = _add_up(lost, t["touch_owner"], n_owners)
        touched = touched + _add_up(new_bias[:, t["fold_touch"]], t["fold_owner"], n_owners)
        plain = dims[:, t["computed_dims"]].prod(-1) * t["computed_rest"]
        plain = _add_up(plain, t["computed_owner"], n_owners)
        return touched > 0, plain - t["computed_before"]

    def _merged(
        self,
        t: dict[str, Tensor],
        dims: Tensor,
        new_bias: Tensor,
        is_linear: Tensor,
        made_plain: Tensor,
    ) -> Tensor:
        """Return by how much merging changes the costs: the best partition of each chain.

        `made_plain` is what a merge saves beside by making the computed weights of a layer plain.
        """
        padded = torch.cat([new_bias, new_bias.new_zeros(len(dims), 1)], 1)
        bias = torch.maximum(t["layer_bias"], padded[:, t["layer_fold"]])
        n_out = dims[:, t["layer_out"]]
        weight = dims[:, t["layer_in"]] * n_out * t["layer_kernel"]
        norms = dims[:, t["norm_dims"]] if len(t["norm_dims"]) else dims[:, :0]
        norms = _add_up(norms, t["norm_link"], len(t["link_site"]))
        apart = torch.stack([weight + n_out * bias, weight * t["layer_applied"]], -1)
        inside = torch.stack([norms, torch.zeros_like(norms)], -1)
        old = _between(apart, t["seg_first"], t["seg_last"])
        old = old + _between(inside, t["seg_first"], t["seg_last"] - 1)
        whole = dims[:, t["seg_in"]] * dims[:, t["seg_out"]] * t["seg_kernel"]
        has_bias = _between(bias[..., None], t["seg_first"], t["seg_last"])[..., 0] > 0
        has_bias = has_bias | t["seg_has_norm"]
        parameters = whole + dims[:, t["seg_out"]] * has_bias
        change = torch.stack([parameters, whole * t["seg_applied"]], -1) - old
        straight = is_linear[:, t["link_site"]]
        broken = _between(1.0 - straight[..., None], t["seg_first"], t["seg_last"] - 1)[..., 0] > 0
        barred = _between(padded[:, t["layer_fold"]][..., None], t["seg_first"], t["seg_bare"])
        impossible = broken | (barred[..., 0] > 0) | (change > 0).any(-1)
        change = torch.where(impossible[..., None], _IMPOSSIBLE, change)
        beside = torch.cat([made_plain, made_plain.new_zeros(len(dims), 1)], 1)
        beside = beside[:, t["layer_computed"]][..., None]
        change = torch.cat([change, _between(beside, t["seg_first"], t["seg_last"])], -1)
        best = _best_partition(change, t["seg_table"], int(self._own["seg_table"].shape[0]))
        return torch.stack([best[:, 0] + best[:, 2], best[:, 1]], 1)


def name_costs(costs: Tensor, n_examples: int = 1) -> Named:
    """Return costs by name, multiply-adds for one of so many examples; waits for the device."""
    named = zip(COSTS, costs.tolist(), strict=True)
    return {name: cost / count_rows(name, n_examples) for name, cost in named}


def _best_partition(change: Tensor, table: Tensor, longest: int) -> Tensor:
    """Return the least change of costs over all ways to cut each chain into segments.

    The number of parameters decides, then fewer merges, as in `plan_merges`.

    Args:
        change: What each segment changes, `(states, segments, 3)`; the first number decides.
        table: The segment of each end, chain and start: a place in `change`, one behind its end
            for a single layer, two behind for none.
        longest: The number of layers of the longest chain.
    """
    single, none = change.new_zeros(1, 3), change.new_full((1, 3), _IMPOSSIBLE)
    extra = torch.cat([single, none])[None].expand(len(change), -1, -1)
    change = torch.cat([change, extra], 1)
    # Of equal costs the partition with more segments: a merge must lower the cost.
    key = change[..., 0] * 1024.0 - 1.0
    n_chains = table.shape[1]
    keys = [change.new_zeros(len(change), n_chains)]
    totals = [change.new_zeros(len(change), n_chains, 3)]
    for end in range(longest):
        segments = table[end, :, : end + 1]
        options = torch.stack(keys, -1) + key[:, segments]
        best, place = options.min(-1)
        reached = torch.stack(totals, 2) + change[:, segments]
        keys.append(best)
        totals.append(reached.gather(2, place[..., None, None].expand(-1, -1, 1, 3))[:, :, 0])
    return totals[-1].sum(1)


def _between(values: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Return the sums of `values[:, first:last + 1]` for several first and last places."""
    start = values.new_zeros(len(values), 1, values.shape[-1])
    sums = torch.cat([start, values.cumsum(1)], 1)
    return sums[:, last + 1] - sums[:, first]


def _add_up(values: Tensor, places: Tensor, size: int) -> Tensor:
    """Return the sums of the columns of `values` that have the same place."""
    return values.new_zeros(len(values), size).index_add(1, places, values)


class _Segment(NamedTuple):
    """Layers of a chain that may become one; places count layers of all chains."""

    first: int
    last: int
    layers: tuple[str, ...]
    kernel: float
    has_norm: bool
    bare: int
    """Up to here no layer may get a bias, or the merge would not be exact."""


class _Builder:
    """Writes the tables of a cost function."""

    def __init__(self, model: nn.Module, choice: LearnableSites) -> None:
        self.model, self.choice, self.blueprint = model, choice, choice.blueprint
        self.sizes = PlannedSizes(model, self.blueprint)
        self.n_gates = sum(len(group.channels) for group in self.blueprint.groups)
        self.gate_of = torch.full((len(self.blueprint.root),), self.n_gates)
        start = 0
        for group in self.blueprint.groups:
            self.gate_of[group.channels] = torch.arange(start, start + len(group.channels))
            start += len(group.channels)
        self.dim_of: dict[tuple[str, int], int] = {}
        self.products: list[tuple[str, int, int]] = []  # calls, multiply-adds, dimensions
        self.slices: list[tuple[Tensor, Tensor]] = []  # gates, and slices within the dimension
        self.full: list[int] = []
        self.single: list[bool] = []
        self.constants: list[float] = [1.0]
        self.entries: dict[str, int] = {}
        self.entry_rows: list[list[int]] = []
        self.entry_weights: list[tuple[float, float]] = []
        self.entry_lives: list[int] = []
        self.lives: dict[Closings, int] = {frozenset(): 0}
        self.computed_owner: dict[str, int] = {}
        self.tables: dict[str, Tensor] = {}

    def build(self) -> dict[str, Tensor]:
        """Return all tables by name, on the CPU."""
        self._find_dims()
        self._find_entries()
        self._find_folds()
        self._find_left_out()
        self._find_computed()
        if self.choice.links:
            self._find_segments()
        self._write_dims()
        self.tables["entry_dims"] = self._pad(self.entry_rows)
        self.tables["entry_weights"] = _numbers(self.entry_weights).view(-1, 2)
        self.tables["entry_life"] = _places(self.entry_lives)
        self._write_lives()
        return self.tables

    def _write_lives(self) -> None:
        """Write for each kind of things the sets of branches with any of which they are gone."""
        sets = [(each, life) for closings, life in self.lives.items() for each in closings]
        table = torch.zeros(len(sets), len(self.choice.branches), dtype=torch.float64)
        for row, (each, _) in zip(table, sets, strict=True):
            row[list(each)] = 1.0
        self.tables |= {
            "set_branches": table,
            "set_life": _places([life for _, life in sets]),
            "n_lives": torch.tensor(len(self.lives)),
        }

    def _life(self, closings: Closings) -> int:
        return self.lives.setdefault(closings, len(self.lives))

    def _life_of_tensor(self, name: str) -> int:
        name = self.sizes.names.get(name, name)
        return self._life(self.choice.removals.tensors.get(name, frozenset()))

    def _life_of_call(self, name: str) -> int:
        return self._life(self.choice.removals.calls[0].get(name, frozenset()))

    def _find_dims(self) -> None:
        known: dict[int, int] = {}
        for key, channels in self.blueprint.dims.items():
            if id(channels) not in known:
                known[id(channels)] = len(self.full)
                gates = self.gate_of[channels]
                self._add_dim(gates, torch.arange(len(gates)), single=True)
            self.dim_of[key] = known[id(channels)]
        for name, channels in self.blueprint.elements.items():
            gates = self.gate_of[channels]
            for dim, size in enumerate(gates.shape):
                if (name, dim) not in self.dim_of:
                    self.dim_of[name, dim] = len(self.full)
                    rows = gates.movedim(dim, 0).reshape(size, -1)
                    places = torch.arange(size)[:, None].expand_as(rows)
                    self._add_dim(rows.reshape(-1), places.reshape(-1), single=False)

        for call, parts in self.blueprint.followed[0].products.items():
            for n, ids in parts:
                gates = self.gate_of[self.blueprint.root[ids]]
                self.products.append((call, n, len(self.full)))
                self._add_dim(gates, torch.arange(len(gates)), single=True)

    def _add_dim(self, gates: Tensor, slices: Tensor, *, single: bool) -> None:
        self.full.append(int(slices.max()) + 1 if len(slices) else 0)
        self.single.append(single)
        self.slices.append((gates, slices))

    def _write_dims(self) -> None:
        """Write which gates keep which slices of which dimensions.

        Where each slice has a gate of its own, all slices of a dimension are counted together.
        """
        gates: list[Tensor] = []
        counts: list[Tensor] = []
        slices: list[Tensor] = []
        dims: list[int] = []
        is_single: list[bool] = []
        for place, (found, own) in enumerate(self.slices):
            n_slices = 1 if self.single[place] else self.full[place]
            if self.single[place]:
                found, count = found.unique(return_counts=True)
                own = torch.zeros_like(found)
            else:
                count = torch.ones_like(found)
            gates.append(found)
            counts.append(count)
            slices.append(own + len(dims))
            dims += [place] * n_slices
            is_single += [self.single[place]] * n_slices
        none = torch.zeros(0, dtype=torch.long)
        self.tables |= {
            "slice_gate": torch.cat([*gates, none]),
            "slice_count": torch.cat([*counts, none]).double(),
            "slice_of_gate": torch.cat([*slices, none]),
            "dim_of_slice": _places(dims),
            "slice_is_single": torch.tensor(is_single, dtype=torch.bool),
            "full": _numbers(self.full),
            "constants": _numbers(self.constants),
        }

    def _slot(self, name: str, dim: int) -> int:
        """Return the place of a dimension's size; sizes that never change stand behind the rest."""
        name = self.sizes.names.get(name, name)
        if (name, dim) in self.dim_of:
            return self.dim_of[name, dim]
        return self._constant(find_tensor(self.model, name).shape[dim])

    def _constant(self, size: float) -> int:
        if size not in self.constants:
            self.constants.append(float(size))
        return len(self.full) + self.constants.index(size)

    def _slots(self, name: str) -> tuple[list[int], float]:
        """Return the places of a tensor's changing sizes, and the product of the others."""
        shape = find_tensor(self.model, name).shape
        tied = [d for d in range(len(shape)) if (name, d) in self.dim_of]
        rest = math.prod(size for d, size in enumerate(shape) if d not in tied)
        return [self.dim_of[name, d] for d in tied], float(rest)

    def _find_entries(self) -> None:
        """Write a row for each tensor that narrows or may be gone, and what all others cost."""
        parameters = dict(self.model.named_parameters())
        removable = self.choice.removals.tensors
        applied = self._applied()
        narrows = [name for name, _ in self.dim_of if name in parameters or name in applied]
        for name in dict.fromkeys([*narrows, *(name for name in parameters if name in removable)]):
            slots, rest = self._slots(name)
            life, macs = self._life_of_tensor(name), applied.pop(name, {})
            own = rest * (name in parameters), rest * macs.pop(life, 0)
            self.entries[name] = self._add_entry(slots, own, life)
            for other, n in macs.items():
                self._add_entry(slots, (0.0, rest * n), other)
        total = count_parameters(self.model)
        total -= sum(parameters[name].numel() for name in self.entries if name in parameters)
        self.tables["fixed"] = _numbers([total, 0])
        rest_macs = [(find_tensor(self.model, n).numel(), lives) for n, lives in applied.items()]
        others = dict(self.blueprint.followed[0].other_multiply_adds)
        for call, n, slot in self.products:
            others[call] -= n
            self._add_entry([slot], (0.0, n / self.full[slot]), self._life_of_call(call))
        rest_macs += [(n, {self._life_of_call(name): 1}) for name, n in others.items()]
        for size, lives in rest_macs:
            for life, n in lives.items():
                self._add_entry([], (0.0, float(size * n)), life)

    def _applied(self) -> dict[str, dict[int, int]]:
        """Return how often each weight is applied by calls that go with the same branches."""
        found: dict[str, dict[int, int]] = {}
        for call, (name, n) in count_positions_by_call(self.blueprint, self.model).items():
            lives, life = found.setdefault(name, {}), self._life_of_call(call)
            lives[life] = lives.get(life, 0) + n
        return found

    def _add_entry(self, slots: list[int], weights: tuple[float, float], life: int) -> int:
        self.entry_rows.append(slots)
        self.entry_weights.append(weights)
        self.entry_lives.append(life)
        return len(self.entry_rows) - 1

    def _pad(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return rows of equal length, filled up with the place of the constant 1."""
        length = max((len(row) for row in rows), default=0)
        one = len(self.full)
        filled = [[*row, *[one] * (length - len(row))] for row in rows]
        return torch.tensor(filled, dtype=torch.long).view(len(rows), length)

    def _find_folds(self) -> None:
        """Write which gates make a constant that a layer without a bias must take up."""
        self.folds: dict[str, set[int]] = {}
        for place, graph in enumerate(self.blueprint.graphs):
            values = self.blueprint.followed[place].values
            for node in graph.nodes:
                if not (node.op == "call_module" and is_linear_op(node, self.model)):
                    continue
                op = read_linear_op(node, self.model)
                labels = values[node.all_input_nodes[0].name]
                if op is None or not isinstance(labels, Labels) or op.groups > 1:
                    continue
                ids, state = core(labels.ids, labels.state, labels.ids.dim() + op.channel_dim)
                constant = state.amax(0) == CONSTANT
                gates = self.gate_of[self.blueprint.root[ids[0]]][constant]
                found = set(gates[gates < self.n_gates].tolist())
                if found:
                    self.folds.setdefault(op.layer, set()).update(found)
        layers = [
            n for n in self.folds if getattr(find_module(self.model, n), "bias", None) is None
        ]
        self.fold_layers = {name: place for place, name in enumerate(layers)}
        pairs = [(gate, self.fold_layers[n]) for n in layers for gate in sorted(self.folds[n])]
        table = torch.tensor(pairs, dtype=torch.long).view(-1, 2)
        self.tables["fold_gate"], self.tables["fold_layer"] = table.unbind(1)
        self.tables["fold_out"] = torch.tensor(
            [self._slot(f"{layer}.weight", 0) for layer in layers], dtype=torch.long
        )
        self.tables["fold_life"] = _places([self._life_of_tensor(f"{n}.weight") for n in layers])

    def _find_left_out(self) -> None:
        """Write the parameters of activations, with the depth gates that make them go."""
        places = {site: place for place, site in enumerate(self.choice.links)}
        calls: dict[str, list[str]] = {}
        for site in self.blueprint.sites[0]:
            if site.module:
                calls.setdefault(site.module, []).append(site.name)
        lives = {site.name: self._life_of_call(site.node) for site in self.blueprint.sites[0]}
        rows: list[tuple[int, int, int]] = []
        n_calls: list[float] = []
        left: list[int] = []
        for module, sites in calls.items():
            if any(site not in places for site in sites):
                continue
            for key, parameter in find_module(self.model, module).named_parameters():
                name = self.sizes.names.get(f"{module}.{key}", f"{module}.{key}")
                if name not in self.entries:
                    slots, life = [self._constant(parameter.numel())], self._life_of_tensor(name)
                    self.entries[name] = self._add_entry(slots, (0.0, 0.0), life)
                rows += [(places[site], len(left), lives[site]) for site in sites]
                n_calls.append(len(sites))
                left.append(self.entries[name])
        table = torch.tensor(rows, dtype=torch.long).view(-1, 3)
        names = ("left_site", "left_of_site", "left_life")
        self.tables |= dict(zip(names, table.unbind(1), strict=True))
        self.tables["left_calls"] = _numbers(n_calls)
        self.tables["left_entry"] = _places(left)

    def _find_computed(self) -> None:
        """Write the layers whose weights are computed: touched, they become plain."""
        before: list[float] = []
        touch: list[tuple[int, int]] = []
        folds: list[tuple[int, int]] = []
        rows: list[list[int]] = []
        rests: list[float] = []
        owners: list[int] = []
        lives: list[int] = []
        for name, module in self.model.named_modules():
            if not parametrize.is_parametrized(module):
                continue
            owner, made = len(before), module
            self.computed_owner[name] = owner
            parts: Any = made.parametrizations
            before.append(float(sum(p.numel() for p in parts.parameters())))
            inside = f"{name}." if name else ""
            lives.append(self._life_of_tensor(f"{inside}{next(iter(parts))}"))
            keys = [k for k in self.dim_of if k[0].rpartition(".")[0] == name]
            touch += [(self.dim_of[key], owner) for key in keys]
            folds += [(p, owner) for layer, p in self.fold_layers.items() if layer == name]
            for key in parts:
                slots, rest = self._slots(f"{inside}{key}")
                rows.append(slots)
                rests.append(rest)
                owners.append(owner)
        touched = torch.tensor(touch, dtype=torch.long).view(-1, 2)
        folded = torch.tensor(folds, dtype=torch.long).view(-1, 2)
        self.tables["touch_dim"], self.tables["touch_owner"] = touched.unbind(1)
        self.tables["fold_touch"], self.tables["fold_owner"] = folded.unbind(1)
        self.tables["computed_life"] = _places(lives)
        self.tables["computed_before"] = torch.tensor(before, dtype=torch.float64)
        self.tables["computed_dims"] = self._pad(rows)
        self.tables["computed_rest"] = torch.tensor(rests, dtype=torch.float64)
        self.tables["computed_owner"] = torch.tensor(owners, dtype=torch.long)

    def _find_segments(self) -> None:
        """Write every run of layers that may become one, and what it would cost."""
        chains = chain_links(list(self.choice.links.values()))
        site_of = {site: place for place, site in enumerate(self.choice.links)}
        layers: list[str] = []
        links: list[MergeablePair | None] = []
        segments: list[_Segment] = []
        longest = max(len(chain) for chain in chains) + 1
        table = torch.full((longest, len(chains), longest), -1)
        for number, chain in enumerate(chains):
            start = len(layers)
            names = [chain[0].first, *[link.second for link in chain]]
            layers += names
            links += [*chain, None]
            for end in range(longest):
                # A chain that is shorter than the longest goes on with layers that are not there.
                table[end, number, end] = -2
            for last in range(1, len(names)):
                for first in range(last):
                    segment = self._segment(chain, names, first, last, start)
                    if segment is not None:
                        table[last, number, first] = len(segments)
                        segments.append(segment)
        n = len(segments)
        table = torch.where(table == -2, n, torch.where(table == -1, n + 1, table))
        none = len(self.fold_layers)
        modules: list[Any] = [find_module(self.model, name) for name in layers]
        norms = [
            (self._slot(f"{norm}.{key}", 0), place)
            for place, link in enumerate(links)
            if link is not None
            for norm in link.norms
            for key, _ in find_module(self.model, norm).named_parameters()
        ]
        norm_table = torch.tensor(norms, dtype=torch.long).view(-1, 2)
        self.tables["norm_dims"], self.tables["norm_link"] = norm_table.unbind(1)
        slot = self._slot
        firsts = [link.first for link in self.choice.links.values()]
        self.tables |= {
            "link_life": _places([self._life_of_tensor(f"{name}.weight") for name in firsts]),
            "layer_bias": _numbers([getattr(m, "bias", None) is not None for m in modules]),
            "layer_computed": _places([self.computed_owner.get(name, -1) for name in layers]),
            "layer_fold": torch.tensor([self.fold_layers.get(name, none) for name in layers]),
            "layer_in": torch.tensor([slot(f"{name}.weight", 1) for name in layers]),
            "layer_out": torch.tensor([slot(f"{name}.weight", 0) for name in layers]),
            "layer_kernel": _numbers([math.prod(self._kernel((name,))) for name in layers]),
            "layer_applied": _numbers([self.sizes.applied(name) for name in layers]),
            "link_site": torch.tensor([site_of[link.site] if link else 0 for link in links]),
            "seg_first": _places([s.first for s in segments]),
            "seg_last": _places([s.last for s in segments]),
            "seg_bare": _places([s.bare for s in segments]),
            "seg_in": _places([slot(f"{s.layers[0]}.weight", 1) for s in segments]),
            "seg_out": _places([slot(f"{s.layers[-1]}.weight", 0) for s in segments]),
            "seg_kernel": _numbers([s.kernel for s in segments]),
            "seg_applied": _numbers([self.sizes.applied(s.layers[-1]) for s in segments]),
            "seg_has_norm": torch.tensor([s.has_norm for s in segments], dtype=torch.bool),
            "seg_table": table,
        }

    def _kernel(self, layers: tuple[str, ...]) -> list[int]:
        return merged_kernel(layers, self.sizes)

    def _segment(
        self, chain: list[MergeablePair], names: list[str], first: int, last: int, start: int
    ) -> _Segment | None:
        """Return the segment of these layers, or None if merging them is never exact."""
        layers = tuple(names[first : last + 1])
        bare = start + first - 1
        for place in range(1, len(layers)):
            module: Any = find_module(self.model, layers[place])
            if isinstance(module, nn.Linear) or not any(module.padding):
                continue
            in_front: list[Any] = [find_module(self.model, name) for name in layers[:place]]
            if (
                any(k > 1 for k in self._kernel(layers[:place]))
                or any(any(m.padding) or m.bias is not None for m in in_front)
                or any(link.norms for link in chain[first : first + place])
            ):
                return None
            bare = start + first + place - 1
        inside = chain[first:last]
        kernel = float(math.prod(self._kernel(layers)))
        has_norm = any(link.norms for link in inside)
        return _Segment(start + first, start + last, layers, kernel, has_norm, bare)


def _numbers(values: Sequence[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _places(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.long)
