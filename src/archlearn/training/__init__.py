"""Training: data, settings, the loop, checkpoints and the record of a run."""
