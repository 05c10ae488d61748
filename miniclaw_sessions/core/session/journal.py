"""What stands behind a session: its conversation in memory, and its queue to the store.

Everything that is accepted passes through `append` or `accept`: encoded, folded into the conversation, handed to the
committer. They are synchronous, so that nothing else runs in between. People talk to a `Session`, which holds a journal
and nothing else; manager and turns work on the journal itself. What its file lacks, its `SessionCheckpoint` knows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast
from weakref import ref

import msgspec

from miniclaw_sessions.core.history.branch import Branch, summary_messages
from miniclaw_sessions.core.history.branches import BranchMap
from miniclaw_sessions.core.history.conversation import REMEMBERED_KEYS, Conversation
from miniclaw_sessions.core.history.state import Snapshot, State
from miniclaw_sessions.core.persistence.committer import CommitQueue, Receipt
from miniclaw_sessions.core.protocol.encoding import (
    decode_message,
    encode_json,
    encode_message,
    encoded_once,
    encoded_text,
)
from miniclaw_sessions.core.protocol.entries import (
    INCOMPLETE,
    LEGAL_HOLD,
    METADATA,
    Custom,
    Entry,
    EntryBase,
    LeafMove,
    MessageEntry,
    moves_leaf,
)
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message, dated, is_bare, text_message
from miniclaw_sessions.core.session.home import Home
from miniclaw_sessions.core.session.reading import TreeReader
from miniclaw_sessions.core.session.turn_lock import TurnLock
from miniclaw_sessions.core.stores.base import SessionHead, StoredEntry, decode_stored
from miniclaw_sessions.core.stores.branches import bring_window_up
from miniclaw_sessions.errors import (
    InvalidMessage,
    LeafMoved,
    SessionDeleted,
    TranscriptNotKept,
    renewed,
)

MAX_IDEMPOTENCY_KEY = 512
"""Characters that an idempotency key may have: a session remembers hundreds of them."""

ACCESS_RESOLUTION = timedelta(hours=1)
"""An access that changes nothing is written to disk at most this often."""

E = TypeVar("E", bound=EntryBase)


class SessionStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A session's numbers at one moment."""

    session_id: str
    messages: int
    window: int
    last_sequence: int
    committed_sequence: int
    evicted: int
    dirty: bool
    in_turn: bool
    incarnation: str


