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


def test_the_name_of_a_line_beyond_its_axes_stays_beside_them() -> None:
    ends = {"cost": 1.0, "allowed": 2e4}
    lines = tuple(Series(label=name, epochs=(0, 1), values=(1.0, ends[name])) for name in ends)
    figure = draw_lines(FigureData(measure="part", scale="share", lines=lines, span=(0, 1)))
    heights = [text.get_position()[1] for text in figure.axes[0].texts]
    assert max(heights) < 1.1, "a budget above the start has squeezed the figure to nothing"
