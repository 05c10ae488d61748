"""Copying a store into another one, entry by entry: the one way in which a transcript gets from one store to another.

Backup, restoring, rekeying, migrating and salvaging what is left of a damaged store all do this. Of which kinds the two
are, and whether either is encrypted, is theirs: whatever the contract of `stores.base` covers is copied, byte for byte.
Each session is copied by itself. An entry that is there already changes nothing, so that a copy may be run again.

What is made of entries from elsewhere, such as a fork or an import, is put together by `session.copying`, in the same
batches.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from itertools import groupby
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from miniclaw_sessions.errors import StoreCorrupt, StoreError
from miniclaw_sessions.stores.base import Append, Store, StoredEntry, StoredHead, is_damaged
from miniclaw_sessions.stores.reading import Readable, read_all

BATCH_ENTRIES = 500
BATCH_BYTES = 4_194_304
"""When one of these is reached, what was gathered is written, with one sync."""

GROUP = 2_000
"""How many entries are written at once from store to store."""

OnEntries = Callable[[int], None]
"""Called with how many entries are done."""

T = TypeVar("T")


class Source(Readable, Protocol):
    """What is copied: a store, or what is left of one."""

    def heads(self) -> AsyncIterator[StoredHead]:
        """All its sessions."""
        ...


class Copied(msgspec.Struct, kw_only=True):
    """How much was copied, and what is wrong, one sentence each.

    What is damaged is copied too, and stays so; it is not counted.
    """

    sessions: int = 0
    entries: int = 0
    problems: list[str] = msgspec.field(default_factory=list)


class _CopiedSession(msgspec.Struct):
    """What the copy has of a session."""

    incarnation: str
    entries: int = 0
    problems: list[str] = msgspec.field(default_factory=list)


class _Piece(NamedTuple):
    """An entry, and whose it is; None: the session has none."""

    stored: StoredHead
    entry: StoredEntry | None


async def copy_store(source: Source, target: Store, on_entries: OnEntries = lambda _: None) -> Copied:
    """Copy every session. The source may go on being used: each session is copied as far as it was when it was reached.

    One that is deleted meanwhile is not in the copy, or as the session that took its name since.

    Raises:
        StoreError: the source cannot be read, or the target not be written. What the target has by then stays in it.
    """
    copies: dict[str, _CopiedSession] = {}
    done = 0
    wanted = source.heads()
    while True:
        pieces = _pieces(source, wanted, copies)
        async for batch in in_batches(pieces, _size_of, most=GROUP):
            await _append(target, batch)
            done += sum(piece.entry is not None for piece in batch)
            on_entries(done)
        replaced = await _replaced(source, copies)  # their pages may be of two sessions
        if not replaced:
            break
        for session_id in replaced:
            del copies[session_id]
            await target.delete(session_id)
        wanted = _each(replaced)
    problems = [problem for copy in copies.values() for problem in copy.problems]
    return Copied(sessions=len(copies), entries=sum(copy.entries for copy in copies.values()), problems=problems)


async def in_batches(
    items: AsyncIterator[T], size: Callable[[T], int], *, most: int = BATCH_ENTRIES
) -> AsyncGenerator[list[T], None]:
    """The items, as many at a time as are written with one sync; no batch is empty.

    Args:
        items: as they come.
        size: how many bytes one has.
        most: how many there are in a batch.
    """
    batch: list[T] = []
    total = 0
    async for item in items:
        batch.append(item)
        total += size(item)
        if len(batch) >= most or total >= BATCH_BYTES:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def _size_of(piece: _Piece) -> int:
    return 0 if piece.entry is None else len(piece.entry.encoded)


async def _pieces(
    source: Source, heads: AsyncIterator[StoredHead], copies: dict[str, _CopiedSession]
) -> AsyncIterator[_Piece]:
    """The sessions' entries one after the other; what is seen of each is noted."""
    async for stored in heads:
        session_id = stored.head.session_id
        copy = copies[session_id] = _CopiedSession(stored.head.incarnation)
        is_empty = True
        try:
            async for entry in read_all(source, session_id):
                if entry.sequence > stored.last_sequence:
                    break
                if is_damaged(entry.encoded):
                    copy.problems.append(f"entry {entry.sequence} of session {session_id} is damaged")
                else:
                    copy.entries += 1
                is_empty = False
                yield _Piece(stored, entry)
        except StoreCorrupt as error:  # what came before it is right
            copy.problems.append(f"session {session_id}: {error}")
        if is_empty:
            yield _Piece(stored, None)


async def _append(target: Store, batch: list[_Piece]) -> None:
    appends = [
        Append(stored.head, [entry for _, entry in pieces if entry is not None], after_loss=True)  # the gaps are known
        for stored, pieces in groupby(batch, key=lambda piece: piece.stored)
    ]
    for outcome in await target.append(appends):
        if outcome is not None:
            raise StoreError(f"the copy is not complete: {outcome}") from outcome


async def _replaced(source: Source, copies: Mapping[str, _CopiedSession]) -> dict[str, StoredHead | None]:
    """The copied sessions that are gone, and those of whose name there is another one now."""
    replaced: dict[str, StoredHead | None] = dict.fromkeys(copies)
    async for stored in source.heads():
        copy = copies.get(stored.head.session_id)
        if copy is not None and copy.incarnation == stored.head.incarnation:
            del replaced[stored.head.session_id]
        elif copy is not None:
            replaced[stored.head.session_id] = stored
    return replaced


async def _each(replaced: Mapping[str, StoredHead | None]) -> AsyncIterator[StoredHead]:
    for stored in replaced.values():
        if stored is not None:
            yield stored
