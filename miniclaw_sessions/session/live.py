"""One live conversation.

`append` is synchronous: it accepts a message, in memory and in order, and needs no lock because nobody else runs
between two awaits. `add_message` returns when the message is acknowledged: the store has committed it. A turn is
exclusive. What document 003 does with the tree of the transcript is in `tree`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import Any

import msgspec

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.history.branch import summary_messages
from miniclaw_sessions.history.window import MAX_MESSAGES
from miniclaw_sessions.protocol.encoding import decode_entry, encode_entry, encode_message
from miniclaw_sessions.protocol.entries import (
    METADATA,
    OWN_METADATA,
    Custom,
    Entry,
    LeafMove,
    MessageEntry,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
)
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.protocol.messages import Message, Usage
from miniclaw_sessions.session.core import owned
from miniclaw_sessions.session.tree import SessionTree
from miniclaw_sessions.turn import Turn

MAX_IDEMPOTENCY_KEY = 512
"""Characters that an idempotency key may have: a session remembers hundreds of them."""

_UNSET: Any = object()


class Session(SessionTree):
    """A conversation that is held in memory, saved to the store and checkpointed to its file.

    Made by `SessionManager`, which hands out the same object for the same key for as long as it lives.
    """

    __slots__ = ()

    @classmethod
    def new(cls, session_id: str | None = None, *, window: int = MAX_MESSAGES, clock: Clock | None = None) -> Session:
        """A session in memory only, that belongs to no manager (documents 000 and 001); it is gone with its object.

        Args:
            session_id: its name, `{channel}_{chat_id}`; by default channel `memory` and a UUIDv7.
            window: how many messages its window holds.
            clock: time and ids; the machine's by default.

        Raises:
            InvalidKey: the text is not a session id.
        """
        from miniclaw_sessions.session.detached import detached  # noqa: PLC0415 - which makes sessions, too

        key = None if session_id is None else SessionKey.parse(session_id)
        return detached(cls, key, window=window, clock=clock)

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
        now, conversation = self._services.clock.now(), self._conversation
        follows_leaf = conversation.leaf_id is None or conversation.leaf_sequence == conversation.last_sequence
        return self._append(
            MessageEntry(
                id=self._services.clock.new_id(),
                parent_id=conversation.leaf_id,
                timestamp=now,
                sequence=conversation.last_sequence + 1,
                parent_sequence=None if follows_leaf else conversation.leaf_sequence,
                message=owned(message, now),
                idempotency_key=idempotency_key,
            )
        )

    def extend(
        self,
        messages: Sequence[Message],
        *,
        idempotency_keys: Sequence[str | None] = (),
        continues: Iterable[bool] = (),
    ) -> list[MessageEntry]:
        """Accept several messages as one unit: all of them, or none. One commit carries them.

        Args:
            messages: in order.
            idempotency_keys: one for each message, or none at all; a message whose key is known is not appended again.
            continues: for each message, whether it belongs to the same turn as the message before it; those that
                nothing is said of do not.

        Returns:
            The entry of each message, as `append` would return it.

        Raises:
            InvalidMessage, UnsavedLimit, SessionDeleted: as for `append`.
        """
        new: list[MessageEntry] = []
        accepted: list[MessageEntry] = []
        belongs = iter(continues)
        for message, key in zip(messages, idempotency_keys or [None] * len(messages), strict=True):
            same_turn = next(belongs, False)
            entry = self._known(key, new) if key is not None else None
            if entry is None:
                own = owned(message, self.now())
                entry = self._next(MessageEntry, new, message=own, idempotency_key=key, continues=same_turn)
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

    async def append_message(self, message: Message) -> str:
        """`add_message` in the words of document 003: the id of the new entry, once it is acknowledged.

        Raises:
            StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as for `add_message`.
        """
        return (await self.add_message(message)).id

    async def save_turn(self, messages: Sequence[Message], usage: Usage | None = None) -> None:
        """Append a turn's messages as one unit, and return when they are acknowledged (document 001).

        Args:
            messages: everything that was said in the turn, and nothing from before it.
            usage: what the turn cost; it stands with the last message, unless messages bring their own usage.

        Raises:
            StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as for `add_message`; nothing, or
                all, was accepted.
        """
        self._services.committer.check_store()
        turn = list(messages)
        if turn and usage is not None and all(message.usage is None for message in turn):
            turn[-1] = msgspec.structs.replace(turn[-1], usage=usage)
        self.extend(turn, continues=[place > 0 for place in range(len(turn))])
        await self.saved()

    def messages(self) -> list[Message]:
        """The window, oldest first, behind the summary of what was compacted: a new list of immutable messages."""
        window = [entry.message for entry in self._conversation.window]
        return [*self.summary(), *window] if self._conversation.compaction else window

    def summary(self) -> list[Message]:
        """What stands for the part of the branch that was compacted; empty where none was."""
        return summary_messages(self._conversation.compaction)

    def entries(self) -> list[MessageEntry]:
        """The window with ids, sequence numbers and times: a new list of immutable entries."""
        return list(self._conversation.window)

    def clear(self) -> None:
        """Start over with an empty window; accepted like a message. The transcript and the metadata stay."""
        self._append(self._next(LeafMove, target_id=None))

    def turn(self, message: Message | None = None, *, idempotency_key: str | None = None) -> Turn:
        """One exchange, exclusively: `async with session.turn(message) as turn`. See `Turn`.

        Without a message, the turn of the user's newest one is taken up again.
        """
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

    def set_title(self, title: str | None) -> None:
        """Set the display name; accepted like a message."""
        self.title = title

    @property
    def event_count(self) -> int:
        """How many turns, messages saved alone, and compactions there were, on all branches (document 001)."""
        return self._conversation.totals.events

    @property
    def message_count(self) -> int:
        """How many messages the transcript has, on all branches."""
        return self._conversation.totals.messages

    @property
    def total_usage(self) -> Usage:
        """What all messages of the transcript cost together, on all branches; a number nobody told counts as zero."""
        return self._conversation.totals.usage or Usage()

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
            InvalidMessage: a value is not JSON, or a name begins with `session.`, which are the session's own.
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
        if own := [name for name in metadata if name.startswith(OWN_METADATA)]:
            raise InvalidMessage(f"metadata {own[0]!r} cannot be set: names that begin with {OWN_METADATA} are ours")
        if metadata:
            entries.append(self._next(Custom, entries, custom_type=METADATA, data=metadata))
        # what the bytes say is what is kept: it shares nothing with the caller, and it can be read again
        self._append_all([decode_entry(encode_entry(entry)) for entry in entries])

    # --- for turns ---------------------------------------------------------------------------------------------------

    def check(self, message: Message) -> None:
        """Whether a message could be appended.

        Raises:
            InvalidMessage: it cannot be stored faithfully, or is too large.
        """
        self._check_size(len(encode_message(owned(message, self.now().replace(microsecond=999_999)))))

    def _known(self, idempotency_key: str, accepted: Sequence[MessageEntry] = ()) -> MessageEntry | None:
        """The entry that has this key already, in the session or among those that are accepted together."""
        if len(idempotency_key) > MAX_IDEMPOTENCY_KEY:
            raise InvalidMessage(f"an idempotency key has at most {MAX_IDEMPOTENCY_KEY} characters")
        same = (entry for entry in accepted if entry.idempotency_key == idempotency_key)
        return self.find_duplicate(idempotency_key) or next(same, None)
