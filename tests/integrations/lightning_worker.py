"""One of two processes that learn together under Lightning's DDP."""

import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import torch

import archlearn as al
from benchmarks.torchvision_import import import_models

if find_spec("torchvision") is not None:
    import_models()  # which torchmetrics imports in its turn
import lightning.pytorch as L

from archlearn.integrations.lightning import LightningGateCallback
from tests.integrations.lightning_modules import QUIET, Classifier, loader


def main(folder: Path) -> None:
    """Learn to a budget; write gates and weights."""
    warnings.filterwarnings("error", "gates were moved")
    callback = LightningGateCallback(
        budget={"parameters": "40%"},
        save_to=folder / "small.safetensors",
        schedule=al.GateSchedule(patience=5),
    )
    trainer = L.Trainer(
        **QUIET,
        callbacks=[callback],
        enable_checkpointing=False,
        strategy="ddp",
        devices=2,
        max_epochs=3,
    )
    module = Classifier()
    trainer.fit(module, loader())
    assert module.net.archlearn_gates.n_shrinks >= 2
    torch.save(module.state_dict(), folder / f"{trainer.global_rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
