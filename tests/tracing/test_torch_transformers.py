"""Torch's own transformer blocks are followed: hidden units, heads and streams are learnt."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archlearn as al

D, HEADS, HIDDEN, LENGTH = 16, 4, 12, 5
X = torch.randn(3, LENGTH, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
MEMORY = torch.randn(3, 7, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]])


def layer(**options: Any) -> nn.TransformerEncoderLayer:
    given: dict[str, Any] = {"batch_first": True, "dropout": 0.1, **options}
    return nn.TransformerEncoderLayer(D, HEADS, HIDDEN, **given)


def encoder(**options: Any) -> nn.TransformerEncoder:
    return nn.TransformerEncoder(layer(**options), 2, enable_nested_tensor=False)


def decoder() -> nn.TransformerDecoder:
    return nn.TransformerDecoder(
        nn.TransformerDecoderLayer(D, HEADS, HIDDEN, batch_first=True), 2, nn.LayerNorm(D)
    )


def whole() -> nn.Transformer:
    return nn.Transformer(D, HEADS, 1, 1, HIDDEN, batch_first=True)


class Reads(nn.Module):
    """Reads a sequence, with masks as users give them."""

    def __init__(self, mask: str, *, nested: bool = False) -> None:
        super().__init__()
        self.mask = mask
        self.encoder = nn.TransformerEncoder(layer(), 2, enable_nested_tensor=nested)
        self.head = nn.Linear(D, 3)
        causal = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        self.register_buffer("causal", causal.isinf())

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        if self.mask == "padding":
            found = self.encoder(x, src_key_padding_mask=padding)
        elif self.mask == "made":
            made = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
            found = self.encoder(x, mask=made)
        else:
            found = self.encoder(x, self.causal)
        return self.head(found.mean(1))


# With the blocks and the layers of attention in them.
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...], int, int]] = {
    "layer": (layer, (X,), 1, 1),
    "layer, norm first": (lambda: layer(norm_first=True, activation="gelu"), (X,), 1, 1),
    "sequence first": (lambda: encoder(batch_first=False), (X,), 2, 2),
    "encoder": (encoder, (X,), 2, 2),
    "encoder, may nest": (lambda: nn.TransformerEncoder(layer(), 2), (X,), 2, 2),
    "encoder, activation as a module": (lambda: encoder(activation=nn.SiLU()), (X,), 2, 2),
    "decoder": (decoder, (X, MEMORY), 2, 4),
    "whole": (lambda: whole(), (MEMORY, X), 2, 3),
    "padding": (lambda: Reads("padding"), (X, PADDING), 2, 2),
    "causal mask, made": (lambda: Reads("made"), (X, PADDING), 2, 2),
    "causal mask, a buffer": (lambda: Reads("buffer"), (X, PADDING), 2, 2),
}


def close_half(model: nn.Module) -> None:
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate[::2] = 0.1


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_hidden_units_and_heads_are_learnt_and_compacted_exactly(
    name: str, training: bool, tmp_path: Path
) -> None:
    make, inputs, n_blocks, n_attention = CASES[name]
    torch.manual_seed(0)
    net = make().double().train(training)
    gated = al.add_gates(net, inputs)
    widths = sorted(len(gate) for gate in al.width_gates(gated).values())
    within = [D // HEADS] * 2  # queries with keys, and values
    assert widths == sorted([HIDDEN] * n_blocks + [HEADS, *within] * n_attention)
    with torch.no_grad():
        torch.testing.assert_close(gated.eval()(*inputs), net.eval()(*inputs), rtol=0, atol=1e-12)
        close_half(gated)
        small = al.compact(gated)
        torch.testing.assert_close(small(*inputs), gated(*inputs), rtol=0, atol=1e-12)
        al.save(small, tmp_path / "small.safetensors")
        loaded = al.load(tmp_path / "small.safetensors")
        torch.testing.assert_close(loaded(*inputs), small(*inputs), rtol=0, atol=1e-12)
    saved = n_blocks * (HIDDEN // 2) * (2 * D + 1)
    saved += n_attention * 3 * D // 4 * (3 * (D + 1) + D)
    n_before, n_after = (sum(p.numel() for p in m.parameters()) for m in (net, small))
    assert n_before - n_after == saved
    gated.train()(*inputs).sum().backward()
    assert all(gate.grad is not None for gate in al.width_gates(gated).values())


def test_what_decides_by_a_padding_mask_is_refused_with_the_fix() -> None:
    with pytest.raises(al.InputError, match=r"encoder was not looked.*enable_nested_tensor=False"):
        al.add_gates(Reads("padding", nested=True).double(), (X, PADDING))
    shown = str(al.inspect(Reads("padding", nested=True).double(), (X, PADDING)))
    assert "enable_nested_tensor=False" in shown


def test_an_encoder_that_is_told_not_to_nest_is_followed_as_the_error_says() -> None:
    net = nn.Transformer(D, HEADS, 1, 1, HIDDEN, dropout=0.0, batch_first=True).double()
    inputs = {"src": X, "tgt": MEMORY, "src_key_padding_mask": PADDING}
    fix = "set its use_nested_tensor to False, which nn.Transformer leaves at True"
    assert fix in " ".join(str(al.inspect(net, inputs)).split())
    net.encoder.use_nested_tensor = False
    gated = al.add_gates(net, inputs)
    assert "encoder.layers.0.linear1" in al.width_gates(gated)
    close_half(gated)
    assert (al.compact(gated)(**inputs) - gated(**inputs)).abs().max() < 1e-12


def test_other_layers_are_learnt_beside_one_that_is_not_followed() -> None:
    class Headed(Reads):
        def __init__(self) -> None:
            super().__init__("padding", nested=True)
            self.head = nn.Sequential(nn.Linear(D, 8), nn.ReLU(), nn.Linear(8, 3))  # pyright: ignore

    gated = al.add_gates(Headed().double(), (X, PADDING))
    assert list(al.width_gates(gated)) == ["head.0"]
    close_half(gated)
    assert al.compact(gated).certificate is not None


class Shortened(nn.TransformerEncoder):
    """Takes fewer arguments than torch's own."""

    def forward(self, src: Tensor) -> Tensor:  # pyright: ignore
        for each in self.layers:
            src = each(src)
        return src


