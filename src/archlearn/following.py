"""The calls of a copy are followed, and seen to be what the model itself does."""

import logging
from collections.abc import Mapping

from torch import nn

from archlearn.binding import is_bound, without_graph_module
from archlearn.choosing import Choice, choose
from archlearn.copies import copy_model
from archlearn.errors import TracingError
from archlearn.graphs.huggingface import disable_caches_, with_attention_mask
from archlearn.graphs.rehearsals import rehearse
from archlearn.graphs.tracing import ExampleInputs, Leaf
from archlearn.graphs.transformers import BLOCKS, has_blocks
from archlearn.graphs.weights import put_weights_back_
from archlearn.independence import noticing_calls
from archlearn.instance_forward import remove_wrapper_
from archlearn.learning import Learn

_log = logging.getLogger(__name__)


def follow_copy(
    net: nn.Module,
    inputs: ExampleInputs,
    learn: Mapping[str, Learn] | None,
    leaves: tuple[Leaf, ...] = (),
    *,
    must_learn: bool = True,
) -> tuple[nn.Module, Choice]:
    """Return a copy, and what is learnt in it; torch's own blocks are followed where they can be.

    Their fused kernel may compute something else than their layers, and so may a subclass.

    Raises:
        InputError: As `choose` does, or if the model does not run on the inputs.
        TracingError: If its calls cannot be followed.
    """
    inputs = with_attention_mask(net, inputs)
    try:
        copied, choice = _rehearse(net, inputs, learn, leaves, must_learn=must_learn)
    except TracingError:
        if not has_blocks(net):
            raise
        leaves = (*leaves, *BLOCKS)
        copied, choice = _rehearse(net, inputs, learn, leaves, must_learn=must_learn)
    for name, why in choice.blueprint.traces.opaque.items():
        if has_blocks(copied.get_submodule(name)):
            _log.warning("%s was not looked into: %s", name, why)
    return copied, choice


def _rehearse(
    net: nn.Module,
    inputs: ExampleInputs,
    learn: Mapping[str, Learn] | None,
    leaves: tuple[Leaf, ...],
    *,
    must_learn: bool,
) -> tuple[nn.Module, Choice]:
    copied = copy_model(without_graph_module(net))
    for module in copied.modules():
        remove_wrapper_(module)
    disable_caches_(copied)
    choice = choose(copied, inputs, learn, leaves, must_learn=must_learn)
    if not is_bound(net):
        with noticing_calls(net) as called:
            rehearse(copied, choice.blueprint.traces, choice.blueprint.inputs)
        if called:
            raise TracingError(
                f"a copy of {type(net).__name__} still calls {called[0]!r} of the model itself: "
                "something that is not copied holds it, such as a lambda or a hook made from it; "
                "let that use the module that it is called with (self), or remove it"
            )
        put_weights_back_(copied, net, choice.blueprint.traces)
    return copied, choice
