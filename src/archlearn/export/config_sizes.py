"""Settings of a transformers config that say how wide its layers are, by family of models."""

import re
from collections.abc import Mapping
from typing import Any

from archlearn.errors import FileError

Shapes = Mapping[str, tuple[int, ...]]
Sizes = Mapping[str, tuple[str, int]]
"""By setting: the tensors that have this size, as the end of their names, and the dimension."""

_EMBEDDING = r"(embed_tokens|embed_in|(word|tok|token|position)_embeddings?|shared|wte)\.weight"
_SECOND = r"\b(down_proj|fc2|dense_4h_to_h|mlp\.(Wo|c_proj)|(?<!attention\.)output.dense)\.weight"
USUAL: Sizes = {
    "hidden_size": (rf"({_EMBEDDING}|cls_token)", -1),
    "intermediate_size": (_SECOND, 1),
    "num_attention_heads": (r"\.q_proj\.weight", 0),
    "num_key_value_heads": (r"\.k_proj\.weight", 0),
}
"""Of Llama, Mistral, Qwen, Gemma, Phi, GPT-NeoX, BERT, RoBERTa, ModernBERT, ViT, SigLIP, ..."""
_GPT: Sizes = {"n_embd": (_EMBEDDING, 1), "n_inner": (r"\.mlp\.c_proj\.weight", 0)}
_T5: Sizes = {
    "d_model": (_EMBEDDING, 1),
    "d_ff": (r"\.wo\.weight", 1),
    "num_heads": (r"Attention\.q\.weight", 0),
}
_BART: Sizes = {
    "d_model": (_EMBEDDING, 1),
    "encoder_ffn_dim": (r"\bencoder\.layers\.\d+\.fc2\.weight", 1),
    "decoder_ffn_dim": (r"\bdecoder\.layers\.\d+\.fc2\.weight", 1),
}
FAMILIES: Mapping[str, Sizes] = {
    "gpt2": _GPT,
    "gptj": _GPT | {"n_inner": (r"\.fc_out\.weight", 1)},
    "opt": USUAL | {"word_embed_proj_dim": (_EMBEDDING, 1), "ffn_dim": (_SECOND, 1)},
    "falcon": USUAL | {"ffn_hidden_size": (_SECOND, 1)},
    "distilbert": {"dim": (_EMBEDDING, 1), "hidden_dim": (r"\.lin2\.weight", 1)},
    **dict.fromkeys(("t5", "mt5"), _T5),
    **dict.fromkeys(("bart", "mbart", "marian", "pegasus", "whisper"), _BART),
}
"""Families whose config has other settings than the usual, by `model_type`."""
_OF_HEADS = ("num_attention_heads", "num_key_value_heads", "num_heads")


def read_settings(config: Any, before: Shapes, now: Shapes) -> dict[str, int]:
    """Return the settings of a config with which its model has the shapes that tensors have now.

    Args:
        config: That of the model before it was compacted.
        before: The shapes of that model's tensors.
        now: Those of the compact model's.

    Raises:
        FileError: If layers that one setting describes differ.
    """
    odd = sorted(before.keys() ^ now.keys())
    if odd:
        raise FileError(f"the tensor {odd[0]!r} was added or merged, which no config says")
    family = FAMILIES.get(config.model_type, USUAL)
    old, new = (_read(family, config, shapes) for shapes in (before, now))
    unset = {name for name in new if before != now and getattr(config, name) is None}
    return {name: n for name, n in new.items() if n != old[name] or name in unset}


def _read(family: Sizes, config: Any, shapes: Shapes) -> dict[str, int]:
    """Return what each setting of a config is for tensors of these shapes."""
    # Where a config names no size of a head, it follows from the width: none says fewer heads.
    head_size = getattr(config, "head_dim", None) or getattr(config, "d_kv", None)
    settings: dict[str, int] = {}
    for name, (pattern, dim) in family.items():
        per, ends = head_size if name in _OF_HEADS else 1, re.compile(f"{pattern}$")
        sizes = {key: shape[dim] for key, shape in shapes.items() if ends.search(key)}
        if not (per and sizes and hasattr(config, name)):
            continue
        first = next(iter(sizes))
        for key, size in sizes.items():
            if size != sizes[first]:
                raise FileError(
                    f"its layers are not equally wide, but {name} is one number for {first!r} "
                    f"({sizes[first] // per}) and {key!r} ({size // per}); learn with "
                    "GateOptimizer(..., equal_blocks=True)"
                )
        settings[name] = sizes[first] // per
    return settings
