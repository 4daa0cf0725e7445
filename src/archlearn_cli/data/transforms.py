"""Resizing and random augmentation of image batches on the training device.

So the images that are kept stay small, and a step costs the host nothing. Everything random
comes from torch's generator of that device, whose state a checkpoint holds.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Augment = Literal["no", "flip", "crop", "crop-flip", "pad-crop-flip"]
SMALLEST_CROP = 0.7
"""Side of the smallest window that is cut out, as a part of the image's side."""
PADDING = 1 / 8
"""Furthest that a padded image is shifted, as a part of its side: 4 pixels of 32."""


@dataclass(frozen=True, slots=True)
class ImageTransform:
    """How images come before the network.

    Attributes:
        side: Height and width they are scaled to; None leaves them as they are.
        augment: What is varied while learning, never while measuring: the part that is seen
            (a square window of 70 % to 100 % of the side), left and right, or both; or CIFAR's
            usual crop of the image padded by an eighth of its side, with left and right.
    """

    side: int | None = None
    augment: Augment = "no"

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of an example as the network sees it."""
        return shape if self.side is None else (*shape[:-2], self.side, self.side)

    def for_evaluation(self, images: Tensor) -> Tensor:
        """Return a batch as it is measured on."""
        return images if self.side is None else resize_images(images, self.side)

    def for_training(self, images: Tensor) -> Tensor:
        """Return a batch as it is learnt from, drawn anew each time."""
        if self.augment == "no":
            return self.for_evaluation(images)
        side = self.side or images.shape[-1]
        if self.augment == "pad-crop-flip":
            # Beyond the border lies the mean colour, as in He et al. (CVPR 2016).
            return crop_images(images, draw_shifted_crops(images), side, padding="zeros")
        return crop_images(images, draw_crops(images, self.augment), side)


def resize_images(images: Tensor, side: int) -> Tensor:
    """Return images of another side, bilinear; what becomes smaller is averaged first."""
    if images.shape[-2:] == (side, side):
        return images
    smaller = side < images.shape[-1]
    return F.interpolate(images, (side, side), mode="bilinear", antialias=smaller)


def draw_crops(images: Tensor, augment: Augment) -> Tensor:
    """Return a window for each image as the map from the new frame to the old, n x 2 x 3."""
    zoom = images.new_ones(len(images))
    if augment in ("crop", "crop-flip"):
        zoom = SMALLEST_CROP + (1 - SMALLEST_CROP) * torch.rand_like(zoom)
    # Coordinates run from -1 to 1, so a window of part z can move by 1 - z either way.
    right, low = ((2 * torch.rand_like(zoom) - 1) * (1 - zoom) for _ in range(2))
    flip = augment in ("flip", "crop-flip")
    return _windows(zoom, right, low, _draw_signs(zoom) if flip else torch.ones_like(zoom))


def draw_shifted_crops(images: Tensor) -> Tensor:
    """Return for each image a window of its size, shifted by whole pixels, half turned round."""
    zoom = images.new_ones(len(images))
    side = images.shape[-1]
    most = round(side * PADDING)
    pixels = (((2 * most + 1) * torch.rand_like(zoom)).floor() - most for _ in range(2))
    right, low = (2 * shift / side for shift in pixels)
    return _windows(zoom, right, low, _draw_signs(zoom))


def _draw_signs(like: Tensor) -> Tensor:
    return torch.where(torch.rand_like(like) < 0.5, -1.0, 1.0)


def _windows(zoom: Tensor, right: Tensor, low: Tensor, sign: Tensor) -> Tensor:
    nothing = torch.zeros_like(zoom)
    across = torch.stack([zoom * sign, nothing, right], 1)
    down = torch.stack([nothing, zoom, low], 1)
    return torch.stack([across, down], 1)


def crop_images(
    images: Tensor, windows: Tensor, side: int, padding: Literal["border", "zeros"] = "border"
) -> Tensor:
    """Return what each window shows, scaled to a side; beyond the border the edge goes on."""
    # Windows are upright, so that rows and columns lie apart: `affine_grid` multiplies matrices.
    pixels = (2 * torch.arange(side, device=images.device, dtype=images.dtype) + 1) / side - 1
    across, down = (windows[:, i, i, None] * pixels + windows[:, i, 2, None] for i in range(2))
    grid = torch.stack(torch.broadcast_tensors(across[:, None, :], down[:, :, None]), -1)
    return F.grid_sample(images, grid, padding_mode=padding, align_corners=False)
