"""Pairs of layers that could merge into one if the activation between them is linear."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx, nn

from archlearn.analysis.channel_labels import Labels
from archlearn.analysis.gate_sites import Site
from archlearn.analysis.linear_ops import (
    is_called_again,
    is_linear_op,
    read_linear_op,
)
from archlearn.analysis.rule_api import name_of
from archlearn.module_utils import find_module
from archlearn.op_table import LINEAR, TRANSPOSED, spec_of, spec_of_class

AT_THE_BORDER = "so the merged layer would differ at the border"
OTHERWISE = "its layers are called differently in training and in evaluation"


@dataclass(frozen=True, slots=True)
class MergeablePair:
    """Two layers that merge exactly if the activation between them is linear.

    Attributes:
        norms: BatchNorms between the two, in order.
        nodes: The calls that a merge removes from each graph: all behind the first, the second
            included.
    """

    site: str
    first: str
    second: str
    norms: tuple[str, ...]
    nodes: tuple[tuple[str, ...], ...]


def find_pair(
    graph: fx.Graph, net: nn.Module, site: Site, sharing: frozenset[str]
) -> MergeablePair | str:
    """Return the pair that a site stands in, or why a merge could not follow."""
    node = next(n for n in graph.nodes if n.name == site.node)
    before = _walk_back(node, net)
    if isinstance(before, str):
        return before
    behind = _walk_on(node, net)
    if isinstance(behind, str):
        return behind
    first, passed_before = before
    second, passed_behind = behind
    between = [*reversed(passed_before), node, *passed_behind]
    refusal = _check(net, first, second, between)
    if not refusal and sharing & {str(first.target), str(second.target)}:
        refusal = "the layer or the next one shares its weights with another"
    if refusal:
        return refusal
    norms = [n for n in between if _is_norm(n, net)]
    return MergeablePair(
        site=site.name,
        first=str(first.target),
        second=str(second.target),
        norms=tuple(str(n.target) for n in norms),
        nodes=((*(n.name for n in between), second.name),),
    )


def is_bypassed(graph: fx.Graph, values: Mapping[str, Any], call: str) -> bool:
    """Return whether a tensor goes around a call: a residual sum, a concatenation, a product.

    It is computed from what the call is computed from, and meets what is computed from the call.
    `values` are what the calls return: labels of tensors, or sizes, which carry no features.
    """
    node = next(n for n in graph.nodes if n.name == call)
    tensors = {n for n in graph.nodes if isinstance(values.get(n.name), Labels)}
    inputs = [n for n in tensors if n.op == "placeholder"]
    computed = _closure(inputs, lambda n: n.users, tensors)
    before = _closure([node], lambda n: n.all_input_nodes, computed)
    behind = _closure([node], lambda n: n.users, tensors)
    around = _closure(before - {node}, lambda n: n.users, tensors - {node})
    return not around.isdisjoint(behind)


def _closure(
    start: Iterable[fx.Node], step: Callable[[fx.Node], Iterable[fx.Node]], among: set[fx.Node]
) -> set[fx.Node]:
    waiting, seen = list(start), set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node in among and node not in seen:
            seen.add(node)
            waiting.extend(step(node))
    return seen


def join_pairs(
    graphs: Sequence[fx.Graph], pairs: Mapping[int, MergeablePair | str]
) -> MergeablePair | str:
    """Return the pair that a site stands in wherever its layers are called, or why there is none.

    `found` is what was found in each graph that has the site, by the place of the graph.
    """
    mergeable: list[MergeablePair] = []
    for pair in pairs.values():
        if isinstance(pair, str):
            return pair
        mergeable.append(pair)
    one = mergeable[0]
    if any(
        (pair.first, pair.second, pair.norms) != (one.first, one.second, one.norms)
        for pair in mergeable
    ):
        return OTHERWISE
    layers = {one.first, one.second, *one.norms}
    nodes: list[tuple[str, ...]] = []
    for index, graph in enumerate(graphs):
        pair = pairs.get(index)
        if not isinstance(pair, MergeablePair) and any(
            str(n.target) in layers for n in graph.nodes
        ):
            return OTHERWISE
        nodes.append(pair.nodes[0] if isinstance(pair, MergeablePair) else ())
    if len(graphs) - 1 not in pairs:
        return "called in evaluation mode only, where no gate learns"
    return replace(one, nodes=tuple(nodes))


def _walk_back(node: fx.Node, net: nn.Module) -> tuple[fx.Node, list[fx.Node]] | str:
    passed: list[fx.Node] = []
    here: Any = node.args[0] if node.args else None
    while isinstance(here, fx.Node):
        if len(here.users) > 1:
            return f"what {_name(here, net)} returns is read elsewhere, too"
        if is_linear_op(here, net):
            return here, passed
        if not _is_passed(here, net):
            return f"{_name(here, net)} comes between the layer and its activation"
        passed.append(here)
        here = here.args[0]
    return "no linear layer or convolution comes directly in front of its activation"


def _walk_on(node: fx.Node, net: nn.Module) -> tuple[fx.Node, list[fx.Node]] | str:
    passed: list[fx.Node] = []
    here = node
    while True:
        if len(here.users) != 1:
            return f"the activation's output is read by {len(here.users)} calls, not by one layer"
        here = next(iter(here.users))
        if is_linear_op(here, net):
            return here, passed
        if not _is_passed(here, net):
            return f"{_name(here, net)} comes between the activation and the next layer"
        passed.append(here)


def _name(node: fx.Node, net: nn.Module) -> str:
    """Return what a call does, in the same words wherever it does that: MaxPool2d, add()."""
    is_module = node.op == "call_module"
    return type(find_module(net, str(node.target))).__name__ if is_module else f"{name_of(node)}()"


def _is_norm(node: fx.Node, net: nn.Module) -> bool:
    if node.op != "call_module":
        return False
    module = find_module(net, str(node.target))
    spec = spec_of_class(type(module))
    foldable = spec is not None and spec.foldable and not module._forward_hooks
    return foldable and getattr(module, "running_mean", None) is not None


def _is_passed(node: fx.Node, net: nn.Module) -> bool:
    spec = spec_of(node, net)
    return (spec is not None and spec.passes) or _is_norm(node, net)


def _check(net: nn.Module, first: fx.Node, second: fx.Node, between: list[fx.Node]) -> str:
    one, two = read_linear_op(first, net), read_linear_op(second, net)
    if one is None or two is None or not (one.is_module and two.is_module):
        return "the layer or the next one is no module of torch's own"
    named = [first, second, *[n for n in between if _is_norm(n, net)]]
    if any(is_called_again(n) for n in named) or first.target == second.target:
        return "the layer or the next one is called more than once"
    read = [str(n.target) for n in first.graph.find_nodes(op="get_attr", sort=False)]
    if any(name.startswith(f"{n.target}.") for n in named for name in read):
        return "the weights of the layer or the next one are also read on their own"
    if one.kind == TRANSPOSED or two.kind == TRANSPOSED or one.kind != two.kind:
        return f"a {one.kind} cannot be merged with a {two.kind}"
    if one.kind == LINEAR:
        return ""
    pair = find_module(net, one.layer), find_module(net, two.layer)
    has_bias = len(named) > 2 or one.bias is not None
    return refuse_convolutions(*pair, "the next convolution", has_bias=has_bias)


def refuse_convolutions(first: Any, second: Any, name: str, *, has_bias: bool) -> str:
    """Return why two convolutions do not merge exactly, or ''; `name` stands for the second.

    The first may add a bias of its own, or that of a norm behind it.
    """
    if len(first.kernel_size) != len(second.kernel_size) or first.groups * second.groups > 1:
        return "a grouped convolution does not merge"
    if isinstance(first.padding, str) or isinstance(second.padding, str):
        return "one of the two convolutions has its padding as text; give it as numbers"
    if not any(second.padding):
        return ""
    if second.padding_mode != "zeros":
        return f"{name} pads by {second.padding_mode}"
    is_point = all(k == 1 for k in first.kernel_size) and not any(first.padding)
    if is_point and not has_bias:
        return ""
    return f"{name} pads by {second.padding}, {AT_THE_BORDER}"
