"""torchvision imports beside a torch that it was not built for.

The classification models are plain Python, but `import torchvision` also describes two compiled
operations of its detection models. Where those are missing, declaring them is enough.
"""

import sys
from types import ModuleType

import torch

_MISSING = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_models() -> ModuleType:
    """Return `torchvision.models`.

    Raises:
        ImportError: If torchvision is not installed.
    """
    try:
        import torchvision.models as models
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in _MISSING:
            torch.library.define(f"torchvision::{name}", _SCHEMA)
        import torchvision.models as models
    return models


def classification_models() -> list[str]:
    """Return the names of all classification models, in alphabetical order."""
    models = import_models()
    return models.list_models(module=models)
