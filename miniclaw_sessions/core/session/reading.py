"""Reading a session's tree as it is now: what the store has, and behind it what waits to be committed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

import msgspec

from miniclaw_sessions.core.history.branch import (
    Branch,
    BranchCollector,
    rejoined,
    says_what_is_in_force,
    summary_messages,
)
from miniclaw_sessions.core.history.branch_memory import BranchMemory
from miniclaw_sessions.core.history.compaction import TokenCounter, count_by_characters
from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.history.links import Links
from miniclaw_sessions.core.persistence.committer import CommitQueue
from miniclaw_sessions.core.protocol.encoding import decode_message, encode_message
from miniclaw_sessions.core.protocol.entries import Entry, LeafMove, moves_leaf
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.stores.base import Store, StoredEntry, decode_stored, stored_entry
from miniclaw_sessions.core.stores.branches import FIRST_PAGE, read_branch, walk_up
from miniclaw_sessions.core.stores.reading import PAGE, close_together
from miniclaw_sessions.errors import EntryNotFound, InvalidMessage


class TreeReader:
    """Reads one session like a store. Where the store keeps nothing, what is in memory is all there is."""

    def __init__(self, store: Store, queue: CommitQueue, conversation: Conversation, memory: BranchMemory) -> None:
        self._store = store
        self._queue = queue
        self._conversation = conversation
        self._memory = memory

    # --- stored entries, by place and id -----------------------------------------------------------------------------

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """The entries with a sequence greater than `after`, oldest first, at most `limit` of them."""
        del session_id
        return await self._read(after, limit, self._pending())

    async def read_in_place(self, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        """As `read`, but only entries that keep their place."""
        return await self._read(after, limit, self._queue.in_place(self._pending()))

    async def _read(self, after: int, limit: int | None, pending: Sequence[StoredEntry]) -> list[StoredEntry]:
        """The store's entries, and behind them those of `pending`.

        `pending` is taken before the store is asked: what is committed meanwhile is then seen twice, and not never.
        """
        page = await self._store.read(self._session_id, after=after, limit=limit) if self._store.keeps_entries else []
        last = page[-1].sequence if page else after
        page += [entry for entry in pending if entry.sequence > last]
        return page if limit is None else page[:limit]

    async def find(self, session_id: str, entry_id: str) -> StoredEntry | None:
        """The entry with this id, or None."""
        pending = next((entry for entry in self._pending() if entry.entry_id == entry_id), None)
        return pending or await self._store.find(session_id, entry_id)

    async def read_at(self, sequences: Iterable[int]) -> dict[int, StoredEntry]:
        """The entries that keep these places; those that stand close together are read together."""
        found: dict[int, StoredEntry] = {}
        for first, last in close_together(sequences, PAGE):
            page = await self.read_in_place(after=first - 1, limit=last - first + 1)
            found.update((stored.sequence, stored) for stored in page)
        return found

    # --- entries -----------------------------------------------------------------------------------------------------

    async def get(self, entry_id: str) -> Entry:
        """One entry of the tree.

        Raises:
            EntryNotFound: the session has no such entry.
            InvalidMessage: the entry is damaged.
            StoreUnavailable: the store cannot be read.
        """
        stored = await self.find(self._session_id, entry_id)
        entry = None if stored is None else decode_stored(stored)
        if stored is None or entry is None or isinstance(entry, LeafMove):  # a move is no part of the tree
            raise EntryNotFound(self._session_id, entry_id)
        return entry

    async def on_branch(self, entry_id: str) -> Entry | None:
        """The entry with this id, as `get`; for metadata, which no branch has, what they follow. None: the root."""
        entry = await self.get(entry_id)
        while not moves_leaf(entry):
            if entry.parent_id is None:
                return None
            entry = await self.get(entry.parent_id)
        return entry

    async def entries(self, problems: list[str], *, after: int = 0, in_place: bool = False) -> AsyncIterator[Entry]:
        """All behind a place, oldest first; what cannot be read is left out, and described in `problems`.

        What follows such an entry follows the one before it. With `in_place`, only those that `read_in_place` gives.
        """
        limit, links = FIRST_PAGE, Links(is_whole=after == 0)
        while page := (
            await self.read_in_place(after=after, limit=limit)
            if in_place
            else await self.read(self._session_id, after=after, limit=limit)
        ):
            for stored in page:
                try:
                    entry = decode_stored(stored)
                except InvalidMessage as error:
                    problems.append(f"entry {stored.entry_id} is damaged and is left out: {error}")
                    links.leave_out(stored.sequence)
                else:
                    yield links.follow(entry)
            after, limit = page[-1].sequence, min(2 * limit, PAGE)

    # --- branches ----------------------------------------------------------------------------------------------------

    async def walk(self, leaf: Entry | None = None) -> AsyncIterator[Entry]:
        """The entries of a branch, from its end to the root; of the current branch if none is named."""
        conversation = self._conversation
        if (
            leaf is None and not self._store.keeps_entries
        ):  # what the leaf is may be kept nowhere: a change of the model
            for entry in reversed(rejoined(conversation.branch().entries)):
                yield entry
            return
        leaf_id, place = (
            (conversation.state.leaf_id, conversation.state.leaf_sequence) if leaf is None else (leaf.id, leaf.sequence)
        )
        if leaf_id is not None:
            async for entry in walk_up(self, self._session_id, leaf_id, place, []):
                yield entry

    async def branch(self, *, max_tokens: int | None = None, count: TokenCounter = count_by_characters) -> Branch:
        """The current branch as far as a model is shown it; see `SessionTree.read_branch`."""
        conversation = self._conversation
        if not self._store.keeps_entries:
            return conversation.branch()
        collector = BranchCollector(at_most=max_tokens, size=count)
        return await read_branch(
            self,
            self._session_id,
            conversation.state.leaf_id,
            conversation.state.leaf_sequence,
            collector,
            kept_from=conversation.kept_from if max_tokens is None else 0,
        )

    async def shown(self) -> tuple[list[Message], tuple[str, ...]]:
        """What a model is shown of the current branch, not made legal; and the problems of the branch.

        Raises:
            StoreUnavailable: the branch is longer than the window, and the store cannot be read.
        """
        conversation, memory = self._conversation, self._memory
        summary = summary_messages(conversation.state.compaction)
        if conversation.window_is_whole or not self._store.keeps_entries:
            return [*summary, *conversation.window.messages()], ()
        if (known := memory.messages_of(conversation)) is not None:
            return [*summary, *map(decode_message, known)], ()
        changes, up_to = conversation.branch_changes, conversation.state.last_sequence
        branch = await self.branch()
        messages = branch.messages()
        if not branch.problems and conversation.branch_changes == changes:
            memory.remember(conversation, [*map(encode_message, messages[len(summary) :])], up_to=up_to)
        return messages, branch.problems

    async def window_at(self, leaf: Entry | None, *, left: Sequence[Entry] | None = None) -> Branch:
        """As much of the branch that ends at an entry as a window shows, and what is in force there.

        Args:
            leaf: the entry; None: the root.
            left: where it is on the current branch, all that follows it there: what none of these change is known, and
                not looked for as far as the root.
        """
        if leaf is None:
            return Branch()
        known, is_same = self._conversation.state, left is not None and not any(map(says_what_is_in_force, left))
        collector = BranchCollector(
            at_most=self._conversation.window.capacity,
            needs_compaction=left is None or known.compaction is not None,
            needs_state=not is_same,
        )
        branch = await read_branch(self, self._session_id, leaf.id, leaf.sequence, collector)
        if self._store.keeps_entries and not is_same:
            return branch
        return msgspec.structs.replace(  # with `none:` the entries that set it are not stored
            branch,
            provider=known.metadata.get("provider"),
            model=known.metadata.get("model"),
            thinking_level=known.metadata.get("thinking_level"),
        )

    @property
    def _session_id(self) -> str:
        return self._queue.head.session_id

    def _pending(self) -> list[StoredEntry]:
        if self._store.keeps_entries:
            return self._queue.pending
        entries = rejoined(self._conversation.branch().entries)
        return [stored_entry(entry) for entry in entries]
