"""Who is first in a comparison, how strengths are chosen, and the figure of it."""

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.collections import LineCollection

from archlearn import InputError
from archlearn_paper.bounds import Check
from archlearn_paper.comparison import FULL_COMPARISON, QUICK_COMPARISON, choose_setup, find_methods
from archlearn_paper.comparison.methods import (
    CALIBRATION_SEED,
    METHODS,
    OURS,
    SCRATCH,
    ComparisonSetup,
    Method,
    choose_strength,
    name_first,
    name_trial,
)
from archlearn_paper.comparison.ranking import LARGE, MethodRanking, name_result
from archlearn_paper.comparison.stages import LATER_SEEDS, ComparisonStages
from archlearn_paper.experiment import FinishedRun, Row, Scale
from archlearn_paper.plots import draw_comparison
from paper.tests.making import make_row, rows_of
from tests.cli.commands import run_here

BUDGET = 1000
BY_NAME: dict[str, Method] = {each.name: each for each in METHODS}
LASSO, SVD = BY_NAME["l1 diagonal"], BY_NAME["svd"]
VERDICT = MethodRanking((BUDGET, 2000), METHODS)


def results(method: str, accuracies: list[float], budget: int = BUDGET) -> list[Row]:
    row = name_result(method, budget)
    return [
        make_row(row, seed, test_accuracy=accuracy / 100, parameters=budget, seconds=2.0)
        for seed, accuracy in enumerate(accuracies)
    ]


def test_ours_must_be_ahead_of_the_best_rival_seed_by_seed() -> None:
    rivals = results("svd", [98.0, 98.1, 98.2]) + results("fastfood", [99.0, 98.5, 98.9])
    derived = VERDICT.derive(results(OURS, [99.2, 98.8, 99.2]) + rivals)
    assert derived["ranks"][str(BUDGET)] == [OURS, "fastfood", "svd"]
    ahead, budgets = VERDICT.check(derived)
    assert ahead.what.startswith("archlearn is ahead of fastfood at 1,000")
    # by 0.2, 0.3 and 0.3 points: t = 8, p = 0.0153 with two degrees of freedom
    assert ahead.measured.startswith("0.267 − 0.033 points, 3 seeds, p = 0.015")
    assert ahead.met
    assert budgets.met


@pytest.mark.parametrize("ours", [[99.3, 98.5, 99.0], [98.9, 98.4, 98.8], [99.1]])
def test_a_lead_of_a_few_seeds_or_a_lag_is_not_enough(ours: list[float]) -> None:
    derived = VERDICT.derive(results(OURS, ours) + results("svd", [99.0, 98.5, 98.9]))
    assert not VERDICT.check(derived)[0].met


def test_a_lead_is_corrected_for_the_number_of_budgets() -> None:
    lead, same = [99.2, 98.8, 99.2], [99.0, 98.5, 98.9]
    rows = results(OURS, lead) + results("svd", same)
    more = results(OURS, lead, 2000) + results("svd", lead, 2000)
    first, second, _ = VERDICT.check(VERDICT.derive(rows + more))
    assert "p = 0.031 corrected for 2 budgets" in first.measured
    assert first.met
    assert not second.met


def test_kin_are_no_rivals() -> None:
    kin = results(SCRATCH, [99.9])
    derived = VERDICT.derive(results(OURS, [99.0]) + results("svd", [98.0]) + kin)
    assert "ahead of svd" in VERDICT.check(derived)[0].what
    assert derived["ranks"][str(BUDGET)][0] == SCRATCH


def test_a_network_off_its_budget_is_named() -> None:
    row = make_row(name_result(OURS, BUDGET), parameters=1051)
    (budgets,) = VERDICT.check(VERDICT.derive([row]))
    assert not budgets.met
    assert budgets.measured == "archlearn at 1,000"


def test_seconds_are_those_of_all_parts() -> None:
    iterative = name_result("torch-pruning, iterative", BUDGET)
    rows = [
        make_row(LARGE, seconds=10.0),
        make_row(f"{iterative}, round 1", seconds=3.0),
        make_row(f"{iterative}, round 2", seconds=4.0),
        *results("torch-pruning, iterative", [99.0]),
        make_row(name_first(LASSO, 1e-3), seconds=6.0),
        make_row(name_first(LASSO, 2e-3), seconds=8.0),
        *results("l1 diagonal", [99.0]),
        *results("even widths from scratch", [99.0]),
    ]
    found = VERDICT.derive(rows)["results"]
    assert found["torch-pruning, iterative"][str(BUDGET)]["seconds"] == 10 + 3 + 4 + 2
    # one of the two first parts belongs to the run: 7 on average
    assert found["l1 diagonal"][str(BUDGET)]["seconds"] == 7 + 2
    assert found["even widths from scratch"][str(BUDGET)]["seconds"] == 2


