"""Text from anybody as HTML: Markdown, and nothing that the text could reach the page with.

What strangers wrote is never markup: HTML in it is text, and so are links and images, because what they name would be
loaded or followed. The tags are ours, without attributes that a text has a say in.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block.table import escapedSplit
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from miniclaw_sessions.files.formats.fences import is_too_deep, keeping_words
from miniclaw_sessions.printable import printable

_BLOCKS = ("blockquote", "code", "fence", "heading", "hr", "list", "table")
_INLINE = ("backticks", "balance_pairs", "emphasis", "escape", "fragments_join", "newline")


def escaped(text: str) -> str:
    """A text on one line, for an element or a quoted attribute."""
    return html.escape(printable(text))


def preformatted(text: str, kind: str = "") -> str:
    """A text as it stands, in a block; `kind` is a class of ours."""
    named = f' class="{kind}"' if kind else ""
    return f"<pre{named}>\n{html.escape(_shown(text))}</pre>"  # a first line feed within <pre> is left out by browsers


def prose(text: str) -> str:
    """A text of several lines, as paragraphs, code, lists, tables; as it stands, where a part would be left out."""
    shown = _shown(text)
    tokens, lines = _MARKDOWN.parse(shown), shown.split("\n")
    if is_too_deep(tokens, _MARKDOWN) or any(_leaves_out_cells(token, lines) for token in tokens):
        return preformatted(text)
    return str(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))


def _leaves_out_cells(token: Token, lines: Sequence[str]) -> bool:
    """Whether the parser leaves out cells of a table, those beyond the cells of its head."""
    if token.type != "table_open" or not token.map:
        return False
    head, *rows = (len(escapedSplit(row.strip(" \t|>"))) for row in lines[slice(*token.map)])
    return max(rows) > head


def _shown(text: str) -> str:
    return printable(text.replace("\r\n", "\n"), lines=True)


class _Renderer(RendererHTML):
    """Our own tags and classes; of what a text says in its marks only the number with which a list begins.

    A heading is a paragraph, so that the page's own outline stays as it is.
    """

    def renderToken(  # noqa: N802 - the library's name
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
    ) -> str:
        token = tokens[idx]
        if token.type.startswith("heading"):
            token.tag = "p"
        token.attrs = {"start": token.attrs["start"]} if "start" in token.attrs else {}
        if token.type == "heading_open":
            token.attrs = {"class": "heading"}
        return str(super().renderToken(tokens, idx, options, env))

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:  # noqa: ARG002
        return preformatted(tokens[idx].content.removesuffix("\n"), "code") + "\n"

    code_block = fence

    def table_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:  # noqa: ARG002
        return '<div class="table"><table>\n'

    def table_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:  # noqa: ARG002
        return "</table></div>\n"


_MARKDOWN = MarkdownIt("zero", {"html": False, "maxNesting": 41}, renderer_cls=_Renderer).enable([*_BLOCKS, *_INLINE])
keeping_words(_MARKDOWN)
