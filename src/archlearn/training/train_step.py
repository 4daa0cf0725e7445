"""A step of training, on any device and over several processes, by Lightning Fabric."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from archlearn.data.dataset import Split
from archlearn.gating.parameters import clip_gates_
from archlearn.gating.penalties import penalty
from archlearn.gating.strengths import Strengths
from archlearn.optim.gate_optimizer import GateOptimizer
from archlearn.training.gradient_clipping import Limits, limit_gradients_
from archlearn.training.objectives import Objective
from archlearn.training.optimizers import Optimisers, set_rates_
from archlearn.training.schedules import Schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What every kind of step needs.

    Attributes:
        model: The gated model, not wrapped.
        strengths: How hard the penalty pulls; None where there is none.
        batch_size: Examples a step, over all processes and accumulated parts.
    """

    model: nn.Module
    optimisers: Optimisers
    train: Split
    objective: Objective
    schedule: Schedule
    strengths: Strengths | None
    batch_size: int
    accumulate: int
    limits: Limits

    @property
    def gate_optimizer(self) -> GateOptimizer | None:
        """What learns the gates to a budget; None where a penalty does, or nothing."""
        last = self.optimisers[-1]
        return last if isinstance(last, GateOptimizer) else None


def penalty_of(work: Work) -> Tensor:
    """Return the penalty of the model's gates; 0 where there are none."""
    if work.strengths is None:
        return torch.zeros((), device=work.objective.mean.device)
    return penalty(work.model, work.strengths)


class Stepper(Protocol):
    """Works an epoch off, one or several steps at a time."""

    def begin_epoch(self, order: Tensor, loss_sum: float, penalty_sum: float) -> None:
        """Take the examples in this order from now on; the sums are those so far."""
        ...

    def advance(self, place: int, step: int) -> int:
        """Do the step at a place in the epoch, perhaps some more; return how many."""
        ...

    def sums(self) -> tuple[float, float]:
        """Return the sums of losses and penalties over the epoch's steps so far."""
        ...


class EagerStepper:
    """Does one step at a time, in as many parts and processes as asked for."""

    def __init__(self, work: Work, fabric: Fabric) -> None:
        self._work = work
        self._fabric = fabric
        self._module, *self._optimisers = fabric.setup(work.model, *work.optimisers)
        self._order = torch.empty(0, dtype=torch.long)
        self._sums = torch.zeros(2, dtype=torch.float64, device=fabric.device)

    def begin_epoch(self, order: Tensor, loss_sum: float, penalty_sum: float) -> None:
        """Take the examples in this order from now on; the sums are those so far."""
        self._order = order
        self._sums = self._sums.new_tensor([loss_sum, penalty_sum])
        self._module.train()

    def sums(self) -> tuple[float, float]:
        """Return the sums over the epoch's steps so far, the mean over all processes."""
        sums = self._fabric.all_reduce(self._sums, reduce_op="mean")
        assert isinstance(sums, Tensor)
        return sums[0].item(), sums[1].item()

    def advance(self, place: int, step: int) -> int:
        """Do one step."""
        work = self._work
        set_rates_(work.optimisers, work.schedule, step)
        parts = self._parts(place)
        for number, part in enumerate(parts):
            self._accumulate(part, last=number == len(parts) - 1)
        limit_gradients_(work.optimisers, work.limits)
        for optimiser in self._optimisers:
            optimiser.step()
            optimiser.zero_grad()
        if work.strengths is not None:
            clip_gates_(work.model)
        return 1

    def _parts(self, place: int) -> Sequence[Tensor]:
        """Return the indices this process works on, for each accumulated part."""
        work, fabric = self._work, self._fabric
        indices = self._order[place * work.batch_size : (place + 1) * work.batch_size]
        parts = indices.tensor_split(work.accumulate * fabric.world_size)
        return parts[fabric.global_rank :: fabric.world_size]

    def _accumulate(self, indices: Tensor, *, last: bool) -> None:
        """Add the gradient of one part; the penalty comes with the last one."""
        work, fabric = self._work, self._fabric
        # Examples may lie elsewhere than their order does: very many stay off the device.
        indices = indices.to(work.train.targets.device)
        raw = work.train.inputs[indices].to(fabric.device)
        targets = work.train.targets[indices].to(fabric.device)
        waiting = not last and fabric.world_size > 1
        with fabric.no_backward_sync(self._module) if waiting else nullcontext():
            outputs = self._module(work.objective.training_inputs(raw))
            loss = work.objective.loss(outputs, targets) * self._weight(indices) / work.accumulate
            cost = penalty_of(work) if last else torch.zeros_like(loss)
            fabric.backward(loss + cost)
        self._sums += torch.stack([loss.detach(), cost.detach()]).double()

    def _weight(self, indices: Tensor) -> float:
        """Return a part's size relative to the mean part: 1 unless a batch cannot be cut evenly.

        So the mean over processes and parts is that over the batch's examples.
        """
        work, fabric = self._work, self._fabric
        return len(indices) * (work.accumulate * fabric.world_size) / work.batch_size
