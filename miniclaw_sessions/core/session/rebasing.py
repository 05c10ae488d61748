"""Going on behind what other processes have stored: their entries are folded in, and ours are made anew behind them.

A session's entries stand in one order, which the store decides. What was accepted here and refused there, because
somebody else was first, keeps its id, time and content; its place changes, and with it what it follows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from weakref import ref

import msgspec

from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.persistence.accepted import Accepted
from miniclaw_sessions.core.persistence.committer import Rebase, Rebased, SessionLog
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


def rebase_of(journal: Journal) -> Rebase:
    """What the committer does when others were first with a session: `rebase` of its journal."""
    weak = ref(journal)  # or no journal would be free before the collector has come by

    async def go_on(conflict: StoreConflict) -> Rebased:
        journal = weak()
        if journal is None:
            raise conflict
        return await rebase(journal, conflict)

    return go_on


async def rebase(journal: Journal, conflict: StoreConflict) -> Rebased:
    """Let what waits go on behind what is stored; what is stored already waits no longer.

    Raises:
        StoreConflict: the session was deleted, or nothing that is stored explains why it was refused: it never will be
            taken.
        StoreUnavailable: the store cannot be read; nothing has changed.
    """
    log, store = journal.log, journal.home.store
    while True:
        stored = await _stored_head(store, log)
        if stored is None:
            raise StoreConflict(f"session {journal.session_id} was deleted by another process") from conflict
        pending = log.pending
        entries = [decode_stored(one) for one in pending]
        there = await _there(store, log, entries)
        known = set(there)
        is_mine = _may_have_turn(log, stored.turn)
        lost: set[str] = set()
        if not is_mine and log.claim is not None:
            lost = log.claim.ids.intersection(entry.id for entry in entries) - known
            known |= lost
        elif stored.last_sequence == log.committed and not known and not _asks_for_turn(log):
            raise conflict
        overtaken: set[str] = set()
        if stored.last_sequence != log.committed or lost:  # what was accepted for this very place and no other
            overtaken = {entry.id for entry in entries if _unit_of(log, entry).is_fixed} - known
            known |= overtaken
        conversation = await _as_stored(journal, stored)
        if _doubles(conversation, entries, known):  # which somebody has stored since: it would be refused for ever
            continue
        moved = behind(conversation, entries, known)
        committed = conversation.state.last_sequence
        waiting = [stored_entry(entry, encode_entry(entry)) for entry in moved]
        for entry, one in zip(moved, waiting, strict=True):
            conversation.apply(entry, one.encoded)
        await _bring_window_up(store, stored.head, conversation, waiting)
        if len(log.pending) == len(pending):  # else something was accepted meanwhile
            journal.go_on_with(conversation)
            _settle_turn(log, is_mine=is_mine, lost=lost)
            if log.units is not None:
                log.units.moved(moved)
                log.units.stored({id_: entry for id_, entry in there.items() if entry is not None})
                log.units.give_up(lost, partial(TurnTaken, journal.session_id))
                log.units.give_up(overtaken, partial(_went_on, journal.session_id))
                log.units.discard(known)
            return log.replace(stored.head, waiting, committed=committed)


def _may_have_turn(log: SessionLog, turn: StoredTurn | None) -> bool:
    """Whether the turn that is open here, or asked for, can be ours still."""
    claim = log.claim
    if claim is None or turn is None or (turn.fence, turn.owner) == (claim.turn.fence, claim.turn.owner):
        return True
    return turn.is_over and not claim.is_held


def _asks_for_turn(log: SessionLog) -> bool:
    """Whether a turn is asked for, which somebody else may have had when the append was refused."""
    return log.claim is not None and not log.claim.is_held


def _asks_again(log: SessionLog) -> bool:
    """Whether a turn is asked for with a number that somebody else has had."""
    return log.claim is not None and not log.claim.is_held and log.claim.turn.fence <= log.fence


def _settle_turn(log: SessionLog, *, is_mine: bool, lost: Collection[str]) -> None:
    """Ask for the turn with the next number, or let it go; what was stored of it before others had it is not lost."""
    if log.claim is None:
        return
    if not is_mine:
        if lost or not log.claim.is_held:
            log.claim.error = TurnTaken(log.head.session_id)
        log.claim = None
    elif _asks_again(log):
        log.claim.turn = msgspec.structs.replace(log.claim.turn, fence=log.fence + 1)


async def refresh(journal: Journal) -> bool:
    """Fold in what others have stored since; whether the session is still there. What waits is left to its commit.

    Raises:
        StoreUnavailable: the store cannot be read; nothing has changed.
    """
    log, store = journal.log, journal.home.store
    while not log.pending:
        committed = log.committed
        stored = await _stored_head(store, log)
        if stored is None:
            return False
        if committed and stored.last_sequence <= committed:
            return True
        conversation = await _as_stored(journal, stored)
        if log.committed == committed and not log.pending:
            journal.go_on_with(conversation)
            log.replace(stored.head, [], committed=conversation.state.last_sequence)
            return True
    return True


def behind(conversation: Conversation, pending: Sequence[Entry], known: Collection[str]) -> list[Entry]:
    """Entries that were made behind one state of a session, as they are behind another one.

    What followed the leaf follows the leaf as it is now; what was made to follow something else does so still.

    Args:
        conversation: the session as it is stored.
        pending: in order.
        known: the ids of those that are not made: they, or others with their idempotency key, are stored, they
            came too late for what they demanded, or the turn that they belong to is not ours.
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
        if entry.id in known:
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


