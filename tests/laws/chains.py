"""Chains of affine layers that merge, as plain data, and the laws of merging."""

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from archlearn.surgery.merging import fold_batch_norm, merge_convolutions, merge_linear
from tests.laws.networks import randomise_
from tests.laws.pieces import BATCH_NORMS, CONVOLUTIONS
from tests.laws.programs import seeds

TOLERANCE = 1e-10
# The largest kernel and dilation, by dimensions of space: a merged kernel grows fast.
LARGEST = {0: (1, 1), 1: (3, 3), 2: (3, 2), 3: (2, 1)}


@dataclass(frozen=True, slots=True)
class Affine:
    """One layer of a chain: a convolution, or a Linear, where there is no space."""

    width: int
    kernel: int
    stride: int
    dilation: int
    bias: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """Three layers behind each other.

    Attributes:
        n_space: Dimensions of space; 0 means Linear layers.
        padding: What the layer that may pad pads by.
        late: Whether a bias-free 1×1 layer comes first, so that the second may pad.
        mode: How a layer fills its padding; it matters where the first layer pads.
    """

    n_space: int
    layers: tuple[Affine, Affine, Affine]
    padding: int
    late: bool
    mode: str
    seed: int


_small = st.sampled_from((1, 2, 3))
_affines = st.builds(
    Affine, st.integers(1, 4), _small, st.sampled_from((1, 1, 2)), _small, st.booleans()
)
CHAINS = st.builds(
    Chain,
    st.sampled_from((0, 1, 2, 2, 3)),
    st.tuples(_affines, _affines, _affines),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from(("zeros", "zeros", "reflect", "replicate", "circular")),
    seeds,
)


def build_chain(chain: Chain) -> list[Any]:
    """Return the three layers in float64."""
    torch.manual_seed(chain.seed)
    made: list[Any] = []
    n_in = 2
    for place, affine in enumerate(chain.layers):
        made.append(_layer(chain, place, affine, n_in))
        n_in = affine.width
    for place, layer in enumerate(made):
        randomise_(layer.double(), chain.seed + place)
    return made


def _layer(chain: Chain, place: int, affine: Affine, n_in: int) -> Any:
    if not chain.n_space:
        return nn.Linear(n_in, affine.width, bias=affine.bias)
    point = chain.late and place == 0
    pads = place == int(chain.late)
    kernel, dilation = _sizes(chain, affine)
    return CONVOLUTIONS[chain.n_space](
        n_in,
        affine.width,
        1 if point else kernel,
        stride=affine.stride,
        dilation=dilation,
        padding=chain.padding if pads else 0,
        padding_mode="zeros" if pads and chain.late else chain.mode,
        bias=affine.bias and not point,
    )


def inputs_of(chain: Chain) -> Tensor:
    """Return a batch for the first layer."""
    generator = torch.Generator().manual_seed(chain.seed)
    size = 2 + chain.seed % 2
    for affine in reversed(chain.layers):
        kernel, dilation = _sizes(chain, affine)
        size = (size - 1) * affine.stride + dilation * (kernel - 1) + 1
    shape = (2, 2, *[size + 1 + dim for dim in range(chain.n_space)])
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _sizes(chain: Chain, affine: Affine) -> tuple[int, int]:
    kernel, dilation = LARGEST[chain.n_space]
    return min(kernel, affine.kernel), min(dilation, affine.dilation)


def merge(first: Any, second: Any) -> Any:
    """Return two layers as one."""
    linear = isinstance(first, nn.Linear)
    return merge_linear(first, second) if linear else merge_convolutions(first, second)


def check_same_values(one: Tensor, other: Tensor) -> None:
    """Check that two results agree, relative to their size."""
    assert one.shape == other.shape
    gap, size = float((one - other).abs().max()), float(one.abs().max())
    assert gap <= TOLERANCE * size, f"differ by {gap:.2e} where outputs are {size:.2e}"


@torch.no_grad()
def check_merge(chain: Chain) -> None:
    """Two layers merged compute what they computed one behind the other."""
    first, second, _ = build_chain(chain)
    x = inputs_of(chain)
    check_same_values(second(first(x)), merge(first, second)(x))


@torch.no_grad()
def check_associative(chain: Chain) -> None:
    """Three layers merge into the same function from the left and from the right."""
    first, second, third = build_chain(chain)
    x = inputs_of(chain)
    left = merge(merge(first, second), third)
    right = merge(first, merge(second, third))
    expected = third(second(first(x)))
    check_same_values(expected, left(x))
    check_same_values(left(x), right(x))
    assert left.weight.shape == right.weight.shape
    check_same_values(left.weight, right.weight)


@torch.no_grad()
def check_fold(chain: Chain) -> None:
    """A BatchNorm folds into the layer before it, before or after that layer is merged."""
    first, second, _ = build_chain(chain)
    norm = BATCH_NORMS[chain.n_space](second.weight.shape[0]).double().eval()
    randomise_(norm, chain.seed + 7)
    x = inputs_of(chain)
    early = merge(first, fold_batch_norm(second, norm))
    late = fold_batch_norm(merge(first, second), norm)
    check_same_values(norm(second(first(x))), early(x))
    check_same_values(early(x), late(x))
