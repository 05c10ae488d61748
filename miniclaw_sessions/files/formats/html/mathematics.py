r"""Mathematics as MathML, made of a list of elements and attributes that is ours.

The library's own text output does not escape (`convert` takes the escapes out again), and it makes attributes of what a
formula says (`\href`, `\style`). So only its tree is used, and only what stands in the lists below comes out.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from miniclaw_sessions.printable import printable

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_MOST = 2_000  # characters of a formula; the library takes 20 ms for as many
_MOST_MADE = 20_000  # characters of MathML
_REFUSED = re.compile(r"\\(?:(?:re)?newcommand|providecommand|[gex]?def|let)(?![A-Za-z])")  # a few lines make gigabytes
_ELEMENTS = frozenset(
    {
        *("math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "msup", "msub", "msubsup", "mfrac", "msqrt", "mroot"),
        *("mover", "munder", "munderover", "mtable", "mtr", "mtd", "mstyle", "mpadded", "menclose"),
    }
)
_ATTRIBUTES = {
    "display": {"inline", "block"},
    "stretchy": {"true", "false"},
    "fence": {"true", "false"},
    "accent": {"true", "false"},
    "form": {"prefix", "infix", "postfix"},
    "displaystyle": {"true", "false"},
}


def mathml(formula: str, *, is_block: bool) -> str | None:
    """A formula as MathML, with its source as the annotation; None where it is too long or not understood."""
    if len(formula) > _MOST or _REFUSED.search(formula):
        return None
    from latex2mathml.converter import Converter  # noqa: PLC0415 - most texts have no mathematics

    try:
        tree = Converter(display="block" if is_block else "inline").convert_to_element(formula)
        made = "".join(_markup(child) for child in tree)
    except Exception:  # noqa: BLE001 - a formula leads the library to any error, RecursionError among them
        return None
    if len(made) > _MOST_MADE:
        return None
    display = ' display="block"' if is_block else ""
    source = html.escape(printable(formula, lines=True))
    annotation = f'<annotation encoding="application/x-tex">{source}</annotation>'
    return f"<math{display}><semantics>{made}{annotation}</semantics></math>"


def _markup(element: Element) -> str:
    if element.tag not in _ELEMENTS:
        raise ValueError(element.tag)
    attributes = "".join(
        f' {name}="{value}"' for name, value in element.attrib.items() if value in _ATTRIBUTES.get(name, ())
    )
    text = html.escape(printable(html.unescape(element.text or "")))
    inner = "".join(f"{_markup(child)}{html.escape(printable(html.unescape(child.tail or '')))}" for child in element)
    return f"<{element.tag}{attributes}>{text}{inner}</{element.tag}>"
