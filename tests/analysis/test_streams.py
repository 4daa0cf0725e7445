"""Channels without an activation behind them are gated where they are read."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al
import archlearn_cli as cli


def close_(model: nn.Module, step: int = 2) -> None:
    """Close every second gate."""
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate.fill_(0.9)
            gate[::step] = 0.1


def check_exact(net: nn.Module, x: Tensor, fresh: Tensor) -> nn.Module:
    """Gate a network, close half of everything, and return the compact network."""
    net = net.double().eval()
    model = al.add_gates(net, x)
    torch.testing.assert_close(model(fresh), net(fresh), rtol=1e-12, atol=1e-12)
    close_(model)
    small = al.compact(model)
    torch.testing.assert_close(small(fresh), model(fresh), rtol=0, atol=1e-10)
    assert not torch.allclose(model(fresh), net(fresh))
    return small


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


class Bottleneck(nn.Module):
    """A stream that several layers write and read, without an activation on it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(5, 8)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.down(F.gelu(self.up(x)))
        return self.head(x)


class Mixed(nn.Module):
    """What passes a ReLU is added to what passes none."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 8), nn.Linear(5, 8)
        self.beside, self.head = nn.Linear(8, 4), nn.Linear(8, 90)  # more than a batch holds

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu(self.one(x))
        return self.head(y + self.two(x)), self.beside(y)


def test_a_stream_is_one_group_named_by_the_layer_that_writes_it_first() -> None:
    torch.manual_seed(0)
    model = al.add_gates(Bottleneck().double(), draw(4, 5))
    assert {name: len(gate) for name, gate in al.width_gates(model).items()} == {
        "up": 12,
        "stem": 8,
    }
    small = check_exact(Bottleneck(), draw(4, 5), draw(7, 5))
    assert small.get_submodule("down").weight.shape == (4, 6)
    assert small.get_submodule("head").weight.shape == (3, 4)


def test_a_closed_channel_of_a_stream_has_the_gradient_that_opening_it_would_use() -> None:
    torch.manual_seed(0)
    model, x = al.add_gates(Bottleneck().double(), draw(4, 5)), draw(6, 5)
    gate = al.width_gates(model)["stem"]
    close_(model)
    model(x).sum().backward()
    assert gate.grad is not None
    assert bool(gate.grad.ne(0).all())


def test_linear_bottlenecks_of_mobilenet_are_learnt() -> None:
    torch.manual_seed(0)
    stages = ((1, 5, 1, 1), (2, 8, 2, 2))
    net = cli.models.MobileNetV2(n_outputs=4, stages=stages, first=6, last=10)
    learnt = set(al.width_gates(al.add_gates(net, torch.randn(1, 3, 8, 8))))
    assert {"features.3.layers.3", "features.4.layers.6"} <= learnt
    small = check_exact(net, draw(2, 3, 8, 8), draw(3, 3, 8, 8))
    kept = sum(p.numel() for p in small.parameters())
    assert kept < 0.4 * sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    "net", [cli.models.ResNet(1, widths=(4, 6, 8)), cli.models.PreActivationResNet(1)]
)
def test_streams_that_pass_an_activation_are_gated_behind_it_as_before(net: nn.Module) -> None:
    model = al.add_gates(net, torch.randn(1, 3, 16, 16))
    assert all(row.activation == "relu" for row in al.inspect(model).rows)


def test_no_channel_is_gated_twice_on_one_way() -> None:
    torch.manual_seed(0)
    net = Mixed().double()
    model = al.add_gates(net, draw(4, 5))
    assert list(al.width_gates(model)) == ["one"]
    close_(model)
    x = draw(6, 5)
    small = al.compact(model)
    for one, other in zip(small(x), model(x), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    # The gradient of a closed gate is that of all that its channel would bring, of both layers.
    gate = al.width_gates(model)["one"]
    torch.cat([out.flatten() for out in model(x)]).sum().backward()
    y = F.relu(net.one(x))
    brings = (y + net.two(x)) * net.head.weight.sum(0) + y * net.beside.weight.sum(0)
    torch.testing.assert_close(gate.grad, brings.sum(0))


def test_a_stream_is_learnt_where_it_is_named() -> None:
    model = al.add_gates(Bottleneck(), torch.randn(4, 5), learn={"stem": al.Learn.WIDTH})
    assert list(al.width_gates(model)) == ["stem"]
    model = al.add_gates(Bottleneck(), torch.randn(4, 5), learn={"up": al.Learn.WIDTH})
    assert list(al.width_gates(model)) == ["up"]
    with pytest.raises(al.InputError, match=r"depth of 'stem', but .* no activation behind it"):
        al.add_gates(Bottleneck(), torch.randn(4, 5), learn={"stem": al.Learn.DEPTH})


def test_inspect_lists_a_stream_once() -> None:
    rows = al.inspect(Bottleneck(), torch.randn(4, 5)).rows
    assert [(row.name, row.activation, row.channels, row.width) for row in rows] == [
        ("up", "gelu", 12, True),
        ("stem", "(none)", 8, True),
    ]


def test_the_output_is_never_narrowed() -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    assert list(al.width_gates(al.add_gates(net, torch.randn(2, 5)))) == ["0"]


class Encoder(nn.Module):
    """Tokens and positions, blocks with norms of one kind, and a tied or an own head."""

    def __init__(self, norm: Callable[[], nn.Module], *, is_first: bool = True) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 8), nn.Parameter(torch.randn(1, 6, 8))
        self.first, self.second = norm(), norm()
        self.up, self.down, self.head = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 11)
        self.is_first = is_first

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions[:, : tokens.shape[1]]
        if self.is_first:
            x = x + self.down(F.gelu(self.up(self.first(x))))
        else:
            x = self.first(x + self.down(F.gelu(self.up(x))))
        return self.head(self.second(x))


class OwnNorm(nn.Module):
    """LlamaRMSNorm, as transformers writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6))


NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm(8),
    "layer without weights": lambda: nn.LayerNorm(8, elementwise_affine=False),
    "rms": lambda: nn.RMSNorm(8),
    "by hand": OwnNorm,
}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("name", NORMS)
def test_streams_through_norms_are_learnt(name: str, is_first: bool) -> None:
    torch.manual_seed(0)
    net = Encoder(NORMS[name], is_first=is_first)
    model = al.add_gates(net, torch.randint(11, (2, 5)))
    assert {key: len(gate) for key, gate in al.width_gates(model).items()} == {
        "up": 12,
        "tokens": 8,
    }
    small: Any = check_exact(net, torch.randint(11, (2, 5)), torch.randint(11, (3, 4)))
    assert small.tokens.embedding_dim == 4
    assert small.positions.shape == (1, 6, 4)
    if isinstance(net.first, nn.LayerNorm | nn.RMSNorm):
        assert type(small.first) is type(net.first)
        assert small.first.normalized_shape == (4,)


class OwnLayerNorm(nn.Module):
    """LayerNorm over the channels of images, as ConvNeXt's authors write it."""

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_channels))
        self.bias = nn.Parameter(torch.randn(n_channels))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-5)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class TorchLayerNorm(OwnLayerNorm):
    """The same by torch's function."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias).permute(0, 3, 1, 2)


class Images(nn.Module):
    """A stream of images through a norm."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, 8, 2), norm(8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.stem(x)))


ALIKE: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], Tensor]] = {
    "RMSNorm": (
        lambda: Encoder(OwnNorm),
        lambda: Encoder(lambda: nn.RMSNorm(8, eps=1e-6)),
        torch.arange(10).view(2, 5),
    ),
    "LayerNorm of images": (
        lambda: Images(OwnLayerNorm),
        lambda: Images(TorchLayerNorm),
        draw(2, 3, 5, 6),
    ),
}


@pytest.mark.parametrize("name", ALIKE)
def test_norms_by_hand_take_their_statistics_over_the_open_channels(name: str) -> None:
    by_hand, by_torch, x = ALIKE[name]
    torch.manual_seed(0)
    net, other = by_hand().double(), by_torch().double()
    other.load_state_dict(net.state_dict())
    models = [al.add_gates(each, x) for each in (net, other)]
    for model in models:
        close_(model)
    torch.testing.assert_close(models[0](x), models[1](x), rtol=1e-12, atol=1e-12)
    small = al.compact(models[0])
    torch.testing.assert_close(small(x), models[0](x), rtol=0, atol=1e-12)
    assert type(small) is type(net)  # with the forward that its author wrote


def test_two_channels_stay_in_a_norm_by_hand() -> None:
    model = al.add_gates(Images(OwnLayerNorm), draw(2, 3, 5, 6).float())
    with torch.no_grad():
        al.width_gates(model)["stem"].zero_()
    assert al.read_architecture(model).widths == (2, 2)


