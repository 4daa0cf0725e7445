"""The picture shows each layer's channels before and after."""

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.patches import Rectangle

from archlearn.reporting.architecture_diagram import (
    describe_diagram,
    draw_diagram,
    read_diagram,
)
from archlearn.reporting.figures import spread_labels
from archlearn.reporting.run_reader import read_run
from tests.reporting.run_folders import LENET, write_run

STORY = replace(
    LENET,
    before={"a": 16, "b": 100, "c": 64, "out": 9},
    after={"a": 4, "c": 64, "out": 9},
    merged=["b"],
)


def test_a_merged_layer_has_no_channels_after(tmp_path: Path) -> None:
    numbers = read_diagram(read_run(write_run(tmp_path / "a", STORY)))
    changes = [(layer.name, layer.before, layer.after) for layer in numbers.layers]
    assert changes == [("a", 16, 4), ("b", 100, None), ("c", 64, 64), ("out", 9, 9)]
    assert describe_diagram(numbers) == "a: 16 → 4; b: 100 → merged; c: 64; out: 9"


def test_a_layer_named_as_merged_is_gone_whatever_the_widths_say(tmp_path: Path) -> None:
    story = replace(STORY, after=STORY.before)
    numbers = read_diagram(read_run(write_run(tmp_path / "a", story)))
    assert [layer.after for layer in numbers.layers] == [16, None, 64, 9]


def test_bars_are_as_long_as_the_root_of_their_channels(tmp_path: Path) -> None:
    numbers = read_diagram(read_run(write_run(tmp_path / "a", STORY)))
    patches = draw_diagram(numbers).axes[0].patches
    lengths = [patch.get_width() for patch in patches if isinstance(patch, Rectangle)]
    assert lengths == [4, 10, 8, 3, 2, 8, 3]


def test_labels_that_would_meet_are_moved_apart_evenly() -> None:
    assert spread_labels([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert spread_labels([0.9, 0.2, 0.22], 0.1) == pytest.approx([0.9, 0.16, 0.26])


def test_labels_that_are_apart_stay() -> None:
    assert spread_labels([0.1, 0.9, 0.5], 0.1) == pytest.approx([0.1, 0.9, 0.5])


def test_labels_pushed_onto_a_third_move_with_it() -> None:
    assert spread_labels([0.5, 0.5, 0.56], 0.1) == pytest.approx([0.42, 0.52, 0.62])
    assert spread_labels([0.0, 0.5, 0.5, 0.56], 0.1) == pytest.approx([0.0, 0.42, 0.52, 0.62])
