"""Where a session's checkpoints stand: kept in memory, and brought up to the transcript's end before it is asked.

It holds places, not values: some hundred bytes for a checkpoint. It is built by reading the transcript once, and from
then on only what was appended since, by whomever.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import anyio
import msgspec

from miniclaw_sessions.adapters.langgraph.messages import Known
from miniclaw_sessions.adapters.langgraph.records import (
    CHECKPOINT,
    FORGET,
    WRITES,
    Header,
    MessageList,
    Place,
    Reference,
    Version,
)
from miniclaw_sessions.protocol.entries import METADATA
from miniclaw_sessions.session import Session
from miniclaw_sessions.stores.base import StoredEntry
from miniclaw_sessions.stores.reading import PAGE

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


class StoredMessages(NamedTuple):
    """A version of a channel of messages, and the place of its record."""

    place: Place
    messages: MessageList


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
        unseen: the message entries that no list ever named: others wrote them, and no graph has taken them up.
        known: the version of a channel of messages that was read or written last.
        offered: what a graph was given of `unseen` last.
        altered: the ids of those that it was given in other words.
    """

    def __init__(self, session: Session) -> None:
        self.incarnation = session.journal.incarnation
        self.lock = anyio.Lock()
        self._folded = 0
        self._leaf = 0
        self._forget()
        self.known: tuple[Channel, list[Known]] | None = None
        self.offered: list[Known] = []
        self.altered: tuple[str, ...] = ()
        self.messages: dict[str, int] = {}
        self.unseen: dict[str, int] = {}
        self._stretches: list[tuple[int, int]] = []  # where each stretch without a jump begins, and its parent's place

    def _forget(self) -> None:
        self.checkpoints: dict[CheckpointId, StoredCheckpoint] = {}
        self.values: dict[Channel, StoredValue] = {}
        self.writes: dict[CheckpointId, dict[tuple[str, int], StoredWrite]] = {}
        self.lists: dict[Channel, StoredMessages] = {}
        self._latest: dict[str, str] = {}  # by namespace; empty where there is none

    @property
    def size(self) -> int:
        """About how many things it holds."""
        return len(self.checkpoints) + len(self.values) + len(self.writes) + len(self.lists) + len(self.messages)

    async def catch_up(self, session: Session) -> None:
        """Fold in what was appended since; hold the lock.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        while self._folded < session.last_sequence:
            page = await session.tree.read_after(self._folded, PAGE)
            if not page:
                break
            for stored in page:
                self._fold(stored)
                self._folded = stored.sequence

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

    def unseen_on_branch(self) -> dict[str, int]:
        """The message entries of the current branch that no graph has taken up, in order, with their places."""
        branch = self._branch()
        return {id_: sequence for id_, sequence in self.unseen.items() if _is_in(branch, sequence)}

    def newest_list(self, channel: Channel) -> Channel | None:
        """The newest version of a channel of messages on the current branch."""
        branch = self._branch()
        return next(
            (
                found
                for found in reversed(self.lists)
                if found[:2] == channel[:2] and _is_in(branch, self.lists[found].place.sequence)
            ),
            None,
        )

    def resolve(self, channel: Channel) -> list[tuple[Place, Reference]] | None:
        """The references of a list of messages, each with the place of its record; None where a part is missing."""
        found: list[tuple[Place, Reference]] = []
        namespace, name, version = channel
        needed: int | None = None
        while needed is None or needed > 0:
            stored = self.lists.get((namespace, name, version))
            if stored is None:
                return None
            messages = stored.messages
            added = messages.add if needed is None else messages.add[: max(0, needed - messages.keep)]
            found += [(stored.place, reference) for reference in reversed(added)]
            needed = messages.keep if needed is None else min(needed, messages.keep)
            if needed and messages.base is None:
                return None
            version = messages.base if messages.base is not None else version
        return found[::-1]

    # --- folding -----------------------------------------------------------------------------------------------------

    def _fold(self, stored: StoredEntry) -> None:
        try:
            entry = _glimpse(stored.encoded)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return  # damaged: the next entry says where it hangs
        self._place(entry, stored.sequence)
        if entry.type == "message":
            self.messages[entry.id] = self.unseen[entry.id] = stored.sequence
        elif entry.type == "custom" and entry.custom_type in (CHECKPOINT, WRITES, FORGET):
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # somebody else's, or damaged
                self._fold_record(entry.custom_type, _record(stored.encoded).data, stored.sequence)

    def _place(self, entry: _Glimpse, sequence: int) -> None:
        if entry.type == "leaf":
            self._leaf = entry.target_sequence or 0
            self._latest.clear()
            return
        if entry.type == "custom" and entry.custom_type == METADATA:
            return
        parent = 0 if entry.parent_id is None else entry.parent_sequence or sequence - 1
        if parent != sequence - 1 or not self._stretches:
            self._stretches.append((sequence, parent))
        self._leaf = sequence

    def _fold_record(self, kind: str, header: Header, sequence: int) -> None:
        place = Place(sequence, header.pieces)
        checkpoint = (header.namespace, header.id)
        if kind == CHECKPOINT:
            self.checkpoints[checkpoint] = StoredCheckpoint(place, header.parent, header.run_id)
            if header.namespace in self._latest:  # what was appended is on the branch
                self._latest[header.namespace] = max(self._latest[header.namespace], header.id)
            for number, (name, version) in enumerate(header.channels, 2):
                self.values[header.namespace, name, version] = StoredValue(place, number)
            if header.messages is not None:
                self._fold_messages(header.namespace, header.messages, place)
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

    def _fold_messages(self, namespace: str, messages: MessageList, place: Place) -> None:
        self.lists[namespace, messages.channel, messages.version] = StoredMessages(place, messages)
        for entry_id in (*(reference.entry for reference in messages.add), *messages.seen):
            self.unseen.pop(entry_id or "", None)

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

    def __len__(self) -> int:
        return len(self._indexes)

    @asynccontextmanager
    async def of(self, session: Session) -> AsyncGenerator[Index, None]:
        """A session's index, up to its end, and to oneself.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        index = self._indexes.get(session.session_id)
        if index is None or index.incarnation != session.journal.incarnation:
            index = self._indexes[session.session_id] = Index(session)
        self._indexes.move_to_end(session.session_id)
        async with index.lock:
            await index.catch_up(session)
            yield index
        size = sum(each.size for each in self._indexes.values())
        while size > self.limit and len(self._indexes) > 1:
            size -= self._indexes.popitem(last=False)[1].size


def _is_in(branch: list[range], sequence: int) -> bool:
    return any(sequence in stretch for stretch in branch)


def ordered(writes: dict[tuple[str, int], StoredWrite]) -> Iterator[tuple[str, StoredWrite]]:
    """Pending writes in the order in which a live run applies them, each with its task."""
    for task, index in sorted(writes, key=lambda key: (writes[key].path, *key)):
        yield task, writes[task, index]
