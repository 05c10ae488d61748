"""Searching a store on a server, whose index all gateways extend together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from anyio import CancelScope, current_time, to_thread

from miniclaw_sessions.core.history.search import Found, Hit, Place, Search, cursor_of, place_of
from miniclaw_sessions.core.history.searched import hit, searched
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import decode_stored
from miniclaw_sessions.core.stores.postgresql import search_sql, statements
from miniclaw_sessions.core.stores.postgresql.connections import Connections, transaction
from miniclaw_sessions.core.stores.postgresql.statements import Statement
from miniclaw_sessions.core.stores.postgresql.tables import USED_RESOLUTION
from miniclaw_sessions.core.stores.scanning import may_fit, plain_words
from miniclaw_sessions.core.stores.shared_store import SharedStore
from miniclaw_sessions.core.stores.sql.checksums import entry_of_row
from miniclaw_sessions.core.stores.trigrams import indexed_numbers, wanted_numbers
from miniclaw_sessions.errors import InvalidMessage, StoreError

MOST_LOOKED_AT = 1_000
"""Entries that are read for one page; the next page goes on behind them."""

LOOK_S = 10.0
"""The seconds between two queries for entries that other gateways did not index."""

_LATE_S = 300.0
"""The longest time of a transaction: its entries become visible when it ends, with the time at which it began."""

ALL_SESSIONS_S = 1e9
_MOST_SESSIONS = 1_000
_MOST_NOTED = 100_000
_MOST_BYTES = 4 << 20
_BATCH = 100
_TRIES = 3  # after these the session was deleted, or the next query finds it
_LAST = datetime.max.replace(tzinfo=UTC)
_FIRST = datetime.min.replace(tzinfo=UTC)

_Row = Sequence[Any]


class IndexedSearch(SharedStore):
    """A part of `PostgreSQLStore`, which makes the connections."""

    _server: Connections

    def __init__(self) -> None:
        self._lacking: dict[str, int] = {}  # sessions with entries that are not indexed, and the number of tries
        self._behind = 0
        self._looked_at: float | None = None
        self._found_all = False

    # --- bringing the index on ---------------------------------------------------------------------------------------

    def _note(self, session_ids: Iterable[str]) -> None:
        """Note sessions with new entries."""
        if len(self._lacking) > _MOST_NOTED:
            self._lacking.clear()
            self._found_all = False
        self._lacking.update(dict.fromkeys(session_ids, 0))

    async def index(self, limit: int) -> int:
        """Extend the tables of the index; from time to time look for entries that other gateways did not index."""
        if not self._lacking or self._looked_at is None or current_time() - self._looked_at > LOOK_S:
            await self._look()
        if not self._lacking:
            return 0
        tried = {session_id: self._lacking.pop(session_id) for session_id in sorted(list(self._lacking)[:limit])}
        indexed, unreached, locked = 0, list(tried), list[str]()
        try:
            with CancelScope(shield=True):
                async with self._server.reading("index") as connection:
                    indexed, unreached, locked = await self._index(connection, list(tried), limit)
        finally:
            again = {session_id: tried[session_id] + 1 for session_id in locked if tried[session_id] < _TRIES}
            if len(again) < len(locked):  # they were deleted, or the query for all sessions finds them
                self._found_all = False
            self._lacking = dict.fromkeys(unreached, 0) | again | self._lacking
        return max(indexed, len(again))

    async def _look(self) -> None:
        """Find sessions with entries that are not indexed: among all at first, then among those used since."""
        passed = ALL_SESSIONS_S
        if self._found_all and self._looked_at is not None:
            passed = (current_time() - self._looked_at) + USED_RESOLUTION.total_seconds() + _LATE_S
        began = current_time()
        rows = await self._server.fetch(search_sql.BEHIND, seconds=passed, limit=_MOST_SESSIONS)
        self._behind = sum(count for _, count in rows)
        self._lacking = {session_id: 0 for session_id, _ in rows} | self._lacking
        self._found_all, self._looked_at = len(rows) < _MOST_SESSIONS, began

    async def _index(self, connection: Any, session_ids: Sequence[str], limit: int) -> tuple[int, list[str], list[str]]:
        """Index. Returns the number of entries, the sessions that may have more, and those that others have locked."""
        await _execute(connection, search_sql.BEGIN, session_ids=session_ids)
        async with transaction(connection):
            ends = dict(await _execute(connection, search_sql.LOCKED, session_ids=session_ids))
            rows = await _execute(
                connection,
                search_sql.LACKING,
                session_ids=list(ends),
                ends=list(ends.values()),
                limit=limit,
                most_bytes=_MOST_BYTES,
            )
            await _execute(connection, search_sql.ADD, **await to_thread.run_sync(_values_of, rows))
            ends.update({row[0]: row[1] for row in rows})
            await _execute(connection, search_sql.MOVE, session_ids=list(ends), ends=list(ends.values()))
        self._behind = max(0, self._behind - len(rows))
        is_cut = len(rows) == limit or sum(len(row[3]) for row in rows) >= _MOST_BYTES
        reached = rows[-1][0] if is_cut else None  # it may have more, and the sessions behind it were not reached
        unreached = [one for one in ends if reached is not None and one >= reached]
        return len(rows), unreached, [one for one in session_ids if one not in ends]

    async def drop_index(self) -> None:
        """Empty the tables of the index."""
        for statement in search_sql.DROP:
            await self._server.change("clear the search index of", statement)
        self._found_all = False

    # --- searching ---------------------------------------------------------------------------------------------------

    async def search(self, search: Search) -> Found:
        """Read the entries that may match by the index, the newest first, and judge them.

        Entries of this process are indexed before; entries of others are found about a second later.
        """
        below = (_LAST, "", 0) if search.cursor is None else place_of(search.cursor)
        last = None if search.until is None else place_of(search.until)
        if self._lacking or not self._found_all:
            with suppress(StoreError):  # a read-only server is searched as well
                await self.index(MOST_LOOKED_AT)
        hits: list[Hit] = []
        words, looked_at = plain_words(search), 0
        while page := await self._may_fit(search, below, max(_BATCH, search.limit + 1)):
            for row in page:
                if last is not None and _place(row) < last:
                    return Found(hits=tuple(hits), cursor=search.until, behind=self._behind)
                found = _hit(search, words, row)
                if found is not None and len(hits) == search.limit:  # there is a further page
                    return Found(hits=tuple(hits), cursor=cursor_of(below), behind=self._behind)
                if found is not None:
                    hits.append(found)
                below = _place(row)
            looked_at += len(page)
            if looked_at >= MOST_LOOKED_AT:
                return Found(hits=tuple(hits), cursor=cursor_of(below), behind=self._behind)
        return Found(hits=tuple(hits), cursor=search.until, behind=self._behind)

    async def _may_fit(self, search: Search, below: Place, limit: int) -> list[Any]:
        numbers, sessions = wanted_numbers(search), search.session_ids
        said_at, session_id, sequence = below
        return await self._server.fetch(
            search_sql.SEARCH[bool(numbers), sessions is not None],
            numbers=numbers,
            session_ids=sorted(sessions or ()),
            below=said_at,
            below_session=session_id,
            below_sequence=sequence,
            after=search.after or _FIRST,
            before=search.before or _LAST,
            limit=limit,
        )


def _place(row: _Row) -> Place:
    return row[0], row[1], row[2]


def _hit(search: Search, words: Sequence[bytes], row: _Row) -> Hit | None:
    _, session_id, sequence, entry_id, encoded, key, checksum, channel, chat_id = row
    if not may_fit(encoded, words) or not search.covers(session_id, SessionKey(channel, chat_id)):
        return None
    try:
        stored = entry_of_row(sequence, entry_id, encoded, key, checksum, statements.number_of(session_id))
        entry = decode_stored(stored)
    except InvalidMessage:
        return None
    return hit(search, session_id, SessionKey(channel, chat_id), entry)


def _values_of(rows: Sequence[_Row]) -> dict[str, list[Any]]:
    """The columns of the index for some entries."""
    indexed: list[tuple[str, int, datetime, str]] = []
    for session_id, sequence, entry_id, encoded, key, checksum, channel, chat_id, *_ in rows:
        stored = entry_of_row(sequence, entry_id, encoded, key, checksum, statements.number_of(session_id))
        try:
            found = searched(decode_stored(stored))
        except InvalidMessage:
            continue  # a damaged entry has no text
        if found is not None:
            numbers = search_sql.array(indexed_numbers(SessionKey(channel, chat_id), found))
            indexed.append((session_id, sequence, found.said_at, numbers))
    columns = zip(*indexed, strict=True) if indexed else [()] * 4
    return {
        name: list(column)
        for name, column in zip(("session_ids", "sequences", "moments", "numbers_of"), columns, strict=True)
    }


async def _execute(connection: Any, statement: Statement, **values: Any) -> list[Any]:
    return list(await connection.fetch(statement.text, *statement.arguments(values)))