class Positions(nn.Module):
    """A leaf: it is given a stream, and may read of it more or less."""

    table: Tensor

    def __init__(self, reading: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(6, 1))
        self.reading = reading

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return (self.table[: x.shape[1]] * self.reading(x)).to(x.dtype)


class Positioned(nn.Module):
    def __init__(self, reading: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.stem, self.positions, self.head = nn.Linear(5, 8), Positions(reading), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(x) * self.positions(x)


def test_a_leaf_that_asks_for_a_type_alone_reads_no_channels() -> None:
    small: Any = check_exact(Positioned(lambda x: 1), draw(2, 4, 5), draw(3, 6, 5))
    assert small.stem.out_features == 4


READINGS: dict[str, Callable[[Tensor], Any]] = {
    "numbers": lambda x: x.mean(),
    "how many there are": lambda x: x.shape[-1],
    "whether they are finite": lambda x: float(x.isfinite().all()),
}


@pytest.mark.parametrize("name", READINGS)
def test_a_leaf_that_reads_more_keeps_channels(name: str) -> None:
    with pytest.raises(al.InputError, match="nothing can be learnt"):
        al.add_gates(Positioned(READINGS[name]), torch.randn(2, 4, 5))


def test_tied_embeddings_lose_the_same_columns() -> None:
    torch.manual_seed(0)
    net = Encoder(NORMS["layer"])
    net.head.weight = net.tokens.weight
    small: Any = check_exact(net, torch.randint(11, (2, 5)), torch.randint(11, (3, 4)))
    assert small.head.weight is small.tokens.weight
    assert small.head.weight.shape == (11, 4)


class Tokens(nn.Module):
    """A class token in front of patches, and positions for both."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8))
        self.positions = nn.Parameter(torch.randn(1, 17, 8))  # more of them than channels
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(x)[:, 0])


def test_class_tokens_and_positions_are_narrowed_with_the_stream() -> None:
    torch.manual_seed(0)
    small: Any = check_exact(Tokens(), draw(2, 3, 16, 16), draw(3, 3, 16, 16))
    assert small.token.shape == (1, 1, 4)
    assert small.positions.shape == (1, 17, 4)


class JoinedBehind(nn.Module):
    """Puts something else beside tokens that a gate has closed channels of."""

    def __init__(self, join: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.token, self.join = nn.Parameter(torch.randn(1, 1, 8)), join

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.last(torch.relu(self.second(self.join(self.token.expand(len(x), -1, -1), x))))


@pytest.mark.parametrize(
    "join",
    [
        lambda token, x: torch.cat([token, x], 1),
        lambda token, x: torch.cat([x, token], 1).mean(1),
        lambda _, x: torch.cat([x, torch.ones_like(x)], 1),
        lambda _, x: torch.cat([x, torch.cos(x)], 1).mean(1),
        lambda token, x: torch.stack([x, token.expand_as(x)], 1),
    ],
)
def test_what_is_joined_to_tokens_is_no_constant_of_all_of_them(
    join: Callable[[Tensor, Tensor], Tensor],
) -> None:
    torch.manual_seed(0)
    check_exact(JoinedBehind(join), draw(2, 5, 4), draw(3, 9, 4))


class ReadsItself(JoinedBehind):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = nn.functional.scaled_dot_product_attention(x, x, x, scale=0.5)
        return self.last(torch.relu(self.second(x)))


def test_attention_of_a_gated_tensor_to_itself_sums_over_open_channels() -> None:
    torch.manual_seed(0)
    check_exact(ReadsItself(torch.add), draw(2, 5, 4), draw(3, 9, 4))


def test_group_norms_lose_whole_groups() -> None:
    torch.manual_seed(0)
    norm = nn.GroupNorm(4, 12)
    body = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), norm, nn.SiLU(), nn.Conv2d(12, 2, 3))
    model = al.add_gates(body, torch.randn(2, 3, 8, 8))
    assert {key: len(gate) for key, gate in al.width_gates(model).items()} == {"0": 4}
    small: Any = check_exact(body, draw(2, 3, 8, 8), draw(3, 3, 9, 9))
    assert (small[1].num_groups, small[1].num_channels, small[0].out_channels) == (2, 6, 6)


class NormedBehind(nn.Module):
    """A BatchNorm behind an activation, read with zero padding and without it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.padded, self.plain = nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.up = nn.ConvTranspose2d(8, 4, 1)
        for parameter in self.norm.parameters():
            nn.init.normal_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(F.relu(self.stem(x)))
        return self.padded(x) + self.plain(x) * self.up(x)


def test_a_norm_behind_an_activation_is_gated_where_padding_reads_it() -> None:
    torch.manual_seed(0)
    small: Any = check_exact(NormedBehind(), draw(2, 3, 8, 8), draw(3, 3, 9, 9))
    assert small.stem.out_channels == small.norm.num_features == 4


class Grouped(nn.Module):
    """A convolution, a GroupNorm as a module or a function, and two readers."""

    def __init__(self, n_groups: int, *, is_function: bool = False) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 12, 3, padding=1), nn.GroupNorm(n_groups, 12, eps=0.1)
        self.body, self.head = nn.Conv2d(12, 12, 3, padding=1), nn.Conv2d(12, 2, 3)
        self.is_function = is_function
        for parameter in self.norm.parameters():
            nn.init.normal_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        x, norm = self.stem(x), self.norm
        for _ in range(2):
            if self.is_function:
                y = F.group_norm(x, norm.num_groups, norm.weight, bias=norm.bias, eps=0.1)
            else:
                y = norm(x)
            x = x + self.body(F.silu(y))
        return self.head(x)


