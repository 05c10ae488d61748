"""A conversation for looking at: articles and the tree as HTML, made with the parts of the exported page.

Text of people and models is escaped there, in one place; a page that shows these fragments adds no markup of its own.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from miniclaw_sessions.core.history.first_words import first_words
from miniclaw_sessions.core.protocol.entries import Entry, Label, LeafMove, MessageEntry
from miniclaw_sessions.errors import EntryNotFound, SessionNotFound
from miniclaw_sessions.service.api.error_table import invalid
from miniclaw_sessions.service.api.messages import Sequence_, walk_back, walk_in_place
from miniclaw_sessions.service.api.operation import operation
from miniclaw_sessions.service.api.sessions import ONE
from miniclaw_sessions.service.api.shapes import Reply

if TYPE_CHECKING:
    from miniclaw_sessions.core.session import Session
    from miniclaw_sessions.files.formats.outline import NumberedRow
    from miniclaw_sessions.service.api.context import Context

MAX_ARTICLES = 200
"""Articles in one reply."""

MAX_MARKS = 60
"""Marks on the map of a conversation."""

_ENTRIES_EACH = 8
"""The entries that one article stands for at most; the rest follows with the next request."""


class ArticleRow(Reply, kw_only=True):
    """An article: the entry that it begins with, that one's parent and place, and the place of its last entry."""

    entry_id: str
    parent_id: str | None
    sequence: int
    last: int
    html: str


class ArticlesReply(Reply, kw_only=True):
    """A page of a branch.

    Attributes:
        leaf_id: where the conversation goes on, whichever branch is shown.
        entries: the sequence number of the newest entry.
        behind: the place of what comes before the first article; null at the beginning of the conversation.
        later: whether there is more of the branch after the last one.
        articles: oldest first.
    """

    leaf_id: str | None
    entries: int
    behind: int | None
    later: bool
    articles: list[ArticleRow]


class OutlineMark(Reply, kw_only=True):
    """A place on the branch that the conversation goes on from, for a map of it.

    Attributes:
        sequence: its entry's place.
        at: how far along the branch it stands, from 0 to 1.
        kind: `said`: a person said something; `fork`: ways part here.
        words: how it begins.
    """

    sequence: int
    at: float
    kind: Literal["said", "fork"]
    words: str


class OutlineReply(Reply, kw_only=True):
    """A session's tree for looking at.

    Attributes:
        leaf_id: where the conversation goes on.
        entries: the sequence number of the newest entry.
        labels: the bookmarks, by entry.
        ways: of each entry at which ways part, the entries with which they begin, in their order; those of the
            beginning by the empty text.
        tips: of each branch that was left, its last entry, by its first one and by those with which ways begin.
        marks: what people said and where ways part on the current branch, in order; of a long one some of them, evenly.
        html: the nested list.
    """

    leaf_id: str | None
    entries: int
    labels: dict[str, str]
    ways: dict[str, list[str]]
    tips: dict[str, str]
    marks: list[OutlineMark]
    html: str


class ShowArticles(msgspec.Struct, frozen=True):
    """A page of a branch: its newest articles; those before the entry at a place; or its oldest ones after a place.

    Attributes:
        entry_id: where the branch ends; by default at the leaf, with `before` at the entry that stands there.
        before: the newest articles before this sequence number.
        after: the oldest articles after this sequence number.
        limit: at most this many articles.
    """

    session_id: str
    entry_id: str | None = None
    before: Sequence_ | None = None
    after: Sequence_ | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_ARTICLES)] = 50


@operation("GET", f"{ONE}/articles", ShowArticles, ArticlesReply, errors=("entry_not_found",))
async def show_articles(context: Context, request: ShowArticles) -> ArticlesReply:
    """What was said on a branch as HTML articles, oldest first: each with its tool calls and their results."""
    session = await context.find(request.session_id)
    if request.before is not None and request.after is not None:
        raise invalid("send before or after, not both", param="before")
    async with context.readings:
        if request.after is None:
            entries, behind = await _newest(_walk_from(session, request), request.limit)
        else:
            entries, behind = await _oldest_after(_walk_from(session, request), request.after, request.limit)
        articles = _articles(entries, session.journal.final_leaf_id, context.manager.settings.currency)
    final = session.journal.final_sequence
    is_cut = request.after is not None and len(articles) > request.limit
    return ArticlesReply(
        leaf_id=session.journal.final_leaf_id,
        entries=final,
        behind=behind,
        later=is_cut or (request.before is not None and request.before <= final),
        articles=articles[: request.limit] if request.after is not None else articles[-request.limit :],
    )


async def _walk_from(session: Session, request: ShowArticles) -> AsyncIterator[Entry]:
    """The branch that is meant, newest entry first."""
    end, before = request.entry_id, request.before
    async for entry in walk_in_place(session, end) if before is None else walk_back(session, before, end):
        if before is None or entry.sequence < before:
            yield entry


def _is_piece(entry: Entry) -> bool:
    """Whether an entry may belong to the article of one before it."""
    return isinstance(entry, Label) or (isinstance(entry, MessageEntry) and entry.message.is_tool_result)


async def _newest(walk: AsyncIterator[Entry], limit: int) -> tuple[list[Entry], int | None]:
    """The entries of the newest articles, oldest first, and the place of what comes before them."""
    found: list[Entry] = []
    articles = 0
    async for entry in walk:
        if articles == limit:
            return found[::-1], entry.sequence
        found.append(entry)
        articles += not _is_piece(entry)
    return found[::-1], None


