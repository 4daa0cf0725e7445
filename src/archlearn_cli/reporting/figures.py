"""Figures of the report, drawn with matplotlib: curves, heat maps, histograms; as inline SVG.

Colours have a shade for light and one for dark mode. The series are told apart by people with any
kind of colour vision (after Okabe and Ito), and by their dashes besides.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import StringIO
from statistics import fmean
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from archlearn_cli.reporting.formatting import format_percent, format_short_count
from archlearn_cli.reporting.series import (
    GATE_THRESHOLD,
    STRETCHED_FROM,
    AxisScale,
    FigureData,
    GateCounts,
    Series,
)


@dataclass(frozen=True, slots=True)
class Colour:
    """A role, and its shade on a light and on a dark page."""

    role: str
    light: str
    dark: str


INK = Colour("ink", "#1a1d21", "#e8eaed")
MUTED = Colour("muted", "#59616b", "#a3abb5")
GRID = Colour("grid", "#dfe3e8", "#33393f")
GHOST = Colour("ghost", "#e9edf1", "#2a2f35")
GHOST_EDGE = Colour("ghost-edge", "#aab3bd", "#626b75")
SURFACE = Colour("surface", "#fefefe", "#1b1e22")
PAGE = Colour("page", "#f6f7f9", "#121416")
LINK = Colour("link", "#0b5fa5", "#79bdf5")
WARNING = Colour("warning", "#8a5200", "#f0b860")
SERIES = (
    Colour("series-1", "#0072b2", "#56b0ec"),
    Colour("series-2", "#d05a00", "#ff9254"),
    Colour("series-3", "#00825d", "#41cfa0"),
    Colour("series-4", "#b24c8c", "#e79bc8"),
    Colour("series-5", "#9a6b00", "#e6bb4e"),
    Colour("series-6", "#4b5a9e", "#a9b5f2"),
)
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1)), (0, (8, 2)))
PALETTE = (INK, MUTED, GRID, GHOST, GHOST_EDGE, SURFACE, PAGE, LINK, WARNING, *SERIES)


def write_variables(*, dark: bool) -> str:
    """Return the declarations that give each role its shade in a style sheet."""
    shades = {colour.role: colour.dark if dark else colour.light for colour in PALETTE}
    return " ".join(f"--{role}: {shade};" for role, shade in shades.items())


FIGURE_WIDTH = 330.0
"""Width of a figure in points; a phone shows it about as wide as it is."""
POINTS_PER_INCH = 72.0
FONT_SIZE = 9.5


def new_figure(height: float = 190.0, width: float = FIGURE_WIDTH) -> tuple[Figure, Axes]:
    """Return an empty figure of so many points, and its only axes."""
    size = (width / POINTS_PER_INCH, height / POINTS_PER_INCH)
    layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.03)
    figure = Figure(figsize=size, layout=layout, facecolor="none")
    axes = figure.add_subplot()
    axes.set_facecolor("none")
    axes.tick_params(colors=MUTED.light, labelsize=FONT_SIZE, length=0, pad=4)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED.light)
    axes.spines["bottom"].set_linewidth(0.8)
    axes.grid(visible=True, axis="y", color=GRID.light, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


@dataclass(frozen=True, slots=True)
class FigureItem:
    """A figure of the page with its title and caption; without a drawing it is a remark."""

    name: str
    title: str
    caption: str
    svg: str = ""


def make_item(figure: Figure, name: str, title: str, texts: tuple[str, str]) -> FigureItem:
    """Return a figure with its title and the texts: a caption, and its content in words."""
    caption, description = texts
    return FigureItem(name, title, caption, write_svg(figure, name, title, description))


# The metadata is links and dates, and a style element would hold for the whole page.
_LEFT_OUT = re.compile(r"^.*?(?=<svg)|<metadata>.*?</metadata>|<style.*?</style>", re.DOTALL)
_ROOT = re.compile(r"<svg[^>]* viewBox=(\"[^\"]*\")[^>]*>")
_IDENTIFIER = re.compile(r"(\bid=\"|href=\"#|url\(#)")
# Versions of matplotlib write the family on its own, or behind the size.
_FAMILY = re.compile(r"(font-family:|font: (?:[\w.-]+ )*[\d.]+px) [^;\"]*")


def write_svg(figure: Figure, name: str, title: str, description: str) -> Markup:
    """Return the figure as an `svg` element with a title and a description for readers.

    Text stays text, in the font of the page. Colours with a role become variables of the page's
    style sheet. Identifiers begin with `name`, which must differ between figures of one page.
    """
    settings = {"svg.fonttype": "none", "svg.hashsalt": "archlearn", "path.simplify": True}
    out = StringIO()
    with rc_context(settings):  # pyright: ignore[reportArgumentType]
        figure.savefig(out, format="svg", metadata={"Date": None})
    svg = _IDENTIFIER.sub(rf"\1{name}-", _LEFT_OUT.sub("", out.getvalue()))
    svg = _FAMILY.sub(r"\1 var(--font, sans-serif)", svg.replace("xlink:href", "href"))
    for colour in PALETTE:
        svg = svg.replace(colour.light, f"var(--{colour.role}, {colour.light})")
    opening = Markup(
        '<svg viewBox={box} role="img" aria-labelledby="{name}-t {name}-d">'
        '<title id="{name}-t">{title}</title><desc id="{name}-d">{description}</desc>'
    )
    box = Markup(_ROOT.search(svg)[1])  # pyright: ignore[reportOptionalSubscript]
    words = {"name": name, "title": title, "description": description}
    return opening.format(box=box, **words) + Markup(_ROOT.sub("", svg, count=1))


def label_axes(axes: Axes, x: str, y: str) -> None:
    """Write what runs along the axes; `y` stands level at the top left, to be read with ease."""
    axes.set_xlabel(x, color=MUTED.light, fontsize=FONT_SIZE)
    figure = axes.get_figure(root=True)
    if figure is not None:
        figure.suptitle(y, x=0.005, ha="left", color=MUTED.light, fontsize=FONT_SIZE)


def draw_text(axes: Axes, x: float, y: float, text: str, **options: Any) -> None:
    """Write at a point of the data, in ink unless a colour is given, and as it is: no formulas."""
    settings: dict[str, Any] = {"color": INK.light, "fontsize": FONT_SIZE, "va": "center"}
    axes.text(x, y, text, parse_math=False, **(settings | options))


def spread_labels(values: Sequence[float], distance: float) -> list[float]:
    """Return the values moved apart to `distance` at least, in order, near where they were.

    Labels of lines that end close together are so kept from covering each other.
    """
    order = sorted(range(len(values)), key=lambda index: values[index])
    # Those that would overlap share the mean of where they would be, were they all at one height.
    blocks: list[list[float]] = []
    for rank, index in enumerate(order):
        blocks.append([values[index] - rank * distance])
        while len(blocks) > 1 and fmean(blocks[-2]) > fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    means = [fmean(block) for block in blocks for _ in block]
    moved = {index: means[rank] + rank * distance for rank, index in enumerate(order)}
    return [moved[index] for index in range(len(values))]


BEST = 0.9999
"""The stretched axis of accuracies ends here: at one it would be endless."""
_STEPS = (
    (3.0, (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)),
    (20.0, (1.0, 2.0, 3.0, 5.0)),
    (1e3, (1.0, 3.0)),
)
"""Which parts of a decade are ticked, by the factor between the largest and smallest value."""
_ACCURACIES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)


def set_scale_(axes: Axes, scale: AxisScale, values: Sequence[float]) -> None:
    """Scale and tick the vertical axis for these values."""
    if scale == "log":
        axes.set_yscale("log")
        tick_logarithmic_(axes.yaxis, values)
    elif scale == "accuracy":
        _stretch_accuracy_(axes, values)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=scale == "count"))
        axes.set_ylim(bottom=0)
        if scale == "share":
            format_share_ticks_(axes.yaxis)
            axes.set_ylim(top=1)
        elif scale == "count":
            axes.set_ylim(top=max(values) + 0.5)


def tick_logarithmic_(axis: Axis, values: Sequence[float]) -> None:
    """Tick powers of ten; where there are few, some numbers between them as well."""
    factor = max(values) / min(values)
    steps = next((steps for largest, steps in _STEPS if factor <= largest), (1.0,))
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda count, _: format_short_count(count)))
    axis.set_minor_locator(NullLocator())


def format_share_ticks_(axis: Axis) -> None:
    """Write the ticks of an axis of shares in per cent."""
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g} %"))


def _stretch_accuracy_(axes: Axes, values: Sequence[float]) -> None:
    """Space accuracies by the logarithm of the error: 90, 99 and 99.9 % are equally far apart."""
    functions = (
        lambda accuracy: -np.log10(1 - np.minimum(accuracy, BEST)),
        lambda share: 1 - 10.0 ** -np.asarray(share),
    )
    axes.set_yscale("function", functions=functions)
    lowest, highest = min(values), min(BEST, max(values))
    bottom, top = min(lowest, STRETCHED_FROM), max(0.99, 1 - (1 - highest) / 1.3)
    axes.set_ylim(bottom, top)
    axes.set_yticks([tick for tick in _ACCURACIES if bottom <= tick <= top])
    axes.yaxis.set_minor_locator(NullLocator())
    format_share_ticks_(axes.yaxis)


LABEL_DISTANCE = 0.09
"""Least distance of two labels, as a share of the height of the axes."""


def draw_lines(numbers: FigureData) -> Figure:
    """Draw the lines; several have their names at their ends, and a single one its last value."""
    figure, axes = new_figure()
    lines = _drawable(numbers)
    for index, line in enumerate(lines):
        axes.plot(
            line.epochs,
            line.values,
            color=SERIES[index % len(SERIES)].light,
            linestyle=DASHES[index % len(DASHES)],
            linewidth=2,
            marker="o" if len(line.values) == 1 else "",
            drawstyle="steps-post" if numbers.scale == "count" else "default",
        )
    label_axes(axes, "epoch", numbers.measure)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    first, last = numbers.span
    margin = 0.01 * max(1, last - first)
    axes.set_xlim(first - margin, last + margin)
    set_scale_(axes, numbers.scale, [value for line in lines for value in line.values])
    labels = [line.label for line in lines]
    if len(lines) == 1:
        value, as_share = lines[0].values[-1], numbers.scale in ("accuracy", "share")
        labels = [format_percent(value) if as_share else format_short_count(value)]
    ends = [axes.transData.transform((line.epochs[-1], line.values[-1])) for line in lines]
    heights = [float(axes.transAxes.inverted().transform(end)[1]) for end in ends]
    heights = [min(max(height, 0.0), 1.0) for height in heights]  # where a line leaves the axes
    for index, height in enumerate(spread_labels(heights, LABEL_DISTANCE)):
        style = {"transform": axes.transAxes, "color": SERIES[index % len(SERIES)].light}
        draw_text(axes, 1.02, height, labels[index], **style)
    return figure


def _drawable(numbers: FigureData) -> list[Series]:
    """Return the lines without what a logarithmic axis cannot show."""
    drawable: list[Series] = []
    for line in numbers.lines:
        points = zip(line.epochs, line.values, strict=True)
        shown = [(epoch, value) for epoch, value in points if numbers.scale != "log" or value > 0]
        if shown:
            epochs, values = zip(*shown, strict=True)
            drawable.append(replace(line, epochs=epochs, values=values))
    return drawable


COLOURS = "cividis"
"""Read alike by people with any colour vision, and on light and dark pages."""


def width_map(numbers: FigureData) -> tuple[list[int], list[list[float]]]:
    """Return epochs, and the share that each line has at each; NaN where it was not measured."""
    epochs = sorted({epoch for line in numbers.lines for epoch in line.epochs})
    rows = [dict(zip(line.epochs, line.values, strict=True)) for line in numbers.lines]
    return epochs, [[row.get(epoch, np.nan) for epoch in epochs] for row in rows]


def draw_width_map(numbers: FigureData) -> Figure:
    """Draw the share of channels kept by layer, the first at the top, with the scale of colours."""
    epochs, shares = width_map(numbers)
    layers = [line.label for line in numbers.lines]
    n_layers, first, last = len(layers), epochs[0], epochs[-1]
    figure, axes = new_figure(height=60 + max(130.0, min(7.0 * n_layers, 420.0)))
    image = axes.imshow(
        np.array(shares),
        aspect="auto",
        interpolation="nearest",
        cmap=COLOURS,
        vmin=0,
        vmax=1,
        extent=(first - 0.5, last + 0.5, n_layers - 0.5, -0.5),
    )
    axes.grid(visible=False)
    step = -(-n_layers // 40)
    axes.set_yticks(range(0, n_layers, step), layers[::step], parse_math=False)
    axes.tick_params(axis="y", labelsize=FONT_SIZE - max(0, min(3.5, (n_layers - 14) / 6)))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    label_axes(axes, "epoch", "channels kept, of those at the start")
    bar = figure.colorbar(image, ax=axes, ticks=[0, 0.5, 1], shrink=0.6, aspect=14)
    bar.ax.spines["outline"].set_visible(False)
    bar.ax.set_yticklabels(["0 %", "50 %", "100 %"])
    bar.ax.tick_params(colors=MUTED.light, labelsize=FONT_SIZE - 1, length=0)
    return figure


_SHADE = (0.13, 0.53, 0.80)
"""A blue that shows on light and dark pages alike: an image cannot follow the page."""


def draw_gate_history(numbers: tuple[GateCounts, ...]) -> Figure:
    """Draw how many width gates stood where after each epoch, the stronger the more."""
    figure, axes = new_figure()
    counts = np.array([count.bins for count in numbers], dtype=float).T
    shades = LinearSegmentedColormap.from_list("gates", [(*_SHADE, 0.08), (*_SHADE, 1.0)])
    first, last = numbers[0].epoch, numbers[-1].epoch
    axes.imshow(
        np.where(counts > 0, counts, np.nan),
        aspect="auto",
        interpolation="nearest",
        origin="lower",
        cmap=shades,
        norm=LogNorm(0.7, max(2.0, float(counts.max()))),
        extent=(first - 0.5, last + 0.5, 0, 1),
    )
    axes.grid(visible=False)
    axes.axhline(GATE_THRESHOLD, color=MUTED.light, linewidth=1, linestyle=(0, (3, 3)))
    axes.axhline(1, color=GRID.light, linewidth=0.8)
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    label_axes(axes, "epoch", "value of the width gates (stronger: more gates)")
    return figure
