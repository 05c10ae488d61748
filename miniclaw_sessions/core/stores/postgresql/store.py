"""The store that several processes share: a PostgreSQL server's database.

An append is acknowledged when the server reports it as durable: on its own disk, and on the standbys that it waits for.
If the answer to a statement does not come, because the connection or the server is gone or the time is over, it is not
known whether the statement was done. The caller gets `StoreUnavailable` and sends the same entries again; then they are
found or stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Any, ClassVar, Self
from zlib import crc32

import asyncpg
from anyio import CancelScope

from miniclaw_sessions.config import PostgreSQLSettings
from miniclaw_sessions.core.stores.base import Append, StoredEntry, StoredHead, StorePlace, entries_to_add, is_damaged
from miniclaw_sessions.core.stores.checking import check_transcripts
from miniclaw_sessions.core.stores.postgresql import search_sql, statements
from miniclaw_sessions.core.stores.postgresql.batching import BatchedLookup
from miniclaw_sessions.core.stores.postgresql.catalog import Catalog, note_deleted
from miniclaw_sessions.core.stores.postgresql.connections import Connections, transaction
from miniclaw_sessions.core.stores.postgresql.searching import IndexedSearch
from miniclaw_sessions.core.stores.postgresql.server import (
    CUT,
    REFUSED_VALUES,
    Address,
    address,
    require_privileges,
    store_error,
)
from miniclaw_sessions.core.stores.postgresql.statements import Keys, Part, Statement
from miniclaw_sessions.core.stores.sql.checksums import checksum_of
from miniclaw_sessions.core.stores.sql.failures import unknown_schema
from miniclaw_sessions.errors import (
    ConfigError,
    NotAWorkspace,
    StoreConflict,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
)
from miniclaw_sessions.log import get_logger

MOST_ROWS = 2_000
"""The largest number of entries in one statement; a longer group takes several."""

_VERSION = "0003"
"""The schema version of a new database; from here on each step is one migration for both layouts."""

_KNOWN = ("0003",)
_MAKE_VERSION = (
    "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
    "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
)
_ATTEMPTS = 3
_SOMEBODY_ELSE = (asyncpg.UniqueViolationError, asyncpg.DuplicateTableError, asyncpg.LockNotAvailableError)


log = get_logger(__name__)


class PostgreSQLStore(IndexedSearch, Catalog):
    """Transcripts in a server's database, which any number of gateways use at the same time."""

    durable: ClassVar[bool] = True
    keeps_entries: ClassVar[bool] = True
    shared: ClassVar[bool] = True

    def __init__(self, url: str, settings: PostgreSQLSettings | None = None, *, read_only: bool = False) -> None:
        """Connect to nothing yet.

        Args:
            url: `postgresql://user@host:port/database?option=value`; see `server.address`.
            settings: settings that the URL overrides; None: the defaults.
            read_only: create and change nothing; a standby suffices.

        Raises:
            ConfigError: the URL is not usable.
        """
        super().__init__()
        self._url = url
        self._read_only = read_only
        self._place: Address = address(url, settings or PostgreSQLSettings())
        self._server = Connections(self._place, read_only=read_only)
        self._heads = BatchedLookup(self.versions)
        self._orders = 0

    def __repr__(self) -> str:
        return f"<PostgreSQLStore {self._place.shown}>"

    @property
    def place(self) -> StorePlace:
        """The address of its database."""
        return StorePlace("postgresql", url=self._url, shown=self._place.shown)

    # --- opening and closing -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect, check the server's promise of durability, and create the tables if there are none.

        Raises:
            ConfigError: the server refuses us, would lose what it acknowledges, or has another program's tables there,
                or those of a version that is too old.
            SchemaTooNew: a newer version of this program made the tables; they were not changed.
            StoreUnavailable: the server cannot be reached now.
        """
        await self._server.open(self._prepare)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for running calls, and disconnect."""
        with CancelScope(shield=True):
            await self._server.close()

    async def _prepare(self, connection: Any) -> None:
        """Check that the tables are ours, or create them; several gateways may start at the same time."""
        for attempt in range(_ATTEMPTS):
            columns: dict[str, set[str]] = {}
            for table, name in await connection.fetch(statements.COLUMNS.text):
                columns.setdefault(table, set()).add(name)
            if columns:
                return await self._check_schema(connection, columns)
            if self._read_only:
                raise NotAWorkspace(
                    f"there are no sessions in {self._place.shown}: no gateway has opened it to write yet, as `serve`, "
                    "`chat` and `import` do"
                )
            try:
                async with transaction(connection):
                    await connection.execute(_MAKE_VERSION)
                    await connection.execute("INSERT INTO alembic_version VALUES ($1)", _VERSION)
                    for statement in statements.schema():
                        await connection.execute(statement)
            except _SOMEBODY_ELSE:  # another gateway was first: look again
                if attempt + 1 == _ATTEMPTS:
                    raise
            else:
                return None
        return None

    async def _check_schema(self, connection: Any, columns: Mapping[str, set[str]]) -> None:
        place = self._place.shown
        if "alembic_version" not in columns or "entries" not in columns:
            raise ConfigError(f"cannot open {place} as a store: it has another program's tables; make a new database")
        await require_privileges(connection, self._place, statements.expected_columns().keys() & columns)
        version = await connection.fetchval("SELECT version_num FROM alembic_version")
        if version is None:
            raise StoreCorrupt(
                f"cannot open {place}: it is damaged, it does not say which version of the schema it has"
            )
        if version not in _KNOWN:
            raise unknown_schema(f"open {place}", version, _KNOWN)
        for name, expected in statements.expected_columns().items():
            if columns.get(name) != expected:
                raise StoreCorrupt(f"cannot open {place}: the table {name} has other columns than it was made with")

    async def still_there(self) -> None:
        """Return if our role can write to the server, and the server still promises durability.

        Raises:
            StoreUnavailable: it cannot now.
        """
        try:
            async with self._server.writing("write to") as connection:
                await self._server.see_promise(connection)
                await require_privileges(connection, self._place, statements.expected_columns())
        except ConfigError as error:
            raise StoreUnavailable(str(error)) from error

    # --- appending ---------------------------------------------------------------------------------------------------

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        """Append entries of many sessions in one statement; a conflict of one does not affect the others."""
        refused: dict[str, StoreError] = {}
        for group in _groups(appends):
            with CancelScope(shield=True):
                refused |= await self._appending(group)
        session_ids = [item.head.session_id for item in appends]
        self._note(session_ids)
        return list(map(refused.get, session_ids))

    async def _appending(self, appends: Sequence[Append]) -> dict[str, StoreError]:
        """Append. If the connection was cut, append once more over a new one: entries are never added twice."""
        for is_last in (False, True):
            try:
                async with self._server.writing("append to") as connection:
                    try:
                        return await self._append_together(connection, appends)
                    except (*REFUSED_VALUES, asyncpg.LockNotAvailableError):  # so that only the faulty one fails
                        return await self._append_each(connection, appends)
            except StoreUnavailable as error:
                if is_last or not isinstance(error.__cause__, CUT):
                    raise
        raise AssertionError  # the last attempt has returned or raised

    async def _append_each(self, connection: Any, appends: Sequence[Append]) -> dict[str, StoreError]:
        """Append to each session by itself, in another order each time: sessions that wait must not always be first."""
        self._orders += 1
        refused: dict[str, StoreError] = {}
        waited_for: list[StoreUnavailable] = []
        for item in sorted(appends, key=lambda one: crc32(one.head.session_id.encode(), self._orders)):
            is_enough = len(waited_for) == _ATTEMPTS
            outcome = waited_for[0] if is_enough else await self._append_alone(connection, item)
            if isinstance(outcome, StoreUnavailable):
                waited_for = [*waited_for, outcome][:_ATTEMPTS]
            if outcome is not None:
                refused[item.head.session_id] = outcome
        return refused

    async def _append_together(self, connection: Any, appends: Sequence[Append]) -> dict[str, StoreError]:
        waiting = {item.head.session_id: item for item in appends}
        going_on = [part for item in appends if (part := _going_on(item)) is not None]
        for session_id in await _apply(connection, _statement_for(going_on), going_on):
            del waiting[session_id]
        claims = [Part(item, (), 0) for item in waiting.values() if item.turn is not None and not item.entries]
        for session_id in await _apply(connection, statements.CLAIM, claims):
            del waiting[session_id]
        beginning = [part for item in waiting.values() if (part := _beginning(item)) is not None]
        for session_id in await _apply(connection, statements.BEGIN, beginning):
            del waiting[session_id]
        refused: dict[str, StoreError] = {}
        for session_id, item in waiting.items():
            is_patient = not any(isinstance(outcome, StoreUnavailable) for outcome in refused.values())
            if (outcome := await self._settle(connection, item, is_patient=is_patient)) is not None:
                refused[session_id] = outcome
        return refused

    async def _append_alone(self, connection: Any, item: Append) -> StoreError | None:
        try:
            return (await self._append_together(connection, [item])).get(item.head.session_id)
        except asyncpg.LockNotAvailableError as error:
            return store_error(error, self._place, "append to")
        except REFUSED_VALUES as error:
            what = f"cannot append to session {item.head.session_id} in {self._place.shown}"
            if isinstance(error, asyncpg.IntegrityConstraintViolationError):
                return StoreConflict(f"{what}: {type(error).__name__}; read the session again")
            return StoreError(f"{what}: it holds a value that the server cannot ({type(error).__name__})")

    async def _settle(self, connection: Any, item: Append, *, is_patient: bool) -> StoreError | None:
        """Append to one session by the rules of all stores, its row locked; see `stores.base.entries_to_add`.

        Args:
            connection: to the server.
            item: the append.
            is_patient: wait a moment for a process that has locked the row, and do not leave this session for later.
        """
        lock = statements.LOCKED_HEAD if is_patient else statements.LOCKED_HEAD_NOW
        for _ in range(_ATTEMPTS):
            try:
                async with transaction(connection):
                    if await self._settle_locked(connection, item, lock):
                        return None
            except StoreConflict as conflict:
                return conflict
            except asyncpg.LockNotAvailableError as error:
                return store_error(error, self._place, f"append to session {item.head.session_id} in")
        return StoreUnavailable(
            f"cannot append to session {item.head.session_id} in {self._place.shown}: it comes and goes all the time"
        )

    async def _settle_locked(self, connection: Any, item: Append, lock: Statement) -> bool:
        """Whether the entries are stored; False if another process created the session meanwhile.

        It waits for the standbys even if they were stored before: their writer may have been cut off while it waited,
        and the lock of the row is a change like any other.

        Raises:
            StoreConflict: the entries contradict the stored ones.
        """
        session_id = item.head.session_id
        row = await connection.fetchrow(lock.text, session_id)
        stored = None if row is None else statements.stored_head(row)
        if stored is None and item.must_exist:
            raise StoreConflict(f"cannot append to session {session_id}: another process has deleted it")
        last = 0 if stored is None else stored.last_sequence
        ids: dict[int, str] = {}
        if item.entries and item.entries[0].sequence <= last:
            first = min(entry.sequence for entry in item.entries)
            ids = dict(await connection.fetch(statements.IDS_BETWEEN.text, session_id, first, last))
        new = entries_to_add(
            item,
            incarnation=None if stored is None else stored.head.incarnation,
            last_sequence=last,
            ids_between=lambda _first, _last: ids,
        )
        part = Part(item, new, last)
        if stored is None:
            return bool(await _apply(connection, statements.BEGIN, [part]))
        if not new and item.turn is None:
            return True
        if not await _apply(connection, _statement_for([part]), [part]):
            raise StoreConflict(
                f"cannot append to session {session_id}: another process answers it now, or has stored a message with "
                "the same idempotency key; read the session again"
            )
        return True

    # --- reading -----------------------------------------------------------------------------------------------------

    async def heads(self) -> AsyncIterator[StoredHead]:
        """All sessions in order of session_id, read a page at a time."""
        after = ""
        while page := await self._server.fetch(statements.HEADS_AFTER, after=after):
            for row in page:
                yield statements.stored_head(row)
            after = page[-1][0]

    async def session_ids(self) -> list[str]:
        """The ids of all sessions, in order, read at once."""
        return [session_id for (session_id,) in await self._server.fetch(statements.SESSION_IDS)]

    async def head(self, session_id: str) -> StoredHead | None:
        """One session, or None; all lookups in one iteration of the event loop are one query."""
        return await self._heads.get(session_id)

    async def versions(self, session_ids: Collection[str]) -> Mapping[str, StoredHead]:
        """Those of these sessions that exist, in one query."""
        wanted = [session_id for session_id in session_ids if _may_be_stored(session_id)]
        rows = await self._server.fetch(statements.VERSIONS, session_ids=wanted)
        return {head.head.session_id: head for head in map(statements.stored_head, rows)}

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The entries after a sequence, oldest first."""
        limit = statements.NO_LIMIT if limit is None else max(limit, 0)
        rows = await self._server.fetch(statements.OLDEST_FIRST, session_id=session_id, after=after, limit=limit)
        return statements.stored_entries(session_id, rows)

    async def read_newest(self, session_id: str, limit: int) -> list[StoredEntry]:
        """The newest entries, oldest first."""
        rows = await self._server.fetch(statements.NEWEST_FIRST, session_id=session_id, limit=max(limit, 0))
        return statements.stored_entries(session_id, reversed(rows))

    async def find(self, session_id: str, entry_id: str) -> StoredEntry | None:
        """The entry with this id, or None; the server reads the session's entries."""
        return await self._find(statements.WITH_ID, session_id, entry_id=entry_id)

    async def find_by_idempotency_key(self, session_id: str, key: str) -> StoredEntry | None:
        """The oldest entry with this key, or None, by an index."""
        return await self._find(statements.WITH_KEY, session_id, key=key)

    async def _find(self, statement: Statement, session_id: str, **values: str) -> StoredEntry | None:
        if not all(map(_may_be_stored, values.values())):
            return None
        rows = await self._server.fetch(statement, session_id=session_id, **values)
        found = statements.stored_entries(session_id, rows)
        return found[0] if found else None

    # --- the rest ----------------------------------------------------------------------------------------------------

    async def mend(self, session_id: str, entries: Sequence[StoredEntry]) -> int:
        """Overwrite rows that contradict their checksums by right entries."""
        mended, number = 0, statements.number_of(session_id)
        with CancelScope(shield=True):
            async with self._server.writing("mend") as connection, transaction(connection, is_patient=True):
                await connection.fetchrow(statements.LOCKED_HEAD.text, session_id)
                for entry in entries:
                    rows = await connection.fetch(statements.OLDEST_FIRST.text, session_id, entry.sequence - 1, 1)
                    stored = statements.stored_entries(session_id, rows)
                    if not stored or stored[0].sequence != entry.sequence or not is_damaged(stored[0].encoded):
                        continue
                    key, encoded = entry.idempotency_key, entry.encoded
                    values = {
                        "session_id": session_id,
                        "at": entry.sequence,
                        "entry_id": entry.entry_id,
                        "encoded": encoded,
                        "key": key,
                        "checksum": checksum_of(number, entry.sequence, entry.entry_id, key, encoded),
                    }
                    await connection.execute(statements.MEND.text, *statements.MEND.arguments(values))
                    mended += 1
                await connection.execute(search_sql.AGAIN.text, [session_id])
        self._note([session_id])
        return mended

    async def delete(self, session_id: str, *, known: StoredHead | None = None) -> bool:
        """Remove a session and all its rows, in one transaction. Returns whether there was one."""
        with CancelScope(shield=True):
            async with self._server.writing("delete from") as connection, transaction(connection, is_patient=True):
                row = await connection.fetchrow(statements.LOCKED_FOR_DELETION.text, session_id)
                if row is None:
                    return False
                there = statements.stored_head(row)
                if known is not None and (
                    there.head.incarnation != known.head.incarnation or there.last_sequence > known.last_sequence
                ):
                    raise StoreConflict(f"cannot delete session {session_id}: another process has gone on with it")
                for statement in statements.DELETE:
                    await connection.execute(statement.text, session_id)
                await note_deleted(connection, [there.head.incarnation])
        return True

    async def purge(self) -> bool:
        """Return False: deleted rows stay in the server's files until it overwrites them, and in its log."""
        return False

    async def check(self) -> list[str]:
        """Look for contradictions between the tables, then check each session's entries."""
        return await check_transcripts(self, self.heads(), self._contradictions())

    async def _contradictions(self) -> list[str]:
        problems = [
            f"session {session_id}: {count} entries belong to no session"
            for session_id, count in await self._server.fetch(statements.ORPHANS)
        ]
        problems += [
            f"session {session_id}: it ends at {found}, and says that it ends at {said}"
            for session_id, said, found in await self._server.fetch(statements.WRONG_ENDS)
        ]
        ((count,),) = await self._server.fetch(statements.WRONG_KEYS)
        return [*problems, f"{count} idempotency keys belong to no entry"] if count else problems


