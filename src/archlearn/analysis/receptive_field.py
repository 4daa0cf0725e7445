"""How small an image may be so that every kernel weight still takes part."""

import math
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_ADAPTIVE = "adaptive_"


class KernelCoverage(TorchFunctionMode):
    """Sees while a model runs how much smaller its images may be.

    A weight of a convolution has a part in the result if it meets an element of the map, and
    not the padding only; behind an adaptive pool, if the pool does not repeat elements.

    Attributes:
        shrink: The factor by which each map could be smaller; infinite if none was seen.
        is_met: Whether every weight had a part in the result, at the sizes that were seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shrink = math.inf
        self.is_met = True

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _CONVOLUTIONS:
            self.note_convolution(dict(zip(_ARGUMENTS, args, strict=False)) | given)
        elif name.startswith(_ADAPTIVE) and len(args) > 1:
            self._note_adaptive(args[0], args[1])
        return func(*args, **given)

    def note_module(self, module: nn.Module, x: Tensor) -> None:
        """Take note of a convolution that is called on `x`; of any other layer nothing."""
        options = {name: getattr(module, name, None) for name in ("stride", "padding", "dilation")}
        if options["stride"] is not None:
            self.note_convolution({"input": x, "weight": module.weight, **options})

    def note_convolution(self, given: dict[str, Any]) -> None:
        """Take note of a convolution with the given arguments."""
        weight: Tensor = given["weight"]
        n_space = weight.dim() - 2
        steps = _each(given.get("stride", 1), n_space)
        holes = _each(given.get("dilation", 1), n_space)
        pads = _pads(given.get("padding", 0), weight, holes)
        for i, size in enumerate(given["input"].shape[-n_space:]):
            line = weight.shape[2 + i], steps[i], pads[i], holes[i]
            self.is_met &= _meets_all(size, *line)
            least = _least_size(size, *line)
            self.shrink = min(self.shrink, size / least)

    def _note_adaptive(self, pooled: Tensor, output_size: Any) -> None:
        n_space = len(output_size) if isinstance(output_size, tuple | list) else pooled.dim() - 2
        wanted = _each(output_size, n_space)
        for size, least in zip(pooled.shape[-n_space:], wanted, strict=True):
            self.is_met &= size >= (least or 1)
            self.shrink = min(self.shrink, size / (least or size))


def _least_size(size: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    """Return the smallest map on which every weight of a line meets an element."""
    first = max(1, dilation * (kernel - 1) + 1 - 2 * pad)
    sizes = (n for n in range(first, size) if _meets_all(n, kernel, stride, pad, dilation))
    return next(sizes, size)


def _meets_all(size: int, kernel: int, stride: int, pad: int, dilation: int) -> bool:
    """Return whether every weight of a line meets an element of a map."""
    starts = range(-pad, size + pad - dilation * (kernel - 1), stride)
    return all(any(0 <= s + dilation * k < size for s in starts) for k in range(kernel))


def _each(value: Any, n: int) -> list[Any]:
    return list(value) * (n // len(value)) if isinstance(value, tuple | list) else [value] * n


def _pads(padding: Any, weight: Tensor, holes: list[int]) -> list[int]:
    if padding == "same":
        return [hole * (size - 1) // 2 for hole, size in zip(holes, weight.shape[2:], strict=True)]
    return _each(0 if padding == "valid" else padding, weight.dim() - 2)
