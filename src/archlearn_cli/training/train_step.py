"""One training step: loss, penalty, gradient clipping, updates.

Otherwise the one large tensor that small networks have keeps most of the GPU waiting.

The paper's supplement assumes such a bound, the "maximum step size (due to gradient clipping)".
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from archlearn.gating.parameters import (
    branch_gates,
    clip_gates_,
    depth_gates,
    parameter_groups,
    width_gates,
)
from archlearn.gating.penalties import Strengths, penalty
from archlearn.optim.distillation import distill
from archlearn.optim.gate_optimizer import GateOptimizer
from archlearn_cli.data.dataset import Split
from archlearn_cli.training.defaults import Schedule
from archlearn_cli.training.objectives import Objective
from archlearn_cli.training.settings import OptimizerSettings

Optimizers = tuple[torch.optim.Optimizer, ...]


def has_gates(model: nn.Module) -> bool:
    """Return whether there is anything to learn of the architecture."""
    return any(find(model) for find in (width_gates, depth_gates, branch_gates))


def make_optimizers(
    model: nn.Module,
    settings: OptimizerSettings,
    gates: GateOptimizer | None = None,
    *,
    on_device: bool = False,
) -> Optimizers:
    """Return the optimiser of the weights and, if there are gates, that of the gates.

    Without `gates`, plain SGD learns the gates, by a penalty. A step that is all on the device must
    not ask anything of the host.
    """
    decay = settings.weight_decay
    if not has_gates(model):
        groups: list[dict[str, Any]] = [{"params": list(model.parameters()), "weight_decay": decay}]
    else:
        groups = parameter_groups(model, lr=0.0, gate_lr=0.0, weight_decay=decay)
    # A rate may be a tensor on the device only where the update is fused.
    options: dict[str, Any] = {"lr": 0.0, "weight_decay": decay, "fused": on_device or None}
    if settings.optimizer == "adam":
        weights = torch.optim.AdamW(groups[0]["params"], capturable=on_device, **options)
    else:
        weights = torch.optim.SGD(groups[0]["params"], momentum=settings.momentum, **options)
    if gates is not None:
        return weights, gates
    fused = on_device or None
    return weights, *(torch.optim.SGD(g["params"], lr=0.0, fused=fused) for g in groups[1:])


def set_rates_(optimizers: Sequence[torch.optim.Optimizer], schedule: Schedule, step: int) -> None:
    """Set the rates of weights and gates to those of a step."""
    rates = (schedule.weight_rate(step), schedule.gate_rate_at(step))
    for optimizer, rate in zip(optimizers, rates, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rate


_SMALLEST_PIECE, _MOST_PIECES = 1 << 14, 40


def cut_evenly(*lists: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return lists of tensors of the same shapes with large ones in pieces, all cut alike."""
    total = sum(tensor.numel() for tensor in lists[0])
    size = max(_SMALLEST_PIECE, total // _MOST_PIECES)
    pieces: list[list[Tensor]] = [[] for _ in lists]
    for tensors in zip(*lists, strict=True):
        whole = tensors[0].numel() <= size or not all(t.is_contiguous() for t in tensors)
        for chunks, tensor in zip(pieces, tensors, strict=True):
            chunks.extend([tensor] if whole else tensor.view(-1).split(size))
    return pieces


@torch.no_grad()
def update_(optimizer: torch.optim.Optimizer) -> None:
    """Do an optimiser's step; what SGD does at once on a GPU is done in even pieces."""
    if isinstance(optimizer, GateOptimizer):
        optimizer.observe_()  # it decides outside of the captured step
        return
    if not _can_cut(optimizer):
        optimizer.step()
        return
    for group in optimizer.param_groups:
        parameters = [p for p in group["params"] if p.grad is not None]
        buffers = [optimizer.state[p]["momentum_buffer"] for p in parameters]
        lists = cut_evenly(parameters, [p.grad for p in parameters], buffers)
        torch._fused_sgd_(
            *lists,
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=group["maximize"],
            is_first_step=False,
            grad_scale=getattr(optimizer, "grad_scale", None),
        )


def _can_cut(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether it is SGD with momentum, fused, and past its first step."""
    if not isinstance(optimizer, torch.optim.SGD) or not optimizer.defaults["fused"]:
        return False
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    states = (optimizer.state.get(p, {}) for p in parameters if p.grad is not None)
    return all(isinstance(state.get("momentum_buffer"), Tensor) for state in states)


@torch.no_grad()
def clip_gradients_(optimizers: Optimizers, norm: float | None, gate: float | None) -> None:
    """Bring the norm of all weights' gradient, and each gate's, within a limit; None sets none.

    An optimiser whose update is fused divides by the factor itself, on the way.
    """
    weights, *gates = optimizers
    gradients = _gradients(weights)
    if norm is not None and gradients:
        pieces = cut_evenly(gradients)[0] if gradients[0].is_cuda else gradients
        total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(pieces)))
        excess = (total / norm).clamp_(min=1.0)
        if weights.defaults.get("fused"):
            vars(weights)["grad_scale"] = excess
        else:
            torch._foreach_div_(gradients, excess)
    for optimizer in gates:
        if gate is not None:
            gradients = _gradients(optimizer)
            torch._foreach_clamp_min_(gradients, -gate)
            torch._foreach_clamp_max_(gradients, gate)


def _gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepContext:
    """What every kind of step needs.

    Attributes:
        model: The gated model, not wrapped.
        teacher: A frozen network to learn from beside the labels; None where there is none.
        batch_size: Examples a step, over all processes and accumulated parts.
    """

    model: nn.Module
    teacher: nn.Module | None
    optimizers: Optimizers
    train: Split
    objective: Objective
    schedule: Schedule
    strengths: Strengths | None
    batch_size: int
    accumulate: int
    clip_norm: float | None
    clip_gate: float | None

    @property
    def gate_optimizer(self) -> GateOptimizer | None:
        """What learns the gates to a budget; None where a penalty does, or nothing."""
        last = self.optimizers[-1]
        return last if isinstance(last, GateOptimizer) else None


TEACHERS_SHARE = 0.9


def loss_of(work: StepContext, module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of a batch; with a teacher, most of it is how far that is.

    `module` is the model as it is called, which may be wrapped.
    """
    outputs = module(inputs)
    loss = work.objective.loss(outputs, targets)
    if work.teacher is None:
        return loss
    with torch.no_grad():
        wanted = work.teacher(inputs)
    return (1 - TEACHERS_SHARE) * loss + TEACHERS_SHARE * distill(outputs, wanted)


def penalty_of(work: StepContext) -> Tensor:
    """Return the penalty of the model's gates; 0 where there are none."""
    if work.strengths is None:
        return torch.zeros((), device=work.objective.mean.device)
    return penalty(work.model, work.strengths)


class EagerStepper:
    """Does one step at a time, in as many parts and processes as asked for."""

    def __init__(self, work: StepContext, fabric: Fabric) -> None:
        self._work = work
        self._fabric = fabric
        self._module, *self._optimizers = fabric.setup(work.model, *work.optimizers)
        self._order = torch.empty(0, dtype=torch.long)
        self._sums = torch.zeros(2, dtype=torch.float64, device=fabric.device)

    def begin_epoch(self, order: Tensor, loss_sum: float, penalty_sum: float) -> None:
        """Take the examples in this order from now on; the sums are those so far."""
        self._order = order
        self._sums = self._sums.new_tensor([loss_sum, penalty_sum])
        self._module.train()

    def renew(self) -> None:
        """Choose convolutions untried from now on: a cut makes all shapes new; trying takes 5 s.

        What synchronises gradients `shrink_` has renewed.
        """
        torch.backends.cudnn.benchmark = False

    def sums(self) -> tuple[float, float]:
        """Return the sums over the epoch's steps so far, the mean over all processes."""
        sums = self._fabric.all_reduce(self._sums, reduce_op="mean")
        assert isinstance(sums, Tensor)
        return sums[0].item(), sums[1].item()

    def advance(self, batch: int, step: int) -> int:
        """Do the step of a batch of the epoch; return how many were done, which is one."""
        work = self._work
        set_rates_(work.optimizers, work.schedule, step)
        n_processes, rank = self._fabric.world_size, self._fabric.global_rank
        indices = self._order[batch * work.batch_size : (batch + 1) * work.batch_size]
        parts = indices.tensor_split(work.accumulate * n_processes)[rank::n_processes]
        for number, part in enumerate(parts):
            self._accumulate(part, last=number == len(parts) - 1)
        clip_gradients_(work.optimizers, work.clip_norm, work.clip_gate)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if work.strengths is not None:
            clip_gates_(work.model)
        return 1

    def _accumulate(self, indices: Tensor, *, last: bool) -> None:
        """Add the gradient of one part; the penalty comes with the last one."""
        work, fabric = self._work, self._fabric
        # Examples may lie elsewhere than their order does: very many stay off the device.
        indices = indices.to(work.train.targets.device)
        raw = work.train.inputs[indices].to(fabric.device)
        targets = work.train.targets[indices].to(fabric.device)
        waiting = not last and fabric.world_size > 1
        with fabric.no_backward_sync(self._module) if waiting else nullcontext():
            inputs = work.objective.training_inputs(raw)
            with fabric.autocast():
                loss = loss_of(work, self._module, inputs, targets)
            # A part's size relative to the mean part, 1 unless a batch cannot be cut evenly: so
            # the mean over processes and parts is that over the batch's examples.
            weight = len(indices) * (work.accumulate * fabric.world_size) / work.batch_size
            loss = loss * weight / work.accumulate
            cost = penalty_of(work) if last else torch.zeros_like(loss)
            fabric.backward(loss + cost)
        self._sums += torch.stack([loss.detach(), cost.detach()]).double()
