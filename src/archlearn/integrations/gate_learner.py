"""`GateLearner`: what the callbacks of all trainers have and do, at the start, a step, the end."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, cast

from torch import nn
from torch.optim import Optimizer

from archlearn.errors import InputError
from archlearn.gating.gate_container import CONTAINER, find_container
from archlearn.optim.gate_optimizer import GateOptimizer
from archlearn.optim.shrinking import shrink_, try_shrink_
from archlearn.serialization import save
from archlearn.surgery.compaction import compact

logger = logging.getLogger(__name__)


class GateLearner:
    """A `GateOptimizer` that is made when the length of a run is known, and steps by itself.

    Another optimiser may hold the gates as well, for trainers give theirs all parameters of a
    model: once a step has been taken, gates have no gradient, and optimisers pass over what has
    none.
    """

    def __init__(
        self,
        save_to: str | Path | None,
        options: dict[str, Any],
        *,
        shrinks: bool,
        write: Callable[[nn.Module, Path], object] = save,
    ) -> None:
        if "total_steps" in options or "model" in options:
            raise InputError("the trainer knows the model and its total_steps; leave them out")
        self._save_to = None if save_to is None else Path(save_to)
        self._options = options
        self._shrinks = shrinks
        self._write = write
        self._gated: nn.Module | None = None
        self._gates: GateOptimizer | None = None
        self._state: dict[str, Any] | None = None

    @property
    def gates(self) -> GateOptimizer:
        """The optimiser of the gates.

        Raises:
            InputError: If training has not begun.
        """
        if self._gates is None:
            raise InputError("the gates have no optimiser yet: training has not begun")
        return self._gates

    def _prepare(self, model: nn.Module) -> None:
        """Let the checkpoint of a model that has shrunk be loaded into this one."""
        handle = model.register_load_state_dict_pre_hook(_cut_alike)
        hooks = cast(OrderedDict[int, Any], model._load_state_dict_pre_hooks)
        hooks.move_to_end(handle.id, last=False)  # in front of the one that refuses it

    def _start(self, model: nn.Module, total_steps: float) -> None:
        """Make the optimiser of a model's gates, or go on with what a checkpoint held."""
        if not 0 < total_steps < float("inf"):
            raise InputError(
                f"the trainer says that the run has {total_steps} steps, but the path to a budget "
                "needs an end: give it max_steps"
            )
        self._check_save_to()
        self._gates = GateOptimizer(model, int(total_steps), **self._options)
        self._gated = next(module for module in model.modules() if CONTAINER in module._modules)
        if self._state is not None:
            self._gates.load_state_dict(self._state)
            self._state = None

    def _check_save_to(self) -> None:
        """Refuse a place that cannot be written before the run, and not at its end."""
        if self._save_to is None:
            return
        try:
            self._save_to.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self._save_to.parent):
                pass
        except OSError as error:
            raise InputError(
                f"{self._save_to} of save_to cannot be written ({error.strerror}); choose another "
                "place"
            ) from error

    def _step(self) -> None:
        """Let the gates learn from their gradients, and leave none of these to others."""
        gates = cast(Optimizer, self.gates)
        gates.step()
        gates.zero_grad(set_to_none=True)

    def _shrink(self, optimizers: Iterable[Any], copies: Iterable[nn.Module] = ()) -> None:
        """Cut out what is closed for good, where that pays and the optimisers can follow."""
        if self._shrinks and self._gated is not None:
            try_shrink_(self._gated, *optimizers, gates=self.gates, copies=copies)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold beside the model."""
        return {} if self._gates is None else self._gates.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember what a checkpoint held until the run starts."""
        self._state = state_dict or None

    def _finish(self, *, is_main_process: bool) -> None:
        """Cut to the budget where a run ends early; write the compact model if that was asked."""
        if not self.gates.param_groups[0]["frozen"]:
            logger.warning(
                "training ended before the gates had decided; they are cut to the budget now, and "
                "the weights have not been trained since: fine-tune the compact model"
            )
            self.gates.finish()
        if self._save_to is not None and is_main_process:
            self._write(self.compact(), self._save_to)

    def compact(self) -> nn.Module:
        """Return the compact model, as `archlearn.compact` does.

        Raises:
            InputError: If training has not begun.
        """
        if self._gated is None:
            raise InputError("there is no model to compact yet: training has not begun")
        return compact(self._gated)


def _cut_alike(model: nn.Module, state: dict[str, Any], *_: Any) -> None:
    shrink_(model, like=state)
    # A trainer makes its optimiser, gates and all, of what takes gradients, before `start` lets
    # gates stand still again.
    container = find_container(model)
    for gate in container.parameters() if container is not None else ():
        gate.requires_grad_()
