"""The page around the tree and the articles: head, policy, layout.

Every row of the tree is an article, and stands in the page once: the current branch in the conversation, the others
below it, folded. The script moves articles between the two; it renders nothing, so that there is one place where text
becomes HTML, and it is in Python.
"""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from hashlib import sha256

from miniclaw_sessions.core.history.first_words import first_words, speaker
from miniclaw_sessions.core.protocol.entries import Entry, LeafMove, MessageEntry, SessionInfo, moves_leaf
from miniclaw_sessions.core.protocol.json_values import in_utc
from miniclaw_sessions.core.protocol.messages import Usage
from miniclaw_sessions.files.formats.codec import SessionFacts
from miniclaw_sessions.files.formats.html.articles import anchor, article, kind_of, tokens_and_cost
from miniclaw_sessions.files.formats.html.prose import escaped
from miniclaw_sessions.files.formats.html.sources import SHARED_STYLES, source
from miniclaw_sessions.files.formats.html.tree import folded, line_of, tree_list
from miniclaw_sessions.files.formats.outline import Branches, NumberedRow, Row, Shape, outline_of, with_entries

_HELD = 32
"""How many entries are read at a time; the last two lots are held."""


class HtmlPage:
    """Writes the page; see `codec.PageWriter`. It holds the shape of the tree, and reads the entries where it is."""

    def __init__(self, facts: SessionFacts) -> None:
        """No entries are known yet."""
        self._facts = facts
        self._shape = Shape()
        self._places = array("q")
        self._leaf: int | None = None
        self._title: str | None = None
        self._began: datetime | None = None
        self._messages = self._asked = 0
        self._used = Usage()

    def foresee(self, entry: Entry) -> None:
        """One entry, oldest first: it takes its place in the tree."""
        if isinstance(entry, LeafMove):
            if entry.target_id is None or self._shape.number_of(entry.target_id) is not None:
                self._leaf = self._shape.number_of(entry.target_id)
            return
        if not self._shape.add(entry):
            return
        if moves_leaf(entry):
            self._leaf = len(self._shape) - 1
        self._places.append(entry.sequence)
        self._began = self._began or entry.timestamp
        if isinstance(entry, SessionInfo) and entry.name.strip():
            self._title = entry.name
        if isinstance(entry, MessageEntry):
            self._messages += 1
            self._asked += entry.message.is_user
            if entry.message.usage is not None:
                self._used += entry.message.usage

    def pieces(self, read: Callable[[int, int], Sequence[Entry]]) -> Iterator[bytes]:
        """The page; the entries are read once more, twice each."""
        leaf = self._shape.number_of(self._facts.leaf_id)
        rows = outline_of(self._shape, self._leaf if leaf is None else leaf)
        for piece in self._pieces(rows, _Entries(self._places, read)):
            yield piece.encode()

    def _pieces(self, rows: Sequence[NumberedRow], entries: _Entries) -> Iterator[str]:
        name = self._title or self._facts.title or self._facts.session_id or self._facts.source_id
        title = escaped(name if name.strip() else "A conversation")
        style, script = "".join(map(source, (*SHARED_STYLES, "page.css"))), source("page.js")
        leaf = next((row for row in rows if row.is_leaf), None)
        to_leaf = anchor(entries.row(leaf).entry.id) if leaf is not None else "conversation"
        branches = Branches(rows)
        policy = (  # the page's own style and script, the images and sounds that it carries, and nothing else
            f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; "
            "media-src data:; base-uri 'none'; form-action 'none'"
        )
        yield f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<nav id="tree" aria-label="The conversation as a tree">
<div class="bar"><input id="search" type="search" placeholder="Search   /" aria-label="Search" hidden>
<a class="close" href="#conversation">Close</a></div>
<div id="hits" hidden></div>
<div id="branches" class="tree">"""
        yield from tree_list(folded(rows), lambda row: line_of(entries.row(row).entry))
        yield f"""</div>
