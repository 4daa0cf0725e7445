"""The public names, and where each is; `archlearn.lazy_names` reads this list."""

from archlearn_cli.data.dataset import Dataset as Dataset
from archlearn_cli.data.dataset import Examples as Examples
from archlearn_cli.data.dataset import Split as Split
from archlearn_cli.data.dataset import build_dataset as build_dataset
from archlearn_cli.data.dataset import carve_test as carve_test
from archlearn_cli.data.dataset import carve_validation as carve_validation
from archlearn_cli.data.dataset_registry import load_examples as load_examples
from archlearn_cli.data.file_cache import no_progress as no_progress
