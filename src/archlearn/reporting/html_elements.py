"""The parts a page is built of: figures, tables, lists and sections."""

from collections.abc import Iterable, Sequence

from matplotlib.figure import Figure

from archlearn.reporting.markup import Html, fill, join
from archlearn.reporting.svg import write_svg

_FIGURE = """<figure id="$name">
<figcaption><strong>$title</strong> $caption</figcaption>
$svg
</figure>"""
_SECTION = """<section aria-labelledby="$name-title">
<h2 id="$name-title">$title</h2>
$body
</section>"""
_TABLE = """<div class="scroll" tabindex="0" role="region" aria-label="$caption"><table>
<caption>$caption</caption>
<thead><tr>$head</tr></thead>
<tbody>
$body
</tbody>
</table></div>"""


def write_figure(figure: Figure, name: str, title: str, texts: tuple[str, str]) -> Html:
    """Return a figure with its title and the texts: a caption, and its content in words."""
    caption, description = texts
    svg = write_svg(figure, name, title, description)
    return fill(_FIGURE, name=name, title=title, caption=caption, svg=svg)


def write_section(name: str, title: str, *body: Html) -> Html:
    """Return a section under a heading, or nothing where there is nothing to say."""
    if not any(part.text for part in body):
        return Html("")
    return fill(_SECTION, name=name, title=title, body=join(body))


def write_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """Return a table; the first column names its row, and the other columns are numbers."""
    cells = (fill('<th scope="col">$text</th>', text=text) for text in head)
    body = join(_row(row) for row in rows)
    return fill(_TABLE, caption=caption, head=join(cells, ""), body=body)


def write_pairs(pairs: Iterable[tuple[str, object]]) -> Html:
    """Return names with their values, as a list."""
    item = "<div><dt>$name</dt><dd>$value</dd></div>"
    return fill("<dl>$items</dl>", items=join(fill(item, name=name, value=v) for name, v in pairs))


def write_paragraph(text: object, kind: str = "") -> Html:
    """Return a paragraph, of a kind the style sheet knows."""
    return fill('<p class="$kind">$text</p>' if kind else "<p>$text</p>", kind=kind, text=text)


def write_code(text: str, label: str) -> Html:
    """Return program text as it stands."""
    template = '<pre tabindex="0" role="region" aria-label="$label"><code>$text</code></pre>'
    return fill(template, text=text, label=label)


def _row(row: Sequence[object]) -> Html:
    first, *others = row
    cells = (fill("<td>$text</td>", text=text) for text in others)
    return fill('<tr><th scope="row">$first</th>$cells</tr>', first=first, cells=join(cells, ""))
