"""Built-in networks are gated, half closed, compacted exactly, saved and loaded."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
import archlearn_cli as cli
from tests.cli.commands import run_here
from tests.zoo import randomise_

EXACT = 1e-10


def images(side: int) -> Tensor:
    return torch.randn(2, 3, side, side, generator=generator(7), dtype=torch.float64)


def tokens(length: int) -> Tensor:
    return torch.randint(0, 11, (2, length), generator=generator(7))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


Case = tuple[Callable[[], nn.Module], Tensor]
CASES: dict[str, Case] = {
    "resnet": (lambda: cli.models.ResNet(2, 3, 5, (4, 6, 8)), images(8)),
    "resnet with uneven padding": (lambda: cli.models.ResNet(1, 3, 5, (4, 7, 9)), images(8)),
    "preresnet": (lambda: cli.models.PreActivationResNet(2, 3, 5, (4, 6, 8)), images(8)),
    "vgg": (lambda: cli.models.VGG(3, 5, [[4, 5], [6], [7]]), images(8)),
    "mobilenet": (
        lambda: cli.models.MobileNetV2(3, 5, [(1, 3, 1, 1), (2, 4, 2, 2)], 4, 9),
        images(8),
    ),
    "densenet": (lambda: cli.models.DenseNet(2, 3, 5, 3, 4), images(8)),
    "vit": (lambda: cli.models.ViT(3, 8, 5, 6, 2), images(8)),
    "mixer": (lambda: cli.models.Mixer(3, 8, 5, 6, 2), images(8)),
    "gpt": (lambda: cli.models.GPT(11, 7, 12, 2), tokens(7)),
}
each_case = pytest.mark.parametrize("name", CASES)


def build(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    network, example = CASES[name]
    net = network().double().eval()
    randomise_(net, 3)
    return net, example


@torch.no_grad()
def close_half_(gated: nn.Module) -> None:
    coins = generator(5)
    for gate in (*al.width_gates(gated).values(), *al.depth_gates(gated).values()):
        gate.copy_(torch.where(torch.rand(gate.shape, generator=coins) < 0.5, 0.1, 0.9))


@each_case
def test_built_in_network_is_compacted_exactly_and_saved(name: str, tmp_path: Path) -> None:
    net, example = build(name)
    gated = al.add_gates(net, example).eval()
    with torch.no_grad():
        torch.testing.assert_close(gated(example), net(example), rtol=0, atol=1e-12)
    close_half_(gated)
    small = al.compact(gated).eval()
    al.save(small, tmp_path / "small.safetensors")
    loaded = al.load(tmp_path / "small.safetensors").eval()
    fresh = example.flip(0)[:1]
    with torch.no_grad():
        torch.testing.assert_close(small(fresh), gated(fresh), rtol=0, atol=EXACT)
        torch.testing.assert_close(loaded(fresh), small(fresh), rtol=0, atol=EXACT)
    assert n_parameters(small) < n_parameters(net)


def n_parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("resnet20", (3, 32, 32), 269_722),
        ("resnet56", (3, 32, 32), 853_018),
        ("preresnet20", (3, 32, 32), 272_282),
        ("vgg16-bn", (3, 32, 32), 14_724_042),
        ("mobilenetv2", (3, 32, 32), 2_236_682),
        ("densenet40", (3, 32, 32), 1_019_722),
        ("vit", (3, 32, 32), 2_693_194),
        ("mixer", (3, 32, 32), 1_866_250),
        ("gpt", (128,), 2_719_104),
    ],
)
def test_network_by_name_has_its_known_size(
    name: str, shape: tuple[int, ...], parameters: int
) -> None:
    n_outputs = 65 if name == "gpt" else 10
    net = cli.models.build_network(name, shape, n_outputs)
    assert n_parameters(net) == parameters
    half = cli.models.build_network(f"{name}:0.5", shape, n_outputs)
    assert 0.15 < n_parameters(half) / parameters < 0.35
    example = torch.zeros(2, *shape, dtype=torch.long if name == "gpt" else torch.float32)
    outputs = half(example)
    assert outputs.shape == ((2, 128, 65) if name == "gpt" else (2, 10))


def test_help_names_every_built_in_network(tmp_path: Path) -> None:
    text = " ".join(run_here(["learn", "--help"], tmp_path)[1].replace("│", " ").split())
    named = text.partition("Built-in network (")[2].partition(")")[0].split(", ")
    assert [*named, "package.module:function"] == list(cli.models.MODELS)


def test_networks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(al.InputError, match=r"'resnet20' takes square images of at least 8 x 8"):
        cli.models.build_network("resnet20", (3, 4, 4), 10)
    with pytest.raises(al.InputError, match=r"'gpt' reads rows of tokens, .*\(3, 32, 32\)"):
        cli.models.build_network("gpt", (3, 32, 32), 10)
    with pytest.raises(al.InputError, match=r"'vit:big': give the factor .* as in vit:0.5"):
        cli.models.build_network("vit:big", (3, 32, 32), 10)


def test_gpt_is_inspected_on_tokens(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be\n" * 30)
    for words in ("--shape 16 --outputs 20", "--data tiny-shakespeare:text.txt:16"):
        _, said = run_here(["inspect", "gpt:0.06", *words.split()], tmp_path)
        assert "blocks.5.up" in said


def test_gpt_sees_no_later_token_and_takes_a_shorter_text() -> None:
    net, example = build("gpt")
    other = example.clone()
    other[:, 4:] = (other[:, 4:] + 1) % 11
    with torch.no_grad():
        torch.testing.assert_close(net(example)[:, :4], net(other)[:, :4], rtol=0, atol=1e-12)
        assert not torch.equal(net(example)[:, 4:], net(other)[:, 4:])
        torch.testing.assert_close(net(example[:, :5]), net(example)[:, :5], rtol=0, atol=1e-12)


def test_torchvisions_alexnet_has_its_parameters() -> None:
    with torch.device("meta"):
        assert n_parameters(cli.models.AlexNet()) == 61_100_840