class Classifier(nn.Module):
    """An encoder, and a head with a hidden layer."""

    def __init__(self, body: nn.Module, mask: Tensor | None = None) -> None:
        super().__init__()
        self.body = body
        self.mask = mask
        self.head = nn.Sequential(nn.Linear(D, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        found = self.body(x) if self.mask is None else self.body(x, self.mask, None, None)
        return self.head(found.mean(1))


def places() -> Tensor:
    return torch.arange(LENGTH, dtype=torch.float64)


def test_a_subclass_is_called_with_what_it_takes() -> None:
    net = Classifier(Shortened(layer(), 2, enable_nested_tensor=False)).double()
    assert len(al.width_gates(al.add_gates(net, X))) == 9
    assert list(al.width_gates(al.add_gates(net, X, leaves=[Shortened]))) == ["head.0"]


def test_a_hint_that_is_given_by_position_as_none() -> None:
    causal = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=torch.float64)
    assert len(al.width_gates(al.add_gates(Classifier(encoder(), causal).double(), X))) == 9
    assert len(al.width_gates(al.add_gates(encoder().double(), (X, causal)))) == 8


def test_where_the_fused_kernel_computes_something_else_the_block_stays_as_it_is() -> None:
    """It takes a float mask for a bool one, and so does the user's model without gradients."""
    distance = -(places() - places()[:, None]).abs()
    net = Classifier(encoder(), distance).double().eval()
    gated = al.add_gates(net, X).eval()
    assert list(al.width_gates(gated)) == ["head.0"]
    with torch.no_grad():
        torch.testing.assert_close(gated(X), net(X), rtol=0, atol=1e-12)
    assert al.inspect(net, X) == al.inspect(gated)


def test_a_block_that_is_not_followed_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    net = Classifier(nn.TransformerEncoder(layer(), 2), None).double()
    al.add_gates(net, X)
    assert not caplog.records
    masked = Reads("padding", nested=True)
    masked.head = Classifier(nn.Identity()).head  # pyright: ignore
    al.add_gates(masked.double(), (X, PADDING))
    assert "encoder was not looked into" in caplog.text


def test_costs_are_those_of_all_layers_in_either_kind_of_model() -> None:
    net = Classifier(encoder()).double().eval()
    gated = al.add_gates(net, X)
    assert al.count_costs(gated) == al.count_costs(net, X)
    n_rows = X.shape[0] * LENGTH
    close_half(gated)
    saved = 2 * n_rows * (HIDDEN // 2) * 2 * D + X.shape[0] * 4 * (D + 3)
    saved += 2 * n_rows * (3 * D // 4) * (4 * D + 2 * LENGTH)  # half of the heads, half of each
    before, after = al.count_costs(net, X), al.count_costs(al.compact(gated))
    assert before.multiply_adds - after.multiply_adds == saved


def test_an_encoder_that_no_decoder_reads_any_more_is_gone() -> None:
    torch.manual_seed(0)
    net = whole().double().eval()
    model = al.add_gates(net, (MEMORY, X))
    with torch.no_grad():  # the decoder's reading of the encoder, named after its first layer
        al.branch_gates(model)["encoder.layers.0.self_attn.in_proj_weight"].fill_(0.1)
    small = al.compact(model)
    assert not [name for name, _ in small.named_parameters() if name.startswith("encoder")]
    for mode in (True, False):
        small.train(mode)
        assert small(MEMORY, X).shape == X.shape
    torch.testing.assert_close(small(MEMORY, X), model(MEMORY, X), rtol=0, atol=1e-10)


class Translates(nn.Module):
    """A transformer between embeddings and a layer that chooses words."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(20, D), nn.Embedding(20, D)
        self.body, self.head = body, nn.Linear(D, 20)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        source, target = self.source(source), self.target(target)
        if isinstance(self.body, nn.TransformerDecoder):
            return self.head(self.body(target, source))
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=source.dtype)
        return self.head(self.body(source, target, tgt_mask=causal, tgt_is_causal=True))


def draw_words(seed: int) -> tuple[Tensor, Tensor]:
    words = torch.randint(20, (4, 13), generator=torch.Generator().manual_seed(seed))
    return words[:, :7], words[:, 7:]


@pytest.mark.parametrize("make", [decoder, whole])
def test_encoder_and_decoder_learn_heads_hidden_units_and_one_stream(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net = Translates(make()).double()
    model = al.add_gates(net, draw_words(0))
    widths = sorted(len(gate) for gate in al.width_gates(model).values())
    n_attention = 4 if make is decoder else 3
    assert widths == sorted([D, HIDDEN, HIDDEN] + [HEADS, *[D // HEADS] * 2] * n_attention)
    before, sizes = al.count_costs(model), list[int]()
    gates = al.GateOptimizer(model, 40, budget={"multiply_adds": "40%"})
    optimizer = torch.optim.AdamW(al.weights(model), lr=1e-3)
    for step in range(40):
        source, target = draw_words(step)
        words = model(source, target).flatten(0, 1)
        nn.functional.cross_entropy(words, target.flatten()).backward()
        for each in (optimizer, gates):
            each.step()
            each.zero_grad()
        if step % 10 == 9:
            al.shrink_(model, optimizer, gates)
            sizes.append(al.count_costs(model).parameters)
    assert sizes[2] < sizes[0] == before.parameters  # and ten more steps were taken
    model.eval()
    small: Any = al.compact(model)
    inputs = draw_words(100)
    torch.testing.assert_close(small(*inputs), model(*inputs), rtol=0, atol=1e-10)
    assert al.count_costs(small) == al.plan(model).after
    assert 0.35 < al.count_costs(small).multiply_adds / before.multiply_adds <= 0.4
    assert small.source.weight.shape == small.target.weight.shape
    al.save(small, tmp_path / "small.safetensors")
    loaded = al.load(tmp_path / "small.safetensors")
    torch.testing.assert_close(loaded(*inputs), small(*inputs), rtol=0, atol=1e-12)


def test_blocks_in_half_precision_are_told_to_be_cast_afterwards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(layer(dropout=0.0), nn.Linear(D, 8), nn.ReLU(), nn.Linear(8, 2))
    al.add_gates(net.bfloat16(), X.bfloat16())
    assert "call add_gates on the model in float32" in caplog.text
    caplog.clear()
    model = al.add_gates(net.float(), X.float()).bfloat16()
    assert not caplog.records
    assert "0.linear1" in al.width_gates(model)
    assert model(X.bfloat16()).dtype is torch.bfloat16