def _may_be_stored(text: str) -> bool:
    """Whether a row can hold a text: the server refuses NUL and lone surrogates."""
    return not any(one == "\0" or "\ud800" <= one <= "\udfff" for one in text)


def _groups(appends: Sequence[Append]) -> Iterator[list[Append]]:
    """The appends in groups that are small enough for one statement."""
    group: list[Append] = []
    rows = 0
    for item in appends:
        if group and rows + len(item.entries) > MOST_ROWS:
            yield group
            group, rows = [], 0
        group.append(item)
        rows += len(item.entries) + 1
    if group:
        yield group


def _going_on(item: Append) -> Part | None:
    """The append for a session that ends right before it; None if it needs `entries_to_add`."""
    if not item.entries or item.after_loss or not _follow_each_other(item.entries):
        return None
    first = item.entries[0].sequence
    return Part(item, item.entries, first - 1) if first > 0 else None


def _beginning(item: Append) -> Part | None:
    """The append for a new session; None if it needs `entries_to_add`."""
    if item.must_exist:
        return None
    if not item.entries:
        return Part(item, (), 0)
    if item.entries[0].sequence != 1 or not _follow_each_other(item.entries):
        return None
    return Part(item, item.entries, 0)


def _follow_each_other(entries: Sequence[StoredEntry]) -> bool:
    return len(entries) == 1 or all(after.sequence == before.sequence + 1 for before, after in pairwise(entries))


def _statement_for(parts: Sequence[Part]) -> Statement:
    """The statement for appends to existing sessions."""
    has_keys = any(entry.idempotency_key is not None for part in parts for entry in part.entries)
    is_copy = any(part.append.after_loss for part in parts)
    has_turns = any(part.append.turn is not None for part in parts)
    return statements.GO_ON[(Keys.ANY if is_copy else Keys.NEW) if has_keys else Keys.NONE, has_turns]


async def _apply(connection: Any, statement: Statement, parts: Sequence[Part]) -> list[str]:
    """Run a statement for all these appends. Returns the changed sessions."""
    if not parts:
        return []
    values = statements.values_of(parts)
    return [session_id for (session_id,) in await connection.fetch(statement.text, *statement.arguments(values))]
