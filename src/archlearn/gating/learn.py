"""`Learn`: what is learnt at a layer, its width, its depth, both or nothing."""

from enum import Flag, auto


class Learn(Flag):
    """The two elements of the paper's "Layers Learnt" column."""

    NOTHING = 0
    WIDTH = auto()
    DEPTH = auto()
