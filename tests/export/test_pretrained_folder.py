"""A compact model of transformers is an ordinary folder where its config can say its sizes."""

import copy
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import archlearn as al
import archlearn_cli as cli
from benchmarks.torchvision_import import import_models

if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)
if find_spec("torchvision") is not None:
    import_models()  # which transformers imports in its turn
import transformers

from archlearn.export.config_sizes import FAMILIES, USUAL, read_settings
from archlearn.export.pretrained_folder import save_pretrained, to_transformers
from tests.cli.commands import assert_refused, run_here

hf: Any = transformers
HEADS = "heads"
TOKENS = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(0))


def bert() -> Any:
    return hf.BertModel(hf.BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=32,
    ))  # fmt: skip


def gpt2() -> Any:
    return hf.GPT2LMHeadModel(hf.GPT2Config(
        vocab_size=60, n_embd=16, n_layer=2, n_head=4, n_positions=32, n_inner=None, bos_token_id=1,
        eos_token_id=2,
    ))  # fmt: skip


def short_gpt2() -> Any:
    """As many positions as hidden units, whose number its config leaves out."""
    return hf.GPT2LMHeadModel(hf.GPT2Config(
        vocab_size=60, n_embd=16, n_layer=2, n_head=4, n_positions=64, bos_token_id=1,
        eos_token_id=2,
    ))  # fmt: skip


def modern_bert(window: int = 48) -> Any:
    """Two layers in one, as wide together as the window of attention."""
    return hf.ModernBertModel(hf.ModernBertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, local_attention=window, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, cls_token_id=1, sep_token_id=2,
    ))  # fmt: skip


def wide_modern_bert() -> Any:
    return modern_bert(window=128)


def classifier() -> Any:
    return hf.BertForSequenceClassification(bert().config)


def llama() -> Any:
    return hf.LlamaForCausalLM(hf.LlamaConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=24, max_position_embeddings=32, bos_token_id=1,
        eos_token_id=None, pad_token_id=0, tie_word_embeddings=True,
    ))  # fmt: skip


def gemma() -> Any:
    return hf.Gemma2ForCausalLM(hf.Gemma2Config(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, head_dim=8,
        num_key_value_heads=2, intermediate_size=24, max_position_embeddings=32, bos_token_id=1,
        eos_token_id=None, pad_token_id=0,
    ))  # fmt: skip


def opt() -> Any:
    return hf.OPTForCausalLM(hf.OPTConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, ffn_dim=24,
        word_embed_proj_dim=16, max_position_embeddings=32, bos_token_id=1, eos_token_id=None,
    ))  # fmt: skip


def stable_lm() -> Any:
    return hf.StableLmForCausalLM(hf.StableLmConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=24, max_position_embeddings=32, bos_token_id=1,
        eos_token_id=None, pad_token_id=0,
    ))  # fmt: skip


def siglip() -> Any:
    return hf.SiglipVisionModel(hf.SiglipVisionConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        image_size=16, patch_size=4, vision_use_head=False,
    ))  # fmt: skip


@torch.no_grad()
def compact(net: nn.Module, part: str, *n_closed: int, **inputs: Any) -> Any:
    torch.manual_seed(0)
    learn = {"*att*": al.Learn.HEADS} if part == HEADS else None
    gated = al.add_gates(net.eval(), inputs or {"input_ids": TOKENS}, learn=learn)
    gates = [gate for name, gate in al.width_gates(gated).items() if learn or part in name]
    for gate, n in zip(gates, n_closed, strict=True):
        gate[:n] = 0.0
    return al.compact(gated)


@pytest.mark.parametrize(
    ("make", "auto", "part", "setting"),
    [
        (bert, "AutoModel", "intermediate", "intermediate_size=18"),
        (gpt2, "AutoModelForCausalLM", "mlp", "n_inner=58"),
        (short_gpt2, "AutoModelForCausalLM", "mlp", "n_inner=58"),
        (modern_bert, "AutoModel", "mlp", "intermediate_size=18"),
        (wide_modern_bert, "AutoModel", "mlp", "intermediate_size=18"),
    ],
)
def test_equal_widths_are_said_by_the_config(
    make: Any, auto: str, part: str, setting: str, tmp_path: Path
) -> None:
    small = compact(make(), part, 6, 6)
    saved = save_pretrained(small, tmp_path / "small")
    assert saved.is_pretrained
    assert saved.reason == setting
    loaded = getattr(hf, auto).from_pretrained(tmp_path / "small").eval()
    assert type(loaded) is type(make())
    torch.testing.assert_close(loaded(input_ids=TOKENS)[0], small(input_ids=TOKENS)[0])


