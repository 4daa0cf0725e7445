"""`certify`: compare two models on the example and random inputs like it, in double precision."""

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.errors import LARGEST, CertificateError, InputError, first_line, lies_in
from archlearn.gating.gate_container import GateContainer
from archlearn.module_utils import evaluating, noticing_calls, tensors_of
from archlearn.nn.tristate_activation import TriState
from archlearn.tracing.block_hooks import advise_on_difference
from archlearn.tracing.generated_forward import class_forwards, unwrap
from archlearn.tracing.module_state import preserve_state
from archlearn.tracing.output_types import tensors_in
from archlearn.tracing.rng import preserve_rng, watching_draws
from archlearn.tracing.symbolic_trace import ExampleInputs
from archlearn.tracing.trace_context import without_autocast
from archlearn.verification.precision import exchanging, holding, to_float64

N_RANDOM = 3
_log = logging.getLogger(__name__)
# Three random inputs of so many numbers cost next to nothing; larger ones are weighed.
_SMALL = 2**14


@dataclass(frozen=True, slots=True)
class SampleInput:
    """Arguments for one call of both models; the examples among them count as one input.

    It has `n_rows` where rows of the example were left out. What is drawn alone may be no input at
    all, such as offsets that do not rise.
    """

    inputs: ExampleInputs
    n_inputs: int
    n_rows: int | None = None
    is_drawn: bool = False


def plain_samples(inputs: ExampleInputs) -> list[SampleInput]:
    """Return the example inputs, and random ones of the same shapes."""
    n = N_RANDOM if N_RANDOM * _size(inputs) <= _SMALL else 1
    drawn = [draw_like(inputs, seed) for seed in range(n)]
    return [SampleInput(inputs, 1), *(SampleInput(trial, 1, is_drawn=True) for trial in drawn)]


