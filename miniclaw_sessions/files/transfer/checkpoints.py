"""When sessions were last used, and what they lead to, on the way with them.

A checkpoint goes where none is, and where entries were added; but only if it agrees with the entries that were copied,
so that it is what a start would make of them. If it is missing, or does not open, it is made from them again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

import msgspec

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.core.history.state import Snapshot
from miniclaw_sessions.core.persistence.checkpoints import Written
from miniclaw_sessions.core.persistence.recovery import read_snapshot
from miniclaw_sessions.core.persistence.snapshots import Snapshots
from miniclaw_sessions.core.sharing.checkpoints import StoredCheckpoints
from miniclaw_sessions.core.stores.copying import Alike
from miniclaw_sessions.core.stores.shared_store import SharedStore, Use
from miniclaw_sessions.errors import KeyMismatch

CHUNK = 100
"""Sessions whose checkpoints are read and written together."""


class Known(NamedTuple):
    """What is known of a session beside its entries: when it was used, and its checkpoint, if there is one."""

    used_at: datetime
    snapshot: Snapshot | None


class Side(Protocol):
    """Where checkpoints are: in a directory, or in a database that several processes share."""

    async def known(self, session_ids: Sequence[str]) -> dict[str, Known]:
        """What is known of these sessions."""
        ...

    async def lacking(self, session_ids: Sequence[str]) -> Collection[str]:
        """Which of these have no checkpoint."""
        ...

    async def take(self, known: Mapping[str, Known], alike: Mapping[str, Alike]) -> None:
        """Keep what is known of sessions, each of which is there."""
        ...

    async def forget(self, session_id: str) -> object:
        """Keep nothing of a session that is about to be deleted."""
        ...


class InFiles:
    """Session files, whose times say when the sessions were used."""

    def __init__(self, snapshots: Snapshots, clock: Clock) -> None:
        self._snapshots = snapshots
        self._clock = clock
        self._times: dict[str, float] | None = None

    async def _modified(self) -> dict[str, float]:
        if self._times is None:
            self._times = dict(await self._snapshots.modified())
        return self._times

    async def known(self, session_ids: Sequence[str]) -> dict[str, Known]:
        """What the files say."""
        times, found = await self._modified(), {}
        for session_id in session_ids:
            if session_id in times:
                snapshot = None
                with suppress(KeyMismatch):
                    snapshot = await read_snapshot(self._snapshots, session_id, self._clock)
                found[session_id] = Known(datetime.fromtimestamp(times[session_id], UTC), snapshot)
        return found

    async def lacking(self, session_ids: Sequence[str]) -> Collection[str]:
        """Those without a file."""
        return set(session_ids).difference(await self._modified())

    async def take(self, known: Mapping[str, Known], alike: Mapping[str, Alike]) -> None:  # noqa: ARG002 - the contract's
        """Write the files; a time without a file cannot be kept."""
        _raise(await self._snapshots.write([one.snapshot for one in known.values() if one.snapshot is not None]))

    async def forget(self, session_id: str) -> object:
        """Remove the file first: without the store's session the next start would take it for one that was lost."""
        (await self._modified()).pop(session_id, None)
        return await self._snapshots.remove(session_id)


class InRows:
    """The rows of a database."""

    def __init__(self, store: SharedStore, checkpoints: StoredCheckpoints, clock: Clock) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._clock = clock

    async def known(self, session_ids: Sequence[str]) -> dict[str, Known]:
        """What the rows say."""
        return {
            one.stored.head.session_id: Known(
                one.used_at, None if one.checkpoint is None else self._checkpoints.decoded(one.checkpoint)
            )
            for one in await self._store.load(session_ids)
        }

    async def lacking(self, session_ids: Sequence[str]) -> Collection[str]:
        """Those without a row."""
        return set(session_ids).difference(one.session_id for one in await self._store.checkpoints(session_ids))

    async def take(self, known: Mapping[str, Known], alike: Mapping[str, Alike]) -> None:
        """Write the rows, and when the sessions were used: they were written just now, which is no use of them."""
        _raise(await self._checkpoints.write([one.snapshot for one in known.values() if one.snapshot is not None]))
        now = self._clock.now()
        uses = [
            Use(session_id, alike[session_id].incarnation, max(0.0, (now - one.used_at).total_seconds()))
            for session_id, one in known.items()
        ]
        await self._store.used(uses, backwards=True)

    async def forget(self, session_id: str) -> object:
        """They go with the session itself."""


async def carry(source: Side, target: Side, alike: Mapping[str, Alike]) -> None:
    """Give the target what it lacks, or has of before.

    Args:
        source: what has it.
        target: what gets it.
        alike: the sessions that both have.

    Raises:
        StoreError, SnapshotUnreadable, OSError: it cannot be read or written; the sessions are copied all the same.
    """
    ids = list(alike)
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        lacking = await target.lacking(chunk)
        known = await source.known([one for one in chunk if alike[one].is_new or one in lacking])
        if known:
            await target.take({one: _agreeing(what, alike[one]) for one, what in known.items()}, alike)


def _agreeing(known: Known, alike: Alike) -> Known:
    """The same, without a checkpoint that says more than was copied, or is of another session of that name."""
    snapshot = known.snapshot
    if snapshot is None:
        return known
    state = snapshot.state
    if state.incarnation != alike.incarnation or state.last_sequence > alike.last_sequence:
        return known._replace(snapshot=None)
    used = msgspec.structs.replace(snapshot, state=state.copy(last_accessed=known.used_at))
    return known._replace(snapshot=used)


def _raise(outcomes: Sequence[Written]) -> None:
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
