"""A certificate says by how much two models differ, and on what they were compared."""

import copy
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from archlearn.errors import CertificateError, InputError, first_line
from archlearn.graphs.tracing import ExampleInputs
from archlearn.modes import evaluating

# The largest relative difference that rounding alone explains, by the precision compared in.
TOLERANCES = {
    torch.float64: 1e-8,
    torch.float32: 1e-3,
    torch.float16: 5e-2,
    torch.bfloat16: 1e-1,
}
N_RANDOM = 1


@dataclass(frozen=True, slots=True)
class Certificate:
    """The largest differences between two models, relative to the size of the outputs.

    Attributes:
        difference: In the models' own precision.
        difference_float64: In double precision: what is not rounding.
        dtype: The models' own precision.
        n_inputs: How many inputs were compared: the examples, and random ones like them.
        tolerance: What `difference` was allowed to be.
        tolerance_float64: What `difference_float64` was allowed to be.
    """

    difference: float
    difference_float64: float
    dtype: str
    n_inputs: int
    tolerance: float
    tolerance_float64: float

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Certificate":
        """Return the certificate that `to_dict` gave."""
        return cls(**data)

    def __str__(self) -> str:
        return (
            f"same function on {self.n_inputs} inputs: largest relative difference "
            f"{self.difference_float64:.1e} in float64, {self.difference:.1e} in {self.dtype}"
        )


def certify(
    first: nn.Module,
    second: nn.Module,
    example_inputs: object,
    *,
    tolerance: float | None = None,
) -> Certificate:
    """Compare two models in evaluation mode, in their own precision and in float64.

    Args:
        first: A model.
        second: Another one, of the same precision and on the same device.
        example_inputs: Arguments for one call; random ones of the same shapes are added.
        tolerance: The relative difference allowed in the models' own precision.

    Raises:
        CertificateError: If they differ by more than rounding explains.
    """
    inputs = ExampleInputs.of(example_inputs)
    for place, model in (("first", first), ("second", second)):
        try:
            _run(model, inputs)
        except Exception as error:
            raise InputError(
                f"the {place} model, {type(model).__name__}, does not run on the example inputs: "
                f"{first_line(error)}; give inputs that both models take"
            ) from error
    double = [copy.deepcopy(model).double() for model in (first, second)]
    return compare((first, second), (double[0], double[1]), inputs, tolerance)


def compare(
    models: tuple[nn.Module, nn.Module],
    doubles: tuple[nn.Module, nn.Module],
    inputs: ExampleInputs,
    tolerance: float | None = None,
) -> Certificate:
    """Compare a pair of models and the same pair in double precision."""
    dtype = _dtype(models[0])
    allowed = TOLERANCES.get(dtype, 0.0) if tolerance is None else tolerance
    trials = [inputs, *[_random_like(inputs, seed) for seed in range(N_RANDOM)]]
    own = max(_difference(*models, trial.to(dtype, floating_only=True)) for trial in trials)
    wide = max(
        _difference(*doubles, trial.to(torch.float64, floating_only=True)) for trial in trials
    )
    name = str(dtype).removeprefix("torch.")
    wide_allowed = TOLERANCES[torch.float64]
    made = Certificate(own, wide, name, len(trials), allowed, wide_allowed)
    if not (wide <= wide_allowed and own <= allowed):
        raise CertificateError(
            f"the two models differ by {wide:.2e} in float64 (allowed {wide_allowed:.0e}) and by "
            f"{own:.2e} in {name} (allowed {allowed:.0e}), relative to their outputs; they do "
            "not compute the same function: keep the first, and report the model"
        )
    return made


def _difference(first: nn.Module, second: nn.Module, inputs: ExampleInputs) -> float:
    one, two = _run(first, inputs), _run(second, inputs)
    if len(one) != len(two):
        raise CertificateError(f"one model returns {len(one)} tensors, the other {len(two)}")
    worst = 0.0
    for a, b in zip(one, two, strict=True):
        if a.shape != b.shape:
            raise CertificateError(f"outputs of shape {tuple(a.shape)} and {tuple(b.shape)}")
        worst = max(worst, _relative(a, b))
    return worst


def _relative(a: Tensor, b: Tensor) -> float:
    if not a.is_floating_point():
        return 0.0 if torch.equal(a, b) else float("inf")
    if a.numel() == 0 or torch.equal(a, b):
        return 0.0
    same = (a.isnan() & b.isnan()) | (a == b)
    gap = float(torch.where(same, torch.zeros_like(a), a - b).abs().max())
    if not math.isfinite(gap):
        return float("inf")
    size = float(torch.where(a.isfinite(), a, torch.zeros_like(a)).abs().max())
    return gap / max(size, torch.finfo(a.dtype).tiny)


def _run(model: nn.Module, inputs: ExampleInputs) -> list[Tensor]:
    with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        out = model(*copy.deepcopy(inputs.args), **copy.deepcopy(inputs.kwargs))
    leaves = tree_leaves(out)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _random_like(inputs: ExampleInputs, seed: int) -> ExampleInputs:
    generator = torch.Generator().manual_seed(seed)

    def draw(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.numel() == 0:
            return value
        if value.is_floating_point():
            drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            return drawn.to(value)
        if value.dtype is torch.bool or value.is_complex():
            return value
        low, high = int(value.min()), int(value.max())
        return torch.randint(low, high + 1, value.shape, generator=generator).to(value)

    return ExampleInputs(*tree_map(draw, (inputs.args, inputs.kwargs)))


def _dtype(model: nn.Module) -> torch.dtype:
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return parameter.dtype
    raise InputError(f"{type(model).__name__} has no parameters; there is nothing to compare")