def test_the_search_is_counted_apart() -> None:
    trial = make_row(name_first(LASSO, 1e-3), CALIBRATION_SEED, epochs=24)
    ended = make_row(name_trial(LASSO, 1e-3, BUDGET), CALIBRATION_SEED, epochs=36)
    begun = make_row(name_first(LASSO, 1e-3), epochs=24)
    whole = make_row(name_trial(BY_NAME[OURS], 1.0, BUDGET), CALIBRATION_SEED, epochs=60)
    large = make_row(LARGE, CALIBRATION_SEED, epochs=24)
    thin = make_row(name_trial(BY_NAME["svd"], 1.0, BUDGET), CALIBRATION_SEED, epochs=36)
    spent = [trial, ended, begun, whole, large, thin]
    derived = VERDICT.derive([*spent, *results("l1 diagonal", [99.0])])
    assert derived["search"]["svd"] == {"runs": 2, "epochs": 60}
    assert derived["search"]["l1 diagonal"] == {"runs": 2, "epochs": 60}
    assert derived["search"][OURS] == {"runs": 1, "epochs": 60}
    assert derived["search"]["taylor"] == {"runs": 0, "epochs": 0}
    assert rows_of(VERDICT.tabulate(derived)[1])[0][-1] == "2 runs, 60 epochs"


def test_the_table_marks_the_first_and_dashes_what_cannot_be() -> None:
    rows = results(OURS, [99.0, 99.2]) + results("svd", [98.0, 98.2])
    accuracies, costs, leads = VERDICT.tabulate(VERDICT.derive(rows))
    assert rows_of(leads) == [("svd", "1.000 ± 0.000", "–")]
    assert rows_of(accuracies) == [
        (OURS, "**99.10 ± 0.14**", "–"),
        ("svd", "98.10 ± 0.14", "–"),
    ]
    assert [row[2] for row in rows_of(costs)] == ["yes", "yes"]


def test_the_table_says_where_seeds_are_more_or_fewer_than_most_have() -> None:
    rows = results(OURS, [99.0, 99.2, 99.1]) + results("l0 gates", [98.0])
    rows += results("svd", [98.0, 98.2]) + results("taylor", [97.0, 97.2])
    accuracies, *_ = VERDICT.tabulate(VERDICT.derive(rows))
    assert [row[1] for row in rows_of(accuracies)] == [
        "**99.10 ± 0.10** (3 seeds)", "98.00 (1 seeds)", "97.10 ± 0.14", "98.10 ± 0.14",
    ]  # fmt: skip


def test_l0_must_have_a_strength_that_leaves_about_each_budget() -> None:
    def check(*sizes: int) -> Check:
        tried = [
            make_row(name_first(BY_NAME["l0 gates"], 1e-3), CALIBRATION_SEED, measured={"left": n})
            for n in sizes
        ]
        derived = VERDICT.derive([*tried, *results(OURS, [99.0, 99.2])])
        return VERDICT.check(derived)[-1]

    assert check(700, 1800).met
    assert check(700, 1800).measured == "700 for 1,000, 1,800 for 2,000"
    assert not check(1800).met


def test_a_comparison_in_which_nothing_reached_a_budget_is_none() -> None:
    with pytest.raises(InputError, match="reaches 1,000 or 2,000 parameters; ask for more"):
        VERDICT.derive([make_row(LARGE)])


SCALE = Scale(name="full", seeds=(0, 1), epochs=10)
CONTEST = ComparisonSetup(model="lenet", budgets=(BUDGET,), scale=SCALE)


def tried(method: Method, strength: float, accuracy: float, seed: int = CALIBRATION_SEED) -> Row:
    row = name_trial(method, strength, BUDGET)
    return make_row(row, seed, validation_accuracy=accuracy, test_accuracy=1 - accuracy)


