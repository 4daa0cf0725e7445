"""Check that one model runs without another: it calls no module of it and reads no tensor of it."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from archlearn.module_utils import tensors_of


@contextmanager
def noticing_calls(model: nn.Module) -> Generator[list[str]]:
    """Yield a list that gets the name of each module of a model that is called meanwhile."""
    called: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *_: called.append(name)

    handles = [
        module.register_forward_pre_hook(note(name or type(model).__name__))
        for name, module in model.named_modules()
        if not isinstance(module, torch.jit.ScriptModule)  # takes none
    ]
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def filled_with_nan(model: nn.Module) -> Generator[None]:
    """Let every parameter and buffer of a model be NaN for a while; what reads one is NaN, too."""
    own = {tensor: tensor.data for _, tensor in tensors_of(model) if _is_plain(tensor)}
    try:
        for tensor in own:
            nan = torch.full((), torch.nan, dtype=tensor.dtype, device=tensor.device)
            tensor.data = nan.expand(tensor.shape)
        yield
    finally:
        for tensor, data in own.items():
            tensor.data = data


def find_shared(first: nn.Module, second: nn.Module) -> str:
    """Return the name that a tensor has in the first model whose memory the second uses, or ''."""
    theirs = {_memory(tensor) for _, tensor in tensors_of(second)}
    return next((name for name, tensor in tensors_of(first) if _memory(tensor) in theirs), "")


def _is_plain(tensor: Tensor) -> bool:
    is_number = tensor.is_floating_point() or tensor.is_complex()
    return is_number and tensor.layout is torch.strided and type(tensor) in (Tensor, nn.Parameter)


def _memory(tensor: Tensor) -> object:
    """Return where a tensor's numbers are; tensors without any share nothing."""
    if tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel():
        return id(tensor)
    return tensor.device, tensor.untyped_storage().data_ptr()
