"""What people write beyond CommonMark: mathematics, footnotes, bare addresses.

Each rule looks only a bounded way ahead, so that no text takes long. A formula ends at an empty line, as in TeX: what
stands behind one belongs to no formula before it, also while a text still grows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from miniclaw_sessions.files.formats.html.addresses import BARE, bare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline

_MOST, _MOST_LINES = 1_000, 60
_CLOSERS = {"$$": "$$", "\\[": "\\]", "\\(": "\\)", "$": "$"}
_FOOTNOTE = re.compile(r"\[\^([^\s\[\]^]{1,40})\]")
_SIGNS = re.compile(r"[\\^_={}<>+*/]")
_WEB = re.compile(r"(?<![A-Za-z0-9])https?\Z", re.IGNORECASE)


def with_notation(parser: MarkdownIt) -> MarkdownIt:
    """Let a parser make tokens `formula`, `footnote` and links of bare addresses."""
    parser.block.ruler.before("fence", "formula", _formula_block, {"alt": ["paragraph", "blockquote", "list"]})
    parser.inline.ruler.before("escape", "formula", _formula)
    parser.inline.ruler.before("link", "footnote", _footnote)
    parser.inline.ruler.before("link", "address", _address)
    return parser


def may_become_formula(lines: Sequence[str], block: int, most_indented: int) -> bool:
    """Whether a text that goes on in its last line may make a formula of what begins in its first `block` lines.

    Lines that are indented further than by `most_indented` blanks begin none.
    """
    for at in range(max(0, len(lines) - _MOST_LINES), block):
        line = lines[at].lstrip(" ")
        opener, *behind = line[:2], line[2:].rstrip(" "), *lines[at + 1 :]
        if opener not in ("$$", "\\[") or len(lines[at]) - len(line) > most_indented:
            continue
        is_whole = all(one.strip() for one in behind[1:-1])
        if is_whole and not any(one.rstrip().endswith(_CLOSERS[opener]) for one in behind[:-1]):
            return True
    return False


def _formula_block(state: StateBlock, begin: int, end: int, silent: bool) -> bool:
    if state.is_code_block(begin):
        return False
    lines: list[str] = []
    at, opener = begin, ""
    for at in range(begin, min(end, begin + _MOST_LINES)):
        if at > begin and (state.isEmpty(at) or state.sCount[at] < state.blkIndent):
            return False  # it leaves the list or the quotation
        line = state.src[state.bMarks[at] + state.tShift[at] : state.eMarks[at]].rstrip()
        if at == begin:
            if (opener := line[:2]) not in ("$$", "\\["):
                return False
            line = line[2:]
        lines.append(line)
        if line.endswith(_CLOSERS[opener]):
            break
    else:
        return False
    formula = "\n".join(lines)[:-2]
    if not formula.strip() or _CLOSERS[opener] in formula:
        return False
    if not silent:
        token = state.push("formula", "", 0)
        token.block, token.info, token.content = True, "block", formula.strip()
        token.map = [begin, at + 1]
        state.line = at + 1
    return True


def _formula(state: StateInline, silent: bool) -> bool:
    source, at = state.src, state.pos
    opener = source[at : at + 2]
    if opener not in _CLOSERS:
        opener = source[at]
    if opener not in _CLOSERS:
        return False
    begin = at + len(opener)
    end = source.find(_CLOSERS[opener], begin, begin + _MOST)
    behind = end + len(opener)
    formula = source[begin:end]
    if end < 0 or not formula.strip():
        return False
    if not _is_meant(opener, formula, source[at - 1 : at], source[behind : behind + 1]):
        return False
    state.pos = end + len(opener)
    if not silent:
        token = state.push("formula", "", 0)
        token.info = "block" if opener in ("$$", "\\[") else ""
        token.content, token.markup = formula.strip(), source[at : state.pos]
    return True


def _is_meant(opener: str, formula: str, before: str, behind: str) -> bool:
    """Whether it is mathematics, and not money, the variables of a shell or a bracket that was escaped."""
    if opener == "$":
        stands_alone = not (before.isalnum() or before == "$" or behind.isalnum() or behind == "$")
        is_close = formula == formula.strip() and "\n" not in formula and not formula.endswith("\\")
        has_signs = bool(_SIGNS.search(formula)) or not re.search(r"\s", formula)
        is_money = bool(re.match(r"\d[\d.,]*(?:\s|$)", formula)) and not re.search(r"[\\^_=]", formula)
        return stands_alone and is_close and has_signs and not is_money
    return opener != "\\[" or (bool(_SIGNS.search(formula)) and behind != "(")


def _footnote(state: StateInline, silent: bool) -> bool:
    found = _FOOTNOTE.match(state.src, state.pos)
    if not found or state.src[found.end() : found.end() + 1] == "(":
        return False
    if not silent:
        state.push("footnote", "", 0).content = found[1]
    state.pos = found.end()
    return True


def _address(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] != ":" or state.linkLevel > 0:
        return False
    scheme, found = _WEB.search(state.pending[-6:]), BARE.match(state.src, state.pos, state.pos + 2_000)
    if not scheme or not found:
        return False
    written = bare(found[0])
    address = state.md.normalizeLink(scheme[0] + written)
    if not state.md.validateLink(address):
        return False
    if not silent:
        state.pending = state.pending[: -len(scheme[0])]
        state.push("link_open", "a", 1).attrs = {"href": address}
        state.push("text", "", 0).content = scheme[0] + written
        state.push("link_close", "a", -1)
    state.pos += len(written)
    return True
