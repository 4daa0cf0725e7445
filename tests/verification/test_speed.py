"""Two models are run in turns, and their memory is counted."""

import pytest
import torch
from torch import nn

import archlearn as al


def chain(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.Tanh())


def test_each_size_of_batches_is_measured() -> None:
    wide, narrow = chain(256).train(), chain(16)
    rows = al.compare_speed(wide, narrow, torch.randn(3, 8), (1, 5))
    assert [(row.device, row.batch_size) for row in rows] == [("cpu", 1), ("cpu", 5)]
    for row in rows:
        # One layer's input and output are held at a time.
        assert row.bytes == tuple(2 * 4 * width * row.batch_size for width in (256, 16))
        assert min(row.seconds) > 0
        assert row.ratio == row.seconds[0] / row.seconds[1]
    assert wide.training


def test_inputs_are_given_as_one_call_takes_them() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * mask

    given = {"x": torch.randn(3, 8), "mask": torch.ones(3, 4)}
    rows = al.compare_speed(Masked(), Masked(), given, (1, 5))
    assert [row.bytes[0] for row in rows] == [2 * 4 * 4 * size for size in (1, 5)]
    plain = chain(16)
    as_tuple, alone = (
        al.compare_speed(plain, plain, x, (5,))[0] for x in ((given["x"],), given["x"])
    )
    assert as_tuple.bytes == alone.bytes
    with pytest.raises(al.InputError, match="example_inputs is an int; give a tensor"):
        al.compare_speed(plain, plain, 5)


def test_views_and_in_place_calls_take_no_memory_of_their_own() -> None:
    class Views(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.view(-1, 2) + 1.0
            return y.t().relu_().flatten()[:3]

    (row,) = al.compare_speed(Views(), Views(), torch.randn(4, 8), (4,))
    # The sum, and the copy that flatten makes of what is transposed.
    assert row.bytes == (2 * 32 * 4, 2 * 32 * 4)
