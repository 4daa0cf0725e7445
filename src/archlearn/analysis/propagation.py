"""Propagate channel labels through a graph, call by call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from archlearn.analysis.channel_labels import (
    FIXED,
    UNKNOWN,
    Labels,
    SiteChannels,
    along,
    constant,
    core,
    fixed_like,
    line_along,
    pointwise,
    spread,
    varying,
    where_varying,
    without_repeats,
)
from archlearn.analysis.constraints import ChannelConstraints, Reason
from archlearn.analysis.linear_ops import read_linear_op
from archlearn.analysis.propagation_rules import is_selection, rule_for
from archlearn.analysis.propagation_rules.elementwise import (
    COMBINING,
    activate,
    keep,
    like,
    product,
    quotient,
    unary,
)
from archlearn.analysis.propagation_rules.linear import computed_weight, linear
from archlearn.analysis.propagation_rules.normalization import (
    across_channels,
    may_need_batch,
    unit_length,
    within_channel,
)
from archlearn.analysis.propagation_rules.pooling import (
    along_dim,
    mean,
    pool,
    reduce,
    resize,
    variance,
)
from archlearn.analysis.propagation_rules.products import attention, einsum, matmul
from archlearn.analysis.propagation_rules.reshape import (
    as_selection,
    attribute,
    call_on_places,
    embedding,
    expand_as,
    gather,
    index_select,
    move,
    number,
    pad,
    pick,
    scatter,
    view_as_complex,
    view_as_real,
)
from archlearn.analysis.rule_api import (
    OUTPUT,
    OpCall,
    Rule,
    describe_call,
    fixed_out,
    hooked_reason,
    opaque,
)
from archlearn.errors import InputError, first_line
from archlearn.module_utils import find_module
from archlearn.op_table import spec_of, works_in_place
from archlearn.tracing.example_inputs import ExampleInputs, values_for
from archlearn.tracing.fx_utils import find_parameter, leaves_of, map_leaves, thaw
from archlearn.tracing.shape_guards import describes
from archlearn.tracing.trace_context import frozen
from archlearn.tracing.transformer_blocks import count_flops

_INDEXING = (index_select, gather, scatter)  # an index must be the one that it would be
_PRODUCTS = (matmul, einsum, attention)
_ONE_BY_ONE = (keep, like, unary, product, quotient)  # of a tensor and a number
_LIMITS = (torch.finfo, torch.iinfo)  # others stand in their place while a thread traces
_OF_PAIRS = (view_as_complex, view_as_real)
_JOINS = (torch.cat, torch.concat, torch.stack)


class _Interpreter(fx.Interpreter):
    """Runs a graph with the modules of a network."""

    def __init__(self, net: nn.Module, graph: fx.Graph) -> None:
        super().__init__(net, graph=graph)
        self.net = net
        self.extra_traceback = False  # torch.fx would write pages behind our own errors

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return an argument; those that go by any other name are none."""
        return {} if str(target).startswith("**") else super().placeholder(target, args, kwargs)

    def fetch_attr(self, target: str) -> Any:
        """Return an attribute, read once: spectral_norm in training moves its buffers then."""
        return attrgetter(target)(self.module)

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call, with lists that it may change."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        return thaw(args), thaw(kwargs)


def run_graph(net: nn.Module, graph: fx.Graph, inputs: ExampleInputs) -> Any:
    """Return what a graph returns."""
    return _Interpreter(net, graph).run(*values_for(graph, inputs))


def find_rules(net: nn.Module, graph: fx.Graph) -> dict[fx.Node, Rule]:
    """Return how labels pass each call."""
    return {node: rule_for(node, net) for node in graph.nodes if "call" in node.op}


def is_all_known(net: nn.Module, graph: fx.Graph) -> bool:
    """Return whether no call of a graph is unknown."""
    rules = find_rules(net, graph)
    return not any(_is_unknown(node, net, rule) for node, rule in rules.items())


def _is_unknown(n: fx.Node, net: nn.Module, rule: Rule | None) -> bool:
    return rule is opaque or (rule is linear and read_linear_op(n, net) is None)


_VIEWING = (move, pick, attribute, expand_as, keep)


