"""Which response a conversation follows that a client sends whole, as clients of chat completions do.

A branch is known by the digest of all that a client sees of it: what it sent, and the answers. Clients change the space
between words, and join or part neighbouring messages of one speaker, so neither counts. The digests of a session's
branches are kept in memory, and made of its entries when they are needed for the first time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from miniclaw_sessions.core.protocol.entries import Entry, LeafMove, MessageEntry, moves_leaf, waiting_calls
from miniclaw_sessions.core.protocol.images import address_of
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Role, TextPart, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.files.formats.attached import attached, without_words
from miniclaw_sessions.service.api.openai.stored_responses import deleted_in, is_mark


class _Exchange(NamedTuple):
    """What is said up to the end of an answer, and what came before it.

    Attributes:
        before: the exchange before it; None: the conversation begins with this one.
        own: the digest of this one.
        whole: the digest of it and all before it.
        asked: the digest of what its answer answers.
    """

    before: _Exchange | None
    own: bytes
    whole: bytes
    asked: bytes

    @property
    def first(self) -> _Exchange:
        """The one that the conversation begins with."""
        one = self
        while one.before is not None:
            one = one.before
        return one

    def ends_with(self, other: _Exchange, opening: bytes | None = None) -> bool:
        """Whether a conversation is what its client has left of this one: the end, or the end behind the beginning.

        Args:
            other: the conversation.
            opening: the digest of a first message that precedes it; None: it may begin with this one's first exchange.
        """
        mine: _Exchange | None = self
        theirs: _Exchange | None = other
        while mine is not None and theirs is not None and mine.own == theirs.own:
            mine, theirs = mine.before, theirs.before
        if opening is not None:
            return theirs is None and opening == self.first.asked
        return theirs is None or (theirs.before is None and theirs.own == self.first.own)


class _Seen:
    """What a client has seen of a branch: whole exchanges, each up to the end of its answer, and the one that is open.

    System messages do not count: clients change them with every request, such as the time of day in them.
    """

    __slots__ = ("_asked", "_before", "_hash", "_role")

    def __init__(self) -> None:
        self._before: _Exchange | None = None
        self._hash = hashlib.sha256()
        self._role = ""
        self._asked = b""

    def copy(self) -> _Seen:
        """The same, to go on from twice."""
        other = _Seen()
        other._before, other._hash = self._before, self._hash.copy()
        other._role, other._asked = self._role, self._asked
        return other

    def add(self, message: Message, calls: Iterable[ToolCall] | None = None) -> None:
        """A message, and those of its calls that a client sees; None: all of them."""
        if message.role is Role.SYSTEM:
            return
        if self._role == Role.ASSISTANT and not message.is_assistant:
            self._before, self._hash, self._role = self.newest, hashlib.sha256(), ""
        if message.is_assistant and self._role != Role.ASSISTANT:
            self._asked = self._hash.digest()
        role = "" if message.is_tool_result else message.role
        if role != self._role or message.is_tool_result:
            self._part("role", message.role, message.tool_call_id or "")
            self._role = role
        content = without_words(message.content)
        for part in (TextPart(content),) if isinstance(content, str) else content:
            if isinstance(part, TextPart):
                self._hash.update("".join(part.text.split()).encode())
            elif isinstance(part, ImagePart):
                self._part("image", hashlib.sha256(address_of(part).encode()).hexdigest())
            elif (file := attached(part)) is not None:
                self._part("file", hashlib.sha256(file.data.encode()).hexdigest())
        for call in (message.tool_calls or ()) if calls is None else calls:
            self._part("call", call.id, call.name, "".join(call.arguments.split()))

    def _part(self, *fields: str) -> None:
        self._hash.update(b" %s" % msgspec.json.encode(fields))  # no text has a space that could be taken for one

    @property
    def newest(self) -> _Exchange:
        """What was seen, as its newest exchange."""
        own = self._hash.digest()
        before = b"" if self._before is None else self._before.whole
        return _Exchange(self._before, own, hashlib.sha256(before + own).digest(), self._asked)


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
        self.tails: dict[bytes, list[tuple[_Exchange, str]]] = {}
        """The same by the digest of the newest exchange alone."""
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
                return before._replace(seen=_with(before.seen, message), inputs=before.inputs - 1)
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

    def ending_with(self, exchange: _Exchange, deleted: Collection[str], opening: bytes | None = None) -> str | None:
        """The newest response whose branch ends with a conversation that was cut; None: none."""
        for newest, mark_id in reversed(self.tails.get(exchange.own, ())):
            if mark_id not in deleted and newest.ends_with(exchange, opening):
                return mark_id
        return None

    def _ended(self, place: _Place) -> None:
        if place.mark_id is not None:
            newest = place.seen.newest
            self.ends[newest.whole] = place.mark_id
            self.tails.setdefault(newest.own, []).append((newest, place.mark_id))


def _with(seen: _Seen, message: Message, calls: Sequence[ToolCall] | None = None) -> _Seen:
    other = seen.copy()
    other.add(message, calls)
    return other


_known: WeakKeyDictionary[Journal, _Branches] = WeakKeyDictionary()


async def find_followed(
    session: Session, messages: Sequence[Message], *, may_be_cut: bool = False
) -> tuple[str | None, int]:
    """Find the response whose end a conversation follows.

    Args:
        session: whose branches are looked at.
        messages: the conversation.
        may_be_cut: whether the oldest messages may be missing, or those behind the first exchange or message. Only
            where all of the session is known to be of the same conversation: two that end in the same words need not be
            one.

    Returns:
        The entry that the response begins with, and how many of the messages are on its branch; None and 0: no response
        is followed.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    branches = await _branches_of(session)
    deleted = deleted_in(session)
    seen, opening, behind = _Seen(), _Seen(), _Seen()
    found: tuple[str | None, int] = (None, 0)
    cut: tuple[str | None, int] = (None, 0)
    for count, message in enumerate(messages[:-1], 1):
        seen.add(message)
        (opening if count == 1 else behind).add(message)
        if not message.is_assistant:
            continue
        known = branches.ends.get(seen.newest.whole)
        if known is not None and known not in deleted:
            found = (known, count)
        elif may_be_cut:
            tail = branches.ending_with(seen.newest, deleted)
            tail = tail or branches.ending_with(behind.newest, deleted, opening.newest.own)
            cut = cut if tail is None else (tail, count)
    return max(found, cut, key=lambda one: one[1])


async def _branches_of(session: Session) -> _Branches:
    branches = _known.setdefault(session.journal, _Branches())
    final = session.journal.final_sequence  # what lies behind may get another place, and has no client yet
    async for entry in session.tree.read_entries(after=branches.read_up_to):
        if entry.sequence > final:
            break
        if entry.sequence > branches.read_up_to:  # another request may have read on meanwhile
            branches.add(entry)
    return branches


def digest_of(messages: Sequence[Message], *named: str) -> str:
    """What conversations have in common that begin with the same messages, as 48 hexadecimal digits.

    Args:
        messages: how they begin.
        named: what else distinguishes them.
    """
    seen = _Seen()
    for message in messages:
        seen.add(message)
    return hashlib.sha256(msgspec.json.encode([*named, seen.newest.whole.hex()])).hexdigest()[:48]
