"""Data sets by name, folders of images, and users' own data."""

from archlearn import lazy_names

__getattr__, __all__ = lazy_names(__name__, __file__)
