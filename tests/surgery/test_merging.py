"""Two affine layers with nothing between them are one."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
from archlearn.surgery.merging import fold_batch_norm, merge_convolutions, merge_linear

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def linear(weight: list[list[float]], bias: list[float] | None) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight), bias=bias is not None).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        if bias is not None:
            layer.bias.copy_(torch.tensor(bias))
    return layer


def test_two_linear_layers_worked_by_hand() -> None:
    """Weight `[[1·1 + 2·3, 1·2 + 2·4]]`, bias `5 + 1·10 + 2·20`."""
    first = linear([[1.0, 2.0], [3.0, 4.0]], [10.0, 20.0])
    merged = merge_linear(first, linear([[1.0, 2.0]], [5.0]))
    assert merged.weight.tolist() == [[7.0, 10.0]]
    assert merged.bias.tolist() == [55.0]
    assert (merged.in_features, merged.out_features) == (2, 1)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [([10.0, 20.0], None, [50.0]), (None, [5.0], [5.0]), (None, None, None)],
)
def test_biases_that_are_not_there(
    first: list[float] | None, second: list[float] | None, expected: list[float] | None
) -> None:
    merged = merge_linear(linear([[1.0, 2.0], [3.0, 4.0]], first), linear([[1.0, 2.0]], second))
    found = None if merged.bias is None else merged.bias.tolist()  # pyright: ignore[reportUnnecessaryComparison]
    assert found == expected


def test_two_convolutions_worked_by_hand() -> None:
    """`[1, 2]` behind `[3, 4]` is `[3, 10, 8]`: the product of two polynomials."""
    first, second = (nn.Conv1d(1, 1, 2).double() for _ in range(2))
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[[3.0, 4.0]]]))
        second.weight.copy_(torch.tensor([[[1.0, 2.0]]]))
        first.bias.fill_(5.0)
        second.bias.fill_(7.0)
    merged = merge_convolutions(first, second)
    assert merged.weight.tolist() == [[[3.0, 10.0, 8.0]]]
    assert merged.bias.tolist() == [7.0 + 3 * 5.0]
    assert merged.kernel_size == (3,)


X = torch.randn(2, 3, 19, 19, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("first", [{}, {"stride": 2}, {"padding": 2}, {"dilation": 2}, {"bias": 0}])
@pytest.mark.parametrize("second", [{}, {"stride": 2}, {"dilation": 3}, {"bias": 0}])
@pytest.mark.parametrize("sizes", [(3, 1), (3, 3), (1, 3), (2, (3, 1)), (1, 1)])
def test_unpadded_convolutions_merge_exactly(
    first: dict[str, int], second: dict[str, int], sizes: tuple[Any, Any]
) -> None:
    torch.manual_seed(0)
    one = nn.Conv2d(3, 5, sizes[0], **first).double()  # pyright: ignore[reportArgumentType]
    two = nn.Conv2d(5, 4, sizes[1], **second).double()  # pyright: ignore[reportArgumentType]
    merged = merge_convolutions(one, two)
    torch.testing.assert_close(merged(X), two(one(X)), **EXACT)


@pytest.mark.parametrize(
    "options", [{"padding": 1}, {"padding": 2, "stride": 2}, {"padding": 2, "dilation": 2}]
)
@pytest.mark.parametrize("stride", [1, 2])
def test_a_point_without_bias_merges_into_a_padded_convolution(
    options: dict[str, int], stride: int
) -> None:
    torch.manual_seed(0)
    one = nn.Conv2d(3, 5, 1, bias=False, stride=stride).double()
    two = nn.Conv2d(5, 4, 3, **options).double()
    torch.testing.assert_close(merge_convolutions(one, two)(X), two(one(X)), **EXACT)


@pytest.mark.parametrize(("conv", "n_space"), [(nn.Conv1d, 1), (nn.Conv3d, 3)])
def test_convolutions_of_other_dimensions(conv: Any, n_space: int) -> None:
    torch.manual_seed(0)
    one, two = conv(2, 4, 3).double(), conv(4, 3, 2).double()
    x = torch.randn(1, 2, *[7] * n_space, dtype=torch.float64)
    torch.testing.assert_close(merge_convolutions(one, two)(x), two(one(x)), **EXACT)


def test_what_the_first_pads_with_is_kept() -> None:
    torch.manual_seed(0)
    one = nn.Conv2d(3, 5, 3, padding=1, padding_mode="reflect").double()
    two = nn.Conv2d(5, 4, 3).double()
    merged = merge_convolutions(one, two)
    assert merged.padding_mode == "reflect"
    torch.testing.assert_close(merged(X), two(one(X)), **EXACT)


def test_comparison_sees_a_border_that_differs() -> None:
    """The control: what is refused would indeed be wrong, and only at the border."""
    torch.manual_seed(0)
    one, two = nn.Conv2d(3, 5, 1).double(), nn.Conv2d(5, 4, 3, padding=1).double()
    bare = copy.deepcopy(two)
    bare.padding = (0, 0)
    wrong = merge_convolutions(one, bare)
    wrong.padding = (1, 1)
    gap = (wrong(X) - two(one(X))).detach().abs()
    assert gap[..., 1:-1, 1:-1].max() < 1e-10
    assert gap.max() > 1e-3


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_batch_norm_folds_exactly(affine: bool, bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, 3, bias=bias).double()
    norm = randomise_(nn.BatchNorm2d(4, affine=affine).double())
    torch.testing.assert_close(fold_batch_norm(layer, norm)(X), norm(layer(X)), **EXACT)


def test_a_batch_norm_folds_into_a_linear_layer_worked_by_hand() -> None:
    """Scale `2/√(3 + 1) = 1`, shift `(10 − 4)·1 + 7`."""
    norm = nn.BatchNorm1d(1, eps=1.0).double().eval()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    with torch.no_grad():
        norm.weight.fill_(2.0)
        norm.bias.fill_(7.0)
        norm.running_mean.fill_(4.0)
        norm.running_var.fill_(3.0)
    folded = fold_batch_norm(linear([[3.0, -5.0]], [10.0]), norm)
    assert folded.weight.tolist() == [[3.0, -5.0]]
    assert folded.bias.tolist() == [13.0]


@torch.no_grad()
def randomise_(norm: Any) -> Any:
    for tensor in norm.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 2.0)
    return norm.eval()


def parts(*layers: nn.Module) -> list[Tensor]:
    return [tensor.clone() for layer in layers for tensor in layer.state_dict().values()]


def test_arguments_are_left_alone() -> None:
    one, two, norm = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 3), randomise_(nn.BatchNorm2d(4))
    dense = nn.Linear(3, 4), nn.Linear(4, 2)
    before = parts(one, two, norm, *dense)
    made = [merge_convolutions(one, two), fold_batch_norm(one, norm), merge_linear(*dense)]
    assert all(map(torch.equal, before, parts(one, two, norm, *dense)))
    for layer in made:
        layer.weight.data.zero_()
    assert all(map(torch.equal, before, parts(one, two, norm, *dense)))


def test_linear_layers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(al.SurgeryError, match="gives 3 features but the second takes 4"):
        merge_linear(nn.Linear(2, 3), nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (nn.Conv2d(3, 5, 3), nn.Conv2d(4, 2, 3), "gives 5 channels but the second takes 4"),
        (
            nn.Conv2d(3, 4, 3),
            nn.Conv2d(4, 2, 3, padding=1),
            r"the second convolution pads by \(1, 1\).*differ at the border; use padding=0",
        ),
        (nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 3, padding=1), "differ at the border"),
        (
            nn.Conv2d(3, 4, 1, padding=1, bias=False),
            nn.Conv2d(4, 2, 3, padding=1),
            "differ at the border",
        ),
        (nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 2, 3), "a grouped convolution does not merge"),
        (nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, groups=4), "a grouped convolution does not merge"),
        (nn.Conv2d(3, 4, 3), nn.Conv1d(4, 2, 3), "a Conv2d into a Conv1d"),
        (nn.Linear(3, 4), nn.Conv1d(4, 2, 3), "a Linear into a Conv1d"),
        (nn.ConvTranspose2d(3, 4, 3), nn.ConvTranspose2d(4, 2, 3), "merge a ConvTranspose2d into"),
        (
            nn.Conv2d(3, 4, 3, padding="same"),
            nn.Conv2d(4, 2, 3),
            "text; give it as numbers",
        ),
        (
            nn.Conv2d(3, 4, 1, bias=False),
            nn.Conv2d(4, 2, 3, padding=1, padding_mode="circular"),
            "pads by circular",
        ),
    ],
)
def test_convolutions_that_would_differ_are_refused(
    first: nn.Module, second: nn.Module, message: str
) -> None:
    with pytest.raises(al.SurgeryError, match=message):
        merge_convolutions(first, second)


def test_a_batch_norm_without_statistics_is_refused() -> None:
    with pytest.raises(
        al.SurgeryError, match="without running statistics: it depends on the batch"
    ):
        fold_batch_norm(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))
