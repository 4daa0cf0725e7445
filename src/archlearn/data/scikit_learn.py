"""Two data sets that scikit-learn carries, for a machine without a network."""

import torch
import torch.nn.functional as F

from archlearn.data.dataset import Split, carve_test
from archlearn.data.dataset_building import Examples
from archlearn.errors import DataError

_TEST_SHARE = 0.2
_DIGITS_TOP = 16


def load_digits(side: int | None = None) -> Examples:
    """Return 1,797 handwritten digits of 8 x 8 pixels, or enlarged to `side` x `side`."""
    arrays = _sklearn("load_digits")
    images = torch.from_numpy(arrays["images"]).float().unsqueeze(1) * (255.0 / _DIGITS_TOP)
    if side is not None:
        images = F.interpolate(images, size=(side, side), mode="bilinear", align_corners=False)
    inputs = images.round().clamp(0, 255).to(torch.uint8)
    targets = torch.from_numpy(arrays["target"]).long()
    train, test = carve_test(Split(inputs, targets), _TEST_SHARE)
    return Examples(name="digits", source="scikit-learn", train=train, test=test)


def load_diabetes() -> Examples:
    """Return 442 patients: ten measurements, and the progress of the disease to predict."""
    arrays = _sklearn("load_diabetes")
    inputs = torch.from_numpy(arrays["data"]).float()
    targets = torch.from_numpy(arrays["target"]).float().unsqueeze(1)
    train, test = carve_test(Split(inputs, targets), _TEST_SHARE)
    return Examples(
        name="diabetes", source="scikit-learn", train=train, test=test, task="regression"
    )


def _sklearn(loader: str):
    try:
        from sklearn import datasets
    except ImportError as error:
        raise DataError(
            f"{loader} needs scikit-learn, which is not installed; pip install 'archlearn[cli]'"
        ) from error
    return getattr(datasets, loader)()
