"""The public names, and where each is; `archlearn.lazy_names` reads this list."""

from archlearn.data.dataset import Dataset as Dataset
from archlearn.data.dataset import Examples as Examples
from archlearn.data.dataset import Split as Split
from archlearn.data.dataset import build_dataset as build_dataset
from archlearn.data.dataset import carve_test as carve_test
from archlearn.data.dataset import carve_validation as carve_validation
from archlearn.data.dataset_registry import load_examples as load_examples
from archlearn.data.file_cache import no_progress as no_progress