def is_in_place(node: fx.Node, net: nn.Module) -> bool:
    """Return whether a call changes its first argument."""
    if not node.args:
        return False
    if node.op == "call_module":
        return bool(getattr(find_module(net, str(node.target)), "inplace", False))
    return works_in_place(node.target) or node.kwargs.get("inplace") is True


def find_memory(
    node: fx.Node,
    is_there: Callable[[fx.Node], bool],
    shared: Callable[[fx.Node], Sequence[fx.Node]],
) -> set[fx.Node]:
    """Return the calls whose results may lie in the same memory as that of a node.

    A call `is_there` that has been made, and returned tensors. `shared` is what it reads whose
    memory its result may have.
    """
    memory: set[fx.Node] = set()
    waiting = [node]
    while waiting:
        here = waiting.pop()
        if here not in memory and is_there(here):
            memory.add(here)
            waiting += [user for user in here.users if here in shared(user)]
            waiting += shared(here)
    return memory


def may_be_view(node: fx.Node, net: nn.Module, rules: Mapping[fx.Node, Rule]) -> bool:
    """Return whether the result of a call may lie in the memory of its input."""
    spec = spec_of(node, net)
    return rules.get(node) in _VIEWING and not (spec is not None and spec.copies)


@dataclass(frozen=True, slots=True)
class PropagationResult:
    """What became of labels in one graph.

    Attributes:
        values: What each node returned: labels for tensors, other values as they were. Limits of
            dtypes are left out, for they cannot be pickled.
        dtypes: The dtype of each node that returned a tensor.
        sites: The channels of each site, by the name of its node.
        reads: The channels that calls are to read through gates, by the name of their node.
        other_multiply_adds: Multiply-adds of calls that are not linear ops, by their names.
        products: The same of products in parts, with the channels that each is proportional to.
        passing: The channels beside that layers are applied to one by one, by the name of the call.
        parts: The atoms of tensors that are a part of another (a slice, a chunk).
        hidden: Why the channels in front of a call are not known, by the name of its node.
    """

    values: dict[str, Any] = field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    sites: dict[str, SiteChannels] = field(default_factory=dict)
    reads: dict[str, SiteChannels] = field(default_factory=dict)
    other_multiply_adds: dict[str, int] = field(default_factory=dict)
    products: dict[str, list[tuple[int, Tensor]]] = field(default_factory=dict)
    passing: dict[str, Tensor] = field(default_factory=dict)
    parts: list[Tensor] = field(default_factory=list)
    hidden: dict[str, Reason] = field(default_factory=dict)


def _find_computed_weights(
    graph: fx.Graph, rules: Mapping[fx.Node, Rule], net: nn.Module
) -> set[fx.Node]:
    """Return all that weights are computed from in `forward` itself, and that nothing else reads.

    Their layers keep their channels; a label for each of a million elements would serve nobody.
    """
    of_weights: set[fx.Node] = set()
    for node in graph.nodes:
        inputs = node.all_input_nodes
        if node.op == "get_attr" or (
            inputs and "call" in node.op and of_weights.issuperset(inputs)
        ):
            of_weights.add(node)
    computed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        readers = [u for u in node.users if u not in computed]
        is_weight = all(rules.get(u) is linear and read_linear_op(u, net) is None for u in readers)
        if node in of_weights and node.users and is_weight:
            computed.add(node)
    return computed


