"""Rules of BatchNorm, LayerNorm, GroupNorm and local response normalisation."""

from typing import Any

from torch import Tensor, nn

from archlearn.analysis.labels import CONSTANT, ZERO, Labels, replaced
from archlearn.analysis.rule_api import OpCall, opaque
from archlearn.module_utils import has_hooks
from archlearn.op_table import spec_of_class

_OF_BATCH_NORM = ("weight", "bias", "running_mean", "running_var")


def within_channel(step: OpCall) -> Any:
    """BatchNorm and InstanceNorm modules: a dropped channel becomes a constant."""
    module = step.module
    if not isinstance(step.out, Tensor) or step.out.shape != step.x.shape:
        return opaque(step)
    ids, _ = step.ledger.read(step.x, _channel_dim(step, type(module).__name__))
    for attribute in _OF_BATCH_NORM:
        if getattr(module, attribute, None) is not None:
            step.ledger.tie_dim(f"{step.node.target}.{attribute}", 0, ids)
    return Labels(step.x.ids, replaced(step.x.state, ZERO, CONSTANT))


def may_need_batch(module: nn.Module, x: Any) -> bool:
    """Return whether a norm would give a tensor like `x`, but fails in training on one row."""
    spec = spec_of_class(type(module))
    if spec is None or spec.rule != "normalization.within_channel" or has_hooks(module):
        return False
    fits = isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 1
    return module.training and fits and x.shape[1] == getattr(module, spec.sized_by)


def functional_batch_norm(step: OpCall) -> Any:
    """`F.batch_norm` with raw parameters."""
    if not isinstance(step.out, Tensor):
        return opaque(step)
    ids, _ = step.ledger.read(step.x, 1)
    for labels in step.labels[1:]:
        if labels.name is None:
            return opaque(step)
        step.ledger.tie(labels.ids.reshape(-1), ids)
    return Labels(step.x.ids, replaced(step.x.state, ZERO, CONSTANT))


def across_channels(step: OpCall) -> Any:
    """LayerNorm, GroupNorm, RMSNorm: all channels they read stay."""
    name = step.node.target if step.node.op == "call_module" else step.node.name
    return opaque(
        step,
        f"normalised together with other channels by {name!r}",
        "learn the layers inside the block (hidden units), or use BatchNorm there",
    )


def local_response(step: OpCall) -> Any:
    """Neighbours are summed at their original distance, so a channel that is zero may go."""
    step.ledger.block(
        step.x.ids[step.x.state != ZERO],
        f"its neighbours are normalised by it in {step.node.name!r}",
        "put the activation in front of the local response normalisation",
    )
    dim = 1 if step.x.ids.dim() > 2 else 0
    step.ledger.read(step.x, dim)
    return Labels(step.x.ids, step.x.state)


def _channel_dim(step: OpCall, class_name: str) -> int:
    n_space = {"1d": 1, "2d": 2, "3d": 3}.get(class_name[-2:], 0)
    batched = step.x.ids.dim() > n_space + 1 or "Batch" in class_name or n_space == 0
    return 1 if batched else 0
