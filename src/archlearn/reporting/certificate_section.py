"""The compact model computes what the gated model computed: the certificate says how closely."""

from collections.abc import Iterator

from archlearn.reporting.formatting import format_number
from archlearn.reporting.html_elements import (
    write_code,
    write_pairs,
    write_paragraph,
    write_section,
    write_table,
)
from archlearn.reporting.json_values import (
    Table,
    as_count,
    as_number,
    as_table,
    as_text,
    is_list,
    is_table,
)
from archlearn.reporting.markup import Html, fill
from archlearn.reporting.run import Run

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
