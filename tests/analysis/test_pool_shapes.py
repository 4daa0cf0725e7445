"""What a pool would return is guessed with the right shape, or not at all."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from archlearn.analysis.shape_inference import infer_pool

KINDS: list[Any] = [nn.MaxPool1d, nn.AvgPool1d, nn.MaxPool2d, nn.AvgPool2d, nn.MaxPool3d]
OPTIONS = [
    {"kernel_size": kernel, "stride": stride, "padding": padding}
    for kernel, stride, padding in itertools.product((1, 2, 3), (None, 1, 2), (0, 1))
    if padding <= kernel // 2
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_guess_has_the_shape_of_the_result(kind: Any, options: dict[str, Any]) -> None:
    pool = kind(**options)
    x = torch.randn(2, 3, *(7, 8, 9)[: int(kind.__name__[-2])])
    for given in (x, x[0]):
        guessed = infer_pool(pool, given)
        assert guessed is not None
        assert guessed.shape == pool(given).shape


def test_windows_of_other_sizes_along_each_dimension() -> None:
    pool = nn.MaxPool2d((3, 2), stride=(1, 3), padding=(1, 0), dilation=(2, 1))
    x = torch.randn(1, 2, 9, 8)
    guessed = infer_pool(pool, x)
    assert guessed is not None
    assert guessed.shape == pool(x).shape


@pytest.mark.parametrize(
    ("pool", "x"),
    [
        (nn.MaxPool2d(2, ceil_mode=True), torch.randn(1, 2, 5, 5)),
        (nn.MaxPool2d(2, return_indices=True), torch.randn(1, 2, 5, 5)),
        (nn.MaxPool2d(8), torch.randn(1, 2, 5, 5)),
        (nn.MaxPool2d(2), torch.ones(1, 2, 5, 5, dtype=torch.long)),
        (nn.MaxPool2d(2), torch.randn(5, 5)),
        (nn.MaxPool2d(2, padding=2), torch.randn(1, 2, 5, 5)),
        (nn.AdaptiveAvgPool2d(1), torch.randn(1, 2, 5, 5)),
        (nn.LPPool2d(2, 2), torch.randn(1, 2, 5, 5)),
    ],
)
def test_what_may_fail_or_give_something_else_is_called(pool: nn.Module, x: torch.Tensor) -> None:
    assert infer_pool(pool, x) is None
