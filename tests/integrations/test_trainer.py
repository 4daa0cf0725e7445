"""The stock Trainer of transformers learns gates by one callback."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch.nn.functional import cross_entropy

import archlearn as al
from benchmarks.torchvision_import import import_models

if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)
if find_spec("torchvision") is not None:
    import_models()  # which transformers imports in its turn
from archlearn.integrations.trainer_callback import TrainerGateCallback
from tests.integrations.processes import check_same, run_two
from tests.integrations.trainer_runs import BUDGET, accelerate_run, example, hf, make_trainer


def test_labels_bf16_and_a_budget(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    callback = TrainerGateCallback(budget=BUDGET, save_to=path)
    trainer = make_trainer(tmp_path, callback, bf16=True, num_train_epochs=10)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before - 0.1
    small: Any = callback.compact()
    assert isinstance(small, hf.BertForSequenceClassification)
    gated: Any = trainer.model
    assert gated.archlearn_gates.n_shrinks >= 1
    before, after = callback.gates.param_groups[0]["start"], callback.gates.costs()
    assert 0.75 * before[1] < 4 * after["multiply_adds"] <= 0.8 * before[1]
    gated = trainer.accelerator.unwrap_model(gated, keep_fp32_wrapper=False)  # no autocast
    torch.testing.assert_close(small.eval()(**example()).loss, gated.eval()(**example()).loss)
    torch.testing.assert_close(al.load(path).eval()(**example()).logits, small(**example()).logits)


def test_a_folder_is_written_as_its_sizes_allow_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "small"
    callback = TrainerGateCallback(budget=BUDGET, save_to=folder)
    make_trainer(tmp_path, callback, max_steps=8).train()
    assert f"{folder / 'archlearn.safetensors'}: read it with archlearn.load (" in caplog.text
    small = al.load(folder / "archlearn.safetensors").eval()
    torch.testing.assert_close(
        small(**example()).logits, callback.compact().eval()(**example()).logits
    )


def test_gradient_checkpointing_is_warned_of_and_does_not_stop_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It registers a hook on the embedding, which asks for gradients and changes nothing."""
    callback = TrainerGateCallback(budget=BUDGET, save_to=tmp_path / "small.safetensors")
    make_trainer(tmp_path, callback, max_steps=8, gradient_checkpointing=True).train()
    said = "gradient checkpointing saves no memory in this BertForSequenceClassification"
    assert caplog.text.count(said) == 1
    small = al.load(tmp_path / "small.safetensors").eval()
    torch.testing.assert_close(
        small(**example()).logits, callback.compact().eval()(**example()).logits
    )


def test_a_loss_outside_of_the_model_needs_no_labels_to_predict(tmp_path: Path) -> None:
    inputs = example()
    labels = inputs.pop("labels")
    callback = TrainerGateCallback(budget=BUDGET)
    make_trainer(tmp_path, callback, num_train_epochs=1).train()
    with pytest.raises(al.InputError, match=r"labels is left out.*compute_loss_func="):
        callback.compact()(**inputs)

    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        return cross_entropy(outputs.logits, labels)

    callback = TrainerGateCallback(budget=BUDGET)
    trainer = make_trainer(tmp_path, callback, loss, num_train_epochs=1)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0
    assert callback.compact()(**inputs).logits.shape == (len(labels), 2)


@pytest.mark.slow
def test_a_run_resumes_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    """From before the first cut, and from behind it."""
    options = {"save_strategy": "steps", "save_steps": 10, "num_train_epochs": 5}
    whole = make_trainer(tmp_path / "a", TrainerGateCallback(budget=BUDGET), **options)
    whole.train()
    for place, is_small in (("checkpoint-10", False), ("checkpoint-20", True)):
        checkpoint = tmp_path / "a" / place
        state = safetensors.torch.load_file(checkpoint / "model.safetensors")
        assert ("archlearn_gates.shrinks" in state) == is_small
        callback = TrainerGateCallback(budget=BUDGET, resume_from=checkpoint)
        resumed = make_trainer(tmp_path / "b", callback, **options)
        resumed.train(resume_from_checkpoint=str(checkpoint))
        for name, tensor in whole.model.state_dict().items():
            assert torch.equal(tensor, resumed.model.state_dict()[name]), name
    lost = make_trainer(tmp_path / "c", TrainerGateCallback(budget=BUDGET), **options)
    with pytest.raises(al.InputError, match="resume_from="):
        lost.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-10"))


def test_the_best_model_may_be_beyond_the_budget_and_is_refused(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, TrainerGateCallback(), load_best_model_at_end=True, eval_strategy="epoch",
        save_strategy="epoch", num_train_epochs=1,
    )  # fmt: skip
    with pytest.raises(al.InputError, match="leave it out"):
        trainer.train()


def test_accelerate_prepares_the_gates_like_any_optimizer(tmp_path: Path) -> None:
    whole, costs = accelerate_run(tmp_path, n_steps=60)
    assert costs["multiply_adds"] <= 0.4 * (64 * 48 + 48 * 10)
    resumed, _ = accelerate_run(tmp_path, n_steps=60, resume=True)
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name]), name


@pytest.mark.slow
def test_two_processes_learn_the_same_gates(tmp_path: Path) -> None:
    first, second = run_two("tests.integrations.trainer_runs", tmp_path)
    check_same(first, second)
    assert len(first) > 40
    assert al.load(tmp_path / "small.safetensors").eval()(**example())["logits"].shape == (4, 2)
