"""Sections of the report: header, architecture, certificate, configuration."""

from collections.abc import Iterator

from archlearn.reporting.architecture_diagram import (
    describe_silhouette,
    draw_silhouette,
    read_silhouette,
)
from archlearn.reporting.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_percent,
    format_ratio,
)
from archlearn.reporting.markup import (
    Html,
    fill,
    join,
    write_code,
    write_figure,
    write_pairs,
    write_paragraph,
    write_section,
    write_table,
)
from archlearn.reporting.run_reader import (
    Run,
    Standing,
    Table,
    as_count,
    as_items,
    as_number,
    as_table,
    as_text,
    is_list,
    is_table,
)

_KNOWN = {"difference", "difference_float64", "dtype", "n_inputs", "tolerance", "tolerance_float64"}


_PLAN = "<details><summary>What was dropped and merged: the plan</summary>$plan</details>"


def write_certificate(run: Run) -> Html:
    """Return the certificate of exactness, and the plan that was carried out."""
    certificate = as_table(run.summary.get("certificate"))
    plan = as_text(run.summary.get("plan"))
    details = fill(_PLAN, plan=write_code(plan, "Plan")) if plan else Html("")
    if certificate:
        body = (*_measured(certificate), details)
    elif run.finished:
        body = (write_paragraph("Nothing was compacted, so there is nothing to certify."),)
    else:
        body = (write_paragraph("There is no certificate: the run is not compacted yet."),)
    return write_section("certificate", "Certificate of exactness", *body)


def _measured(certificate: Table) -> Iterator[Html]:
    """Yield what was compared, the differences found, and whatever else a certificate holds."""
    n_inputs = as_count(certificate.get("n_inputs"))
    inputs = f"the same {n_inputs:,} inputs" if n_inputs else "the same inputs"
    yield write_paragraph(
        f"The gated and the compact model were given {inputs}. "
        "These are the largest differences between their outputs, relative to their size."
    )
    own = say(certificate.get("dtype", "the model's own"))
    rows = [
        (own, certificate.get("difference"), certificate.get("tolerance")),
        ("float64", certificate.get("difference_float64"), certificate.get("tolerance_float64")),
    ]
    said = [(name, say(found), say(allowed)) for name, found, allowed in rows if found is not None]
    if said:
        yield write_table("Differences", ("Precision", "Largest difference", "Allowed"), said)
    others = {name: value for name, value in certificate.items() if name not in _KNOWN}
    if others:
        yield write_pairs((name_words(name), say(value)) for name, value in others.items())


def name_words(key: str) -> str:
    """Write `largest_difference` as `Largest difference`."""
    words = key.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def say(value: object) -> str:
    """Write any value of a file for reading."""
    number = as_number(value)
    if number is not None:
        return format_number(number)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if is_list(value):
        return ", ".join(say(item) for item in value) or "–"
    if is_table(value):
        return _say_table(value)
    return "–" if value is None or value == "" else str(value)


def _say_table(table: Table) -> str:
    return ", ".join(f"{name}: {say(value)}" for name, value in table.items()) or "–"


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


MOST_NUMBERS = 4


_WITH = """import archlearn as al

model = al.load("{path}")  # a plain nn.Module, ready to call
model.eval()
output = model(x)"""


_WITHOUT = """import json
from safetensors import safe_open

with safe_open("{path}", framework="pt") as file:
    graph = json.loads(file.metadata()["description"])  # what the layers are and how they join
    weights = {{name: file.get_tensor(name) for name in file.keys()}}"""


def write_loading(run: Run) -> Html:
    """Return how to load the compact model, with this package and without it."""
    files = as_table(run.summary.get("files"))
    path = run.folder / (as_text(files.get("compact")) or "compact.safetensors")
    if not run.finished or not path.is_file():
        text = "There is no compact model in the folder yet; it is written when the run ends."
        return write_section("loading", "Loading the model", write_paragraph(text))
    size = format_bytes(path.stat().st_size)
    return write_section(
        "loading",
        "Loading the model",
        write_paragraph(f"The compact model is one file of {size}, with no pickle in it."),
        write_code(_WITH.format(path=path.as_posix()), "Loading with archlearn"),
        write_paragraph("Without this package, any reader of safetensors opens it:"),
        write_code(_WITHOUT.format(path=path.as_posix()), "Loading without archlearn"),
        *_normalisation(as_table(run.summary.get("normalisation"))),
    )


def write_configuration(run: Run) -> Html:
    """Return the configuration of the run, a list for each part of the file."""
    plain = {key: value for key, value in run.config.items() if not is_table(value)}
    parts = [_block(name, as_table(value)) for name, value in run.config.items()]
    used = _block("strengths in use", as_table(run.summary.get("strengths")))
    blocks = [_block("run", plain), *parts, used]
    grid = fill('<div class="columns">$blocks</div>', blocks=join(blocks))
    return write_section("configuration", "Configuration", grid)


def write_provenance(run: Run) -> Html:
    """Return the command, the machine and the versions that made the run."""
    command = as_text(run.summary.get("command"))
    body = [write_code(command, "Command")] if command else []
    pairs = list(_facts(run))
    body += [write_pairs(pairs)] if pairs else []
    return write_section("provenance", "How it was made", *body)


def _normalisation(numbers: Table) -> Iterator[Html]:
    """Say what the model expects of its inputs, and what its outputs are, where it is known."""
    if as_items(numbers.get("mean")):
        yield write_paragraph(
            f"The model was given (x − mean) / std, with mean {_few(numbers.get('mean'))} and std "
            f"{_few(numbers.get('std'))}; images count from 0 to 1."
        )
    target = as_items(numbers.get("target_mean")), as_items(numbers.get("target_std"))
    if target not in (((), ()), ((0.0,), (1.0,))):
        yield write_paragraph(
            f"Its outputs are to be multiplied by {_few(numbers.get('target_std'))}, "
            f"and {_few(numbers.get('target_mean'))} to be added."
        )


def _few(value: object) -> str:
    """Write the numbers of a list, or where they are found if they are many."""
    return say(value) if len(as_items(value)) <= MOST_NUMBERS else "as in summary.json"


def _block(title: str, values: Table) -> Html:
    if not values:
        return Html("")
    pairs = write_pairs((name, say(value)) for name, value in values.items())
    return fill("<div><h3>$title</h3>$pairs</div>", title=title, pairs=pairs)


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    summary = run.summary
    if summary.get("data_source"):
        yield "Data from", say(summary["data_source"])
    seconds = as_number(summary.get("seconds"))
    if seconds is None and run.epochs:
        seconds = run.epochs[-1].seconds
    if seconds is not None:
        yield "Time", format_duration(seconds)
    for key, name in (("epochs", "Epochs"), ("steps", "Steps"), ("resumed", "Times resumed")):
        if key in summary:
            yield name, say(summary[key])
    cut = as_table(summary.get("shrinking"))
    if cut:
        epochs = ", ".join(say(epoch) for epoch in as_items(cut.get("epochs")))
        share = 100 * (as_number(cut.get("multiply_adds")) or 0.0)
        yield "Channels cut out", f"in the epochs {epochs}"
        yield "Computed by a step", f"{share:.0f} % of the original's multiply-adds, on average"
    for key in ("hardware", "versions"):
        for name, value in as_table(summary.get(key)).items():
            yield name, say(value)
