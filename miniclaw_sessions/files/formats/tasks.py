"""Task lists: `- [ ] to do` and `- [x] done`, with a mark that pages and terminals can show."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore

_BOX = re.compile(r"\[([ xX])\](?=[ \t]\S)")


def showing_tasks(parser: MarkdownIt, *, as_text: bool = False) -> MarkdownIt:
    """Let a parser make a token `task`, or text, of the box at the beginning of a list's item."""
    parser.core.ruler.push("tasks", lambda state: _show_tasks(state, "text" if as_text else "task"))
    return parser


def _show_tasks(state: StateCore, kind: str) -> None:
    from markdown_it.token import Token  # noqa: PLC0415 - the library alone does without Markdown

    for item, paragraph, inline in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
        if item.type != "list_item_open" or paragraph.type != "paragraph_open" or not inline.children:
            continue
        first = inline.children[0]
        box = _BOX.match(first.content) if first.type == "text" else None
        if box:
            first.content = first.content[box.end() :]
            inline.children.insert(0, Token(kind, "", 0, content="☐" if box[1] == " " else "☑"))
