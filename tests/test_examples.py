"""The examples with transformers land on their budgets, and what they write is read again."""

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import archlearn as al
from benchmarks.torchvision_import import import_models

if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)
if find_spec("torchvision") is not None:
    import_models()  # which transformers imports in its turn
import transformers

hf: Any = transformers

EXAMPLES = Path(__file__).parents[1] / "examples"
WORDS = ["bad", "good", "film", "plot", "actor"]


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """A small encoder with its tokenizer, 48 sentences, and a place for the result."""
    torch.manual_seed(0)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    hf.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "model")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4}
    config = hf.BertConfig(vocab_size=len(vocabulary), num_hidden_layers=2, **sizes)
    hf.BertModel(config).save_pretrained(tmp_path / "model")
    (tmp_path / "data").mkdir()
    lines = [f"{i % 2} {WORDS[i % 2]} {WORDS[2 + i % 3]}\n" for i in range(48)]
    for name in ("train.txt", "dev.txt"):
        (tmp_path / "data" / name).write_text("".join(lines))
    return [str(tmp_path / name) for name in ("model", "data", "out")]


def test_a_text_classifier_is_learnt_to_its_budget_and_written(
    folders: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLES / "sst2.py"), *folders, "1", "10"])
    found = runpy.run_path(sys.argv[0])
    said = capsys.readouterr().out
    inputs = {name: tokens[:2] for name, tokens in found["inputs"].items()}
    before, after = (al.count_costs(found[name], inputs) for name in ("net", "small"))
    assert 0.3 * before.multiply_adds < after.multiply_adds <= 0.4 * before.multiply_adds
    assert "same function on" in said
    assert Path(folders[2]).is_dir()
    loaded = al.load(Path(folders[2]) / "archlearn.safetensors").eval()
    assert torch.equal(loaded(**inputs)["logits"], found["small"].eval()(**inputs).logits)


def test_a_language_model_is_learnt_to_its_budget_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("".join(f"{i} squared is {i * i}.\n" for i in range(400)))
    words = [str(EXAMPLES / "language_model.py"), str(tmp_path / "text"), str(tmp_path), "1", "10"]
    monkeypatch.setattr(sys, "argv", words)
    found = runpy.run_path(sys.argv[0])
    said = capsys.readouterr().out
    net, own, example = (found[name] for name in ("net", "own", "example"))
    before, after = (al.count_costs(found[name], example) for name in ("net", "small"))
    assert 0.4 * before.multiply_adds < after.multiply_adds <= 0.5 * before.multiply_adds
    assert type(own) is type(net)
    assert "same function on" in said
    assert len(found["written"]) == 32 + 200
    loaded = al.load(tmp_path / "small.safetensors")
    again = found["to_transformers"](loaded, original=tmp_path).eval()
    assert torch.equal(again(**example).logits, own(**example).logits)
