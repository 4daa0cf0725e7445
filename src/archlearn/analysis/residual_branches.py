"""Residual branches: the `f` of an addition `x + f(x)`, and what goes with it when it is closed.

A branch can be left out exactly where nothing but the addition reads it, for then the sum is `x`.
Of the two operands the branch is the one that lies further, in layers, behind a tensor that both
come from: `x` itself (no layer), or what the shortcut was computed from (at most one: a projection,
a pooling, zeros for new channels). The shortcut has no gate, so that something always arrives.

He, Zhang, Ren, Sun: Identity mappings in deep residual networks, ECCV 2016.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import fx, nn

from archlearn.analysis.channel_labels import Labels
from archlearn.analysis.constraints import Reason
from archlearn.analysis.gate_sites import find_trained
from archlearn.analysis.linear_ops import is_linear_op, layer_of
from archlearn.analysis.propagation import (
    PropagationResult,
    find_memory,
    find_rules,
    is_in_place,
    may_be_view,
)
from archlearn.analysis.rule_api import Rule, opaque
from archlearn.module_utils import (
    computed_names,
    computes_weights,
    find_module,
    first_names,
    list_tensors,
    weight_sources,
)
from archlearn.op_table import spec_of
from archlearn.tracing.fx_utils import leaves_of

_MOST_SETS = 64
"""Sets of branches that may each end a call; one with more of them is taken to stay for ever."""

Closings = frozenset[frozenset[int]]
"""Sets of branches, by their places: what has them is gone once all of any one set are closed."""
_NEVER: Closings = frozenset()


@dataclass(frozen=True, slots=True)
class Addition:
    """The addition of a branch in one graph: its call, and which of its operands is the branch.

    The other one is left once the branch is closed.
    """

    node: str
    operand: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A residual branch that can be closed, named by the innermost module that holds its layers.

    Those are layers that nothing else needs; it has an addition in each graph.
    """

    name: str
    layers: tuple[str, ...]
    additions: tuple[Addition, ...]


@dataclass(frozen=True, slots=True)
class Removals:
    """What is gone when branches are closed: calls, by graph, and tensors, by their first names."""

    calls: tuple[dict[str, Closings], ...]
    tensors: dict[str, Closings]

    def gone_calls(self, index: int, closed: frozenset[int]) -> set[str]:
        """Return the calls of a graph that are gone when these branches are closed."""
        return _gone(self.calls[index], closed)

    def gone_tensors(self, closed: frozenset[int]) -> set[str]:
        """Return the parameters and buffers that are gone when these branches are closed."""
        return _gone(self.tensors, closed)


def _gone(closings: Mapping[str, Closings], closed: frozenset[int]) -> set[str]:
    return {name for name, sets in closings.items() if any(branches <= closed for branches in sets)}


def find_branches(
    net: nn.Module, graphs: Sequence[fx.Graph], followed: Sequence[PropagationResult]
) -> tuple[dict[str, Branch], dict[str, Reason]]:
    """Return the branches that can be closed, and why others cannot.

    A branch must be one in all graphs.
    """
    looks = [_BranchFinder(net, graph, item) for graph, item in zip(graphs, followed, strict=True)]
    by_graph = [look.find() for look in looks]
    branches: dict[str, Branch] = {}
    reasons: dict[str, Reason] = {}
    for name in dict.fromkeys(name for item in by_graph for name in item):
        alike = [item[name] for item in by_graph if name in item]
        refused = next((item for item in alike if isinstance(item, Reason)), None)
        kept = [item for item in alike if not isinstance(item, Reason)]
        if refused is not None:
            reasons[name] = refused
        elif len(kept) < len(graphs) or len({frozenset(layers) for layers, _ in kept}) > 1:
            reasons[name] = Reason(
                "not the same in training as in evaluation", "let both modes call the same layers"
            )
        else:
            branches[name] = Branch(name, kept[0][0], tuple(addition for _, addition in kept))
    return branches, reasons


