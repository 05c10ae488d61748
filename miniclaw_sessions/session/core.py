"""What a session is made of: a conversation in memory, its way to the store, and its file.

Everything that is accepted passes through `_append` or `_append_all`: encoded once, folded into the conversation,
handed to the committer. They are synchronous, so that nobody else runs in between. What can be said to a session, and
done with its tree, is built upon this in `live` and `tree`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio
import msgspec

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.errors import InvalidMessage, LeafMoved, SessionDeleted
from miniclaw_sessions.history.branch import Branch
from miniclaw_sessions.history.conversation import Conversation, Snapshot
from miniclaw_sessions.history.placing import Places
from miniclaw_sessions.persistence.committer import SessionLog, anew
from miniclaw_sessions.persistence.flusher import Flushable
from miniclaw_sessions.protocol.encoding import decode_entry, decode_message, encode_entry, encode_message, in_utc
from miniclaw_sessions.protocol.entries import METADATA, Custom, Entry, EntryBase, LeafMove, MessageEntry, moves_leaf
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.protocol.messages import Message, Role
from miniclaw_sessions.session.reading import SessionEntries
from miniclaw_sessions.stores.base import SessionHead, Store, StoredEntry, stored_entry
from miniclaw_sessions.stores.branches import bring_window_up

if TYPE_CHECKING:
    from miniclaw_sessions.session.live import Session

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


class Commits(Protocol):
    """What a session needs of the committer."""

    def check_room(self, size: int) -> None:
        """Raise if `size` more bytes may not be accepted."""
        ...

    def check_store(self) -> None:
        """Raise if the store did not take what it was given last."""
        ...

    def submit(self, session: SessionLog, entry: StoredEntry) -> None:
        """Accept an entry."""
        ...

    async def wait(self, session: SessionLog, sequence: int) -> None:
        """Return when the entries up to this one are acknowledged."""
        ...


class Flushes(Protocol):
    """What a session needs of the flusher."""

    def add(self, session: Flushable) -> None:
        """The session changed."""
        ...


class Services(msgspec.Struct, frozen=True):
    """What every session of a manager shares.

    `fork` makes a new session with the given key of a session's tree, or of one branch of it.
    """

    clock: Clock
    committer: Commits
    flusher: Flushes
    store: Store
    max_message_bytes: int
    fork: Callable[[Session, SessionKey | None, str | None], Awaitable[Session]]


class SessionCore:
    """A conversation that is held in memory, saved to the store and checkpointed to its file."""

    __slots__ = (
        "__weakref__",
        "_accessed_on_disk",
        "_conversation",
        "_flushed_revision",
        "_log",
        "_retired",
        "_revision",
        "_services",
        "_turn_lock",
        "evicted",
        "session_id",
    )

    def __init__(self, conversation: Conversation, services: Services, *, committed: int, dirty: bool) -> None:
        self.session_id = conversation.key.session_id
        self.evicted = 0
        self._conversation = conversation
        self._services = services
        head = SessionHead(self.session_id, conversation.key, conversation.incarnation, conversation.created_at)
        self._log = SessionLog(head, committed)
        self._revision = 0
        self._flushed_revision = 0
        self._accessed_on_disk = conversation.last_accessed
        self._turn_lock: anyio.Lock | None = None
        self._retired = False
        if dirty:
            self._changed()

    def __repr__(self) -> str:
        state = "deleted" if self._retired else "dirty" if self.is_dirty else "clean"
        return f"<Session {self.session_id} {len(self._conversation.window)} messages, {state}>"

    def __len__(self) -> int:
        return len(self._conversation.window)

    def __bool__(self) -> bool:
        return True  # an empty session is one all the same

    # --- who it is ---------------------------------------------------------------------------------------------------

    @property
    def key(self) -> SessionKey:
        """The pair (channel, chat_id)."""
        return self._conversation.key

    @property
    def id(self) -> str:
        """`session_id`, in the words of documents 000 and 001."""
        return self.session_id

    @property
    def channel(self) -> str:
        """Where the conversation takes place, such as telegram."""
        return self._conversation.key.channel

    @property
    def chat_id(self) -> str:
        """Which chat of the channel it is."""
        return self._conversation.key.chat_id

    @property
    def incarnation(self) -> str:
        """A random id that a deleted and recreated session does not share with its predecessor."""
        return self._conversation.incarnation

    @property
    def created_at(self) -> datetime:
        """When it began, UTC."""
        return self._conversation.created_at

    @property
    def updated_at(self) -> datetime:
        """When its content last changed, UTC."""
        return self._conversation.updated_at

    @property
    def last_accessed(self) -> datetime:
        """When it was last used, UTC; its time to live counts from here."""
        return self._conversation.last_accessed

    @property
    def last_sequence(self) -> int:
        """The sequence number of its newest entry; 0 when it has none."""
        return self._conversation.last_sequence

    @property
    def kept_from(self) -> int:
        """The sequence number from which on entries are kept by the newest compaction of the branch; 0 without one."""
        compaction = self._conversation.compaction
        if compaction is None:
            return 0
        return compaction.sequence if compaction.first_kept_entry_id is None else compaction.first_kept_sequence or 0

    @property
    def committed_sequence(self) -> int:
        """The sequence number up to which the store has acknowledged it."""
        return self._log.committed

    async def saved(self) -> None:
        """Return when everything accepted so far is acknowledged.

        Raises:
            StoreUnavailable: the store cannot be written; what was accepted stays in memory and is tried again.
            StoreConflict: the store has other entries in their place; get_or_create goes on from those.
        """
        await self._services.committer.wait(self._log, self._conversation.last_sequence)

    def touch(self) -> None:
        """The session is being used: its time to live starts again."""
        now = self._services.clock.now()
        self._conversation.last_accessed = max(self._conversation.last_accessed, now)
        if now - self._accessed_on_disk >= ACCESS_RESOLUTION:
            self._changed()

    def forgive(self, jump: timedelta, *, before: datetime) -> None:
        """The wall clock jumped: unless it was used since, the session is as idle as it was."""
        if self._conversation.last_accessed <= before:
            self._conversation.last_accessed += jump
            self._changed()

    def statistics(self) -> SessionStatistics:
        """Its numbers at this moment."""
        return SessionStatistics(
            session_id=self.session_id,
            messages=len(self._conversation.window),
            window=self._conversation.window.capacity,
            last_sequence=self.last_sequence,
            committed_sequence=self.committed_sequence,
            evicted=self.evicted,
            dirty=self.is_dirty,
            in_turn=self.in_turn,
        )

    # --- for the manager, the flusher and turns ----------------------------------------------------------------------

    @property
    def in_turn(self) -> bool:
        """Whether a turn is open or waited for."""
        return self._turn_lock is not None and self._turn_lock.locked()

    @property
    def turn_lock(self) -> anyio.Lock:
        """Held by the open turn; made when first needed, because most sessions sleep."""
        if self._turn_lock is None:
            self._turn_lock = anyio.Lock()
        return self._turn_lock

    @property
    def is_dirty(self) -> bool:
        """Whether its file lacks something."""
        return self._revision != self._flushed_revision

    @property
    def is_deleted(self) -> bool:
        """Whether it accepts nothing more."""
        return self._retired

    @property
    def log(self) -> SessionLog:
        """Its way to the store."""
        return self._log

    def now(self) -> datetime:
        """The manager's wall clock."""
        return self._services.clock.now()

    def capture(self) -> tuple[int, Snapshot] | None:
        """Its revision and the snapshot that may be written now, in one step between two awaits (rule R10)."""
        snapshot = None if self._retired else self._conversation.capture(self._log.committed)
        if snapshot is None:
            return None
        return (self._revision if snapshot.complete else self._revision - 1), snapshot

    def retire(self) -> None:
        """Accept nothing more: the session is about to be deleted or replaced."""
        self._retired = True

    def revive(self) -> None:
        """Accept again: the deletion failed."""
        self._retired = False
        self._changed()
        self._services.flusher.add(self)  # which had forgotten it, dirty or not

    def flushed(self, revision: int) -> None:
        """The snapshot of this revision is safe."""
        self._flushed_revision = max(self._flushed_revision, revision)
        self._accessed_on_disk = self._conversation.last_accessed

    def _append(self, entry: E) -> E:
        """Encode once, fold in, hand over: the path of every entry."""
        self._check_accepting()
        encoded = encode_entry(entry)  # type: ignore[arg-type]
        self._check_entry(entry, len(encoded))
        self._services.committer.check_room(len(encoded))
        self._accept(entry, encoded)  # type: ignore[arg-type]
        return entry

    def _append_all(self, entries: Sequence[Entry], *, branch: Branch | None = None) -> None:
        """`_append` for several entries that are accepted together or not at all.

        Args:
            entries: in order.
            branch: where one of them moves the leaf: the branch that it moves to.
        """
        self._check_accepting()
        if entries and entries[0].sequence != self.last_sequence + 1:
            raise LeafMoved(
                f"entries were made for place {entries[0].sequence} of session {self.session_id}, which goes on at "
                f"{self.last_sequence + 1}: something was said meanwhile; nothing was accepted, try again"
            )
        encoded = [encode_entry(entry) for entry in entries]
        for entry, one in zip(entries, encoded, strict=True):
            self._check_entry(entry, len(one))
        self._services.committer.check_room(sum(map(len, encoded)))
        for entry, one in zip(entries, encoded, strict=True):
            self._accept(entry, one)
            if self._conversation.lacks_branch and branch is not None:
                self._conversation.rebuild(branch)

    def note(self, own_metadata: Mapping[str, Any]) -> None:
        """Set what sessions know of themselves (`OWN_METADATA`); accepted like a message.

        Raises:
            InvalidMessage: a value is not JSON, or the whole is too large.
        """
        entry = self._next(Custom, custom_type=METADATA, data=dict(own_metadata))
        self._append(decode_entry(encode_entry(entry)))

    def adopt(self, entries: Sequence[Entry], places: Places) -> None:
        """Accept entries from elsewhere, with their ids and parents, in the places that follow.

        For a session that nobody else uses yet; call `settle` when it is complete.

        Raises:
            InvalidMessage, UnsavedLimit: nothing of it was accepted.
        """
        next_place = self.last_sequence + 1
        self._append_all([places.place(_timed(entry), place) for place, entry in enumerate(entries, next_place)])

    async def settle(self) -> None:
        """Give a session that was put together of adopted entries the window of its leaf.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        await bring_window_up(self._conversation, self._source())

    def _source(self) -> SessionEntries:
        return SessionEntries(self._services.store, self._log, self._conversation)

    def _check_accepting(self) -> None:
        if self._retired:
            raise SessionDeleted(f"session {self.session_id} was deleted; get_or_create makes a new one")
        if self._log.rejected is not None:
            raise anew(self._log.rejected)

    def _accept(self, entry: Entry, encoded: bytes) -> None:
        self.evicted += self._conversation.apply(entry)
        self._services.committer.submit(self._log, stored_entry(entry, encoded))
        self._changed()

    def _check_entry(self, entry: EntryBase, size: int) -> None:
        """The limit is on the message itself, so that one that passes `check` is never refused later."""
        if size > self._services.max_message_bytes:
            self._check_size(len(encode_message(entry.message)) if isinstance(entry, MessageEntry) else size)

    def _check_size(self, size: int) -> None:
        limit = self._services.max_message_bytes
        if size > limit:
            raise InvalidMessage(f"the message has {size} bytes as JSON, the limit is {limit} (max_message_bytes)")

    def _next(self, kind: type[E], before: Sequence[Entry] = (), **fields: Any) -> E:
        """An entry for the place behind the newest one, and behind those that are accepted together with it."""
        conversation = self._conversation
        parent_id, place = conversation.leaf_id, conversation.leaf_sequence
        if leaf := next((entry for entry in reversed(before) if moves_leaf(entry)), None):
            parent_id, place = leaf.id, leaf.sequence
            if isinstance(leaf, LeafMove):
                parent_id, place = leaf.target_id, leaf.target_sequence or 0
        sequence = conversation.last_sequence + 1 + len(before)
        return kind(
            id=self._services.clock.new_id(),
            parent_id=parent_id,
            timestamp=self.now(),
            sequence=sequence,
            parent_sequence=None if parent_id is None or place == sequence - 1 else place,
            **fields,
        )

    def _changed(self) -> None:
        if self._retired:  # its file is gone or another object's: nothing would ever make it clean again
            return
        if self._revision == self._flushed_revision:
            self._services.flusher.add(self)
        self._revision += 1


def _timed(entry: Entry) -> Entry:
    """Every message that is kept has a time (document 004); one that came without has its entry's."""
    if isinstance(entry, MessageEntry) and entry.message.timestamp is None:
        message = msgspec.structs.replace(entry.message, timestamp=in_utc(entry.timestamp))
        return msgspec.structs.replace(entry, message=message)
    return entry


def owned(message: Message, now: datetime) -> Message:
    """The message as the session keeps it: with a time in UTC, and sharing nothing that can change with the caller.

    Anything but a plain text is read back from its own bytes, so that nothing is acknowledged that could not be read
    again, whatever types a caller put into it.

    Raises:
        InvalidMessage: it cannot be stored faithfully.
    """
    moment = message.timestamp
    if moment is None:
        message = msgspec.structs.replace(message, timestamp=now)
    elif moment.tzinfo is not UTC:
        message = msgspec.structs.replace(message, timestamp=in_utc(moment))
    role, content = message.role, message.content
    if type(content) is str and type(role) is Role and message == Message(role, content, message.timestamp):
        return message  # the usual case: a role and a text, and nothing else
    return decode_message(encode_message(message))
