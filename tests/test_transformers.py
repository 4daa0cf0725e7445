"""Models of Hugging Face transformers are learnt exactly, and called as they always were."""

import inspect
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import archlearn as al
from archlearn.gating.attach import find_gate_groups
from archlearn.verification.precision import exchanging
from benchmarks.torchvision_import import import_models
from tests.surgery.test_closed_channels import close_

if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)
if find_spec("torchvision") is not None:
    import_models()  # which transformers imports in its turn
import transformers

hf: Any = transformers
SMALL = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def llama() -> nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, **TOKENS, num_key_value_heads=1))


def tokens(n_rows: int = 2, length: int = 7) -> Tensor:
    return torch.randint(3, 60, (n_rows, length), generator=torch.Generator().manual_seed(0))


def text() -> dict[str, Tensor]:
    return {"input_ids": tokens(), "attention_mask": torch.ones(2, 7, dtype=torch.long)}


def image(size: int = 32) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size, dtype=torch.float64)}


MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, Tensor]]]] = {
    # A decorator injects a keyword.
    "BertModel": lambda: (hf.BertModel(hf.BertConfig(**SMALL)), text()),
    # A module is made in forward.
    "DistilBertForSequenceClassification": lambda: (
        hf.DistilBertForSequenceClassification(
            hf.DistilBertConfig(vocab_size=60, dim=16, n_layers=1, n_heads=2, hidden_dim=24)
        ),
        text(),
    ),
    # Conv1D, GELU written out, a cache by default.
    "GPT2LMHeadModel": lambda: (
        hf.GPT2LMHeadModel(
            hf.GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=2, n_positions=32, **TOKENS)
        ),
        {"input_ids": tokens()},
    ),
    "LlamaForCausalLM": lambda: (llama(), {"input_ids": tokens()}),
    # One block is called several times.
    "AlbertForSequenceClassification": lambda: (
        hf.AlbertForSequenceClassification(hf.AlbertConfig(**SMALL, embedding_size=8)),
        text(),
    ),
    "T5ForConditionalGeneration": lambda: (
        hf.T5ForConditionalGeneration(
            hf.T5Config(vocab_size=60, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)
        ),
        {"input_ids": tokens(), "decoder_input_ids": tokens()},
    ),
    # A size as a number in each layer.
    "MobileNetV2ForImageClassification": lambda: (
        hf.MobileNetV2ForImageClassification(hf.MobileNetV2Config(depth_multiplier=0.25)),
        image(),
    ),
    # A first call that sets a flag and registers hooks.
    "SegformerForSemanticSegmentation": lambda: (
        hf.SegformerForSemanticSegmentation(
            hf.SegformerConfig(
                num_encoder_blocks=2,
                hidden_sizes=[8, 16],
                depths=[1, 1],
                num_attention_heads=[1, 2],
                sr_ratios=[2, 1],
                mlp_ratios=[2, 2],
                decoder_hidden_size=8,
            )
        ),
        image(),
    ),
}


def close_half_(gated: nn.Module) -> None:
    with torch.no_grad():
        for gates in al.width_gates(gated).values():
            gates[::2] = 0.2


def differences(one: Any, two: Any) -> list[float]:
    pairs = zip(tree_leaves(one), tree_leaves(two), strict=True)
    return [float((a - b).detach().abs().max()) for a, b in pairs if isinstance(a, Tensor)]


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """Have torch make tensors without a device on "meta", as with `torch.set_default_device`."""
    with torch.device("meta"):
        yield


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("elsewhere")
def test_models_are_exact_with_their_own_output_types(name: str) -> None:
    with torch.device("cpu"):
        torch.manual_seed(0)
        net, inputs = MODELS[name]()
        net = net.double().eval()
    gated = al.add_gates(net, inputs)
    assert len(al.width_gates(gated)) >= 2
    assert max(differences(gated(**inputs), _without_cache(net)(**inputs))) < 1e-10
    close_half_(gated)
    small = al.compact(gated)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in net.parameters())
    assert type(net(**inputs)) is type(gated(**inputs)) is type(small(**inputs))
    with exchanging({}):  # norms of Llama round to float32, also in a model in float64
        assert max(differences(small(**inputs), gated(**inputs))) < 1e-10


