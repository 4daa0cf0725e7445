"""A device "gpu" for torch on machines without one: its memory is the CPU's, but it is not the CPU.

An operation that mixes its tensors with the CPU's fails as on a GPU: indices of the CPU may select
from its tensors, but not the other way round, and numbers without dimensions go with both.
"""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import _VF, Tensor
from torch.nn.modules import rnn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.cpp_extension import load

_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def register_(folder: Path) -> None:
    """Compile the device into a folder and make it torch's "gpu", for the rest of the process."""
    source = Path(__file__).with_name("device.cpp")
    flags = ["-O0", "-w"]
    load("pretended_gpu", [str(source)], build_directory=str(folder), extra_cflags=flags)
    torch.utils.rename_privateuse1_backend("gpu")
    module: Any = ModuleType("gpu")
    module.is_available = lambda: True
    module._is_in_bad_fork = lambda: False
    module.device_count, module.current_device = lambda: 1, lambda: 0
    module.manual_seed_all = module.manual_seed = lambda seed: None
    module.get_rng_state = lambda device=0: torch.get_rng_state()
    module.set_rng_state = lambda state, device=0: torch.set_rng_state(state)
    torch._register_device_module("gpu", module)
    for name in (*_RECURRENT, *(f"{name}_cell" for name in _RECURRENT)):
        setattr(_VF, name, _on_both(name, getattr(_VF, name)))
    rnn._rnn_impls.update(RNN_TANH=_VF.rnn_tanh, RNN_RELU=_VF.rnn_relu)


def _on_both(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a recurrent kernel that asks of tensors on the device what cuDNN asks of them."""

    def run(*args: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        if all(tensor.device.type == "cpu" for tensor in tensors):
            return kernel(*args)
        lengths = args[1] if isinstance(args[1], Tensor) and args[1].dtype is torch.int64 else None
        if any(x.device.type == "cpu" and x is not lengths for x in tensors):
            raise RuntimeError(f"{name} is given tensors of both devices")
        states = tree_leaves(args[1 if lengths is None else 2])
        if "cell" not in name and not all(state.is_contiguous() for state in states):
            raise RuntimeError("rnn: hx is not contiguous")
        found = kernel(*tree_map(lambda x: x.cpu() if isinstance(x, Tensor) else x, args))
        return tree_map(lambda x: x.to("gpu") if isinstance(x, Tensor) else x, found)

    return run