class Journal:
    """A session's conversation, and how it is saved and checkpointed.

    Attributes:
        session_id: whose journal it is.
        conversation: the state that its entries lead to.
        home: what it is saved by.
        queue: what waits for the store, and how far the store has come.
        branches: where its branches part, once that was needed.
        evicted: how many messages have left the window.
        checkpoint: whether its file must be written, and when it was used.
        turn_lock: held by its open turn.
        handle: the live `Session` of this journal, if there is one.
    """

    __slots__ = (
        *("__weakref__", "branches", "checkpoint", "conversation", "evicted", "handle", "home", "queue"),
        *("session_id", "turn_lock"),
    )

    def __init__(
        self,
        conversation: Conversation,
        home: Home[Journal],
        *,
        committed: int = 0,
        queue: type[CommitQueue] = CommitQueue,
    ) -> None:
        self.session_id = conversation.state.session_id
        self.conversation = conversation
        self.home = home
        head = SessionHead(
            self.session_id, conversation.state.key, conversation.state.incarnation, conversation.state.created_at
        )
        self.queue = queue(head, committed)
        self.checkpoint = SessionCheckpoint(self)
        self.turn_lock = TurnLock(self.session_id)
        self.branches: BranchMap | None = None
        self.evicted = 0
        self.handle: ref[Any] | None = None

    def __repr__(self) -> str:
        state = "deleted" if self.is_deleted else "dirty" if self.checkpoint.is_dirty else "clean"
        return f"<Journal of {self.session_id}, {state}>"

    # --- what is known -----------------------------------------------------------------------------------------------

    @property
    def key(self) -> SessionKey:
        """The pair (channel, chat_id)."""
        return self.conversation.state.key

    @property
    def last_accessed(self) -> datetime:
        """When it was last used, UTC; its time to live counts from here."""
        return self.conversation.state.last_accessed

    @property
    def incarnation(self) -> str:
        """A random id that a deleted and recreated session does not share with its predecessor."""
        return self.conversation.state.incarnation

    @property
    def last_sequence(self) -> int:
        """The sequence number of the newest entry; 0 without one."""
        return self.conversation.state.last_sequence

    @property
    def committed_sequence(self) -> int:
        """The sequence number up to which the store has acknowledged it."""
        return self.queue.committed

    @property
    def final_sequence(self) -> int:
        """The sequence number up to which entries keep their places."""
        return self.queue.final_up_to(self.last_sequence)

    @property
    def final_leaf_id(self) -> str | None:
        """Where the conversation goes on behind `final_sequence`; None: at the root.

        Who looks at the entries that keep their places, and demands this leaf, leaves nothing behind unseen.
        """
        pending = [] if self.final_sequence == self.last_sequence else self.queue.pending
        return decode_stored(pending[0]).parent_id if pending else self.conversation.state.leaf_id

    @property
    def newest_waiting(self) -> str | None:
        """The id of the newest entry, if it is not acknowledged."""
        newest = (self.queue.waiting or self.queue.sending or ())[-1:]
        return newest[0].entry_id if newest else None

    @property
    def kept_from(self) -> int:
        """The sequence number from which on entries are kept by the newest compaction of the branch; 0 without one."""
        return self.conversation.kept_from

    @property
    def is_deleted(self) -> bool:
        """Whether it accepts nothing more."""
        return self.checkpoint.is_retired

    @property
    def is_unfinished(self) -> bool:
        """Whether it is being made, or its making was cut off."""
        return INCOMPLETE in self.conversation.state.metadata

    @property
    def reader(self) -> TreeReader:
        """Its tree."""
        return TreeReader(self.home.store, self.queue, self.conversation, self.home.branch_memory)

    @property
    def legal_hold(self) -> str | None:
        """Why nothing may delete it; None: it may be deleted."""
        return self.conversation.state.metadata.get(LEGAL_HOLD)

    def now(self) -> datetime:
        """The wall clock of its home."""
        return self.home.clock.now()

    def summary(self) -> list[Message]:
        """What stands for the part of the branch that was compacted; empty where none was."""
        return summary_messages(self.conversation.state.compaction)

    def statistics(self) -> SessionStatistics:
        """Its numbers at this moment."""
        return SessionStatistics(
            session_id=self.session_id,
            messages=len(self.conversation.window),
            window=self.conversation.window.capacity,
            last_sequence=self.last_sequence,
            committed_sequence=self.committed_sequence,
            evicted=self.evicted,
            dirty=self.checkpoint.is_dirty,
            in_turn=self.turn_lock.is_held,
            incarnation=self.incarnation,
        )

    @asynccontextmanager
    async def between_turns(self) -> AsyncIterator[None]:
        """Hold the session while no turn does, of this process or, when the block begins, of another one.

        Raises:
            TurnInProgress: this very task, or one that started it, holds the session's turn.
            StoreUnavailable: other processes answer the session, and the store does not say whether one of them does.
        """
        self.turn_lock.refuse_reentry()
        async with self.turn_lock:
            await self.home.ownership(self).wait_for_others()
            yield

    # --- accepting ---------------------------------------------------------------------------------------------------

    def append(self, message: Message | Mapping[str, Any], *, idempotency_key: str | None = None) -> MessageEntry:
        """Accept a message; see `Session.append`."""
        if idempotency_key is not None and (known := self.known(idempotency_key)) is not None:
            return known
        if self.checkpoint.is_retired or self.queue.rejected is not None:
            self._check_accepting()
        home, state = self.home, self.conversation.state
        now, last, place = home.clock.now(), state.last_sequence, state.leaf_sequence
        if type(message) is Message and is_bare(message):  # the usual case: nothing in it needs another look
            said, encode = text_message(message, now), encoded_text
        else:
            said, encode = dated(message, now), encoded_once
        entry, encoded = encode(
            MessageEntry(
                id=home.clock.new_id(),
                parent_id=state.leaf_id,
                timestamp=now,
                sequence=last + 1,
                parent_sequence=None if place == last or state.leaf_id is None else place,
                message=said,
                idempotency_key=idempotency_key,
            )
        )
        if (size := len(encoded)) > home.max_message_bytes:
            self.check_entry(entry, size)
        home.committer.check_room(size)
        self._accept(entry, encoded)
        self.queue.track((entry,))
        return entry

    def accept(
        self,
        entries: Sequence[tuple[Entry, bytes]],
        *,
        branch: Branch | None = None,
        is_fixed: bool = False,
        has_one_key: bool = False,
    ) -> Receipt:
        """Accept entries that were made for the places that follow, all of them or none.

        Args:
            entries: in order, each as `next_entry` makes it, with its JSON.
            branch: where one of them moves the leaf: the branch that it moves to.
            is_fixed: whether they are stored at these very places or not at all, should another process be first.
            has_one_key: whether the idempotency key of one of them, if no other has one, stands for all of them.

        Returns:
            How to find them when they are acknowledged.

        Raises:
            LeafMoved: something was accepted since they were made.
            InvalidMessage, UnsavedLimit, SessionDeleted: as for `Session.append`.
        """
        self._check_accepting()
        if entries and entries[0][0].sequence != self.last_sequence + 1:
            raise LeafMoved(
                f"entries were made for place {entries[0][0].sequence} of session {self.session_id}, which goes on "
                f"at {self.last_sequence + 1}: something was said meanwhile; nothing was accepted, try again"
            )
        for entry, encoded in entries:
            self.check_entry(entry, len(encoded))
        self._check_metadata([entry for entry, _ in entries])
        self.home.committer.check_room(sum(len(encoded) for _, encoded in entries))
        for entry, encoded in entries:
            self._accept(entry, encoded)
            if self.conversation.lacks_branch and branch is not None:
                self.conversation.rebuild(branch)
        return self.queue.track((entry for entry, _ in entries), is_fixed=is_fixed, has_one_key=has_one_key)

    def next_entry(self, kind: type[E], before: Sequence[tuple[Entry, bytes]] = (), **fields: Any) -> E:
        """An entry for the place behind the newest one, and behind those that are accepted together with it."""
        conversation = self.conversation
        parent_id, place = conversation.state.leaf_id, conversation.state.leaf_sequence
        if leaf := next((entry for entry, _ in reversed(before) if moves_leaf(entry)), None):
            parent_id, place = leaf.id, leaf.sequence
            if isinstance(leaf, LeafMove):
                parent_id, place = leaf.target_id, leaf.target_sequence or 0
        sequence = conversation.state.last_sequence + 1 + len(before)
        return kind(
            id=self.home.clock.new_id(),
            parent_id=parent_id,
            timestamp=self.now(),
            sequence=sequence,
            parent_sequence=None if parent_id is None or place == sequence - 1 else place,
            **fields,
        )

    def note(self, own_metadata: Mapping[str, Any]) -> None:
        """Set what sessions know of themselves (`OWN_METADATA`); accepted like a message.

        Raises:
            InvalidMessage: a value is not JSON, or the whole is too large.
        """
        self.accept([encoded_once(self.next_entry(Custom, custom_type=METADATA, data=dict(own_metadata)))])

    def give_up(self, purpose: str) -> None:
        """Let a session that is being made end with an entry that says so, though it may have been said to be complete.

        What waits is stored when the store recovers, whether or not anything can be removed by then. So this is
        accepted where nothing else is: while a manager closes, or beyond the limit of what is not saved.
        """
        if self.last_sequence and INCOMPLETE not in self.conversation.state.metadata and self.queue.rejected is None:
            note = self.next_entry(Custom, custom_type=METADATA, data={INCOMPLETE: purpose})
            self._accept(*encoded_once(note))
            self.queue.track((note,), is_fixed=True)  # another process may have used it: it stays then

    async def settle(self) -> None:
        """Give a session that was put together of adopted entries the window of its leaf.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        await bring_window_up(self.conversation, self.reader)

    async def saved(self) -> None:
        """Return when everything accepted so far is acknowledged; see `Session.saved`."""
        await self.home.committer.wait(self.queue, self.last_sequence)
        if not self.last_sequence:  # the store knows a session by its entries
            await self.home.flusher.write(self)

    def check(self, message: Message | Mapping[str, Any]) -> None:
        """Raise unless a message could be appended.

        Raises:
            InvalidMessage: it cannot be stored faithfully, or is too large.
        """
        said = dated(message, self.now().replace(microsecond=999_999))
        encoded = encode_message(said)
        if not is_bare(said, said.timestamp):
            encoded = encode_message(decode_message(encoded))  # as it is accepted: what its own bytes say
        self._check_size(len(encoded))

    def check_entry(self, entry: EntryBase, size: int) -> None:
        """Raise unless an entry of this size could be accepted.

        The limit is on the message itself, so that one that passes `check` is never refused later.

        Raises:
            InvalidMessage: it is too large.
        """
        if size > self.home.max_message_bytes:
            self._check_size(len(encode_message(entry.message)) if isinstance(entry, MessageEntry) else size)

    def known(self, idempotency_key: str, accepted: Sequence[tuple[Entry, bytes]] = ()) -> MessageEntry | None:
        """The entry that has this key already, in the session or among those that are accepted together."""
        if not isinstance(idempotency_key, str):
            raise InvalidMessage(f"an idempotency key is a text, not a {type(idempotency_key).__name__}")
        if len(idempotency_key) > MAX_IDEMPOTENCY_KEY:
            raise InvalidMessage(f"an idempotency key has at most {MAX_IDEMPOTENCY_KEY} characters")
        same = (
            entry
            for entry, _ in accepted
            if isinstance(entry, MessageEntry) and entry.idempotency_key == idempotency_key
        )
        return self.find_duplicate(idempotency_key) or next(same, None)

    async def find_by_key(self, idempotency_key: str) -> MessageEntry | None:
        """The entry that was accepted with this idempotency key, however long ago: the store is asked, too.

        It is asked only for what has left the window, and where the session may have had more keys than it remembers.

        Raises:
            InvalidMessage: it is no text, or too long.
            StoreUnavailable: the store cannot be read.
        """
        entry = self.known(idempotency_key)
        if entry is not None and (entry.sequence or not self.home.store.keeps_entries):
            return entry
        if entry is None and len(self.conversation.state.idempotency_keys or ()) < REMEMBERED_KEYS:
            return None
        waiting = (stored for stored in self.queue.pending if stored.idempotency_key == idempotency_key)
        stored = next(waiting, None) or await self.home.store.find_by_idempotency_key(self.session_id, idempotency_key)
        if stored is None:
            return self.known(idempotency_key)  # it may have come meanwhile
        with suppress(InvalidMessage):  # it is damaged, but known all the same
            found = decode_stored(stored)
            if isinstance(found, MessageEntry):
                return found
        return self._without_text(stored.entry_id, stored.sequence)

    def find_duplicate(self, idempotency_key: str) -> MessageEntry | None:
        """The entry that was accepted with this idempotency key, if it is remembered."""
        entry_id = (self.conversation.state.idempotency_keys or {}).get(idempotency_key)
        if entry_id is None:
            return None
        return self.conversation.window.find(entry_id) or self._without_text(entry_id)

    def _without_text(self, entry_id: str, sequence: int = 0) -> MessageEntry:
        """An entry of which no more than this is known here."""
        updated_at = self.conversation.state.updated_at
        return MessageEntry(
            id=entry_id, parent_id=None, timestamp=updated_at, sequence=sequence, message=Message.user("")
        )

    # --- going on, and going away ------------------------------------------------------------------------------------

    def retire(self) -> None:
        """Accept nothing more: the session is about to be deleted or replaced."""
        self.checkpoint.is_retired = True

    def revive(self) -> None:
        """Accept again: the deletion failed."""
        self.checkpoint.revive()

    def go_on_with(self, conversation: Conversation) -> None:
        """Replace the conversation, because other processes have stored entries of the session.

        Args:
            conversation: the session with their entries, and behind these what waits to be committed.
        """
        conversation.state.last_accessed = max(conversation.state.last_accessed, self.last_accessed)
        self.conversation = conversation
        self.checkpoint.changed()

    def require_transcript(self, what: str) -> None:
        """Raise unless a transcript is kept.

        Raises:
            TranscriptNotKept: the store is `none`.
        """
        if not self.home.store.keeps_entries:
            raise TranscriptNotKept(self.session_id, what)

    def _check_accepting(self) -> None:
        if self.checkpoint.is_retired:
            raise SessionDeleted(f"session {self.session_id} was deleted; get_or_create makes a new one")
        if self.queue.rejected is not None:
            raise renewed(self.queue.rejected)

    def _accept(self, entry: Entry, encoded: bytes) -> None:
        self.evicted += self.conversation.apply(entry, encoded)
        self.home.committer.submit(self.queue, StoredEntry(entry.sequence, entry.id, encoded, entry.idempotency_key))
        checkpoint = self.checkpoint
        if checkpoint.revision == checkpoint.written:
            checkpoint.changed()
        else:  # as `changed`, for what is dirty already: most messages come this way
            checkpoint.revision += 1

    def _check_size(self, size: int) -> None:
        limit = self.home.max_message_bytes
        if size > limit:
            raise InvalidMessage(f"the message has {size} bytes as JSON, the limit is {limit} (max_message_bytes)")

    def _check_metadata(self, entries: Sequence[Entry]) -> None:
        known = self.conversation.state.metadata
        changed = self.conversation.metadata_with(entries)
        limit = self.home.max_metadata_bytes
        size = 0 if changed == known else len(encode_json(changed))
        if size > limit and size > len(encode_json(dict(known))):  # a change that makes it smaller is always allowed
            raise InvalidMessage(
                f"the metadata of session {self.session_id} would have {size} bytes as JSON, the limit is {limit} "
                "(max_metadata_bytes); remove some of it first, or keep it in custom entries"
            )


class SessionCheckpoint:
    """What the checkpoint of a session lacks, and when the session was used.

    It is dirty while `revision` and `written` differ. The flusher holds the journal while it is dirty: so there are
    never two for one session.

    Attributes:
        revision: how often the session has changed.
        written: the revision whose snapshot is safe.
        is_retired: the session is about to be deleted or replaced: its file is gone or another object's.
    """

    __slots__ = ("_journal", "_used_on_disk", "is_retired", "revision", "written")

    def __init__(self, journal: Journal) -> None:
        # weak: in a circle, it would stay in memory until the garbage collector finds it. It is reached through its
        # journal only, so that is there.
        self._journal = cast("Callable[[], Journal]", ref(journal))
        self.revision = self.written = 0
        self.is_retired = False
        self._used_on_disk = journal.conversation.state.last_accessed

    def __repr__(self) -> str:
        return f"<SessionCheckpoint of {self._journal().session_id}, {self.revision - self.written} behind>"

    @property
    def _state(self) -> State:
        return self._journal().conversation.state

    @property
    def is_dirty(self) -> bool:
        """Whether it lacks something."""
        return self.revision != self.written

    def changed(self) -> None:
        """The session has changed."""
        if self.is_retired:  # nothing would ever make it clean again
            return
        if self.revision == self.written:
            journal = self._journal()
            journal.home.flusher.add(journal)
        self.revision += 1

    def capture(self) -> tuple[int, Snapshot] | None:
        """Its revision and the snapshot that may be written now, in one step between two awaits (rule R10)."""
        journal = self._journal()
        snapshot = None if self.is_retired else journal.conversation.capture(journal.queue.committed)
        if snapshot is None:
            return None
        # one less for a snapshot that leaves something out: the session stays dirty, and the next flush writes the rest
        return (self.revision if snapshot.state.complete else self.revision - 1), snapshot

    def flushed(self, revision: int, snapshot: Snapshot) -> None:
        """The snapshot of this revision is safe; what was done meanwhile is not in it."""
        self.written = max(self.written, revision)
        self._used_on_disk = snapshot.state.last_accessed

    def revive(self) -> None:
        """The session was not deleted after all."""
        self.is_retired = False
        self.changed()
        journal = self._journal()
        journal.home.flusher.add(journal)  # which had forgotten it, dirty or not

    # --- when the session was used -----------------------------------------------------------------------------------

    def touch(self) -> None:
        """The session is being used: its time to live starts again."""
        journal = self._journal()
        now, state = journal.home.clock.now(), journal.conversation.state
        state.last_accessed = max(state.last_accessed, now)
        if now - self._used_on_disk >= ACCESS_RESOLUTION:
            self.changed()

    def not_used_later(self) -> None:
        """Let its last use be now at the latest: entries from elsewhere may have a date in the future."""
        self._state.last_accessed = min(self._state.last_accessed, self._journal().home.clock.now())

    @property
    def unsaved_use(self) -> datetime | None:
        """When the session was last used, if that is not written down yet."""
        used = self._state.last_accessed
        return used if used > self._used_on_disk else None

    def use_saved(self, moment: datetime) -> None:
        """It is written down that the session was used at this moment."""
        self._used_on_disk = max(self._used_on_disk, moment)

    def forgive(self, jump: timedelta, *, before: datetime) -> None:
        """The wall clock jumped: unless it was used since, the session is as idle as it was."""
        if self._state.last_accessed <= before:
            self._state.last_accessed += jump
            self.changed()