async def _oldest_after(walk: AsyncIterator[Entry], after: int, limit: int) -> tuple[list[Entry], int | None]:
    """The entries of the oldest articles after a place, oldest first; an article is never cut at its beginning."""
    found: list[Entry] = []
    most = (limit + 1) * _ENTRIES_EACH
    async for entry in walk:
        if entry.sequence <= after and not (found and _is_piece(found[-1])):
            return found[: -most - 1 : -1], entry.sequence
        found.append(entry)
        if len(found) > 2 * most:
            del found[:-most]
    return found[: -most - 1 : -1], None


def _articles(entries: Sequence[Entry], leaf_id: str | None, currency: str) -> list[ArticleRow]:
    from miniclaw_sessions.files.formats.html.articles import article  # noqa: PLC0415 - heavy
    from miniclaw_sessions.files.formats.outline import Shape, outline_of, with_entries  # noqa: PLC0415 - heavy

    shape = Shape()
    for entry in entries:
        shape.add(entry)
    made = []
    for row in outline_of(shape, shape.number_of(leaf_id)):
        first, last = entries[row.entry], entries[max((row.entry, *row.folded))]
        whole = with_entries(row, [entries[number] for number in (row.entry, *row.folded)])
        plain = replace(whole, begins=False)  # the page's beginning is no branch's: it stays as it is
        html = article(plain, number=first.sequence, parent=None, ways=(), currency=currency, carries=False)
        made.append(
            ArticleRow(
                entry_id=first.id, parent_id=first.parent_id, sequence=first.sequence, last=last.sequence, html=html
            )
        )
    return made


class ShowOutline(msgspec.Struct, frozen=True):
    """The tree, or what of it is folded away.

    Attributes:
        first: the place of the entry with which a fold begins: the reply has only this fold, a part of it at a time.
        last: the place of the entry with which it ends.
    """

    session_id: str
    first: Sequence_ | None = None
    last: Sequence_ | None = None


@operation("GET", f"{ONE}/outline", ShowOutline, OutlineReply, errors=("entry_not_found",), patient=True)
async def show_outline(context: Context, request: ShowOutline) -> OutlineReply:
    """The tree as a nested HTML list, the labels, and the entries at which ways part.

    Of long runs only their ends are in it; each fold names the places where it begins and ends, to ask for it.
    """
    from miniclaw_sessions.core.stores.base import decode_stored  # noqa: PLC0415 - a client has these shapes, and no store
    from miniclaw_sessions.files.formats.html import tree  # noqa: PLC0415 - heavy
    from miniclaw_sessions.files.formats.outline import (  # noqa: PLC0415 - heavy
        Branches,
        Shape,
        outline_of,
    )

    session = await context.find(request.session_id)
    shape, ids, places = Shape(), list[str](), array("q")
    async with context.readings:
        async for entry in session.tree.read_entries(in_place=True):  # as `read_at` below
            if not isinstance(entry, LeafMove) and shape.add(entry):
                ids.append(entry.id)
                places.append(entry.sequence)
        rows = outline_of(shape, shape.number_of(session.journal.final_leaf_id))
        branches = Branches(rows)
        at_beginning = [number for number, parent in enumerate(branches.parents) if parent < 0]
        forks = {**branches.ways, **({-1: at_beginning} if len(at_beginning) > 1 else {})}
        parting = {fork: sorted(rows[way].entry for way in ways) for fork, ways in forks.items()}
        begins = {way for ways in parting.values() for way in ways}
        if request.first is None:
            shown = tree.folded(rows)
        else:
            at = {places[row.entry]: number for number, row in enumerate(rows)}
            if request.first not in at or request.last not in at:
                raise EntryNotFound(session.session_id, f"{request.first} to {request.last}")
            shown = tree.unfolded(rows[at[request.first] : at[request.last] + 1])
        marked = [] if request.first is not None else _marked([row for row in rows if row.is_current])
        wanted = {places[row.entry] for row in (*tree.rows_read(shown), *(row for _, row in marked))}
        stored = await session.tree.read_at(wanted)
        if wanted - stored.keys():
            raise SessionNotFound(session.session_id)  # it was deleted meanwhile
        lines = {place: tree.line_of(decode_stored(stored[place])) for place in wanted}
        html = tree.tree_list(shown, lambda row: lines[places[row.entry]], is_whole=False)
        return OutlineReply(
            leaf_id=session.journal.final_leaf_id,
            entries=session.journal.final_sequence,
            labels={ids[number]: label for number, label in shape.labels.items()},
            ways={ids[rows[fork].entry] if fork >= 0 else "": [ids[way] for way in parting[fork]] for fork in parting},
            tips={
                ids[rows[number].entry]: ids[max((rows[branch[-1]].entry, *rows[branch[-1]].folded))]
                for branch in branches.left
                for number in branch
                if number == branch[0] or rows[number].entry in begins
            },
            marks=[_mark(at, row, decode_stored(stored[places[row.entry]])) for at, row in marked],
            html="".join(html),
        )


def _mark(at: float, row: NumberedRow, entry: Entry) -> OutlineMark:
    return OutlineMark(sequence=entry.sequence, at=at, kind="fork" if row.is_fork else "said", words=first_words(entry))


def _marked(current: Sequence[NumberedRow]) -> list[tuple[float, NumberedRow]]:
    """The rows of a branch that its map marks, with how far along they stand: at most `MAX_MARKS`, the forks first."""
    found = [number for number, row in enumerate(current) if row.is_user or row.is_fork]
    forks = [number for number in found if current[number].is_fork][-MAX_MARKS:]
    others = [number for number in found if not current[number].is_fork]
    step = max(1, math.ceil(len(others) / max(1, MAX_MARKS - len(forks))))
    last = max(1, len(current) - 1)
    return [(number / last, current[number]) for number in sorted((*forks, *others[::step]))]


OPERATIONS = (show_articles, show_outline)
