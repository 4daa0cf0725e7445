"""A run of Lightning learns gates by one callback."""

import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import archlearn as al
from benchmarks.torchvision_import import import_models

if find_spec("lightning") is None:
    pytest.skip("Lightning is not installed", allow_module_level=True)
if find_spec("torchvision") is not None:
    import_models()  # which torchmetrics imports in its turn
import lightning.pytorch as L

from archlearn.integrations.lightning import LightningGateCallback
from tests.integrations.lightning_modules import QUIET, Classifier, digits, loader
from tests.integrations.processes import check_same, run_two

BUDGET = {"multiply_adds": "40%"}

pytestmark = pytest.mark.filterwarnings("ignore:.*(num_workers|GPU|srun|isinstance|LeafSpec).*")


def fit(
    callback: LightningGateCallback, *others: Any, checkpoint: Path | None = None, **options: Any
) -> tuple[Classifier, L.Trainer]:
    trainer = L.Trainer(callbacks=[callback, *others], **QUIET, **{"max_epochs": 4, **options})
    module = Classifier()
    trainer.fit(module, loader(), ckpt_path=checkpoint, weights_only=False)
    return module, trainer


def test_one_callback_lands_on_the_budget_and_hands_back_the_compact_model(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    callback = LightningGateCallback(budget=BUDGET, save_to=path)
    module, trainer = fit(
        callback,
        enable_checkpointing=False,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        max_epochs=8,
    )
    small = callback.compact()
    whole = 64 * 48 + 48 * 32 + 32 * 10
    assert 0.35 * whole < al.count_costs(small).multiply_adds / 2 <= 0.4 * whole
    assert 2 <= module.net.archlearn_gates.n_shrinks <= 6
    assert module.net[0].weight.shape[0] < 48
    x, y = digits()
    torch.testing.assert_close(small(x), module.net(x))
    assert (small(x[:1536]).argmax(1) == y[:1536]).float().mean() > 0.8
    assert trainer.callback_metrics["multiply_adds"] == callback.gates.costs()["multiply_adds"]
    torch.testing.assert_close(al.load(path)(x), small(x))


def test_the_modules_own_optimizer_does_not_touch_the_gates() -> None:
    module, trainer = fit(LightningGateCallback(budget=BUDGET), enable_checkpointing=False)
    known = {id(gate) for gate in al.width_gates(module).values()}
    states = trainer.optimizers[0].state
    assert not any(id(parameter) in known for parameter in states)
    assert len(states) == 6


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_a_run_resumes_as_if_it_had_never_stopped(tmp_path: Path, epoch: int) -> None:
    """From before the first cut, from between two, and from behind the last."""

    class Stopper(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            if trainer.current_epoch == epoch:
                trainer.save_checkpoint(tmp_path / "half.ckpt")
                n_shrinks.append(pl_module.net.archlearn_gates.n_shrinks)

    n_shrinks: list[int] = []
    whole, _ = fit(LightningGateCallback(budget=BUDGET), Stopper(), enable_checkpointing=False)
    callback = LightningGateCallback(budget=BUDGET)
    resumed, _ = fit(callback, checkpoint=tmp_path / "half.ckpt", enable_checkpointing=False)
    assert (n_shrinks[0] > 0) == (epoch > 0)
    assert (n_shrinks[0] < whole.net.archlearn_gates.n_shrinks) == (epoch < 2)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_a_run_learns_the_same_with_and_without_shrinking() -> None:
    """In double precision; an averaged copy of the module loses the same channels."""
    found: list[Any] = []
    for shrink in (True, False):
        average = L.callbacks.WeightAveraging()
        callback = LightningGateCallback(budget=BUDGET, shrink=shrink)
        fit(callback, average, enable_checkpointing=False, precision="64-true")
        found.append(callback.compact())
    x = digits()[0].double()
    assert al.count_costs(found[0]) == al.count_costs(found[1])
    torch.testing.assert_close(found[0](x), found[1](x), rtol=1e-6, atol=1e-8)


def test_an_optimizer_that_cannot_follow_is_told_and_training_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Factored(Classifier):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adafactor(al.weights(self), lr=1e-2)

    callback = LightningGateCallback(budget=BUDGET)
    trainer = L.Trainer(callbacks=[callback], **QUIET, max_epochs=4, enable_checkpointing=False)
    with caplog.at_level(logging.WARNING, logger="archlearn"):
        trainer.fit(Factored(), loader())
    assert caplog.text.count("cannot shrink with Adafactor") == 1
    assert callback.gates.fits()


def test_a_run_that_ends_early_is_cut_to_the_budget(caplog: pytest.LogCaptureFixture) -> None:
    class Impatient(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
            trainer.should_stop = trainer.global_step == 30

    callback = LightningGateCallback(budget=BUDGET)
    with caplog.at_level(logging.WARNING, logger="archlearn"):
        fit(callback, Impatient(), enable_checkpointing=False)
    assert "before the gates had decided" in caplog.text
    assert callback.gates.fits()


def test_batches_that_the_module_skips_count_as_steps() -> None:
    class Choosy(Classifier):
        def training_step(self, batch: Any, index: int) -> Any:
            return super().training_step(batch, index) if index % 3 else None

    callback = LightningGateCallback(budget=BUDGET)
    trainer = L.Trainer(callbacks=[callback], **QUIET, max_epochs=2, enable_checkpointing=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`training_step` returned `None`")
        trainer.fit(Choosy(), loader())
    assert callback.gates.param_groups[0]["step"] == trainer.global_step == 48
    assert callback.gates.fits()


def test_a_file_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    callback = LightningGateCallback(budget=BUDGET, save_to=tmp_path / "file" / "small.safetensors")
    with pytest.raises(al.InputError, match="of save_to cannot be written"):
        fit(callback, enable_checkpointing=False)
    assert "step" not in callback.state_dict()


def test_what_cannot_be_is_refused() -> None:
    class ByHand(Classifier):
        automatic_optimization = False

    class Plain(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(64, 10)

    trainer = L.Trainer(callbacks=[LightningGateCallback()], max_epochs=1, **QUIET,
                        enable_checkpointing=False)  # fmt: skip
    with pytest.raises(al.InputError, match="optimises by hand"):
        trainer.fit(ByHand(), loader())
    with pytest.raises(al.InputError, match="0 sets of gates"):
        trainer.fit(Plain(), loader())
    with pytest.raises(al.InputError, match="leave them out"):
        LightningGateCallback(total_steps=3)
    with pytest.raises(al.InputError, match="training has not begun"):
        LightningGateCallback().compact()


@pytest.mark.slow
def test_two_processes_learn_the_same_gates(tmp_path: Path) -> None:
    first, second = run_two("tests.integrations.lightning_worker", tmp_path)
    check_same(first, second)
    small = al.load(tmp_path / "small.safetensors")
    assert sum(p.numel() for p in small.parameters()) < 0.45 * 5_018
