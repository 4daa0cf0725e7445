"""The numbers of each figure follow from the lines of a run."""

from pathlib import Path

import pytest

from archlearn_cli.reporting.figures import width_map
from archlearn_cli.reporting.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_percent,
    format_ratio,
    format_short_count,
)
from archlearn_cli.reporting.run_reader import RunRecord, read_run
from archlearn_cli.reporting.series import (
    N_BINS,
    count_gates,
    depth_lines,
    gap_lines,
    loss_lines,
    parameter_lines,
    score_lines,
    width_lines,
)
from tests.reporting.run_folders import write_lines

ROWS = [
    {
        "epoch": 0,
        "train_loss": None,
        "validation_loss": 2.5,
        "validation_accuracy": 0.125,
        "penalty": 0.5,
        "widths": {"a": 8, "b": 4, "out": 2},
        "linear": {"a": False, "b": False},
        "binarisation_gap": 0.45,
        "parameters": 100,
    },
    {
        "epoch": 1,
        "train_loss": 1.5,
        "validation_loss": 1.25,
        "validation_accuracy": 0.5,
        "penalty": 0.25,
        "widths": {"a": 6, "b": 4, "out": 2},
        "linear": {"a": True, "b": False},
        "binarisation_gap": 0.2,
        "parameters": 80,
    },
    {
        "epoch": 2,
        "train_loss": 0.75,
        "validation_loss": None,
        "validation_accuracy": 0.875,
        "penalty": 0.125,
        "widths": {"a": 2, "b": 4, "out": 2},
        "linear": {"a": True, "b": True},
        "binarisation_gap": 0.0,
        "parameters": 40,
    },
]


@pytest.fixture
def run(tmp_path: Path) -> RunRecord:
    (tmp_path / "config.toml").write_text('model = "mlp"\ntask = "classification"\n')
    write_lines(tmp_path / "metrics.jsonl", ROWS)
    return read_run(tmp_path)


def test_loss_leaves_out_what_was_not_measured(run: RunRecord) -> None:
    training, validation, penalty = loss_lines(run).lines
    assert (training.epochs, training.values) == ((1, 2), (1.5, 0.75))
    assert (validation.epochs, validation.values) == ((0, 1), (2.5, 1.25))
    assert penalty.values == (0.5, 0.25, 0.125)


def test_accuracy_gap_and_parameters_are_as_written(run: RunRecord) -> None:
    assert score_lines(run).lines[0].values == (0.125, 0.5, 0.875)
    assert gap_lines(run).lines[0].values == (0.45, 0.2, 0.0)
    assert parameter_lines(run).lines[0].values == (100, 80, 40)


def test_widths_are_shares_of_the_start_and_constant_layers_are_left_out(run: RunRecord) -> None:
    numbers = width_lines(run)
    (line,) = numbers.lines
    assert numbers.measure == "channels of a kept, of those at the start"
    assert line.label == "a"
    assert line.values == (1.0, 0.75, 0.25)


