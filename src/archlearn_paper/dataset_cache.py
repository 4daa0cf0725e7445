"""What the runs of a team have in common lies in a storeroom: data sets and orders, loaded once."""

import functools
from dataclasses import dataclass, field, replace

import torch
from lightning_fabric import Fabric
from torch import Tensor

from archlearn.data.dataset import Dataset
from archlearn.data.downloads import no_progress
from archlearn.training.defaults import derive_sizes
from archlearn.training.random_state import order_of_epoch
from archlearn.training.run_setup import load_dataset
from archlearn.training.settings import RunSettings

_OF_DATA = (
    "data", "validation", "limit", "classes", "resize", "augment", "normalise", "skip_broken",
    "start_from",
)  # fmt: skip
_MOST_BYTES_ON_DEVICE = 8 << 30


@dataclass(slots=True)
class Storeroom:
    """What the runs of a team have in common: data sets and orders, loaded once."""

    fabric: Fabric
    datasets: dict[tuple[object, ...], Dataset] = field(default_factory=dict)
    orders: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)

    def dataset(self, settings: RunSettings) -> Dataset:
        """Return the data set that a run learns from, on the device unless it is very large."""
        key = tuple(getattr(settings, name) for name in _OF_DATA)
        if key not in self.datasets:
            found = _load(replace(RunSettings(), **dict(zip(_OF_DATA, key, strict=True))))
            fits = found.train.n_bytes <= _MOST_BYTES_ON_DEVICE
            self.datasets[key] = found.to(self.fabric.device) if fits else found
        return self.datasets[key]

    def n_epochs(self, settings: RunSettings) -> int:
        """Return the epochs that a run will have."""
        n_train = len(self.dataset(settings).train)
        epochs = derive_sizes(settings, n_train, settings.hardware.accumulate).epochs
        assert epochs is not None
        return epochs

    def order(self, n_examples: int, seed: int, n_epochs: int) -> Tensor:
        """Return the order of examples of every epoch, on the device."""
        key = (n_examples, seed, n_epochs)
        if key not in self.orders:
            orders = [order_of_epoch(n_examples, seed, epoch) for epoch in range(n_epochs)]
            self.orders[key] = torch.stack(orders).to(self.fabric.device)
        return self.orders[key]


@functools.lru_cache(maxsize=2)
def _load(settings: RunSettings) -> Dataset:
    """Return a data set that teams one after the other learn from, read from the disk once."""
    return load_dataset(settings, no_progress)