class _BranchFinder:
    """Looks for branches in one graph."""

    def __init__(self, net: nn.Module, graph: fx.Graph, followed: PropagationResult) -> None:
        self.net, self.graph, self.followed = net, graph, followed
        self.rules = find_rules(net, graph)
        self.order = {node: position for position, node in enumerate(graph.nodes)}
        self.idle = find_idle(graph, self.rules, net)
        self.trained = find_trained(graph)
        self.additions = [node for node in graph.nodes if self._is_addition(node)]

    def find(self) -> dict[str, tuple[tuple[str, ...], Addition] | Reason]:
        """Return the layers and the addition of each branch by its name, or why it must stay."""
        branches: dict[str, tuple[tuple[str, ...], Addition] | Reason] = {}
        used: dict[str, int] = {}
        for node in self.additions:
            chosen = self._choose(node)
            if chosen is None:
                continue
            inside = self._find_inside(node, chosen)
            layers = self._find_layers(inside)
            # The innermost module that holds all layers; where that is the model, the first layer.
            paths = zip(*(layer.split(".") for layer in layers), strict=False)
            shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, paths)
            name = ".".join(parts[0] for parts in shared) or layers[0]
            used[name] = used.get(name, 0) + 1
            reason = self._refuse(node, chosen, inside)
            branches[name if used[name] == 1 else f"{name}#{used[name]}"] = reason or (
                layers,
                Addition(node.name, chosen),
            )
        return branches

    def _is_addition(self, node: fx.Node) -> bool:
        """Return whether a call adds two tensors of the same shape and dtype."""
        spec = spec_of(node, self.net)
        if spec is None or "torch.add" not in spec.calls or len(node.args) != 2 or node.kwargs:
            return False
        operands = [arg for arg in node.args if isinstance(arg, fx.Node)]
        values = [self.followed.values[operand.name] for operand in operands]
        shapes = {labels.shape for labels in values if isinstance(labels, Labels)}
        dtypes = {self.followed.dtypes.get(operand.name) for operand in operands}
        return len(set(operands)) == 2 and len(shapes) == len(dtypes) == 1 and None not in dtypes

    def _holds_tensors(self, node: fx.Node) -> bool:
        leaves = leaves_of(self.followed.values[node.name])
        return any(isinstance(leaf, Labels) for leaf in leaves)

    def _choose(self, node: fx.Node) -> int | None:
        """Return which operand of an addition is a branch, or None if neither is.

        If either could be, it is the one with more layers; of as many, neither.
        """
        n_layers = [len(self._find_layers(self._find_inside(node, operand))) for operand in (0, 1)]
        ways = [i for i in (0, 1) if n_layers[i] and self._lies_behind(node, i)]
        if len(ways) == 2 and n_layers[0] == n_layers[1]:
            return None
        return max(ways, key=n_layers.__getitem__) if ways else None

    def _lies_behind(self, node: fx.Node, operand: int) -> bool:
        """Return whether more layers lie between a common source and this operand."""
        near = self._count_layers_back(_operand_of(node, 1 - operand), 1)
        far = self._count_layers_back(_operand_of(node, operand), None)
        return any(source in far and far[source] > n for source, n in near.items())

    def _count_layers_back(self, start: fx.Node, most: int | None) -> dict[fx.Node, int]:
        """Return the fewest layers between each earlier tensor and a node, up to so many."""
        counts: dict[fx.Node, int] = {}
        here, n_layers = [start], 0
        while here:
            behind: list[fx.Node] = []
            while here:
                node = here.pop()
                if node in counts or node.op == "get_attr" or not self._holds_tensors(node):
                    continue
                counts[node] = n_layers
                (behind if self._is_layer(node) else here).extend(node.all_input_nodes)
            n_layers += 1
            here = behind if most is None or n_layers <= most else []
        return counts

    def _is_layer(self, node: fx.Node) -> bool:
        """Return whether a call is a linear op, or a module with weights that is not known."""
        if is_linear_op(node, self.net):
            return True
        if node.op != "call_module" or self.rules[node] is not opaque:
            return False
        return next(find_module(self.net, str(node.target)).parameters(), None) is not None

    def _find_inside(self, addition: fx.Node, operand: int) -> set[fx.Node]:
        """Return all calls that only this operand of an addition needs."""
        branch = _operand_of(addition, operand)
        inside: set[fx.Node] = set()
        waiting = {branch}
        while waiting:
            node = max(waiting, key=self.order.__getitem__)
            waiting.remove(node)
            readers = [user for user in node.users if user not in self.idle]
            is_last = node is branch and readers == [addition]
            if node.op != "placeholder" and (is_last or all(user in inside for user in readers)):
                inside.add(node)
                waiting |= set(node.all_input_nodes)
        return inside

    def _find_layers(self, inside: set[fx.Node]) -> tuple[str, ...]:
        ordered = sorted(inside, key=self.order.__getitem__)
        layers = [layer_of(n) if is_linear_op(n, self.net) else str(n.target)
                  for n in ordered if self._is_layer(n)]  # fmt: skip
        return tuple(dict.fromkeys(layers))

    def _refuse(self, node: fx.Node, operand: int, inside: set[fx.Node]) -> Reason | None:
        """Return why a branch must stay: a gradient or memory that others need."""
        if node.name not in self.trained:
            return Reason("no gradient reaches its addition", "let the loss depend on it")
        if set(self._find_layers(inside)) == set(self._find_layers(set(self.graph.nodes))):
            return Reason("it holds all layers of the model; their widths are learnt")
        for call in inside:
            if is_in_place(call, self.net) and not self._find_memory(call) <= inside:
                return Reason(
                    f"{call.name} inside it changes what is read elsewhere, too",
                    "set inplace=False there",
                )
        behind = {node}
        for call in self.graph.nodes:
            if any(source in behind for source in call.all_input_nodes):
                behind.add(call)
        later = [
            self.order[call]
            for call in self._find_memory(node, self.additions)
            if call is not node and call in behind and is_in_place(call, self.net)
        ]
        if later:
            shortcut = _operand_of(node, 1 - operand)
            held = self._find_memory(shortcut, self.additions) - behind
            is_input = any(call.op in ("placeholder", "get_attr") for call in held)
            readers = {user for call in held for user in call.users} - inside
            if is_input or any(self.order[user] > min(later) for user in readers):
                return Reason(
                    "its sum is changed in place, and without it that would be what others read",
                    "set inplace=False behind the addition",
                )
        return None

    def _find_memory(self, node: fx.Node, sums: Sequence[fx.Node] = ()) -> set[fx.Node]:
        """Return the calls whose results may lie in the same memory as that of a node.

        Sums may be their own input, for their branch may be closed.
        """

        def shared(call: fx.Node) -> Sequence[fx.Node]:
            if may_be_view(call, self.net, self.rules) or call in sums:
                return call.all_input_nodes
            return call.all_input_nodes[:1] if is_in_place(call, self.net) else ()

        return find_memory(node, self._holds_tensors, shared)


