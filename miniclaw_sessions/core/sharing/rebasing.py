"""Going on behind what other processes have stored: their entries are folded in, and ours are made again behind them.

A session's entries stand in one order, which the store decides. What was accepted here and refused there, because
another process was first, keeps its id, time and content; its place changes, and with it what it follows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import cast

import msgspec

from miniclaw_sessions.core.history.branch_memory import BranchMemory
from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.persistence.committer import CommitQueue, Shrunk
from miniclaw_sessions.core.persistence.recovery import catch_up
from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.protocol.entries import (
    Compaction,
    Entry,
    LeafMove,
    MessageEntry,
    moves_leaf,
    place_of_parent,
)
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.core.session.reading import TreeReader
from miniclaw_sessions.core.sharing.queue import Accepted, Claim, SharedQueue, shared_queue
from miniclaw_sessions.core.stores.base import (
    SessionHead,
    Store,
    StoredEntry,
    StoredHead,
    StoredTurn,
    decode_stored,
    stored_entry,
)
from miniclaw_sessions.core.stores.branches import bring_window_up
from miniclaw_sessions.core.stores.reading import read_all
from miniclaw_sessions.errors import InvalidMessage, LeafMoved, StoreConflict, TurnTaken


async def rebase(refused: CommitQueue, conflict: StoreConflict) -> Shrunk:
    """Let what waits of a session go on behind what is stored (`Committer.on_conflict`).

    Raises:
        StoreConflict: the session was deleted, or nothing that is stored explains why it was refused: it never will be
            taken.
        StoreUnavailable: the store cannot be read; nothing has changed.
    """
    queue = cast("SharedQueue", refused)
    journal = None if queue.journal is None else queue.journal()
    if journal is None:
        raise conflict
    while True:
        stored = await _stored_head(journal.home.store, queue)
        if stored is None:
            raise StoreConflict(f"session {journal.session_id} was deleted by another process") from conflict
        entries = [decode_stored(one) for one in queue.pending]
        there = await _there(journal.home.store, queue, entries)
        shrunk = await _Rebase(journal, queue, stored, entries, there).done(conflict)
        if shrunk is not None:
            return shrunk


class _Rebase:
    """One attempt to fit what waits of a session behind what was stored when it was looked at.

    Attributes:
        stored: the session in the store.
        entries: what waits, in order.
        there: what is stored of these already (`_there`).
        is_mine: whether the turn that is open here, or asked for, can be ours still.
        lost: the ids of those that belong to a turn that is not ours any more.
        overtaken: the ids of those that were accepted for their very places, which others have now.
    """

    def __init__(
        self,
        journal: Journal,
        queue: SharedQueue,
        stored: StoredHead,
        entries: Sequence[Entry],
        there: Mapping[str, Entry | None],
    ) -> None:
        self.stored = stored
        self.entries = entries
        self.there = there
        self._journal = journal
        self._queue = queue
        self.is_mine = _may_have_turn(queue.claim, stored.turn)
        self.lost: set[str] = set()
        self.overtaken: set[str] = set()
        if not self.is_mine and queue.claim is not None:
            self.lost = queue.claim.ids.intersection(entry.id for entry in entries) - there.keys()
        if stored.last_sequence != queue.committed or self.lost:
            fixed = {entry.id for entry in entries if _unit_of(queue, entry).is_fixed}
            self.overtaken = fixed - there.keys() - self.lost

    @property
    def left_out(self) -> set[str]:
        """The ids of those that are not made for other places."""
        return {*self.there, *self.lost, *self.overtaken}

    async def done(self, conflict: StoreConflict) -> Shrunk | None:
        """Let the session go on so; None: it has changed meanwhile, here or in the store, and must be looked at again.

        Raises:
            StoreConflict: nothing that is stored explains `conflict`.
            StoreUnavailable: the store cannot be read.
        """
        journal, queue, store = self._journal, self._queue, self._journal.home.store
        nothing_came = self.stored.last_sequence == queue.committed and not self.there
        if self.is_mine and nothing_came and (queue.claim is None or queue.claim.is_held):
            raise conflict
        conversation = await _as_stored(journal, self.stored)
        keys = conversation.state.idempotency_keys
        if any(entry.idempotency_key in keys for entry in self.entries if entry.id not in self.left_out):
            return None  # one was stored a moment ago: it would be refused for ever
        moved = behind(conversation, self.entries, self.left_out)
        committed = conversation.state.last_sequence
        waiting = [stored_entry(entry, encode_entry(entry)) for entry in moved]
        for entry, one in zip(moved, waiting, strict=True):
            conversation.apply(entry, one.encoded)
        await _bring_window_up(store, self.stored.head, conversation, waiting)
        if len(queue.pending) != len(self.entries):  # something was accepted meanwhile
            return None
        journal.go_on_with(conversation)
        self._settle(moved)
        return queue.replace(self.stored.head, waiting, committed=committed)

    def _settle(self, moved: Sequence[Entry]) -> None:
        """Let every call that waits for one of the entries know what becomes of it."""
        queue, session_id = self._queue, self._journal.session_id
        if (claim := queue.claim) is not None and not self.is_mine:
            if self.lost or not claim.is_held:  # what was stored of it before others had it is not lost
                claim.error = TurnTaken(session_id)
            queue.claim = None
        elif claim is not None and not claim.is_held and claim.turn.fence <= queue.fence:
            # another process has had this number: the next one is asked for
            claim.turn = msgspec.structs.replace(claim.turn, fence=queue.fence + 1)
        queue.moved(moved)
        queue.stored({id_: entry for id_, entry in self.there.items() if entry is not None})
        queue.give_up(self.lost, partial(TurnTaken, session_id))
        queue.give_up(self.overtaken, partial(_went_on, session_id))
        queue.discard(self.left_out)


def _may_have_turn(claim: Claim | None, turn: StoredTurn | None) -> bool:
    """Whether the turn that is open here, or asked for, can be ours still."""
    if claim is None or turn is None or (turn.fence, turn.owner) == (claim.turn.fence, claim.turn.owner):
        return True
    return turn.is_over and not claim.is_held


async def refresh(journal: Journal) -> bool:
    """Fold in what others have stored since; whether the session is still there. What waits is left to its commit.

    Raises:
        StoreUnavailable: the store cannot be read; nothing has changed.
    """
    queue, store = shared_queue(journal), journal.home.store
    while not queue.pending:
        committed = queue.committed
        stored = await _stored_head(store, queue)
        if stored is None:
            return False
        if committed and stored.last_sequence <= committed:
            return True
        conversation = await _as_stored(journal, stored)
        if queue.committed == committed and not queue.pending:
            journal.go_on_with(conversation)
            queue.replace(stored.head, [], committed=conversation.state.last_sequence)
            return True
    return True


def behind(conversation: Conversation, pending: Sequence[Entry], left_out: Collection[str]) -> list[Entry]:
    """Entries that were made behind one state of a session, as they are behind another one.

    What followed the leaf follows the leaf as it is now; what was made to follow something else does so still.

    Args:
        conversation: the session as it is stored.
        pending: in order.
        left_out: the ids of those that are not made for other places: they, or others with their idempotency key, are
            stored, they came too late for what they demanded, or the turn that they belong to is not ours.
    """
    last = conversation.state.last_sequence
    leaf_id, place = conversation.state.leaf_id, conversation.state.leaf_sequence
    former_leaf_id = pending[0].parent_id if pending else None
    places: dict[int, int] = {}
    moved: list[Entry] = []
    for entry in pending:
        parent_id, parent_place = entry.parent_id, place_of_parent(entry)
        if parent_id == former_leaf_id:
            parent_id, parent_place = leaf_id, place
        else:
            parent_place = places.get(parent_place, parent_place)
        if moves_leaf(entry):
            former_leaf_id = entry.target_id if isinstance(entry, LeafMove) else entry.id
        if entry.id in left_out:
            continue
        last += 1
        places[entry.sequence] = last
        changes = {"sequence": last, "parent_id": parent_id, **_places(entry, places)}
        changes["parent_sequence"] = None if parent_id is None or parent_place == last - 1 else parent_place
        one = msgspec.structs.replace(entry, **changes)
        moved.append(one)
        if isinstance(one, LeafMove):
            leaf_id, place = one.target_id, one.target_sequence or 0
        elif moves_leaf(one):
            leaf_id, place = one.id, last
    return moved


def _places(entry: Entry, places: Mapping[int, int]) -> dict[str, int | None]:
    """What else an entry says of places, which may have moved as well."""
    if isinstance(entry, LeafMove) and entry.target_sequence is not None:
        return {"target_sequence": places.get(entry.target_sequence, entry.target_sequence)}
    if isinstance(entry, Compaction) and entry.first_kept_sequence is not None:
        return {"first_kept_sequence": places.get(entry.first_kept_sequence, entry.first_kept_sequence)}
    return {}


async def _stored_head(store: Store, queue: SharedQueue) -> StoredHead | None:
    """The session in the store; None if it was deleted, whether or not there is another one of its name."""
    stored = await store.head(queue.head.session_id)
    if stored is not None and stored.turn is not None:
        queue.fence = max(queue.fence, stored.turn.fence)
    return stored if stored is not None and stored.head.incarnation == queue.head.incarnation else None


async def _there(store: Store, queue: SharedQueue, entries: Sequence[Entry]) -> dict[str, Entry | None]:
    """What is stored of these already, by their ids: they themselves, or others with the same idempotency key.

    None stands for what belongs to an entry whose key is stored: it is not stored, and not made either.
    """
    session_id, mine = queue.head.session_id, {entry.id: entry for entry in entries}
    there: dict[str, Entry | None] = {}
    async for one in read_all(store, session_id, after=queue.committed):
        if (entry := mine.get(one.entry_id)) is not None:
            there[entry.id] = _decoded(one, entry)
    keyed = {entry.id for entry in entries if entry.idempotency_key and entry.id not in there}
    by_key: dict[str | None, Entry | None] = {}
    for id_ in keyed:
        stored = await store.find_by_idempotency_key(session_id, mine[id_].idempotency_key or "")
        if stored is not None:
            by_key[id_] = _decoded(stored, mine[id_])
    for entry in entries:
        goes_on = isinstance(entry, MessageEntry) and entry.continues and entry.parent_id in by_key
        if entry.id not in keyed and (goes_on or _unit_of(queue, entry).keyed_id in by_key):
            by_key.setdefault(entry.id, None)
    return there | {id_: entry for id_, entry in by_key.items() if id_ is not None}


def _decoded(stored: StoredEntry, instead: Entry) -> Entry:
    """What is stored; of what is damaged, no more than its id and its place is of use."""
    try:
        return decode_stored(stored)
    except InvalidMessage:
        return msgspec.structs.replace(instead, id=stored.entry_id, sequence=stored.sequence)


def _unit_of(queue: SharedQueue, entry: Entry) -> Accepted:
    """What an entry was accepted with."""
    return queue.receipts.get(entry.id) or Accepted()


def _went_on(session_id: str) -> LeafMoved:
    return LeafMoved(f"session {session_id} went on in another process meanwhile; look at it and try again")


async def _as_stored(journal: Journal, stored: StoredHead) -> Conversation:
    """The session as far as it is stored; from memory, if the waiting entries can be separated there."""
    head, capacity = stored.head, journal.conversation.window.capacity
    snapshot = journal.conversation.capture(journal.queue.committed) if journal.queue.committed else None
    if snapshot is not None:
        conversation = Conversation.from_snapshot(snapshot, capacity=capacity)
    else:
        conversation = Conversation.new(
            head.key, incarnation=head.incarnation, created_at=head.created_at, capacity=capacity
        )
    await catch_up(conversation, journal.home.store)
    return conversation


async def _bring_window_up(
    store: Store, head: SessionHead, conversation: Conversation, waiting: Iterable[StoredEntry]
) -> None:
    """Where what waits has moved the leaf, give the conversation the window of it."""
    queue = CommitQueue(head)
    for one in waiting:
        queue.add(one)
    await bring_window_up(conversation, TreeReader(store, queue, conversation, BranchMemory()))
