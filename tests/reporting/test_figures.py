"""Figures become elements that follow colours and font of their page; the diagram of the layers."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from archlearn_cli.reporting.architecture_diagram import (
    describe_diagram,
    draw_diagram,
    read_diagram,
)
from archlearn_cli.reporting.comparison import (
    RunPoint,
    draw_run_frontier,
    find_best,
    find_differences,
    read_frontiers,
)
from archlearn_cli.reporting.figures import (
    PALETTE,
    SERIES,
    draw_lines,
    draw_text,
    label_axes,
    new_figure,
    spread_labels,
    write_svg,
    write_variables,
)
from archlearn_cli.reporting.run_reader import read_run
from archlearn_cli.reporting.series import FigureData, Series
from tests.reporting.run_folders import LENET, write_run


def draw() -> Figure:
    figure, axes = new_figure()
    axes.plot([0, 1], [1, 2], color=SERIES[1].light)
    label_axes(axes, "epoch", "loss")
    draw_text(axes, 0.5, 1.5, "cost $a_1$ & <b>")
    return figure


def test_colours_with_a_role_become_variables_of_the_page() -> None:
    svg = write_svg(draw(), "loss", "Loss", "It falls")
    shades = set(re.findall(r"(?<!, )#[0-9a-f]{6}", svg))
    assert f"var(--series-2, {SERIES[1].light})" in svg
    assert not shades, "these would not change on a dark page"


def test_text_stays_text_in_the_font_of_the_page() -> None:
    svg = write_svg(draw(), "loss", "Loss", "It falls")
    texts = [element.text for element in ElementTree.fromstring(svg).iter("text")]
    assert {"epoch", "loss", "cost $a_1$ & <b>"} <= set(texts)
    assert "var(--font, sans-serif)" in svg
    assert "DejaVu" not in svg


def test_title_and_description_are_there_for_those_who_cannot_see() -> None:
    root = ElementTree.fromstring(write_svg(draw(), "loss", "Loss <1>", "It falls & stays"))
    named = {element.attrib.get("id"): element.text for element in root.iter()}
    title, description = root.attrib["aria-labelledby"].split()
    assert root.attrib["role"] == "img"
    assert (named[title], named[description]) == ("Loss <1>", "It falls & stays")


def test_two_figures_of_a_page_share_no_identifier() -> None:
    svgs = [write_svg(draw(), name, "t", "d") for name in ("one", "two")]
    first, second = (set(re.findall(r'\bid="([^"]+)"', svg)) for svg in svgs)
    assert first
    assert not first & second


def test_references_point_at_identifiers_that_exist() -> None:
    svg = write_svg(draw(), "loss", "t", "d")
    wanted = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    assert wanted
    assert wanted <= set(re.findall(r'\bid="([^"]+)"', svg))


def test_nothing_leaks_into_the_page() -> None:
    svg = write_svg(draw(), "loss", "t", "d")
    assert not re.search(r"<style|<metadata|http|<\?xml|<!DOCTYPE", svg)


def test_the_same_figure_is_written_the_same_way_twice() -> None:
    assert write_svg(draw(), "a", "t", "d") == write_svg(draw(), "a", "t", "d")


def test_each_role_has_a_shade_of_its_own_on_both_pages() -> None:
    assert (
        len({colour.light for colour in PALETTE})
        == len({colour.role for colour in PALETTE})
        == len(PALETTE)
    )
    for dark in (False, True):
        assert write_variables(dark=dark).count(";") == len(PALETTE)


def test_series_can_be_read_on_both_pages() -> None:
    for colour in SERIES:
        assert contrast(colour.light, "#fefefe") >= 3
        assert contrast(colour.dark, "#1b1e22") >= 3


def contrast(first: str, second: str) -> float:
    """Return the ratio of contrast as WCAG 2 defines it."""
    brighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def luminance(shade: str) -> float:
    parts = [int(shade[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


STORY = replace(
    LENET,
    before={"a": 16, "b": 100, "c": 64, "out": 9},
    after={"a": 4, "c": 64, "out": 9},
    merged=["b"],
)


def test_a_merged_layer_has_no_channels_after(tmp_path: Path) -> None:
    numbers = read_diagram(read_run(write_run(tmp_path / "a", STORY)))
    changes = [(layer.name, layer.before, layer.after) for layer in numbers]
    assert changes == [("a", 16, 4), ("b", 100, None), ("c", 64, 64), ("out", 9, 9)]
    assert describe_diagram(numbers) == "a: 16 → 4; b: 100 → merged; c: 64; out: 9"


def test_a_layer_named_as_merged_is_gone_whatever_the_widths_say(tmp_path: Path) -> None:
    story = replace(STORY, after=STORY.before)
    numbers = read_diagram(read_run(write_run(tmp_path / "a", story)))
    assert [layer.after for layer in numbers] == [16, None, 64, 9]


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


def points(*pairs: tuple[int, float]) -> list[RunPoint]:
    return [
        RunPoint(number=number, parameters=parameters, score=score)
        for number, (parameters, score) in enumerate(pairs, start=1)
    ]


def test_a_larger_run_must_be_better_to_be_among_the_best() -> None:
    runs = points((50, 0.99), (10, 0.95), (20, 0.97), (30, 0.96), (60, 0.99))
    assert [p.number for p in find_best(runs, lower_is_better=False)] == [2, 3, 1]


def test_for_an_error_lower_is_better() -> None:
    runs = points((50, 0.99), (10, 0.95), (5, 0.97))
    assert [p.number for p in find_best(runs, lower_is_better=True)] == [3, 2]


def test_of_two_runs_of_one_size_the_better_is_kept() -> None:
    assert [p.number for p in find_best(points((5, 0.9), (5, 0.8)), lower_is_better=False)] == [1]


def test_runs_on_other_data_stand_apart_and_keep_their_numbers(tmp_path: Path) -> None:
    stories = [
        LENET,
        replace(LENET, data="diabetes", task="regression", score=2900.0),
        replace(LENET, score=0.99, costs=((431080, 1), (5000, 1))),
    ]
    folders = [write_run(tmp_path / str(n), story) for n, story in enumerate(stories)]
    runs = [read_run(folder) for folder in folders]
    mnist, diabetes = read_frontiers(runs)
    assert [(p.number, p.parameters, p.score) for p in mnist.points] == [
        (1, 19115, runs[0].validation_score),
        (3, 5000, runs[2].validation_score),
    ]
    assert [p.number for p in mnist.best] == [3, 1]
    assert (diabetes.data, diabetes.lower_is_better) == ("diabetes", True)


def test_the_best_run_is_chosen_on_validation_data(tmp_path: Path) -> None:
    """The second run is better on test data by chance alone."""
    lucky = replace(LENET, score=0.98, test_score=0.999)
    folders = [write_run(tmp_path / "a"), write_run(tmp_path / "b", lucky)]
    (frontier,) = read_frontiers([read_run(folder) for folder in folders])
    assert [p.number for p in frontier.best] == [1]


def test_runs_that_landed_on_one_budget_share_a_place_on_an_axis_with_different_ticks(
    tmp_path: Path,
) -> None:
    costs = [((50610, 1), (after, 1)) for after in (25291, 25330, 25279)]
    folders = [write_run(tmp_path / str(c), replace(LENET, costs=c)) for c in costs]
    (frontier,) = read_frontiers([read_run(folder) for folder in folders])
    figure = draw_run_frontier(frontier)
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    figure.draw_without_rendering()
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert len(ticks) > 1
    assert len(set(ticks)) == len(ticks)
    assert high / low == pytest.approx(1.1)
    assert low < 25279 < 25330 < high


def test_only_settings_that_differ_are_compared(tmp_path: Path) -> None:
    first = read_run(write_run(tmp_path / "a"))
    second = read_run(write_run(tmp_path / "b", replace(LENET, name="b", seed=3, width_cost=1e-3)))
    assert find_differences([first, second]) == {
        "seed": (0, 3),
        "strengths.width_cost": (3e-4, 1e-3),
    }


def test_the_name_of_a_line_beyond_its_axes_stays_beside_them() -> None:
    ends = {"cost": 1.0, "allowed": 2e4}
    lines = tuple(Series(label=name, epochs=(0, 1), values=(1.0, ends[name])) for name in ends)
    figure = draw_lines(FigureData(measure="part", scale="share", lines=lines, span=(0, 1)))
    heights = [text.get_position()[1] for text in figure.axes[0].texts]
    assert max(heights) < 1.1, "a budget above the start has squeezed the figure to nothing"
