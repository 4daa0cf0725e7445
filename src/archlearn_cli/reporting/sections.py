"""What the page of one run says, as plain data: headline, figures, tables."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from archlearn.costs import COSTS, label_of
from archlearn_cli.reporting.architecture_diagram import (
    describe_diagram,
    draw_diagram,
    read_diagram,
)
from archlearn_cli.reporting.figures import (
    FigureItem,
    draw_gate_history,
    draw_lines,
    draw_width_map,
    make_item,
)
from archlearn_cli.reporting.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_percent,
    format_ratio,
)
from archlearn_cli.reporting.run_reader import (
    GATES,
    JsonTable,
    NetworkState,
    RunRecord,
    read_json_lines,
    read_speed,
    score_of,
)
from archlearn_cli.reporting.series import (
    FigureData,
    budget_lines,
    count_gates,
    depth_lines,
    divide,
    gap_lines,
    loss_lines,
    parameter_lines,
    price_lines,
    score_lines,
    width_lines,
)

PICTURE_NOTE = "Bars are as long as the square root of their channels."
MOST_WIDTHS = 12
MOST_LINES = 6
"""More lines than this are drawn as a map."""
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


@dataclass(frozen=True, slots=True)
class TableItem:
    """A table of the page; the first column names its row."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[object]]


def describe_run(run: RunRecord) -> dict[str, Any]:
    """Return what `template.html` needs for the page of one run."""
    has_ends = run.before.architecture and not run.learns_nothing
    return {
        "run": run,
        "title": f"{run.name}: {write_title(run)}",
        "headline": write_title(run),
        "ends": [write_widths(end) for end in (run.before, run.after) if has_ends],
        "tiles": _tiles(run),
        "architecture": _architecture(run),
        "costs": TableItem(
            "Costs before and after",
            ("Cost", "Before", "After", "Left", "Fewer"),
            [_cost_row(*cost) for cost in _counted(run)],
        ),
        "by_layer": _by_layer(run),
        "speed": _speed(run),
        "progress": [item for item in (*_progress(run), _gates(run)) if item is not None],
        "epochs": TableItem(
            "Numbers by epoch",
            (
                *("Epoch", "Training loss", "Validation loss", run.score_name.capitalize()),
                *("Penalty", "Gap", "Parameters", "Time"),
            ),
            [_epoch_row(run, epoch) for epoch in run.epochs],
        ),
        "certificate": _certificate(run.summary.get("certificate", {})),
        "plan": run.summary.get("plan", ""),
        "cut": bool(run.summary.get("shrinking")),
        "compact": _compact(run),
        "normalisation": list(_normalisation(run.summary.get("normalisation", {}))),
        "configuration": list(_configuration(run)),
        "command": run.summary.get("command", ""),
        "facts": list(_facts(run)),
    }


def write_title(run: RunRecord) -> str:
    """Return what was learnt on what, in the user's own words."""
    return f"{run.model or 'A model'} on {run.data or 'data'}"


def write_widths(standing: NetworkState) -> str:
    """Return the architecture; its sums only where it is no chain, or too long to be read."""
    widths = standing.widths.values()
    if len(widths) <= MOST_WIDTHS and "\n" not in standing.architecture:
        return standing.architecture + (" (one layer)" if len(widths) == 1 else "")
    return f"{sum(widths):,} channels in {len(widths)} layers"


def format_score(run: RunRecord, score: float | None) -> str:
    """Return an accuracy of a run in per cent, or its squared error."""
    return format_number(score) if run.regression else format_percent(score)