@pytest.mark.parametrize("is_function", [False, True])
@pytest.mark.parametrize(("n_groups", "n_gates"), [(1, 12), (2, 6), (3, 4), (4, 4), (6, 6)])
def test_group_norms_lose_whole_groups_or_equally_many_channels_of_each(
    n_groups: int, n_gates: int, is_function: bool
) -> None:
    torch.manual_seed(0)
    net = Grouped(n_groups, is_function=is_function)
    model = al.add_gates(net, torch.randn(2, 3, 8, 8))
    assert {key: len(gate) for key, gate in al.width_gates(model).items()} == {"stem": n_gates}
    small: Any = check_exact(net, draw(2, 3, 8, 8), draw(3, 3, 9, 9))
    assert small.stem.out_channels == 6
    if not is_function:
        left = n_groups if n_groups < 4 else n_groups // 2
        assert (small.norm.num_groups, small.norm.num_channels) == (left, 6)


def test_masks_joined_by_operators_are_not_changed_in_place() -> None:
    class MaskedStream(Encoder):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.tokens(tokens)
            mask = x.new_ones(tokens.shape[1], dtype=torch.bool)
            kept = (mask & mask) | mask
            return self.head(self.first(x * kept[:, None]))

    model = al.add_gates(MaskedStream(NORMS["layer"]), torch.randint(11, (2, 5)))
    assert "tokens" in al.width_gates(model)


def test_a_stream_shrinks_while_it_learns() -> None:
    torch.manual_seed(0)
    model: Any = al.add_gates(Encoder(NORMS["layer"]).double(), torch.randint(11, (2, 5)))
    close_(model)
    tokens = torch.randint(11, (3, 5))
    before = model(tokens)
    al.shrink_(model)
    assert model.first.normalized_shape == (4,)
    torch.testing.assert_close(model(tokens), before, rtol=0, atol=1e-10)
    torch.testing.assert_close(al.compact(model)(tokens), before, rtol=0, atol=1e-10)


GROUPED: dict[str, Callable[[], nn.Module]] = {
    "norm in parts": lambda: Grouped(3),
    "norm by whole groups": lambda: Grouped(4),
    "convolution in parts": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1, groups=2), nn.ReLU(), nn.Conv2d(8, 2, 1)
    ),
    "convolution by groups and parts": lambda: nn.Sequential(
        nn.Conv2d(3, 20, 3),
        nn.ReLU(),
        nn.Conv2d(20, 16, 1, groups=4),
        nn.ReLU(),
        nn.Conv2d(16, 2, 1),
    ),
}


