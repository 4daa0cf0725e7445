"""`LightningGateCallback`: learn gates in a run of Lightning, with automatic optimisation."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from archlearn.errors import InputError
from archlearn.integrations.gate_learner import GateLearner
from archlearn.optim.lost_training import warn_of_lost_training

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback, LightningModule, Trainer
    except ImportError:
        try:
            from pytorch_lightning import Callback, LightningModule, Trainer
        except ImportError as error:
            raise ImportError(
                "the callback for Lightning needs Lightning: pip install 'archlearn[lightning]'"
            ) from error


class LightningGateCallback(GateLearner, Callback):
    """Steps a `GateOptimizer` in front of each step of the module's own optimiser.

    The module holds a model from `add_gates`, anywhere; its optimiser may be given all parameters.
    Gradient clipping and accumulation concern the weights alone. What is closed for good is cut out
    while the run goes on. Checkpoints of Lightning hold what is needed to resume.
    `trainer.callback_metrics` has what the network would cost, compacted.
    """

    def __init__(
        self, *, save_to: str | Path | None = None, shrink: bool = True, **options: Any
    ) -> None:
        """Prepare to learn gates.

        Args:
            save_to: A file for the compact model, written when training ends.
            shrink: Whether to cut out what is closed for good, so that later steps cost less.
            options: Those of `GateOptimizer`, such as `budget={"multiply_adds": "50%"}`; the number
                of steps is the trainer's.
        """
        super().__init__(save_to, options, shrinks=shrink)
        self._losses: Tensor | float = 0.0
        self._n_losses = 0
        self._means: list[float] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Prepare for a checkpoint of a model that has shrunk."""
        if stage == "fit":
            self._prepare(pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the optimiser of the gates."""
        if not pl_module.automatic_optimization:
            raise InputError(
                f"{type(pl_module).__name__} optimises by hand; make an archlearn.GateOptimizer "
                "there, and call its step() and zero_grad() behind manual_backward()"
            )
        self._start(pl_module, trainer.estimated_stepping_batches)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        """Step the gates; a batch that `training_step` skipped, returning None, only counts."""
        if all(parameter.grad is None for parameter in pl_module.parameters()):
            self.gates.advance()
        else:
            self._step()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Cut out what is closed for good, where that pays; averaged copies of the model follow."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            self._losses, self._n_losses = self._losses + loss.detach(), self._n_losses + 1
        callbacks: list[Any] = vars(trainer)["callbacks"]
        held = [value for callback in callbacks for value in vars(callback).values()]
        copies = [value for value in held if isinstance(value, AveragedModel)]
        self._shrink(trainer.optimizers, copies)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what the network would cost, compacted now."""
        pl_module.log_dict(self.gates.costs(), rank_zero_only=True)
        if self._n_losses:
            self._means.append(float(self._losses) / self._n_losses)
            self._losses, self._n_losses = 0.0, 0

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Cut to the budget if training ended early, and write the compact model."""
        self._finish(is_main_process=trainer.is_global_zero)
        warn_of_lost_training(self._means)
