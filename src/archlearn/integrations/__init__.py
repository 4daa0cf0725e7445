"""Callbacks by which other people's training loops learn gates; each needs its own package."""
