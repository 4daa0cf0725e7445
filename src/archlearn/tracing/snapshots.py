"""The numbers of many tensors are compared, and put back, at once.

On a GPU each comparison that Python waits for takes longer than all the numbers do.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Snapshot:
    """The numbers that tensors have at one time."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self.versions = [_version(tensor) for tensor in tensors]
        self.shapes: dict[int, torch.Size] = {}
        self.alike: dict[Any, list[int]] = defaultdict(list)
        self.apart: dict[int, Tensor] = {}
        with torch.no_grad():
            for place, tensor in enumerate(tensors):
                if _is_plain(tensor):
                    self.alike[tensor.device, tensor.dtype].append(place)
                    self.shapes[place] = tensor.shape
                else:
                    self.apart[place] = tensor.detach().clone()
            self.joined = {key: self._join(places) for key, places in self.alike.items()}

    def find_written(self) -> int | None:
        """Return the place of a tensor that was written to since, as far as torch counts that."""
        for place, tensor in enumerate(self.tensors):
            if _version(tensor) != self.versions[place]:
                return place
        return None

    @torch.no_grad()
    def put_back_(self) -> None:
        """Let all tensors have the numbers that they had."""
        for key, places in self.alike.items():
            numbers = self.joined[key]
            # A batch norm moves its statistics, and `x.data` is written to, past all versions.
            if self._is_written(places) or not holds(self._join(places), numbers):
                sizes = [self.shapes[place].numel() for place in places]
                for place, part in zip(places, numbers.split(sizes), strict=True):
                    self._put_back_one_(place, part.view(self.shapes[place]))
        for place, numbers in self.apart.items():
            self._put_back_one_(place, numbers)
        self.versions = [_version(tensor) for tensor in self.tensors]

    def _is_written(self, places: list[int]) -> bool:
        return any(_version(self.tensors[place]) != self.versions[place] for place in places)

    def _put_back_one_(self, place: int, numbers: Tensor) -> None:
        tensor = self.tensors[place]
        if self._is_written([place]) or not holds(tensor, numbers):
            # The former may switch gradients on.
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                tensor.copy_(numbers)

    def _join(self, places: list[int]) -> Tensor:
        return torch.cat([self.tensors[place].reshape(-1) for place in places])


def holds(tensor: Tensor, numbers: Tensor) -> bool:
    """Return whether a tensor has these numbers, as far as they can be compared."""
    try:
        return torch.equal(tensor, numbers)
    except RuntimeError:  # sparse tensors, rare dtypes, and those on the meta device
        return True


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor's numbers can be joined with those of others."""
    is_dense = tensor.layout is torch.strided and not tensor.is_nested
    return type(tensor) is Tensor and is_dense and not tensor.is_meta and not tensor.is_quantized


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
