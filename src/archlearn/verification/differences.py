"""Outputs of two models differ by a number, relative to their size; decisions by all or nothing."""

import math

import torch
from torch import Tensor

from archlearn.errors import CertificateError


def difference_of_numbers(one: list[Tensor], two: list[Tensor]) -> float:
    """Return the difference without decisions (argmax, y > 0): rounding turns them.

    In double precision they are compared.
    """
    pairs = [p for p in zip(one, two, strict=True) if not all(map(_is_decision, p))]
    return difference([a for a, _ in pairs], [b for _, b in pairs])


def _is_decision(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex())


def difference(one: list[Tensor], two: list[Tensor]) -> float:
    """Return the largest difference between outputs, relative to their size.

    Raises:
        CertificateError: If they cannot be compared.
    """
    if len(one) != len(two):
        raise CertificateError(f"one model returns {len(one)} tensors, the other {len(two)}")
    worst = 0.0
    for a, b in zip(one, two, strict=True):
        if a.shape != b.shape:
            raise CertificateError(f"outputs of shape {tuple(a.shape)} and {tuple(b.shape)}")
        if a.is_complex() and b.is_complex():
            a, b = (torch.view_as_real(each.resolve_conj()) for each in (a, b))
        worst = max(worst, _relative(a, b.to(a.dtype) if b.is_floating_point() else b))
    return worst


def _relative(a: Tensor, b: Tensor) -> float:
    if not (a.is_floating_point() and b.is_floating_point()):
        return 0.0 if a.dtype is b.dtype and torch.equal(a, b) else float("inf")
    if a.numel() == 0 or torch.equal(a, b):
        return 0.0
    same = (a.isnan() & b.isnan()) | (a == b)
    gap = float(torch.where(same, torch.zeros_like(a), a - b).abs().max())
    if not math.isfinite(gap):
        return float("inf")
    size = float(torch.where(a.isfinite(), a, torch.zeros_like(a)).abs().max())
    return gap / max(size, torch.finfo(a.dtype).tiny)
