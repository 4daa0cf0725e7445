"""The terms of the cost function: which gates each size of each tensor depends on, as tables."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from archlearn.analysis.channel_labels import Labels, without_repeats
from archlearn.analysis.cost_model import Application, count_positions_by_call
from archlearn.analysis.residual_branches import Closings
from archlearn.gating.cost_counter import count_parameters
from archlearn.gating.selection import LearnableSites
from archlearn.module_utils import (
    computed_names,
    computes_weights,
    find_module,
    find_tensor,
    weight_sources,
)
from archlearn.surgery.merging import PlannedSizes
from archlearn.surgery.planning import find_constant_inputs


class CostTerms:
    """What each gate touches: sizes, the tensors that have them, and what makes those go.

    Costs are sums of entries, and an entry is a product of factors: of sizes, some of which never
    change, and of one that is 1 or 0: whether the thing is there, or a new bias.
    A presence is a kind of things that go with the same branches; kind 0 is always there.
    """

    def __init__(
        self,
        model: nn.Module,
        learnable: LearnableSites,
        calls: Mapping[str, tuple[float, float, float]] | None = None,
    ) -> None:
        self.model, self.learnable, self.channel_graph = model, learnable, learnable.channel_graph
        self.sizes = PlannedSizes(model, self.channel_graph)
        self.n_gates = sum(len(group.channels) for group in self.channel_graph.groups)
        places = self.channel_graph.gate_places()
        self.gate_of = torch.where(places < 0, self.n_gates, places)
        self.dim_of: dict[tuple[str, int], int] = {}
        self.products: list[tuple[str, int, int]] = []  # calls, multiply-adds, dimensions
        self.calls = count_positions_by_call(self.channel_graph, model)
        self.passing: dict[str, int] = {}  # dimensions beside that calls are applied along
        self.rows: dict[str, int] = {}  # dimensions of the rows that calls take of their weights
        self.slices: list[Tensor] = []  # the gate of each slice, or several in rows
        self.full: list[int] = []
        self.columns: list[tuple[Tensor, Tensor]] = []  # gates, and how often each is counted
        self.constants: list[float] = [1.0]
        self.entries: dict[str, int] = {}
        self.entry_rows: list[list[int]] = []
        self.entry_weights: list[tuple[float, ...]] = []
        self.entry_presences: list[int] = []
        self.presences: dict[Closings, int] = {frozenset(): 0}
        self.computed_owner: dict[str, int] = {}
        self._tables: dict[str, Tensor] = {}
        self._find_pairs()
        self._find_dims()
        self._find_entries()
        self._find_folds()
        self._find_computed()
        self.n_columns = 2 if calls is None else 3
        self.time_columns: list[tuple[Tensor, Tensor]] = []
        if calls is not None:
            self._find_times(calls)

    def _find_pairs(self) -> None:
        """Count the gates that a channel of a head has, two or three, as one more gate."""
        parents = self.channel_graph.parents
        cells = (parents[0] != parents[1]).nonzero().flatten()
        gates = self.gate_of[parents[:, cells]]
        gates[2, parents[2, cells] == parents[0, cells]] = self.n_gates
        pairs, pair_index = gates.unique(dim=1, return_inverse=True)
        self.gate_of[cells] = self.n_gates + 1 + pair_index
        self.n_states = self.n_gates + 1 + pairs.shape[1]
        self._tables["pairs"] = pairs

    def tables(self) -> dict[str, Tensor]:
        """Return all tables by name, on the CPU; to be called last, for slots are added before."""
        self._write_dims()
        self.columns += self.fold_columns + self.time_columns
        self._write_columns()
        self._write_presences()
        # Where the factors that are 1 or 0 begin.
        there = len(self.full) + len(self.constants)
        folds = there + len(self.presences)
        rows = [
            [*row, there + p] for row, p in zip(self.entry_rows, self.entry_presences, strict=True)
        ]
        rows += [[slot, folds + n] for n, slot in enumerate(self._tables["fold_out"].tolist())]
        self._tables["entries"] = self._pad(rows).T.contiguous()
        self._tables["entry_weights"] = self._pad_costs(
            [*self.entry_weights, *[(1.0,)] * self.n_folds]
        )
        self._tables["fixed"] = self._pad_costs([self.fixed])[0]
        return self._tables

    def _write_presences(self) -> None:
        """Write for each kind of things the sets of branches with any of which they are gone."""
        sets = [
            (closing, presence) for every, presence in self.presences.items() for closing in every
        ]
        table = torch.zeros(
            len(sets), len(self.learnable.branches), dtype=torch.float64, device="cpu"
        )
        gone = torch.zeros(len(sets), len(self.presences), dtype=torch.float64, device="cpu")
        for row, (closing, presence) in enumerate(sets):
            table[row, list(closing)] = 1.0
            gone[row, presence] = 1.0
        self._tables |= {"sets": table.T, "set_sizes": table.sum(1), "gone_with_set": gone}

    def _presence(self, closings: Closings) -> int:
        return self.presences.setdefault(closings, len(self.presences))

    def presence_of_tensor(self, name: str) -> int:
        """Return with which other things a tensor goes."""
        name = self.sizes.names.get(name, name)
        return self._presence(self.learnable.removals.tensors.get(name, frozenset()))

    def _presence_of_call(self, name: str) -> int:
        return self._presence(self.learnable.removals.calls[0].get(name, frozenset()))

    def _find_dims(self) -> None:
        index_of: dict[int, int] = {}
        for key, channels in self.channel_graph.dims.items():
            if id(channels) not in index_of:
                index_of[id(channels)] = len(self.full)
                self._add_dim(self.gate_of[channels])
            self.dim_of[key] = index_of[id(channels)]
        for name, channels in self.channel_graph.elements.items():
            gates = self.gate_of[channels]
            for dim, size in enumerate(gates.shape):
                if (name, dim) not in self.dim_of:
                    self.dim_of[name, dim] = len(self.full)
                    self._add_dim(gates.movedim(dim, 0).reshape(size, -1))

        for call, parts in self.channel_graph.followed[0].products.items():
            for n, ids in parts:
                self.products.append((call, n, len(self.full)))
                self._add_dim(self.gate_of[self.channel_graph.root[ids]])
        for call, ids in self.channel_graph.followed[0].passing.items():
            self.passing[call] = len(self.full)
            self._add_dim(self.gate_of[self.channel_graph.root[ids]])
        for call, use in self._applications():
            if use.rows is not None:
                self.rows[call] = len(self.full)
                self._add_dim(self.gate_of[use.rows])

    def _add_dim(self, gates: Tensor) -> None:
        if gates.dim() > 1 and bool((gates == gates[:, :1]).all()):
            gates = gates[:, 0]  # the same gate in all of a slice
        self.full.append(len(gates))
        self.slices.append(gates)

    def _write_dims(self) -> None:
        """Write by which gates each size is counted.

        Where each slice has a gate of its own, all slices of a dimension are counted together.
        Where it has several, it stays as long as one of them is open, and counts for all like it.
        """
        dims: list[tuple[int, int]] = []  # of each count: the dimension, and how much it adds
        for index, gates in enumerate(self.slices):
            if gates.dim() == 1:
                dims.append((index, 1))
                self.columns.append(gates.unique(return_counts=True))
                continue
            rows, counts = gates.sort(1).values.unique(dim=0, return_counts=True)
            for row, n in zip(rows, counts.tolist(), strict=True):
                dims.append((index, n))
                self.columns.append((distinct := row.unique(), torch.ones_like(distinct)))
        sizes = torch.zeros(
            len(dims), len(self.full) + len(self.constants), dtype=torch.float64, device="cpu"
        )
        for row, (index, n) in zip(sizes, dims, strict=True):
            row[index] = n
        is_row = torch.tensor(
            [self.slices[index].dim() > 1 for index, _ in dims], dtype=torch.bool, device="cpu"
        )
        self._tables |= {
            "dims": sizes,
            "most": torch.where(is_row, 1.0, torch.inf).double(),
            "full": as_numbers(self.full),
            "constants": torch.cat(
                [torch.zeros(len(self.full), device="cpu").double(), as_numbers(self.constants)]
            ),
        }

    def _write_columns(self) -> None:
        """Write how often each kind of gates is counted, in each place where gates are counted.

        Gates of a kind are counted alike everywhere; nearly always they are those of a group.
        """
        kind, n_kinds = torch.zeros(self.n_states, dtype=torch.long, device="cpu"), 1
        for gates, counts in self.columns:
            pairs = torch.stack([kind[gates].double(), counts.double()])
            kind[gates] = n_kinds + pairs.unique(dim=1, return_inverse=True)[1]
            n_kinds += len(gates)
        kind = kind.unique(return_inverse=True)[1]
        table = torch.zeros(
            int(kind.max()) + 1, len(self.columns), dtype=torch.float64, device="cpu"
        )
        for column, (gates, counts) in zip(table.T, self.columns, strict=True):
            column[kind[gates]] = counts.double()
        open_always = torch.zeros(len(table), dtype=torch.float64, device="cpu")
        open_always[kind[self.n_gates]] = 1.0
        self._tables |= {
            "kind_of_gate": kind[: self.n_gates],
            "kind_of_pair": kind[self.n_gates + 1 :],
            "kinds": open_always,
            "columns": table,
        }

    def slot(self, name: str, dim: int) -> int:
        """Return the place of a dimension's size; sizes that never change stand behind the rest."""
        name = self.sizes.names.get(name, name)
        if (name, dim) in self.dim_of:
            return self.dim_of[name, dim]
        return self._constant(find_tensor(self.model, name).shape[dim])

    def _constant(self, size: float) -> int:
        if size not in self.constants:
            self.constants.append(float(size))
        return len(self.full) + self.constants.index(size)

    def _tied_slots(self, name: str, call: str = "") -> tuple[list[int], float]:
        """Return the places of a tensor's changing sizes, and the product of the others.

        Of a call that takes a part of its rows, those of this part.
        """
        shape = find_tensor(self.model, name).shape
        slots = {d: self.dim_of[name, d] for d in range(len(shape)) if (name, d) in self.dim_of}
        rest = math.prod(size for d, size in enumerate(shape) if d not in slots)
        if call in self.rows:
            slots[0] = self.rows[call]
        return [*slots.values()], float(rest)

    def _find_entries(self) -> None:
        """Write a row for each tensor that narrows or may be gone, and what all others cost."""
        parameters = dict(self.model.named_parameters())
        removable = self.learnable.removals.tensors
        applied = self._applied()
        narrows = [name for name, _ in self.dim_of if name in parameters or name in applied]
        for name in dict.fromkeys([*narrows, *(name for name in parameters if name in removable)]):
            slots, rest = self._tied_slots(name)
            presence, macs = self.presence_of_tensor(name), applied.pop(name, {})
            weights = rest * (name in parameters), rest * macs.pop((presence, ()), 0.0)
            self.entries[name] = self._add_entry(slots, weights, presence)
            for (other, passed), n in macs.items():
                self._add_entry([*slots, *passed], (0.0, rest * n), other)
        for call in self.rows:
            (use,) = self.calls[call]
            slots, rest = self._tied_slots(use.weight, call)
            self._add_entry(slots, (0.0, rest * use.n_places), self._presence_of_call(call))
        total = count_parameters(self.model)
        total -= sum(parameters[name].numel() for name in self.entries if name in parameters)
        self.fixed = (float(total),)
        rest_macs = [(find_tensor(self.model, name).numel(), n) for name, n in applied.items()]
        others = dict(self.channel_graph.followed[0].other_multiply_adds)
        for call, n, slot in self.products:
            others[call] -= n
            self._add_entry([slot], (0.0, n / self.full[slot]), self._presence_of_call(call))
        rest_macs += [(n, {(self._presence_of_call(name), ()): 1.0}) for name, n in others.items()]
        for size, applications in rest_macs:
            for (presence, passed), n in applications.items():
                self._add_entry(list(passed), (0.0, size * n), presence)

    def _applied(self) -> dict[str, dict[tuple[int, tuple[int, ...]], float]]:
        """Return how often each weight is applied by calls that go with the same branches.

        And along the same channels beside: how often for each of those.
        """
        counts: dict[str, dict[tuple[int, tuple[int, ...]], float]] = {}
        for call, use in self._applications():
            applications = counts.setdefault(use.weight, {})
            if call in self.rows:
                continue
            passed, per_channel = self._beside(call, use.n_places)
            key = self._presence_of_call(call), passed
            applications[key] = applications.get(key, 0.0) + per_channel
        return counts

    def _applications(self) -> list[tuple[str, Application]]:
        """Return each call with each weight that it applies."""
        return [(call, use) for call, applied in self.calls.items() for use in applied]

    def _beside(self, call: str, n: int) -> tuple[tuple[int, ...], float]:
        """Return the place of the channels beside that a call is applied to, and how often."""
        slot = self.passing.get(call)
        return ((), float(n)) if slot is None else ((slot,), n / self.full[slot])

    def applied(self, layer: str) -> tuple[int, float]:
        """Return the same of a layer that is called once; the place is that of 1 for most."""
        weight = f"{layer}.weight"
        calls = [(n, use.n_places) for n, use in self._applications() if use.weight == weight]
        passed, per_channel = self._beside(*calls[0]) if calls else ((), 0.0)
        return next(iter(passed), self._constant(1.0)), per_channel

    def _add_entry(self, slots: list[int], weights: tuple[float, ...], presence: int) -> int:
        self.entry_rows.append(slots)
        self.entry_weights.append(weights)
        self.entry_presences.append(presence)
        return len(self.entry_rows) - 1

    def _pad_costs(self, rows: Sequence[tuple[float, ...]]) -> Tensor:
        """Return rows of parameters, multiply-adds and time: 0 for what was left out."""
        filled = [[*row, *[0.0] * (self.n_columns - len(row))] for row in rows]
        return as_numbers(filled).view(-1, self.n_columns)

    def _pad(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return rows of equal length, filled up with the place of the constant 1."""
        length = max((len(row) for row in rows), default=0)
        one = len(self.full)
        filled = [[*row, *[one] * (length - len(row))] for row in rows]
        return torch.tensor(filled, dtype=torch.long, device="cpu").view(len(rows), length)

    def _find_folds(self) -> None:
        """Write which gates make a constant that a layer without a bias must take up."""
        folds: dict[str, set[int]] = {}
        for layer, channels, constant in find_constant_inputs(self.model, self.channel_graph):
            gates = self.gate_of[self.channel_graph.parents[:, channels[constant]]]
            open_gates = set(gates[gates < self.n_gates].tolist())
            if open_gates:
                folds.setdefault(layer, set()).update(open_gates)
        modules = {name: find_module(self.model, name) for name in folds}
        layers = [name for name, m in modules.items() if getattr(m, "bias", None) is None]
        self.fold_layers = {name: number for number, name in enumerate(layers)}
        self.n_folds = len(layers)
        gates = [as_indices(sorted(folds[name])) for name in layers]
        self.fold_columns = [(column, torch.ones_like(column)) for column in gates]
        weights = [f"{name}.weight" for name in layers]
        self._tables |= {
            "fold_full": as_numbers([len(column) for column in gates]),
            "fold_out": as_indices([self.slot(weight, 0) for weight in weights]),
            "fold_presence": as_indices([self.presence_of_tensor(weight) for weight in weights]),
        }

    def _find_computed(self) -> None:
        """Write the layers whose weights are computed: touched, they become plain."""
        before: list[float] = []
        touch: list[tuple[int, int]] = []
        folds: list[tuple[int, int]] = []
        rows: list[list[int]] = []
        rests: list[float] = []
        owners: list[int] = []
        presences: list[int] = []
        for name, module in self.model.named_modules():
            if not computes_weights(module):
                continue
            owner = self.computed_owner[name] = len(before)
            parts = computed_names(module)
            before.append(float(sum(p.numel() for p in weight_sources(module).values())))
            inside = f"{name}." if name else ""
            presences.append(self.presence_of_tensor(f"{inside}{parts[0]}"))
            keys = [k for k in self.dim_of if k[0].rpartition(".")[0] == name]
            touch += [(self.dim_of[key], owner) for key in keys]
            folds += [(p, owner) for layer, p in self.fold_layers.items() if layer == name]
            for key in parts:
                slots, rest = self._tied_slots(f"{inside}{key}")
                rows.append(slots)
                rests.append(rest)
                owners.append(owner)
        touched, folded = (as_indices(pairs).view(-1, 2) for pairs in (touch, folds))
        self._tables |= {
            "touch_dim": touched[:, 0],
            "touch_owner": touched[:, 1],
            "fold_touch": folded[:, 0],
            "fold_owner": folded[:, 1],
            "computed_presence": as_indices(presences),
            "computed_before": as_numbers(before),
            "computed_dims": self._pad(rows),
            "computed_rest": as_numbers(rests),
            "computed_owner": as_indices(owners),
        }

    def _find_times(self, calls: Mapping[str, tuple[float, float, float]]) -> None:
        """Write how long each call takes, by what it reads, writes and multiplies.

        What merging saves is priced like the mean multiply-add of a layer.
        """
        followed = self.channel_graph.followed[0]
        applied = self.calls
        by_presence: dict[int, Tensor] = {}
        for node in self.channel_graph.graphs[0].nodes:
            call_time, number, product = calls.get(node.name, (0.0, 0.0, 0.0))
            presence = self._presence_of_call(node.name)
            times = torch.zeros(self.n_states, dtype=torch.float64, device="cpu")
            values = [followed.values.get(n.name) for n in (*node.all_input_nodes, node)]
            for labels in tree_leaves(values) if number else ():
                if isinstance(labels, Labels):
                    ids = without_repeats(labels.ids)
                    share = number * labels.ids.numel() / max(1, len(ids))
                    gates = self.gate_of[self.channel_graph.root[ids]]
                    times += share * gates.bincount(minlength=len(times))
            by_presence[presence] = by_presence.get(presence, 0.0) + times
            n_others = followed.other_multiply_adds.get(node.name, 0)
            for call, n, slot in self.products:
                if call == node.name:
                    n_others -= n
                    self._add_entry([slot], (0.0, 0.0, product * n / self.full[slot]), presence)
            self._add_entry([], (0.0, 0.0, call_time + product * n_others), presence)
            for use in applied.get(node.name, ()):
                slots, rest = self._tied_slots(use.weight, node.name)
                passed, per_channel = self._beside(node.name, use.n_places)
                times_of = (0.0, 0.0, product * rest * per_channel)
                self._add_entry([*slots, *passed], times_of, presence)
        rates = [calls[name][2] for name in applied if name in calls]
        places = [times.nonzero().flatten() for times in by_presence.values()]
        columns = zip(places, by_presence.values(), strict=True)
        self.time_columns = [(cells, times[cells]) for cells, times in columns]
        self._tables |= {
            "gate_times_presence": as_indices([*by_presence]),
            "merge_time": as_numbers(sum(rates) / max(1, len(rates))),
        }


def as_numbers(values: Any) -> Tensor:
    """Return numbers that costs are computed from, in double precision."""
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def as_indices(values: Any) -> Tensor:
    """Return places in other tables."""
    return torch.tensor(values, dtype=torch.long, device="cpu")
