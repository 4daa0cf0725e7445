"""A model is looked at in evaluation mode, and left in the mode it was in."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def evaluating(*models: nn.Module) -> Generator[None]:
    """Put models into evaluation mode for a while; each submodule gets its own mode back."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        if any(training or _sets_mode(module) for module, training in modes):
            for model in models:
                model.eval()
        yield
    finally:
        for module, training in modes:
            if module.training is not training:
                module.training = training


def _sets_mode(module: nn.Module) -> bool:
    """Return whether a module does more than torch's own when it is put into another mode."""
    cls = type(module)
    return cls.train is not nn.Module.train or cls.eval is not nn.Module.eval


def modes_of(model: nn.Module) -> dict[str, bool]:
    """Return whether each submodule is in training mode, by name."""
    return {name: module.training for name, module in model.named_modules()}


def set_modes_(model: nn.Module, modes: Mapping[str, bool]) -> None:
    """Put a model into the mode of another one, and submodules of the same name into theirs."""
    model.train(modes[""])
    for name, module in model.named_modules():
        module.training = modes.get(name, modes[""])


class ModeReads:
    """Notices whether anything asks a module for its mode while a network is traced.

    Attributes:
        readers: The modules that were asked.
    """

    def __init__(self) -> None:
        self.seen = False
        self.readers: set[nn.Module] = set()

    def __get__(self, module: Any, owner: type) -> Any:
        if module is None:
            raise AttributeError("training")
        self.seen = True
        self.readers.add(module)
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
    if not isinstance(reads, ModeReads):
        yield
        return
    before = reads.seen, set(reads.readers)
    try:
        yield
    finally:
        reads.seen, reads.readers = before
