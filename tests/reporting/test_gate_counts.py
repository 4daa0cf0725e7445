"""Gates are counted where they stand."""

from archlearn.reporting.series import N_BINS, count_gates


def test_each_gate_falls_into_its_twentieth() -> None:
    line = {"epoch": 3, "width": {"a": [0.0, 0.04, 0.5, 1.0], "b": [0.97]}, "depth": {"a": 0.45}}
    (counts,) = count_gates([line])
    assert N_BINS == 20
    assert {place: n for place, n in enumerate(counts.width) if n} == {0: 2, 10: 1, 19: 2}
    assert {place: n for place, n in enumerate(counts.depth) if n} == {9: 1}
    assert (counts.epoch, counts.n_width, counts.n_depth) == (3, 5, 1)


def test_a_gate_at_one_half_is_kept_and_undecided() -> None:
    (counts,) = count_gates([{"epoch": 0, "width": {"a": [0.5, 0.4999, 0.05, 0.95]}, "depth": {}}])
    assert counts.kept == 2
    assert counts.undecided == 2


def test_of_an_epoch_written_twice_the_later_line_holds() -> None:
    lines = [
        {"epoch": 1, "width": {"a": [0.2]}},
        {"epoch": 0, "width": {"a": [0.55]}},
        {"epoch": 1, "width": {"a": [0.9]}},
    ]
    first, last = count_gates(lines)
    assert (first.epoch, last.epoch) == (0, 1)
    assert last.kept == 1


def test_a_gate_outside_its_range_is_counted_at_the_border() -> None:
    (counts,) = count_gates([{"epoch": 0, "width": {"a": [-0.01, 1.01]}}])
    assert (counts.width[0], counts.width[-1]) == (1, 1)


def test_lines_without_gates_are_empty() -> None:
    (counts,) = count_gates([{"epoch": 0, "width": None, "depth": None}])
    assert counts.n_width == counts.n_depth == 0
    assert count_gates([{"width": {"a": [0.5]}}]) == ()
