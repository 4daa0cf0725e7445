"""Which channels within heads may be others in each head.

Where nothing tells the places within a head apart (no angles of positions, no weight that all heads
share, no slice), the channels of one head may change places among themselves: queries with keys, or
values. So every head must keep equally many of them, but not the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, fx, nn

from archlearn.analysis.channel_graph import ChannelGraph
from archlearn.analysis.channel_labels import FIXED, Labels, plane_along, varying, where_varying
from archlearn.analysis.linear_ops import is_linear_op, read_linear_op
from archlearn.analysis.propagation_rules import elementwise, products, reshape, rule_for
from archlearn.tracing.fx_utils import leaves_of

_PRODUCTS = (products.matmul, products.einsum, products.attention)
_PLACEWISE = (elementwise.product, elementwise.quotient, elementwise.total)
_ALLOWED = (
    *_PRODUCTS, *_PLACEWISE, elementwise.keep, elementwise.unary,
    reshape.move, reshape.pick, reshape.attribute, reshape.number,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReadPlane:
    """Channels within heads that a product reads.

    Attributes:
        ids: An atom for each head and place.
        dims: The dimensions of heads and of places, counted from behind.
    """

    ids: Tensor
    dims: tuple[int, int]


def read_plane(graph: ChannelGraph, index: int, node: fx.Node) -> ReadPlane | None:
    """Return the channels that a product reads in its first factor; None unless heads are apart."""
    labels = graph.followed[index].values[node.all_input_nodes[0].name]
    within = graph.followed[index].reads[node.name].dim
    if not isinstance(labels, Labels):
        return None
    varied, n_dims = where_varying(labels.ids), labels.ids.dim()
    heads = [dim - n_dims for dim in varying(graph.parents[0][varied])]
    if len(heads) != 1 or heads == [within]:
        return None
    ids = plane_along(varied, (heads[0], within))
    rows = graph.parents[0][ids[:, 0]]
    return ReadPlane(ids, (heads[0], within)) if len(rows.unique()) == len(rows) else None


def free_heads(graph: ChannelGraph, net: nn.Module) -> ChannelGraph:
    """Return the graph with groups that know their heads, where each may keep other channels."""
    if torch.equal(*graph.parents[:2]):
        return graph
    search = _Search(graph, net)
    rows, _, places = graph.parents
    search.bar(graph.group_of[places[places != rows]].unique().tolist())  # of heads that share one
    for ids in graph.dims.values():
        search.look_at(ids)
    for ids in graph.elements.values():  # no slice could take others of each row
        search.bar(search.groups_within(ids))
        search.look_at(ids)
    for index, nodes in enumerate(graph_nodes.nodes for graph_nodes in graph.graphs):
        for node in nodes:
            search.look_at_node(index, node)
    groups = tuple(
        replace(group, channels=search.order[index], heads=search.heads[index])
        if index in search.heads and index not in search.barred
        else group
        for index, group in enumerate(graph.groups)
    )
    return replace(graph, groups=groups)


@dataclass(slots=True)
class _Search:
    """Looks where channels within heads pass.

    Attributes:
        within: For each atom the group of its place within all heads, or -1.
        order: The channels of each group in the order in which tensors have them.
        heads: The heads of each group.
        barred: Groups of which every head must keep the same.
    """

    graph: ChannelGraph
    net: nn.Module
    within: Tensor = field(init=False)
    order: dict[int, Tensor] = field(default_factory=dict)
    heads: dict[int, Tensor] = field(default_factory=dict)
    barred: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        rows, columns, _ = self.graph.parents
        self.within = torch.where(rows == columns, -1, self.graph.group_of[columns])

    def groups_within(self, ids: Tensor) -> list[int]:
        """Return the groups of which some channels lie within heads here."""
        return [p for p in self.within[where_varying(ids)].unique().tolist() if p >= 0]

    def bar(self, groups: Iterable[int]) -> None:
        """Take down that every head must keep the same channels of these groups."""
        self.barred.update(groups)

    def look_at(self, ids: Tensor) -> None:
        """Take down the heads that a tensor has, or that it has not all of each, in one order."""
        ids = where_varying(ids).reshape(-1)
        self.bar(self.graph.group_of[self.graph.root[ids]].unique().tolist())  # places themselves
        for group in self.groups_within(ids):
            self._look_at_runs(group, ids[self.within[ids] == group])

    def _look_at_runs(self, group: int, ids: Tensor) -> None:
        channels = self.graph.groups[group].channels
        if len(ids) % len(channels):
            self.bar([group])
            return
        rows, columns = self.graph.parents[:2, ids].view(2, -1, len(channels))
        order = self.order.setdefault(group, columns[0])
        is_whole = torch.equal(order.sort().values, channels.sort().values)
        is_alike = bool((columns == order).all() and (rows == rows[:, :1]).all())
        heads = rows[:, 0]
        heads_so_far = self.heads.setdefault(
            group, torch.tensor(list(dict.fromkeys(heads.tolist())), device="cpu")
        )
        is_known = bool(torch.isin(heads, heads_so_far).all() and (heads != FIXED).all())
        if not is_whole or not is_alike or not is_known or len(heads_so_far) < 2:
            self.bar([group])

    def look_at_node(self, index: int, node: fx.Node) -> None:
        """Bar what a call may tell apart within heads."""
        followed = self.graph.followed[index]
        written = [x for x in leaves_of(followed.values[node.name]) if isinstance(x, Labels)]
        read = [followed.values[factor.name] for factor in node.all_input_nodes]
        read = [x for factor in read for x in leaves_of(factor) if isinstance(x, Labels)]
        for labels in written:
            self.look_at(labels.ids)
        groups = {group for x in (*written, *read) for group in self.groups_within(x.ids)}
        if groups and not self._is_allowed(index, node, written, read):
            self.bar(groups)
        if node.name in followed.reads:
            direct = self.graph.group_of[self.graph.root[followed.reads[node.name].ids]]
            is_apart = rule_for(node, self.net) in _PRODUCTS and bool((direct == direct[0]).all())
            if not is_apart or read_plane(self.graph, index, node) is None:
                self.bar(direct.tolist())

    def _is_allowed(
        self, index: int, node: fx.Node, written: list[Labels], read: list[Labels]
    ) -> bool:
        if node.op in ("get_attr", "placeholder"):
            return True
        if is_linear_op(node, self.net):
            op = read_linear_op(node, self.net)
            is_beside = node.name in self.graph.followed[index].passing
            return op is not None and op.groups == 1 and not is_beside
        rule = rule_for(node, self.net)
        if rule in _PLACEWISE:
            return all(self._treats_alike(x, written[0]) for x in read)
        return rule in _ALLOWED

    def _treats_alike(self, factor: Labels, written: Labels) -> bool:
        """Return whether a factor has the same number for all places within a head, or its own."""
        if self.groups_within(factor.ids):
            return True
        ids = where_varying(written.ids)
        columns = torch.where(self.within[ids] < 0, FIXED, self.graph.parents[1][ids])
        behind = [dim - ids.dim() for dim in varying(columns)]
        return all(-dim > factor.ids.dim() or factor.shape[dim] == 1 for dim in behind)
