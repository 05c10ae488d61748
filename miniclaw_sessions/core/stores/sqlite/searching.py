"""Searching a SQLite database with its search index, and extending the index, over the driver's connection.

The index names the entries that may match. Entries that it does not cover are all read: the newest ones, and the oldest
while the index is being filled. So nothing is missed in any state of the index. Positions are in the order of
commits, which stands for the order in time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

from miniclaw_sessions.core.history.search import NO_CURSOR, Found, Hit, Search
from miniclaw_sessions.core.history.searched import hit, searched
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import StoredEntry, decode_stored
from miniclaw_sessions.core.stores.scanning import may_fit, plain_words
from miniclaw_sessions.core.stores.sql.checksums import entry_of_row
from miniclaw_sessions.core.stores.sqlite.search_file import (
    NOTHING,
    Covered,
    Indexed,
    Lacking,
    SearchFile,
    positions_beginning,
    positions_with,
)
from miniclaw_sessions.core.stores.trigrams import indexed_text, short_term, wanted
from miniclaw_sessions.errors import InvalidMessage, InvalidSearch

MOST_LOOKED_AT = 500
"""Entries that are read for one page; the next page goes on behind them."""

FEW = 1_000
"""Sessions with no more entries than this are read as a whole, which is faster than using the index."""

SAMPLE = 400
"""The newest entries that are read first for a short term; if the term is frequent, they suffice."""

MOST_TAKEN_OUT = 5_000
"""If a deleted session has more entries, they are not removed from the index; the index is rebuilt."""

_BATCH = 100
_MOST_BYTES = 4 << 20  # of entries that are indexed at once
_FIRST = 2**62
_DIGITS = 18

_ROWS = (
    "SELECT e.position, e.sequence, e.entry_id, e.encoded, e.idempotency_key, e.checksum, e.session, "
    "s.session_id, s.channel, s.chat_id FROM entries AS e JOIN sessions AS s ON s.id = e.session "
)
_BETWEEN = _ROWS + "WHERE e.position > ? AND e.position <= ? ORDER BY e.position DESC"
_AFTER = _ROWS + "WHERE e.position > ? ORDER BY e.position"
_IN_SESSION = (
    "WHERE e.position IN (SELECT p.position FROM places AS p JOIN sessions AS t ON t.id = p.session "
    "WHERE t.session_id = :session_id UNION SELECT n.position FROM entries AS n JOIN sessions AS t ON t.id = n.session "
    "WHERE n.position > (SELECT up_to FROM placed) AND t.session_id = :session_id)"
)
_OF_SESSION = (
    "SELECT position FROM places WHERE session = :row "
    "UNION SELECT position FROM entries WHERE position > (SELECT up_to FROM placed) AND session = :row LIMIT :limit"
)

_Row = tuple[Any, ...]


# --- bringing the index on -------------------------------------------------------------------------------------------


def lacking(database: sqlite3.Connection, file: SearchFile, limit: int) -> Lacking:
    """Entries that the index lacks, the newest first.

    Raises:
        StoreUnavailable, StoreFull: the index cannot be written now.
        sqlite3.Error: the database cannot be read.
    """
    deletions = file.deletions
    before = newest, oldest = file.covered(database)
    new = _indexed(database.execute(_AFTER, (newest,)), limit)
    if new:
        newest = new[-1].position
    old: list[Indexed] = []
    if oldest and len(new) < limit:
        old = _indexed(database.execute(_BETWEEN, (0, oldest)), limit - len(new))
        oldest = old[-1].position - 1 if old else 0
    return Lacking(before, [*new, *old], Covered(newest, oldest), deletions)


def said_in(database: sqlite3.Connection, file: SearchFile, session_id: str) -> list[Indexed] | None:
    """The indexed entries of a session, if there is an index; None: they are too large to be held.

    Raises:
        StoreUnavailable, StoreFull, sqlite3.Error: as for `lacking`.
    """
    if not file.path.exists():
        return []
    file.covered(database)
    file.begin_to_take_out(session_id)
    rows = database.execute(_ROWS + _IN_SESSION, {"session_id": session_id})
    said = _indexed(rows, MOST_TAKEN_OUT)
    return said if rows.fetchone() is None else None


def _indexed(rows: Iterable[_Row], limit: int) -> list[Indexed]:
    found: list[Indexed] = []
    size = 0
    for row in islice(rows, limit):
        stored = entry_of_row(*row[1:7])
        found.append(Indexed(row[0], stored.entry_id, _text_of(stored, *row[7:])))
        size += len(stored.encoded)
        if size > _MOST_BYTES:
            break
    return found


def _text_of(stored: StoredEntry, session_id: str, channel: str, chat_id: str) -> str | None:
    try:
        found = searched(decode_stored(stored))
    except (InvalidMessage, TypeError, ValueError):
        return None  # a damaged entry has no text
    return None if found is None else indexed_text(session_id, SessionKey(channel, chat_id), found)


# --- searching -------------------------------------------------------------------------------------------------------


def search(database: sqlite3.Connection, file: SearchFile, wanted_: Search, span: Span) -> Found:
    """A page of matches, the newest first.

    Args:
        database: in a transaction.
        file: its index.
        wanted_: the search.
        span: where the page begins, and where it ends at the latest.

    Raises:
        sqlite3.Error: the database cannot be read.
        SearchFailed: an entry could not be judged.
    """
    with file.reading(database) as index:
        try:
            return _Looking(database, index, wanted_).page(span)
        except _IndexFailed as failure:
            file.met_damage(failure)
    return _Looking(database, None, wanted_).page(span)


class Span(NamedTuple):
    """The positions of a page: below the first number, from the second number on."""

    below: int
    until: int

    @classmethod
    def of(cls, search: Search) -> Span:
        """The span of a search, from its cursors.

        Raises:
            InvalidSearch: a cursor is not one of this store.
        """
        return cls(_position(search.cursor, _FIRST), _position(search.until, 0))


def _position(cursor: str | None, default: int) -> int:
    if cursor is None:
        return default
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= _DIGITS):
        raise InvalidSearch(NO_CURSOR)
    return int(cursor)


class SearchFailed(Exception):
    """An entry could not be judged; the cause has the reason."""


class _IndexFailed(Exception):
    """The index failed to answer."""


@contextmanager
def _asking() -> Iterator[None]:
    """Make errors of the index distinct: those of the database have the same types."""
    try:
        yield
    except sqlite3.Error as error:
        raise _IndexFailed(str(error)) from error


class _Looking:
    """The search for one page, in one state of the database."""

    def __init__(self, database: sqlite3.Connection, index: sqlite3.Connection | None, wanted_: Search) -> None:
        self._database = database
        self._index = index
        self._search = wanted_
        self._parts = wanted(wanted_)
        self._short = short_term(wanted_)
        self._words = plain_words(wanted_)
        self._covered = NOTHING
        if index is not None:
            with _asking():
                self._covered = Covered(*index.execute("SELECT newest, oldest FROM covered").fetchone())

    def page(self, span: Span) -> Found:
        """The hits in a span of positions, or the newest of them."""
        hits: list[Hit] = []
        last = span.below
        for looked_at, row in enumerate(self._rows(span.below), 1):
            if row[0] < span.until:
                break
            found = self._hit(row)
            if found is not None and len(hits) == self._search.limit:  # there is a further page
                return self._found(hits, str(last))
            if found is not None:
                hits.append(found)
            last = row[0]
            if looked_at == MOST_LOOKED_AT:
                return self._found(hits, str(last))
        return self._found(hits, self._search.until)

    def _found(self, hits: Iterable[Hit], cursor: str | None) -> Found:
        (end,) = self._database.execute("SELECT coalesce(max(position), 0) FROM entries").fetchone()
        newest, oldest = self._covered
        behind = max(end - newest, 0) + oldest
        ordered = sorted(hits, key=lambda one: one.place, reverse=True)
        return Found(hits=tuple(ordered), cursor=cursor, behind=behind)

    def _hit(self, row: _Row) -> Hit | None:
        if len(row) == 1:
            return None
        session_id, channel, chat_id = row[7:]
        key = SessionKey(channel, chat_id)
        stored = entry_of_row(*row[1:7])
        if not (may_fit(stored.encoded, self._words) and self._search.covers(session_id, key)):
            return None
        try:
            entry = decode_stored(stored)
        except InvalidMessage:
            return None
        try:
            return hit(self._search, session_id, key, entry)
        except (
            TypeError,
            ValueError,
        ) as error:  # a bug, or a wrong search; the rows are sound
            raise SearchFailed from error

    # --- which entries may fit, the newest first ---------------------------------------------------------------------

    def _rows(self, below: int) -> Iterator[_Row]:
        few = self._few_positions()
        if few is not None:
            yield from self._at([position for position in few if position < below])
            return
        newest, oldest = self._covered
        yield from self._between(newest, below - 1)
        if self._parts:
            yield from self._named(lambda last, limit: positions_with(self._indexes, self._parts, last, limit), below)
        elif (term := self._short) is not None:
            # a frequent term is in the newest entries, and the index has few of a rare one
            reached = below
            for row in islice(self._between(oldest, min(newest, below - 1)), SAMPLE):
                yield row
                reached = row[0]
            yield from self._named(lambda last, limit: positions_beginning(self._indexes, term, last, limit), reached)
        else:
            yield from self._between(oldest, min(newest, below - 1))
        yield from self._between(0, min(oldest, below - 1))

    @property
    def _indexes(self) -> sqlite3.Connection:
        assert self._index is not None  # noqa: S101 - it covers something
        return self._index

    def _named(self, ask: Callable[[int, int], list[int]], below: int) -> Iterator[_Row]:
        newest, oldest = self._covered
        below, limit = min(below, newest + 1), max(_BATCH, self._search.limit)
        while oldest < newest:
            with _asking():
                positions = ask(below, limit)
            yield from self._at(positions)
            if len(positions) < limit:
                return
            below = positions[-1]

    def _between(self, after: int, last: int) -> Iterator[_Row]:
        if last > after:
            yield from self._database.execute(_BETWEEN, (after, last))

    def _at(self, positions: Sequence[int]) -> Iterator[_Row]:
        for start in range(0, len(positions), _BATCH):
            batch = positions[start : start + _BATCH]
            marks = ", ".join("?" * len(batch))
            rows = {row[0]: row for row in self._database.execute(f"{_ROWS} WHERE e.position IN ({marks})", batch)}
            for position in batch:
                yield rows.get(position, (position,))  # a deleted entry counts as read, too

    def _few_positions(self) -> list[int] | None:
        """The positions of the entries of the searched sessions, the newest first, if they are few; else None."""
        if self._search.session_ids is None:
            return None
        positions: list[int] = []
        for session_id in self._search.session_ids:
            row = self._database.execute("SELECT id FROM sessions WHERE session_id = ?", (session_id,)).fetchone()
            if row is not None:
                found = self._database.execute(_OF_SESSION, {"row": row[0], "limit": FEW + 1})
                positions += [position for (position,) in found]
            if len(positions) > FEW:
                return None
        return sorted(positions, reverse=True)
