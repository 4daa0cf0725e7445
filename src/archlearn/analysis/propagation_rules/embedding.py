"""Rule of embeddings: rows of a table are looked up, channels are its columns."""

from typing import Any

import torch

from archlearn.analysis.channel_labels import UNKNOWN, Labels, along
from archlearn.analysis.rule_api import OpCall, opaque


def embedding(step: OpCall) -> Any:
    """`nn.Embedding` and `F.embedding` with a plain table."""
    if step.node.op == "call_module":
        name, most = f"{step.node.target}.weight", step.module.max_norm
    else:
        weight = step.argument(1, "weight")
        name = weight.name if isinstance(weight, Labels) else None
        most = step.argument(3, "max_norm")
    if name is None or most is not None:  # rows that are too long are scaled as a whole
        return opaque(step)
    ids = step.ledger.dim(name, 1)
    unknown = torch.tensor(UNKNOWN).expand(len(ids))
    return along(ids, unknown, step.out.shape, step.out.dim() - 1)