@pytest.mark.parametrize("name", GROUPED)
def test_what_groups_lose_stays_the_same_while_a_network_shrinks(name: str) -> None:
    torch.manual_seed(0)
    model: Any = al.add_gates(GROUPED[name]().double(), draw(2, 3, 8, 8))
    close_(model)
    x = draw(3, 3, 9, 9)
    before = model(x)
    al.shrink_(model)
    torch.testing.assert_close(model(x), before, rtol=0, atol=1e-10)
    torch.testing.assert_close(al.compact(model)(x), before, rtol=0, atol=1e-10)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_two_channels_stay_in_front_of_a_norm(is_compiled: bool) -> None:
    torch.manual_seed(0)
    net = Encoder(NORMS["layer"]).double().eval()
    model: Any = al.add_gates(net, torch.randint(11, (2, 5)))
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate.copy_(torch.linspace(0.1, 0.3, len(gate)))
    plan = al.plan(model)
    assert (plan.widths["tokens"], plan.widths["up"]) == ((6, 7), (11,))
    tokens = torch.randint(11, (3, 5))
    run: Any = torch.compile(model, backend="eager") if is_compiled else model
    torch.testing.assert_close(al.compact(model)(tokens), run(tokens), rtol=0, atol=1e-10)
    gates = al.GateOptimizer(
        model, 10, budget={"parameters": al.inspect(model).least["parameters"]}
    )
    gates.finish()
    assert len(al.plan(model).widths["tokens"]) == 2


