"""Which slices of weights read a group's channels, and which write them, in a traced graph."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from archlearn.analysis.channel_graph import ChannelGraph
from archlearn.analysis.channel_labels import Labels, line_along, without_repeats
from archlearn.analysis.linear_ops import read_linear_op
from archlearn.analysis.propagation_rules import elementwise as el
from archlearn.analysis.propagation_rules import normalization as norm
from archlearn.analysis.propagation_rules import pooling, products, reshape, rule_for
from archlearn.analysis.propagation_rules.linear import linear
from archlearn.analysis.residual_branches import Addition
from archlearn.analysis.rule_api import describe_call, opaque
from archlearn.module_utils import find_module, find_tensor, first_names
from archlearn.op_table import ACTIVATE, RECURRENT, TRANSPOSED, spec_of
from archlearn.tracing.fx_utils import BLOCK_CALLS, find_parameter, leaves_of


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """Slices of one parameter along one dimension, and the gate of each.

    Attributes:
        parameter: Its dotted name, as in `named_parameters()`: the first one where it is tied.
        dim: The dimension; None for each element of the parameter, in the order of `flatten()`.
        gates: The position of each slice's gate among all gates, or -1 for none: int64, on the
            CPU, of shape (rows, size). With several rows (a head, an index within all heads) a
            slice is closed when any of its gates is.
    """

    parameter: str
    dim: int | None
    gates: Tensor


class NoSlicesError(Exception):
    """Why the gates of a group cannot act on weights."""


# What only moves channels, or computes each by itself, at its own scale: zero stays zero.
_MOVING = (
    reshape.move, reshape.pick, reshape.index_select, reshape.expand_as, reshape.pad,
    reshape.gather, reshape.scatter, reshape.shuffle_pixels, reshape.view_as_complex,
    reshape.view_as_real,
)  # fmt: skip
_PASSING = (*_MOVING, el.keep, pooling.pool, pooling.resize, pooling.mean, pooling.reduce)
_SIGNS = ("neg", "abs", "square")
# What may have no channel of its input in its result, and yet reads none of their numbers.
_LEAVING_OUT = (
    *_MOVING, reshape.attribute, reshape.number, el.like, el.new, el.create, opaque,
)  # fmt: skip
# What makes a constant of a constant in each channel.
_ELEMENTWISE = (
    *_MOVING[:5], *_MOVING[7:8], el.keep, el.unary, el.activate, el.total, el.product, el.mixed,
    norm.within_channel, pooling.pool, pooling.resize, pooling.mean,
)  # fmt: skip
_PRODUCTS = (products.matmul, products.einsum, products.attention)
_NORMS = (norm.within_channel, norm.across_channels, norm.group_norm)


@dataclass(slots=True)
class Reads:
    """What reads a group's channels in one graph.

    Attributes:
        columns: Slices of weights that multiply them, by what these layers read.
        zeros: Tensors that must be zero in a closed channel, for something else reads them.
        either: Factors of products, one of which must be.
        norms: Modules that compute a statistic over them, and what that is taken of.
    """

    columns: list[tuple[fx.Node | None, list[Slices]]] = field(default_factory=list[Any])
    zeros: list[fx.Node] = field(default_factory=list[fx.Node])
    either: list[list[fx.Node]] = field(default_factory=list[list[fx.Node]])
    norms: list[tuple[str, fx.Node]] = field(default_factory=list[tuple[str, fx.Node]])


class GraphReader:
    """Finds what reads each group, and what writes it, in one graph of a network."""

    def __init__(self, net: nn.Module, graph: ChannelGraph, index: int) -> None:
        self.net, self.graph, self.index = net, graph, index
        self.followed = graph.followed[index]
        self.nodes = list(graph.graphs[index].nodes)
        self.rules = {n: rule_for(n, net) for n in self.nodes if n.op.startswith("call")}
        self.ops = {n: read_linear_op(n, net) for n, rule in self.rules.items() if rule is linear}
        self.position = graph.gate_places()
        self.first = first_names(net)
        self.parameters = {name for name, _ in net.named_parameters()}
        self.dims: dict[str, list[tuple[int, Tensor, list[int]]]] = {}
        for (name, dim), ids in graph.dims.items():
            self.dims.setdefault(name, []).append((dim, ids, graph.groups_among(ids)))
        self.tied = {first for name, first in self.first.items() if name != first}
        targets = [str(n.target) for n in self.nodes if n.op in ("call_module", "get_attr")]
        self.again = Counter(targets)
        self.carried = {node: self._groups_in(node) for node in self.nodes}

    def _atoms(self, node: fx.Node) -> Tensor:
        leaves = leaves_of(self.followed.values.get(node.name))
        ids = [without_repeats(leaf.ids) for leaf in leaves if isinstance(leaf, Labels)]
        return torch.cat([self.graph.root[:0], *ids]).unique()

    def _groups_in(self, node: fx.Node) -> frozenset[int]:
        groups = self.graph.groups_among(self.graph.root[self._atoms(node)])
        return frozenset(group for group in groups if group >= 0)

    def read(self, group: int) -> Reads:
        """Return what reads the channels of a group in this graph."""
        reads = Reads()
        for node, rule in self.rules.items():
            sources = [n for n in node.all_input_nodes if group in self.carried[n]]
            if rule is linear:
                self._note_columns(reads, node, group, sources)
            elif sources:
                self._note(reads, node, group, sources)
        return reads

    def _note_columns(
        self, reads: Reads, node: fx.Node, group: int, sources: list[fx.Node]
    ) -> None:
        """Note the slices by which a layer reads channels: a recurrent one its own units, too."""
        op, passes = self.ops[node], group in self.carried[node]
        if op is None or not (sources or op.kind == RECURRENT):
            return
        if op.groups > 1 and op.kind == TRANSPOSED and passes:
            return  # whole groups: each is read by its own outputs alone
        names = (op.weight, *op.others) if op.kind == RECURRENT else (op.weight,)
        columns = [s for name in names for s in self.slices(name, op.in_dim, group)]
        if columns:
            reads.columns.append((sources[0] if sources else None, columns))
        elif sources and not passes:
            raise NoSlicesError(f"{describe_call(node)} reads it by no columns of its own")

    def _note(self, reads: Reads, node: fx.Node, group: int, sources: list[fx.Node]) -> None:
        rule, passes = self.rules[node], group in self.carried[node]
        is_read = self._is_read(node, group)
        is_of_heads = node.name in self.followed.reads and not is_read
        if rule in (norm.local_response, norm.unit_length) and not is_of_heads:
            reads.zeros.append(sources[0])
        elif is_read and rule not in (*_PRODUCTS, pooling.reduce):
            reads.norms.append((self._module_of(node), sources[0]))
        elif rule in _PRODUCTS:
            factors = [n for n in node.all_input_nodes[:2] if group in self.carried[n]]
            is_twice = len(_operands(node)) > len(node.all_input_nodes)
            if not passes or is_read or is_twice:
                reads.either.append(factors)
        elif rule is pooling.reduce and not passes:
            reads.zeros.append(sources[0])
        elif not passes and rule not in _LEAVING_OUT:
            raise NoSlicesError(f"{describe_call(node)} reads it, and has no weight for it")

    def _is_read(self, node: fx.Node, group: int) -> bool:
        """Return whether a call reads a group's channels together: of heads, what lies within."""
        read = self.followed.reads.get(node.name)
        if read is None:
            return False
        rows, columns, _ = self.graph.parents[:, self.graph.root[read.ids]]
        return group in self.graph.group_of[torch.where(rows == columns, rows, columns)].tolist()

    def _module_of(self, node: fx.Node) -> str:
        """Return the name of the module that a call stands in, or that it calls."""
        if node.op == "call_module":
            return str(node.target)
        numbers = node.meta.get(BLOCK_CALLS, ())
        blocks = self.graph.traces.blocks
        return blocks[self.index][numbers[-1]].path if numbers and blocks else ""

    def slices(
        self, name: str, dim: int | None, group: int, counted: Tensor | None = None
    ) -> list[Slices]:
        """Return the slices of a parameter that have gates of a group: at most one object.

        Without a dimension, along the one that the group's channels lie along. `counted` flags the
        indices that count.
        """
        name = self.first.get(name, name)
        for d, ids, groups in self.dims.get(name, ()):
            if dim in (None, d) and group in groups:
                gates = self._gates(ids, group)
                gates = gates if counted is None else gates.where(counted, -1)
                if bool((gates >= 0).any()):
                    return [Slices(name, d, gates)]
        if dim is None and name in self.graph.elements:
            return self._slices_of_elements(name, group)
        return []

    def _slices_of_elements(self, name: str, group: int) -> list[Slices]:
        ids = self.graph.elements[name]
        gates = self._gates(ids.reshape(-1), group).view(3, *ids.shape)
        if not bool((gates >= 0).any()):
            return []
        for dim in range(ids.dim()):
            line = torch.stack([line_along(row, dim) for row in gates])
            if bool((gates.movedim(dim + 1, -1) == line.view(3, *[1] * (ids.dim() - 1), -1)).all()):
                return [Slices(name, dim, line)]
        return [Slices(name, None, gates.flatten(1))]

    def _gates(self, ids: Tensor, group: int) -> Tensor:
        """Return the positions of the gates of one group that channels go with, in three rows."""
        parents = self.graph.parents[:, ids]
        gates = torch.where(self.graph.group_of[parents] == group, self.position[parents], -1)
        for row, other in ((1, 0), (2, 0), (2, 1)):
            gates[row] = gates[row].where(gates[row] != gates[other], -1)
        return gates

    def act(self, group: int, reads: Reads, by_zeros: bool) -> list[Slices]:
        """Return the slices that are zero exactly where nobody reads a closed channel.

        With `by_zeros`, norms read zeros there.
        """
        zero = set[fx.Node]()
        nodes = [*reads.zeros, *(node for _, node in reads.norms if by_zeros)]
        slices = [s for node in nodes for s in self.write(node, group, zero)]
        for factors in reads.either:  # which may leave others of the same gate: values beside keys
            slices += self._write_factor(factors, group, self._atoms(factors[0]), set(zero))
        for source, columns in reads.columns:
            slices += [] if self._is_zero(source, group, zero) else columns
        return slices

    def _is_zero(self, node: fx.Node | None, group: int, zero: set[fx.Node]) -> bool:
        """Return whether a tensor is zero because others are."""
        try:
            return bool(zero) and node is not None and not self.write(node, group, set(zero))
        except NoSlicesError:
            return False

    def end_of_branch(self, addition: Addition) -> list[str]:
        """Return the parameters of the layer that ends a residual branch: zero, it adds nothing."""
        node = next(node for node in self.nodes if node.name == addition.node)
        return self._end(_operands(node)[addition.operand])

    def _end(self, node: fx.Node) -> list[str]:
        rule, inputs = self.rules.get(node), self._tensors_of(node)
        if node.op == "get_attr":
            names = [str(node.target)] if str(node.target) in self.parameters else []
        elif node in self.ops or rule in _NORMS:
            names = self._parameters_of(node)
        elif rule is el.product:
            return self._end_of_factor(inputs)
        elif inputs and (len(inputs) == 1 or rule is el.keep) and self._keeps_zero(node):
            return self._end(inputs[0])
        elif rule is el.total and len(_operands(node)) == len(node.args) > 1:
            return [name for n in inputs for name in self._end(n)]
        else:
            raise NoSlicesError(f"no weight is a factor of what {_describe(node)} adds")
        is_tied = any(self.first.get(name) in self.tied for name in names)
        is_called_again = max(self.again[t] for t in (str(node.target), *names)) > 1
        if not names or is_tied or is_called_again:
            raise NoSlicesError(f"{_describe(node)} ends it, and is used elsewhere, too")
        return names

    def _end_of_factor(self, factors: list[fx.Node]) -> list[str]:
        """Return the end of one factor of a product: of a layer scale, if there is one."""
        why = NoSlicesError("no weight is a factor of what a product adds")
        for factor in sorted(factors, key=lambda n: n.op != "get_attr"):
            try:
                return self._end(factor)
            except NoSlicesError as error:
                why = error
        raise why

    def _tensors_of(self, node: fx.Node) -> list[fx.Node]:
        """Return the tensors that a call reads, without sizes."""
        values = self.followed.values
        return [n for n in node.all_input_nodes if isinstance(values.get(n.name), Labels)]

    def _parameters_of(self, node: fx.Node) -> list[str]:
        op = self.ops.get(node)
        if op is not None and op.kind != RECURRENT and not op.is_part:
            return [op.weight, *([op.bias] if op.bias else [])]
        if node.op == "call_module" and op is None:
            module = find_module(self.net, str(node.target))
            return [name for name, _ in module.named_parameters(str(node.target))]
        raise NoSlicesError(f"{describe_call(node)} ends it, and is no plain layer")

    def write(self, node: fx.Node, group: int, zero: set[fx.Node]) -> list[Slices]:
        """Return slices that, once zero, make a group's channels zero in a tensor.

        Other tensors that are zero are not looked behind; those that are then, are added to them.
        """
        return self._write(node, group, self._atoms(node), zero)

    def _write(self, node: fx.Node, group: int, atoms: Tensor, zero: set[fx.Node]) -> list[Slices]:
        if node in zero:
            return []
        if group not in self.carried[node]:
            raise NoSlicesError(f"{_describe(node)} adds to it, and has no weight for it")
        rule, inputs = self.rules.get(node), node.all_input_nodes
        factors = [n for n in inputs if group in self.carried[n]]
        if node.op == "get_attr":
            slices = self._whole(str(node.target), group)
        elif rule is linear:
            slices = self._rows(node, group, atoms)
        elif rule in _NORMS and node.op == "call_module":
            slices = self._write_norm(node, group, zero)
        elif rule is reshape.embedding:
            weight = find_parameter(inputs[-1]) if node.op == "call_function" else None
            slices = self._whole(str(weight.target) if weight else f"{node.target}.weight", group)
        elif rule is el.product or rule in _PRODUCTS:
            slices = self._write_factor(factors, group, atoms, zero)
        elif rule is el.quotient and factors[:1] == inputs[:1]:
            slices = self._write(factors[0], group, atoms, zero)
        elif rule is el.total and len(_operands(node)) == len(node.args) > 1:
            slices = [s for n in inputs for s in self._write(n, group, atoms, zero)]
        elif self._keeps_zero(node):
            factors = factors[:1] if rule is el.keep else factors  # others say a type alone
            slices = [s for n in factors for s in self._write(n, group, atoms, zero)]
        else:
            raise NoSlicesError(f"no weight is a factor of it behind {_describe(node)}")
        if self._is_all_among(node, group, atoms):
            zero.add(node)
        return slices

    def rows_behind(self, node: fx.Node, group: int) -> list[Slices]:
        """Return rows of weights that, once zero, make a group's channels constant in a tensor."""
        rule = self.rules.get(node)
        factors = [n for n in node.all_input_nodes if group in self.carried[n]]
        if rule is linear:
            op = self.ops[node]
            rows = self._rows(node, group, self._atoms(node))
            return [s for s in rows if op is None or s.parameter != op.bias]
        if rule not in _ELEMENTWISE or len(factors) < len(node.all_input_nodes):
            raise NoSlicesError(f"{_describe(node)} adds something else to it")
        return [s for n in factors for s in self.rows_behind(n, group)]

    def _is_all_among(self, node: fx.Node, group: int, atoms: Tensor) -> bool:
        """Return whether a tensor has no atoms of a group beside these: keys beside queries."""
        members = self._atoms(node)
        members = members[(self.graph.group_of[self.graph.parents[:, members]] == group).any(0)]
        is_among = torch.isin(members, atoms)
        return bool(is_among.all() or not is_among.any())

    def _write_factor(
        self, factors: list[fx.Node], group: int, atoms: Tensor, zero: set[fx.Node]
    ) -> list[Slices]:
        """Return the fewest slices that make one factor of a product zero."""
        options: list[tuple[list[Slices], set[fx.Node]]] = []
        why = NoSlicesError("a product writes it without a weight")
        for factor in factors:
            ids, zeros = self._atoms(factor), set(zero)
            ids = atoms if bool(torch.isin(ids, atoms).any()) else ids
            try:
                options.append((self._write(factor, group, ids, zeros), zeros))
            except NoSlicesError as error:
                why = error
        if not options:
            raise why
        slices, zeros = min(options, key=lambda pair: len(pair[0]))
        zero |= zeros
        return slices

    def _write_norm(self, node: fx.Node, group: int, zero: set[fx.Node]) -> list[Slices]:
        """Return weight and bias of a norm; an RMSNorm of zeros gives zeros."""
        module = find_module(self.net, str(node.target))
        if isinstance(module, nn.RMSNorm) and node.all_input_nodes[0] in zero:
            return []
        names = [name for name, _ in module.named_parameters(str(node.target))]
        if not names:
            raise NoSlicesError(f"{describe_call(node)} writes it without a weight")
        return [s for name in names for s in self._whole(name, group)]

    def _keeps_zero(self, node: fx.Node) -> bool:
        """Return whether a call makes zero of zero, and a smaller number of a smaller one."""
        rule, spec = self.rules.get(node), spec_of(node, self.net)
        name = str(getattr(node.target, "__name__", node.target))
        if rule is reshape.pad:
            return not _option(self.net, node, 3, "value")
        if rule is el.unary and name == "pow":
            power = _option(self.net, node, 1, "exponent")
            return isinstance(power, int | float) and power > 0
        is_homogeneous = spec is not None and spec.rule == ACTIVATE and spec.homogeneous
        return rule in _PASSING or is_homogeneous or (rule is el.unary and name in _SIGNS)

    def _whole(self, name: str, group: int) -> list[Slices]:
        name = self.first.get(name, name)
        slices = self.slices(name, None, group)
        if name not in self.parameters or not slices:
            raise NoSlicesError(f"{name!r} adds to it, and has no slice for each of its channels")
        return slices

    def _rows(self, node: fx.Node, group: int, atoms: Tensor) -> list[Slices]:
        """Return the rows by which a layer writes channels: of queries, keys and values some."""
        op = self.ops[node]
        labels = self.followed.values[node.name]
        if op is None or op.kind == RECURRENT or node.name in self.followed.passing:
            raise NoSlicesError(f"{describe_call(node)} has no rows that write it alone")
        is_own = torch.isin(line_along(labels.ids, labels.ids.dim() + op.channel_dim), atoms)
        slices = self._rows_of(op.weight, op.out_dim, op.weight_rows, group, is_own)
        if not slices:
            raise NoSlicesError(f"{describe_call(node)} has no rows that write it alone")
        if op.bias is not None:
            slices += self._rows_of(op.bias, 0, op.bias_rows, group, is_own)
        return slices

    def _rows_of(
        self, name: str, dim: int, part: slice, group: int, is_own: Tensor
    ) -> list[Slices]:
        flags = torch.zeros(find_tensor(self.net, name).shape[dim], dtype=torch.bool, device="cpu")
        if len(flags[part]) != len(is_own) or not bool(is_own.any()):
            return self.slices(name, dim, group)
        flags[part] = is_own
        return self.slices(name, dim, group, flags)


def _operands(node: fx.Node) -> list[fx.Node]:
    """Return the tensors that a call takes, each as often as it is written."""
    operands: list[fx.Node] = []
    map_arg((node.args, node.kwargs), operands.append)
    return operands


def _option(net: nn.Module, node: fx.Node, position: int, name: str) -> object:
    """Return a setting of a call: an attribute of its module, an argument of a function."""
    if node.op == "call_module":
        return getattr(find_module(net, str(node.target)), name, None)
    return node.args[position] if len(node.args) > position else node.kwargs.get(name)


def _describe(node: fx.Node) -> str:
    return describe_call(node) if node.op.startswith("call") else f"{str(node.target)!r}"


def are_zero(net: nn.Module, slices: Slices) -> Tensor:
    """Return which slices are exactly zero now."""
    is_zero = find_tensor(net, slices.parameter).detach() == 0
    if slices.dim is None:
        return is_zero.flatten().cpu()
    return is_zero.movedim(slices.dim, 0).reshape(is_zero.shape[slices.dim], -1).all(1).cpu()
