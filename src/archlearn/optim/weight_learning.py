"""`WeightLearning`: let a `GateOptimizer` learn gates that act on weights, by its hooks.

Before a step of the user's optimiser, gradients of gates are read from those of the weights; behind
it, closed slices are set to zero again, and gates decide where a decision is due.
"""

import gc
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from archlearn.errors import InputError
from archlearn.gating.gate_container import GateContainer
from archlearn.gating.weight_gates import WeightGates
from archlearn.module_utils import find_reference
from archlearn.nn.functional import split_gates
from archlearn.optim.step_hooks import Act, StepHooks, read_optimizers

_log = logging.getLogger(__name__)
_MOST_NAMES = 5


class WeightLearning:
    """Connects gates on weights with the optimisers of the weights, and with what decides.

    Attributes:
        skips: 1 where the last step had gradients that overflowed; None where nobody looks.
    """

    def __init__(
        self, model: nn.Module, container: GateContainer, optimizers: tuple[Optimizer, ...]
    ) -> None:
        assert container.on_weights is not None
        self._model, self._container, self._optimizers = model, container, optimizers
        self.gates: WeightGates = container.on_weights
        self.gates.bind_(model, optimizers)
        reference = find_reference(model)
        if reference is not None:
            container.to(reference.device, self.gates.dtype)
        self._sizes = [gate.numel() for gate in container.gates()]
        self.skips: Tensor | None = None
        self._observed, self._stepped = set[Optimizer](), set[Optimizer]()
        self._hooks_acted = False
        self._wrapper: DistributedDataParallel | None = None
        if container.hooks is not None:  # of an earlier GateOptimizer
            container.hooks.remove()
        self._say_left_out()

    def _say_left_out(self) -> None:
        frozen = {
            self.gates.groups[number].name: why
            for number, why in self.gates.left_out.items()
            if self.gates.groups[number].reason is None
        }
        for name, why in list(frozen.items())[:_MOST_NAMES]:
            _log.warning("the width of %r is not learnt: %s", name, why)
        if len(frozen) > _MOST_NAMES:
            _log.warning("and %d others like it", len(frozen) - _MOST_NAMES)

    def start(self, learn: Act) -> None:
        """Act from now on; `learn` is called once all optimisers have made a step."""
        self._learn = learn
        self._container.hooks = StepHooks(self._optimizers, self._before, self._after)

    def held(self) -> Tensor:
        """Return which gates cannot act and stay open, in the order of the container's."""
        flags = torch.zeros(len(self.gates.is_open), dtype=torch.bool, device="cpu")
        for number in self.gates.left_out:
            group = self.gates.groups[number]
            flags[group.start : group.start + group.size] = True
        return flags

    # ---------------------------------------------------------------- around a step

    def _before(self, optimizer: Optimizer) -> None:
        self._hooks_acted = True
        if optimizer not in self._observed:
            self.gates.observe(optimizer)
            self._unscale(optimizer)

    def _unscale(self, optimizer: Optimizer) -> None:
        """Undo the factor of a `GradScaler` that leaves it to the optimiser."""
        scale, found_inf = (getattr(optimizer, k, None) for k in ("grad_scale", "found_inf"))
        if isinstance(scale, Tensor):
            self.gates.scale_(optimizer, scale)
        if isinstance(found_inf, Tensor):
            self.skips = (found_inf > 0) if self.skips is None else (found_inf > 0) | self.skips

    def _after(self, optimizer: Optimizer) -> None:
        self.gates.reapply_(optimizer)
        self._observed.discard(optimizer)
        self._stepped.add(optimizer)
        if self._stepped.issuperset(self._optimizers):
            self._stepped.clear()
            self._learn(optimizer)
            self.skips = None

    def observe(self) -> None:
        """Read gradients now: in front of clipping, or where no hook is called."""
        self.gates.observe()
        self._observed.update(self._optimizers)

    def step(self) -> None:
        """Act behind a step that called no hook: of a CUDA graph, or of a foreign optimiser."""
        if self._hooks_acted:  # a loop that steps gates as well
            self._hooks_acted = False
            return
        if not self._observed.issuperset(self._optimizers):
            raise InputError(
                "no gradient was read: where the optimizer's hooks are not called, call "
                "gates.observe() behind loss.backward(), and gates.step() behind optimizer.step()"
            )
        for optimizer in self._optimizers:
            self._after(optimizer)

    # ---------------------------------------------------------------- learning

    def write_gradients_(self, gates: Sequence[Tensor]) -> None:
        """Let the gates have the gradients that were read."""
        flat = self.gates.gradient()
        if self.skips is not None:  # not by a rate of 0 alone: the square of much is infinite
            flat = torch.where(self.skips, 0.0, flat)
        for gate, piece in zip(gates, split_gates(flat, gates), strict=True):
            gate.grad = piece

    def rates(self, rates: Tensor | None, memory: float) -> Tensor | None:
        """Return how much this step counts for each gate: nothing where gradients overflowed."""
        if self.skips is None:
            return rates
        counts = (~self.skips).to(self.gates.dtype).view(())
        return counts * (1.0 - memory) if rates is None else counts.to(rates.device) * rates

    def agree(self, values: Tensor) -> Tensor:
        """Return what the first process has decided."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return values
        if self._wrapper is None:
            self._wrapper = _find_wrapper(self._model)
        if self._wrapper is not None:
            group: Any = self._wrapper.process_group
            values = values.contiguous()
            distributed.broadcast(values, distributed.get_global_rank(group, 0), group)
        return values

    def follow(self, widths: Tensor, gone: Tensor) -> None:
        """Close and open what was decided; waits for the device."""
        self.gates.set_open_(torch.cat([widths > 0, gone == 0]))

    # ---------------------------------------------------------------- saving

    def state_dict(self, gates: Sequence[Tensor]) -> dict[str, Any]:
        """Return the gates, and what lies aside."""
        values = torch.cat([gate.detach().flatten() for gate in gates])
        return {"gates": values, **self.gates.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any], gates: Sequence[Tensor]) -> None:
        """Restore gates and what lies aside; weights come with the model's own `state_dict`."""
        self.gates.load_state_dict(state)
        values: Tensor = state["gates"]
        for gate, piece in zip(gates, values.split(self._sizes), strict=True):
            gate.copy_(piece.view(gate.shape))


def connect(
    model: nn.Module, container: GateContainer, optimizer: object, total_steps: object
) -> tuple[WeightLearning | None, Any]:
    """Return what connects gates on weights with their optimisers, and the steps of the run.

    None where gates act on activations: these have no optimiser beside.
    """
    is_number = isinstance(optimizer, int | float)
    steps = optimizer if is_number and total_steps is None else total_steps
    stepped = None if is_number else optimizer
    if container.on_weights is None:
        if stepped is not None:
            raise InputError(
                "an optimizer was given, but the model's gates act on activations; call "
                'add_gates(..., on="weights"), or give total_steps alone'
            )
        return None, steps
    if stepped is None:
        raise InputError(
            "the model's gates act on its weights by the hooks of their optimizer; give it: "
            "GateOptimizer(model, optimizer, total_steps=...)"
        )
    return WeightLearning(model, container, read_optimizers(stepped)), steps


def _find_wrapper(model: nn.Module) -> DistributedDataParallel | None:
    """Return what wraps a model in data parallelism; whoever made it may keep it to himself."""
    wrappers = [x for x in gc.get_objects() if issubclass(type(x), DistributedDataParallel)]
    return next((x for x in wrappers if any(m is model for m in x.modules())), None)
