"""Which kind of step a run takes: compiled, captured, or call by call."""

import logging
from dataclasses import replace

from lightning_fabric import Fabric
from torch import nn

from archlearn.data.dataset import Dataset
from archlearn.training.cuda_graph import CapturedStepper, DeviceStep
from archlearn.training.defaults import steps_per_epoch
from archlearn.training.optimizers import make_optimisers
from archlearn.training.settings import RunSettings
from archlearn.training.train_step import EagerStepper, Stepper, Work

logger = logging.getLogger(__name__)

_MOST_BYTES_ON_DEVICE = 8 << 30
_MOST_PARAMETERS_TO_CAPTURE = 20_000_000


def can_capture(settings: RunSettings, model: nn.Module, dataset: Dataset, fabric: Fabric) -> bool:
    """Return whether the step is one that a CUDA graph can hold and is worth it."""
    size = dataset.train.inputs.numel() * dataset.train.inputs.element_size()
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    return (
        settings.hardware.capture == "auto"
        and fabric.device.type == "cuda"
        and fabric.world_size == 1
        and settings.hardware.accumulate == 1
        and settings.hardware.precision in ("32-true", "bf16-mixed")
        and size <= _MOST_BYTES_ON_DEVICE
        and n_parameters <= _MOST_PARAMETERS_TO_CAPTURE
    )


def make_stepper(work: Work, fabric: Fabric, settings: RunSettings) -> tuple[Work, Stepper]:
    """Return a captured step where the optimisers are made for one, else an ordinary one.

    What cannot be compiled is captured as it is, and what cannot be captured runs call by call.
    """
    if not work.optimisers[0].defaults.get("fused"):
        return work, EagerStepper(work, fabric)
    for compiled in (True, False) if settings.hardware.compile else (False,):
        try:
            return work, _capture(work, fabric, settings, compiled=compiled)
        except RuntimeError as error:
            logger.warning(
                "the step cannot be %s, so it is slower: %s",
                "compiled" if compiled else "captured",
                error,
            )
    # What the attempt left in the gradients would be added to those of the first step.
    work.model.zero_grad(set_to_none=True)
    optimisers = make_optimisers(work.model, settings.optimiser, work.gate_optimizer)
    work = replace(work, optimisers=optimisers)
    return work, EagerStepper(work, fabric)


def _capture(
    work: Work, fabric: Fabric, settings: RunSettings, *, compiled: bool
) -> CapturedStepper:
    bf16 = settings.hardware.precision == "bf16-mixed"
    body = DeviceStep(work, fabric.device, bf16=bf16, compiled=compiled)
    return CapturedStepper(body, steps_per_epoch(len(work.train), work.batch_size))
