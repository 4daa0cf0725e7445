"""HTML and SVG, escaped."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from string import Template
from typing import Final
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from archlearn.reporting.colours import ROLE_OF_SHADE


@dataclass(frozen=True, slots=True)
class Html:
    """Text that is safe to stand in a page as it is."""

    text: str


def fill(template: str, **values: object) -> Html:
    """Return the template with each `$name` replaced, escaped unless it is `Html` already."""
    return Html(Template(template).substitute({name: _safe(v) for name, v in values.items()}))


def join(parts: Iterable[Html], between: str = "\n") -> Html:
    """Return the parts one behind the other."""
    return Html(between.join(part.text for part in parts))


def _safe(value: object) -> str:
    return value.text if isinstance(value, Html) else escape(str(value))


_SETTINGS: Final = {"svg.fonttype": "none", "svg.hashsalt": "archlearn", "path.simplify": True}


# A style element would hold for the whole page, and the metadata is links and dates.
_LEFT_OUT: Final = ("}metadata", "}style")


_SHADE = re.compile(r"#[0-9a-f]{6}\b")


# Versions of matplotlib write the family on its own, or behind the size.
_FAMILY = re.compile(r"(font-family:|font: (?:[\w.-]+ )*[\d.]+px) [^;]*")


_REFERENCE = re.compile(r"#(?=[A-Za-z])([\w.-]+)")


def write_svg(figure: Figure, name: str, title: str, description: str) -> Html:
    """Return the figure as an `svg` element with a title and a description for readers.

    Text stays text, in the font of the page. Colours with a role become variables of the page's
    style sheet. Identifiers begin with `name`, which must differ between figures of one page.
    """
    root = ElementTree.fromstring(_print(figure))
    for parent in list(root.iter()):
        for child in [c for c in parent if c.tag.endswith(_LEFT_OUT)]:
            parent.remove(child)
    for element in root.iter():
        _adapt_(element, name)
    box = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib |= {"viewBox": box, "role": "img", "aria-labelledby": f"{name}-t {name}-d"}
    _insert_text_(root, "desc", f"{name}-d", description)
    _insert_text_(root, "title", f"{name}-t", title)
    return Html(ElementTree.tostring(root, encoding="unicode", short_empty_elements=True))


def _print(figure: Figure) -> str:
    out = StringIO()
    # These settings have no argument in matplotlib; they hold for this drawing only.
    with mpl.rc_context(_SETTINGS):  # pyright: ignore[reportArgumentType]
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None})
    return out.getvalue()


def _adapt_(element: ElementTree.Element, name: str) -> None:
    """Drop the namespaces (HTML needs none), and set identifiers, colours and fonts."""
    element.tag = element.tag.rpartition("}")[2]
    attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    if "id" in attributes:
        attributes["id"] = f"{name}-{attributes['id']}"
    if attributes.get("href", "").startswith("#"):
        attributes["href"] = _REFERENCE.sub(rf"#{name}-\1", attributes["href"])
    if "clip-path" in attributes:
        attributes["clip-path"] = _REFERENCE.sub(rf"#{name}-\1", attributes["clip-path"])
    if "style" in attributes:
        attributes["style"] = _FAMILY.sub(r"\1 var(--font, sans-serif)", attributes["style"])
        attributes["style"] = _SHADE.sub(_variable, attributes["style"])
    element.attrib.clear()
    element.attrib |= attributes
    if element.text is not None and not element.text.strip():
        element.text = None
    element.tail = None


def _variable(shade: re.Match[str]) -> str:
    role = ROLE_OF_SHADE.get(shade[0])
    return f"var(--{role}, {shade[0]})" if role else shade[0]


def _insert_text_(root: ElementTree.Element, tag: str, identifier: str, text: str) -> None:
    element = ElementTree.Element(tag, {"id": identifier})
    element.text = text
    root.insert(0, element)


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
