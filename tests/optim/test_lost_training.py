"""A run whose budget cost it what it had learnt does not end without a word."""

import logging

import pytest

from archlearn.optim.lost_training import warn_of_lost_training


@pytest.mark.parametrize(
    ("losses", "is_lost"),
    [
        ([2.3, 0.4, 0.2, 1.9], True),
        ([2.3, 0.4, 0.2, 0.3], False),  # the budget costs something
        ([2.3, 0.01, 0.0005, 0.01], False),  # far above in parts, and next to nothing
        ([0.10, 0.09, 0.11], False),  # a pretrained network at rest
        ([0.10, 0.09, 1.50], True),
        ([2.3], False),
        ([], False),
    ],
)
def test_a_loss_far_above_its_lowest_at_the_end_is_told(
    losses: list[float], is_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert warn_of_lost_training(losses) is is_lost
    assert ("ask for a larger budget" in caplog.text) is is_lost