def test_other_widths_are_refused_and_a_file_of_ours_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    small = compact(bert(), "intermediate", 6, 5)
    unequal = r"intermediate_size is one number for 'encoder.layer.0.*\(18\) and 'enc.*\(19\)"
    with pytest.raises(al.FileError, match=f"{unequal}.*equal_blocks=True.*own_file=True"):
        save_pretrained(small, tmp_path / "small")
    assert not (tmp_path / "small").exists()
    own = to_transformers(small)
    for model in (own, copy.deepcopy(own)):
        with pytest.raises(al.FileError, match=f"{unequal}.*equal_blocks=True.*own_file=True"):
            model.save_pretrained(tmp_path / "small")
    assert not (tmp_path / "small").exists()
    saved = save_pretrained(small, tmp_path / "small", own_file=True)
    assert not saved.is_pretrained
    assert "not equally wide" in str(saved)
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


def generate(net: Any) -> tuple[torch.Tensor, list[int]]:
    """Return what a model writes, and how many tokens it read at each step."""
    read: list[int] = []
    handle = net.register_forward_pre_hook(
        lambda _, args, kwargs: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    mask = torch.ones_like(TOKENS)
    written = net.generate(TOKENS, attention_mask=mask, max_new_tokens=5, do_sample=False)
    handle.remove()
    return written, read


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize(
    ("make", "part", "n_closed"),
    [
        (llama, "mlp", (6, 5)),
        (llama, "embed", (4,)),
        (llama, HEADS, (1, 0, 0, 1)),  # of two heads of keys, and of two queries for each
        (gemma, HEADS, (0, 1, 1, 0)),
        (gpt2, "mlp", (6, 5)),
        (gpt2, "wte", (4,)),
        (gpt2, HEADS, (1, 0)),
        (opt, HEADS, (1, 0)),
        (stable_lm, HEADS, (1, 0, 0, 1)),
    ],
)
def test_the_own_forward_keeps_its_cache(
    make: Any, part: str, n_closed: tuple[int, ...], is_loaded: bool, tmp_path: Path
) -> None:
    original = make()
    small = compact(original, part, *n_closed)
    expected, n_read = generate(small)
    assert n_read == [7, 8, 9, 10, 11]  # without a cache
    if is_loaded:
        original.save_pretrained(tmp_path / "original")
        al.save(small, tmp_path / "small.safetensors")
        small = al.load(tmp_path / "small.safetensors").eval()
    own = to_transformers(small, tmp_path / "original" if is_loaded else None)
    assert type(own) is type(original)
    assert sum(p.numel() for p in own.parameters()) == sum(p.numel() for p in small.parameters())
    written, n_read = generate(own)
    assert n_read == [7, 1, 1, 1, 1]
    assert torch.equal(written, expected)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_the_own_forward_keeps_the_precision_of_its_rotary_embedding(
    is_loaded: bool, tmp_path: Path
) -> None:
    llama().save_pretrained(tmp_path)
    original = hf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    frequencies = original.model.rotary_emb.inv_freq
    assert frequencies.dtype == torch.float32
    small = compact(original, "mlp", 6, 5)
    if is_loaded:
        al.save(small, tmp_path / "small.safetensors")
        small = al.load(tmp_path / "small.safetensors").eval()
    own = to_transformers(small, tmp_path if is_loaded else None)
    assert {p.dtype for p in own.parameters()} == {torch.bfloat16}
    torch.testing.assert_close(own.model.rotary_emb.inv_freq, frequencies, rtol=0, atol=0)
    assert torch.equal(own(TOKENS).logits, small(TOKENS).logits)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_the_settings_of_generate_stay(is_loaded: bool, tmp_path: Path) -> None:
    original = llama()
    original.generation_config.eos_token_id = [5, 7]
    original.save_pretrained(tmp_path)
    small = compact(original, "mlp", 6, 5)
    if is_loaded:
        al.save(small, tmp_path / "small.safetensors")
        small = al.load(tmp_path / "small.safetensors").eval()
    settings = to_transformers(small, tmp_path if is_loaded else None).generation_config
    assert settings.eos_token_id == [5, 7]
    assert settings.use_cache


def test_fewer_heads_are_said_by_the_config(tmp_path: Path) -> None:
    small = compact(llama(), HEADS, 1, 0, 1, 0)  # one of two heads of keys in each block
    saved = save_pretrained(small, tmp_path / "small")
    assert saved.is_pretrained
    assert saved.reason == "num_attention_heads=2, num_key_value_heads=1"
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "small").eval()
    torch.testing.assert_close(loaded(TOKENS).logits, small(input_ids=TOKENS).logits)


