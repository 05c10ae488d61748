"""The window: the newest messages of a session, a FIFO that never cuts a tool call from its result.

At most `capacity` messages. The message that does not fit pushes out the oldest *unit*: a message together with
the tool results that follow it, so a window never begins with an orphan result. Two things stay as long as anything
else can leave: the last user message (which is being answered) and the newest unit (which is the answer). A unit that
is the newest, or very large, leaves call by call, each together with its result; the user's message never leaves for
it. Nothing is lost: the transcript in the store keeps every message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import overload

import msgspec

from miniclaw_sessions.config import MAX_MESSAGES
from miniclaw_sessions.core.history.pairing import answered_ids, pair
from miniclaw_sessions.core.protocol.encoding import decode_message, encode_message, message_within
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Role

MOST_AT_ONCE = 24
"""A larger unit leaves call by call; otherwise one turn with many calls would leave the window nearly empty."""

_USER, _ASSISTANT, _TOOL_RESULT = Role.USER, Role.ASSISTANT, Role.TOOL_RESULT
"""Looking up a member of an enum is slow, on the path of every append."""


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A message entry as the window keeps it: the message as its JSON, which no reader can change.

    Attributes:
        role: the role of the message.
        calls_tools: whether the message has `tool_calls`.
        encoded: the message as JSON, as it is in the store and in the snapshot.
        id, parent_id, sequence, parent_sequence, timestamp, idempotency_key, continues: the fields of the entry.
    """

    id: str
    parent_id: str | None
    sequence: int
    parent_sequence: int | None
    timestamp: datetime
    role: Role
    calls_tools: bool
    encoded: bytes
    idempotency_key: str | None = None
    continues: bool = False

    @property
    def message(self) -> Message:
        """The message, decoded."""
        return decode_message(self.encoded)

    @property
    def entry(self) -> MessageEntry:
        """The entry, decoded."""
        return MessageEntry(
            id=self.id,
            parent_id=self.parent_id,
            timestamp=self.timestamp,
            sequence=self.sequence,
            parent_sequence=self.parent_sequence,
            message=self.message,
            idempotency_key=self.idempotency_key,
            continues=self.continues,
        )


def keep(entry: MessageEntry, encoded: bytes | None = None) -> Kept:
    """An entry as the window keeps it; `encoded` is its JSON, if it was just made."""
    message = entry.message
    return Kept(
        entry.id,
        entry.parent_id,
        entry.sequence,
        entry.parent_sequence,
        entry.timestamp,
        message.role,
        message.tool_calls is not None,
        encode_message(message) if encoded is None else message_within(entry, encoded),
        entry.idempotency_key,
        entry.continues,
    )


class Packed(Sequence[Kept]):
    """Messages in the bytes of their snapshot file, decoded at each access.

    Thousands of sessions are in memory and not used: their windows hold only the bytes of the file.
    """

    __slots__ = ("_count", "_unpack", "data")

    def __init__(self, data: bytes, count: int, unpack: Callable[[bytes], Sequence[Kept]]) -> None:
        """Hold the `count` messages of `unpack(data)`, which follow one another and do not begin with an orphan."""
        self.data = data
        self._count = count
        self._unpack = unpack

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Kept: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Kept]: ...
    def __getitem__(self, index: int | slice) -> Kept | Sequence[Kept]:
        return self._unpack(self.data)[index]

    def __iter__(self) -> Iterator[Kept]:
        return iter(self._unpack(self.data))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


