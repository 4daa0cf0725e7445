"""The top of a run's page: what was learnt, what it costs now, and whether the run is done."""

from archlearn.reporting.architecture_diagram import (
    describe_silhouette,
    draw_silhouette,
    read_silhouette,
)
from archlearn.reporting.formatting import format_count, format_number, format_percent, format_ratio
from archlearn.reporting.html_elements import (
    write_code,
    write_figure,
    write_paragraph,
    write_section,
    write_table,
)
from archlearn.reporting.json_values import as_count, as_number
from archlearn.reporting.markup import Html, fill, join
from archlearn.reporting.run import Run, Standing

_HEADER = """<header>
<p class="eyebrow">archlearn · $name</p>
<h1>$title</h1>
<p class="lead">$lead</p>
$notes
<ul class="tiles">$tiles</ul>
</header>"""
PICTURE_NOTE = "Bars are as long as the square root of their channels."
MOST_WIDTHS = 12
_TILE = '<li><span class="label">$label</span><span class="value">$value</span>$note</li>'
_BAR = '<span class="bar" aria-hidden="true"><i style="width:$share%"></i></span>'


def write_header(run: Run) -> Html:
    """Return the headline of one run with its main numbers."""
    notes = [write_paragraph(note, "note") for note in run.notes]
    if not run.finished:
        notes.append(write_code(f"archlearn learn --resume {run.folder}", "To continue the run"))
    return fill(
        _HEADER,
        name=run.name,
        title=write_title(run),
        lead=_lead(run),
        notes=join(notes),
        tiles=join(_tiles(run), ""),
    )


def write_title(run: Run) -> str:
    """Return what was learnt on what, in the user's own words."""
    return f"{run.model or 'A model'} on {run.data or 'data'}"


def write_widths(standing: Standing) -> str:
    """Return the architecture; its sums only where it is no chain, or too long to be read."""
    widths = standing.widths.values()
    if len(widths) <= MOST_WIDTHS and "\n" not in standing.architecture:
        return standing.architecture + (" (one layer)" if len(widths) == 1 else "")
    return f"{sum(widths):,} channels in {len(widths)} layers"


def format_score(run: Run, score: float | None) -> str:
    """Return an accuracy of a run in per cent, or its squared error."""
    return format_number(score) if run.regression else format_percent(score)


def write_architecture(run: Run) -> Html:
    """Return the picture of the network before and after, with the table of its costs."""
    parts = [_costs(run)]
    if run.before.widths:
        now = "after compacting" if run.finished else "as the gates stand now"
        caption = f"Outline: at the start. Filled: {now}. {PICTURE_NOTE}"
        numbers = read_silhouette(run)
        texts = (caption, describe_silhouette(numbers))
        figure = draw_silhouette(numbers)
        parts.insert(0, write_figure(figure, "architecture", "Channels of each layer.", texts))
    return write_section("network", "Architecture before and after", *parts)


def _lead(run: Run) -> Html:
    arrow = ' <span aria-label="became">→</span> '
    if not run.before.architecture:
        return Html("No measurement has been written yet.")
    ends = (write_widths(run.before), write_widths(run.after))
    return join((fill("<b>$end</b>", end=end) for end in ends), arrow)


def _tiles(run: Run) -> list[Html]:
    n_test = as_count(run.summary.get("n_test"))
    on = f"on {n_test:,} test examples" if n_test and run.score_source == "test" else ""
    where = on or f"on {run.score_source} data"
    tiles = [_tile(run.score_name.capitalize(), format_score(run, run.score), where)]
    for label, before, after in _counted(run):
        saved = f"of {format_count(before)}, {format_ratio(before, after)} fewer"
        tiles.append(_tile(label, format_count(after), _note(saved, before, after)))
    before, after = (len(standing.widths) or None for standing in (run.before, run.after))
    tiles.append(_tile("Layers", format_count(after), _note(f"of {before}", before, after)))
    if run.summary.get("task") == "next_token":
        loss = as_number(run.summary.get("test_loss"))
        tiles.insert(1, _tile("Loss", format_number(loss), "nats a token, on test data"))
    return tiles


def _note(saved: str, before: int | None, after: int | None) -> str:
    """Return what is said below a count; nothing of what is not known."""
    if before is None or after is None:
        return ""
    return saved if before != after else "unchanged"


def _tile(label: str, value: str, note: str) -> Html:
    small = fill('<span class="small">$note</span>', note=note)
    return fill(_TILE, label=label, value=value, note=small)


def _counted(run: Run) -> tuple[tuple[str, int | None, int | None], ...]:
    before, after = run.before, run.after
    return (
        ("Parameters", before.parameters, after.parameters),
        ("Multiply-adds", before.multiply_adds, after.multiply_adds),
    )


def _costs(run: Run) -> Html:
    head = ("Cost", "Before", "After", "Left", "Fewer")
    rows = [_cost_row(*cost) for cost in _counted(run)]
    return write_table("Costs before and after", head, rows)


def _cost_row(label: str, before: int | None, after: int | None) -> tuple[object, ...]:
    share = after / before if before and after is not None else None
    bar = fill(_BAR, share=f"{100 * min(share or 0.0, 1.0):.2f}")
    left = fill(
        "$bar<span>$text</span>",
        bar=bar,
        text=format_percent(share, 1 if share and share > 0.01 else 2),
    )
    numbers = (format_count(before), format_count(after))
    return (label, *numbers, left, format_ratio(before, after))