class _Follower(_Interpreter):
    """Runs a graph on real inputs and applies the rule of each call to labels.

    Attributes:
        may_guess: Whether only shapes and types of results matter: no call is unknown. Norms that
            might not take an example of one row are then left out.
    """

    def __init__(
        self,
        net: nn.Module,
        graph: fx.Graph,
        constraints: ChannelConstraints,
        gated: frozenset[str],
        *,
        gate_reads: bool,
    ) -> None:
        super().__init__(net, graph)
        self.constraints, self.gated, self.gate_reads = constraints, gated, gate_reads
        self.rules = find_rules(net, graph)
        self.may_guess = not any(
            _is_unknown(node, net, rule) or rule in _INDEXING for node, rule in self.rules.items()
        )
        self.result = PropagationResult()
        self.values = self.result.values
        self.runs: dict[str, tuple[Labels, Tensor]] = {}
        self.split: set[str] = set()
        self.grids: set[str] = set()  # calls whose result has heads and channels within
        self.order = {node: position for position, node in enumerate(graph.nodes)}
        self.computed = _find_computed_weights(graph, self.rules, net)

    def run_node(self, n: fx.Node) -> Any:
        out, n_blocks = self._run_call(n), len(self.constraints.blocks)
        labels = self._follow(n, out)
        self.values[n.name] = None if isinstance(out, _LIMITS) else labels
        if isinstance(out, Tensor):
            self.result.dtypes[n.name] = out.dtype
        self._note_hidden(n, n_blocks)
        return out

    def _run_call(self, n: fx.Node) -> Any:
        """Return what a call gives on the example inputs, or something like it."""
        try:
            rule = self.rules.get(n)
            if rule in _PRODUCTS or _is_unknown(n, self.net, rule):
                with count_flops() as counter:
                    out = super().run_node(n)
                if counter.get_total_flops():
                    self.result.other_multiply_adds[n.name] = counter.get_total_flops() // 2
                return out
            if self.may_guess and n.op == "call_module" and rule is within_channel:
                (x, *_), _ = self.fetch_args_kwargs_from_env(n)
                if may_need_batch(find_module(self.net, str(n.target)), x):
                    return x
            return super().run_node(n)
        except Exception as error:
            where = f"at {n.target!r}" if n.op == "call_module" else f"at {n.name}"
            how = "on the device and in the dtype of the model"
            if "more than 1 value per channel" in str(error):
                how = "also in training mode: two rows or more, for its norms need a batch then"
            raise InputError(
                f"the model does not run on the example inputs: {where}: {first_line(error)}. "
                f"Give inputs that model(...) takes, {how}"
            ) from error

    def _note_hidden(self, n: fx.Node, n_blocks: int) -> None:
        """A call that keeps what it reads hides channels from all calls up to the next layer."""
        if self.rules.get(n) is linear:
            if read_linear_op(n, self.net) is None:
                self.result.hidden[n.name] = computed_weight(n)
            return
        hidden = [
            self.result.hidden[m.name] for m in n.all_input_nodes if m.name in self.result.hidden
        ]
        if hidden:
            text = f"tied by {describe_call(n)} to channels that are not known: {hidden[0].text}"
            for labels in (self.values.get(m.name) for m in n.all_input_nodes):
                if isinstance(labels, Labels):
                    self.constraints.hint(labels.ids, Reason(text, hidden[0].fix))
        reason = hooked_reason(n, self.net) or next(iter(hidden), None)
        if reason is None and len(self.constraints.blocks) > n_blocks:
            reason = self.constraints.blocks[-1].reason
        if reason is not None:
            self.result.hidden[n.name] = reason

    def _follow(self, n: fx.Node, out: Any) -> Any:
        if n.op == "get_attr":
            return self._read_attribute(n, out) if isinstance(out, Tensor) else out
        if n.op == "placeholder" or n in self.computed:
            return fixed_out(out)
        step = self._step(n, out)
        if n.op == "output":
            for labels in step.labels:
                self.constraints.block(labels.ids, OUTPUT.text, OUTPUT.fix)
            return None
        if not step.labels:
            return fixed_out(out)
        self._guard_in_place(n, step)
        step = self._guard_scrambled(n, step)
        result = self.rules[n](step)
        if n.name in self.constraints.copies:
            result = self._copy_for_heads(step.x, result)
        for labels in step.repeated:
            self._note_copy(n, labels)
        if isinstance(result, Labels) and isinstance(out, Tensor) and result.shape != out.shape:
            result = opaque(step)
        for read in step.reads:
            self.result.reads[n.name] = read
        for passing in step.passing:
            self.result.passing[n.name] = passing
        total = self.result.other_multiply_adds.get(n.name, 0)
        shares = sum(w for w, _ in step.products)
        products = [(total * w // shares, ids) for w, ids in step.products if ids is not None]
        if total and products:
            self.result.products[n.name] = products
        if self.rules[n] in (move, pick, *_OF_PAIRS):
            self._note_split(n, step, result)
            n_before = sum(labels.ids.numel() for labels in step.labels)
            for labels in leaves_of(result):
                if isinstance(labels, Labels) and labels.ids.numel() < n_before:
                    self.result.parts.append(torch.unique(without_repeats(labels.ids)))
        if self.rules[n] is move:
            self._note_run(n, step, result)
        if isinstance(result, Labels) and len(varying(result.ids)) > 1:
            is_grid = any(node.name in self.grids for node in n.all_input_nodes)
            is_grid &= self.rules[n] in (*COMBINING, *_ONE_BY_ONE)
            is_grid |= self.constraints.lines_of(result.ids) is not None
            is_grid |= n.name in self.constraints.copies
            if self.rules[n] in _PRODUCTS or is_grid:
                self.grids.add(n.name)
                self.split.add(n.name)
            if self.rules[n] is unit_length and n.all_input_nodes[0].name in self.split:
                self.split.add(n.name)
            if n.target in _JOINS and n.name in self.split:
                self.constraints.boxes.append((f"{n.name}:out", result))
        if self.rules[n] is activate:
            self._note_site(n, result)
        return result

    def _read_attribute(self, n: fx.Node, out: Tensor) -> Labels | Tensor:
        if n.users and all(is_selection(user) and user.args[2] is n for user in n.users):
            return out
        if self._is_read_by_rows(n):
            ids = self.constraints.dim(str(n.target), 0)
            return along(ids, constant(UNKNOWN, [len(ids)]), out.shape, 0)
        rules = {self.rules.get(user, opaque) for user in n.users if not describes(user, n)}
        if n in self.computed or rules & {opaque, *_PRODUCTS}:
            self.constraints.opaque_uses.add(self.constraints.canonical(str(n.target)))
        if n in self.computed or rules <= {opaque, linear, embedding, *_PRODUCTS}:
            fixed = fixed_like(out)
            return Labels(fixed.ids, fixed.state, str(n.target))
        return self.constraints.raw(str(n.target))

    def _is_read_by_rows(self, n: fx.Node) -> bool:
        """Return whether linear ops alone read a parameter, and some of them a part of its rows."""
        views = [n]
        for node in views:  # it grows
            views += [user for user in node.users if find_parameter(user) is n]
        readers = {user for node in views for user in node.users}.difference(views)
        return len(views) > 1 and all(
            self.rules.get(reader) is linear
            and read_linear_op(reader, self.net) is not None
            and reader.all_input_nodes[0] not in views
            for reader in readers
        )

    def _step(self, n: fx.Node, out: Any) -> OpCall:
        labelled = map_arg((n.args, n.kwargs), lambda node: self.values[node.name])
        real_args, real_kwargs = self.fetch_args_kwargs_from_env(n)
        args, kwargs = labelled
        return OpCall(
            n, self.net, self.constraints, tuple(args), dict(kwargs), real_args, real_kwargs, out,
            gated=n.name in self.gated, may_gate_reads=self.gate_reads,
        )  # fmt: skip

    def _guard_in_place(self, n: fx.Node, step: OpCall) -> None:
        if not is_in_place(n, self.net) or not isinstance(n.args[0], fx.Node):
            return
        same = find_memory(
            n.args[0],
            lambda node: node.name in self.values,
            lambda node: node.all_input_nodes if may_be_view(node, self.net, self.rules) else (),
        )
        if any(self.order[user] > self.order[n] for node in same for user in node.users):
            seen = [self.values[node.name] for node in same]
            for labels in [*step.labels, *[item for item in seen if isinstance(item, Labels)]]:
                self.constraints.block(
                    labels.ids,
                    f"changed in place by {describe_call(n)} and read again afterwards",
                    "use the result of the call, or set inplace=False",
                )

    def _guard_scrambled(self, n: fx.Node, step: OpCall) -> OpCall:
        """Let only moves and products see channels that lie along several dimensions at once.

        Anything else must be able to lose them along one: those at one index are tied. Where a view
        has split them, that is the first of its dimensions: heads, and not their parts.
        """
        is_split = any(node.name in self.split for node in n.all_input_nodes)
        reads_one_dim = self.rules[n] in (opaque, linear, attribute, number)
        reads_one_dim |= self.rules[n] in (across_channels, pool, resize) and not is_split
        if reads_one_dim or (self.rules[n] is move and len(step.labels) == 1):
            return step
        if self.rules[n] is expand_as and len(varying(step.x.ids)) == 1:
            return step  # of the other it reads the shape alone
        with_dims = [(item, varying(item.ids)) for item in step.labels if len(spread(item.ids)) > 1]
        scrambled = [(labels, dims) for labels, dims in with_dims if len(dims) > 1]
        is_matrix = any(self.constraints.lines_of(item.ids) is not None for item, _ in scrambled)
        if self.rules[n] in _PRODUCTS and not is_matrix:
            return step
        if self.rules[n] is pad and is_matrix:
            return step  # what a move returns are the channels that it reads: these stay
        is_one = self.rules[n] in _ONE_BY_ONE or (self.rules[n] is activate and is_matrix)
        is_one &= len(step.labels) == 1 or self.rules[n] is keep  # `type_as` reads a type of one
        is_pointwise = is_one or self.rules[n] in COMBINING
        is_table = is_pointwise and not is_split and _are_tables(step.labels)
        if is_table or (is_split and (is_pointwise or n.target in _JOINS)):
            for count, (labels, _) in enumerate(scrambled):  # what goes is known at the end
                self.constraints.boxes.append((f"{n.name}:{count}" if count else n.name, labels))
            if is_split:
                self.split.add(n.name)
            return step
        knows_more = self.rules[n] in (pick, along_dim, unit_length, *_OF_PAIRS)
        knows_more |= self.rules[n] in (mean, reduce, variance) and (is_matrix or not is_split)
        if not scrambled or knows_more:
            return step  # so does whoever reads a part
        behind = None if is_split else _choose_dim(step.labels)
        tied: dict[int, Labels] = {}
        for labels, dims in scrambled:
            chosen = dims[0] if behind is None else labels.ids.dim() + behind
            chosen = chosen if chosen in dims else dims[0]
            lines = self.constraints.lines_of(labels.ids)
            if lines is not None and len(varying(lines[0])) < 2:
                self.constraints.tie(lines[1], constant(FIXED, labels.shape))
                tied[id(labels)] = Labels(lines[0], labels.state)
                continue
            if self.rules[n] in _PRODUCTS:
                continue
            ids, state = self.constraints.read_heads(labels, chosen)
            if _repeats(labels.ids, chosen):
                self.constraints.block(
                    labels.ids,
                    f"{describe_call(n)} reads each of its channels at many places of one tensor",
                )
            if is_split:
                tied[id(labels)] = along(ids, state, labels.shape, chosen)
        if not tied:
            return step
        args, kwargs = map_leaves(lambda leaf: tied.get(id(leaf), leaf), (step.args, step.kwargs))
        return replace(step, args=args, kwargs=kwargs)

    def _note_copy(self, n: fx.Node, repeated: Labels) -> None:
        """Find the calls behind the last layer that repeated a factor of a product for heads."""
        behind = [node for node in n.all_input_nodes if self.values[node.name] is repeated]
        for node in behind:  # it grows
            sources, spec = node.all_input_nodes, spec_of(node, self.net)
            if self.rules.get(node) in (None, linear, embedding, *_PRODUCTS) or not sources:
                continue
            is_long = _copied_dim(self.values[sources[0].name], self.values[node.name]) is not None
            if is_long and spec is not None and spec.narrowed_by in ("expand", "repeat"):
                self.constraints.copies.add(node.name)
            else:
                behind += [source for source in sources if source not in behind]

    def _copy_for_heads(self, source: Labels, result: Labels) -> Labels:
        """Return labels of copies: each goes with its head, or with its channel in all of them."""
        dim = _copied_dim(source, result)
        if dim is None:
            return result
        front = (None,) * (result.ids.dim() - source.ids.dim())
        labels = Labels(source.ids[front], source.state[front])
        n = result.shape[dim] // labels.shape[dim]
        return self.constraints.copy_for_heads(labels, dim, n)

    def _note_split(self, n: fx.Node, step: OpCall, result: Any) -> None:
        """A view may split channels over several dimensions; what goes must be whole rows there."""
        split = [self.values[node.name] for node in n.all_input_nodes if node.name in self.split]
        is_view = len(step.labels) == 1 and len(varying(step.x.ids)) < 2
        parts = [leaf for leaf in leaves_of(result) if isinstance(leaf, Labels)]
        is_part = bool(split) and self.rules[n] is pick
        if is_part or ((split or is_view) and any(len(varying(part.ids)) > 1 for part in parts)):
            self.split.add(n.name)
        if split and any(part.ids.numel() == 0 for part in parts):  # of which nothing is known
            for labels in step.labels:
                self.constraints.block(
                    labels.ids,
                    f"{describe_call(n)} takes a part of its heads that has no elements",
                )
        if self.rules[n] is pick or not isinstance(result, Labels):
            self.constraints.boxes += [(n.name, item) for item in split if isinstance(item, Labels)]

    def _note_run(self, n: fx.Node, step: OpCall, result: Any) -> None:
        """A run of moves through several dimensions must amount to a selection of channels."""
        if len(step.labels) != 1 or not isinstance(result, Labels):
            return
        sources = [node for node in n.all_input_nodes if self.values[node.name] is step.x]
        if not sources:
            return
        source = sources[0]
        if source.name in self.grids:  # what goes is whole heads, and the same of each
            self.grids.add(n.name)
            return
        start, places = self.runs.get(source.name, (step.x, None))
        if places is None:
            places = torch.arange(step.x.ids.numel(), device="cpu").reshape(step.x.shape)
        moved = call_on_places(step, places)
        if len(varying(result.ids)) > 1:
            self.runs[n.name] = (start, moved)
        elif (
            source.name in self.runs
            and not any(start is box for _, box in self.constraints.boxes)
            and as_selection(start.shape, moved) is None
        ):
            self.constraints.block(
                result.ids,
                f"{describe_call(n)} spreads channels over several dimensions",
            )

    def _note_site(self, n: fx.Node, labels: Any) -> None:
        if not isinstance(labels, Labels) or labels.ids.dim() < 1:
            return
        dims = varying(labels.ids)
        lines = self.constraints.lines_of(labels.ids)
        if lines is not None and len(varying(lines[1])) == 1:  # those of the layer in front
            (dim,) = varying(lines[1])
            self.result.sites[n.name] = SiteChannels(dim, line_along(lines[1], dim))
        elif dims:
            ids, _ = self.constraints.read(labels, dims[0])
            self.result.sites[n.name] = SiteChannels(dims[0], ids)
        elif bool((labels.ids != FIXED).any()):
            self.result.sites[n.name] = SiteChannels(
                min(1, labels.ids.dim() - 1), labels.ids.reshape(-1)[:1]
            )


def _are_tables(all_labels: list[Labels]) -> bool:
    """Return whether all is of one shape and has a channel for each element, as learnt queries.

    Along which dimension their channels lie is known by what reads the result.
    """
    return len({labels.shape for labels in all_labels}) == 1 and all(
        _is_table(labels.ids) for labels in all_labels
    )


def _is_table(ids: Tensor) -> bool:
    for dim in {*range(ids.dim())}.difference(varying(ids)):
        ids = ids.narrow(dim, 0, 1)
    return len(ids.unique()) == ids.numel()


def _copied_dim(source: Any, result: Any) -> int | None:
    """Return the dimension along which a call has repeated each head, or what has none."""
    if not isinstance(source, Labels) or not isinstance(result, Labels):
        return None
    if result.ids.numel() <= source.ids.numel() or result.ids.dim() < source.ids.dim():
        return None
    before = (1,) * (result.ids.dim() - source.ids.dim()) + tuple(source.shape)
    longer = [dim for dim, size in enumerate(result.shape) if size > before[dim]]
    ids, copies = where_varying(source.ids.reshape(before)), where_varying(result.ids)
    dims = varying(ids)
    if len(longer) != 1 or len(dims) not in (1, 2) or (len(dims) == 2 and dims[0] > longer[0]):
        return None
    dim, n = longer[0], result.shape[longer[0]] // before[longer[0]]
    repeated = ids.repeat_interleave(n, dim)
    is_copy = before[dim] == 1 or (repeated.shape == copies.shape and torch.equal(repeated, copies))
    return dim if is_copy else None


def _choose_dim(all_labels: list[Labels]) -> int | None:
    """Return the dimension, counted from behind, along which most channels stay apart.

    A class token in front of patches, or a table of positions: labels vary along both dimensions.
    Behind a pixel shuffle channels lie side by side in space, too, again and again: not there.
    """
    labels = [item for item in all_labels if item.ids.dim() and item.ids.numel()]
    most = max(item.ids.dim() for item in labels)
    dims = {dim - most for dim in range(most)}
    best, best_count = None, 1
    for behind in sorted(dims, reverse=True):
        counts = [
            0 if _repeats(item.ids, behind) else _count_apart(item.ids, behind)
            for item in labels
            if item.ids.dim() + behind >= 0 and spread(item.ids)
        ]
        if counts and min(counts) > best_count:
            best, best_count = behind, min(counts)
    return best


def _repeats(ids: Tensor, dim: int) -> bool:
    """Return whether a channel lies at several indices of a dimension."""
    line = line_along(ids, dim)
    labels = line[line != FIXED]
    return len(labels.unique()) < len(labels)


def _count_apart(ids: Tensor, dim: int) -> int:
    """Return how many channels are left where those at one index of a dimension are tied."""
    lines, _ = core(ids, ids, dim)
    unique, dense = torch.unique(lines, return_inverse=True)
    column = torch.arange(lines.shape[1], device="cpu")
    places = column.expand_as(lines).reshape(-1)
    while True:
        low = torch.full((len(unique),), lines.shape[1], device="cpu")
        low = low.scatter_reduce(0, dense.reshape(-1), column[places], "amin")
        lowered = column.scatter_reduce(0, places, low[dense].reshape(-1), "amin")
        if torch.equal(lowered, column):
            return len(torch.unique(column))
        column = lowered


def follow(
    net: nn.Module,
    graphs: Sequence[fx.Graph],
    inputs: ExampleInputs,
    gated: Mapping[int, frozenset[str]],
    *,
    gate_reads: bool = False,
    whole_groups: Mapping[str, bool] | None = None,
    copies: frozenset[str] = frozenset(),
) -> tuple[ChannelConstraints, tuple[PropagationResult, ...]]:
    """Follow labels through all graphs of a network that is in evaluation mode.

    The parameters of the graphs, and so their atoms, are the same. `gated` are the sites that are
    taken to be gated, by graph; with `gate_reads` layers may read through gates what no activation
    stands behind. `copies` are calls that are known to repeat keys or values for every head; where
    products show that there are others, all is followed anew.
    """
    constraints = ChannelConstraints(net, whole_groups=dict(whole_groups or {}), copies=set(copies))
    followed: list[PropagationResult] = []
    with torch.no_grad(), frozen(net):
        for index, graph in enumerate(graphs):
            behind = gated.get(index, frozenset())
            follower = _Follower(net, graph, constraints, behind, gate_reads=gate_reads)
            follower.run(*values_for(graph, inputs.copy()))
            followed.append(follower.result)
    if constraints.copies > copies:
        copied = frozenset(constraints.copies)
        return follow(
            net, graphs, inputs, gated,
            gate_reads=gate_reads, whole_groups=whole_groups, copies=copied,
        )  # fmt: skip
    constraints.tie_grids()
    _tie_boxes(constraints)
    _tie_spreads(constraints)
    _tie_unread_parts(constraints, [part for flow in followed for part in flow.parts])
    _keep_ambiguous_parameters(constraints)
    constraints.tie_grids()
    return constraints, tuple(followed)


def _tie_boxes(constraints: ChannelConstraints) -> None:
    """Tie channels that a part was taken of, unless those that go leave a rectangle.

    Along the dimension that leaves most of them apart: queries, keys and values of one layer that
    a view splits into three may lose the same of each. Keys and values that all heads share lie
    beside heads there, and are places within.
    """
    lines = _heads_and_within(constraints) if constraints.boxes else ()
    for name, labels in constraints.boxes:
        for side, key in enumerate((name, f"{name}/2", f"{name}/3")):
            ids = pointwise(lines[side].__getitem__, labels.ids)
            dims = varying(ids)
            if len(dims) > 1:
                apart = {dim: _count_apart(ids, dim) for dim in dims}
                rest = max(dims[:0:-1], key=apart.__getitem__)
                is_whole = constraints.whole_groups.setdefault(key, apart[dims[0]] > apart[rest])
                constraints.read(Labels(ids, labels.state), dims[0] if is_whole else rest)
                lines = _heads_and_within(constraints)


def _heads_and_within(constraints: ChannelConstraints) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each atom its head, or its own channel, its place within heads; or FIXED.

    And the place of its head among those that share keys and values.
    """
    root, (rows, columns, places) = constraints.roots(), constraints.parents()
    is_within = torch.zeros_like(root, dtype=torch.bool)
    for _, _, within in constraints.grids:
        is_within[root[within]] = True
    is_alone, is_plain = (rows == columns) & ~is_within[columns], places == rows
    heads = torch.where(is_within[rows], FIXED, rows)
    return heads, torch.where(is_alone, FIXED, columns), torch.where(is_plain, FIXED, places)


def _tie_spreads(constraints: ChannelConstraints) -> None:
    """Tie what is broadcast along other channels to those it has itself, if these go one by one.

    Where whole heads go, what is as long as a head and multiplies each of them stays.
    """
    for base, ids in constraints.spreads:
        dims, parents = set(varying(ids)), constraints.lines()
        sides = [pointwise(side.__getitem__, base) for side in parents]
        alike = [side for side in sides if dims & set(varying(side))]
        if not torch.equal(*parents[:, without_repeats(ids)]):  # they go with heads, and within
            for side, parent in zip(sides, parents, strict=True):
                constraints.tie(side, pointwise(parent.__getitem__, ids))
        elif alike:
            constraints.tie(alike[0] if len(alike) == 1 else base, ids)
        else:
            constraints.block(ids, "multiplies or is added to all heads")


def _tie_unread_parts(constraints: ChannelConstraints, parts: Sequence[Tensor]) -> None:
    """Tie what the example does not read of a parameter (late positions) to the channel beside it.

    Channels lie along a dimension if all elements that are read at one of its indices are tied; or
    else if some are, or if a part that is taken is a single row (`table[1]`): all rows lose the
    same.
    """
    root = (
        constraints.roots()
        if constraints.elements
        else torch.zeros(0, dtype=torch.long, device="cpu")
    )
    sizes = torch.bincount(root)[root]
    for ids in constraints.elements.values():
        of_rows = {_dim_of_row(ids, part) for part in parts}
        lines = {
            dim: ids.movedim(dim, -1).reshape(-1, size)
            for dim, size in enumerate(ids.shape)
            if size > 1
        }
        tied = {dim: _count_tied(root[line], sizes[line] > 1) for dim, line in lines.items()}
        dims = [dim for dim, (_, is_whole) in tied.items() if is_whole]
        dims = dims or [dim for dim, (is_some, _) in tied.items() if is_some]
        for dim, line in lines.items():
            if dim in of_rows or dim in dims:
                constraints.tie(line[:1].expand_as(line), line)


def _count_tied(lines: Tensor, is_read: Tensor) -> tuple[bool, bool]:
    """Return whether at some index elements are tied, and whether all are that are read there.

    Angles of positions are tied in pairs at each position, and all of them at each channel.
    """
    ordered = lines.sort(0).values
    is_same = (ordered[1:] == ordered[:-1]).any(0)
    low = torch.where(is_read, lines, lines.max() + 1).amin(0)
    high = torch.where(is_read, lines, -1).amax(0)
    return bool(is_same.any()), bool((is_same & (low == high)).any())


def _dim_of_row(ids: Tensor, part: Tensor) -> int | None:
    """Return the dimension along which a part of a parameter lies, None if along several."""
    places = part - ids.flatten()[0]  # they are numbered one after the other
    if not len(part) or int(places.min()) < 0 or int(places.max()) >= ids.numel():
        return None
    index = torch.unravel_index(places, ids.shape)
    dims = [dim for dim, line in enumerate(index) if int(line.min()) != int(line.max())]
    return dims[0] if len(dims) == 1 else None


def _keep_ambiguous_parameters(constraints: ChannelConstraints) -> None:
    """A parameter used in two ways, or by something unknown, keeps all it has."""
    twice = set(constraints.elements) & {name for name, _ in constraints.dims}
    for name in twice | constraints.opaque_uses:
        parts = [ids for (other, _), ids in constraints.dims.items() if other == name]
        for ids in [*parts, constraints.elements.get(name, constraints.new_atoms(0))]:
            constraints.block(ids, f"{name!r} is used in two ways", "use it in one way")
