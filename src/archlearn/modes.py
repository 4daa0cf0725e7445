"""A model is looked at in evaluation mode, and left in the mode it was in."""

from collections.abc import Generator
from contextlib import contextmanager

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