def joined_sample(inputs: ExampleInputs, most_rows: int | None = None) -> SampleInput | None:
    """Return the example and random rows in one batch, or None if it does not look like one.

    Of a larger batch the first `most_rows` are enough.
    """
    n_rows = _count_rows(inputs)
    if not n_rows:
        return None
    n = N_RANDOM if N_RANDOM * (_size(inputs) // n_rows) <= _SMALL else 1
    inputs = inputs.map(lambda x: x[:most_rows])
    n_left = _count_rows(inputs)
    drawn = draw_like(inputs, 0, n)
    second = iter(drawn.tensors())
    joined = inputs.map(lambda x: torch.cat([x, next(second)]))
    return SampleInput(joined, 1 + n, n_left + n if n_left < n_rows else None)


def draw_like(inputs: ExampleInputs, seed: int, n_rows: int | None = None) -> ExampleInputs:
    """Return random inputs of the same kind; booleans and complex numbers stay as they are."""
    generator = torch.Generator().manual_seed(seed)

    def draw(value: Tensor) -> Tensor:
        if value.numel() == 0:
            return value
        shape = value.shape if n_rows is None else (n_rows, *value.shape[1:])
        if value.is_floating_point():
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
            return drawn.to(value)
        if value.dtype is torch.bool or value.is_complex():
            if shape == value.shape:
                return value
            return value[torch.arange(shape[0], device=value.device) % len(value)]
        low, high = int(value.min()), int(value.max())
        return torch.randint(low, high + 1, shape, generator=generator, device="cpu").to(value)

    return inputs.map(draw)


def _size(inputs: ExampleInputs) -> int:
    return sum(tensor.numel() for tensor in inputs.tensors())


def _count_rows(inputs: ExampleInputs) -> int:
    """Return the size of the first dimension, if all tensors have one and the same."""
    counts = {tensor.shape[0] if tensor.dim() > 1 else 0 for tensor in inputs.tensors()}
    return counts.pop() if len(counts) == 1 else 0


def difference_of_numbers(one: list[Tensor], two: list[Tensor]) -> float:
    """Return the difference without decisions (argmax, y > 0): rounding turns them.

    In double precision they are compared.
    """
    pairs = [p for p in zip(one, two, strict=True) if not all(map(_is_decision, p))]
    return difference([a for a, _ in pairs], [b for _, b in pairs])


def _is_decision(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex())


def difference(one: list[Tensor], two: list[Tensor]) -> float:
    """Return the largest difference between outputs, relative to their size."""
    if len(one) != len(two):
        raise CertificateError(f"one model returns {len(one)} tensors, the other {len(two)}")
    worst = 0.0
    for a, b in zip(one, two, strict=True):
        if a.shape != b.shape:
            raise CertificateError(f"outputs of shape {tuple(a.shape)} and {tuple(b.shape)}")
        if a.is_complex() and b.is_complex():
            a, b = (torch.view_as_real(complex_tensor.resolve_conj()) for complex_tensor in (a, b))
        worst = max(worst, _relative(a, b.to(a.dtype) if b.is_floating_point() else b))
    return worst


def _relative(a: Tensor, b: Tensor) -> float:
    if not (a.is_floating_point() and b.is_floating_point()):
        return 0.0 if a.dtype is b.dtype and torch.equal(a, b) else float("inf")
    if a.numel() == 0 or torch.equal(a, b):
        return 0.0
    same = (a.isnan() & b.isnan()) | (a == b)
    gap = float(torch.where(same, torch.zeros_like(a), a - b).abs().max())
    if not math.isfinite(gap):
        return float("inf")
    return gap / max(_largest(a, same), torch.finfo(a.dtype).tiny)


def _largest(a: Tensor, same: Tensor) -> float:
    """Return the largest number that is no constant.

    In double precision what masks put into both outputs, the same number in several places, is no
    measure for the rest.
    """
    sizes, same = a.abs()[a.isfinite()], same[a.isfinite()]
    for _ in range(_MASKS if a.dtype is torch.float64 else 0):
        is_top = sizes == sizes.max() if len(sizes) else same
        is_mask = is_top.sum() > 1 and same[is_top].all() and sizes[~is_top].any()
        sizes, same = (sizes[~is_top], same[~is_top]) if is_mask else (sizes, same)
    return float(sizes.max()) if len(sizes) else 0.0


_MASKS = 4


# The largest relative difference that rounding alone explains, by the precision compared in.
TOLERANCES = {
    torch.float64: 1e-8,
    torch.float32: 1e-3,
    torch.float16: 5e-2,
    torch.bfloat16: 1e-1,
}


_ROUNDINGS = 64  # that add up
_BOTH_ROUND = 2
"""Two models may be as far apart as this times what rounding does to one of them."""


_ROWS = 8  # to surgery all rows are alike: more cost much in double precision, and show no more


Doubles = Mapping[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Certificate:
    """The largest differences between two models, relative to the size of the outputs.

    Attributes:
        difference: In the models' own precision. Of a compact model it is how far that lies from
            the gated one in double precision: what rounding and surgery make of it together.
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


@without_autocast()
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
    if tolerance is not None and not lies_in(tolerance, 0, LARGEST):
        raise InputError(f"tolerance is {tolerance!r}; give a number from 0 on, such as 1e-3")
    first, second = unwrap(first), unwrap(second)
    modules = (*first.modules(), *second.modules())
    has_gates = any(isinstance(module, GateContainer | TriState) for module in modules)
    with class_forwards(first, second):
        for position, model in (("first", first), ("second", second)):
            try:
                with evaluating(model):
                    _run(model, inputs)
            except Exception as error:
                raise InputError(
                    f"the {position} model, {type(model).__name__}, does not run on the example "
                    f"inputs: {first_line(error)}; give inputs that both models take"
                ) from error
        comparison = Comparison((first, second), {}, inputs, must_be_apart=has_gates)
        return comparison.certify(tolerance)


@dataclass(frozen=True, slots=True)
class _Gaps:
    """The largest differences of two models, and the limits of them.

    Attributes:
        own: In their own precision.
        wide: In double precision.
        rounding: What their own precision does to the first one alone, where that was asked.
    """

    own: float
    wide: float
    rounding: float = 0.0

    def allowed(self, limit: float, may_round: bool) -> float:
        """Return how far the models may be apart in their own precision."""
        rounding = self.rounding if may_round and math.isfinite(self.rounding) else 0.0
        return max(limit, _BOTH_ROUND * rounding)

    def lie_within(self, limits: "_Gaps", may_round: bool) -> bool:
        """Return whether the models may be the same."""
        return self.own <= self.allowed(limits.own, may_round) and self.wide <= limits.wide


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two models, and what they are compared on.

    Attributes:
        doubles: Numbers that the second has in double precision, if they are known better than in
            its own.
        is_derived: Whether the second was made from the first, so that the first need not run in
            its own precision, unless the second is far from what it gives in double precision.
        must_be_apart: Whether neither model may use modules or tensors of the other. A compact
            model that calls the gated one agrees with it, whatever its own weights are.
    """

    models: tuple[nn.Module, nn.Module]
    doubles: Doubles
    inputs: ExampleInputs
    is_derived: bool = False
    must_be_apart: bool = True

    def certify(self, tolerance: float | None = None) -> Certificate:
        """Compare the models in evaluation mode, in their own precision and in float64.

        The first rows of the example and random ones are tried in one batch. Should the models not
        take that, or round otherwise there, inputs of the example's own shapes decide.
        """
        _check_numbers(self.models[0])
        dtype = _dtype(self.models[0])
        may_round = tolerance is None
        limits = _Gaps(
            TOLERANCES.get(dtype, 0.0) if tolerance is None else tolerance,
            TOLERANCES[torch.float64] if self.is_derived else _rounding(dtype),
        )
        shared = _find_shared(*self.models) if self.must_be_apart else ""
        if shared:  # changing one would change the other
            raise CertificateError(
                f"the two models share the tensor {shared!r}, so nothing is known of the second by "
                "itself; compare the gated model with the one that compact returned"
            )
        with evaluating(*self.models):
            first, second = self.models
            doubles = {**to_float64(first), **to_float64(second, self.doubles), **self.doubles}
            gaps, n_inputs = _Gaps(math.inf, 0.0), 0
            refused: CertificateError | None = None
            try:
                most_rows = _ROWS if self.is_derived else None  # who asks for certify means all
                joined = joined_sample(self.inputs, most_rows)
                if joined is not None:
                    gaps, n_inputs = self._measure([joined], doubles, limits.own)
            except CertificateError as error:
                refused = error
            except Exception:
                _log.debug("the models do not take the example and random rows in one batch")
            if not gaps.lie_within(limits, may_round):
                alone, n_inputs = self._measure(plain_samples(self.inputs), doubles, limits.own)
                gaps = replace(alone, wide=max(gaps.wide, alone.wide))
            if refused is not None:
                raise refused
        name = str(dtype).removeprefix("torch.")
        limits = replace(limits, own=gaps.allowed(limits.own, may_round))
        if not gaps.lie_within(limits, may_round):
            raise CertificateError(
                f"the two models differ by {gaps.wide:.2e} in float64 (allowed {limits.wide:.0e}) "
                f"and by {gaps.own:.2e} in {name} (allowed {limits.own:.0e}), relative to their "
                "outputs; they do not compute the same function: keep the first, and "
                f"{self._advise()}"
            )
        return Certificate(gaps.own, gaps.wide, name, n_inputs, limits.own, limits.wide)

    def _advise(self) -> str:
        """Return what to do where the models differ."""
        with evaluating(self.models[0]):
            if _draws(self.models[0], self.inputs):
                return (
                    "let it draw no random numbers in evaluation mode (dropout that is always on "
                    "draws others over fewer channels), or compact it with certified=False"
                )
        return advise_on_difference(self.models[0])

    def _measure(
        self, samples: list[SampleInput], doubles: Doubles, allowed: float
    ) -> tuple[_Gaps, int]:
        """Return the largest differences, and on how many inputs."""
        measured = [
            (self._measure_one(sample, doubles, allowed), sample.n_inputs) for sample in samples
        ]
        gaps, counts = zip(*((gap, n) for gap, n in measured if gap is not None), strict=True)
        return _Gaps(*(max(sample) for sample in zip(*map(astuple, gaps), strict=True))), sum(
            counts
        )

    def _measure_one(self, trial: SampleInput, doubles: Doubles, allowed: float) -> _Gaps | None:
        """Return the differences, or None if what was drawn is no input of the first model."""
        single = trial.inputs.to(_dtype(self.models[0]), floating_only=True)
        with exchanging(doubles):
            double = trial.inputs.to(torch.float64, floating_only=True)
            try:
                wide_outputs = self._run(0, double)
            except Exception as error:
                if trial.is_drawn and not isinstance(error, CertificateError):
                    return None
                raise
            # There must be a result for each row, and no mean of rows that are not there.
            rows = trial.n_rows and (trial.n_rows,)
            if rows and not all(x.shape[:1] == rows and x.isfinite().all() for x in wide_outputs):
                raise InputError("there is not one output a row, so rows cannot be left out")
            if trial.n_inputs > 1 and not any(map(_differs_by_row, wide_outputs)):
                _log.warning(_BLIND, type(self.models[0]).__name__)
            try:
                double_outputs = self._run(1, double)
            except Exception as error:
                if trial.n_inputs == 1 or not self.is_derived:
                    raise
                raise CertificateError(
                    "the compact model does not run on another number of rows, as the gated one "
                    f"does: {first_line(error)}; mark the part that fails in leaves=[...] of "
                    "add_gates, and report the model"
                ) from error
            wide = difference(wide_outputs, double_outputs)
        if not doubles:
            return _Gaps(wide, wide)
        outputs = self._run(1, single)
        single_difference, rounding = math.inf, 0.0
        if self.is_derived:
            single_difference = difference_of_numbers(wide_outputs, outputs)
        if not single_difference <= allowed:
            rounded = self._run(0, single)
            single_difference = difference_of_numbers(rounded, outputs)
            rounding = difference_of_numbers(wide_outputs, rounded)
        return _Gaps(single_difference, wide, rounding)

    def _run(self, index: int, inputs: ExampleInputs) -> list[Tensor]:
        """Run one of the models, while the other has no numbers and its modules are watched."""
        model, other = self.models[index], self.models[1 - index]
        if not self.must_be_apart:
            return _run(model, inputs)
        with noticing_calls(other) as called, holding(_nan_for(other)):
            outputs = _run(model, inputs)
        if called:
            raise CertificateError(
                f"one of the two models, {type(model).__name__}, calls {called[0]!r} of the other, "
                "so nothing is known of its own weights; something that is not copied holds that "
                "module, such as a lambda or a hook made from it, or another thread calls the "
                "model now: remove it, or wait for it, and compact again"
            )
        return outputs


def compare_in_both_modes(first: nn.Module, second: nn.Module, inputs: ExampleInputs) -> float:
    """Return the largest relative difference in float64, in evaluation and in training mode.

    One run each on the example inputs. What draws random numbers (dropout), or does not run on
    them in training mode (a BatchNorm over a single number), is not compared in that mode.
    """
    wide = inputs.to(torch.float64, floating_only=True)
    doubles = {**to_float64(first), **to_float64(second)}
    with evaluating(first, second), exchanging(doubles):
        wide_difference = difference(_run(first, wide), _run(second, wide))
        first.train()
        second.train()
        try:
            outputs = _run(first, wide)
        except Exception:
            return wide_difference
        if _draws(first, wide):
            return wide_difference
        return max(wide_difference, difference(outputs, _run(second, wide)))


_BLIND = (
    "%s returns the same for all inputs, so its certificate says nothing of most weights; if its "
    "last layer is all zeros, train it or fill it before"
)


def _differs_by_row(output: Tensor) -> bool:
    return bool((output != output[:1]).any()) if output.dim() else True


def _draws(model: nn.Module, inputs: ExampleInputs) -> bool:
    """Return whether a call draws random numbers; the generators are afterwards what they were."""
    copied = inputs.copy()
    with preserve_state(model), torch.no_grad(), preserve_rng(inputs), watching_draws() as draws:
        model(*copied.args, **copied.kwargs)
        return draws.has_moved()


def _run(model: nn.Module, inputs: ExampleInputs) -> list[Tensor]:
    copied = inputs.copy()
    with preserve_state(model), torch.no_grad(), preserve_rng(inputs, seed=0):
        return tensors_in(model(*copied.args, **copied.kwargs))


def _rounding(dtype: torch.dtype) -> float:
    """Return by how much models differ in double precision whose weights were rounded before.

    Of a compact model that was just made, the weights are known in double precision.
    """
    rounded = min(_ROUNDINGS * torch.finfo(dtype).eps, TOLERANCES.get(dtype, 0.0))
    return max(TOLERANCES[torch.float64], rounded)


def _check_numbers(model: nn.Module) -> None:
    """Refuse weights and statistics that are NaN: NaN is as good as NaN, whatever else differs."""
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor) and _is_plain(value) and bool(value.isnan().any()):
            raise CertificateError(
                f"{name!r} holds NaN, so nothing can be compared: the loss has diverged; go back "
                "to a checkpoint, and lower the learning rate"
            )


def _dtype(model: nn.Module) -> torch.dtype:
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return parameter.dtype
    raise InputError(f"{type(model).__name__} has no parameters; there is nothing to compare")


def _nan_for(model: nn.Module) -> Doubles:
    """Return NaN in place of every parameter and buffer of a model; what reads one is NaN, too."""
    plain_tensors = [tensor for _, tensor in tensors_of(model) if _is_plain(tensor)]
    return {
        x: torch.full((), torch.nan, dtype=x.dtype, device=x.device).expand(x.shape)
        for x in plain_tensors
    }


def _find_shared(first: nn.Module, second: nn.Module) -> str:
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
