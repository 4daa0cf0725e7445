"""`trace`: the graphs of a model, for training and for evaluation mode.

A model is traced twice, in evaluation and in training mode, because tracing bakes in whatever
Python decides from `self.training`. A submodule whose `forward` cannot be followed becomes an
opaque leaf: it is called as it is, and nothing is assumed about its inside.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn

from archlearn.errors import InputError, TracingError
from archlearn.module_utils import check_made, evaluating, noticing_mode_reads, unnoticed
from archlearn.tracing.block_hooks import BlockCall
from archlearn.tracing.example_inputs import ExampleInputs
from archlearn.tracing.fx_utils import Packed, describe_failure, pack_graph, unpack_graph
from archlearn.tracing.module_state import HOOKS, ModuleState, capture_state, preserve_state
from archlearn.tracing.output_types import tensors_in
from archlearn.tracing.rng import check_draws, preserve_rng, watching_draws
from archlearn.tracing.shape_guards import Refusal
from archlearn.tracing.trace_context import ONE_THREAD, ImportedMeanwhile, plain_context
from archlearn.tracing.tracer import ArchTracer, Leaf, UntraceableError
from archlearn.tracing.transformer_blocks import describe_fix

Blocks = tuple[BlockCall, ...]
_TRANSPARENT = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True, slots=True)
class Traces:
    """The calls of a model in evaluation and, where they differ, in training.

    Attributes:
        graphs: The graph of `forward` after `model.eval()`, and where that is another one, the
            graph after `model.train()`.
        opaque: Submodules that could not be followed, with the reason.
        answers: Lines that asked about shapes, with what the example inputs answered.
        asks_mode: Whether anything asked whether the model is in training.
        mode_readers: The submodules that were asked for theirs while their calls were followed.
        blocks: The calls of followed submodules in each graph, for their hooks.
    """

    graphs: tuple[fx.Graph, ...]
    opaque: dict[str, str]
    answers: dict[str, str] = field(default_factory=dict)
    asks_mode: bool = False
    mode_readers: tuple[str, ...] = ()
    blocks: tuple[Blocks, ...] = ()

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        kept = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        return _unpack, ([pack_graph(graph) for graph in self.graphs], kept)

    @property
    def evaluation(self) -> fx.Graph:
        """The graph for evaluation mode."""
        return self.graphs[0]

    @property
    def all_blocks(self) -> Blocks:
        """The calls of followed submodules in all graphs."""
        return tuple(call for calls in self.blocks[: len(self.graphs)] for call in calls)


def _unpack(packed: list[Packed], kept: dict[str, Any]) -> Traces:
    return Traces(tuple(map(unpack_graph, packed)), **kept)


def trace(
    net: nn.Module, inputs: ExampleInputs | None = None, leaves: Iterable[Leaf] = ()
) -> Traces:
    """Follow the calls of `net.forward` for the arguments that `inputs` gives.

    Arguments of `forward` that `inputs` leaves out keep their defaults. `net` is unchanged.
    """
    bound: Any = vars(type(net)).get("_archlearn_graphs")
    if bound is not None:
        return Traces(tuple(bound), {})
    check_made(net)
    marked = list(leaves)
    opaque: dict[str, str] = {}
    with ONE_THREAD, evaluating(net):
        while True:
            with noticing_mode_reads(net) as reads:
                evaluation, tracer = _trace_mode(net.eval(), inputs, marked, opaque)
            if not reads.seen:
                return Traces((evaluation,), opaque, tracer.answered, blocks=(tracer.blocks,))
            n_opaque = len(opaque)
            with noticing_mode_reads(net) as more_reads:
                training, other = _trace_mode(net.train(), inputs, marked, opaque)
            if len(opaque) == n_opaque:
                break
            # A part that training calls as it is must be a leaf in evaluation, too: gates inside
            # would act there only, and never learn.
    same = _fingerprint(evaluation) == _fingerprint(training)
    readers = reads.readers | more_reads.readers
    names = tuple(name for name, module in net.named_modules() if name and module in readers)
    answers, blocks = tracer.answered | other.answered, (tracer.blocks, other.blocks)
    graphs = (evaluation,) if same else (evaluation, training)
    return Traces(graphs, opaque, answers, True, names, blocks)


def _trace_mode(
    net: nn.Module,
    inputs: ExampleInputs | None,
    marked: list[Leaf],
    opaque: dict[str, str],
) -> tuple[fx.Graph, ArchTracer]:
    """Return the graph of a model in its present mode, and the tracer that made it."""
    is_strict, held, is_settled = False, capture_state(net), False
    while True:
        tracer = ArchTracer([*marked, *opaque], inputs, is_strict=is_strict)
        try:
            with (
                preserve_state(net, held) as before,
                plain_context(tracer),
                watching_draws() as generators,
            ):
                graph = tracer.trace(net)
                if not generators.has_moved() and not before.find_changed():
                    return graph, tracer
                if is_strict:
                    check_draws(generators)
                    before.check()
                changed = before.find_changed()
            was_settled, is_settled = is_settled, bool(changed) and _settle_(net, inputs)
            if not is_settled and not generators.has_moved() and _leaves_cache(net, inputs):
                if not _forget_cache_(net, inputs):
                    _check_attributes(net, graph)
                    return graph, tracer
                held, is_settled = capture_state(net), was_settled
                continue
            # Once more: as after a first call, or to find the module that does it every time.
            is_strict, is_settled = was_settled or not is_settled, True
            held = capture_state(net)
        except ImportedMeanwhile:
            continue
        except UntraceableError as refusal:
            if refusal.name in opaque:
                raise _refuse(net, refusal.reason) from refusal
            if not _forget_cache_(net, inputs):
                opaque[refusal.name] = refusal.reason + describe_fix(refusal.module, refusal.reason)
                for name, module in net.named_modules():
                    is_alike = type(module) is type(refusal.module)
                    if name and is_alike and not isinstance(module, _TRANSPARENT):
                        opaque.setdefault(name, refusal.reason)
            held = capture_state(net)
        except (InputError, TracingError):
            raise
        except (Exception, Refusal) as error:
            raise _refuse(net, describe_failure(error)) from error


def _check_attributes(net: nn.Module, graph: fx.Graph) -> None:
    """Raise if a graph reads a buffer that the model has after its first call only."""
    for node in graph.find_nodes(op="get_attr"):
        try:
            attrgetter(str(node.target))(net)
        except AttributeError:
            raise TracingError(
                f"cannot follow the forward of {type(net).__name__}: register {node.target!r} in "
                "__init__, not in forward, where the model has it after its first call only"
            ) from None


def _try_calls(
    net: nn.Module, inputs: ExampleInputs | None, attempt: Callable[[ModuleState], bool]
) -> bool:
    """Return what calls of a model show; unless that is True, the model is as it was before."""
    if inputs is None or not inputs.are_real:
        return False
    before = capture_state(net)
    with torch.no_grad(), preserve_rng(inputs), unnoticed():
        try:
            if attempt(before):
                return True
        except Exception:  # whatever is wrong is told by the trace
            pass
    before.put_back()
    return False


def _settle_(net: nn.Module, inputs: Any) -> bool:
    """Call a model if only its first call leaves something behind: a flag, or hooks.

    Return whether that is so; else the model is as it was.
    """

    def attempt(before: ModuleState) -> bool:
        with evaluating(net):
            _call(net, inputs)
            is_flag, after = before.only_flags_changed(), capture_state(net)
            _call(net, inputs)
        return is_flag and bool(before.find_changed()) and not after.find_changed()

    return _try_calls(net, inputs, attempt)


def _leaves_cache(net: nn.Module, inputs: Any) -> bool:
    """Return whether calls leave only what spares work later, such as the grid for a size.

    It is left once for inputs of some sizes, and whether it is there changes no output. The trace
    works it out anew at every call.
    """

    def attempt(before: ModuleState) -> bool:
        repeated = tensors_in(_call(net, inputs))
        before.put_back()
        _call(net, inputs.with_other_values())
        after = capture_state(net)
        again = tensors_in(_call(net, inputs))
        is_cache = not after.find_changed() and all(map(torch.equal, repeated, again))
        before.put_back()
        return is_cache

    return _try_calls(net, inputs, attempt)


def _forget_cache_(net: nn.Module, inputs: Any) -> bool:
    """Let modules forget what they keep for the size of an earlier call.

    A trace may not ask whether a size is that one. What is kept is what a call with another batch
    replaces; it becomes what it was at first: the default of its class, or None. Return whether
    there is such a thing and no output changes by it; else the model is as it was.
    """

    def attempt(before: ModuleState) -> bool:
        meant = tensors_in(_call(net, inputs))
        _call(net, inputs.map(lambda x: torch.cat([x, x]) if x.dim() else x))
        changed = before.list_changed()
        before.put_back()
        held = [(m, name) for m, name in changed if name not in HOOKS]
        kept = [(m, name) for m, name in held if vars(m).get(name) is not None]
        for module, name in kept:
            delattr(module, name)
            if not hasattr(module, name):
                setattr(module, name, None)
        with preserve_state(net):
            same = all(map(torch.equal, meant, tensors_in(_call(net, inputs))))
        return bool(kept) and same

    return _try_calls(net, inputs, attempt)


def _call(net: nn.Module, inputs: ExampleInputs) -> Any:
    copied = inputs.copy()
    return net(*copied.args, **copied.kwargs)


def _refuse(net: nn.Module, reason: str) -> TracingError:
    return TracingError(
        f"cannot follow the forward of {type(net).__name__}: {reason}. Move what depends on the "
        "data into a submodule of its own: it is then called as a leaf, and the rest is learnt "
        "(leaves=[...] marks one by name or class). Or learn a part on its own: model.part = "
        "al.add_gates(model.part, its_inputs), and model.part = al.compact(model.part) at the end"
    )


def _fingerprint(graph: fx.Graph) -> list[str]:
    return [f"{n.op} {n.name} {n.target} {n.args} {n.kwargs}" for n in graph.nodes]
