"""The end of a run's page: how to load the model, how it was made, and how to make it again."""

from collections.abc import Iterator

from archlearn.reporting.certificate_section import say
from archlearn.reporting.formatting import format_bytes, format_duration
from archlearn.reporting.html_elements import (
    write_code,
    write_pairs,
    write_paragraph,
    write_section,
)
from archlearn.reporting.json_values import Table, as_items, as_number, as_table, as_text, is_table
from archlearn.reporting.markup import Html, fill, join
from archlearn.reporting.run import Run

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
    for key in ("hardware", "versions"):
        for name, value in as_table(summary.get(key)).items():
            yield name, say(value)
