"""Loading checks a file from the outside in, and builds nothing before all of it is checked."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import safetensors
import torch
from torch import nn

from archlearn.errors import FileError
from archlearn.serialization.composite_layers import merge_classes
from archlearn.serialization.decoding import fill_, rebuild
from archlearn.serialization.file_format import ModelFile, open_safetensors
from archlearn.serialization.layer_registry import LayerClass
from archlearn.serialization.schema import Description
from archlearn.serialization.stored_certificates import restore_certificate_


@torch.inference_mode(False)
def load(
    path: str | PathLike[str], *, modules: Mapping[str, LayerClass] | None = None
) -> nn.Module:
    """Return the model that `save` wrote, on the CPU, as a plain `nn.Module`.

    Parameters have the names, the dtype and the `requires_grad` that they had; tied ones are
    tied again. Nothing in the file is executed: it can only name operations and layers that
    this package lists, and those given here.

    Args:
        path: The file.
        modules: Your own leaf classes, under the names that were given to `save`.

    Raises:
        FileError: If the file is truncated, foreign, of a later version, not allowed, or beyond
            one of the limits in `archlearn.serialization.limits`.
    """
    path = Path(path)
    if not path.is_file():
        raise FileError(
            f"cannot load {str(path)!r}: there is no such file; give a path that save wrote"
        )
    try:
        return _load(path, merge_classes(modules))
    except FileError as error:
        raise FileError(f"cannot load {str(path)!r}: {error}") from error
    except RecursionError:
        raise FileError(f"cannot load {str(path)!r}: its description is nested too deep") from None
    except OSError as error:
        raise FileError(f"cannot load {str(path)!r}: {error.strerror}") from error
    except safetensors.SafetensorError as error:
        raise FileError(
            f"cannot load {str(path)!r}: it is truncated, or not a safetensors file ({error}); "
            "copy it again, or save the model again with archlearn.save"
        ) from error


def _load(path: Path, modules: Mapping[str, LayerClass]) -> nn.Module:
    with open_safetensors(path) as handle:
        file = ModelFile(handle)
        file.check_version()
        description = Description.from_json(file.metadata.get("description", ""))
        file.check_tensors(description.tensors)
        model = rebuild(description, modules)
        fill_(
            model, description, {entry.name: file.read(entry.name) for entry in description.tensors}
        )
    restore_certificate_(model, file.metadata.get("certificate"))
    return model
