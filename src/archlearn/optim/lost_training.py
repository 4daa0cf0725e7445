"""Say so where a budget has cost a network most of what it had learnt."""

import logging
from collections.abc import Sequence

_FAR_ABOVE, _LOST = 2.0, 0.5
"""Told where the last loss is so many times the lowest, and so much of what was gained is lost."""
_log = logging.getLogger(__name__)


def warn_of_lost_training(losses: Sequence[float]) -> bool:
    """Log a warning if a run's training loss ends far above its lowest; return whether it does.

    Args:
        losses: Means over parts of the run, such as epochs, in order.
    """
    if not losses:
        return False
    first, lowest, last = losses[0], min(losses), losses[-1]
    is_lost = last > _FAR_ABOVE * lowest and last - lowest > _LOST * (first - lowest)
    if is_lost:
        _log.warning(
            "the training loss was %.3g at first, %.3g at best and is %.3g at the end: the budget "
            "has cost most of what the network had learnt; ask for a larger budget, train for more "
            "steps, or start from a smaller network",
            *(first, lowest, last),
        )
    return is_lost