class LastBlock(nn.Module):
    """What one token reads is added to all, of which each kind has channels of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(8))
        self.embed, self.norm = nn.Linear(3, 8), nn.LayerNorm(8)
        self.read, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], 1, 8), self.embed(x)], 1)
        x = x + self.read(self.norm(x)[:, :1])
        return self.head(self.norm(x)[:, 0])


def test_what_is_added_to_tokens_of_all_kinds_loses_their_channels() -> None:
    torch.manual_seed(0)
    small = check_exact(LastBlock(), draw(2, 5, 3), draw(3, 4, 3))
    assert small.embed.out_features == small.read.out_features == 4


class PaddedInSpace(nn.Module):
    """Channels lie last, and the image is padded to whole windows, as in DaViT."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Linear(5, 8), nn.LayerNorm(8)
        self.up, self.head = nn.Linear(8, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(self.norm(self.stem(x)), (0, 0, 0, 1, 0, 2))
        return self.head(torch.relu(self.up(x)).mean((1, 2)))


def test_padding_of_space_leaves_channels_that_lie_last_alone() -> None:
    small = check_exact(PaddedInSpace(), draw(2, 3, 4, 5), draw(3, 3, 4, 5))
    assert small.get_parameter("stem.weight").shape == (4, 5)


class DividedByDeviation(nn.Module):
    """A norm by hand, as timm's `SimpleNorm`: divided by the deviation over channels."""

    def __init__(self, dim: int, options: dict[str, Any]) -> None:
        super().__init__()
        self.dim, self.options = dim, options
        self.weight = nn.Parameter(torch.rand(8) + 0.5)
        self.stem, self.up, self.head = nn.Linear(5, 8), nn.Linear(8, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.dim == 1:
            x = x.transpose(1, 2)
        x = x * torch.rsqrt(torch.var(x, self.dim, **self.options) + 1e-5)
        if self.dim == 1:
            x = x.transpose(1, 2)
        return self.head(torch.relu(self.up(x * self.weight)))


@pytest.mark.parametrize("dim", [-1, 1])
@pytest.mark.parametrize("options", [{}, {"unbiased": False}, {"correction": 0}])
def test_a_variance_is_taken_over_the_open_channels(dim: int, options: dict[str, Any]) -> None:
    net = DividedByDeviation(dim, {**options, "keepdim": True})
    small = check_exact(net, draw(2, 6, 5), draw(3, 6, 5))
    assert small.get_parameter("stem.weight").shape == (4, 5)
    assert small.get_parameter("weight").shape == (4,)


class SelectedPaths(nn.Module):
    """A softmax over two paths weighs their channels, as in selective kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(3, 6, 5, padding=2)
        self.select, self.head = nn.Linear(6, 12), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        paths = torch.stack([F.relu(self.one(x)), F.relu(self.two(x))], 1)
        chosen = self.select(paths.sum(1).mean((2, 3))).view(len(x), 2, -1).softmax(1)
        return self.head((paths * chosen[..., None, None]).sum(1).mean((2, 3)))


def test_paths_that_a_softmax_weighs_lose_the_same_channels() -> None:
    small = check_exact(SelectedPaths(), draw(2, 3, 8, 8), draw(3, 3, 8, 8))
    assert small.get_parameter("one.weight").shape[0] == 3
    assert small.get_parameter("two.weight").shape[0] == 3
    assert small.get_parameter("select.weight").shape == (6, 3)


class OfUnitLength(nn.Module):
    """A stream of length one for each token, by any way to call `F.normalize`."""

    def __init__(self, normalize: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.stem, self.head, self.normalize = nn.Linear(5, 8), nn.Linear(8, 3), normalize

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.normalize(self.stem(x)))


@pytest.mark.parametrize(
    "normalize",
    [
        lambda x: F.normalize(x, dim=-1),
        lambda x: F.normalize(x, 2, -1),
        lambda x: F.normalize(x, 1.0, 3, 1e-3),
    ],
)
def test_lengths_are_taken_over_the_open_channels(normalize: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    small = check_exact(OfUnitLength(normalize), draw(2, 3, 4, 5), draw(3, 3, 4, 5))
    assert small.get_parameter("head.weight").shape == (3, 4)


def test_a_length_behind_an_activation_reads_what_its_gates_leave() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), OfUnitLength(F.normalize))
    net[2].stem = nn.Identity()
    small = check_exact(net, draw(4, 5), draw(300, 5))
    assert small.get_parameter("2.head.weight").shape == (3, 4)


def test_lengths_within_a_channel_leave_channels_alone() -> None:
    torch.manual_seed(0)
    net = OfUnitLength(lambda x: F.normalize(x, dim=1))
    small = check_exact(net, draw(2, 3, 5), draw(4, 3, 5))
    assert small.get_parameter("head.weight").shape == (3, 4)


class LearntQueries(nn.Module):
    """More learnt queries than channels are left: only the layer tells where channels lie."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.stem = nn.Parameter(torch.randn(5, 8)), nn.Linear(4, 8)
        self.read, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        queries = self.queries.unsqueeze(0).repeat(x.shape[0], 1, 1)
        target = torch.zeros_like(queries) + queries
        target = target + F.relu(self.read(target)) + self.stem(x).unsqueeze(1)
        return self.head(target)


def test_channels_of_learnt_queries_lie_where_they_are_read_however_few_are_left() -> None:
    x, fresh = draw(2, 4), draw(3, 4)
    model = al.add_gates(LearntQueries().double().eval(), x)
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate[2:] = 0.1
    before = model(fresh)
    al.shrink_(model, torch.optim.SGD(al.weights(model), lr=0.1))
    assert model.queries.shape == (5, 2)
    torch.testing.assert_close(model(fresh), before, rtol=0, atol=1e-10)
    torch.testing.assert_close(al.compact(model)(fresh), before, rtol=0, atol=1e-10)


class ReadsRows(nn.Module):
    """Hidden channels are scaled by rows of one table, some of which nobody reads."""

    def __init__(self, rows: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.table, self.rows = nn.Parameter(torch.randn(4, 8)), rows
        self.one, self.two, self.head = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.rows(self.table)
        x = F.relu(self.one(x)) * first
        return self.head(F.relu(self.two(x)) * second)


@pytest.mark.parametrize(
    "rows",
    [
        lambda table: (table[1], table[1]),
        lambda table: (table[0], table[-1]),
        lambda table: table[:2].unbind(0),
        lambda table: (table.t()[:, 2], table.chunk(4)[3]),
        lambda table: (table[2], 1.0),
    ],
)
def test_a_table_of_which_single_rows_are_read_loses_the_same_of_each(
    rows: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> None:
    torch.manual_seed(0)
    small = check_exact(ReadsRows(rows), draw(2, 5), draw(3, 5))
    assert small.get_parameter("table").shape == (4, 4)
    assert small.get_parameter("head.weight").shape == (3, 4)


class ResizesPositions(nn.Module):
    """A table of more positions than channels, resized to as many tokens as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.positions = nn.Linear(3, 6), nn.Parameter(torch.randn(1, 9, 6))
        self.norm, self.last = nn.LayerNorm(6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        table = F.interpolate(self.positions.transpose(1, 2), size=x.shape[1], mode="linear")
        return self.last(self.norm(self.first(x) + table.transpose(1, 2)))


def test_channels_of_a_table_that_is_resized_go_however_long_it_is() -> None:
    torch.manual_seed(0)
    model = al.add_gates(ResizesPositions().double(), torch.randn(2, 5, 3, dtype=torch.float64))
    with torch.no_grad():
        al.width_gates(model)["first"][::2] = 0.0
    small = al.compact(model)
    assert small.positions.shape == (1, 9, 3)
    x = torch.randn(1, 12, 3, dtype=torch.float64)
    torch.testing.assert_close(small(x), model(x), rtol=1e-10, atol=1e-10)
