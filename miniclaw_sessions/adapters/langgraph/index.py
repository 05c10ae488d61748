"""Where a session's checkpoints stand: kept in memory, and brought up to the transcript's end before it is asked.

It holds places, not values: some hundred bytes for a checkpoint. It is built by reading the transcript once, and from
then on only the newer entries of any writer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import AsyncGenerator, Container, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import NamedTuple

import anyio
import msgspec

from miniclaw_sessions.adapters.chats import Chat
from miniclaw_sessions.adapters.langgraph.reading import Known
from miniclaw_sessions.adapters.langgraph.records import (
    CHECKPOINT,
    FORGET,
    WRITES,
    Header,
    MessageList,
    Place,
    Version,
)
from miniclaw_sessions.core.protocol.entries import METADATA
from miniclaw_sessions.core.stores.base import StoredEntry

Channel = tuple[str, str, Version]
"""A channel at one version: its namespace, its name, the version."""

CheckpointId = tuple[str, str]
"""A checkpoint: its namespace and its id."""


class StoredCheckpoint(NamedTuple):
    """A checkpoint's record."""

    place: Place
    parent: str | None
    run_id: str | None


class StoredValue(NamedTuple):
    """One value of a record."""

    place: Place
    number: int


class StoredWrite(NamedTuple):
    """One pending write: a value of a record, and the channel that it is for."""

    path: str
    channel: str
    value: StoredValue


class StoredMessage(NamedTuple):
    """One message of a list: its form for other frameworks, and LangGraph's own if it differs."""

    entry_id: str | None
    value: StoredValue | None


class StoredList(NamedTuple):
    """A version of a channel of messages: the first `keep` of the version `base`, and what is added to them.

    Attributes:
        sequence: where its record stands.
        base, keep, added: what it is put together of.
        said: the places of the messages that the graph said with it.
        until: a place; the graph has got every message up to it.
    """

    sequence: int
    base: Version | None
    keep: int
    added: Sequence[StoredMessage]
    said: range
    until: int


class _Glimpse(msgspec.Struct):
    """As much of an entry as says what it is and where it hangs."""

    type: str
    id: str
    parent_id: str | None = None
    parent_sequence: int | None = None
    target_sequence: int | None = None
    custom_type: str = ""


class _Record(msgspec.Struct):
    data: Header


_glimpse = msgspec.json.Decoder(_Glimpse).decode
_record = msgspec.json.Decoder(_Record).decode