def test_a_size_that_the_config_refuses_is_told(tmp_path: Path) -> None:
    said = r"may not say hidden_size=13: ValueError: The hidden size \(13\) is not"
    with pytest.raises(al.FileError, match=said):
        save_pretrained(compact(llama(), "embed", 3), tmp_path / "small")


def test_what_the_own_forward_cannot_hold_is_refused() -> None:
    original = llama()
    small = compact(original, "q_proj/2", 1, 0)
    with pytest.raises(al.InputError, match=r"own forward of LlamaForCausalLM does not fit.*MLPs"):
        to_transformers(small)


def test_shared_keys_are_told_of_fewer_queries_which_only_a_mask_makes_matter() -> None:
    small = compact(llama(), "q_proj/3", 1, 0)  # a head of queries for each of keys, then two
    inputs = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    inputs["attention_mask"][0, 4:] = 0
    torch.testing.assert_close(to_transformers(small)(**inputs).logits, small(**inputs).logits)


def test_a_model_with_gates_is_to_be_compacted_first(tmp_path: Path) -> None:
    gated = al.add_gates(llama().eval(), {"input_ids": TOKENS})
    for write in (to_transformers, lambda model: save_pretrained(model, tmp_path / "small")):
        with pytest.raises(al.InputError, match=r"still has gates; give what archlearn\.compact"):
            write(gated)
    assert not (tmp_path / "small").exists()


def test_a_folder_lets_the_cache_be_used_again(tmp_path: Path) -> None:
    save_pretrained(compact(llama(), "mlp", 6, 6), tmp_path / "small")
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "small").eval()
    assert generate(loaded)[1] == [7, 1, 1, 1, 1]


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(al.InputError, match=r"archlearn\.save"):
        save_pretrained(nn.Linear(2, 2), tmp_path / "small")
    assert not (tmp_path / "small").exists()


CAUSAL = {"input_ids": TOKENS, "labels": TOKENS}
LABELS = {
    "input_ids": TOKENS,
    "token_type_ids": torch.zeros_like(TOKENS),
    "labels": torch.tensor([0, 1]),
}
PIXELS = {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))}


@pytest.mark.parametrize(
    ("make", "auto", "part", "inputs", "setting"),
    [
        (bert, "AutoModel", "intermediate", {"input_ids": TOKENS}, "intermediate_size=18"),
        (gpt2, "AutoModelForCausalLM", "mlp", CAUSAL, "n_inner=58"),
        (classifier, "AutoModelForSequenceClassification", "intermediate",
         LABELS, "intermediate_size=18"),
        (siglip, "AutoModel", "mlp", PIXELS, "intermediate_size=18"),
    ],
)  # fmt: skip
def test_the_command_takes_the_config_of_the_original(
    make: Any, auto: str, part: str, inputs: dict[str, Any], setting: str, tmp_path: Path
) -> None:
    original = make()
    original.save_pretrained(tmp_path / "original")
    small = compact(original, part, 6, 6, **inputs)
    al.save(small, tmp_path / "small.safetensors")
    words = "export small.safetensors --to pretrained --config original"
    code, said = run_here(words.split(), tmp_path)
    assert code == 0, said
    assert f"small: read it with from_pretrained ({setting})" in said
    loaded = getattr(hf, auto).from_pretrained(tmp_path / "small").eval()
    torch.testing.assert_close(loaded(**inputs)[0], small(**inputs)[0])


