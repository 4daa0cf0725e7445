"""`archlearn learn` as a library: settings, one training run, its evaluation."""

from archlearn import lazy_names

__getattr__, __all__ = lazy_names(__name__, __file__)
