"""Reading one branch of a transcript, from an entry towards the root, without reading the rest.

An entry states the sequence of its parent (`protocol.entries.place_of_parent`). The parent is nearly always the entry
before, so a page of the store holds a stretch of the branch; where a branch begins, the walk jumps. Each step goes to a
smaller sequence, so no damage can make the walk endless.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Protocol

import msgspec

from miniclaw_sessions.core.history.branch import Branch, BranchCollector
from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import Entry, LeafMove, moves_leaf, place_of_parent
from miniclaw_sessions.core.stores.base import StoredEntry, decode_stored, is_damaged, without_mark
from miniclaw_sessions.errors import InvalidMessage


class EntrySource(Protocol):
    """A source of entries: a store, or a view that includes entries that are not committed yet."""

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The entries with a sequence greater than `after`, oldest first, at most `limit` of them."""
        ...

    async def find(self, session_id: str, entry_id: str) -> StoredEntry | None:
        """The entry with this id, or None."""
        ...


FIRST_PAGE = 64
LARGEST_PAGE = 1_024
"""The first page is small, because most walks are short; each further one is twice as large."""


async def read_branch(  # noqa: PLR0913 - the parts of the branch's end, and what is known of its beginning
    source: EntrySource,
    session_id: str,
    leaf_id: str | None,
    leaf_sequence: int,
    collector: BranchCollector,
    *,
    kept_from: int = 0,
) -> Branch:
    """The branch that ends at an entry, as far as the collector needs it.

    Args:
        source: the source of entries.
        session_id: the session.
        leaf_id: the branch's last entry; None: the root.
        leaf_sequence: its sequence.
        collector: takes the entries.
        kept_from: the sequence that the collector is likely to need all entries from; 0: that is not known.

    Raises:
        StoreError: the store cannot be read.
    """
    problems: list[str] = []
    if leaf_id is not None:
        async for entry in walk_up(source, session_id, leaf_id, leaf_sequence, problems, kept_from=kept_from):
            collector.feed(entry)
            if collector.has_enough:
                break
    return collector.branch(problems)


async def walk_up(  # noqa: PLR0913 - the first entry, and what is known of the last one
    source: EntrySource, session_id: str, entry_id: str, sequence: int, problems: list[str], *, kept_from: int = 0
) -> AsyncGenerator[Entry, None]:
    """The entry, its parent, and so on to the root.

    Args:
        source: the source of entries.
        session_id: the session.
        entry_id: the first entry of the walk.
        sequence: its sequence; 0 if that is not known.
        problems: problems on the way are added to it, one sentence each.
        kept_from: the sequence that the walk is likely to go up to; 0: that is not known.

    Raises:
        StoreError: the store cannot be read.
    """
    pages = _Pages(source, session_id, kept_from, sequence)
    wanted: str | None = entry_id
    below: int | None = None  # the child's sequence
    while wanted is not None:
        stored = pages.known(sequence, wanted) or await pages.at(sequence, wanted)
        if stored is None or (below is not None and stored.sequence >= below):
            problems.append(f"entry {wanted} is missing, or does not come before its child, which begins the branch")
            return
        try:
            entry = decode_stored(stored)
        except InvalidMessage as error:
            problems.append(f"entry {wanted} is damaged and was passed over: {error}")
            before = await pages.before_damaged(stored)
            if before is None:
                return
            wanted, sequence, below = before.entry_id, before.sequence, stored.sequence
            continue
        below = stored.sequence
        if isinstance(entry, LeafMove):  # the entry after it is damaged, and followed the entry that it moved to
            wanted, sequence = entry.target_id, entry.target_sequence or 0
            continue
        if moves_leaf(entry) or entry.id == entry_id:  # other entries are not on the branch
            yield entry
        wanted, sequence = entry.parent_id, place_of_parent(entry)


async def bring_window_up(conversation: Conversation, source: EntrySource) -> list[str]:
    """Complete a conversation's window from a store, if the entries that were applied do not suffice.

    Returns:
        The problems of the branch, one sentence each.

    Raises:
        StoreError: the store cannot be read.
    """
    if not (conversation.lacks_branch or conversation.lacks_messages):
        return []
    is_other = conversation.lacks_branch
    collector = BranchCollector(at_most=conversation.window.capacity, needs_compaction=is_other, needs_state=is_other)
    session_id = conversation.state.session_id
    branch = await read_branch(
        source, session_id, conversation.state.leaf_id, conversation.state.leaf_sequence, collector
    )
    conversation.rebuild(branch)
    return list(branch.problems)


class _Pages:
    """The page of the transcript that was read last."""

    def __init__(self, source: EntrySource, session_id: str, kept_from: int, leaf_sequence: int) -> None:
        self._source = source
        self._session_id = session_id
        self._kept_from = kept_from
        wanted = leaf_sequence - kept_from + 1 if kept_from else FIRST_PAGE
        self._size = min(max(wanted, FIRST_PAGE), LARGEST_PAGE)
        self._page: dict[int, StoredEntry] = {}

    def known(self, sequence: int, entry_id: str) -> StoredEntry | None:
        """The entry with this id, if it is on the page at this sequence: a call without an await, for most entries."""
        stored = self._page.get(sequence)
        return stored if stored is not None and stored.entry_id == entry_id else None

    async def at(self, sequence: int, entry_id: str) -> StoredEntry | None:
        """The entry with this id, at this sequence or another one.

        If no entry has the id, a damaged entry at the sequence is taken for it: its id may be damaged too.
        """
        stored = await self._at(sequence) if sequence > 0 else None
        if stored is not None and stored.entry_id == entry_id:
            return stored
        elsewhere = await self._source.find(self._session_id, entry_id)
        return stored if elsewhere is None and stored is not None and is_damaged(stored.encoded) else elsewhere

    async def before_damaged(self, damaged: StoredEntry) -> StoredEntry | None:
        """The entry that a damaged one follows: the parent that it still names, if it exists, else the entry before."""
        with suppress(InvalidMessage):
            entry = decode_entry(without_mark(damaged.encoded))
            place = place_of_parent(msgspec.structs.replace(entry, sequence=damaged.sequence))
            parent = await self._at(place) if 0 < place < damaged.sequence else None
            if parent is not None and parent.entry_id == entry.parent_id:
                return parent
        return await self._at(damaged.sequence - 1) if damaged.sequence > 1 else None

    async def _at(self, sequence: int) -> StoredEntry | None:
        if sequence not in self._page:
            after = max(0, sequence - self._size, self._kept_from - 1 if self._kept_from <= sequence else 0)
            page = await self._source.read(self._session_id, after=after, limit=sequence - after)
            self._page = {stored.sequence: stored for stored in page if stored.sequence <= sequence}
            self._size = min(2 * self._size, LARGEST_PAGE)
        return self._page.get(sequence)
