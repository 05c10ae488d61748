"""Markdown, as models write it, in Slack's own marks (https://docs.slack.dev/messaging/formatting-message-text)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from miniclaw_sessions.channels.markdown import ListsInText, fenced, parser_with
from miniclaw_sessions.files.formats.fences import is_too_deep

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def mrkdwn(markdown: str) -> str:
    """The text with Slack's marks: headings are bold, lists have bullets, tables are shown as they were written.

    No word is left out: where something nests too deep, all of it is shown as it was written. No person is called:
    Slack reads no mention in what is escaped.
    """
    parser = _parser()
    tokens = parser.parse(markdown)
    if is_too_deep(tokens, parser):
        return escaped(markdown)
    text: str = parser.renderer.render(tokens, parser.options, {"lines": markdown.splitlines()})
    return text.strip("\n")


def escaped(text: str) -> str:
    """A text that Slack shows to the letter, apart from marks."""
    return re.sub("[&<>]", lambda found: _ENTITIES[found[0]], text)


def unescaped(text: str) -> str:
    """What a person wrote, from what Slack makes of it, such as `<@U1>`, `<https://a.example|here>`, `&amp;`."""
    text = re.sub(r"<([^<>|]*)(?:\|([^<>]*))?>", _written, text)
    for letter, entity in reversed(_ENTITIES.items()):
        text = text.replace(entity, letter)
    return text


def _written(found: re.Match[str]) -> str:
    target, label = found[1], found[2]
    if target[:1] in {"@", "#", "!"}:
        sign = "@" if target.startswith("!") else target[:1]
        return sign + (label or target[1:]).removeprefix(sign)
    is_told = not label or target.removeprefix("mailto:").removeprefix("http://") == label
    return (label or target) if is_told else f"{label} ({target})"


_TEXTS = {
    "paragraph_open": "",
    "heading_open": "*",
    "heading_close": "*\n\n",
    "strong_open": "*",
    "strong_close": "*",
    "em_open": "_",
    "em_close": "_",
    "s_open": "~",
    "s_close": "~",
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


class _Renderer(ListsInText, RendererHTML):
    """A text in place of HTML; tables and quotations are rendered as a whole, from their first token on."""

    indent = "    "

    def render(self, tokens: Sequence[Token], options: Any, env: Any) -> str:
        """As the library's, with a table's lines in place of its cells, and a `>` before each line of a quotation."""
        texts, index = [], 0
        while index < len(tokens):
            token = tokens[index]
            within = self._within(tokens, index) if token.type in {"table_open", "blockquote_open"} else []
            if token.type == "table_open" and token.map:
                texts.append(_block("\n".join(env["lines"][slice(*token.map)])))
            elif token.type == "blockquote_open":
                quoted = self.render(within, options, env).strip("\n")
                texts.append("".join(f"> {line}\n" for line in quoted.splitlines()) + "\n")
            elif token.type == "inline":
                texts.append(self.renderInline(token.children or [], options, env))
            else:
                rule = self.rules.get(token.type)
                texts.append(str(rule(tokens, index, options, env)) if rule else escaped(token.content))
            index += len(within) + (2 if within else 1)
        return "".join(texts)

    @staticmethod
    def _within(tokens: Sequence[Token], index: int) -> list[Token]:
        """The tokens between an opening one and the one that closes it."""
        level = tokens[index].level
        return list(takewhile(lambda token: token.level > level, tokens[index + 1 :]))

    def paragraph_close(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """An empty line behind a paragraph, none behind a list's item."""
        return "\n" if tokens[index].hidden else "\n\n"

    def text(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """Words."""
        return escaped(tokens[index].content)

    def code_inline(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """Code within a line; a tick in it would end it."""
        content = escaped(tokens[index].content)
        return content if "`" in content else f"`{content}`"

    def fence(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """Code; Slack shows no language."""
        return _block(tokens[index].content.rstrip("\n"))

    def code_block(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """Code without a fence."""
        return self.fence(tokens, index)

    def link_open(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """A link; an address that has Slack's own signs in it ends there."""
        address = str(tokens[index].attrGet("href") or "")
        return f"<{escaped(address).replace('|', '%7C')}|" if re.match("https?:|mailto:", address) else ""

    def link_close(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """Its end, where it had a beginning."""
        opening = next(one for one in reversed(tokens[:index]) if one.type == "link_open")
        return ">" if self.link_open([opening], 0) else f" ({escaped(str(opening.attrGet('href') or ''))})"

    def image(self, tokens: Sequence[Token], index: int, *_: Any) -> str:
        """A link to it."""
        source = str(tokens[index].attrGet("src") or "")
        words = escaped(tokens[index].content)
        return f"{words} ({escaped(source)})" if words else escaped(source)


def _block(code: str) -> str:
    return f"{fenced(escaped(code))}\n\n"
