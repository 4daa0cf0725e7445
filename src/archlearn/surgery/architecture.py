"""`read_architecture`: the width of every layer, after compaction if the model has gates."""

from dataclasses import dataclass

from torch import fx, nn

from archlearn.analysis.linear_ops import find_linear_ops, is_linear_op, layer_of
from archlearn.gating.attach import trace_copy
from archlearn.gating.cost_counter import EXAMPLE, known_inputs
from archlearn.gating.gate_container import find_container
from archlearn.module_utils import copy_model, evaluating, find_tensor
from archlearn.op_table import TRANSPOSED
from archlearn.surgery.decision import decide, has_gates
from archlearn.surgery.planning import write_plan
from archlearn.tracing.generated_forward import forward_graphs, unwrap
from archlearn.tracing.symbolic_trace import trace


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer that stays: its name, its width, and the width it had when gates were added."""

    name: str
    width: int
    initial_width: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """The layers that stay, in order.

    Attributes:
        is_chain: Whether each layer reads only the one before it.
    """

    layers: tuple[Layer, ...]
    is_chain: bool

    @property
    def widths(self) -> tuple[int, ...]:
        """The width of each layer."""
        return tuple(layer.width for layer in self.layers)

    def __str__(self) -> str:
        if self.is_chain:
            return "-".join(map(str, self.widths))
        size = max((len(layer.name) for layer in self.layers), default=0)
        return "\n".join(
            f"{layer.name:<{size}}  {layer.width}"
            + (f" of {layer.initial_width}" if layer.width != layer.initial_width else "")
            for layer in self.layers
        )


def read_architecture(
    model: nn.Module, example_inputs: object = None, *, pay: str = "parameters"
) -> Architecture:
    """Return the widths that `compact` would leave, or those of a model without gates.

    Args:
        model: A model with gates, one from `compact` or `load`, or any other.
        example_inputs: Arguments for one call; needed only where gates were placed by hand, and for
            a model that neither has gates nor comes from `compact` or `load`.
        pay: What a merge must lower to be made.
    """
    model = unwrap(model)
    if not has_gates(model):
        return _read_plain(model, example_inputs)
    with evaluating(model):
        decision = decide(model, example_inputs)
        merges = write_plan(model, decision, pay).merges
    gone = {layer for merge in merges if merge.made for layer in merge.layers[:-1]}
    gone_calls = decision.gone_calls(0)
    graph = decision.learnable.channel_graph.traces.evaluation
    layers: dict[str, Layer] = {}
    container = find_container(model)
    for name, rows in decision.learnable.rows:
        kept = int((~decision.dropped[rows]).sum())
        initial = len(rows) if container is None else container.original_widths[name]
        layers[name] = Layer(name, kept, initial)
    calls = [node for node in graph.nodes if node.name not in gone_calls]
    in_order = [layer_of(node) for node in calls if is_linear_op(node, model)]
    names = [name for name in dict.fromkeys(in_order) if name in layers and name not in gone]
    return Architecture(tuple(layers[name] for name in names), _is_chain(graph, model))


def _read_plain(model: nn.Module, example_inputs: object) -> Architecture:
    """Return the widths that a model without gates has."""
    graph = _find_graph(model, example_inputs)
    layers: dict[str, Layer] = {}
    for _, op in find_linear_ops(graph, model):
        weight, dim = op.output_dim
        width = find_tensor(model, weight).shape[dim] * (op.groups if op.kind == TRANSPOSED else 1)
        layers.setdefault(op.layer, Layer(op.layer, width, width))
    return Architecture(tuple(layers.values()), _is_chain(graph, model))


def _find_graph(model: nn.Module, example_inputs: object) -> fx.Graph:
    """Return the graph of a model without gates; that of an `nn.Sequential` needs no inputs."""
    generated = forward_graphs(model)
    if generated:
        return generated[0]
    if example_inputs is None and not hasattr(model, EXAMPLE):
        return trace(copy_model(model)).evaluation
    inputs = known_inputs(model, example_inputs)
    return trace_copy(model, inputs, None, must_learn=False)[1].channel_graph.graphs[0]


def _is_chain(graph: fx.Graph, model: nn.Module) -> bool:
    """Each layer reads one layer at most, none is read by two, and none is called twice."""
    behind: dict[fx.Node, set[fx.Node]] = {}
    readers: dict[fx.Node, int] = {}
    for node in graph.nodes:
        sources: set[fx.Node] = set()
        for source in node.all_input_nodes:
            sources |= {source} if is_linear_op(source, model) else behind[source]
        behind[node] = sources
        if is_linear_op(node, model):
            if len(sources) > 1:
                return False
            for source in sources:
                readers[source] = readers.get(source, 0) + 1
    calls = [layer_of(n) for n in graph.nodes if is_linear_op(n, model)]
    return all(n == 1 for n in readers.values()) and len(calls) == len(set(calls))
