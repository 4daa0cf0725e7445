"""`nn.GRUCell`, `nn.LSTMCell` and `nn.RNNCell` as plain layers, so that units are followed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlearn.module_utils import computes_weights, has_hooks


def recurrent_cell(m: nn.Module) -> Callable[..., Any] | None:
    """Return a forward of plain layers for a recurrent cell, or None for other modules."""
    if type(m) not in _STEPS or "forward" in vars(m) or has_hooks(m) or computes_weights(m):
        return None
    return partial(_STEPS[type(m)], m)


def _gru(m: Any, input: Tensor, hx: Tensor | None = None) -> Tensor:  # noqa: A002
    h = _zeros(m, input) if hx is None else hx
    x = F.linear(input, m.weight_ih, m.bias_ih).chunk(3, -1)
    y = F.linear(h, m.weight_hh, m.bias_hh).chunk(3, -1)
    reset, update = torch.sigmoid(x[0] + y[0]), torch.sigmoid(x[1] + y[1])
    new = torch.tanh(x[2] + reset * y[2])
    return new + update * (h - new)


def _lstm(m: Any, input: Tensor, hx: Any = None) -> tuple[Tensor, Tensor]:  # noqa: A002
    h, c = (_zeros(m, input), _zeros(m, input)) if hx is None else hx
    y = F.linear(input, m.weight_ih, m.bias_ih) + F.linear(h, m.weight_hh, m.bias_hh)
    i, f, g, o = y.chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _rnn(m: Any, input: Tensor, hx: Tensor | None = None) -> Tensor:  # noqa: A002
    h = _zeros(m, input) if hx is None else hx
    y = F.linear(input, m.weight_ih, m.bias_ih) + F.linear(h, m.weight_hh, m.bias_hh)
    return torch.tanh(y) if m.nonlinearity == "tanh" else torch.relu(y)


def _zeros(m: Any, x: Tensor) -> Tensor:
    if x.dim() != 2:
        raise ValueError(f"{type(m).__name__} is followed with a batch only")
    return x.new_zeros(x.shape[0], m.hidden_size)


_STEPS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.GRUCell: _gru,
    nn.LSTMCell: _lstm,
    nn.RNNCell: _rnn,
}