@pytest.mark.parametrize("name", [name for name in MODELS if "input_ids" in MODELS[name]()[1]])
def test_compact_models_take_other_numbers_of_rows_and_tokens(name: str) -> None:
    torch.manual_seed(0)
    net, inputs = MODELS[name]()
    gated = al.add_gates(net.double().eval(), inputs)
    close_half_(gated)
    small = al.compact(gated)
    for n_rows, length in ((1, 5), (3, 11)):
        others = {
            key: torch.ones_like(tokens(n_rows, length))
            if "mask" in key
            else tokens(n_rows, length)
            for key in inputs
        }
        with exchanging({}):
            assert max(differences(small(**others), gated(**others))) < 1e-10


QUICK = ("LlamaForCausalLM", "GPT2LMHeadModel")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MODELS]
)
def test_zeros_are_cut_from_models_without_gates(name: str) -> None:
    torch.manual_seed(0)
    net, inputs = MODELS[name]()
    net = net.double().eval()
    still_open = close_(net, find_gate_groups(net, inputs), 0)
    plan, small = al.plan(net, inputs), al.compact(net, inputs)
    assert {name: list(kept) for name, kept in plan.widths.items()} == still_open
    assert small.certificate.difference_float64 < 1e-10
    assert sum(p.numel() for p in small.parameters()) == plan.after.parameters