def _operand_of(addition: fx.Node, operand: int) -> fx.Node:
    operand_node = addition.args[operand]
    assert isinstance(operand_node, fx.Node)  # both are tensors
    return operand_node


def find_idle(graph: fx.Graph, rules: Mapping[fx.Node, Rule], net: nn.Module) -> set[fx.Node]:
    """Return calls whose results nobody reads, and which do nothing else."""
    idle: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        # What only compares or computes, such as `y.shape[1] > 1`, has no rule.
        is_operator = getattr(node.target, "__module__", "") in ("_operator", "math")
        is_known = "call" in node.op and (rules[node] is not opaque or is_operator)
        if is_known and not is_in_place(node, net) and all(user in idle for user in node.users):
            idle.add(node)
    return idle


def find_removals(
    net: nn.Module, graphs: Sequence[fx.Graph], branches: Iterable[Branch]
) -> Removals:
    """Return which calls, parameters and buffers go with which branches."""
    branches = tuple(branches)
    if not branches:
        return Removals(tuple({} for _ in graphs), {})
    calls = tuple(
        _close_calls(net, graph, [branch.additions[index] for branch in branches])
        for index, graph in enumerate(graphs)
    )
    names = first_names(net)
    readers: dict[str, list[Closings]] = {}
    for graph, closings in zip(graphs, calls, strict=True):
        for node in graph.nodes:
            for name in _read_tensors(node, net):
                closing = closings.get(node.name, _NEVER)
                readers.setdefault(names.get(name, name), []).append(closing)
    tensors = {name: _all_of(sets_of_branches) for name, sets_of_branches in readers.items()}
    return Removals(calls, {name: sets for name, sets in tensors.items() if sets})


def _read_tensors(node: fx.Node, net: nn.Module) -> list[str]:
    """Return all parameters and buffers that a call may read, also those that are computed."""
    target = str(node.target)
    if node.op == "get_attr":
        owner, _, key = target.rpartition(".")
        module = find_module(net, owner)
        sources = weight_sources(module) if key in computed_names(module) else ()
        return [target, *(f"{owner}.{name}" if owner else name for name in sources)]
    if node.op != "call_module":
        return []
    module = find_module(net, target)
    computed = computed_names(module) if computes_weights(module) else []
    return [f"{target}.{name}" for name in [*(n for n, _ in list_tensors(module)), *computed]]


def _close_calls(
    net: nn.Module, graph: fx.Graph, additions: Sequence[Addition]
) -> dict[str, Closings]:
    """Return the closings of all calls of a graph that can go.

    A call goes with all that read it; what nobody reads, with what it reads.
    """
    by_name = {node.name: node for node in graph.nodes}
    of_branch = {
        (_operand_of(by_name[addition.node], addition.operand), by_name[addition.node]): frozenset(
            {frozenset({number})}
        )
        for number, addition in enumerate(additions)
    }
    idle = find_idle(graph, find_rules(net, graph), net)
    sets_of: dict[fx.Node, Closings] = {}
    for node in reversed(graph.nodes):
        if node in idle or node.op == "placeholder":
            continue
        readers = [user for user in node.users if user not in idle]
        sets_of[node] = _all_of([
            _any_of([sets_of[user], of_branch.get((node, user), _NEVER)])
            for user in readers
        ])  # fmt: skip
    for node in graph.nodes:
        if node in idle:
            sets_of[node] = _any_of(
                [sets_of.get(source, _NEVER) for source in node.all_input_nodes]
            )
    return {node.name: sets for node, sets in sets_of.items() if sets}


def _any_of(parts: Iterable[Closings]) -> Closings:
    """Return the closings of what goes as soon as any of several goes."""
    return _without_larger(branches for part in parts for branches in part)


def _all_of(parts: Sequence[Closings]) -> Closings:
    """Return the closings of what goes once all of several have gone; of none, never."""
    if not parts:
        return _NEVER
    combined = parts[0]
    for part in parts[1:]:
        if combined != part:
            combined = _without_larger(one | two for one in combined for two in part)
        if len(combined) > _MOST_SETS:
            return _NEVER
    return combined


def _without_larger(sets: Iterable[frozenset[int]]) -> Closings:
    """Return sets without those that hold another one."""
    kept: list[frozenset[int]] = []
    for branches in sorted(set(sets), key=len):
        if not any(other <= branches for other in kept):
            kept.append(branches)
    return frozenset(kept)
