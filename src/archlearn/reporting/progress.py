"""Sections of the report about training: losses, scores, widths, gates."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from archlearn.reporting.figures import (
    draw_gate_history,
    draw_histogram,
    draw_lines,
    draw_width_map,
    width_map,
)
from archlearn.reporting.formatting import (
    format_count,
    format_duration,
    format_number,
    format_percent,
)
from archlearn.reporting.markup import Html, fill, join, write_figure, write_section, write_table
from archlearn.reporting.run_reader import GATES, Epoch, Run, read_lines
from archlearn.reporting.series import (
    GateCounts,
    Lines,
    budget_lines,
    count_gates,
    depth_lines,
    gap_lines,
    loss_lines,
    parameter_lines,
    price_lines,
    score_lines,
    width_lines,
)

_NO_DEPTH = """<div class="card">
<strong>Depth.</strong> Not learnt in this run; the network has $n_layers layers.
</div>"""
MOST_LINES = 6
"""More lines than this are drawn as a map."""


def write_progress(run: Run) -> Html:
    """Return the figures over epochs and the table of all their numbers."""
    if not run.epochs:
        return Html("")
    name = run.score_name.capitalize()
    figures = (
        _figure("score", f"{name}.", "On validation data.", score_lines(run)),
        _figure("loss", "Loss.", "The penalty comes on top in training.", loss_lines(run)),
        _figure("widths", "Widths.", "Layers that never change are left out.", width_lines(run)),
        _depth(run),
        _figure("size", "Size.", "If compacted at that epoch.", parameter_lines(run)),
        _figure(
            "budget",
            "Budget.",
            "The cost, what it may be, and what a step computes.",
            budget_lines(run),
        ),
        _figure("price", "Price.", "Channels that earn less are closed.", price_lines(run)),
        _figure("gap", "Binarisation gap.", "At 0, every gate is binary.", gap_lines(run)),
    )
    grid = fill('<div class="grid">$figures</div>', figures=join(figures))
    return write_section("progress", "Over the epochs", grid, _numbers(run))


def write_gates(run: Run) -> Html:
    """Return where the gates stand, and how they came there."""
    counts = count_gates(read_lines(run.folder / GATES))
    if not counts or not counts[-1].n_width + counts[-1].n_depth:
        return Html("")
    figures = [_histogram(counts[-1])]
    if len(counts) > 1 and counts[-1].n_width:
        figures.append(_history(counts))
    grid = fill('<div class="grid">$figures</div>', figures=join(figures))
    return write_section("gates", "Gates", grid)


def describe_lines(numbers: Lines) -> str:
    """Return the first and last value of each line, in words."""
    return "; ".join(
        f"{line.label}: {_value(line.values[0], numbers)} at epoch {line.epochs[0]}, "
        f"{_value(line.values[-1], numbers)} at epoch {line.epochs[-1]}"
        for line in numbers.lines
        if line.values
    )


def _value(value: float, numbers: Lines) -> str:
    return format_percent(value) if numbers.scale in ("share", "accuracy") else format_number(value)


def _figure(name: str, title: str, caption: str, numbers: Lines) -> Html:
    if numbers.empty:
        return Html("")
    figure = _draw(name, numbers)
    return write_figure(figure, name, title, (caption, describe_lines(numbers)))


def _depth(run: Run) -> Html:
    numbers = depth_lines(run)
    if numbers.empty:
        return fill(_NO_DEPTH, n_layers=len(run.before.widths))
    return _figure("depth", "Depth.", "A linear layer can merge with the next.", numbers)


def _draw(name: str, numbers: Lines) -> Figure:
    if name == "widths" and len(numbers.lines) > MOST_LINES:
        return draw_width_map(width_map(numbers))
    return draw_lines(numbers)


def _histogram(counts: GateCounts) -> Html:
    depth = f" (blue) and {counts.n_depth:,} of depth (orange)" if counts.n_depth else ""
    words = (
        f"{counts.n_width:,} gates of width{depth} after epoch {counts.epoch}; "
        f"{counts.undecided:,} undecided, between 0.1 and 0.9."
    )
    return write_figure(draw_histogram(counts), "histogram", "Histogram.", (words, words))


def _history(counts: Sequence[GateCounts]) -> Html:
    words = "Each column is an epoch; gates below the dashed line drop their channel."
    first, last = counts[0], counts[-1]
    ends = (
        f"Of {last.n_width:,} width gates, {first.kept:,} stood at one half or above after epoch "
        f"{first.epoch}, and {last.kept:,} after epoch {last.epoch}."
    )
    return write_figure(draw_gate_history(tuple(counts)), "history", "Movement.", (words, ends))


def _numbers(run: Run) -> Html:
    head = (
        *("Epoch", "Training loss", "Validation loss", run.score_name.capitalize()),
        *("Penalty", "Gap", "Parameters", "Time"),
    )
    table = write_table("Numbers by epoch", head, (_row(run, epoch) for epoch in run.epochs))
    return fill("<details><summary>All numbers, by epoch</summary>$table</details>", table=table)


def _row(run: Run, epoch: Epoch) -> tuple[str, ...]:
    score = format_number(epoch.score) if run.regression else format_percent(epoch.score)
    return (
        str(epoch.epoch),
        format_number(epoch.train_loss),
        format_number(epoch.validation_loss),
        score,
        format_number(epoch.penalty),
        format_number(epoch.gap),
        format_count(epoch.parameters),
        format_duration(epoch.seconds),
    )
