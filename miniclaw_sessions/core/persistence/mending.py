"""Giving a store's damaged entries back: a session's file has its newest messages too, under a checksum of its own.

What agrees with the checksum that the store has of a damaged entry was that entry. Where not even that is left, the
file's message is taken, if all of it is there: a window leaves out calls of a turn that is too large for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import msgspec
from anyio import to_thread

from miniclaw_sessions.core.history.state import Snapshot
from miniclaw_sessions.core.stores.base import (
    LOST,
    Store,
    StoredEntry,
    idempotency_key_in,
    is_damaged,
    stored_entry,
    without_mark,
)
from miniclaw_sessions.core.stores.reading import read_all
from miniclaw_sessions.errors import SessionUnavailable, StoreCorrupt
from miniclaw_sessions.log import get_logger

_MESSAGE = b'"message":'

log = get_logger(__name__)


class Mended(msgspec.Struct):
    """What `mend` did.

    Attributes:
        entries: how many entries are right again.
        lost: of which sessions how many entries are lost for good.
        needs_start: the files of the store are damaged themselves; the next start rebuilds them.
    """

    entries: int = 0
    lost: dict[str, int] = msgspec.field(default_factory=dict)
    needs_start: bool = False


Saved = Callable[[str], Awaitable[Snapshot | None]]
"""The content of a session's file or checkpoint; None if it is missing or damaged."""


async def check_and_mend(saved: Saved, store: Store) -> Mended:
    """`mend`, and look as well for what only the store itself finds wrong with its files.

    Raises:
        StoreError, SnapshotUnreadable: as for `mend`.
    """
    mended = await mend(saved, store)
    await store.check()
    mended.needs_start = await to_thread.run_sync(store.found_damaged)
    return mended


async def mend(saved: Saved, store: Store) -> Mended:
    """Write what the session files have whole over what is damaged in the store; reads all of both.

    Raises:
        StoreError: the store cannot be read or written.
        SnapshotUnreadable: a file cannot be read.
    """
    report = Mended()
    async for stored in store.heads():
        session_id = stored.head.session_id
        try:
            damaged = [entry async for entry in read_all(store, session_id) if is_damaged(entry.encoded)]
        except SessionUnavailable:  # a check says why
            continue
        if not damaged:
            continue
        snapshot = await saved(session_id)
        if snapshot is not None and snapshot.state.incarnation == stored.head.incarnation:
            candidates = [one for entry in damaged for one in _candidates(entry, snapshot)]
            with suppress(StoreCorrupt):  # the place cannot even be written: the files must be rebuilt first
                report.entries += await store.mend(session_id, candidates)
            first = damaged[0].sequence - 1
            damaged = [one async for one in read_all(store, session_id, after=first) if is_damaged(one.encoded)]
        if lost := sum(entry.encoded == LOST for entry in damaged):
            report.lost[session_id] = lost
    log.info(
        "what the session files have of damaged entries was written over them",
        action="recovery.mended",
        entries=report.entries,
        with_losses=len(report.lost),
    )
    return report


def _candidates(damaged: StoredEntry, snapshot: Snapshot) -> Iterator[StoredEntry]:
    """What a damaged entry may have been, by the session's file."""
    compaction = snapshot.state.compaction
    if compaction is not None and compaction.sequence == damaged.sequence:
        yield stored_entry(compaction, bytes(snapshot.state.encoded_compaction))
    for kept in snapshot.kept:
        if kept.sequence != damaged.sequence:
            continue
        if damaged.encoded != LOST:
            was = without_mark(damaged.encoded)
            begin = was.find(_MESSAGE) + len(_MESSAGE)
            encoded = was[:begin] + kept.encoded + was[begin + len(kept.encoded) :]
            if encoded != was:  # nearly all of its bytes are the message
                yield StoredEntry(kept.sequence, kept.id, encoded, idempotency_key_in(encoded))
            yield stored_entry(msgspec.structs.replace(kept.entry, continues=True))
        elif kept.calls_tools and kept.sequence <= snapshot.state.newest_evicted:
            continue  # some of its calls may have left the window
        yield stored_entry(kept.entry)
