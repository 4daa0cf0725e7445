"""A run of the stock Trainer, for the tests of one process and of two."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import accelerate
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import archlearn as al
from benchmarks.torchvision_import import import_models

if find_spec("torchvision") is not None:
    import_models()  # which transformers imports in its turn
import transformers

from archlearn.integrations.trainer_callback import TrainerGateCallback

hf: Any = transformers
BUDGET = {"multiply_adds": "80%"}


def rows() -> list[dict[str, Tensor]]:
    ids = torch.randint(3, 60, (64, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(7, dtype=torch.long)
    return [
        {"input_ids": row, "attention_mask": mask, "labels": (row[1] > 30).long()} for row in ids
    ]


def example() -> dict[str, Tensor]:
    first = rows()[:4]
    return {name: torch.stack([row[name] for row in first]) for name in first[0]}


def make_trainer(
    folder: Path, callback: TrainerGateCallback, compute_loss_func: Any = None, **options: Any
) -> Any:
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
        num_labels=2,
    )
    inputs = example()
    if compute_loss_func is not None:  # the loss is no part of the model then
        del inputs["labels"]
    gated = al.add_gates(hf.BertForSequenceClassification(config), inputs)
    usual: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 16,
        "learning_rate": 5e-3,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    arguments = hf.TrainingArguments(**usual | options)
    return hf.Trainer(
        model=gated,
        args=arguments,
        train_dataset=rows(),
        eval_dataset=rows(),
        callbacks=[callback],
        compute_loss_func=compute_loss_func,
    )


def accelerate_run(
    folder: Path, n_steps: int, *, resume: bool = False
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Learn to a budget by Accelerate; a checkpoint is written half way, or gone on from."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    x, y = torch.randn(32 * n_steps, 64), torch.randint(10, (32 * n_steps,))
    accelerator = accelerate.Accelerator(cpu=True)
    model = al.add_gates(net, x[:2])
    schedule = al.GateSchedule(patience=5)
    gates = al.GateOptimizer(model, n_steps, budget={"multiply_adds": "40%"}, schedule=schedule)
    optimizer = torch.optim.AdamW(al.weights(model), lr=1e-3)
    data = DataLoader(TensorDataset(x, y), batch_size=32 // accelerator.num_processes)
    model, optimizer, prepared, loader = accelerator.prepare(model, optimizer, gates, data)
    if resume:
        saved = safetensors.torch.load_file(folder / "state" / "model.safetensors")
        al.shrink_(model, optimizer, prepared, like=saved)
        accelerator.load_state(str(folder / "state"))
    for step, (inputs, labels) in enumerate(loader):
        if resume and step < n_steps // 2:
            continue
        accelerator.backward(cross_entropy(model(inputs), labels))
        for each in (optimizer, prepared):
            each.step()
            each.zero_grad()
        if gates.can_shrink():
            al.shrink_(model, optimizer, prepared)
        if step == n_steps // 2 - 1 and not resume:
            accelerator.save_state(str(folder / "state"))
    inner = accelerator.unwrap_model(model)
    assert inner.archlearn_gates.n_shrinks >= 2
    small = al.compact(inner)
    return dict(small.state_dict()), gates.costs()


def main(folder: Path) -> None:
    """Learn to a budget as one of several processes; write gates and weights."""
    callback = TrainerGateCallback(budget=BUDGET, save_to=folder / "small.safetensors")
    trainer = make_trainer(folder, callback, num_train_epochs=5)
    trainer.train()
    state = trainer.model.state_dict()
    state |= accelerate_run(folder, n_steps=20)[0]
    torch.save(state, folder / f"{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
