"""Which response a conversation follows that a client sends whole, as clients of chat completions do.

A branch is known by the digest of all that a client sees of it: what it sent, and the answers. Clients change the space
between words, and join or part neighbouring messages of one speaker, so neither counts. The digests of a session's
branches are kept in memory, and made of its entries when they are needed for the first time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from miniclaw_sessions.core.protocol.entries import Entry, LeafMove, MessageEntry, moves_leaf, waiting_calls
from miniclaw_sessions.core.protocol.images import address_of
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, TextPart, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.service.api.openai.stored_responses import deleted_in, is_mark


class _Seen:
    """What a client has seen of a branch, as a running digest."""

    __slots__ = ("_hash", "_role")

    def __init__(self, begun: hashlib._Hash | None = None, role: str = "") -> None:
        self._hash = begun or hashlib.sha256()
        self._role = role

    def copy(self) -> _Seen:
        """The same, to go on from twice."""
        return _Seen(self._hash.copy(), self._role)

    def add(self, message: Message, calls: Iterable[ToolCall]) -> None:
        """A message, and its calls that a client sees."""
        role = "" if message.is_tool_result else message.role
        if role != self._role or message.is_tool_result:
            self._part("role", message.role, message.tool_call_id or "")
            self._role = role
        for part in (TextPart(message.content),) if isinstance(message.content, str) else message.content:
            if isinstance(part, TextPart):
                self._hash.update("".join(part.text.split()).encode())
            elif isinstance(part, ImagePart):
                self._part("image", hashlib.sha256(address_of(part).encode()).hexdigest())
        for call in calls:
            self._part("call", call.id, call.name, "".join(call.arguments.split()))

    def _part(self, *fields: str) -> None:
        self._hash.update(msgspec.json.encode(fields))

    def digest(self) -> bytes:
        """The digest of what was added."""
        return self._hash.digest()


class _Place(NamedTuple):
    """The state of a branch behind one of its entries.

    Attributes:
        seen: what a client has seen.
        mark_id: the entry that its newest response begins with.
        inputs: how many messages of that response's input follow.
        calls: the calls of its newest reply.
    """

    seen: _Seen
    mark_id: str | None = None
    inputs: int = 0
    calls: tuple[ToolCall, ...] = ()


class _Branches:
    """The branches of one session."""

    def __init__(self) -> None:
        self.read_up_to = 0
        self.ends: dict[bytes, str] = {}
        """The entries that responses begin with, by the digest of what was seen when each had ended."""
        self._places: dict[str, _Place] = {}

    def add(self, entry: Entry) -> None:
        """The next entry of the session."""
        self.read_up_to = entry.sequence
        if isinstance(entry, LeafMove) or not moves_leaf(entry):
            return
        before = self._places.get(entry.parent_id or "") or _Place(_Seen())
        self._places[entry.id] = self._behind(before, entry)

    def _behind(self, before: _Place, entry: Entry) -> _Place:
        if is_mark(entry):
            return _Place(before.seen, entry.id, entry.data["inputs"])
        if isinstance(entry, MessageEntry):
            message = entry.message
            if before.inputs:
                return before._replace(
                    seen=_with(before.seen, message, message.tool_calls or ()), inputs=before.inputs - 1
                )
            if message.is_tool_result and before.mark_id is not None:  # of a call that was answered here
                return before
            after = before._replace(seen=_with(before.seen, message, ()), calls=message.tool_calls or ())
            if message.is_assistant and not message.tool_calls:
                self._ended(after)
            return after
        if before.calls and (waiting := waiting_calls(entry)):
            calls = [call for call in before.calls if call.id in waiting]
            after = before._replace(seen=_with(before.seen, Message.assistant(""), calls), calls=())
            self._ended(after)
            return after
        return before

    def _ended(self, place: _Place) -> None:
        if place.mark_id is not None:
            self.ends[place.seen.digest()] = place.mark_id


def _with(seen: _Seen, message: Message, calls: Sequence[ToolCall]) -> _Seen:
    other = seen.copy()
    other.add(message, calls)
    return other


_known: WeakKeyDictionary[Journal, _Branches] = WeakKeyDictionary()


async def find_followed(session: Session, messages: Sequence[Message]) -> tuple[str | None, int]:
    """Find the response whose end a conversation follows.

    Returns:
        The entry that the response begins with, and how many of the messages are on its branch; None and 0: no response
        is followed.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    branches = _known.setdefault(session.journal, _Branches())
    final = session.journal.final_sequence  # what lies behind may get another place, and has no client yet
    async for entry in session.tree.read_entries(after=branches.read_up_to):
        if entry.sequence > final:
            break
        if entry.sequence > branches.read_up_to:  # another request may have read on meanwhile
            branches.add(entry)
    deleted = deleted_in(session)
    seen, found = _Seen(), (None, 0)
    known: Any
    for count, message in enumerate(messages[:-1], 1):
        seen.add(message, message.tool_calls or ())
        known = branches.ends.get(seen.digest()) if message.is_assistant else None
        if known is not None and known not in deleted:
            found = (known, count)
    return found


def digest_of(messages: Sequence[Message], *named: str) -> str:
    """What conversations have in common that begin with the same messages, as 48 hexadecimal digits.

    Args:
        messages: how they begin.
        named: what else distinguishes them.
    """
    seen = _Seen()
    for message in messages:
        seen.add(message, message.tool_calls or ())
    return hashlib.sha256(msgspec.json.encode([*named, seen.digest().hex()])).hexdigest()[:48]
