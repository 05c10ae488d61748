"""Copying a store into another one, entry by entry: the one way in which a transcript gets from one store to another.

Backup, rekeying, changing the store and salvaging what is left of a damaged one all do this. Which kinds the two are,
and whether either is encrypted, is theirs: whatever the contract of `stores.base` covers is copied.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
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
    """What was copied, and what is wrong with it, one sentence each; what is damaged is copied too, and stays so."""

    sessions: int = 0
    entries: int = 0
    problems: list[str] = msgspec.field(default_factory=list)


async def copy_store(source: Source, target: Store, on_entries: OnEntries = lambda _: None) -> Copied:
    """Copy every session. The source may go on being used: each session is copied as far as it was when it was reached.

    Raises:
        StoreError: the source cannot be read, or the target not be written. What the target has by then stays in it.
    """
    copied = Copied()
    group: dict[str, Append] = {}
    waiting = 0
    async for stored in source.heads():
        copied.sessions += 1
        async for item in _pages(source, stored, copied):
            if waiting + len(item.entries) > GROUP or item.head.session_id in group:
                await _append(target, group)
                group, waiting = {}, 0
            group[item.head.session_id] = item
            waiting += len(item.entries)
            copied.entries += len(item.entries)
            on_entries(copied.entries)
    await _append(target, group)
    return copied


async def _pages(source: Source, stored: StoredHead, copied: Copied) -> AsyncIterator[Append]:
    """A session's entries, some at a time; one page without any if it has none."""
    page: list[StoredEntry] = []
    try:
        async for entry in read_all(source, stored.head.session_id):
            if entry.sequence > stored.last_sequence:
                break
            if is_damaged(entry.encoded):
                copied.problems.append(f"entry {entry.sequence} of session {stored.head.session_id} is damaged")
            page.append(entry)
            if len(page) >= GROUP // 4:
                yield _item(stored.head, page)
                page = []
    except StoreCorrupt as error:  # what came before it is right
        copied.problems.append(f"session {stored.head.session_id}: {error}")
    if page or not stored.last_sequence:
        yield _item(stored.head, page)


def _item(head: SessionHead, page: list[StoredEntry]) -> Append:
    return Append(head, page, after_loss=True)  # the source knows of its gaps


async def _append(target: Store, group: dict[str, Append]) -> None:
    for outcome in await target.append(list(group.values())):
        if outcome is not None:
            raise StoreError(f"the copy is not complete: {outcome}") from outcome
