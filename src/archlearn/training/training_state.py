"""Model and optimiser become named tensors, and named tensors become model and optimiser."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from archlearn.errors import CheckpointError, first_line
from archlearn.training.optimizers import Optimisers
from archlearn.training.random_state import restore_random_states

MODEL, OPTIMISER, RANDOM = "model/", "optimiser/", "random/"


def collect_tensors(model: nn.Module, optimisers: Optimisers) -> dict[str, Tensor]:
    """Return all tensors of a model and its optimiser by name; nothing is copied."""
    tensors = {f"{MODEL}{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for optimiser in optimisers:
            for key, value in optimiser.state.get(parameter, {}).items():
                if value is not None:
                    tensors[f"{OPTIMISER}{name}/{key}"] = torch.as_tensor(value)
    return tensors


@torch.no_grad()
def restore_tensors_(
    tensors: Mapping[str, Tensor], model: nn.Module, optimisers: Optimisers
) -> None:
    """Set a model and its optimiser to what a checkpoint holds.

    Values are copied into the tensors that are there, so their layout in memory stays: sums
    in another order would differ in the last bit.

    Raises:
        CheckpointError: If names or shapes differ from those of the model.
    """
    own = model.state_dict()
    kept = {name.removeprefix(MODEL): t for name, t in tensors.items() if name.startswith(MODEL)}
    if own.keys() != kept.keys() or any(own[n].shape != kept[n].shape for n in own):
        raise CheckpointError(
            "the checkpoint is of another model: names or shapes of tensors differ; "
            "resume with the code the run was started with"
        )
    for name, value in own.items():
        value.copy_(kept[name])
    _restore_optimisers_(tensors, model, optimisers)


def _restore_optimisers_(
    tensors: Mapping[str, Tensor], model: nn.Module, optimisers: Optimisers
) -> None:
    for name, parameter in model.named_parameters() if optimisers else ():
        prefix = f"{OPTIMISER}{name}/"
        state: dict[str, Tensor] = {}
        for key, value in tensors.items():
            if key.startswith(prefix) and "/" not in key.removeprefix(prefix):
                if value.numel() != 1 and value.shape != parameter.shape:
                    raise CheckpointError(
                        f"the checkpoint holds {key!r} of shape {tuple(value.shape)} for a "
                        f"parameter of shape {tuple(parameter.shape)}; start the run anew in "
                        "another folder"
                    )
                state[key.removeprefix(prefix)] = _like(parameter, value)
        if state:
            _set_state_(_owner(parameter, optimisers), parameter, state)


def _set_state_(
    optimiser: torch.optim.Optimizer, parameter: nn.Parameter, state: dict[str, Tensor]
) -> None:
    """Copy into tensors that are there, which a captured step may hold; else put new ones."""
    own = optimiser.state[parameter]
    for key, value in state.items():
        if isinstance(own.get(key), Tensor):
            own[key].copy_(value)
        else:
            own[key] = value


def _owner(parameter: nn.Parameter, optimisers: Optimisers) -> torch.optim.Optimizer:
    """Return the optimiser that updates a parameter."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            if any(parameter is other for other in group["params"]):
                return optimiser
    raise CheckpointError("the checkpoint holds the state of a parameter that is not learnt now")


def _like(parameter: Tensor, value: Tensor) -> Tensor:
    """Return a value laid out in memory as its parameter; single numbers stay on the CPU."""
    if value.shape != parameter.shape:
        return value.clone()
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def restore_random(tensors: Mapping[str, Tensor], rank: int) -> None:
    """Set the generators of this process to what the checkpoint holds for its rank."""
    prefix = f"{RANDOM}{rank}/"
    states = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    if not states:
        return
    try:
        restore_random_states(states)
    except (KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint's random states cannot be restored ({first_line(error)}); start the "
            "run anew in another folder"
        ) from error
