"""Fastfood is a matrix that is never written down; here it is."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
from archlearn_cli.models import LeNet
from archlearn_paper.baselines.fastfood import (
    Fastfood,
    choose_features,
    count_fastfood,
    reduce_by_fastfood,
    replace_by_fastfood,
    transform,
)
from archlearn_paper.baselines.parameter_budget import BudgetError, is_within

DIGITS = torch.zeros(2, 1, 28, 28)


def hadamard(size: int) -> Tensor:
    """Sylvester's construction, scaled to be orthogonal."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double(), matrix)
    return matrix / math.sqrt(size)


@pytest.mark.parametrize("size", [1, 2, 4, 32])
def test_the_transform_is_the_hadamard_matrix(size: int) -> None:
    x = torch.randn(3, size, dtype=torch.float64)
    torch.testing.assert_close(transform(x, x.shape[-1]), x @ hadamard(size).T)


def test_the_transform_worked_by_hand() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    torch.testing.assert_close(transform(x, x.shape[-1]), torch.tensor([10.0, -2.0, -4.0, 0.0]) / 2)


@pytest.mark.parametrize(("n_in", "n_features"), [(8, 8), (5, 3), (5, 20), (1, 2)])
def test_the_layer_is_the_explicit_matrix(n_in: int, n_features: int) -> None:
    torch.manual_seed(0)
    layer = Fastfood(n_in, n_features).double()
    nn.init.normal_(layer.bias)
    blocks: list[Tensor] = []
    for signs, gauss, order in zip(layer.signs, layer.gauss, layer.order, strict=True):
        h = hadamard(layer.size)
        blocks.append(
            h
            @ torch.diag(gauss)
            @ torch.eye(layer.size).double()[order % layer.size]
            @ h
            @ torch.diag(signs)
        )
    matrix = torch.diag(layer.scale) @ torch.cat(blocks)[:n_features, :n_in]
    x = torch.randn(4, n_in, dtype=torch.float64)
    torch.testing.assert_close(layer(x), x @ matrix.T + layer.bias)


def test_every_diagonal_learns() -> None:
    torch.manual_seed(0)
    layer = Fastfood(6, 10)
    layer(torch.randn(5, 6)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert bool((parameter.grad != 0).any()), name


def test_lengths_are_about_kept() -> None:
    torch.manual_seed(0)
    x = torch.randn(2000, 256)
    assert Fastfood(256, 256)(x).std().item() == pytest.approx(1.0, rel=0.05)


def test_parameters_by_hand() -> None:
    # 800 inputs padded to 1,024: twice 1,024, then 500 scales and 500 biases
    assert sum(p.numel() for p in Fastfood(800, 500).parameters()) == 2 * 1024 + 1000
    assert sum(p.numel() for p in Fastfood(800, 1025).parameters()) == 4 * 1024 + 2050
    net = replace_by_fastfood(LeNet(), ["fc1", "fc2"], 500)
    assert al.count_costs(net, DIGITS).parameters == 520 + 25_050 + 3_048 + 5_010
    assert count_fastfood(800, 500, 10) == 3_048 + 5_010


def test_fastfood_16_of_caffenet() -> None:
    """16,384 features for fc6 and fc7, and a softmax that reads them: 18.7 million."""
    convolutions = 34_944 + 307_456 + 885_120 + 663_936 + 442_624
    total = convolutions + count_fastfood(9216, 16_384, 1000)
    assert total == 2_334_080 + 4 * 16_384 + 16_385 * 1000
    assert total // 100_000 == 187


def test_layers_in_between_go() -> None:
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    made = replace_by_fastfood(net, ["0", "2", "4"], 7)
    assert [type(layer).__name__ for layer in made] == [
        "Fastfood", "ReLU", "Identity", "ReLU", "Linear",
    ]  # fmt: skip
    assert made(torch.zeros(2, 6)).shape == (2, 3)
    assert isinstance(net[0], nn.Linear)


def test_a_budget_is_met_or_refused() -> None:
    reduced = reduce_by_fastfood(LeNet(), DIGITS, 40_000)
    assert is_within(al.count_costs(reduced, DIGITS).parameters, 40_000)
    assert choose_features(LeNet(), ["fc1", "fc2"], 520 + 25_050 + 3_048 + 5_010) == 500
    with pytest.raises(BudgetError, match=r"20,000 parameters .* 25,570 are in layers"):
        reduce_by_fastfood(LeNet(), DIGITS, 20_000)


def test_the_seed_decides_the_fresh_weights() -> None:
    first, again, other = (reduce_by_fastfood(LeNet(), DIGITS, 40_000, seed=n) for n in (1, 1, 2))
    gauss = [net.get_parameter("fc1.gauss") for net in (first, again, other)]
    assert torch.equal(gauss[0], gauss[1])
    assert not torch.equal(gauss[0], gauss[2])


def test_a_model_with_fastfood_is_saved_and_loaded(tmp_path: Path) -> None:
    net = replace_by_fastfood(LeNet(), ["fc1", "fc2"], 1100).eval()
    al.save(net, tmp_path / "a.safetensors", example_inputs=DIGITS)
    certificate = al.certify(net, al.load(tmp_path / "a.safetensors"), DIGITS)
    assert certificate.difference == 0
