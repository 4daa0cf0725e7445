"""Data sets by name, as tensors in memory in three splits."""
