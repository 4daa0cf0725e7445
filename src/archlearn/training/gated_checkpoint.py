"""A run's gated model as its last checkpoint has it, for surgery after the fact."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from archlearn.data.dataset import Dataset
from archlearn.data.downloads import no_progress
from archlearn.errors import CheckpointError, SettingsError
from archlearn.gating.container import find_store
from archlearn.optim.gate_optimizer import GateOptimizer
from archlearn.training.checkpoint import Position, read_checkpoint
from archlearn.training.initial_model import start_network
from archlearn.training.objectives import objective_of
from archlearn.training.run_directory import read_run_settings
from archlearn.training.run_setup import gate_network, load_dataset
from archlearn.training.training_state import OPTIMISER, restore_tensors_


@dataclass(frozen=True, kw_only=True, slots=True)
class Revived:
    """A gated model with what it was trained on.

    Attributes:
        earned: What each gate earned, where a budget was learnt.
    """

    model: nn.Module
    example: Tensor
    dataset: Dataset
    position: Position
    earned: dict[str, Tensor]


def revive(folder: Path) -> Revived:
    """Return the gated model of a run at its last checkpoint, on the CPU.

    Raises:
        SettingsError: If there is no run, or it learns nothing of the architecture.
        CheckpointError: If the run has no checkpoint yet.
    """
    settings = read_run_settings(folder)
    if settings.gates.learn == "nothing":
        raise SettingsError(f"the run {folder} learns no architecture (learn = 'nothing')")
    found = read_checkpoint(folder)
    if found is None:
        raise CheckpointError(f"the run {folder} has no checkpoint yet; let it run for a while")
    dataset = load_dataset(settings, no_progress)
    network = start_network(settings, dataset)
    example = objective_of(dataset).inputs(dataset.train.inputs[:2])
    model = gate_network(network, example, settings)
    restore_tensors_(found[1], model, ())
    means = {
        name: found[1][f"{OPTIMISER}{name}/mean"]
        for name, _ in model.named_parameters()
        if f"{OPTIMISER}{name}/mean" in found[1]
    }
    return Revived(model=model, example=example, dataset=dataset, position=found[0], earned=means)


@torch.no_grad()
def cut_to_budget_(revived: Revived, budget: Mapping[str, float | str]) -> None:
    """Close more gates of a revived model, until it fits a budget; none is opened again.

    Raises:
        InputError: If the budget cannot be reached.
    """
    gates = GateOptimizer(revived.model, 1, budget=budget)
    if gates.fits():
        return
    store = find_store(revived.model)
    assert store is not None
    acting = dict(zip(map(id, store.gates()), store(), strict=True))
    for name, gate in revived.model.named_parameters():
        if id(gate) in acting:
            earned = revived.earned.get(name, gate).clone()
            is_depth = gate.dim() == 0
            gates.state[gate]["mean"] = earned if is_depth else earned * acting[id(gate)]
    gates.finish()
