"""A drawn figure becomes an SVG element that stands in a page and follows its colours."""

# Methods of matplotlib are annotated in part only.
# pyright: reportUnknownMemberType=false

import re
from io import StringIO
from typing import Final
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from archlearn.reporting.colours import ROLE_OF_SHADE
from archlearn.reporting.markup import Html

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
