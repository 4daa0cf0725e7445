"""Training steps captured as a CUDA graph, where that is possible.

Data, their order, the rates and the number of the step all lie on the device. A replay then
costs the host one call for several steps. The body of the step can also run uncaptured, on any
device, which is how it is held to the ordinary step in the tests.
"""

import logging
from dataclasses import replace

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from archlearn.gating.parameters import clip_gates_
from archlearn.module_utils import without_cudnn_benchmark
from archlearn_cli.data.dataset import Dataset
from archlearn_cli.training.defaults import steps_per_epoch
from archlearn_cli.training.settings import RunSettings
from archlearn_cli.training.train_step import (
    EagerStepper,
    StepContext,
    clip_gradients_,
    loss_of,
    make_optimizers,
    penalty_of,
    update_,
)

MOST_STEPS_IN_A_GRAPH = 11
_WARM_UP = 3
_MOST_BYTES_READY = 1 << 28


class DeviceStep:
    """One training step that asks nothing of the host."""

    def __init__(
        self, work: StepContext, device: torch.device, *, bf16: bool = False, compiled: bool = False
    ) -> None:
        self.work = work
        self._forward = torch.compile(self._run_forward) if compiled else self._run_forward
        self._bf16 = bf16
        self._device = device
        self.train = work.train.to(device)
        # Few inputs that are the same each time are normalised once and for all. Images of several
        # channels are laid out batch by batch, since picking examples would undo it.
        raw, framing = work.train.inputs, work.objective.framing
        n_bytes = raw.numel() * work.objective.mean.element_size()
        is_steady = framing.augment == "no" and framing.side is None
        is_flat = raw.ndim != 4 or raw.shape[1] == 1
        self._are_ready = is_steady and is_flat and n_bytes <= _MOST_BYTES_READY
        self._inputs = self.train.inputs
        if self._are_ready:
            self._inputs = work.objective.training_inputs(self._inputs)
        self.order = torch.zeros(len(work.train), dtype=torch.long, device=device)
        self._numbers = torch.zeros(2, dtype=torch.long, device=device)
        self.batch, self.step = self._numbers.split(1)
        self.sums = torch.zeros(2, dtype=torch.float64, device=device)
        self._one = torch.ones((), device=device)
        schedule = work.schedule
        steps = range(schedule.n_steps)
        rates = [(schedule.weight_rate(step), schedule.gate_rate_at(step)) for step in steps]
        self._rates = torch.tensor(rates).to(device)
        self._rates_now = torch.zeros(1, 2, device=device)
        for optimizer, rate in zip(work.optimizers, self._rates_now[0].unbind(), strict=False):
            for group in optimizer.param_groups:
                group["lr"] = rate

    def run(self) -> None:
        """Do the step of the current batch and move on by one."""
        work = self.work
        torch.index_select(self._rates, 0, self.step, out=self._rates_now)
        for optimizer in work.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss, cost = self._forward()
        parts = [part for part in (loss, cost) if part.requires_grad]
        torch.autograd.backward(parts, [self._one.to(part.dtype) for part in parts])
        clip_gradients_(work.optimizers, work.clip_norm, work.clip_gate)
        for optimizer in work.optimizers:
            update_(optimizer)
        if work.strengths is not None:
            clip_gates_(work.model)
        self.sums += torch.stack([loss.detach(), cost.detach()])
        self._numbers += 1

    def _run_forward(self) -> tuple[Tensor, Tensor]:
        """Return the loss and the penalty of the next batch."""
        work, size = self.work, self.work.batch_size
        by_step = self.order[: len(self.order) // size * size].view(-1, size)
        indices = by_step.index_select(0, self.batch).view(size)
        inputs, targets = (x.index_select(0, indices) for x in (self._inputs, self.train.targets))
        if not self._are_ready:
            inputs = work.objective.training_inputs(inputs)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            loss = loss_of(work, work.model, inputs, targets)
        return loss, penalty_of(work)


class CapturedStepper:
    """Replays a captured graph of several steps, and one of a single step for the rest.

    Attributes:
        stream: Where the graphs were captured. Graphs that are replayed at the same time must
            come from different streams: a stream's calls to cuBLAS share a workspace.
    """

    def __init__(self, body: DeviceStep, steps_per_epoch: int) -> None:
        self._body = body
        self._next_step = -1
        self._steps_per_epoch = steps_per_epoch
        self._chunk = largest_divisor(steps_per_epoch, MOST_STEPS_IN_A_GRAPH)
        self.stream = torch.cuda.Stream()
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._capture(self._chunk)

    def _capture(self, count: int) -> None:
        """Capture a graph of so many steps; model and optimisers are afterwards what they were."""
        body = self._body
        body.work.model.train()
        random_state = torch.cuda.get_rng_state()
        kept = [tensor.clone() for tensor in _state(body)]
        try:
            if not self._graphs:  # warm up
                self.stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(self.stream):
                    for _ in range(_WARM_UP):
                        body.batch.zero_()
                        body.step.zero_()
                        body.run()
                torch.cuda.current_stream().wait_stream(self.stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                for _ in range(count):
                    body.run()
            self._graphs[count] = graph
        finally:
            _give_back(body, kept)
            torch.cuda.set_rng_state(random_state)
            if body.work.gate_optimizer is not None:
                body.work.gate_optimizer.accept_gates()

    @without_cudnn_benchmark()
    def renew(self) -> None:
        """Capture anew: the graphs hold the model's tensors as they were.

        Each cut makes all shapes new, so that convolutions would be tried out again.
        """
        self._graphs.clear()
        self._capture(self._chunk)

    def begin_epoch(self, order: Tensor, loss_sum: float, penalty_sum: float) -> None:
        """Take the examples in this order from now on; the sums are those so far."""
        self._body.order.copy_(order, non_blocking=True)
        if loss_sum or penalty_sum:
            self._body.sums.copy_(torch.tensor([loss_sum, penalty_sum], dtype=torch.float64))
        else:
            # Runs side by side must not wait for each other: nothing comes from the host here.
            self._body.sums.zero_()
        self._body.work.model.train()

    def advance(self, batch: int, step: int) -> int:
        """Replay several steps where they fit, else one."""
        if batch == 0 or step != self._next_step:
            self._body.batch.fill_(batch)
            self._body.step.fill_(step)
        whole = batch % self._chunk == 0 and batch + self._chunk <= self._steps_per_epoch
        count = self._chunk if whole else 1
        if count not in self._graphs:
            # Only a run that was stopped elsewhere, in the middle of a chunk, comes here.
            self._capture(count)
        self._graphs[count].replay()
        self._next_step = step + count
        if self._body.work.gate_optimizer is not None:
            self._body.work.gate_optimizer.advance(count)
        return count

    def sums(self) -> tuple[float, float]:
        """Return the sums of losses and penalties over the epoch's steps so far."""
        loss, cost = self._body.sums.tolist()
        return loss, cost


Stepper = EagerStepper | CapturedStepper


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is at most `most`."""
    return max(d for d in range(1, min(number, most) + 1) if number % d == 0)


def _state(body: DeviceStep) -> list[Tensor]:
    """Return every tensor that a step changes."""
    work = body.work
    tensors = [*work.model.state_dict().values(), body.batch, body.step, body.sums]
    for optimizer in work.optimizers:
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, Tensor)]
    return tensors


@torch.no_grad()
def _give_back(body: DeviceStep, kept: list[Tensor]) -> None:
    """Undo what warming up and capturing changed; what is new of the optimiser becomes zero."""
    for tensor, value in zip(_state(body), kept, strict=False):
        tensor.copy_(value)
    for tensor in _state(body)[len(kept) :]:
        tensor.zero_()


logger = logging.getLogger(__name__)
_MOST_BYTES_ON_DEVICE = 8 << 30
_MOST_PARAMETERS_TO_CAPTURE = 100_000_000


def can_capture(settings: RunSettings, model: nn.Module, dataset: Dataset, fabric: Fabric) -> bool:
    """Return whether the step is one that a CUDA graph can hold and is worth it."""
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    return (
        settings.hardware.capture == "auto"
        and fabric.device.type == "cuda"
        and fabric.world_size == 1
        and settings.hardware.accumulate == 1
        and settings.hardware.precision in ("32-true", "bf16-mixed")
        and dataset.train.inputs.nbytes <= _MOST_BYTES_ON_DEVICE
        and n_parameters <= _MOST_PARAMETERS_TO_CAPTURE
    )


def make_stepper(
    work: StepContext, fabric: Fabric, settings: RunSettings
) -> tuple[StepContext, Stepper]:
    """Return a captured step where the optimisers are made for one, else an ordinary one.

    What cannot be compiled is captured as it is, and what cannot be captured runs call by call.
    """
    if not work.optimizers[0].defaults.get("fused"):
        return work, EagerStepper(work, fabric)
    bf16 = settings.hardware.precision == "bf16-mixed"
    for compiled in (True, False) if settings.hardware.compile else (False,):
        try:
            body = DeviceStep(work, fabric.device, bf16=bf16, compiled=compiled)
            return work, CapturedStepper(body, steps_per_epoch(len(work.train), work.batch_size))
        except RuntimeError as error:
            logger.warning(
                "the step cannot be %s, so it is slower: %s",
                "compiled" if compiled else "captured",
                error,
            )
    # What the attempt left in the gradients would be added to those of the first step.
    work.model.zero_grad(set_to_none=True)
    optimizers = make_optimizers(work.model, settings.optimizer, work.gate_optimizer)
    work = replace(work, optimizers=optimizers)
    return work, EagerStepper(work, fabric)
