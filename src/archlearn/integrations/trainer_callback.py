"""`TrainerGateCallback`: learn gates in a run of the `Trainer` of Hugging Face transformers."""

import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from archlearn.errors import InputError
from archlearn.export.pretrained_folder import save_pretrained
from archlearn.integrations.gate_learner import GateLearner
from archlearn.optim.lost_training import warn_of_lost_training
from archlearn.serialization import save

logger = logging.getLogger(__name__)

_GATES_FILE = "archlearn_gates.pt"


class TrainerGateCallback(GateLearner, TrainerCallback):
    """Steps a `GateOptimizer` in front of each step of the trainer's own optimiser.

    The trainer's model comes from `add_gates`; labels belong into its example inputs, and its
    optimiser may be given all parameters. What is closed for good is cut out while the run goes on.
    Each `checkpoint-…` of the trainer gets a file with the state of the gates, so that
    `trainer.train(resume_from_checkpoint=True)` goes on as if it had never stopped. The trainer
    clips gates and weights by one norm.
    """

    def __init__(
        self,
        *,
        save_to: str | Path | None = None,
        resume_from: str | Path | None = None,
        shrink: bool = True,
        **options: Any,
    ) -> None:
        """Prepare to learn gates.

        Args:
            save_to: Where the compact model is written when training ends: a file if the name ends
                in .safetensors, else a folder, as `save_pretrained` of
                `archlearn.export.pretrained_folder` makes it. What it holds is logged.
            resume_from: The folder of the checkpoint to go on from, where it is not the trainer's
                own `checkpoint-…` in its `output_dir`.
            shrink: Whether to cut out what is closed for good, so that later steps cost less.
            options: Those of `GateOptimizer`, such as `budget={"multiply_adds": "50%"}`; the number
                of steps is the trainer's.
        """
        super().__init__(save_to, options, shrinks=shrink, write=_write)
        self._resume_from = resume_from

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Prepare for a checkpoint of a model that has shrunk."""
        self._prepare(kwargs["model"])

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Make the optimiser of the gates, or go on with that of a checkpoint."""
        if args.load_best_model_at_end:
            raise InputError(
                "load_best_model_at_end would take a checkpoint from before the gates had closed, "
                "which is beyond the budget; leave it out: the last model is the one that fits"
            )
        if state.global_step > 0:
            folder = self._resume_from or _folder_of(args, state)
            self.load_state_dict(_read(Path(folder) / _GATES_FILE))
        self._start(kwargs["model"], state.max_steps)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Step the gates."""
        self._step()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Cut out what is closed for good, where that pays."""
        self._shrink([kwargs["optimizer"]])

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Add the state of the gates' optimiser to a checkpoint."""
        if state.is_world_process_zero:
            torch.save(self.state_dict(), _folder_of(args, state) / _GATES_FILE)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Cut to the budget if training ended early, and write the compact model."""
        self._finish(is_main_process=state.is_world_process_zero)
        warn_of_lost_training([entry["loss"] for entry in state.log_history if "loss" in entry])


def _write(model: nn.Module, path: Path) -> None:
    if path.suffix == ".safetensors":
        save(model, path)
        return
    saved = save_pretrained(model, path, own_file=True)
    logger.log(logging.INFO if saved.is_pretrained else logging.WARNING, "%s", saved)


def _folder_of(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(
            f"the run goes on from a checkpoint, but {path} is not there, where the state of its "
            "gates was written; say where the checkpoint is: "
            "TrainerGateCallback(resume_from='folder/checkpoint-…')"
        )
    return torch.load(path, weights_only=True, map_location="cpu")