def test_the_line_of_a_layer_that_merges_ends_there(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('model = "mlp"\n')
    merged = {**ROWS[2], "widths": {"b": 3, "out": 2}}
    write_lines(tmp_path / "metrics.jsonl", [*ROWS[:2], merged])
    run = read_run(tmp_path)
    first, second = width_lines(run).lines
    assert (first.label, first.epochs, first.values) == ("a, merged", (0, 1), (1.0, 0.75))
    assert (second.label, second.values) == ("b", (1.0, 1.0, 0.75))
    assert depth_lines(run).lines[0].values == (3, 2, 1)
    assert width_lines(run).span == (0, 2)


def test_the_line_of_a_layer_whose_branch_closes_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('model = "mlp"\n')
    closed = {**ROWS[2], "widths": {"b": 3, "out": 2}, "linear": {"branch x": True}}
    write_lines(tmp_path / "metrics.jsonl", [*ROWS[:2], closed])
    assert width_lines(read_run(tmp_path)).lines[0].label == "a, left out"


def test_depth_counts_the_layers_that_are_not_linear(run: RunRecord) -> None:
    assert depth_lines(run).lines[0].values == (3, 2, 1)


def test_depth_is_empty_where_it_is_not_learnt(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('model = "mlp"\n')
    write_lines(tmp_path / "metrics.jsonl", [{**row, "linear": {}} for row in ROWS])
    assert depth_lines(read_run(tmp_path)).empty


def test_axis_is_stretched_only_for_high_accuracies(tmp_path: Path, run: RunRecord) -> None:
    assert score_lines(run).scale == "share"
    write_lines(tmp_path / "metrics.jsonl", [{**ROWS[1], "validation_accuracy": 0.97}])
    assert score_lines(read_run(tmp_path)).scale == "accuracy"


def test_regression_shows_the_error(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('model = "mlp"\n')
    write_lines(tmp_path / "metrics.jsonl", [{"epoch": 1, "validation_error": 2874.5}])
    numbers = score_lines(read_run(tmp_path))
    assert numbers.lines[0].values == (2874.5,)
    assert numbers.scale == "log"


def test_map_has_a_row_for_each_line_and_a_column_for_each_epoch(run: RunRecord) -> None:
    assert width_map(width_lines(run)) == ([0, 1, 2], [[1.0, 0.75, 0.25]])


def test_each_gate_falls_into_its_twentieth() -> None:
    line = {"epoch": 3, "width": {"a": [0.0, 0.04, 0.5, 1.0], "b": [0.97]}, "depth": {"a": 0.45}}
    (counts,) = count_gates([line])
    assert N_BINS == 20
    assert {place: n for place, n in enumerate(counts.bins) if n} == {0: 2, 10: 1, 19: 2}
    assert (counts.epoch, counts.n_gates) == (3, 5)


def test_a_gate_at_one_half_is_kept_and_undecided() -> None:
    (counts,) = count_gates([{"epoch": 0, "width": {"a": [0.5, 0.4999, 0.05, 0.95]}, "depth": {}}])
    assert counts.kept == 2
    assert counts.undecided == 2


def test_of_an_epoch_written_twice_the_later_line_holds() -> None:
    lines = [
        {"epoch": 1, "width": {"a": [0.2]}, "depth": {}},
        {"epoch": 0, "width": {"a": [0.55]}, "depth": {}},
        {"epoch": 1, "width": {"a": [0.9]}, "depth": {}},
    ]
    first, last = count_gates(lines)
    assert (first.epoch, last.epoch) == (0, 1)
    assert last.kept == 1


def test_a_gate_outside_its_range_is_counted_at_the_border() -> None:
    (counts,) = count_gates([{"epoch": 0, "width": {"a": [-0.01, 1.01]}, "depth": {}}])
    assert (counts.bins[0], counts.bins[-1]) == (1, 1)


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (64, "64"),
        (0.0003, "0.0003"),
        (0.99321, "0.9932"),
        (2874.3, "2,874"),
        (12345.6, "12,346"),
        (1e-10, "1 × 10⁻¹⁰"),
        (9.54e-07, "9.54 × 10⁻⁷"),
        (-3.3e-15, "-3.3 × 10⁻¹⁵"),
        (6.02e23, "6.02 × 10²³"),
        (9.9996e-6, "1 × 10⁻⁵"),
    ],
)
def test_any_number_keeps_the_digits_that_matter(value: float | None, text: str) -> None:
    assert plain(format_number(value)) == text


def test_counts_shares_and_sizes_carry_their_unit() -> None:
    assert format_count(431080) == "431,080"
    assert plain(format_percent(0.9932)) == "99.32 %"
    assert plain(format_bytes(76460)) == "76.5 kB"
    assert plain(format_bytes(340)) == "340 bytes"
    assert [format_short_count(n) for n in (9.0, 19115, 3.664e9)] == ["9", "19.1k", "3.66G"]


def test_rounding_up_moves_to_the_next_unit() -> None:
    assert format_short_count(999_999) == "1M"
    assert plain(format_bytes(999_999)) == "1 MB"


def test_ratio_says_how_many_times_smaller() -> None:
    assert format_ratio(431080, 19115) == "22.6×"
    assert format_ratio(431080, 431080) == "1×"
    assert format_ratio(431080, 100) == "4,311×"
    assert format_ratio(None, 5) == format_ratio(5, 0) == "–"


def test_durations_have_at_most_two_units() -> None:
    assert plain(format_duration(12.34)) == "12.3 s"
    assert plain(format_duration(181.2)) == "3 min 1 s"
    assert plain(format_duration(7260)) == "2 h 1 min"


def test_a_duration_is_never_rounded_to_sixty_seconds() -> None:
    assert plain(format_duration(119.7)) == "2 min 0 s"
    assert plain(format_duration(59.97)) == "1 min 0 s"
