"""Text from anybody as HTML: a little Markdown, and nothing that the text could reach the page with.

Everything is escaped first; the tags around it are ours, without attributes that a text has a say in. What is written
in Markdown reads as such: code, tables, headings, lists, emphasis. What is not understood is shown as it stands. The
time is proportional to the length, whatever the text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from itertools import zip_longest

from miniclaw_sessions.protocol.printable import printable

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[^`]*")
_HEADING = re.compile(r"#{1,6}[ \t]+(?=\S)")
_ITEM = re.compile(r"([ \t]*)(?:[-*+]|\d{1,4}[.)])[ \t]+(?=\S)")
_RULE = re.compile(r"(?:-{3,}|\*{3,}|_{3,})[ \t]*")
_TABLE_RULE = re.compile(r"\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*")
_CODE = re.compile(r"`([^`\n]+)`")
_BOLD = re.compile(r"\*\*(?=\S)([^*\n]+)(?<=\S)\*\*")
_ITALIC = re.compile(r"(?<![\w*])\*(?=[^\s*])([^*\n]+)(?<=\S)\*(?![\w*])")
_CODE_HERE = "\x00"  # cannot be in an escaped text, which shows control characters in other words
_DEEPEST_INDENT = 4


def escaped(text: str) -> str:
    """A text on one line, for an element or a quoted attribute."""
    return html.escape(printable(text))


def preformatted(text: str, kind: str = "") -> str:
    """A text as it stands, in a block; `kind` is a class of ours."""
    named = f' class="{kind}"' if kind else ""
    return f"<pre{named}>\n{_block(text)}</pre>"  # a first line feed within <pre> is left out by browsers


def prose(text: str) -> str:
    """A text of several lines, as paragraphs, code, lists, tables."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(_blocks(lines))


def _blocks(lines: list[str]) -> Iterator[str]:
    at = 0
    while at < len(lines):
        line = lines[at]
        end = at + 1
        if fence := _FENCE.fullmatch(line):
            end = _end_of_code(lines, end, fence[1])
            yield preformatted("\n".join(lines[at + 1 : end - 1 if _closes(lines[end - 1], fence[1]) else end]), "code")
        elif line.startswith(">"):
            end = _end_of(lines, end, ">")
            yield f"<blockquote>{_inline(_unquoted(lines[at:end]))}</blockquote>"
        elif line.startswith("|") and end < len(lines) and _TABLE_RULE.fullmatch(lines[end]):
            end = _end_of(lines, end, "|")
            yield _table(lines[at], lines[at + 2 : end])
        elif heading := _HEADING.match(line):
            yield f'<p class="heading">{_inline(line[heading.end() :])}</p>'
        elif item := _ITEM.match(line):
            indent = min(len(item[1].expandtabs(4)) // 2, _DEEPEST_INDENT)
            yield f'<p class="item in{indent}">{_inline(line.strip())}</p>'
        elif _RULE.fullmatch(line):
            yield "<hr>"
        elif line.strip():
            end = _end_of_paragraph(lines, end)
            yield f"<p>{_inline(chr(10).join(lines[at:end]))}</p>"
        at = end


def _end_of_code(lines: list[str], at: int, fence: str) -> int:
    """Right after the closing fence, or the end of the text."""
    while at < len(lines) and not _closes(lines[at], fence):
        at += 1
    return min(at + 1, len(lines))


def _closes(line: str, fence: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and not mark.strip(fence[0])


def _end_of(lines: list[str], at: int, beginning: str) -> int:
    while at < len(lines) and lines[at].startswith(beginning):
        at += 1
    return at


def _end_of_paragraph(lines: list[str], at: int) -> int:
    while at < len(lines) and lines[at].strip() and not _begins_block(lines[at]):
        at += 1
    return at


def _begins_block(line: str) -> bool:
    return line.startswith((">", "|")) or any(kind.match(line) for kind in (_FENCE, _HEADING, _ITEM))


def _unquoted(lines: list[str]) -> str:
    return "\n".join(line.removeprefix(">").removeprefix(" ") for line in lines)


def _table(head: str, rows: list[str]) -> str:
    top = "\n".join(f"<th>{_inline(cell)}</th>" for cell in _cells(head))
    body = "\n".join(f"<tr>{' '.join(f'<td>{_inline(cell)}</td>' for cell in _cells(row))}</tr>" for row in rows)
    return f'<div class="table"><table><tr>{top}</tr>{body}</table></div>'


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().removeprefix("|").removesuffix("|").split("|")]


def _inline(text: str) -> str:
    """Code, bold and italic; within code nothing else is looked for."""
    codes: list[str] = []

    def set_apart(match: re.Match[str]) -> str:
        codes.append(f"<code>{match[1]}</code>")
        return _CODE_HERE

    bold = _BOLD.sub(r"<strong>\1</strong>", _CODE.sub(set_apart, _block(text)))
    marked = _ITALIC.sub(r"<em>\1</em>", bold).split(_CODE_HERE)
    return "".join(piece for pair in zip_longest(marked, codes, fillvalue="") for piece in pair)


def _block(text: str) -> str:
    return html.escape(printable(text.replace("\r\n", "\n"), lines=True))
