"""Figure 3b is met by correlations that keep their bounds, and by no others."""

import math

import pytest

from archlearn_paper.experiments.figure_3b import check


@pytest.mark.parametrize(
    ("neurons", "error", "met"),
    [
        (0.9, 0.01, [True, True]),
        (0.89, -0.01, [False, False]),
        (1.0, 0.0, [True, False]),
        (math.nan, math.nan, [False, False]),
    ],
)
def test_bounds_are_kept_as_they_are_written(neurons: float, error: float, met: list[bool]) -> None:
    found = {"neurons": neurons, "third_layer": neurons, "error": error}
    checks = check({"spearman": found, "spearman_of_runs": found})
    assert [each.bound for each in checks] == ["≥ 0.9", "≥ 0.9", "> 0"]
    assert [each.met for each in checks] == [met[0], *met]
