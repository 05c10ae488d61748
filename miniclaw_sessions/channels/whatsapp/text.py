"""Markdown, as models write it, with the few marks that WhatsApp has (https://faq.whatsapp.com/539178204879377)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from miniclaw_sessions.channels.markdown import fenced
from miniclaw_sessions.files.formats.fences import is_too_deep, keeping_words

_MARKS = {"strong": "*", "em": "_", "s": "~"}
_MARKED = re.compile(r"([*_~`]).*\1")


def whatsapp_text(markdown: str) -> str:
    """The text with WhatsApp's marks: headings are bold, links show where they lead, tables stay as they were written.

    No word is left out: where something nests too deep, all of it stays as it was written.
    """
    parser = _parser()
    tokens = parser.parse(markdown)
    if is_too_deep(tokens, parser):
        return markdown
    return _blocks(SyntaxTreeNode(tokens).children, markdown.splitlines())


def literal(text: str) -> str:
    """A text that is shown to the letter: where WhatsApp would take something in it for marks, all of it is code."""
    return fenced(text) if _MARKED.search(text) else text


@cache
def _parser() -> MarkdownIt:
    return keeping_words(MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]))


def _blocks(nodes: Iterable[SyntaxTreeNode], lines: list[str], between: str = "\n\n") -> str:
    return between.join(filter(None, (_block(node, lines) for node in nodes)))


def _block(node: SyntaxTreeNode, lines: list[str]) -> str:  # noqa: PLR0911 - one for each kind of block
    match node.type:
        case "heading":
            return f"*{_inline(node, bold='')}*"
        case "fence" | "code_block":
            return fenced(node.content.rstrip("\n"))
        case "table":
            first, end = node.map or (0, 0)
            return fenced("\n".join(lines[first:end]))
        case "blockquote":
            return "\n".join(f"> {line}".rstrip() for line in _blocks(node.children, lines).split("\n"))
        case "bullet_list" | "ordered_list":
            start = int(str(node.attrs.get("start", 1)))
            numbers = [
                f"{start + index}." if node.type == "ordered_list" else "-" for index in range(len(node.children))
            ]
            return "\n".join(_item(number, item, lines) for number, item in zip(numbers, node.children, strict=True))
        case "hr":
            return "\N{EM DASH}\N{EM DASH}\N{EM DASH}"
        case _:
            return _inline(node)


def _item(number: str, item: SyntaxTreeNode, lines: list[str]) -> str:
    return f"{number} " + _blocks(item.children, lines, "\n").replace("\n", "\n  ")


def _inline(node: SyntaxTreeNode, bold: str = "*") -> str:
    match node.type:
        case "text" | "text_special":
            return node.content
        case "softbreak" | "hardbreak":
            return "\n"
        case "code_inline":
            return node.content if "`" in node.content else f"`{node.content}`"
        case "image":
            return _link(node.content, str(node.attrs.get("src", "")))
        case kind:
            text = "".join(_inline(child, bold) for child in node.children)
            if kind == "link":
                return _link(text, str(node.attrs.get("href", "")))
            mark = bold if kind == "strong" else _MARKS.get(kind, "")
            return "\n".join(f"{mark}{line}{mark}" if line else "" for line in text.split("\n"))  # none goes over lines


def _link(text: str, address: str) -> str:
    shown = address.removeprefix("mailto:")
    return shown if text in ("", shown) else f"{text} ({shown})"
