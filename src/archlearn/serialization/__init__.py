"""A model's file is tensors and a description of its graph: data, never code.

Nothing in a file is executed or imported. Operations and layers are looked up by name in lists
that this package holds, and every name, shape and number is checked before a model is built.
"""

from archlearn.serialization.loading import load
from archlearn.serialization.saving import save

__all__ = ["load", "save"]
