"""What a server's database keeps besides transcripts: lists, checkpoints, the archive, and properties."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import Any, cast

from anyio import CancelScope

from miniclaw_sessions.core.stores.base import Checkpoint, StoredEntry, StoredHead, StoredSession
from miniclaw_sessions.core.stores.positions import ListPosition
from miniclaw_sessions.core.stores.postgresql import catalog_sql, changes, statements
from miniclaw_sessions.core.stores.postgresql.connections import Connections, transaction
from miniclaw_sessions.core.stores.reading import PAGE
from miniclaw_sessions.core.stores.shared_store import Archiving, Changes, SharedStore, Use


class Catalog(SharedStore):
    """A part of `PostgreSQLStore`, which makes the connections."""

    _server: Connections

    async def count(self) -> int:
        """The number of sessions; the server counts them one by one."""
        ((count,),) = await self._server.fetch(catalog_sql.COUNT)
        return int(count)

    async def load(self, session_ids: Sequence[str]) -> list[StoredSession]:
        """Sessions with their checkpoints and the entries behind these, in one round trip."""
        return catalog_sql.stored_sessions(
            await self._server.fetch(catalog_sql.LOAD, session_ids=list(session_ids), limit=PAGE)
        )

    # --- lists, checkpoints, expiry ----------------------------------------------------------------------------------

    async def newest(
        self, *, limit: int, channel: str | None = None, pattern: str = "%", behind: ListPosition | None = None
    ) -> list[ListPosition]:
        """A part of the list, the most recently used first, along an index."""
        used_at, session_id = behind or (catalog_sql.LAST, "")
        rows = await self._server.fetch(
            catalog_sql.NEWEST, channel=channel, pattern=pattern, used_at=used_at, behind=session_id, limit=limit
        )
        return [ListPosition(*row) for row in rows]

    async def changes(self, since: datetime, late_s: float) -> Changes:
        """The changes since a point in time, along indexes."""
        before = since - timedelta(seconds=late_s)
        return changes.changes_of(await self._server.fetch(changes.CHANGES, since=before))

    async def used(self, uses: Sequence[Use], *, backwards: bool = False) -> None:
        """Record uses of sessions."""
        await self._server.change("write to", catalog_sql.USED[backwards], **catalog_sql.values_of_uses(uses))

    async def write_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Write checkpoints that go further than the stored ones."""
        await self._server.change(
            "write to", catalog_sql.WRITE_CHECKPOINTS, **catalog_sql.values_of_checkpoints(checkpoints)
        )

    async def checkpoints(self, session_ids: Sequence[str]) -> list[Checkpoint]:
        """The sound checkpoints of these sessions."""
        return catalog_sql.sound_checkpoints(
            await self._server.fetch(catalog_sql.READ_CHECKPOINTS, session_ids=list(session_ids))
        )

    async def now(self) -> datetime:
        """The time of the server's clock."""
        ((now,),) = await self._server.fetch(catalog_sql.CLOCK)
        return cast("datetime", now)

    async def idle(
        self, idle_s: float, *, limit: int, channel: str | None = None, but_channels: Sequence[str] = ()
    ) -> list[str]:
        """Sessions that were not used for `idle_s` seconds, the longest idle first."""
        asked = {"idle_s": idle_s, "limit": limit, "channel": channel, "but_channels": list(but_channels)}
        return [session_id for (session_id,) in await self._server.fetch(catalog_sql.IDLE, **asked)]

    async def expire(self, session_ids: Iterable[str], idle_s: float, archiving: Archiving | None) -> dict[str, int]:
        """Remove the sessions that are still idle, in one transaction; leave rows to the processes that locked them."""
        sizes: dict[str, int] = {}
        gone: list[str] = []
        with CancelScope(shield=True):
            async with self._server.writing("expire in") as connection, transaction(connection, is_patient=True):
                locked = catalog_sql.LOCKED_IDLE_HEADS
                arguments = locked.arguments({"session_ids": list(session_ids), "idle_s": idle_s})
                heads = [statements.stored_head(row) for row in await connection.fetch(locked.text, *arguments)]
                gone = [stored.head.session_id for stored in heads]
                if archiving is not None:
                    for stored in heads:
                        name, pieces = archiving(stored.head, _entries_on(connection, stored))
                        await _write_archived(connection, stored.head.session_id, name, pieces)
                if gone:
                    sizes = dict(await connection.fetch(catalog_sql.SIZES.text, gone))
                    for statement in catalog_sql.DELETE_MANY:
                        await connection.execute(statement.text, gone)
                await note_deleted(connection, [stored.head.incarnation for stored in heads])
        return {session_id: sizes.get(session_id, 0) for session_id in gone}

    # --- the archive, and what is true of all of it ------------------------------------------------------------------

    async def archived(self, session_id: str | None = None) -> list[str]:
        """The names of archived files, in order."""
        return [name for (name,) in await self._server.fetch(catalog_sql.ARCHIVED, session_id=session_id)]

    async def write_archived(self, session_id: str, name: str, pieces: AsyncIterator[bytes]) -> None:
        """Write an archived file, in one transaction."""
        async with self._server.writing("archive in") as connection, transaction(connection):
            await _write_archived(connection, session_id, name, pieces)

    async def read_archived(self, session_id: str, name: str) -> AsyncIterator[bytes]:
        """The bytes of an archived file, a row at a time."""
        for piece in count():
            rows = await self._server.fetch(catalog_sql.READ_ARCHIVED, session_id=session_id, name=name, piece=piece)
            if not rows:
                return
            yield rows[0][0]

    async def delete_archived(self, session_id: str, names: Sequence[str] | None = None) -> int:
        """Remove archived files of a session. Returns how many there were."""
        given = None if names is None else list(names)
        return len(
            set(
                await self._server.change(
                    "delete from", catalog_sql.DELETE_ARCHIVED, session_id=session_id, names=given
                )
            )
        )

    async def read_property(self, name: str) -> bytes | None:
        """The value of a property, or None."""
        rows = await self._server.fetch(catalog_sql.READ_PROPERTY, name=name)
        return bytes(rows[0][0]) if rows else None

    async def properties(self, prefix: str) -> list[str]:
        """The names of properties that begin with a prefix."""
        return [name for (name,) in await self._server.fetch(catalog_sql.PROPERTY_NAMES, name=prefix)]

    async def write_property(self, name: str, value: bytes, *, replace: bool = False) -> bytes:
        """Set a property. Returns its value afterwards."""
        await self._server.change("write to", catalog_sql.WRITE_PROPERTY[replace], name=name, value=value)
        return await self.read_property(name) or b""


async def note_deleted(connection: Any, incarnations: Sequence[str]) -> None:
    """Record deletions for `changes`, in the transaction that deletes."""
    if incarnations:
        await connection.execute(changes.FORGET_DELETED.text, *changes.FORGET_DELETED.arguments({}))
        await connection.execute(changes.DELETED.text, *changes.DELETED.arguments({"incarnations": list(incarnations)}))


async def _entries_on(connection: Any, stored: StoredHead) -> AsyncIterator[StoredEntry]:
    """A session's entries, oldest first, read while its row is locked."""
    session_id, after = stored.head.session_id, 0
    while page := await connection.fetch(statements.OLDEST_FIRST.text, session_id, after, PAGE):
        for entry in statements.stored_entries(session_id, page):
            yield entry
        after = page[-1][0]


async def _write_archived(connection: Any, session_id: str, name: str, pieces: AsyncIterator[bytes]) -> None:
    number = 0
    async for piece in pieces:
        await connection.execute(catalog_sql.WRITE_ARCHIVED.text, session_id, name, number, piece)
        number += 1
