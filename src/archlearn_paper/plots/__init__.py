"""Figures of the paper's experiments."""
