"""Weights that other programs learnt: read as data, checked, never executed."""
