"""Methods of transformers that a generated `forward` leaves without effect: refuse or warn.

They would write a folder without its gates, or switch on what the generated code never asks for.
"""

import logging
from collections.abc import Callable
from typing import Any

from torch import nn

from archlearn.errors import InputError
from archlearn.tracing.generated_forward import user_class
from archlearn.tracing.transformer_blocks import is_pretrained

_log = logging.getLogger(__name__)
_CHECKPOINTING = (
    "gradient checkpointing saves no memory in this %s: its forward is generated and calls the "
    "layers inside its blocks, not the blocks. Use smaller batches and accumulate gradients; what "
    "to_transformers of archlearn.export.pretrained_folder returns has its own forward again"
)


def methods_of_gated(net: nn.Module) -> dict[str, Callable[..., Any]]:
    """Return what a model with gates does in place of its own methods."""
    methods = {"save_pretrained": _save_pretrained} if is_pretrained(net) else {}
    return methods | methods_of_bound(net)


def methods_of_bound(net: nn.Module) -> dict[str, Callable[..., Any]]:
    """Return what any model with a generated `forward` does in place of its own methods."""
    return {"gradient_checkpointing_enable": _enable_checkpointing} if is_pretrained(net) else {}


def warn_of_checkpointing(net: nn.Module) -> None:
    """Log that gradient checkpointing, which is switched on, has no effect from now on."""
    if any(getattr(module, "gradient_checkpointing", False) for module in net.modules()):
        _log.warning(_CHECKPOINTING, user_class(net).__name__)


def _save_pretrained(self: Any, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
    """Refuse to write a folder that `from_pretrained` reads without its gates.

    The Trainer names `state_dict`, and its checkpoints hold gates: a run goes on from them.
    """
    if "state_dict" not in kwargs:
        raise InputError(
            f"save_pretrained of {type(self).__name__} would write a folder that from_pretrained "
            "reads without its gates, as if all were open; write the compact model, by "
            "save_pretrained(archlearn.compact(model), folder) of "
            "archlearn.export.pretrained_folder, or keep model.state_dict() to go on learning"
        )
    base: Any = user_class(self)
    return base.save_pretrained(self, save_directory, *args, **kwargs)


def _enable_checkpointing(self: Any, *args: Any, **kwargs: Any) -> None:
    """Switch gradient checkpointing on for the model that `to_transformers` returns."""
    base: Any = user_class(self)
    base.gradient_checkpointing_enable(self, *args, **kwargs)
    warn_of_checkpointing(self)
