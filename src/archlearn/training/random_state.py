"""Random states as tensors, so that a resumed run draws what it would have drawn."""

import random

import numpy as np
import torch
from torch import Tensor

_MASK = (1 << 63) - 1


def seed_everything(seed: int, rank: int) -> None:
    """Start torch, numpy and Python from a seed, each process from its own."""
    mixed = (seed * 1_000_003 + rank) & _MASK
    torch.manual_seed(mixed)
    np.random.seed(mixed % (1 << 32))
    random.seed(mixed)


def order_of_epoch(n_examples: int, seed: int, epoch: int) -> Tensor:
    """Return the order in which an epoch takes the examples: a function of seed and epoch."""
    generator = torch.Generator().manual_seed((seed * 7_368_787 + epoch * 104_729) & _MASK)
    return torch.randperm(n_examples, generator=generator)


def capture_random_states() -> dict[str, Tensor]:
    """Return the states of every generator a training step may draw from."""
    version, python_state, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=False)
    inner = numpy_state["state"]
    rest = [inner["pos"], numpy_state["has_gauss"], numpy_state["gauss"]]
    del version
    states = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(python_state, dtype=torch.int64),
        "python_gauss": torch.tensor([gauss or 0.0, gauss is not None], dtype=torch.float64),
        "numpy": torch.from_numpy(inner["key"].astype(np.int64)),
        "numpy_rest": torch.tensor(rest, dtype=torch.float64),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_states(states: dict[str, Tensor]) -> None:
    """Set every generator to a captured state."""
    torch.set_rng_state(states["torch"])
    gauss, has_gauss = states["python_gauss"].tolist()
    python_state = tuple(states["python"].tolist())
    random.setstate((3, python_state, gauss if has_gauss else None))
    position, numpy_gauss, cached = states["numpy_rest"].tolist()
    keys = states["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, int(position), int(numpy_gauss), cached))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
