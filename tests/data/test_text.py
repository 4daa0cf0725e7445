"""A text becomes windows of tokens, and a network learns the next token of each."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import archlearn as al
import archlearn_cli as cli
from archlearn import DataError, SettingsError
from tests.run_files import COMPACT, METRICS, SUMMARY, read_lines

LINE = "to be, or not to be: that is the question.\n"
ASKED = {
    "model": "gpt:0.06",
    "epochs": 2,
    "batch_size": 20,
    "optimizer": "adam",
    "accelerator": "cpu",
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(LINE * 60)
    return path


def test_windows_follow_each_other_and_targets_are_the_next_characters(tmp_path: Path) -> None:
    path = tmp_path / "abc.txt"
    path.write_text("cabcabcabb" * 5)  # 45 characters to learn from, "bcabb" to test on
    examples = cli.data.load_examples(f"tiny-shakespeare:{path}:4")
    assert examples.train.inputs[:3].tolist() == [[2, 0, 1, 2], [0, 1, 2, 0], [1, 1, 2, 0]]
    assert examples.train.targets[:3].tolist() == [[0, 1, 2, 0], [1, 2, 0, 1], [1, 2, 0, 1]]
    assert len(examples.train) == 11
    assert examples.test.inputs.tolist() == [[1, 2, 0, 1]]
    assert examples.test.targets.tolist() == [[2, 0, 1, 1]]


def test_last_tenth_of_a_text_is_the_test_part(text: Path) -> None:
    examples = cli.data.load_examples(f"tiny-shakespeare:{text}:16")
    n = len(LINE) * 60
    n_test = n - n * 9 // 10
    assert len(examples.train) == (n - n_test - 1) // 16
    assert len(examples.test) == (n_test - 1) // 16
    letters = sorted(set(LINE))
    read = "".join(letters[token] for token in examples.test.inputs[0])
    assert read == (LINE * 60)[n - n_test : n - n_test + 16]
    dataset = cli.data.build_dataset(examples, validation_share=0.1)
    assert dataset.task == "next_token"
    assert dataset.n_outputs == len(letters)
    assert dataset.input_shape == (16,)
    assert cli.data.load_examples(f"tiny-shakespeare:{text}").train.inputs.shape[1] == 128


def test_folder_that_holds_the_text_is_taken(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text(LINE * 20)
    assert cli.data.load_examples(f"tiny-shakespeare:{tmp_path}:8").name == "input.txt"


def test_score_is_nats_and_accuracy_a_character(text: Path) -> None:
    dataset = cli.data.build_dataset(
        cli.data.load_examples(f"tiny-shakespeare:{text}:16"), validation_share=0.1
    )
    objective = cli.training.objective_of(dataset)
    table = nn.Embedding(dataset.n_outputs, dataset.n_outputs)
    score = cli.training.evaluate(table, dataset.test, objective)
    logits = table(dataset.test.inputs).double().log_softmax(-1)
    chosen = logits.gather(-1, dataset.test.targets[..., None])
    assert score.loss == pytest.approx(-chosen.mean().item(), rel=1e-5)
    right = (logits.argmax(-1) == dataset.test.targets).double().mean().item()
    assert score.accuracy == pytest.approx(right)
    assert score.n_examples == len(dataset.test)


@pytest.mark.slow
def test_gpt_learns_a_text_and_its_compact_model_scores_the_same(
    text: Path, tmp_path: Path
) -> None:
    settings = cli.training.override(
        cli.training.RunSettings(), ASKED | {"data": f"tiny-shakespeare:{text}:16"}
    )
    cli.training.learn(settings, tmp_path / "run")
    rows = read_lines(tmp_path / "run" / METRICS)
    guess = math.log(len(set(LINE)))
    assert rows[-1]["validation_loss"] < rows[0]["validation_loss"]
    assert rows[0]["validation_loss"] == pytest.approx(guess, rel=0.2)
    summary = json.loads((tmp_path / "run" / SUMMARY).read_text())
    assert summary["task"] == "next_token"
    page = cli.reporting.write_report(tmp_path / "run", tmp_path / "page.html").read_text()
    assert "nats a token" in page
    small = al.load(tmp_path / "run" / COMPACT)
    dataset = cli.data.build_dataset(
        cli.data.load_examples(settings.data), validation_share=settings.validation
    )
    score = cli.training.evaluate(small, dataset.test, cli.training.objective_of(dataset))
    assert score.loss == pytest.approx(summary["test_loss"], rel=1e-6)
    assert score.accuracy == summary["test_accuracy"]


@pytest.mark.parametrize(
    ("rest", "answer"),
    [
        ("nowhere.txt", r"nowhere.txt.*no such file"),
        ("few.txt", r"holds 3 characters.*window.* of 128.* tiny-shakespeare:.*few.txt:16$"),
        ("bytes.txt", r"bytes.txt is no text in UTF-8"),
        ("same.txt:4", r"only one character, 'a'"),
    ],
)
def test_files_that_are_no_text_are_refused(rest: str, answer: str, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("abc")
    (tmp_path / "same.txt").write_text("a" * 300)
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x80" * 300)
    with pytest.raises(DataError, match=answer):
        cli.data.load_examples(f"tiny-shakespeare:{tmp_path / rest}")


@pytest.mark.parametrize(
    ("changed", "error", "answer"),
    [
        ({"model": "mlp"}, al.InputError, r"mlp does not take examples of shape \(16,\)"),
        ({"model": "lenet"}, al.InputError, r"'lenet' takes square images"),
        ({"classes": 3}, SettingsError, r"first 3 classes .* predicts the next token"),
        ({"augment": "flip"}, SettingsError, r"both are for images"),
        ({"normalise": "imagenet"}, SettingsError, r"images of three colours"),
    ],
)
def test_what_does_not_go_with_text_is_refused(
    changed: dict[str, object], error: type[Exception], answer: str, text: Path, tmp_path: Path
) -> None:
    asked = ASKED | {"data": f"tiny-shakespeare:{text}:16"} | changed
    with pytest.raises(error, match=answer):
        cli.training.learn(
            cli.training.override(cli.training.RunSettings(), asked), tmp_path / "run"
        )


def test_gpt_on_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(al.InputError, match=r"gpt:0.06 does not take examples of shape \(10,\)"):
        cli.training.learn(
            cli.training.override(
                cli.training.RunSettings(), {"model": "gpt:0.06", "data": "diabetes"}
            ),
            tmp_path / "run",
        )


def test_network_with_one_answer_a_text_is_refused(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from torch import nn\n"
        "def build(n_outputs):\n"
        "    return nn.Sequential(nn.Embedding(n_outputs, 8), nn.Flatten(), nn.Linear(128, 30),\n"
        "        nn.ReLU(), nn.Linear(30, n_outputs))\n"
    )
    (tmp_path / "one_answer.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    asked = ASKED | {"data": f"tiny-shakespeare:{text}:16", "model": "one_answer:build"}
    with pytest.raises(al.InputError, match=r"gives \(2, \d+\) for two examples.*\(2, 16, \d+\)"):
        cli.training.learn(
            cli.training.override(cli.training.RunSettings(), asked), tmp_path / "run"
        )


def test_tokens_are_handed_to_the_network_as_they_are(text: Path) -> None:
    dataset = cli.data.build_dataset(
        cli.data.load_examples(f"tiny-shakespeare:{text}:16"), validation_share=0.1
    )
    raw = dataset.train.inputs[:3]
    assert torch.equal(cli.training.objective_of(dataset).inputs(raw), raw)
    assert cli.training.objective_of(dataset).training_inputs(raw).dtype == torch.long
