"""Gates of the units of `nn.LSTM`, `nn.GRU` and `nn.RNN`."""

import warnings
import weakref
from collections import OrderedDict
from typing import Any

from torch import Tensor, nn

from archlearn.module_utils import is_weight_hook
from archlearn.nn.tristate_activation import gate_channels


def call_recurrent(layer: nn.RNNBase, width: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Call a recurrent layer in which each unit has a gate wherever the layer itself reads it.

    The next step reads units by `weight_hh`, the next layer by its `weight_ih`: their columns are
    multiplied, and the kernel is the layer's own. Whoever reads what it returns has gates there.
    """
    hooks = layer._forward_pre_hooks
    for hook in filter(is_weight_hook, hooks.values()):  # put there since (`prune`)
        hook(layer, args)
    weights: dict[str, Tensor] = {name: getattr(layer, name) for name in layer._flat_weights_names}
    for name, weight in weights.items():
        is_first = name.removesuffix("_reverse") == "weight_ih_l0"
        if name.startswith(("weight_hh", "weight_ih")) and not is_first:
            gates = width.repeat(weight.shape[1] // len(width))  # of both directions
            weights[name] = gate_channels(weight, gates, 1)
    twin: nn.RNNBase = object.__new__(type(layer))  # other threads may call the layer meanwhile
    flat = list(weights.values())
    vars(twin).update(vars(layer) | weights, _flat_weights=flat)
    vars(twin).update(
        _flat_weight_refs=[weakref.ref(weight) for weight in flat],
        _forward_pre_hooks=OrderedDict(
            (key, hook) for key, hook in hooks.items() if not is_weight_hook(hook)
        ),
    )
    if not width.is_cuda:
        return twin(*args, **kwargs)
    with warnings.catch_warnings():  # cuDNN lays weights side by side anew each time
        warnings.filterwarnings("ignore", "RNN module weights are not part of single")
        return twin(*args, **kwargs)
