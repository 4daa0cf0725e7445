"""What a gate computes: layers and functions on plain tensors."""
