"""A LightningModule and its data, for the tests of one process and of two."""

from typing import Any

import lightning.pytorch as L
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import archlearn as al

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def digits() -> tuple[Tensor, Tensor]:
    x, y = (torch.tensor(array) for array in load_digits(return_X_y=True))
    return x.float() / 16, y


def loader() -> DataLoader[Any]:
    x, y = digits()
    return DataLoader(TensorDataset(x[:1536], y[:1536]), batch_size=64, num_workers=0)


class Classifier(L.LightningModule):
    """A module as anybody writes it: its optimiser has all parameters, gates among them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10)
        )
        self.net = al.add_gates(net, digits()[0][:2])

    def training_step(self, batch: Any, index: int) -> Tensor:
        x, y = batch
        return cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.01)
