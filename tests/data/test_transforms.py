"""Images are scaled and varied on the device, and measured as they are."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archlearn import SettingsError
from archlearn_cli.data import Dataset, Examples, Split, build_dataset
from archlearn_cli.data.transforms import (
    SMALLEST_CROP,
    ImageTransform,
    crop_images,
    draw_crops,
    resize_images,
)
from archlearn_cli.training import metrics, objective_of


def images(n: int = 8, side: int = 12) -> Tensor:
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(0))


def dataset(framing: ImageTransform, shape: tuple[int, ...] = (3, 12, 12)) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (20, *shape), generator=generator, dtype=torch.uint8)
    split = Split(inputs, torch.arange(20) % 2)
    examples = Examples(name="x", source="x", train=split, test=split)
    return build_dataset(examples, validation_share=0.2, framing=framing)


def windows(across: list[float], down: list[float]) -> Tensor:
    return torch.tensor([[across, down]], dtype=torch.float32)


def test_whole_window_shows_the_image_as_it_is() -> None:
    whole = windows([1, 0, 0], [0, 1, 0])
    torch.testing.assert_close(crop_images(images(1), whole, 12), images(1), atol=1e-5, rtol=0)


def test_whole_window_scales_as_measuring_does() -> None:
    whole = windows([1, 0, 0], [0, 1, 0])
    enlarged = crop_images(images(1), whole, 31)
    torch.testing.assert_close(enlarged, resize_images(images(1), 31), atol=1e-5, rtol=0)


def test_half_window_in_a_corner_shows_that_quarter() -> None:
    corner = windows([0.5, 0, -0.5], [0, 0.5, 0.5])
    seen = crop_images(images(1), corner, 6)
    torch.testing.assert_close(seen, images(1)[:, :, 6:, :6], atol=1e-5, rtol=0)


def test_negative_window_turns_left_and_right_alone() -> None:
    turned = windows([-1, 0, 0], [0, 1, 0])
    seen = crop_images(images(1), turned, 12)
    torch.testing.assert_close(seen, images(1).flip(3), atol=1e-5, rtol=0)


def test_windows_lie_within_the_image_and_differ() -> None:
    torch.manual_seed(0)
    drawn = draw_crops(images(500), "crop-flip")
    zoom, shift = drawn[:, 1, 1], drawn[:, :, 2]
    assert (drawn[:, 0, 0].abs() == zoom).all()
    assert zoom.min() >= SMALLEST_CROP
    assert zoom.max() <= 1
    assert ((shift.abs() + zoom[:, None]) <= 1 + 1e-6).all()
    assert zoom.std() > 0.05
    assert shift.std(0).min() > 0.05
    share = (drawn[:, 0, 0] < 0).float().mean()
    assert 0.4 < share < 0.6


def test_padded_crop_moves_by_whole_pixels_and_shows_zeros_beyond_the_border() -> None:
    torch.manual_seed(0)
    side, most = 16, 2
    originals = images(400, side) + 5.0
    seen = ImageTransform(augment="pad-crop-flip").for_training(originals)
    padded = F.pad(originals, (most, most, most, most))
    found: set[tuple[int, int, bool]] = set()
    for number in range(len(originals)):
        matches = [
            (down, across, turned)
            for down in range(2 * most + 1)
            for across in range(2 * most + 1)
            for turned in (False, True)
            if torch.allclose(
                seen[number].flip(2) if turned else seen[number],
                padded[number, :, down : down + side, across : across + side],
                atol=1e-4,
            )
        ]
        assert len(matches) == 1
        found.update(matches)
    assert len(found) == 2 * (2 * most + 1) ** 2, "every place and both directions are drawn"


@pytest.mark.parametrize("augment", ["flip", "crop"])
def test_what_is_not_asked_for_is_not_varied(augment: str) -> None:
    torch.manual_seed(0)
    drawn = draw_crops(images(50), augment)  # pyright: ignore[reportArgumentType]
    turned = (drawn[:, 0, 0] < 0).any()
    zoomed = (drawn[:, 1, 1] < 1).any()
    assert (bool(turned), bool(zoomed)) == (augment == "flip", augment == "crop")


def test_learning_sees_varied_images_and_measuring_the_same_ones() -> None:
    data = dataset(ImageTransform(20, "crop-flip"))
    assert data.input_shape == (3, 20, 20)
    objective, raw = objective_of(data), data.train.inputs[:4]
    torch.manual_seed(1)
    first, second = objective.training_inputs(raw), objective.training_inputs(raw)
    assert first.shape == (4, 3, 20, 20)
    assert not torch.equal(first, second)
    assert torch.equal(objective.inputs(raw), objective.inputs(raw))
    torch.manual_seed(1)
    assert torch.equal(objective.training_inputs(raw), first)


def test_without_framing_nothing_is_drawn() -> None:
    data = dataset(ImageTransform())
    objective, raw = objective_of(data), data.train.inputs[:4]
    before = torch.get_rng_state()
    assert torch.equal(objective.training_inputs(raw), objective.inputs(raw))
    assert torch.equal(torch.get_rng_state(), before)


def test_smaller_images_are_averages() -> None:
    board = torch.zeros(1, 1, 8, 8)
    board[..., ::2, ::2] = 1
    assert resize_images(board, 2).sub(0.25).abs().max() < 0.1


def test_framing_is_for_images_alone() -> None:
    with pytest.raises(SettingsError, match=r"resize 20 .* has shape \(7,\); both are for images"):
        dataset(ImageTransform(20), (7,))


def test_large_images_are_scored_fewer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Net(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return x.mean((2, 3))[:, :2]

    data = dataset(ImageTransform(20))
    monkeypatch.setattr(metrics, "_MOST_NUMBERS", {"cpu": 7 * 3 * 20 * 20})
    score = metrics.evaluate(Net(), data.test, objective_of(data))
    assert seen == [7, 7, 6]
    assert score.n_examples == 20
