"""Built-in networks by name, pretrained weights, and users' own networks."""

from archlearn import lazy_names

__getattr__, __all__ = lazy_names(__name__, __file__)
