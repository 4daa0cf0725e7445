"""RMSNorm modules of any class, recognised by what they compute: torch's, Llama's, Gemma's.

Of zeros an RMSNorm makes zeros, and they have no part in its sum of squares. So channels that are
always zero can be cut: of n channels m are left, and with weight·√(n/m) and eps·n/m the norm gives
what it gave.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_EPS = ("eps", "variance_epsilon", "epsilon")
_WIDEST = 1e-4  # some compute in float32, whatever they are given


@dataclass(frozen=True, slots=True)
class RMSNormForm:
    """How a module is an RMSNorm.

    Attributes:
        eps: The name of the attribute that is added to the mean of the squares.
        offset: What is added to the weight: 1 in Gemma, 0 elsewhere.
    """

    eps: str
    offset: float


def read_rms_norm(module: nn.Module) -> RMSNormForm | None:
    """Return how a module is an RMSNorm with a weight, or None if it is none."""
    weight = module._parameters.get("weight")
    names = [name for name in _EPS if name in vars(module)]
    if len(module._parameters) != 1 or weight is None or weight.dim() != 1 or len(names) != 1:
        return None
    if isinstance(module, nn.RMSNorm):
        return RMSNormForm("eps", 0.0)
    if next(module.children(), None) is not None or not weight.is_floating_point():
        return None
    forms = (RMSNormForm(names[0], offset) for offset in (0.0, 1.0))
    return next((form for form in forms if _fits(module, form)), None)


@torch.no_grad()
def _fits(module: nn.Module, form: RMSNormForm) -> bool:
    tried: Any = copy.deepcopy(module).to("cpu", torch.float64)
    generator = torch.Generator("cpu").manual_seed(0)
    drawn = torch.randn(2, 2, len(tried.weight), generator=generator, device="cpu")
    x, weight = drawn.double().unbind()
    weight = weight[0]
    tried.weight.copy_(weight)
    square = x.square().mean(-1, keepdim=True) + getattr(tried, form.eps)
    expected = x * square.rsqrt() * (weight + form.offset)
    try:
        result = tried(x)
    except Exception:  # whatever a module of the user's does with such an input
        return False
    return isinstance(result, Tensor) and torch.allclose(result.double(), expected, atol=_WIDEST)


def scale_eps_(module: nn.Module, form: RMSNormForm, factor: float) -> None:
    """Multiply the eps of an RMSNorm; one that follows the precision (None) stays."""
    eps = getattr(module, form.eps)
    setattr(module, form.eps, None if eps is None else eps * factor)


@torch.no_grad()
def scale_weight_(weight: Tensor, form: RMSNormForm, factor: float) -> None:
    """Multiply what an RMSNorm scales its channels by; the weight is in double precision then."""
    weight.data = (weight.double() + form.offset) * factor - form.offset
