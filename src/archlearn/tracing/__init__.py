"""A model's `forward` becomes torch.fx graphs that compute the same."""
