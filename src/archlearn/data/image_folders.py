"""A folder of images, one folder a class."""

from pathlib import Path

from archlearn.data.dataset import carve_test
from archlearn.data.dataset_building import Examples
from archlearn.data.image_listing import Reading, list_classes, list_images
from archlearn.data.images import read_images
from archlearn.errors import DataError

DEFAULT_SIDE = 64
_TEST_SHARE = 0.2


def load_folder(folder: Path, reading: Reading) -> Examples:
    """Return the images of a folder, made square, in red, green and blue.

    With `train` and `test` (or `val`) inside, those are the parts; else a fifth is set apart.

    Raises:
        DataError: If there is nothing to read, or an image is broken; it is named.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the folder that holds one folder a class")
    side = reading.side or DEFAULT_SIDE
    test_folder = next((folder / n for n in ("test", "val") if (folder / n).is_dir()), None)
    if (folder / "train").is_dir() and test_folder is not None:
        classes = list_classes(folder / "train")
        train = read_images(list_images(folder / "train", classes, side), reading)
        test = read_images(list_images(test_folder, classes, side), reading)
    else:
        everything = read_images(list_images(folder, list_classes(folder), side), reading)
        train, test = carve_test(everything, _TEST_SHARE)
    return Examples(name=folder.name, source=f"folder {folder}", train=train, test=test)
