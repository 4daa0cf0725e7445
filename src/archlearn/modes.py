"""A model is looked at in evaluation mode, and left in the mode it was in."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def evaluating(*models: nn.Module) -> Generator[None]:
    """Put models into evaluation mode for a while; each submodule gets its own mode back."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        for model in models:
            model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


class ModeReads:
    """Notices whether anything asks a module for its mode while a network is traced."""

    def __init__(self) -> None:
        self.seen = False

    def __get__(self, module: Any, owner: type) -> Any:
        if module is None:
            raise AttributeError("training")
        self.seen = True
        return vars(module)["training"]

    def __set__(self, module: Any, training: bool) -> None:
        vars(module)["training"] = training


@contextmanager
def noticing_mode_reads(net: nn.Module) -> Generator[ModeReads]:
    """Notice every read of `training`, as torch.fx notices every call: on the class itself.

    A module with a `train` of its own may keep its mode elsewhere; that counts as a read.
    """
    reads = ModeReads()
    cls: Any = nn.Module
    cls.training = reads
    try:
        yield reads
    finally:
        if vars(cls).get("training") is reads:
            del cls.training
        reads.seen |= any(type(module).train is not nn.Module.train for module in net.modules())


@contextmanager
def unnoticed() -> Generator[None]:
    """Let reads of `training` pass that are not made by a `forward` that is traced."""
    reads = vars(nn.Module).get("training")
    seen = isinstance(reads, ModeReads) and reads.seen
    try:
        yield
    finally:
        if isinstance(reads, ModeReads):
            reads.seen = seen
