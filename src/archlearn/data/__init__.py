"""Data: every set ends as tensors in memory, in three splits, ready to be normalised."""
