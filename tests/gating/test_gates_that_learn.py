"""Every gate acts in training mode, where it learns, or it is not there."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import archlearn as al
from benchmarks.torchvision_import import import_models

X = torch.randn(16, 5, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """A residual block with LayerDrop: in training it is skipped by chance."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.widen, self.back = nn.Linear(8, 12), nn.Linear(12, 8)
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.rand([]) < self.probability:
            return x
        return x + self.back(F.gelu(self.widen(x)))


class Skipping(nn.Module):
    """Blocks that skip themselves; subclasses skip in other ways."""

    def __init__(self, probability: float = 0.0) -> None:
        super().__init__()
        self.start, self.hidden, self.head = nn.Linear(5, 8), nn.Linear(8, 6), nn.Linear(6, 3)
        self.one, self.two = Block(probability), Block(probability)

    def forward(self, x: Tensor) -> Tensor:
        x = self.two(self.one(self.start(x)))
        return self.head(F.gelu(self.hidden(x)))


class InEvaluationOnly(Skipping):
    def forward(self, x: Tensor) -> Tensor:
        x = self.one(self.start(x))
        if not self.training:
            x = self.two(x)
        return self.head(F.gelu(self.hidden(x)))


class UnreadInTraining(Skipping):
    """Both modes make the same calls, but one of them does not use a result."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(self.start(x))
        y = self.two(x)
        return self.head(F.gelu(self.hidden(x if self.training else y)))


class Detached(Skipping):
    """The head learns, and what is in front of it does not."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.two(self.one(self.start(x)).detach())
        return self.head(F.gelu(self.hidden(x)))


def gates_of(model: nn.Module) -> dict[str, nn.Parameter]:
    widths = {f"width of {name}": gate for name, gate in al.width_gates(model).items()}
    return widths | {f"depth of {name}": gate for name, gate in al.depth_gates(model).items()}


def assert_all_learn(model: nn.Module, loss: Tensor) -> None:
    loss.backward()
    gates = gates_of(model)
    assert gates
    assert not [name for name, gate in gates.items() if gate.grad is None or not gate.grad.all()]


@pytest.mark.parametrize("probability", [0.0, 0.5])
def test_no_gate_of_blocks_that_are_skipped_acts_in_evaluation_only(probability: float) -> None:
    torch.manual_seed(0)
    model = al.add_gates(Skipping(probability), X).train()
    assert_all_learn(model, model(X).square().sum())


def test_blocks_that_are_never_skipped_are_learnt() -> None:
    net = Skipping(0.0)
    found = al.inspect(net, X)
    assert not found.opaque
    learnt = {row.name for row in found.rows if row.width}
    assert learnt == {"start", "one.widen", "two.widen", "hidden"}
    model = al.add_gates(net, X).train()
    torch.manual_seed(3)
    meant = net.train()(X)
    torch.manual_seed(3)
    torch.testing.assert_close(model(X), meant)


def test_blocks_that_may_be_skipped_are_not_looked_into_and_the_reason_is_right() -> None:
    found = al.inspect(Skipping(0.5), X)
    assert [row.name for row in found.rows] == ["hidden"]
    assert set(found.opaque) == {"one", "two"}
    assert "LayerDrop" in found.opaque["one"]
    assert "set the probability to 0" in found.opaque["one"]


class ByFactor(Block):
    """Skipped by a factor for each row, as docs/troubleshooting.md advises."""

    def forward(self, x: Tensor) -> Tensor:
        branch = self.back(F.gelu(self.widen(x)))
        if self.training:
            branch = branch * x.new_empty(len(x), 1).bernoulli_(1 - self.probability)
        return x + branch


def test_blocks_that_a_factor_skips_are_learnt() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), ByFactor(0.5), nn.Linear(8, 3)).double()
    model = al.add_gates(net, X.double()).train()
    assert set(al.width_gates(model)) == {"0", "1.widen"}
    assert_all_learn(model, model(X.double()).square().sum())


