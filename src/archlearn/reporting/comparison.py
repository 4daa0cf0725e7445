"""Several runs side by side: one row each, what differs between them, and who beats whom."""

from collections.abc import Iterator, Sequence

from archlearn.reporting.architecture_diagram import (
    describe_silhouette,
    draw_silhouette,
    read_silhouette,
)
from archlearn.reporting.certificate_section import say
from archlearn.reporting.formatting import (
    format_count,
    format_duration,
    format_number,
    format_percent,
    format_ratio,
)
from archlearn.reporting.frontiers import Frontier, draw_frontier, read_frontiers
from archlearn.reporting.html_elements import (
    write_figure,
    write_paragraph,
    write_section,
    write_table,
)
from archlearn.reporting.json_values import Table, as_number, is_table
from archlearn.reporting.markup import Html, fill, join
from archlearn.reporting.run import Run
from archlearn.reporting.sections import PICTURE_NOTE, format_score, write_widths

_HEADER = """<header>
<p class="eyebrow">archlearn</p>
<h1>$count runs side by side</h1>
<p class="lead">$lead</p>
$notes
</header>"""
_CHOICE = (
    "Runs are compared, and the best of them chosen, on validation data. The test score is for the "
    "run that is chosen: the highest of several is too high."
)
IGNORED = ("out", "name")
"""Settings in which every two runs differ."""


def write_comparison(runs: Sequence[Run]) -> Html:
    """Return the whole comparison."""
    notes = (write_paragraph(f"{run.name}: {note}", "note") for run in runs for note in run.notes)
    lead = "; ".join(sorted({f"{run.model} on {run.data}" for run in runs}))
    header = fill(_HEADER, count=len(runs), lead=lead, notes=join(notes))
    groups = [numbers for numbers in read_frontiers(runs) if len(numbers.points) > 1]
    frontiers = [_frontier(numbers, place) for place, numbers in enumerate(groups)]
    return join(
        (
            header,
            write_section("runs", "Results", *frontiers, _results(runs)),
            write_section("settings", "Settings that differ", _settings(runs)),
            write_section("networks", "Architectures before and after", _pictures(runs)),
        )
    )


def find_differences(runs: Sequence[Run]) -> dict[str, tuple[object, ...]]:
    """Return each setting in which the runs differ, with its value in each run."""
    flat = [dict(_flatten(run.config)) for run in runs]
    names = dict.fromkeys(name for settings in flat for name in settings)
    values = {name: tuple(settings.get(name) for settings in flat) for name in names}
    return {
        name: entries
        for name, entries in values.items()
        if name not in IGNORED and any(entry != entries[0] for entry in entries)
    }


def _flatten(config: Table, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in config.items():
        if is_table(value):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _frontier(numbers: Frontier, place: int) -> Html:
    caption = (
        "Numbers are rows of the table. Filled: no other run is both smaller and better on "
        "validation data."
    )
    form = format_number if numbers.lower_is_better else format_percent
    words = "; ".join(
        f"run {p.number}: {p.parameters:,} parameters, {form(p.score)}" for p in numbers.points
    )
    title = f"Validation {numbers.score_name} against parameters on {numbers.data}."
    return write_figure(draw_frontier(numbers), f"frontier-{place}", title, (caption, words))


def _results(runs: Sequence[Run]) -> Html:
    score = " or ".join(dict.fromkeys(run.score_name for run in runs))
    costs = ("Parameters", "Fewer", "Multiply-adds", "Fewer")
    head = ("Run", f"Validation {score}", f"Test {score}", *costs, "Architecture", "Time")
    rows = [_result(number, run) for number, run in enumerate(runs, start=1)]
    return join((write_paragraph(_CHOICE), write_table("Runs side by side", head, rows)))


def _result(number: int, run: Run) -> tuple[object, ...]:
    before, after = run.before, run.after
    seconds = as_number(run.summary.get("seconds"))
    return (
        _label(number, run),
        format_score(run, run.validation_score),
        format_score(run, run.test_score),
        format_count(after.parameters),
        format_ratio(before.parameters, after.parameters),
        format_count(after.multiply_adds),
        format_ratio(before.multiply_adds, after.multiply_adds),
        write_widths(after),
        format_duration(seconds if run.finished else None),
    )


def _label(number: int, run: Run) -> Html:
    return fill('<span class="number">$number</span> $name', number=number, name=run.name)


def _settings(runs: Sequence[Run]) -> Html:
    differences = find_differences(runs)
    if not differences:
        return write_paragraph("All runs were given the same settings.")
    head = ("Run", *differences)
    rows = (
        (_label(place + 1, run), *(say(entries[place]) for entries in differences.values()))
        for place, run in enumerate(runs)
    )
    return write_table("Settings that differ between the runs", head, rows)


def _pictures(runs: Sequence[Run]) -> Html:
    numbered = [(n, run) for n, run in enumerate(runs, start=1) if run.before.widths]
    if not numbered:
        return Html("")
    note = write_paragraph(f"Outline: at the start. Filled: after. {PICTURE_NOTE}")
    pictures = join(_picture(number, run) for number, run in numbered)
    return join((note, fill('<div class="grid">$pictures</div>', pictures=pictures)))


def _picture(number: int, run: Run) -> Html:
    numbers = read_silhouette(run)
    texts = (write_widths(run.after), describe_silhouette(numbers))
    title = f"{number} {run.name}:"
    return write_figure(draw_silhouette(numbers), f"architecture-{number}", title, texts)
