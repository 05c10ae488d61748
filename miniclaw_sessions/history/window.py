"""The window: the newest messages of a session, a FIFO that never cuts a tool call from its result.

At most `capacity` messages (50). The message that does not fit pushes out the oldest *unit*: a message together with
the tool results that follow it, so a window never begins with an orphan result. Two things stay as long as anything
else can go: the last user message (what is being answered) and the newest unit (what is being answered with). A unit
that is the newest, or very large, leaves call by call, each together with its result; the user's message never leaves
for it. Nothing is lost by this: the transcript in the store keeps every message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from miniclaw_sessions.history.pairing import answered_ids, pair
from miniclaw_sessions.protocol.entries import MessageEntry
from miniclaw_sessions.protocol.messages import Role

MAX_MESSAGES = 50
"""How many messages a window holds unless told otherwise (document 004)."""

MOST_AT_ONCE = 24
"""A unit of more messages leaves call by call, or one turn with many calls would leave the window nearly empty."""

_USER, _TOOL_RESULT = Role.USER, Role.TOOL_RESULT  # finding a member of an enum is slow, for the path of every append


class Window:
    """A bounded FIFO of message entries; the eviction rules are this module's docstring."""

    __slots__ = ("_entries", "_last_user", "capacity", "newest_evicted")

    def __init__(self, capacity: int = MAX_MESSAGES, entries: Iterable[MessageEntry] = ()) -> None:
        """Hold at most `capacity` messages (at least 2); `entries`, oldest first, pass through the same rules."""
        if capacity < 2:  # noqa: PLR2004 - a question and its answer
            raise ValueError(f"a window holds at least 2 messages, not {capacity}")
        self.capacity = capacity
        self.newest_evicted = 0
        """The greatest sequence of what left, as a whole or in part; whatever came later is here."""
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
        if not entries and role is _TOOL_RESULT:
            self._note_evicted(entry)
            return 1  # its call is gone already: it stays in the transcript only
        entries.append(entry)
        if role is _USER:
            self._last_user = entry
        if len(entries) <= self.capacity:
            return 0
        if entries[0] is not self._last_user and entries[1].message.role is not _TOOL_RESULT:
            gone = entries.popleft().sequence  # the usual case: a plain message leaves
            if gone > self.newest_evicted:  # noqa: PLR1730 - the path of every append: max() costs twice
                self.newest_evicted = gone
            return 1
        evicted = 0
        while len(self._entries) > self.capacity:
            evicted += self._evict()
        return evicted

    def _fill(self, entries: tuple[MessageEntry, ...]) -> None:
        """Push all; at once when nothing has to leave, because thousands of windows are filled at startup."""
        if len(entries) > self.capacity or (entries and entries[0].message.is_tool_result):
            self._entries, self._last_user = deque(), None
            for entry in entries:
                self.push(entry)
            return
        self._entries = deque(entries)
        self._last_user = next((entry for entry in reversed(entries) if entry.message.is_user), None)

    def keep_from(self, sequence: int) -> None:
        """Forget the messages that are older than this place; they are not counted as evicted."""
        if self._entries and self._entries[0].sequence < sequence:
            self._fill(tuple(entry for entry in self._entries if entry.sequence >= sequence))

    def keep_to(self, sequence: int) -> None:
        """Forget the messages that are younger than this place."""
        if self._entries and self._entries[-1].sequence > sequence:
            self._fill(tuple(entry for entry in self._entries if entry.sequence <= sequence))

    def clear(self) -> None:
        """Forget all messages, and that any ever left."""
        self._entries.clear()
        self._last_user = None
        self.newest_evicted = 0

    def _evict(self) -> int:
        """Remove the oldest unit that may go; at least one message leaves."""
        entries = self._entries
        head = 1 if entries[0] is self._last_user else 0
        size = self._unit_size(head)
        is_all = head + size == len(entries)
        if is_all or (size > MOST_AT_ONCE and len(entries[head].message.tool_calls or ()) > 1):
            return self._trim_unit(head, size)
        return self._remove(range(head, head + size))

    def _trim_unit(self, head: int, size: int) -> int:
        """The unit is nearly all of the window: drop its oldest answered call together with the answers."""
        entries = self._entries
        results = range(head + 1, head + size)
        if entries[head].message.is_tool_result:  # nobody's answers, right behind the user's message
            return self._remove((head,))
        unit = [entries[place].message for place in (head, *results)]
        answers = pair(unit)
        calls = unit[0].tool_calls or ()
        call = next((call for call in calls if (0, call.id) in answers), None)
        kept = tuple(other for other in calls if call is not None and other.id != call.id)
        if call is None or not kept:  # one call only, answered again and again, or not by these
            return self._remove(results[:1] if len(results) > 1 else (head, *results))
        self._note_evicted(entries[head])
        entries[head] = msgspec.structs.replace(
            entries[head], message=msgspec.structs.replace(unit[0], tool_calls=kept)
        )
        answer = head + answers[0, call.id]
        return self._remove(
            [place for place in results if place == answer or call.id in answered_ids(unit[place - head])]
        )

    def _unit_size(self, head: int) -> int:
        """How many messages the unit that starts at `head` has: it and the tool results right behind it."""
        entries = self._entries
        end = head + 1
        while end < len(entries) and entries[end].message.is_tool_result:
            end += 1
        return end - head

    def _remove(self, indices: Iterable[int]) -> int:
        gone = set(indices)
        for index in gone:
            self._note_evicted(self._entries[index])
        self._entries = deque(entry for index, entry in enumerate(self._entries) if index not in gone)
        return len(gone)

    def _note_evicted(self, entry: MessageEntry) -> None:
        self.newest_evicted = max(self.newest_evicted, entry.sequence)
