"""Copying a store into another one, entry by entry: the one way in which a transcript gets from one store to another.

Backup, rekeying, changing the store and salvaging what is left of a damaged one all do this. Which kinds the two are,
and whether either is encrypted, is theirs: whatever the contract of `stores.base` covers is copied.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

import msgspec

from miniclaw_sessions.errors import StoreCorrupt, StoreError
from miniclaw_sessions.stores.base import Append, SessionHead, Store, StoredEntry, StoredHead, is_damaged
from miniclaw_sessions.stores.reading import Readable, read_all

GROUP = 2_000
"""How many entries are written with one sync."""

OnEntries = Callable[[int], None]
"""Called with how many entries are done."""


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


async def copy_store(source: Source, target: Store, on_entries: OnEntries = lambda _: None) -> Copied:
    """Copy every session. The source may go on being used: each session is copied as far as it was when it was reached.

    One that is deleted meanwhile is not in the copy, or as the session that took its name since.

    Raises:
        StoreError: the source cannot be read, or the target not be written. What the target has by then stays in it.
    """
    copies: dict[str, _CopiedSession] = {}
    group: dict[str, Append] = {}
    waiting = done = 0

    async def copy(stored: StoredHead) -> None:
        nonlocal waiting, done
        session_id = stored.head.session_id
        copy = copies[session_id] = _CopiedSession(stored.head.incarnation)
        async for item in _pages(source, stored, copy.problems):
            if waiting + len(item.entries) > GROUP or session_id in group:
                await _append(target, group)
                waiting = 0
            group[session_id] = item
            waiting += len(item.entries)
            copy.entries += sum(not is_damaged(entry.encoded) for entry in item.entries)
            done += len(item.entries)
            on_entries(done)

    async for stored in source.heads():
        await copy(stored)
    await _append(target, group)
    while replaced := await _replaced(source, copies):  # their pages may be of two sessions
        for session_id, new in replaced.items():
            del copies[session_id]
            await target.delete(session_id)
            if new is not None:
                await copy(new)
        await _append(target, group)
    problems = [problem for copy in copies.values() for problem in copy.problems]
    return Copied(sessions=len(copies), entries=sum(copy.entries for copy in copies.values()), problems=problems)


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


async def _pages(source: Source, stored: StoredHead, problems: list[str]) -> AsyncIterator[Append]:
    """A session's entries, some at a time; at least one page, if there is nothing on it."""
    page: list[StoredEntry] = []
    is_first = True
    try:
        async for entry in read_all(source, stored.head.session_id):
            if entry.sequence > stored.last_sequence:
                break
            if is_damaged(entry.encoded):
                problems.append(f"entry {entry.sequence} of session {stored.head.session_id} is damaged")
            page.append(entry)
            if len(page) >= GROUP // 4:
                yield _item(stored.head, page)
                page, is_first = [], False
    except StoreCorrupt as error:  # what came before it is right
        problems.append(f"session {stored.head.session_id}: {error}")
    if page or is_first:
        yield _item(stored.head, page)


def _item(head: SessionHead, page: list[StoredEntry]) -> Append:
    return Append(head, page, after_loss=True)  # the source knows of its gaps


async def _append(target: Store, group: dict[str, Append]) -> None:
    """Append what is in the group, and empty it."""
    outcomes = await target.append(list(group.values()))
    group.clear()
    for outcome in outcomes:
        if outcome is not None:
            raise StoreError(f"the copy is not complete: {outcome}") from outcome