<p class="keys" hidden><kbd>j</kbd> <kbd>k</kbd> move <kbd>o</kbd> open <kbd>/</kbd> search</p>
</nav>
<main>
<header>
<a class="open" href="#tree">Tree</a>
<h1 dir="auto">{title}</h1>
{self._about()}
</header>
<p id="aside" hidden>This branch was left. <a href="#{to_leaf}">Back to where the conversation goes on</a></p>
<section id="conversation">
"""
        yield from _articles(branches.current, branches, entries, self._facts.currency)
        if not branches.current:
            yield '<p class="missing">The conversation begins again here: nothing was said yet.</p>'
        yield "</section>\n"
        yield from _elsewhere(branches, entries, self._facts.currency)
        yield f"""</main>
<script>{script}</script>
</body>
</html>
"""

    def _about(self) -> str:
        """One line of facts, with the rest folded under it."""
        facts = self._facts
        line = [
            facts.channel,
            f"{in_utc(self._began):%-d %B %Y}" if self._began else "",
            f"{self._messages:,} messages",
            f"{self._asked:,} by the user",
            tokens_and_cost(self._used, facts.currency),
        ]
        used = {
            "Tokens in": self._used.input_tokens,
            "Tokens out": self._used.output_tokens,
            "Read from the cache": self._used.cache_read_tokens,
            "Written to the cache": self._used.cache_write_tokens,
        }
        more = {
            "Session": facts.session_id or facts.source_id,
            "Chat": facts.chat_id,
            "Forked from": facts.parent_session,
            "Came as": facts.format,
            "Entries": f"{len(self._shape):,}",
            **{name: f"{count:,}" for name, count in used.items() if count},
            **facts.metadata,
        }
        pairs = [f"<dt>{escaped(name)}</dt><dd>{escaped(str(value))}</dd>" for name, value in more.items() if value]
        shown = " · ".join(escaped(fact) for fact in line if fact)
        return f"<details><summary>{shown}</summary><dl>{''.join(pairs)}<dt>Times</dt><dd>UTC</dd></dl></details>"


class _Entries:
    """The entries by their numbers, read as they are needed, which is nearly always in order."""

    def __init__(self, places: array[int], read: Callable[[int, int], Sequence[Entry]]) -> None:
        self._places = places
        self._read = read
        self._newer: dict[int, Entry] = {}
        self._older: dict[int, Entry] = {}

    def row(self, row: NumberedRow) -> Row:
        """The row with its entries."""
        entries: list[Entry] = []
        for place in (self._places[number] for number in (row.entry, *row.folded)):
            if place not in self._newer and place not in self._older:
                self._older = self._newer
                self._newer = {entry.sequence: entry for entry in self._read(place - 1, _HELD)}
            entries.append(self._newer.get(place) or self._older[place])
        return with_entries(row, entries)


def _digest(source: str) -> str:
    return "sha256-" + b64encode(sha256(source.encode()).digest()).decode()


# --- the branches ----------------------------------------------------------------------------------------------------


def _articles(branch: Iterable[int], branches: Branches, entries: _Entries, currency: str) -> Iterator[str]:
    """The articles of a branch."""
    before = ""
    for number in branch:
        ways = [(way, entries.row(branches.rows[way])) for way in branches.ways.get(number, ())]
        parent = branches.parents[number]
        row = entries.row(branches.rows[number])
        kind = kind_of(row.entry)
        yield article(
            row,
            number=number,
            parent=parent if parent >= 0 else None,
            ways=ways,
            currency=currency,
            is_step=before == kind == "assistant",
        )
        before = "" if ways else kind


def _elsewhere(branches: Branches, entries: _Entries, currency: str) -> Iterator[str]:
    """The branches that were left, below the conversation; the script takes them from here."""
    if not branches.left:
        return
    yield '<section id="elsewhere"><h2>Branches that were left</h2>\n'
    for branch in branches.left:
        first = entries.row(branches.rows[branch[0]]).entry
        yield f"<details><summary><b>{escaped(speaker(first))}</b> {escaped(first_words(first))}</summary>"
        yield from _articles(branch, branches, entries, currency)
        yield "</details>\n"
    yield "</section>\n"
