"""Factories of layers, so that every network built has layers of its own."""

from collections.abc import Callable

from torch import nn


def conv(n_in: int, n_out: int, size: int = 3, stride: int = 1) -> Callable[[], nn.Module]:
    """Return a factory of convolutions that keep the image's size (before the stride)."""
    return lambda: nn.Conv2d(n_in, n_out, size, stride, padding=size // 2)


def linear(n_in: int, n_out: int) -> Callable[[], nn.Module]:
    """Return a factory of fully connected layers."""
    return lambda: nn.Linear(n_in, n_out)


def norm(n: int) -> Callable[[], nn.Module]:
    """Return a factory of batch normalisations of images."""
    return lambda: nn.BatchNorm2d(n)


def chain(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return a factory of the layers one behind the other."""
    return lambda: nn.Sequential(*(layer() for layer in layers))
