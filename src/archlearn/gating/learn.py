"""`Learn`: what is learnt at a layer: its width, its heads, its depth or nothing."""

from enum import Flag, auto


class Learn(Flag):
    """The two elements of the paper's "Layers Learnt" column, and whole heads.

    In attention WIDTH closes whole heads, if there are four or more, and channels within them,
    HEADS whole heads only, however few there are.
    """

    NOTHING = 0
    WIDTH = auto()
    DEPTH = auto()
    HEADS = auto()