@pytest.mark.parametrize("n_rows", [1, 2])
@pytest.mark.parametrize("name", ["LlamaModel", "GPT2Model", "LlamaForSequenceClassification"])
def test_a_decoder_without_generate_needs_no_mask_in_its_example(name: str, n_rows: int) -> None:
    if name == "GPT2Model":
        sizes = {"vocab_size": 60, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
        net = hf.GPT2Model(hf.GPT2Config(**sizes, **TOKENS)).eval()
    else:
        net = getattr(hf, name)(hf.LlamaConfig(**SMALL, **TOKENS)).eval()
    gated = al.add_gates(net, {"input_ids": tokens(n_rows)})
    assert al.width_gates(gated)
    for others in (tokens(1), tokens(3, 5)):
        found = differences(gated(input_ids=others), _without_cache(net)(input_ids=others))
        assert max(found) < 1e-5


def test_a_single_token_is_told_which_attention_takes_it() -> None:
    gated = al.add_gates(llama().eval(), {"input_ids": tokens()})
    with pytest.raises(al.InputError, match='attn_implementation="eager"'):
        gated(input_ids=tokens(1, 1))
    config = hf.LlamaConfig(**SMALL, **TOKENS, attn_implementation="eager")
    net = hf.LlamaForCausalLM(config).eval()
    gated = al.add_gates(net, {"input_ids": tokens()})
    assert max(differences(gated(input_ids=tokens(1, 1)).logits, net(tokens(1, 1)).logits)) < 1e-5


def test_a_part_that_is_given_none_where_another_reads_a_stream_is_followed() -> None:
    """Perceiver's attention reads latents alone if its `nn.Identity` returns None."""
    torch.manual_seed(0)
    sizes = {"num_latents": 6, "d_latents": 16, "d_model": 24, "num_self_attends_per_block": 1}
    heads = {"num_self_attention_heads": 4, "num_cross_attention_heads": 4, "qk_channels": 16}
    config = hf.PerceiverConfig(vocab_size=60, max_position_embeddings=9, **sizes, **heads)
    net = hf.PerceiverForMaskedLM(config).double().eval()
    inputs = {"inputs": tokens(2, 9)}
    gated = al.add_gates(net, inputs)
    assert "not looked into" not in str(al.inspect(gated))
    close_half_(gated)
    small = al.compact(gated)
    assert max(differences(small(**inputs), gated(**inputs))) < 1e-10


DECODERS = ("Llama", "Mistral", "Qwen2", "Gemma")


@pytest.mark.parametrize("name", DECODERS)
def test_the_stream_of_a_decoder_with_rotary_positions_is_learnt(name: str) -> None:
    torch.manual_seed(0)
    config = getattr(hf, f"{name}Config")(**SMALL, **TOKENS, num_key_value_heads=1, head_dim=8)
    net = getattr(hf, f"{name}ForCausalLM")(config).eval()
    inputs = {"input_ids": tokens()}
    gated = al.add_gates(net, inputs)
    assert len(al.width_gates(gated)["model.embed_tokens"]) == 16
    close_half_(gated)
    small: Any = al.compact(gated)
    assert small.certificate.difference_float64 < 1e-10
    assert small.model.norm.weight.shape == (8,)
    assert small.model.layers[0].self_attn.q_proj.in_features == 8


def _without_cache(net: Any) -> Any:
    if getattr(net.config, "use_cache", False):
        return lambda **inputs: net(**inputs, use_cache=False)
    return net


ROTARY = {"LlamaForCausalLM": 4, "GPTNeoXForCausalLM": 1, "Qwen3ForCausalLM": 0}


@pytest.mark.parametrize("name", ROTARY)
def test_queries_and_keys_that_positions_turn_go_in_pairs(name: str, tmp_path: Path) -> None:
    """A pair is half a head apart; of GPT-NeoX a quarter is turned, and Qwen3 normalises it all."""
    torch.manual_seed(0)
    config = getattr(hf, name.replace("ForCausalLM", "Config"))
    sizes = {**SMALL, "hidden_size": 32, "num_attention_heads": 4, "head_dim": 8}
    if name != "GPTNeoXForCausalLM":
        sizes |= {"num_key_value_heads": 4}
    net = getattr(hf, name)(config(**sizes, **TOKENS)).double().eval()
    gated = al.add_gates(net, {"input_ids": tokens()})
    gates = {n: gate for n, gate in al.width_gates(gated).items() if "layers.0." in n}
    within = [gate for n, gate in gates.items() if "/" in n and "mlp" not in n]
    assert (len(within) > 0) == (ROTARY[name] > 0)
    with torch.no_grad():
        for gate in gates.values():
            gate[1::2] = 0.1
    small: Any = al.compact(gated)
    if name == "LlamaForCausalLM":
        attention = small.model.layers[0].self_attn
        assert len(within[0]) == ROTARY[name]
        assert attention.q_proj.out_features == attention.k_proj.out_features == 2 * 2 * 2
        kept = al.kept_channels(small)["model.layers.0.self_attn.q_proj.weight"][0]
        assert kept[:4] == (0, 2, 4, 6)
    other = tokens(3, 5)
    for ids in (tokens(), other):
        gap = gated(input_ids=ids).logits - small(input_ids=ids).logits
        assert gap.abs().max() < 1e-10
    assert al.plan(gated).after == al.count_costs(small)
    al.save(small, tmp_path / "small.safetensors")
    loaded = al.load(tmp_path / "small.safetensors")
    assert torch.equal(loaded(input_ids=other).logits, small(input_ids=other).logits)
    before = gated(input_ids=other).logits
    al.shrink_(gated)
    assert (gated(input_ids=other).logits - before).abs().max() < 1e-10


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        ("Llama", "sdpa"),
        ("Llama", "eager"),
        ("Mistral", "sdpa"),
        ("Qwen2", "sdpa"),
        ("Qwen3", "eager"),
    ],
)
def test_every_head_of_keys_and_values_loses_equally_many_of_its_queries(
    name: str, attention: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 4}
    options = {**SMALL, **TOKENS, **sizes, "attn_implementation": attention}
    net = getattr(hf, f"{name}ForCausalLM")(getattr(hf, f"{name}Config")(**options))
    gated = al.add_gates(net.double().eval(), {"input_ids": tokens()})
    gates = {n: gate for n, gate in al.width_gates(gated).items() if "q_proj" in n}
    last = [max(n for n in gates if f"layers.{layer}." in n) for layer in (0, 1)]
    assert [len(gates[n]) for n in last] == [4, 4]
    with torch.no_grad():
        gates[last[0]][[0, 2]] = 0.1
        gates[last[1]][3] = 0.1
    small: Any = al.compact(gated)
    parts = [layer.self_attn for layer in small.model.layers]
    assert [part.q_proj.out_features for part in parts] == [2 * 2 * 4, 2 * 3 * 4]
    assert [part.o_proj.in_features for part in parts] == [2 * 2 * 4, 2 * 3 * 4]
    assert [part.k_proj.out_features for part in parts] == [2 * 4, 2 * 4]
    other = tokens(3, 5)
    for ids in (tokens(), other):
        gap = gated(input_ids=ids).logits - small(input_ids=ids).logits
        assert gap.abs().max() < 1e-10
    assert al.plan(gated).after == al.count_costs(small)
    al.save(small, tmp_path / "small.safetensors")
    loaded = al.load(tmp_path / "small.safetensors")
    assert torch.equal(loaded(input_ids=other).logits, small(input_ids=other).logits)
    before = gated(input_ids=other).logits
    al.shrink_(gated)
    assert [len(al.width_gates(gated)[n]) for n in last] == [2, 3]
    assert (gated(input_ids=other).logits - before).abs().max() < 1e-10