def say(value: object) -> str:
    """Write any value of a file for reading."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return format_number(value)
    if isinstance(value, list):
        return ", ".join(map(say, cast("list[object]", value))) or "–"
    return "–" if value is None or value == "" else str(value)


def _tiles(run: RunRecord) -> list[tuple[str, str, str]]:
    """Return label, value and remark of each main number."""
    n_test = run.summary.get("n_test")
    on = f"on {n_test:,} test examples" if n_test and run.score_source == "test" else ""
    where = on or f"on {run.score_source} data"
    if run.score_before is not None:
        where += f", {format_score(run, run.score_before)} before"
    tiles = [(run.score_name.capitalize(), format_score(run, run.score), where)]
    if run.summary.get("task") == "next_token":
        loss = format_number(run.summary["test_loss"])
        tiles.append(("Loss", loss, "nats a token, on test data"))
    for label, before, after in _counted(run):
        saved = f"of {format_count(before)}, {format_ratio(before, after)} fewer"
        tiles.append((label, format_count(after), _remark(saved, before, after)))
    if run.learns_nothing:
        return tiles
    before, after = (len(standing.widths) or None for standing in (run.before, run.after))
    return [*tiles, ("Layers", format_count(after), _remark(f"of {before}", before, after))]


def _remark(saved: str, before: int | None, after: int | None) -> str:
    """Return what is said below a count; nothing of what is not known."""
    if before is None or after is None:
        return ""
    return saved if before != after else "unchanged"


def _counted(run: RunRecord) -> tuple[tuple[str, int | None, int | None], ...]:
    before, after = run.before.costs, run.after.costs
    return tuple((label_of(name).capitalize(), before[name], after[name]) for name in COSTS)


def _cost_row(label: str, before: int | None, after: int | None) -> tuple[str, ...]:
    share = divide(after, before)
    return (
        label,
        format_count(before),
        format_count(after),
        f"{100 * min(share or 0.0, 1.0):.2f}",
        format_percent(share, 1 if share and share > 0.01 else 2),
        format_ratio(before, after),
    )


def _by_layer(run: RunRecord) -> TableItem:
    """Return one row for each layer that multiplies, then what is left, the sums and the score."""
    before, after = run.before, run.after
    counts: dict[str, tuple[int | None, ...]] = {}
    for name, (parameters, multiply_adds) in before.layers.items():
        if multiply_adds:
            left = after.layers.get(name, (0, 0))
            counts[name] = (parameters, left[0], multiply_adds, left[1])
    names = ("parameters", "multiply_adds")
    total = tuple(end.costs[name] for name in names for end in (before, after))
    if counts:
        columns = zip(total, zip(*counts.values(), strict=True), strict=True)
        rest = tuple((n or 0) - sum(n or 0 for n in column) for n, column in columns)
        counts |= {"norms and others": rest} if any(rest) else {}
    shares = [format_percent(divide(total[n + 1], total[n]), 1) for n in (0, 2)]
    scores = [format_score(run, score) for score in (run.score_before, run.score)]
    rows = [(name, *map(format_count, row)) for name, row in (*counts.items(), ("total", total))]
    rows.append(("left", "", shares[0], "", shares[1]))
    rows.append((f"{run.score_name} ({run.score_source})", *scores, "", ""))
    head = ("layer", "parameters", "after", "multiply-adds", "after")
    return TableItem(f"{write_title(run)}, before and after", head, rows)


def _speed(run: RunRecord) -> TableItem | None:
    """Return what `archlearn evaluate` has measured, beside the ratio of multiply-adds."""
    rows = read_speed(run.folder)
    if not rows:
        return None
    counted = format_ratio(*(end.costs["multiply_adds"] for end in (run.before, run.after)))
    return TableItem(
        f"Time and memory of a forward pass; it has {counted} fewer multiply-adds",
        ("Device and batch", "Before", "After", "Faster", "Memory before", "After"),
        [
            (
                f"{row['device']}, {row['batch_size']}",
                *(f"{1000 * seconds:.3g}\u00a0ms" for seconds in row["seconds"]),
                format_ratio(*row["seconds"]),
                *map(format_bytes, row["bytes"]),
            )
            for row in rows
        ],
    )


def _architecture(run: RunRecord) -> FigureItem | None:
    if not run.before.widths:
        return None
    now = "after compacting" if run.finished else "as the gates stand now"
    numbers = read_diagram(run)
    texts = (f"Outline: at the start. Filled: {now}. {PICTURE_NOTE}", describe_diagram(numbers))
    return make_item(draw_diagram(numbers), "architecture", "Channels of each layer.", texts)


def _progress(run: RunRecord) -> Iterator[FigureItem | None]:
    """Yield the figures over epochs; None for what was not measured."""
    name = run.score_name.capitalize()
    yield _over_epochs("score", f"{name}.", "On validation data.", score_lines(run))
    has_penalty = any(epoch.get("penalty") for epoch in run.epochs)
    caption = "The penalty comes on top in training." if has_penalty else "Of the task alone."
    yield _over_epochs("loss", "Loss.", caption, loss_lines(run))
    if run.learns_nothing:
        return
    caption = "Layers that never change are left out."
    yield _over_epochs("widths", "Widths.", caption, width_lines(run))
    depth = depth_lines(run)
    caption = f"Not learnt in this run; the network has {len(run.before.widths)} layers."
    if not depth.empty:
        caption = "A linear layer can merge with the next; a closed branch is left out."
    yield _over_epochs("depth", "Depth.", caption, depth) or FigureItem("depth", "Depth.", caption)
    yield _over_epochs("size", "Size.", "If compacted at that epoch.", parameter_lines(run))
    text = "The cost, what it may be, and what a step computes."
    yield _over_epochs("budget", "Budget.", text, budget_lines(run))
    yield _over_epochs("price", "Price.", "Channels that earn less are closed.", price_lines(run))
    yield _over_epochs("gap", "Binarisation gap.", "At 0, every gate is binary.", gap_lines(run))


def _over_epochs(name: str, title: str, caption: str, numbers: FigureData) -> FigureItem | None:
    if numbers.empty:
        return None
    as_map = name == "widths" and len(numbers.lines) > MOST_LINES
    figure = draw_width_map(numbers) if as_map else draw_lines(numbers)
    return make_item(figure, name, title, (caption, describe_lines(numbers)))


def describe_lines(numbers: FigureData) -> str:
    """Return the first and last value of each line, in words."""
    form = format_percent if numbers.scale in ("share", "accuracy") else format_number
    return "; ".join(
        f"{line.label}: {form(line.values[0])} at epoch {line.epochs[0]}, "
        f"{form(line.values[-1])} at epoch {line.epochs[-1]}"
        for line in numbers.lines
        if line.values
    )


def _epoch_row(run: RunRecord, epoch: JsonTable) -> tuple[str, ...]:
    return (
        str(epoch["epoch"]),
        *(format_number(epoch.get(name)) for name in ("train_loss", "validation_loss")),
        format_score(run, score_of(epoch)),
        *(format_number(epoch.get(name)) for name in ("penalty", "binarisation_gap")),
        format_count(epoch.get("parameters")),
        format_duration(epoch.get("seconds")),
    )


def _gates(run: RunRecord) -> FigureItem | None:
    """Return where the width gates stood after each epoch."""
    counts = count_gates(read_json_lines(run.folder / GATES))
    if not counts or not counts[-1].n_gates:
        return None
    first, last = counts[0], counts[-1]
    caption = (
        "Each column is an epoch; gates below the dashed line drop their channel. At the end "
        f"{last.undecided:,} of {last.n_gates:,} are undecided, between 0.1 and 0.9."
    )
    ends = (
        f"Of {last.n_gates:,} width gates, {first.kept:,} stood at one half or above after "
        f"epoch {first.epoch}, and {last.kept:,} after epoch {last.epoch}."
    )
    return make_item(draw_gate_history(counts), "gates", "Width gates.", (caption, ends))


def _certificate(certificate: JsonTable) -> dict[str, Any]:
    """Return what was compared, and the differences found."""
    if not certificate:
        return {}
    rows = [
        (precision, say(certificate[f"difference{end}"]), say(certificate[f"tolerance{end}"]))
        for precision, end in ((certificate["dtype"], ""), ("float64", "_float64"))
    ]
    head = ("Precision", "Largest difference", "Allowed")
    return {
        "n_inputs": certificate["n_inputs"],
        "differences": TableItem("Differences", head, rows),
    }


def _compact(run: RunRecord) -> dict[str, str]:
    """Return how to load the compact model, with this package and without it."""
    path = run.folder / "compact.safetensors"
    if not run.finished or not path.is_file():
        return {}
    return {
        "size": format_bytes(path.stat().st_size),
        "with_archlearn": _WITH.format(path=path.as_posix()),
        "without": _WITHOUT.format(path=path.as_posix()),
    }


def _normalisation(numbers: JsonTable) -> Iterator[str]:
    """Say what the model expects of its inputs, and what its outputs are, where it is known."""
    if numbers.get("mean"):
        yield (
            f"The model was given (x − mean) / std, with mean {_few(numbers['mean'])} and std "
            f"{_few(numbers['std'])}; images count from 0 to 1."
        )
    target = numbers.get("target_mean", []), numbers.get("target_std", [])
    if target not in (([], []), ([0.0], [1.0])):
        yield (
            f"Its outputs are to be multiplied by {_few(target[1])}, and {_few(target[0])} to be "
            "added."
        )


def _few(values: list[float]) -> str:
    """Write the numbers of a list, or where they are found if they are many."""
    return say(values) if len(values) <= MOST_NUMBERS else "as in summary.json"


def _configuration(run: RunRecord) -> Iterator[tuple[str, Iterable[tuple[str, str]]]]:
    """Yield the settings of each part of the file, under its name."""
    parts = {key: value for key, value in run.config.items() if isinstance(value, dict)}
    plain = {key: value for key, value in run.config.items() if key not in parts}
    used = run.summary.get("strengths", {})
    for name, values in {"run": plain, **parts, "strengths in use": used}.items():
        if values:
            yield name, [(key, say(value)) for key, value in values.items()]


def _facts(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield data, time, machine and versions that made the run."""
    summary = run.summary
    if summary.get("data_source"):
        yield "Data from", say(summary["data_source"])
    seconds = summary.get("seconds", run.epochs[-1].get("seconds") if run.epochs else None)
    if seconds is not None:
        yield "Time", format_duration(seconds)
    for key, name in (("epochs", "Epochs"), ("steps", "Steps"), ("resumed", "Times resumed")):
        if key in summary:
            yield name, say(summary[key])
    cut = summary.get("shrinking")
    if cut:
        yield "Channels cut out", f"in the epochs {say(cut['epochs'])}"
        share = f"{100 * cut['multiply_adds']:.0f} %"
        yield "Computed by a step", f"{share} of the original's multiply-adds, on average"
        yield "Memory in training", ", at the end ".join(map(format_bytes, cut["memory_bytes"]))
    for key in ("hardware", "versions"):
        for name, value in summary.get(key, {}).items():
            yield name, say(value)
