"""The page around the tree and the articles: head, policy, layout.

Every row of the tree is an article, and stands in the page once: the current branch in the conversation, the others
below it, folded. The script moves articles between the two; it renders nothing, so that there is one place where text
becomes HTML, and it is in Python.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

from miniclaw_sessions.formats.first_words import first_words, speaker
from miniclaw_sessions.formats.foreign import SessionFacts
from miniclaw_sessions.formats.html.articles import anchor, article, tokens_and_cost
from miniclaw_sessions.formats.html.prose import escaped
from miniclaw_sessions.formats.html.tree import tree_list
from miniclaw_sessions.formats.outline import Row, outline
from miniclaw_sessions.history.transcript import Transcript
from miniclaw_sessions.protocol.encoding import in_utc
from miniclaw_sessions.protocol.entries import Entry, MessageEntry, SessionInfo
from miniclaw_sessions.protocol.messages import Message, Usage


def render_page(transcript: Transcript, facts: SessionFacts) -> str:
    """The whole page."""
    leaf_id = facts.leaf_id if facts.leaf_id is not None and facts.leaf_id in transcript else None
    rows = outline(transcript, leaf_id=leaf_id)
    entries = transcript.entries
    title = escaped(_title(entries, facts))
    current, left = _branches(rows)
    style, script = _source("page.css"), _source("page.js")
    leaf = next((row for row in rows if row.is_leaf), None)
    to_leaf = anchor(leaf.entry.id) if leaf is not None else "conversation"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">
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
<div id="branches">{tree_list(rows)}</div>
<p class="keys" hidden><kbd>j</kbd> <kbd>k</kbd> move <kbd>o</kbd> open <kbd>/</kbd> search</p>
</nav>
<main>
<header>
<a class="open" href="#tree">Tree</a>
<h1>{title}</h1>
{_about(entries, facts)}
</header>
<p id="aside" hidden>This branch was left. <a href="#{to_leaf}">Back to where the conversation goes on</a></p>
<section id="conversation">
{"".join(current) or '<p class="missing">The conversation begins anew here: nothing was said yet.</p>'}</section>
{_elsewhere(left)}</main>
<script>{script}</script>
</body>
</html>
"""


def _policy(style: str, script: str) -> str:
    """What the page may do: its own style and script, the images that it carries, and nothing else."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(source: str) -> str:
    return "sha256-" + b64encode(sha256(source.encode()).digest()).decode()


# --- the head --------------------------------------------------------------------------------------------------------


def _title(entries: Sequence[Entry], facts: SessionFacts) -> str:
    names = [entry.name for entry in entries if isinstance(entry, SessionInfo) and entry.name.strip()]
    name = names[-1] if names else facts.title or facts.session_id or facts.source_id
    return name if name.strip() else "A conversation"


def _about(entries: Sequence[Entry], facts: SessionFacts) -> str:
    """One line of facts, with the rest folded under it."""
    messages = [entry.message for entry in entries if isinstance(entry, MessageEntry)]
    asked = sum(message.is_user for message in messages)
    line = [
        facts.channel,
        f"{in_utc(entries[0].timestamp):%-d %B %Y}" if entries else "",
        f"{len(messages):,} messages",
        f"{asked:,} by the user",
        tokens_and_cost(_total(messages)),
    ]
    more = {
        "Session": facts.session_id or facts.source_id,
        "Chat": facts.chat_id,
        "Forked from": facts.parent_session,
        "Came as": facts.format,
        "Entries": f"{len(entries):,}",
        **_tokens(_total(messages)),
        **facts.metadata,
    }
    pairs = [f"<dt>{escaped(name)}</dt><dd>{escaped(str(value))}</dd>" for name, value in more.items() if value]
    told = " · ".join(escaped(fact) for fact in line if fact)
    return f"<details><summary>{told}</summary><dl>{''.join(pairs)}<dt>Times</dt><dd>UTC</dd></dl></details>"


def _total(messages: Iterable[Message]) -> Usage:
    return sum((message.usage for message in messages if message.usage is not None), Usage())


def _tokens(total: Usage) -> dict[str, str]:
    counts = {
        "Tokens in": total.input_tokens,
        "Tokens out": total.output_tokens,
        "Read from the cache": total.cache_read_tokens,
        "Written to the cache": total.cache_write_tokens,
    }
    return {name: f"{count:,}" for name, count in counts.items() if count}


# --- the branches ----------------------------------------------------------------------------------------------------


class _Branch(NamedTuple):
    """A branch that was left, by its first row."""

    first: Row
    articles: list[str]


def _branches(rows: Sequence[Row]) -> tuple[list[str], list[_Branch]]:
    """The articles of the current branch, and the branches that were left."""
    parents, ways = _family(rows)
    current: list[str] = []
    left: list[_Branch] = []
    columns: list[list[str]] = []  # the articles of the branch that is drawn in each column
    for number, row in enumerate(rows):
        if row.begins:
            branch = _Branch(row, [])
            left += [] if row.is_current else [branch]
            columns[row.depth :] = [current if row.is_current else branch.articles]
        forks = [(way, rows[way]) for way in ways.get(number, ())] if row.is_fork else []
        columns[row.depth].append(article(row, number=number, parent=parents[number], ways=forks))
    return current, left


def _family(rows: Sequence[Row]) -> tuple[list[int | None], dict[int, list[int]]]:
    """The row that each row follows, and the rows that follow each row."""
    parents: list[int | None] = []
    ways: dict[int, list[int]] = {}
    last: list[int] = []  # the last row in each column
    for number, row in enumerate(rows):
        column = row.depth - 1 if row.begins else row.depth
        parent = last[column] if column >= 0 else None
        parents.append(parent)
        if parent is not None:
            ways.setdefault(parent, []).append(number)
        del last[row.depth :]
        last.append(number)
    return parents, ways


def _elsewhere(left: Sequence[_Branch]) -> str:
    """The branches that were left, below the conversation; the script takes them from here."""
    branches = [
        f"<details><summary><b>{escaped(speaker(first.entry))}</b> {escaped(first_words(first.entry))}</summary>"
        f"{''.join(articles)}</details>\n"
        for first, articles in left
    ]
    return f'<section id="elsewhere"><h2>Branches that were left</h2>\n{"".join(branches)}</section>\n' if left else ""