def test_a_compact_llama_generates_what_the_gated_one_does() -> None:
    torch.manual_seed(0)
    net: Any = llama().double().eval()
    gated: Any = al.add_gates(net, {"input_ids": tokens()})
    options = {"max_new_tokens": 6, "do_sample": False}
    prompt, mask = tokens(2, 5), torch.ones(2, 5, dtype=torch.long)
    mask[0, :2] = 0  # a shorter prompt
    for given in ({}, {"attention_mask": mask}):
        found = gated.generate(prompt, **given, **options)
        assert torch.equal(found, net.generate(prompt, **given, **options))
    close_half_(gated)
    small: Any = al.compact(gated)
    for given in ({}, {"attention_mask": mask}):
        found = small.generate(prompt, **given, **options)
        assert found.shape == (2, 11)
        assert torch.equal(found, gated.generate(prompt, **given, **options))
    with pytest.raises(al.InputError, match="keep no cache of keys and values"):
        small.generate(prompt, use_cache=True, **options)


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_compact_llama_is_saved_and_saved_again(tmp_path: Path, by_hand: bool) -> None:
    torch.manual_seed(0)
    gated = al.add_gates(llama().double().eval(), {"input_ids": tokens()})
    close_half_(gated)
    small: Any = al.compact(gated)
    path, again = tmp_path / "llama.safetensors", tmp_path / "again.safetensors"
    rotary = type(small.model.rotary_emb)
    given = {"LlamaRotaryEmbedding": rotary, "LlamaConfig": hf.LlamaConfig} if by_hand else None
    al.save(small, path, modules=given)
    loaded = al.load(path, modules=given)
    al.save(loaded, again, modules=given)
    assert again.read_bytes() == path.read_bytes()
    for length in (5, 7):
        expected = small(input_ids=tokens(2, length)).logits
        assert torch.equal(loaded(input_ids=tokens(2, length))["logits"], expected)


@pytest.mark.parametrize("name", ["Phi", "GPTNeoX"])
def test_rotary_embeddings_whose_config_holds_a_set_are_saved(tmp_path: Path, name: str) -> None:
    config = getattr(hf, f"{name}Config")(
        vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=4, use_cache=False,
    )  # fmt: skip
    net: Any = getattr(hf, f"{name}ForCausalLM")(config).eval()
    small: Any = al.compact(al.add_gates(net, {"input_ids": tokens()}))
    al.save(small, tmp_path / "small.safetensors")
    loaded: Any = al.load(tmp_path / "small.safetensors")
    assert torch.equal(loaded(input_ids=tokens(3, 5)).logits, small(input_ids=tokens(3, 5)).logits)