class Index:
    """What one session has of LangGraph's.

    Attributes:
        incarnation: which session it is about; another one of the same name has another index.
        lock: held while entries are folded in or appended.
        checkpoints: all checkpoints that were not deleted.
        values: the value of a channel at a version.
        writes: the pending writes of a checkpoint, by task and number.
        lists: the versions of channels of messages.
        messages: the place of every message entry, by id.
        known: the version of a channel of messages that was read or written last, and what is known of its messages.
        offered: what a graph was given last of what others said; None: not known since the index was built.
    """

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.lock = anyio.Lock()
        self.counted = 0  # its size when it was last looked at
        self._folded = 0
        self._leaf = 0
        self._forget()
        self.known: tuple[Channel | None, Sequence[Known]] = (None, ())
        self.offered: Sequence[Known] | None = None
        self.messages: dict[str, int] = {}
        self._order: list[str] = []  # the keys of `messages`
        self._stretches: list[tuple[int, int]] = []  # where each stretch without a jump begins, and its parent's place

    def _forget(self) -> None:
        self.checkpoints: dict[CheckpointId, StoredCheckpoint] = {}
        self.values: dict[Channel, StoredValue] = {}
        self.writes: dict[CheckpointId, dict[tuple[str, int], StoredWrite]] = {}
        self.lists: dict[Channel, StoredList] = {}
        self._latest: dict[str, str] = {}  # by namespace; empty without one

    @property
    def size(self) -> int:
        """About how many things it holds."""
        return len(self.checkpoints) + len(self.values) + len(self.writes) + len(self.lists) + len(self.messages)

    async def catch_up(self, chat: Chat, last_sequence: int) -> None:
        """Fold in what was appended since; hold the lock.

        Args:
            chat: the session.
            last_sequence: its newest entry's.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        while self._folded < last_sequence:
            page = await chat.read_after(self._folded)
            if not page:
                break
            for stored in page:
                self._fold(stored)
                self._folded = stored.sequence

    @contextmanager
    def moved(self, place: int | None) -> Generator[None, None, None]:
        """The index as it will be when the session has gone back to a place; None: as it is.

        What is raised within the block says that the session has not moved.
        """
        if place is None:
            yield
            return
        before = self._leaf
        self._go_to(place)
        try:
            yield
        except BaseException:
            self._go_to(before)
            raise

    def _go_to(self, place: int) -> None:
        if place != self._leaf:
            self._leaf = place
            self._latest.clear()

    def add(self, first: int, message_ids: Sequence[str], kind: str, header: Header, *, has_moved: bool) -> None:
        """Fold in a record that was just appended, so that it need not be read.

        Args:
            first: the place of the first of its entries; if others came in between, it is read after them.
            message_ids: of the message entries in front of its pieces.
            kind: of the record.
            header: its header.
            has_moved: whether a move of the leaf stands in front of it, which the index has followed (`moved`).
        """
        if first != self._folded + 1 + has_moved:
            return
        self._go_on(first, self._leaf)
        for place, entry_id in enumerate(message_ids, first):
            self._add_message(entry_id, place)
        self._leaf = self._folded = first + len(message_ids) + header.pieces
        self._add_record(kind, header, self._folded)

    def latest(self, namespace: str) -> str | None:
        """The id of the newest checkpoint on the current branch."""
        if namespace not in self._latest:
            branch = self._branch()
            own = ((id_, found.place.sequence) for (ns, id_), found in self.checkpoints.items() if ns == namespace)
            self._latest[namespace] = max((id_ for id_, sequence in own if _is_in(branch, sequence)), default="")
        return self._latest[namespace] or None

    def first_place(self, namespace: str) -> int | None:
        """Where the oldest checkpoint of the current branch stands."""
        branch = self._branch()
        places = (found.place.sequence for (ns, _), found in self.checkpoints.items() if ns == namespace)
        return min((sequence for sequence in places if _is_in(branch, sequence)), default=None)

    def newest_list(self, namespace: str, name: str, end: int | None = None) -> Channel | None:
        """The newest version of a channel of messages on the current branch, up to a place."""
        branch = self._branch()
        return next(
            (
                channel
                for channel, found in reversed(self.lists.items())
                if channel[:2] == (namespace, name)
                and (end is None or found.sequence <= end)
                and _is_in(branch, found.sequence)
            ),
            None,
        )

    def new_messages(self, namespace: str, name: str) -> list[str]:
        """The ids of the current branch's messages that its versions of a channel have not taken up, in order.

        A version behind the newest checkpoint belongs to one that was forgotten. What others said and it took up is
        new again; what the graph said with it is not.
        """
        latest = self.latest(namespace)
        end = 0 if latest is None else self.checkpoints[namespace, latest].place.sequence
        newest = self.newest_list(namespace, name, end)
        until = 0 if newest is None else self.lists[newest].until
        branch = self._branch()
        taken: set[str] = set()
        for channel, found in reversed(self.lists.items()):
            if found.sequence <= until:
                break
            if channel[:2] == (namespace, name) and _is_in(branch, found.sequence):
                ids = {message.entry_id for message in found.added if message.entry_id is not None}
                is_kept = found.sequence <= end
                taken |= ids if is_kept else {id_ for id_ in ids if self.messages.get(id_) in found.said}
        since = self._order[bisect_right(self._order, until, key=self.messages.__getitem__) :]
        return [id_ for id_ in since if id_ not in taken and _is_in(branch, self.messages[id_])]

    def taken_until(self, channel: Channel, taken: Container[str | None]) -> str:
        """What a new version of a channel says of itself as its `until`.

        It names the last message that is known now: others may append more in front of the record, which no graph got.

        Args:
            channel: the new version.
            taken: the ids of the entries that are in it.
        """
        new = self.new_messages(*channel[:2])
        last = max((place for place, id_ in enumerate(new) if id_ in taken), default=-1)
        end = len(self._order)
        if last + 1 < len(new):
            end = bisect_left(self._order, self.messages[new[last + 1]], key=self.messages.__getitem__)
        branch = self._branch()
        before = (self._order[place] for place in range(end - 1, -1, -1))
        return next((id_ for id_ in before if _is_in(branch, self.messages[id_])), "")

    def resolve(self, channel: Channel) -> list[StoredMessage] | None:
        """Where the messages of a version stand; None where a part is missing."""
        found: list[StoredMessage] = []
        namespace, name, version = channel
        needed: int | None = None
        while needed is None or needed > 0:
            stored = self.lists.get((namespace, name, version))
            if stored is None:
                return None
            added = stored.added if needed is None else stored.added[: max(0, needed - stored.keep)]
            found += reversed(added)
            needed = stored.keep if needed is None else min(needed, stored.keep)
            if needed and stored.base is None:
                return None
            version = stored.base if stored.base is not None else version
        return found[::-1]

    # --- folding -----------------------------------------------------------------------------------------------------

    def _fold(self, stored: StoredEntry) -> None:
        try:
            entry = _glimpse(stored.encoded)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return  # damaged: the next entry says where it hangs
        if entry.type == "leaf":
            self._go_to(entry.target_sequence or 0)
            return
        if entry.type == "custom" and entry.custom_type == METADATA:
            return
        self._go_on(stored.sequence, 0 if entry.parent_id is None else entry.parent_sequence or stored.sequence - 1)
        if entry.type == "message":
            self._add_message(entry.id, stored.sequence)
        elif entry.type == "custom" and entry.custom_type in (CHECKPOINT, WRITES, FORGET):
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # of another program, or damaged
                self._add_record(entry.custom_type, _record(stored.encoded).data, stored.sequence)

    def _go_on(self, sequence: int, parent: int) -> None:
        if parent != sequence - 1 or not self._stretches:
            self._stretches.append((sequence, parent))
        self._leaf = sequence

    def _add_message(self, entry_id: str, sequence: int) -> None:
        self.messages[entry_id] = sequence
        self._order.append(entry_id)

    def _add_record(self, kind: str, header: Header, sequence: int) -> None:
        place = Place(sequence, header.pieces)
        checkpoint = (header.namespace, header.id)
        if kind == CHECKPOINT:
            self.checkpoints[checkpoint] = StoredCheckpoint(place, header.parent, header.run_id)
            if header.namespace in self._latest:  # what was appended is on the branch
                self._latest[header.namespace] = max(self._latest[header.namespace], header.id)
            for number, (name, version) in enumerate(header.channels, 2):
                self.values[header.namespace, name, version] = StoredValue(place, number)
            if header.messages is not None:
                self._add_list(header.namespace, header.messages, place)
        elif kind == WRITES:
            writes = self.writes.setdefault(checkpoint, {})
            for number, (index, channel) in enumerate(header.writes):
                writes[header.task, index] = StoredWrite(header.path, channel, StoredValue(place, number))
        elif header.checkpoints is None:
            self._forget()
        else:
            for forgotten in header.checkpoints:
                self.checkpoints.pop(forgotten, None)
                self.writes.pop(forgotten, None)
            self._latest.clear()

    def _add_list(self, namespace: str, messages: MessageList, place: Place) -> None:
        behind = place.sequence - place.pieces
        said = range(behind - messages.said, behind)
        added: list[StoredMessage] = []
        for reference in messages.add:
            entry_id = reference.entry
            if reference.said is not None:
                sequence = said.start + reference.said
                found = bisect_left(self._order, sequence, key=self.messages.__getitem__)
                is_there = found < len(self._order) and self.messages[self._order[found]] == sequence
                entry_id = self._order[found] if is_there else None
            value = None if reference.value is None else StoredValue(place, reference.value)
            added.append(StoredMessage(entry_id, value))
        self.lists[namespace, messages.channel, messages.version] = StoredList(
            place.sequence,
            messages.base,
            messages.keep,
            added,
            said,
            place.sequence if messages.until is None else self.messages.get(messages.until, 0),
        )

    def _branch(self) -> list[range]:
        """The places of the current branch, as stretches, newest first."""
        branch: list[range] = []
        end = self._leaf
        while end > 0:
            found = bisect_right(self._stretches, (end, end)) - 1
            if found < 0:
                break
            start, parent = self._stretches[found]
            branch.append(range(start, end + 1))
            end = min(parent, start - 1)  # damage cannot make it run in a circle
        return branch


class Indexes:
    """The indexes of the sessions that were used last.

    Args:
        limit: how many places are held in memory, for all sessions together; those of the newest session always are.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._indexes: OrderedDict[str, Index] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._indexes)

    @asynccontextmanager
    async def of(self, chat: Chat) -> AsyncGenerator[Index, None]:
        """A session's index, up to its end, and to oneself.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        state = await chat.state()
        index = self._indexes.get(chat.session_id)
        if index is None or index.incarnation != state.incarnation:
            self._size -= 0 if index is None else index.counted
            index = self._indexes[chat.session_id] = Index(state.incarnation)
        self._indexes.move_to_end(chat.session_id)
        async with index.lock:
            try:
                await index.catch_up(chat, state.last_sequence)
                yield index
            finally:
                self._count(chat.session_id, index)

    def _count(self, session_id: str, index: Index) -> None:
        if self._indexes.get(session_id) is not index:
            return  # it was let go meanwhile
        self._size += index.size - index.counted
        index.counted = index.size
        while self._size > self.limit and len(self._indexes) > 1:
            self._size -= self._indexes.popitem(last=False)[1].counted


def _is_in(branch: list[range], sequence: int) -> bool:
    return any(sequence in stretch for stretch in branch)


def ordered(writes: dict[tuple[str, int], StoredWrite]) -> Iterator[tuple[str, StoredWrite]]:
    """Pending writes in the order in which a live run applies them, each with its task."""
    for task, index in sorted(writes, key=lambda key: (writes[key].path, *key)):
        yield task, writes[task, index]