async def _stored_head(store: Store, log: SessionLog) -> StoredHead | None:
    """The session in the store; None if it was deleted, whether or not there is another one of its name."""
    stored = await store.head(log.head.session_id)
    if stored is not None and stored.turn is not None:
        log.fence = max(log.fence, stored.turn.fence)
    return stored if stored is not None and stored.head.incarnation == log.head.incarnation else None


async def _there(store: Store, log: SessionLog, entries: Sequence[Entry]) -> dict[str, Entry | None]:
    """What is stored of these already, by their ids: they themselves, or others with the same idempotency key.

    None stands for what belongs to an entry whose key is stored: it is not stored, and not made either.
    """
    session_id, mine = log.head.session_id, {entry.id: entry for entry in entries}
    there: dict[str, Entry | None] = {}
    async for one in read_all(store, session_id, after=log.committed):
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
        if entry.id not in keyed and (goes_on or _unit_of(log, entry).keyed_id in by_key):
            by_key.setdefault(entry.id, None)
    return there | {id_: entry for id_, entry in by_key.items() if id_ is not None}


def _decoded(stored: StoredEntry, instead: Entry) -> Entry:
    """What is stored; of what is damaged, no more than its id and its place is of use."""
    try:
        return decode_stored(stored)
    except InvalidMessage:
        return msgspec.structs.replace(instead, id=stored.entry_id, sequence=stored.sequence)


def _unit_of(log: SessionLog, entry: Entry) -> Accepted:
    """What an entry was accepted with."""
    accepted = None if log.units is None else log.units.get(entry.id)
    return accepted or Accepted([entry])


def _went_on(session_id: str) -> LeafMoved:
    return LeafMoved(f"session {session_id} went on in another process meanwhile; look at it and try again")


def _doubles(conversation: Conversation, entries: Iterable[Entry], known: Collection[str]) -> bool:
    """Whether an entry is to be made whose idempotency key the session has already."""
    keys = conversation.state.idempotency_keys
    return any(entry.idempotency_key in keys for entry in entries if entry.id not in known)


async def _as_stored(journal: Journal, stored: StoredHead) -> Conversation:
    """The session as far as it is stored; from what is in memory of it where what waits can be told apart."""
    head, capacity = stored.head, journal.conversation.window.capacity
    snapshot = journal.conversation.capture(journal.log.committed) if journal.log.committed else None
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
    log = SessionLog(head)
    for one in waiting:
        log.add(one)
    await bring_window_up(conversation, TreeReader(store, log, conversation))
