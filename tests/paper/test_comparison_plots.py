"""The figure of a comparison shows what is near the least error; the table has the rest."""

import pytest
from matplotlib.collections import LineCollection

from archlearn_paper.comparison.methods import OURS
from archlearn_paper.plots.paper_figures import draw_comparison, read_curves
from tests.paper.test_ranking import VERDICT, results


def test_the_figure_has_errors() -> None:
    derived = VERDICT.derive(results(OURS, [99.0]) + results(OURS, [99.5], 2000))
    (curve,) = read_curves(derived)
    assert curve.parameters == (1000, 2000)
    assert curve.errors == pytest.approx((1.0, 0.5))
    assert draw_comparison(derived).axes[0].get_ylabel().startswith("test error")


def test_errors_far_above_the_least_are_left_to_the_table() -> None:
    near = VERDICT.derive(results(OURS, [99.5]) + results("svd", [98.5], 2000))
    far = VERDICT.derive(results(OURS, [99.5]) + results("svd", [40.0], 2000))
    assert draw_comparison(near).axes[0].get_ylim()[1] > 1.5
    figure = draw_comparison(far)
    # three times 0.5 %
    assert figure.axes[0].get_ylim()[1] == pytest.approx(1.5)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [OURS, "svd (above)"]


def test_the_spread_of_what_is_not_shown_does_not_cross_the_figure() -> None:
    derived = VERDICT.derive(results(OURS, [99.0, 99.4]) + results("svd", [10.0, 99.0], 2000))
    bars = [
        c for c in draw_comparison(derived).axes[0].collections if isinstance(c, LineCollection)
    ]
    tops = [path.vertices[:, 1].max() for each in bars for path in each.get_paths()]
    # ours: 0.8 and a deviation of 0.283; the mean of the other is 45.5
    assert tops == pytest.approx([1.083, 45.5], abs=1e-3)


def test_the_figure_is_ticked_at_the_budgets() -> None:
    derived = VERDICT.derive(results(OURS, [99.0]) + results(OURS, [99.5], 2000))
    assert draw_comparison(derived).axes[0].get_xticks().tolist() == [1000, 2000]
