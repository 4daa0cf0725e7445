"""Leave closed residual branches out of a graph, and the modules that only they called."""

from collections.abc import Iterable

from torch import fx, nn

from archlearn.module_utils import find_module, find_tensor, list_tensors
from archlearn.surgery.planning import Decision
from archlearn.tracing.block_hooks import MARKS, erase_marks_of_
from archlearn.tracing.symbolic_trace import Blocks


def leave_out_branches_(
    graph: fx.Graph, nodes: dict[str, fx.Node], decision: Decision, place: int
) -> None:
    """Let the sum of each closed branch be its shortcut, and erase what nobody reads then.

    Args:
        graph: A copy of one of the model's graphs.
        nodes: Its nodes by their names in the original; those that are erased are taken out.
        decision: Which branches are closed.
        place: Which of the graphs it is.
    """
    for name in decision.closed:
        addition = decision.choice.branches[name].additions[place]
        node = nodes.pop(addition.node)
        shortcut = node.args[1 - addition.operand]
        assert isinstance(shortcut, fx.Node)
        node.replace_all_uses_with(shortcut)
        graph.erase_node(node)
    gone = {nodes.pop(name) for name in decision.gone_calls(place) & nodes.keys()}
    for node in [node for node in reversed(graph.nodes) if node in gone]:
        erase_marks_of_(node)
        graph.erase_node(node)


def remove_tensors_(net: nn.Module, removed: Iterable[str], graphs: Iterable[fx.Graph]) -> None:
    """Take parameters and buffers away; a module that is left with none becomes `nn.Identity`.

    A module that some graph still calls, or whose part it calls, stays without them, and so does
    a block whose hooks it calls.
    """
    gone = {id(find_tensor(net, name)) for name in removed}
    if not gone:
        return
    nodes = [node for graph in graphs for node in graph.nodes]
    names = [node.target for node in nodes if node.op == "call_module"]
    names += [node.args[1] for node in nodes if node.target in MARKS]
    called = {find_module(net, str(name)) for name in names}
    _remove_(net, gone, called)


def _remove_(module: nn.Module, gone: set[int], called: set[nn.Module]) -> None:
    for held in (module._parameters, module._buffers):
        for name, tensor in held.items():
            if id(tensor) in gone:
                held[name] = None
    for name, child in module._modules.items():
        if child is None:
            continue
        tensors = [id(tensor) for _, tensor in list_tensors(child)]
        if tensors and gone.issuperset(tensors) and called.isdisjoint(child.modules()):
            module._modules[name] = nn.Identity()
        else:
            _remove_(child, gone, called)


def blocks_left(blocks: tuple[Blocks, ...], net: nn.Module) -> tuple[Blocks, ...]:
    """Return the calls of blocks that are still there."""
    names = {name for name, _ in net.named_modules(remove_duplicate=False)}
    return tuple(tuple(call for call in calls if call.path in names) for calls in blocks)
