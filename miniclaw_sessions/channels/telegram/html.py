"""Markdown, as models write it, in the few tags that Telegram's messages have (https://core.telegram.org/bots/api#html-style)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from miniclaw_sessions.channels.markdown import ListsInText, parser_with
from miniclaw_sessions.files.formats.fences import is_too_deep


def telegram_html(markdown: str) -> str:
    """The text with Telegram's tags: headings are bold, lists have bullets, tables are shown as they were written.

    No word is left out: where something nests too deep, all of it is shown as it was written.
    """
    parser = _parser()
    parsed = parser.parse(markdown)
    if is_too_deep(parsed, parser):
        return str(escapeHtml(markdown))
    tokens = list(_without_tables(parsed, markdown.splitlines()))
    html: str = parser.renderer.render(tokens, parser.options, {})
    return re.sub(r"\s+</blockquote>", "</blockquote>", html).strip("\n")


_TEXTS = {
    "paragraph_open": "",
    "heading_open": "<b>",
    "heading_close": "</b>\n\n",
    "bullet_list_open": "",
    "ordered_list_open": "",
    "list_item_close": "",
    "hr": "\N{EM DASH}\N{EM DASH}\N{EM DASH}\n\n",
    "softbreak": "\n",
    "hardbreak": "\n",
}


@cache
def _parser() -> MarkdownIt:
    return parser_with(_Renderer, _TEXTS)


def _without_tables(tokens: Sequence[Token], lines: Sequence[str]) -> Iterator[Token]:
    is_outside = True
    for token in tokens:
        if token.type == "table_open" and token.map:
            yield Token("code_block", "", 0, content="\n".join(lines[slice(*token.map)]), level=token.level)
            is_outside = False
        elif token.type == "table_close":
            is_outside = True
        elif is_outside:
            yield token


class _Renderer(ListsInText, RendererHTML):
    """What is not said here is as in HTML: strong, em, s, code."""

    def paragraph_close(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """An empty line behind a paragraph, none behind a list's item."""
        return "\n" if tokens[index].level else "\n\n"

    def blockquote_open(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """A quotation; they do not nest."""
        return "" if tokens[index].level else "<blockquote>"

    def blockquote_close(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """Its end."""
        return "" if tokens[index].level else "</blockquote>\n\n"

    def fence(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """Code, with its language."""
        token = tokens[index]
        code = escapeHtml(token.content.rstrip("\n"))
        if token.info:  # else it has no language, and its words stand before it
            code = f'<code class="language-{escapeHtml(token.info)}">{code}</code>'
        return f"<pre>{code}</pre>\n\n"

    def code_block(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """Code without a fence."""
        return self.fence(tokens, index)

    def link_open(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """A link without a title, which Telegram does not have."""
        return f'<a href="{escapeHtml(str(tokens[index].attrGet("href") or ""))}">'

    def image(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """A link to it."""
        token = tokens[index]
        source = escapeHtml(str(token.attrGet("src") or ""))
        return f'<a href="{source}">{escapeHtml(token.content) or source}</a>'
