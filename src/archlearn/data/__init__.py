"""Data sets by name, folders of images, and users' own data."""

from typing import TYPE_CHECKING

from archlearn import lazy_names

if TYPE_CHECKING:
    from archlearn.data.dataset import (
        Dataset,
        Examples,
        Split,
        build_dataset,
        carve_test,
        carve_validation,
    )
    from archlearn.data.dataset_registry import load_examples
    from archlearn.data.file_cache import no_progress

__all__ = [
    "Dataset",
    "Examples",
    "Split",
    "build_dataset",
    "carve_test",
    "carve_validation",
    "load_examples",
    "no_progress",
]

__getattr__ = lazy_names(
    __name__,
    {
        "archlearn.data.dataset": (
            "Dataset Examples Split build_dataset carve_test carve_validation"
        ),
        "archlearn.data.dataset_registry": "load_examples",
        "archlearn.data.file_cache": "no_progress",
    },
)
