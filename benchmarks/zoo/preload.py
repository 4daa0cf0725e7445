"""What most models need, imported once in the server that forks a process for each of them."""

import contextlib
import importlib

from benchmarks.torchvision_import import import_models

import_models()
for name in (
    "archlearn.surgery.compaction", "benchmarks.zoo.measure", "diffusers.models.modeling_utils",
    "segmentation_models_pytorch", "timm", "torch_pruning", "transformers.modeling_utils",
):  # fmt: skip
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
