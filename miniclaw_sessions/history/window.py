"""The window: the newest messages of a session, a FIFO that never cuts a tool call from its result.

At most `capacity` messages (50). The message that does not fit pushes out the oldest *unit*: a message together with
the tool results that follow it, so a window never begins with an orphan result. Two things stay as long as anything
else can go: the last user message (what is being answered) and the newest unit (what is being answered with). When a
single open unit is larger than the window, its oldest call leaves together with its result. Nothing is lost by this:
the transcript in the store keeps every message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from miniclaw_sessions.protocol.entries import MessageEntry
from miniclaw_sessions.protocol.messages import Role

MAX_MESSAGES = 50
"""How many messages a window holds unless told otherwise (document 004)."""


class Window:
    """A bounded FIFO of message entries; the eviction rules are this module's docstring."""

    __slots__ = ("_entries", "_last_user", "capacity")

    def __init__(self, capacity: int = MAX_MESSAGES, entries: Iterable[MessageEntry] = ()) -> None:
        """Hold at most `capacity` messages (at least 2); `entries`, oldest first, pass through the same rules."""
        if capacity < 2:  # noqa: PLR2004 - a question and its answer
            raise ValueError(f"a window holds at least 2 messages, not {capacity}")
        self.capacity = capacity
        self._entries: deque[MessageEntry] = deque()
        self._last_user: MessageEntry | None = None
        self._fill(tuple(entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[MessageEntry]:
        return iter(self._entries)

    def __repr__(self) -> str:
        return f"<Window {len(self._entries)} of {self.capacity} messages>"

    @property
    def last(self) -> MessageEntry | None:
        """The newest message."""
        return self._entries[-1] if self._entries else None

    def push(self, entry: MessageEntry) -> int:
        """Append a message and return how many left for it."""
        entries = self._entries
        role = entry.message.role
        if not entries and role is Role.TOOL_RESULT:
            return 1  # its call is gone already: it stays in the transcript only
        entries.append(entry)
        if role is Role.USER:
            self._last_user = entry
        if len(entries) <= self.capacity:
            return 0
        if entries[0] is not self._last_user and entries[1].message.role is not Role.TOOL_RESULT:
            entries.popleft()  # the usual case: a plain message leaves
            return 1
        evicted = 0
        while len(self._entries) > self.capacity:
            evicted += self._evict()
        return evicted

    def _fill(self, entries: tuple[MessageEntry, ...]) -> None:
        """Push all; at once when nothing has to leave, because thousands of windows are filled at startup."""
        if len(entries) > self.capacity or (entries and entries[0].message.is_tool_result):
            for entry in entries:
                self.push(entry)
            return
        self._entries = deque(entries)
        self._last_user = next((entry for entry in reversed(entries) if entry.message.role is Role.USER), None)

    def clear(self) -> None:
        """Forget all messages."""
        self._entries.clear()
        self._last_user = None

    def _evict(self) -> int:
        """Remove the oldest unit that may go; at least one message leaves."""
        entries = self._entries
        if entries[0] is not self._last_user and (size := self._unit_size(0)) < len(entries):
            for _ in range(size):
                entries.popleft()
            return size
        return self._evict_from_open_turn()

    def _evict_from_open_turn(self) -> int:
        """The current turn alone fills the window: keep its user message, drop its oldest complete unit."""
        first = 1 if self._entries[0] is self._last_user else 0
        size = self._unit_size(first)
        if first + size < len(self._entries):
            self._remove(range(first, first + size))
            return size
        return self._trim_unit(first) or self._drop_first()

    def _trim_unit(self, head: int) -> int:
        """The newest unit alone is too large: drop its oldest answered call together with the answer."""
        entry = self._entries[head]
        calls = entry.message.tool_calls or ()
        places = {self._entries[i].message.tool_call_id: i for i in range(head + 1, len(self._entries))}
        answered = next((call for call in calls if call.id in places), None)
        if answered is None or len(calls) == 1:
            return 0
        kept = tuple(call for call in calls if call is not answered)
        trimmed = msgspec.structs.replace(entry.message, tool_calls=kept)
        self._entries[head] = msgspec.structs.replace(entry, message=trimmed)
        self._remove((places[answered.id],))
        return 1

    def _drop_first(self) -> int:
        """Nothing else can go: the bound is kept, and the oldest message pays."""
        self._remove(range(1))
        while self._entries and self._entries[0].message.is_tool_result:
            self._remove(range(1))
        return 1

    def _unit_size(self, head: int) -> int:
        """How many messages the unit that starts at `head` has: it and the tool results right behind it."""
        entries = self._entries
        end = head + 1
        while end < len(entries) and entries[end].message.is_tool_result:
            end += 1
        return end - head

    def _remove(self, indices: Iterable[int]) -> None:
        gone = set(indices)
        if any(self._entries[index] is self._last_user for index in gone):
            self._last_user = None
        self._entries = deque(entry for index, entry in enumerate(self._entries) if index not in gone)
