"""Batches of prompts of several lengths generate what they do without gates."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
from benchmarks.torchvision_import import import_models

if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)
if find_spec("torchvision") is not None:
    import_models()  # which transformers imports in its turn
import transformers

hf: Any = transformers
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
USUAL = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 32,
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": GPT2,
    "OPTForCausalLM": {**USUAL, "ffn_dim": 24, "word_embed_proj_dim": 16},
    "LlamaForCausalLM": USUAL,
    "GPTNeoXForCausalLM": USUAL,
    "PhiForCausalLM": USUAL,
}
PROMPT = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7])


def make(name: str) -> Any:
    torch.manual_seed(0)
    config = name.removesuffix("LMHeadModel").removesuffix("ForCausalLM") + "Config"
    net: nn.Module = getattr(hf, name)(getattr(hf, config)(vocab_size=60, **SIZES[name], **TOKENS))
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(5 if weight.dim() > 1 else 1)  # or every prompt would have the same answer
    return net.double().eval()


def generate(model: Any) -> Tensor:
    return model.generate(PROMPT, attention_mask=MASK, max_new_tokens=6, do_sample=False)


@pytest.mark.parametrize("name", SIZES)
def test_padding_in_front_changes_no_text(name: str) -> None:
    net = make(name)
    gated: Any = al.add_gates(net, {"input_ids": PROMPT})
    assert torch.equal(generate(gated), generate(net))
    with torch.no_grad():
        for gate in al.width_gates(gated).values():
            gate[::2] = 0.2
    assert torch.equal(generate(al.compact(gated)), generate(gated))


def test_positions_may_be_given_and_left_out() -> None:
    net = make("GPT2LMHeadModel")
    small: Any = al.compact(al.add_gates(net, {"input_ids": PROMPT}))
    positions = (MASK.cumsum(-1) - 1).clamp(min=0)
    for given in ({}, {"attention_mask": MASK, "position_ids": positions}):
        torch.testing.assert_close(small(PROMPT, **given).logits, net(PROMPT, **given).logits)
    with pytest.raises(al.InputError, match="packed sequences are not followed; give attention"):
        small(PROMPT, position_ids=positions)
