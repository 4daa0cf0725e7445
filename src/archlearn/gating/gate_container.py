"""`GateContainer`: the submodule `archlearn_gates` that holds all gates of a model."""

import functools
from collections.abc import Collection, Iterable, Mapping
from itertools import compress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlearn.analysis.channel_graph import ChannelGraph
from archlearn.analysis.cost_model import CostTable
from archlearn.errors import InputError
from archlearn.gating.selection import LearnableSites
from archlearn.gating.weight_gates import WeightGates
from archlearn.nn.functional import THRESHOLD, binarised_gates
from archlearn.nn.open_norms import plain_form_

CONTAINER = "archlearn_gates"
LEFT_OUT, STANDING = "branches left out", "gates standing still"
"""Of the buffers in `kept`; no layer has such names. Numbers, for averaged copies subtract them."""
BRANCH_START = 0.55
LINEAR = 2.0
"""The slope of a layer that is linear: above 1, so that copies that average buffers have 1 soon."""


class GateContainer(nn.Module):
    """The gates of a model: one vector a group of channels, one number a depth site or branch.

    Attributes:
        learnable: What is learnt, and why the rest is not.
        was_bound: Whether the model had a generated `forward` already (a compact model).
        n_width: The number of width gates.
        n_depth: The number of depth gates.
        width: The width gates, a parameter for each group.
        depth: The depth gates, a parameter for each site.
        branch: The branch gates, a parameter for each branch.
        budget: What the compact model may cost, where a `GateOptimizer` was told.
        n_loads: How often a `state_dict` was loaded.
        n_learners: How many `GateOptimizer`s have been made for the gates.
        kept: Where the gates that are left stood at first, once some have been cut out, which
            branches have been left out, and which gates `forward` passes over.
        places: The same, where `to_empty` does not lose it.
        standing: Where those gates stand in `gates`.
        original_costs: What the network cost with all its gates, once some have been cut out.
        original_sizes: How many gates each group had at first.
        original_widths: How wide each layer was at first.
        order: Of groups whose heads may each keep other channels, buffers with a row a head: the
            number of the channel that each gate stands for there. At first the i-th gate stands for
            the i-th channel of every head. Numbers stay what they are when channels are cut out.
        probe: Parameters of the same shapes that add nothing; their gradients are those that each
            head's own channel would give its gate.
        on_weights: How the gates act on weights; None where they act on activations.
        hooks: Those of the optimisers that gates on weights act by.
    """

    rows: Tensor
    pairs: Tensor
    group_of_gate: Tensor
    slope: Tensor
    standing: frozenset[int] = frozenset()
    on_weights: WeightGates | None = None
    hooks: Any = None

    def __init__(
        self,
        learnable: LearnableSites,
        width_start: float,
        depth_start: float,
        *,
        was_bound: bool = False,
    ) -> None:
        super().__init__()
        self.learnable = learnable
        self.was_bound = was_bound
        self.width = nn.Module()
        self.depth = nn.Module()
        self.branch = nn.Module()
        groups = learnable.channel_graph.groups
        self._width_keys = [gate_key(group.name) for group in groups]
        self._depth_keys = [gate_key(site) for site in learnable.mergeable]
        self._branch_keys = [gate_key(name) for name in learnable.branches]
        for key, group in zip(self._width_keys, groups, strict=True):
            n = len(group.channels)
            start = torch.full((n,), width_start, dtype=torch.float64, device="cpu")
            self.width.register_parameter(key, nn.Parameter(start))
        for key in self._depth_keys:
            start = torch.tensor(depth_start, dtype=torch.float64, device="cpu")
            self.depth.register_parameter(key, nn.Parameter(start))
        for key in self._branch_keys:
            start = torch.tensor(BRANCH_START, dtype=torch.float64, device="cpu")
            self.branch.register_parameter(key, nn.Parameter(start))
        self.order, self.probe = nn.Module(), nn.Module()
        self._with_heads = [index for index, group in enumerate(groups) if group.heads is not None]
        for index in self._with_heads:
            shape = len(groups[index].heads), len(groups[index].channels)  # pyright: ignore
            numbers = torch.arange(shape[1], device="cpu").repeat(shape[0], 1)
            self.order.register_buffer(self._width_keys[index], numbers)
            probe = nn.Parameter(torch.zeros(shape, dtype=torch.float64, device="cpu"))
            self.probe.register_parameter(self._width_keys[index], probe)
        sizes = torch.tensor(
            [len(group.channels) for group in groups], dtype=torch.long, device="cpu"
        )
        self.n_width, self.n_depth = int(sizes.sum()), len(learnable.mergeable)
        if self.n_depth:
            self.register_buffer(
                "slope", torch.full((self.n_depth,), LINEAR, dtype=torch.float64, device="cpu")
            )
        self._kept: dict[str, Tensor] = {}
        self.budget: dict[str, float] | None = None
        self.n_loads = self.n_learners = 0
        self.kept = nn.Module()
        self.places: dict[str, Tensor] = {}
        self.original_costs: dict[str, float] | None = None
        self.original_sizes = {group.name: len(group.channels) for group in groups}
        self.original_widths = {layer: len(channels) for layer, channels in learnable.rows}
        self._register_constant("rows", _rows(sizes.tolist()))
        with_pairs = [index for index, group in enumerate(groups) if group.least > 1]
        self._register_constant("pairs", self.rows[with_pairs])
        self._register_prices(learnable, sizes)

    @property
    def channel_graph(self) -> ChannelGraph:
        """All that is known of the model's channels."""
        return self.learnable.channel_graph

    def _register_prices(self, learnable: LearnableSites, sizes: Tensor) -> None:
        """Keep what goes with each gate. All gates of depth and branches count as one more group.

        "prices" has two rows: the neurons of each width gate, and which way its cost pulls a gate
        of depth (1) or of a branch (-1). "freed_neurons" is by group.
        """
        n_groups, n_depth, n_branches = (
            len(sizes),
            len(learnable.mergeable),
            len(learnable.branches),
        )
        counts = torch.cat([sizes, torch.tensor([n_depth + n_branches], device="cpu")])
        index = torch.repeat_interleave(torch.arange(n_groups + 1, device="cpu"), counts)
        self._register_constant("group_of_gate", index)
        neurons = F.pad(learnable.neurons(), (0, 1))[index]
        pull = torch.zeros(self.n_width + n_depth + n_branches, device="cpu")
        pull[self.n_width : self.n_width + n_depth] = 1.0
        pull[self.n_width + n_depth :] = -1.0
        self._register_numbers("prices", torch.stack([neurons, pull]))
        self._register_numbers("freed_neurons", F.pad(learnable.freed_neurons(), (0, 1)))

    def _register_numbers(self, name: str, numbers: Tensor) -> None:
        """Keep numbers that move with the model, but stay what they are in half precision.

        Millions of multiply-adds are infinite there. Integers are not cast with a model, so the
        bits of float32 numbers are kept as such.
        """
        self._register_constant(name, numbers.float().view(torch.int32))

    def _register_constant(self, name: str, numbers: Tensor) -> None:
        """Keep integers that move with the model and are in no `state_dict`."""
        self.register_buffer(name, numbers, persistent=False)
        self._kept[name] = numbers.clone()

    def restore_constants_(self) -> None:
        """Put back what `to_empty` may have lost and no `state_dict` holds."""
        self.n_loads += 1
        for name, numbers in self._kept.items():
            buffer: Tensor = getattr(self, name)
            if not buffer.is_meta:
                buffer.copy_(numbers)
        for name, positions in self.places.items():
            if not self.kept.get_buffer(name).is_meta:
                self.kept.get_buffer(name).copy_(positions)

    def numbers(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return numbers that were kept: "prices", "freed_neurons", or a part of a cost table."""
        bits: Tensor = getattr(self, name)
        return bits.view(torch.float32).to(dtype)

    def forward(self) -> tuple[Tensor, ...]:
        """Return the gates as they act, in the order of `gates`."""
        return self._slope(binarised_gates(self.gates(), self.rows, self.pairs))

    def _slope(self, acting: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return acting gates with those of depth as open as the slope of their layers."""
        if not self.n_depth:
            return acting
        start, end = len(self._width_keys), len(self._width_keys) + self.n_depth
        depths = torch.stack(acting[start:end]) * self.slope.clamp(max=1.0)
        return (*acting[:start], *depths.unbind(), *acting[end:])

    def gates(self) -> list[Tensor]:
        """Return the width gates by group, then the depth gates by site, then the branch gates.

        In a replica that DataParallel makes, they are attributes and no longer parameters.
        """
        width, depth, branch = self.width, self.depth, self.branch
        every = [getattr(width, key) for key in self._width_keys]
        every += [getattr(depth, key) for key in self._depth_keys]
        return every + [getattr(branch, key) for key in self._branch_keys]

    def probes(self) -> dict[str, nn.Parameter]:
        """Return the probes by the name of their group."""
        groups = self.channel_graph.groups
        names = [groups[index].name for index in self._with_heads]
        return {name: getattr(self.probe, gate_key(name)) for name in names}

    def orders(self) -> dict[str, Tensor]:
        """Return which channel of each head each gate stands for, by the name of the group."""
        return {name: getattr(self.order, gate_key(name)) for name in self.probes()}

    def find_dropped(
        self, gone: Iterable[Tensor], orders: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Return whether each channel goes, if these gates of each group do."""
        orders = self.orders() if orders is None else orders
        ranks = {name: order.argsort(dim=1, stable=True) for name, order in orders.items()}
        return self.channel_graph.find_dropped(gone, ranks)

    def names_of_heads(self, index: int) -> tuple[str, str] | None:
        """Return the names of a group's order and probe, as the model finds them; None without."""
        if index not in self._with_heads:
            return None
        key = self._width_keys[index]
        return f"{CONTAINER}.order.{key}", f"{CONTAINER}.probe.{key}"

    def place_of_site(self, name: str) -> int:
        """Return where the depth gate of a site stands in `gates`."""
        return len(self.channel_graph.groups) + list(self.learnable.mergeable).index(name)

    def place_of_branch(self, name: str) -> int:
        """Return where the gate of a branch stands in `gates`."""
        return len(self._width_keys) + self.n_depth + list(self.learnable.branches).index(name)

    def width_gates(self) -> dict[str, nn.Parameter]:
        """Return the width gates by the name of their group."""
        groups = self.channel_graph.groups
        return {group.name: getattr(self.width, gate_key(group.name)) for group in groups}

    def depth_gates(self) -> dict[str, nn.Parameter]:
        """Return the depth gates by the name of their site."""
        return {site: getattr(self.depth, gate_key(site)) for site in self.learnable.mergeable}

    def branch_gates(self) -> dict[str, nn.Parameter]:
        """Return the branch gates by the name of their branch."""
        return {name: getattr(self.branch, gate_key(name)) for name in self.learnable.branches}

    @property
    def n_shrinks(self) -> int:
        """How often gates have been cut out; waits for the device."""
        count = self._buffers.get("shrinks")
        return 0 if count is None else int(count)

    def original_places(self) -> dict[str, Tensor]:
        """Return where the gates of each group stood before any was cut out."""
        gates = self.width_gates()
        whole = {name: torch.arange(len(gate), device=gate.device) for name, gate in gates.items()}
        return {name: getattr(self.kept, gate_key(name), kept) for name, kept in whole.items()}

    def whole_width_gates(self) -> dict[str, Tensor]:
        """Return the width gates by group as if none had been cut out: those are 0."""
        widths: dict[str, Tensor] = {}
        places = self.original_places()
        for name, gate in self.width_gates().items():
            whole = gate.detach().new_zeros(self.original_sizes[name])
            widths[name] = whole.index_copy_(0, places[name], gate.detach())
        return widths

    def left_out(self) -> tuple[str, ...]:
        """Return the branches that `shrink_` has left out; waits for the device."""
        flags: Any = getattr(self.kept, LEFT_OUT, None)
        return () if flags is None else tuple(compress(self.learnable.branches, flags.tolist()))

    def leave_out_(self, names: Collection[str]) -> None:
        """Take down which branches the `forward` to be bound leaves out, for good."""
        if names:
            flags = torch.tensor(
                [int(name in names) for name in self.learnable.branches], device="cpu"
            )
            self._keep_place(LEFT_OUT, flags)

    def stand_still_(self, flags: Tensor) -> None:
        """Take down which gates the `forward` to be bound passes over; none gets gradients."""
        self.requires_grad_(False)
        self._keep_place(STANDING, flags.clone())
        self.standing = frozenset(torch.nonzero(flags).flatten().tolist())

    def check_standing(self) -> None:
        """Raise if a gate has changed that `forward` passes over."""
        n_groups = len(self._width_keys)
        names = [*self.width_gates(), *self.depth_gates(), *self.branch_gates()]
        for index, (name, gate) in enumerate(zip(names, self.gates(), strict=True)):
            is_depth = n_groups <= index < n_groups + self.n_depth
            is_changed = (gate.detach() < THRESHOLD).any() != is_depth
            if index in self.standing and bool(is_changed):
                raise InputError(
                    f"gate {name!r} was moved behind the last cut, from where on gates stand still "
                    "and do not act any more; move it back or, to learn on, make another "
                    "GateOptimizer, which lets all gates act again"
                )

    def note_cut_(self, places: dict[str, Tensor], n_shrinks: Tensor) -> None:
        """Take down which gates of each group, by their first places, are left.

        A `state_dict` holds it, so that another model can be cut in the same way.
        """
        for name, positions in places.items():
            self._keep_place(gate_key(name), positions)
        self.register_buffer("shrinks", n_shrinks)

    def _keep_place(self, key: str, positions: Tensor) -> None:
        self.kept.register_buffer(key, positions)
        self.places[key] = positions.cpu().clone()

    def set_cost_table(self, table: CostTable) -> None:
        """Keep a cost table, so that it moves with the model."""
        for name in CostTable.__slots__:
            self._register_numbers(f"cost_{name}", getattr(table, name))

    def cost_table(self, dtype: torch.dtype = torch.float32) -> CostTable:
        """Return the cost table, where the model now is."""
        return CostTable(*(self.numbers(f"cost_{name}", dtype) for name in CostTable.__slots__))

    def find(self, channels: Tensor) -> tuple[list[int], Tensor | None]:
        """Return the places of the groups that pass a site, and where its gates stand among theirs.

        The place is None where the gates are just those of the one group; place 0 stands for a
        channel that is not learnt, or whose gate stands still. Two or three rows of places where
        channels go with any of so many.
        """
        channel_graph = self.channel_graph
        numbers = channel_graph.groups_among(channels)
        groups = [number for number in numbers if number >= 0 and number not in self.standing]
        members = [channel_graph.groups[number] for number in groups]
        if len(groups) == 1 and torch.equal(members[0].channels, channels):
            return groups, None
        index = torch.zeros(len(channel_graph.root), dtype=torch.long, device="cpu")
        rows, columns, third = channel_graph.parents[:, channels]
        is_pair, is_third = rows != columns, rows != third
        second, start = torch.zeros_like(channels), 1
        for group in members:
            n = len(group.channels)
            if group.heads is None:
                index[group.channels] = torch.arange(start, start + n, device="cpu")
            else:
                position = channel_graph.places_in_heads(group, channels)
                second = torch.where(position >= 0, start + position, second)
                n *= len(group.heads)
            start += n
        if not bool(is_pair.any()):
            return groups, index[channels]
        second = torch.where(is_pair & (second == 0), index[columns], second)
        parts = [index[rows], second, torch.where(is_third, index[third], 0)]
        return groups, torch.stack(parts if bool(is_third.any()) else parts[:2])

    def keep_index(self, index: Tensor) -> str:
        """Keep where a site's gates stand; return the name that the model finds it under."""
        name = f"index_{sum(1 for buffer in self._buffers if buffer.startswith('index_'))}"
        self._register_constant(name, index)
        return f"{CONTAINER}.{name}"

    def extra_repr(self) -> str:
        """Show how many gates there are."""
        counts = {"width": self.n_width, "depth": self.n_depth, "branch": len(self._branch_keys)}
        return ", ".join(f"{n} {kind} gates" for kind, n in counts.items() if n)


def _rows(sizes: list[int]) -> Tensor:
    """Return the places of each group's gates, a row a group, filled up with the first place."""
    rows = torch.zeros(len(sizes), max(sizes, default=0), dtype=torch.long, device="cpu")
    start = 0
    for row, size in zip(rows, sizes, strict=True):
        row.fill_(start)
        row[:size] += torch.arange(size, device="cpu")
        start += size
    return rows


@functools.cache
def gate_key(name: str) -> str:
    """Return a group's or site's name as a parameter may have it."""
    key = name.replace(".", ":")
    return f"{key}_" if hasattr(nn.Module, key) or key in vars(nn.Module()) else key


def find_container(model: nn.Module) -> GateContainer | None:
    """Return the model's gate container, or None if add_gates has not been called on it."""
    return next(filter(None, map(own_container, model.modules())), None)


def own_container(module: nn.Module) -> GateContainer | None:
    """Return the gates that a module itself has; those on weights are no submodule."""
    parts: Any = module._modules  # of a scripted module it has no `get`
    return parts[CONTAINER] if CONTAINER in parts else vars(module).get(CONTAINER)


def list_gated(model: nn.Module) -> str:
    """Return the names of the parts of a model that `add_gates` was called on."""
    parts = [name for name, module in model.named_modules() if own_container(module) is not None]
    return " and ".join(map(repr, parts))


def add_container_(model: nn.Module, container: GateContainer) -> None:
    """Give a model its gates, in the mode that it is in."""
    model.add_module(CONTAINER, container.train(model.training))
    model.register_load_state_dict_pre_hook(prepare_loading)


def attach_container_(model: nn.Module, container: GateContainer) -> None:
    """Give a model gates that act on its weights: no parameter, buffer or submodule of it."""
    vars(model)[CONTAINER] = container
    model.register_load_state_dict_post_hook(read_norms)


def read_norms(model: nn.Module, _: object) -> None:
    """Let norms of a model with gates on weights follow the weights that were loaded."""
    container = own_container(model)
    if container is not None and container.on_weights is not None:
        container.on_weights.read_norms_(model)


def remove_container_(model: nn.Module) -> None:
    """Take the gates of a model away, and all that was added with them."""
    if hasattr(model, CONTAINER):
        delattr(model, CONTAINER)
    hooks: dict[int, Any] = model._load_state_dict_pre_hooks
    for key in [k for k, hook in hooks.items() if hook.hook is prepare_loading]:
        del hooks[key]
    behind: dict[int, Any] = model._load_state_dict_post_hooks
    for key in [k for k, hook in behind.items() if hook is read_norms]:
        del behind[key]
    for module in model.modules():
        plain_form_(module)


def prepare_loading(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Refuse a `state_dict` of a model that was cut otherwise, before anything is loaded.

    What it does not hold is put back: the model may come from the meta device.
    """
    container: Any = module._modules.get(CONTAINER)
    front = f"{prefix}{CONTAINER}."
    saved = {key.removeprefix(front): state[key] for key in state if key.startswith(front)}
    if saved:
        _check_places(container, saved)
        if container.n_depth:  # older ones have no slope
            state.setdefault(
                f"{front}slope", torch.full((container.n_depth,), LINEAR, device="cpu")
            )
        for name, probe in container.probes().items():  # older ones have no orders
            first = torch.arange(probe.shape[1], device="cpu").repeat(len(probe), 1)
            state.setdefault(f"{front}order.{gate_key(name)}", first)
            state.setdefault(
                f"{front}probe.{gate_key(name)}", torch.zeros(probe.shape, device="cpu")
            )
    container.restore_constants_()


def _check_places(container: GateContainer, saved: dict[str, Any]) -> None:
    """Refuse the `state_dict` of a model that other channels have been cut out of."""
    current = {f"kept.{key}": kept for key, kept in container.places.items()}
    places = {key: kept for key, kept in saved.items() if key.startswith("kept.")}
    if current.keys() != places.keys() or any(
        current[key].shape != kept.shape or not torch.equal(current[key], kept.cpu().long())
        for key, kept in places.items()
    ):
        raise InputError(
            "the state_dict is of a model that other channels have been cut out of than of this "
            "one; on the model as add_gates makes it, call archlearn.shrink_(model, optimizer, "
            "gates, like=state_dict), with all the optimisers there are; then load it, and their "
            "states"
        )
