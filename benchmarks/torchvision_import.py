"""torchvision imports beside a torch that it was not built for.

The classification models are plain Python, but `import torchvision` also describes two compiled
operations of its detection models. Where those are missing, declaring them is enough. Run as a
program, it says whether torchvision imports, and what to do if not.
"""

import sys
from importlib.metadata import version
from types import ModuleType

import torch

_MISSING = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_ADVICE = """\
torchvision {torchvision} does not import beside torch {torch}: {error}
It was built for another torch, and transformers and lightning, which import it, fail with it.
Install the build that goes with this torch, from the index that torch came from:
    pip install --no-deps --force-reinstall torchvision==...
or declare in your script, before anything imports torchvision, what is missing:
    import torch
    for name in {missing}:
        torch.library.define(f"torchvision::{{name}}", "{schema}")
The tests and benchmarks of archlearn do the latter."""


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


def explain_import() -> str:
    """Return what to do where torchvision does not import, or '' if it does or is not there."""
    try:
        import torchvision  # noqa: F401
    except ModuleNotFoundError:
        return ""
    except RuntimeError as error:
        return _ADVICE.format(
            torchvision=version("torchvision"),
            torch=torch.__version__,
            error=error,
            missing=_MISSING,
            schema=_SCHEMA,
        )
    return ""


if __name__ == "__main__":
    if said := explain_import():
        print(said, file=sys.stderr)