def test_generate_of_an_encoder_decoder_says_what_to_do_and_that_works() -> None:
    torch.manual_seed(0)
    config = hf.T5Config(
        vocab_size=60, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2,
        pad_token_id=0, eos_token_id=2, decoder_start_token_id=0, use_cache=False,
        attn_implementation="eager",
    )  # fmt: skip
    net: Any = hf.T5ForConditionalGeneration(config).double().eval()
    mask, states = torch.ones_like(tokens()), torch.randn(2, 7, 16, dtype=torch.float64)
    options = {"max_new_tokens": 4, "do_sample": False, "attention_mask": mask}
    whole: Any = al.add_gates(net, {"input_ids": tokens(), "decoder_input_ids": tokens()})
    with pytest.raises(al.InputError, match=r"encoder_outputs is .* give each gates of its own"):
        whole.generate(tokens(), **options)
    asked = net.generate(tokens(), **options)
    net.encoder = al.add_gates(net.encoder, {"input_ids": tokens(), "attention_mask": mask})
    net.decoder = al.add_gates(
        net.decoder,
        {
            "input_ids": tokens(),
            "attention_mask": mask,  # without one, forward asks whether there is a single token
            "encoder_hidden_states": states,
            "encoder_attention_mask": mask,
            "use_cache": False,
        },
    )
    assert torch.equal(net.generate(tokens(), **options), asked)
    close_half_(net.encoder)
    close_half_(net.decoder)
    gated = net.generate(tokens(), **options)
    net.encoder, net.decoder = al.compact(net.encoder), al.compact(net.decoder)
    assert torch.equal(net.generate(tokens(), **options), gated)


def test_arguments_that_change_nothing_pass_and_others_are_refused_by_name() -> None:
    net = llama().eval()
    gated = al.add_gates(net, {"input_ids": tokens()})
    small: Any = al.compact(gated)
    assert list(inspect.signature(small.forward).parameters)[:2] == ["input_ids", "attention_mask"]
    meant = small(tokens()).logits
    same: list[dict[str, Any]] = [
        {"use_cache": False},
        {"output_hidden_states": False},
        {"output_attentions": None},
        {"return_dict": True},
        {"position_ids": None},
        {"logits_to_keep": 0},
        {"attention_mask": torch.ones_like(tokens())},
    ]
    for given in same:
        assert torch.equal(small(tokens(), **given).logits, meant)
    other: list[dict[str, Any]] = [
        {"use_cache": True},
        {"output_hidden_states": True},
        {"return_dict": False},
        {"logits_to_keep": 1},
        {"labels": tokens()},
        {"nonsense": 3},
    ]
    for given in other:
        (name,) = given
        with pytest.raises(al.InputError, match=f"{name} is .*, but the model was traced with"):
            small(tokens(), **given)


def test_a_mask_that_the_example_gave_may_be_left_out() -> None:
    torch.manual_seed(0)
    net = hf.BertModel(hf.BertConfig(**SMALL)).double().eval()
    gated = al.add_gates(net, text())
    close_half_(gated)
    for model in (gated, al.compact(gated)):
        meant = model(tokens(3), torch.ones_like(tokens(3))).last_hidden_state
        assert torch.equal(model(tokens(3)).last_hidden_state, meant)


def test_a_cache_that_is_asked_for_is_refused_with_the_way_out() -> None:
    with pytest.raises(al.TracingError, match="put use_cache=False into example_inputs"):
        al.add_gates(llama(), {"input_ids": tokens(), "use_cache": True})


def test_a_model_that_was_never_called_is_learnt_throughout() -> None:
    torch.manual_seed(0)
    net, inputs = MODELS["SegformerForSemanticSegmentation"]()
    names = list(al.width_gates(al.add_gates(net.double().eval(), inputs)))
    assert any("stages" in name for name in names)
    assert not any(module._forward_hooks for module in net.modules())