def test_the_command_writes_our_file_where_no_config_fits(tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path / "original")
    small = compact(bert(), "intermediate", 6, 5)
    al.save(small, tmp_path / "small.safetensors")
    words = "export small.safetensors --to pretrained --config original --out deep/folder"
    assert_refused(words, "equal_blocks=True", tmp_path)
    assert not (tmp_path / "deep" / "folder").exists()
    code, said = run_here([*words.split(), "--own-file"], tmp_path)
    assert code == 0, said
    assert "deep/folder/archlearn.safetensors: read it with archlearn.load (its layers are" in said
    found = al.load(tmp_path / "deep" / "folder" / "archlearn.safetensors").eval()
    torch.testing.assert_close(found(TOKENS)[0], small(TOKENS)[0])
    words = "export deep/folder --to torch-export --shape 7"  # the folder stands for the file in it
    code, said = run_here(words.split(), tmp_path)
    assert code == 0, said
    assert "archlearn.pt2" in said


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A folder with a compact BERT, its original, and a network of another package."""
    bert().save_pretrained(tmp_path / "bert")
    gpt2().save_pretrained(tmp_path / "gpt2")
    al.save(compact(bert(), "intermediate", 6, 6), tmp_path / "small.safetensors")
    al.save(cli.models.LeNet(), tmp_path / "lenet.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (
            "small.safetensors",
            "name a folder with the config.json of the model that was",
        ),
        ("small.safetensors --config no", "there is no config.json in no; name the folder of"),
        ("small.safetensors --config gpt2", "of a 'gpt2', but BertModel has one of a 'bert'; name"),
        ("lenet.safetensors --config bert", "LeNet is no model of transformers"),
        ("small.safetensors --config bert --out bert", "bert is there already; choose another"),
        ("bert --config bert", "bert is a folder of transformers, which its from_pretrained reads"),
        ("small.safetensors --config broken", "config.json is not JSON"),
        ("small.safetensors --config odd", "odd/config.json makes no BertConfig (Validation error"),
    ],
)
def test_what_cannot_be_a_folder_is_refused_first(words: str, answer: str, exported: Path) -> None:
    odd = {"model_type": "bert", "hidden_size": "x"}
    for name, text in {"broken": "{", "odd": json.dumps(odd)}.items():
        (exported / name).mkdir()
        (exported / name / "config.json").write_text(text)
    before = sorted(exported.rglob("*"))
    assert_refused(f"export {words} --to pretrained", answer, exported)
    assert sorted(exported.rglob("*")) == before


def test_transformers_is_asked_for(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archlearn.errors.find_spec", lambda name: None)
    words = "export small.safetensors --to pretrained --config bert"
    assert_refused(words, "pip install 'archlearn[transformers]'", exported)


def test_no_code_in_the_folder_is_run(exported: Path) -> None:
    path = exported / "bert" / "config.json"
    config = json.loads(path.read_text())
    auto_map = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}
    path.write_text(json.dumps(config | {"auto_map": auto_map}))
    (exported / "bert" / "own.py").write_text("raise SystemExit('it was run')")
    words = "export small.safetensors --to pretrained --config bert"
    assert run_here(words.split(), exported)[0] == 0


def test_inputs_that_cannot_be_made_up_are_asked_for(tmp_path: Path) -> None:
    inputs = {"inputs_embeds": torch.randn(2, 7, 16)}
    bert().save_pretrained(tmp_path / "bert")
    al.save(compact(bert(), "intermediate", 6, 6, **inputs), tmp_path / "small.safetensors")
    loaded = al.load(tmp_path / "small.safetensors")
    with pytest.raises(al.InputError, match=r"'inputs_embeds', which cannot be.*example_inputs="):
        save_pretrained(loaded, tmp_path / "out", tmp_path / "bert")
    assert not (tmp_path / "out").exists()
    assert save_pretrained(loaded, tmp_path / "out", tmp_path / "bert", inputs).is_pretrained


def bart() -> Any:
    """Encoder and decoder of one width, for which its config has two settings."""
    return hf.BartForConditionalGeneration(hf.BartConfig(
        vocab_size=60, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24,
        max_position_embeddings=32, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        decoder_start_token_id=2, forced_eos_token_id=2,
    ))  # fmt: skip


def t5() -> Any:
    return hf.T5ForConditionalGeneration(hf.T5Config(
        vocab_size=60, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, tie_word_embeddings=True,
    ))  # fmt: skip


BOTH = {
    "input_ids": TOKENS,
    "attention_mask": torch.ones_like(TOKENS),
    "decoder_input_ids": TOKENS[:, :5],
}


def test_two_settings_of_one_size_are_told_apart(tmp_path: Path) -> None:
    small = compact(bart(), "fc1", 6, 6, 4, 4, **BOTH)
    saved = save_pretrained(small, tmp_path / "small")
    assert saved.reason == "encoder_ffn_dim=18, decoder_ffn_dim=20"
    loaded = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "small").eval()
    torch.testing.assert_close(loaded(**BOTH).logits, small(**BOTH).logits)


def test_t5_may_have_other_numbers_of_heads_in_encoder_and_decoder(tmp_path: Path) -> None:
    small = compact_heads(t5(), {"encoder": 1, "decoder.block.0.layer.0": 2})
    own = to_transformers(small)
    heads = {name: m.n_heads for name, m in own.named_modules() if hasattr(m, "n_heads")}
    assert heads["encoder.block.1.layer.0.SelfAttention"] == 3
    assert heads["decoder.block.1.layer.0.SelfAttention"] == 2
    assert heads["decoder.block.1.layer.1.EncDecAttention"] == 4
    torch.testing.assert_close(own(**BOTH).logits, small(**BOTH).logits)
    mask = {"attention_mask": BOTH["attention_mask"], "max_new_tokens": 5, "do_sample": False}
    assert own.generate(TOKENS, **mask).shape[1] > 1
    with pytest.raises(al.FileError, match=r"num_heads is one number .*\(3\) and .*\([24]\)"):
        save_pretrained(small, tmp_path / "small")


@torch.no_grad()
def compact_heads(net: nn.Module, n_closed: dict[str, int]) -> Any:
    gated = al.add_gates(net.eval(), BOTH, learn={"*": al.Learn.HEADS})
    for name, gate in al.width_gates(gated).items():
        for part, n in n_closed.items():
            gate[:n] = torch.where(torch.tensor(name.startswith(part)), 0.0, gate[:n])
    return al.compact(gated)


def test_equal_numbers_of_heads_of_t5_are_said_by_its_config(tmp_path: Path) -> None:
    small = compact_heads(t5(), {"": 1})
    saved = save_pretrained(small, tmp_path / "small")
    assert saved.reason == "num_heads=3"
    loaded = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "small").eval()
    torch.testing.assert_close(loaded(**BOTH).logits, small(**BOTH).logits)


def test_the_own_class_keeps_gradient_checkpointing() -> None:
    net = llama()
    net.gradient_checkpointing_enable()
    small = compact(net, "mlp", 6, 5)
    assert to_transformers(small).is_gradient_checkpointing
    net.gradient_checkpointing_disable()
    assert not to_transformers(compact(net, "mlp", 6, 5)).is_gradient_checkpointing


def test_a_size_that_no_known_setting_says_is_named(tmp_path: Path) -> None:
    net = hf.Dinov2Model(hf.Dinov2Config(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=4,
    ))  # fmt: skip
    small = compact(net, "mlp", 6, 6, **PIXELS)
    said = r"of a 'dinov2' no setting is known that says that '.*mlp\.fc1\.weight' is \(58, 16\)"
    with pytest.raises(al.FileError, match=said):
        save_pretrained(small, tmp_path / "small")
    torch.testing.assert_close(to_transformers(small)(**PIXELS)[0], small(**PIXELS)[0])


SMALL: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 24, "head_dim": 4, "n_embd": 16, "n_layer": 2,
    "n_head": 4, "ffn_dim": 24, "word_embed_proj_dim": 16, "dim": 16, "hidden_dim": 24,
    "n_layers": 2, "n_heads": 4, "d_model": 16, "d_ff": 24, "d_kv": 4, "num_layers": 2,
    "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "embedding_size": 16, "image_size": 32, "ffn_hidden_size": 24, "pad_token_id": 0,
    "num_decoder_layers": 2, "bos_token_id": 1, "eos_token_id": 2, "n_inner": 24,
    "attention_types": [[["global"], 2]],
}  # fmt: skip


USUAL_TYPES = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "stablelm", "cohere",
    "granite", "olmo", "olmo2", "smollm3", "phi", "phi3", "starcoder2", "gpt_neo", "gpt_neox",
    "bert", "roberta", "xlm-roberta", "camembert", "mpnet", "deberta-v2", "modernbert", "vit",
    "deit", "beit", "siglip_vision_model", "clip_vision_model", "clip_text_model",
)  # fmt: skip
FEWER = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_heads": 2}


@pytest.mark.filterwarnings("ignore:.*jit.script.*")  # of DeBERTa
@pytest.mark.parametrize("name", [*FAMILIES, *USUAL_TYPES])
def test_the_settings_of_a_family_are_read_off_the_shapes_that_they_give(name: str) -> None:
    kind = hf.models.auto.configuration_auto.CONFIG_MAPPING[name]
    small = {key: value for key, value in SMALL.items() if key in kind().to_dict()}

    def shapes(**settings: int) -> dict[str, tuple[int, ...]]:
        with torch.device("meta"):
            model = hf.AutoModel.from_config(kind(**small | settings))
        return {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}

    # Where a config names no size of a head, it follows from the width: none says fewer.
    says_heads = bool(small.keys() & {"head_dim", "d_kv"})
    names = [n for n in FAMILIES.get(name, USUAL) if n in small and (says_heads or n not in FEWER)]
    settings = {n: FEWER.get(n, 8) for n in names}
    assert len(settings) > 1
    assert read_settings(kind(**small), shapes(), shapes(**settings)).items() >= settings.items()
