"""One live conversation.

`append` is synchronous: it accepts a message, in memory and in order, and needs no lock because nobody else runs
between two awaits. `add_message` returns when the message is acknowledged: the store has committed it. A turn is
exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeVar

import anyio
import msgspec

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.errors import InvalidMessage, SessionDeleted
from miniclaw_sessions.history.conversation import Conversation, Snapshot
from miniclaw_sessions.persistence.committer import Committer, SessionLog, anew
from miniclaw_sessions.persistence.flusher import Flusher
from miniclaw_sessions.protocol.encoding import decode_entry, decode_message, encode_entry, encode_message, in_utc
from miniclaw_sessions.protocol.entries import (
    METADATA,
    Custom,
    Entry,
    EntryBase,
    LeafMove,
    MessageEntry,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
)
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.protocol.messages import Message, Role
from miniclaw_sessions.stores.base import SessionHead, StoredEntry
from miniclaw_sessions.turn import Turn

ACCESS_RESOLUTION = timedelta(hours=1)
"""An access that changes nothing is written to disk at most this often."""

MAX_IDEMPOTENCY_KEY = 512
"""Characters that an idempotency key may have: a session remembers hundreds of them."""

E = TypeVar("E", bound=EntryBase)
_UNSET: Any = object()


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


class Services(msgspec.Struct, frozen=True):
    """What every session of a manager shares."""

    clock: Clock
    committer: Committer
    flusher: Flusher
    max_message_bytes: int


class Session:
    """A conversation that is held in memory, saved to the store and checkpointed to its file.

    Made by `SessionManager`, which hands out the same object for the same key for as long as it lives.
    """

    __slots__ = (
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
    def committed_sequence(self) -> int:
        """The sequence number up to which the store has acknowledged it."""
        return self._log.committed

    # --- what was said -----------------------------------------------------------------------------------------------

    def append(self, message: Message, *, idempotency_key: str | None = None) -> MessageEntry:
        """Accept a message: in memory, in order, and on its way to the store. Returns at once.

        Accepted is not acknowledged: a crash can still lose it until `saved` returns. A message whose idempotency key
        was seen before (among the last 256) is not appended again; its first entry is returned if the window still
        has it, and an entry with the first one's id if not.

        Raises:
            InvalidMessage: it cannot be stored faithfully, or is larger than `max_message_bytes`.
            UnsavedLimit: too much waits for the store already.
            SessionDeleted: the session was deleted or has expired.
        """
        if idempotency_key is not None and (known := self._known(idempotency_key)) is not None:
            return known
        now = self._services.clock.now()
        return self._append(
            MessageEntry(
                id=self._services.clock.new_id(),
                parent_id=self._conversation.leaf_id,
                timestamp=now,
                sequence=self._conversation.last_sequence + 1,
                message=_own(message, now),
                idempotency_key=idempotency_key,
            )
        )

    def extend(self, messages: Sequence[Message], *, idempotency_keys: Sequence[str | None] = ()) -> list[MessageEntry]:
        """Accept several messages as one unit: all of them, or none. One commit carries them.

        Args:
            messages: in order.
            idempotency_keys: one for each message, or none at all; a message whose key is known is not appended again.

        Returns:
            The entry of each message, as `append` would return it.

        Raises:
            InvalidMessage, UnsavedLimit, SessionDeleted: as for `append`.
        """
        new: list[MessageEntry] = []
        accepted: list[MessageEntry] = []
        for message, key in zip(messages, idempotency_keys or [None] * len(messages), strict=True):
            entry = self._known(key, new) if key is not None else None
            if entry is None:
                entry = self._next(MessageEntry, new, message=_own(message, self.now()), idempotency_key=key)
                new.append(entry)
            accepted.append(entry)
        self._append_all(new)
        return accepted

    async def add_messages(
        self, messages: Sequence[Message], *, idempotency_keys: Sequence[str | None] = ()
    ) -> list[MessageEntry]:
        """`extend`, and return when all of it is acknowledged.

        Raises:
            StoreFull, StoreUnavailable: as for `add_message`.
            InvalidMessage, UnsavedLimit, SessionDeleted: as for `append`.
        """
        self._services.committer.check_store()
        entries = self.extend(messages, idempotency_keys=idempotency_keys)
        await self.saved()
        return entries

    async def add_message(self, message: Message, *, idempotency_key: str | None = None) -> MessageEntry:
        """Append a message and return when it is acknowledged: the store has committed it, as safely as it promises.

        While the store cannot be written this refuses at once and accepts nothing. When the store fails under this very
        message, the error is raised and the message stays accepted: it is committed when the store recovers, and
        repeating the call with the same idempotency key waits for that instead of appending it twice.

        Raises:
            StoreFull: no space on the store's disk.
            StoreUnavailable: the store cannot be written.
            InvalidMessage, UnsavedLimit, SessionDeleted: as for `append`.
        """
        self._services.committer.check_store()
        entry = self.append(message, idempotency_key=idempotency_key)
        # a repeated message that has left the window has no number any more: then everything is waited for
        await self._services.committer.wait(self._log, entry.sequence or self._conversation.last_sequence)
        return entry

    async def saved(self) -> None:
        """Return when everything accepted so far is acknowledged.

        Raises:
            StoreUnavailable: the store cannot be written; what was accepted stays in memory and is tried again.
            StoreConflict: the store has other entries in their place; get_or_create goes on from those.
        """
        await self._services.committer.wait(self._log, self._conversation.last_sequence)

    def messages(self) -> list[Message]:
        """The window, oldest first: a new list of immutable messages."""
        return [entry.message for entry in self._conversation.window]

    def entries(self) -> list[MessageEntry]:
        """The window with ids, sequence numbers and times: a new list of immutable entries."""
        return list(self._conversation.window)

    def clear(self) -> None:
        """Start over with an empty window; accepted like a message. The transcript and the metadata stay."""
        self._append(self._next(LeafMove, target_id=None))

    def turn(self, message: Message, *, idempotency_key: str | None = None) -> Turn:
        """One exchange, exclusively: `async with session.turn(message) as turn`. See `Turn`."""
        return Turn(self, message, idempotency_key=idempotency_key)

    def find_duplicate(self, idempotency_key: str) -> MessageEntry | None:
        """The entry that was accepted with this idempotency key, if it is remembered."""
        entry_id = (self._conversation.idempotency_keys or {}).get(idempotency_key)
        if entry_id is None:
            return None
        for entry in self._conversation.window:
            if entry.id == entry_id:
                return entry
        return MessageEntry(id=entry_id, parent_id=None, timestamp=self.updated_at, message=Message.user(""))

    # --- what is known about it --------------------------------------------------------------------------------------

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Title, agent_id, model, provider, thinking_level and whatever else was set; a read-only copy."""
        return MappingProxyType(deepcopy(dict(self._conversation.metadata)))

    @property
    def title(self) -> str | None:
        """The display name; setting it is accepted like a message."""
        return self._conversation.metadata.get("title")

    @title.setter
    def title(self, title: str | None) -> None:
        self.update(title=title)

    @property
    def agent_id(self) -> str | None:
        """The agent that this session belongs to; setting it is accepted like a message."""
        return self._conversation.metadata.get("agent_id")

    @agent_id.setter
    def agent_id(self, agent_id: str | None) -> None:
        self.update(agent_id=agent_id)

    def update(
        self,
        *,
        title: str | None = _UNSET,
        model: str | None = _UNSET,
        provider: str | None = _UNSET,
        thinking_level: str | None = _UNSET,
        **metadata: Any,
    ) -> None:
        """Set metadata, each change an entry of the transcript; None removes. Accepted like a message, all or nothing.

        Raises:
            InvalidMessage: a value is not JSON.
            UnsavedLimit, SessionDeleted: as for `append`.
        """
        entries: list[Entry] = []
        if title is not _UNSET:
            entries.append(self._next(SessionInfo, entries, name=title or ""))
        if model is not _UNSET or provider is not _UNSET:
            known = self._conversation.metadata
            model = known.get("model") if model is _UNSET else model
            provider = known.get("provider") if provider is _UNSET else provider
            entries.append(self._next(ModelChange, entries, provider=provider or "", model_id=model or ""))
        if thinking_level is not _UNSET:
            entries.append(self._next(ThinkingLevelChange, entries, thinking_level=thinking_level or ""))
        if metadata:
            entries.append(self._next(Custom, entries, custom_type=METADATA, data=metadata))
        # what the bytes say is what is kept: it shares nothing with the caller, and it can be read again
        self._append_all([decode_entry(encode_entry(entry)) for entry in entries])

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

    def check(self, message: Message) -> None:
        """Whether a message could be appended.

        Raises:
            InvalidMessage: it cannot be stored faithfully, or is too large.
        """
        self._check_size(len(encode_message(_own(message, self.now().replace(microsecond=999_999)))))

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

    def _append_all(self, entries: Sequence[Entry]) -> None:
        """`_append` for several entries that are accepted together or not at all."""
        self._check_accepting()
        encoded = [encode_entry(entry) for entry in entries]
        for entry, one in zip(entries, encoded, strict=True):
            self._check_entry(entry, len(one))
        self._services.committer.check_room(sum(map(len, encoded)))
        for entry, one in zip(entries, encoded, strict=True):
            self._accept(entry, one)

    def _check_accepting(self) -> None:
        if self._retired:
            raise SessionDeleted(f"session {self.session_id} was deleted; get_or_create makes a new one")
        if self._log.rejected is not None:
            raise anew(self._log.rejected)

    def _accept(self, entry: Entry, encoded: bytes) -> None:
        self.evicted += self._conversation.apply(entry)
        self._services.committer.submit(self._log, StoredEntry(entry.sequence, entry.id, encoded))
        self._changed()

    def _known(self, idempotency_key: str, accepted: Sequence[MessageEntry] = ()) -> MessageEntry | None:
        """The entry that has this key already, in the session or among those that are accepted together."""
        if len(idempotency_key) > MAX_IDEMPOTENCY_KEY:
            raise InvalidMessage(f"an idempotency key has at most {MAX_IDEMPOTENCY_KEY} characters")
        same = (entry for entry in accepted if entry.idempotency_key == idempotency_key)
        return self.find_duplicate(idempotency_key) or next(same, None)

    def _check_entry(self, entry: EntryBase, size: int) -> None:
        """The limit is on the message itself, so that one that passes `check` is never refused later."""
        if size > self._services.max_message_bytes:
            self._check_size(len(encode_message(entry.message)) if isinstance(entry, MessageEntry) else size)

    def _check_size(self, size: int) -> None:
        limit = self._services.max_message_bytes
        if size > limit:
            raise InvalidMessage(f"the message has {size} bytes as JSON, the limit is {limit} (max_message_bytes)")

    def _next(self, kind: type[E], before: Sequence[EntryBase] = (), **fields: Any) -> E:
        """An entry for the place behind the newest one, and behind those that are accepted together with it."""
        return kind(
            id=self._services.clock.new_id(),
            parent_id=before[-1].id if before else self._conversation.leaf_id,
            timestamp=self.now(),
            sequence=self._conversation.last_sequence + 1 + len(before),
            **fields,
        )

    def _changed(self) -> None:
        if self._retired:  # its file is gone or another object's: nothing would ever make it clean again
            return
        if self._revision == self._flushed_revision:
            self._services.flusher.add(self)
        self._revision += 1


def _own(message: Message, now: datetime) -> Message:
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
