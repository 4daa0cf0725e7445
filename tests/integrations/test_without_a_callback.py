"""Gates on weights learn under other people's trainers, with no callback and no line in a loop."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import archlearn as al
from benchmarks.torchvision_import import import_models
from tests.integrations.processes import run_two

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*(num_workers|GPU|srun|isinstance|LeafSpec|pin_memory).*"),
]
N_STEPS, BUDGET = 48, {"multiply_adds": "50%"}
X = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] * X[:, 1] > 0).long()


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)
    )


def gate() -> tuple[Any, torch.optim.Optimizer, al.GateOptimizer]:
    """Return a model, its optimiser and its gates: two lines of ours."""
    model = al.add_gates(make_net(), X[:2], on="weights")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.01)
    return model, optimizer, al.GateOptimizer(model, optimizer, N_STEPS, budget=BUDGET)


def check(model: nn.Module, gates: al.GateOptimizer) -> None:
    """Check that the network landed on its budget, and is exact once compact."""
    assert gates.fits()
    small = al.compact(model)
    whole = al.count_costs(make_net(), X[:2]).multiply_adds
    assert al.count_costs(small, X[:2]).multiply_adds <= whole // 2
    torch.testing.assert_close(small(X), model(X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"gradient_clip_val": 1.0}, {"precision": "bf16-mixed"}])
def test_lightning(tmp_path: Path, options: dict[str, Any]) -> None:
    import_models()
    lightning: Any = pytest.importorskip("lightning")
    model, optimizer, gates = gate()

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def training_step(self, batch: Any, _: int) -> Tensor:
            return cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        **options,
    )
    trainer.fit(Classifier(), DataLoader(TensorDataset(X, Y), batch_size=32))
    check(model, gates)


def test_accelerate_with_accumulation() -> None:
    accelerate: Any = pytest.importorskip("accelerate")
    model, optimizer, gates = gate()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader = DataLoader(TensorDataset(X, Y), batch_size=16)
    prepared, stepper, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(3):
        for x, y in loader:
            with accelerator.accumulate(prepared):
                accelerator.backward(cross_entropy(prepared(x), y))
                accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
                stepper.step()
                stepper.zero_grad()
    assert gates.param_groups[0]["step"] == N_STEPS
    check(model, gates)


def test_a_transformers_trainer(tmp_path: Path) -> None:
    import_models()
    hf: Any = pytest.importorskip("transformers")

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = make_net()

        def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            logits = self.layers(x)
            if labels is None:
                return {"logits": logits}
            return {"loss": cross_entropy(logits, labels), "logits": logits}

    model = al.add_gates(Classifier(), {"x": X[:2], "labels": Y[:2]}, on="weights")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    gates = al.GateOptimizer(model, optimizer, N_STEPS, budget=BUDGET)
    arguments = hf.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=3,
        per_device_train_batch_size=32,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    rows = [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, N_STEPS)
    hf.Trainer(
        model=model, args=arguments, train_dataset=rows, optimizers=(optimizer, schedule)
    ).train()
    assert gates.fits()
    small = al.compact(model)
    ours, theirs = small(x=X, labels=Y), model(x=X, labels=Y)
    torch.testing.assert_close(ours["logits"], theirs["logits"], rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()),
    reason="this torch has no gloo",
)
def test_two_processes_learn_what_one_does_and_decide_alike(tmp_path: Path) -> None:
    first, second = run_two("tests.integrations.weights_worker", tmp_path)
    for kind in ("together", "disturbed"):
        assert all(torch.equal(first[kind][key], second[kind][key]) for key in first[kind])
    assert not bool(first["together"]["open"].all())
    for key, alone in first["alone"].items():
        torch.testing.assert_close(first["together"][key], alone, rtol=1e-9, atol=1e-12)