def test_the_stock_trainer_trains_a_gated_bert_on_labels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ids = torch.randint(3, 60, (64, 7))
    labels = (ids[:, 1] > 30).long()
    mask = torch.ones(7, dtype=torch.long)
    rows = [
        {"input_ids": row, "attention_mask": mask, "labels": label}
        for row, label in zip(ids, labels, strict=True)
    ]
    example = {
        "input_ids": ids[:4],
        "attention_mask": torch.ones(4, 7, dtype=torch.long),
        "labels": labels[:4],
    }
    net = hf.BertForSequenceClassification(hf.BertConfig(**SMALL, num_labels=2))
    gated = al.add_gates(net, example)
    torch.testing.assert_close(gated.eval()(**example).loss, net.eval()(**example).loss)
    arguments = hf.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=12,
        per_device_train_batch_size=16,
        learning_rate=5e-3,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = hf.Trainer(model=gated, args=arguments, train_dataset=rows, eval_dataset=rows)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before - 0.1
    small: Any = al.compact(gated.eval())
    torch.testing.assert_close(small(**example).loss, gated(**example).loss)
    torch.testing.assert_close(small(**example).logits, gated(**example).logits)


def test_experts_that_take_no_float64_come_with_advice_that_helps() -> None:
    sizes = {**SMALL, **TOKENS, "num_key_value_heads": 2, "num_local_experts": 2}
    net = hf.MixtralForCausalLM(hf.MixtralConfig(**sizes)).float()
    given = {"input_ids": tokens(), "use_cache": False}
    with pytest.raises(al.SurgeryError, match=r"set_experts_implementation\('eager'\)"):
        al.compact(al.add_gates(net, given))
    net.set_experts_implementation("eager")
    assert al.compact(al.add_gates(net, given)).certificate.difference_float64 < 1e-10


@pytest.mark.parametrize("by_config", [False, True])
def test_hidden_states_that_are_asked_for_are_returned(by_config: bool) -> None:
    """Transformers collects them by hooks, which the first call registers."""
    asked = {"output_hidden_states": True}
    config = hf.LlamaConfig(**SMALL, **TOKENS, **(asked if by_config else {}))
    net = hf.LlamaForCausalLM(config).double().eval()
    inputs = {"input_ids": tokens(), "use_cache": False, **({} if by_config else asked)}
    small: Any = al.compact(al.add_gates(net, inputs))
    states, expected = (model(**inputs).hidden_states for model in (small, net))
    assert len(states) == len(expected) == 3
    assert max(differences(states, expected)) < 1e-10


CLASSIFIERS: dict[str, dict[str, Any]] = {
    "T5": {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2},
    "Bart": {
        "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_that_checks_its_tokens_is_learnt(name: str) -> None:
    torch.manual_seed(0)
    sizes = {**CLASSIFIERS[name], "vocab_size": 60, "decoder_start_token_id": 0}
    config = getattr(hf, f"{name}Config")(**sizes, **TOKENS)
    net = getattr(hf, f"{name}ForSequenceClassification")(config).double().eval()
    ids = torch.cat([tokens(), torch.full((2, 1), 2)], 1)
    gated = al.add_gates(net, {"input_ids": ids})
    close_half_(gated)
    small: Any = al.compact(gated)
    assert len(al.width_gates(gated)) >= 6
    assert max(differences(small(ids).logits, gated(ids).logits)) < 1e-10
    with pytest.raises(AssertionError, match="same number of <eos> tokens"):
        small(torch.where(torch.tensor([[True], [False]]), ids, 3))


def test_a_folder_that_would_lose_its_gates_is_refused(tmp_path: Path) -> None:
    gated: Any = al.add_gates(llama().eval(), {"input_ids": tokens()})
    with pytest.raises(al.InputError, match=r"without its gates.*compact\(model\), folder"):
        gated.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_gradient_checkpointing_that_is_on_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    net: Any = llama()
    net.gradient_checkpointing_enable()
    al.add_gates(net, {"input_ids": tokens()})
    assert "gradient checkpointing saves no memory in this LlamaForCausalLM" in caplog.text