def test_an_error_that_nothing_can_be_learnt_gives_that_reason_too() -> None:
    net = nn.Sequential(nn.Linear(5, 8), Block(0.5), nn.Linear(8, 2))
    with pytest.raises(al.InputError, match="LayerDrop"):
        al.add_gates(net, X)


@pytest.mark.parametrize(
    ("network", "lost", "reason"),
    [
        (InEvaluationOnly, "two.widen", "evaluation mode only"),
        (UnreadInTraining, "two.widen", "no gradient"),
        (Detached, "one.widen", "no gradient"),
    ],
)
def test_a_site_that_training_does_not_reach_is_not_offered(
    network: type[Skipping], lost: str, reason: str
) -> None:
    net = network()
    rows = {row.name: row for row in al.inspect(net, X).rows}
    assert not rows[lost].width
    assert not rows[lost].depth
    assert reason in rows[lost].reason
    model = al.add_gates(net, X).train()
    assert_all_learn(model, model(X).square().sum())


def test_a_sure_comparison_is_followed_and_an_unsure_one_is_not() -> None:
    class Compares(nn.Module):
        def __init__(self, is_true: Any) -> None:
            super().__init__()
            self.is_true, self.layer = is_true, nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) if self.is_true(torch.rand(1)) else x

    def is_followed(is_true: Any) -> bool:
        net = nn.Sequential(Compares(is_true), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
        return not al.inspect(net, X).opaque

    sure = [
        lambda u: u < 0, lambda u: u < 1, lambda u: u >= 0, lambda u: u >= 1, lambda u: u > 1,
        lambda u: u <= 1, lambda u: u > -0.1, lambda u: u.item() < 0.0, lambda u: u <= -1,
        lambda u: u < 0.0,
    ]  # fmt: skip
    unsure = [lambda u: u < 0.1, lambda u: u > 0, lambda u: u <= 0, lambda u: u == 0]
    assert [is_followed(each) for each in sure] == [True] * len(sure)
    assert [is_followed(each) for each in unsure] == [False] * len(unsure)


def opt(transformers: Any, layerdrop: float) -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.OPTConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, ffn_dim=24, num_attention_heads=2,
        max_position_embeddings=32, word_embed_proj_dim=16, use_cache=False, layerdrop=layerdrop,
    )  # fmt: skip
    ids = torch.randint(3, 50, (2, 7))
    return transformers.OPTModel(config), {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
    }


def bart(transformers: Any, layerdrop: float) -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.BartConfig(
        vocab_size=50, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=24,
        decoder_ffn_dim=24, encoder_attention_heads=2, decoder_attention_heads=2,
        max_position_embeddings=32, use_cache=False, encoder_layerdrop=layerdrop,
        decoder_layerdrop=0.0,
    )  # fmt: skip
    ids = torch.randint(3, 50, (2, 7))
    return transformers.BartModel(config), {"input_ids": ids, "decoder_input_ids": ids.flip(0)}


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("build", "layerdrop", "n_widths"), [(opt, 0.0, 6), (bart, 0.0, 8), (bart, 0.5, 5)]
)
def test_gates_of_transformers_with_layer_drop_learn(
    build: Any, layerdrop: float, n_widths: int
) -> None:
    import_models()  # transformers imports torchvision
    import transformers

    torch.manual_seed(0)
    net, inputs = build(transformers, layerdrop)
    model = al.add_gates(net, inputs).train()
    assert len(al.width_gates(model)) == n_widths
    hidden: Any = model(**inputs)["last_hidden_state"]
    loss = (hidden * torch.randn_like(hidden)).sum()
    loss.backward()
    gates = gates_of(model)
    assert not [name for name, gate in gates.items() if gate.grad is None or not gate.grad.any()]
    small: Any = al.compact(model)
    assert small.certificate.difference_float64 < 1e-10
