"""A compact model of transformers is an ordinary folder where its config can say its sizes."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import archlearn as al
from benchmarks.torchvision_import import import_models

if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)
if find_spec("torchvision") is not None:
    import_models()  # which transformers imports in its turn
import transformers

from archlearn.export.pretrained_folder import save_pretrained

hf: Any = transformers
TOKENS = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(0))


def bert() -> Any:
    return hf.BertModel(hf.BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=32,
    ))  # fmt: skip


def gpt2() -> Any:
    return hf.GPT2LMHeadModel(hf.GPT2Config(
        vocab_size=60, n_embd=16, n_layer=2, n_head=2, n_positions=32, n_inner=None, bos_token_id=1,
        eos_token_id=2,
    ))  # fmt: skip


@torch.no_grad()
def compact(net: nn.Module, part: str, *n_closed: int) -> Any:
    torch.manual_seed(0)
    gated = al.add_gates(net.eval(), {"input_ids": TOKENS})
    gates = [gate for name, gate in al.width_gates(gated).items() if part in name]
    for gate, n in zip(gates, n_closed, strict=True):
        gate[:n] = 0.0
    return al.compact(gated)


@pytest.mark.parametrize(
    ("make", "auto", "part", "setting"),
    [
        (bert, "AutoModel", "intermediate", "intermediate_size=18"),
        (gpt2, "AutoModelForCausalLM", "mlp", "n_inner=58"),
    ],
)
def test_equal_widths_are_said_by_the_config(
    make: Any, auto: str, part: str, setting: str, tmp_path: Path
) -> None:
    small = compact(make(), part, 6, 6)
    saved = save_pretrained(small, tmp_path / "small")
    assert saved.is_pretrained
    assert setting in str(saved)
    loaded = getattr(hf, auto).from_pretrained(tmp_path / "small").eval()
    assert type(loaded) is type(make())
    torch.testing.assert_close(loaded(input_ids=TOKENS)[0], small(input_ids=TOKENS)[0])


def test_other_widths_are_a_file_of_ours(tmp_path: Path) -> None:
    small = compact(bert(), "intermediate", 6, 5)
    saved = save_pretrained(small, tmp_path / "small")
    assert not saved.is_pretrained
    assert "not equally wide: of 24, 18 stayed in one and 19 in 'encoder.layer.1" in str(saved)
    found = al.load(tmp_path / "small" / "archlearn.safetensors").eval()(input_ids=TOKENS)
    expected = small(input_ids=TOKENS)
    assert type(found) is type(expected)
    torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state)
    assert found.hidden_states is None


@pytest.mark.parametrize("name", ["ModelOutput", "dataclass", "BaseModelOutput", ""])
def test_an_output_of_no_such_class_is_a_dict(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which has not its fields, or is not there, as where transformers is not installed."""
    path = tmp_path / "small.safetensors"
    small = compact(bert(), "intermediate", 6, 5)
    al.save(small, path)
    expected = small(input_ids=TOKENS)
    if name:
        raw = path.read_bytes()
        old, new = (f'\\"{each}\\"'.encode() for each in (type(expected).__name__, name))
        assert old in raw
        path.write_bytes(raw.replace(old, new.ljust(len(old))))
    else:
        monkeypatch.setitem(sys.modules, "transformers.modeling_outputs", None)
    found = al.load(path).eval()(input_ids=TOKENS)
    assert isinstance(found, dict)
    assert type(found).__module__ == "collections"
    assert found.keys() == expected.keys()


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(al.InputError, match=r"archlearn\.save"):
        save_pretrained(nn.Linear(2, 2), tmp_path / "small")
    assert not (tmp_path / "small").exists()
