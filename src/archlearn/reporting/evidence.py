"""The compact model computes what the gated model computed: the certificate says how closely."""

from archlearn.reporting.elements import write_code, write_pairs, write_paragraph, write_section
from archlearn.reporting.formats import format_number
from archlearn.reporting.markup import Html, fill
from archlearn.reporting.runs import Run
from archlearn.reporting.values import Table, as_number, as_table, as_text, is_list, is_table

_PLAN = "<details><summary>What was dropped and merged: the plan</summary>$plan</details>"


def write_certificate(run: Run) -> Html:
    """Return the certificate of exactness as written, and the plan that was carried out."""
    certificate = as_table(run.summary.get("certificate"))
    if not certificate:
        text = "There is no certificate: the run has not been compacted yet."
        return write_section("certificate", "Certificate of exactness", write_paragraph(text))
    text = (
        "The gated and the compact model were given the same inputs. "
        "These are the largest differences between their outputs."
    )
    pairs = write_pairs((name_words(key), say(value)) for key, value in certificate.items())
    plan = as_text(run.summary.get("plan"))
    details = fill(_PLAN, plan=write_code(plan, "Plan")) if plan else Html("")
    body = (write_paragraph(text), pairs, details)
    return write_section("certificate", "Certificate of exactness", *body)


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