def test_the_strength_that_is_best_on_validation_data_is_chosen() -> None:
    rows = [tried(LASSO, 1e-3, 0.98), tried(LASSO, 3e-2, 0.99), tried(SVD, 0.5, 0.9)]
    assert choose_strength(LASSO, BUDGET, rows) == 3e-2
    assert choose_strength(SVD, BUDGET, rows) == 0.5
    assert choose_strength(LASSO, 2000, rows) == 3e-3, "nothing was tried: the middle one"
    assert choose_strength(LASSO, BUDGET, [tried(LASSO, 1e-3, 0.9, seed=0)]) == 3e-3
    assert choose_strength(BY_NAME["taylor"], BUDGET, rows) == 1.0


def test_ours_lands_on_its_budget_in_one_run_of_all_epochs() -> None:
    stages = ComparisonStages("lenet", (BUDGET, 2000), [BY_NAME[OURS]])
    row = make_row(name_trial(BY_NAME[OURS], 0.5, BUDGET), CALIBRATION_SEED, validation_accuracy=1)
    done = [FinishedRun(row=row, path=Path("none"))]
    runs = {run.row: run for run in stages.stages()[2](replace(SCALE, seeds=(3,)), done)}
    assert set(runs) == {f"{OURS} @ 1000", f"{OURS} @ 2000"}
    settings = runs[f"{OURS} @ 1000"].settings
    assert settings.gates.budget == ("parameters=1000",)
    assert settings.gates.gate_schedule == ("cost_power=0.5",)
    assert settings.epochs == SCALE.epochs
    plain = CONTEST.plain(3, SCALE.epochs)
    assert (settings.optimizer, settings.model) == (plain.optimizer, plain.model)


def test_the_first_three_at_each_budget_have_more_seeds() -> None:
    names = (OURS, "taylor", "neuron pruning", "svd")
    stages = ComparisonStages("lenet", (BUDGET,), [BY_NAME[name] for name in names])
    rows = [
        row for name, a in zip(names, (99, 97, 96, 98), strict=True) for row in results(name, [a])
    ]
    done = [FinishedRun(row=row, path=Path("none")) for row in rows]
    *_, begin_more, _prune_more, _scratch = stages.stages()
    more = begin_more(replace(SCALE, seeds=(0,)), done)
    assert {(work.row, work.settings.seed) for work in more} == {
        (row, seed) for row in (LARGE, name_result(OURS, BUDGET)) for seed in LATER_SEEDS
    }
    assert stages._find_first(BUDGET, done) == [BY_NAME[n] for n in (OURS, "taylor", "svd")]
    assert begin_more(replace(SCALE, seeds=(0,), points=1), done) == []


def test_epochs_are_the_same_in_total() -> None:
    assert (CONTEST.first_epochs, CONTEST.last_epochs) == (4, 6)
    assert CONTEST.plain(1, 6).epochs == 6
    assert CONTEST.plain(1, 6).validation == 0.0
    assert CONTEST.calibration().plain(CALIBRATION_SEED, 6).validation > 0


def test_what_was_typed_is_read() -> None:
    contest = choose_setup(
        model="lenet", budgets="5000, 300", seeds="3,4", data="fashion-mnist", epochs=9
    )
    scale = contest.scale
    assert contest.budgets == (5000, 300)
    assert (scale.seeds, scale.data, scale.epochs) == ((3, 4), "fashion-mnist", 9)
    with pytest.raises(InputError, match="write different numbers of parameters"):
        choose_setup(model="lenet", data="mnist", budgets="5k")
    with pytest.raises(InputError, match="give 2 at least"):
        choose_setup(model="lenet", data="mnist", epochs=1)
    assert [each.name for each in find_methods("svd; fastfood")] == ["svd", "fastfood"]
    with pytest.raises(InputError, match="there is no method 'svg'"):
        find_methods("svg")


def test_the_figure_has_errors() -> None:
    derived = VERDICT.derive(results(OURS, [99.0]) + results(OURS, [99.5], 2000))
    (axes,) = draw_comparison(derived).axes
    assert list(axes.get_lines()[0].get_xdata()) == [1000, 2000]
    assert list(axes.get_lines()[0].get_ydata()) == pytest.approx([1.0, 0.5])
    assert axes.get_ylabel().startswith("test error")


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


def test_the_help_states_the_epochs_that_are_run(tmp_path: Path) -> None:
    _, output = run_here(["compare", "--help"], tmp_path)
    assert f"[default: {FULL_COMPARISON.epochs}, or {QUICK_COMPARISON.epochs} if quick]" in output