class Window:
    """A bounded FIFO of message entries; the module's docstring has the rules of eviction."""

    __slots__ = ("_entries", "_last_user", "_packed", "capacity", "newest_evicted")

    def __init__(
        self, capacity: int = MAX_MESSAGES, entries: Iterable[MessageEntry] = (), *, kept: Sequence[Kept] = ()
    ) -> None:
        """Hold at most `capacity` messages (at least 2).

        Args:
            capacity: the largest number of messages.
            entries: the first messages, oldest first; the same rules apply.
            kept: the same as the window keeps them, instead of `entries`.
        """
        if capacity < 2:  # noqa: PLR2004 - a question and its answer
            raise ValueError(f"a window holds at least 2 messages, not {capacity}")
        self.capacity = capacity
        self.newest_evicted = 0
        """The greatest sequence of all messages that left; all later messages are here."""
        self._entries: deque[Kept] = deque()
        self._last_user: Kept | None = None
        self._packed: Packed | None = None  # instead of both, until the window is used
        if isinstance(kept, Packed) and 0 < len(kept) <= capacity:
            self._packed = kept
        else:
            self._fill(kept or [keep(entry) for entry in entries])

    def __len__(self) -> int:
        return len(self._entries if self._packed is None else self._packed)

    def __iter__(self) -> Iterator[MessageEntry]:
        """The entries, oldest first, decoded."""
        return (kept.entry for kept in self._unpacked())

    def __repr__(self) -> str:
        return f"<Window {len(self)} of {self.capacity} messages>"

    @property
    def kept(self) -> Sequence[Kept]:
        """The messages in their kept form, oldest first."""
        return tuple(self._unpacked())

    @property
    def for_snapshot(self) -> Sequence[Kept]:
        """The same, still packed if the window was not used: a snapshot takes the bytes as they are."""
        return tuple(self._entries) if self._packed is None else self._packed

    def messages(self) -> list[Message]:
        """The messages, oldest first, decoded."""
        return [decode_message(kept.encoded) for kept in self._unpacked()]

    def newest_step(self) -> list[Message]:
        """The messages from the assistant's newest on, decoded; all, if the assistant has none."""
        step: list[Message] = []
        for kept in reversed(self._unpacked()):
            step.append(kept.message)
            if kept.role is _ASSISTANT:
                break
        return step[::-1]

    def find(self, entry_id: str) -> MessageEntry | None:
        """The message with this id, or None."""
        return next((kept.entry for kept in self._unpacked() if kept.id == entry_id), None)

    def push(self, entry: MessageEntry, encoded: bytes | None = None) -> int:
        """Append a message. Returns how many left for it. `encoded` is the entry's JSON, if it was just made."""
        return self._push(keep(entry, encoded))

    def _unpacked(self) -> deque[Kept]:
        """The messages, decoded from the file's bytes when the window is used for the first time."""
        if self._packed is not None:
            self._fill(list(self._packed))
            self._packed = None
        return self._entries

    def _push(self, entry: Kept) -> int:
        entries = self._entries if self._packed is None else self._unpacked()
        role = entry.role
        if not entries and role is _TOOL_RESULT:
            self._note_evicted(entry)
            return 1  # its call has left already: it is in the transcript only
        entries.append(entry)
        if role is _USER:
            self._last_user = entry
        if len(entries) <= self.capacity:
            return 0
        if entries[0] is not self._last_user and entries[1].role is not _TOOL_RESULT:
            gone = entries.popleft().sequence  # the usual case: a message without calls leaves
            if gone > self.newest_evicted:  # noqa: PLR1730 - the path of every append: max() costs twice
                self.newest_evicted = gone
            return 1
        evicted = 0
        while len(self._entries) > self.capacity:
            evicted += self._evict()
        return evicted

    def _fill(self, entries: Sequence[Kept]) -> None:
        """Push all; in one step if nothing has to leave, because thousands of windows are filled at startup."""
        if len(entries) > self.capacity or (entries and entries[0].role is _TOOL_RESULT):
            self._entries, self._last_user, self._packed = deque(), None, None
            for entry in entries:
                self._push(entry)
            return
        self._entries = deque(entries)
        self._last_user = next((entry for entry in reversed(entries) if entry.role is _USER), None)

    def keep_from(self, sequence: int) -> None:
        """Remove the messages before this sequence; they do not count as evicted."""
        entries = self._unpacked()
        if entries and entries[0].sequence < sequence:
            self._fill([entry for entry in entries if entry.sequence >= sequence])

    def keep_to(self, sequence: int) -> None:
        """Remove the messages after this sequence."""
        entries = self._unpacked()
        if entries and entries[-1].sequence > sequence:
            self._fill([entry for entry in entries if entry.sequence <= sequence])

    def clear(self) -> None:
        """Remove all messages, and forget that any were evicted."""
        self._entries.clear()
        self._last_user = self._packed = None
        self.newest_evicted = 0

    def _evict(self) -> int:
        """Remove the oldest unit that may leave. Returns the number of messages, at least one."""
        entries = self._entries
        head = 1 if entries[0] is self._last_user else 0
        end = head + 1  # of the unit: a message and the tool results right after it
        while end < len(entries) and entries[end].role is _TOOL_RESULT:
            end += 1
        if end == len(entries) or (end - head > MOST_AT_ONCE and entries[head].calls_tools):
            return self._trim_unit(head, end)
        return self._remove(range(head, end))

    def _trim_unit(self, head: int, end: int) -> int:
        """Remove the oldest answered call of a large unit, together with its answers."""
        entries = self._entries
        results = range(head + 1, end)
        if entries[head].role is _TOOL_RESULT:  # answers without a call, right after the user's message
            return self._remove((head,))
        unit = [entries[place].message for place in (head, *results)]
        answers = pair(unit)
        calls = unit[0].tool_calls or ()
        call = next((call for call in calls if (0, call.id) in answers), None)
        kept = tuple(other for other in calls if call is not None and other.id != call.id)
        if call is None or not kept:  # only one call, answered several times, or not by these
            return self._remove(results[:1] if len(results) > 1 else (head, *results))
        self._note_evicted(entries[head])
        trimmed = msgspec.structs.replace(unit[0], tool_calls=kept)
        entries[head] = keep(msgspec.structs.replace(entries[head].entry, message=trimmed))
        answer = answers[0, call.id]
        is_its = [place == answer or call.id in answered_ids(message) for place, message in enumerate(unit)]
        return self._remove([head + place for place, goes in enumerate(is_its) if goes and place])

    def _remove(self, indices: Iterable[int]) -> int:
        gone = set(indices)
        for index in gone:
            self._note_evicted(self._entries[index])
        self._entries = deque(entry for index, entry in enumerate(self._entries) if index not in gone)
        return len(gone)

    def _note_evicted(self, entry: Kept) -> None:
        self.newest_evicted = max(self.newest_evicted, entry.sequence)
