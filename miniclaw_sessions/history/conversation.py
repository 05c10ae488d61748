"""A session's state as the fold of its entries.

`Conversation.apply` is the one place that knows what an entry does: live appending, catching up with the store at
startup and rebuilding a lost snapshot all go through it, so they cannot disagree. A `Snapshot` is a conversation at one
moment, ready to be written; folding the later entries over it gives the later conversation.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from copy import copy, deepcopy
from datetime import datetime
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import msgspec

from miniclaw_sessions.history.branch import Branch, as_message_entry, provider_of
from miniclaw_sessions.history.window import Kept, Packed, Window
from miniclaw_sessions.protocol.encoding import decode_entry, encode_entry
from miniclaw_sessions.protocol.entries import (
    METADATA,
    BranchSummary,
    Compaction,
    Custom,
    Entry,
    LeafMove,
    MessageEntry,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
    moves_leaf,
    place_of_parent,
)
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.protocol.messages import Role, Usage

REMEMBERED_KEYS = 256
"""How many idempotency keys a session remembers, newest first."""


class Totals(msgspec.Struct, gc=False):
    """What all entries of a transcript add up to, on all branches.

    `events` counts what was saved as one: turns, messages that were saved alone, and compactions (document 001).
    """

    messages: int = 0
    events: int = 0
    usage: Usage | None = None

    def add(self, entry: MessageEntry, sign: int = 1) -> None:
        """Count one more message, or one less when `sign` is -1."""
        self.messages += sign
        if not entry.continues:
            self.events += sign
        if entry.message.usage is not None:
            self.add_usage(entry.message.usage, sign)

    def add_usage(self, usage: Usage, sign: int = 1) -> None:
        """Add what a message cost, or take it away when `sign` is -1."""
        known = self.usage or Usage()
        self.usage = known + usage if sign > 0 else known - usage


class Snapshot(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A conversation at one moment; what a snapshot file holds.

    `complete` is False when accepted entries were left out because the store has not committed them yet. Then the
    window may be short, too: what those entries pushed out of it is only in the store.
    """

    key: SessionKey
    incarnation: str
    created_at: datetime
    updated_at: datetime
    last_accessed: datetime
    kept: Sequence[Kept] = ()
    metadata: Mapping[str, Any] = MappingProxyType({})
    idempotency_keys: Mapping[str, str] = MappingProxyType({})
    leaf_id: str | None = None
    leaf_sequence: int = 0
    last_sequence: int = 0
    compaction: Compaction | None = None
    newest_evicted: int = 0
    totals: Totals = msgspec.field(default_factory=Totals)
    extra: Mapping[str, Any] = MappingProxyType({})
    complete: bool = True

    @property
    def entries(self) -> list[MessageEntry]:
        """The window's messages, read anew."""
        return [kept.entry for kept in self.kept]


class Conversation:
    """The state that a sequence of entries leads to: window, compaction, metadata, leaf, remembered keys.

    A move of the leaf changes the window to another branch's, which only the store knows. Until `rebuild` has been told
    it, `lacks_branch` is true and the window means nothing.
    """

    __slots__ = (
        "_compaction",
        "_metadata",
        "created_at",
        "extra",
        "idempotency_keys",
        "incarnation",
        "key",
        "lacks_branch",
        "lacks_messages",
        "last_accessed",
        "last_sequence",
        "leaf_id",
        "leaf_sequence",
        "state_sequence",
        "totals",
        "updated_at",
        "window",
    )

    def __init__(self, key: SessionKey, *, incarnation: str, created_at: datetime, capacity: int) -> None:
        self.key = key
        self.incarnation = incarnation
        self.created_at = created_at
        self.updated_at = created_at
        self.last_accessed = created_at
        self.window = Window(capacity)
        self.leaf_id: str | None = None
        self.leaf_sequence = 0  # 0 when there is no leaf, or its place is not known
        self.compaction: Compaction | None = None
        self.lacks_branch = False
        self.lacks_messages = False  # as `lacks_branch`, but the compaction and the metadata are right
        self.totals = Totals()
        self.last_sequence = 0
        self.state_sequence = 0  # the newest entry that changed more than the window's tail
        self.idempotency_keys: dict[str, str] | None = None
        self.extra: dict[str, Any] | None = None
        self._metadata: dict[str, Any] | None = None

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot, *, capacity: int) -> Conversation:
        """The conversation that a snapshot was taken of, its window cut to `capacity` by the unit rule."""
        conversation = cls(
            snapshot.key, incarnation=snapshot.incarnation, created_at=snapshot.created_at, capacity=capacity
        )
        conversation.updated_at = snapshot.updated_at
        conversation.last_accessed = snapshot.last_accessed
        conversation.window = Window(capacity, kept=snapshot.kept)
        conversation.window.newest_evicted = max(conversation.window.newest_evicted, snapshot.newest_evicted)
        conversation.leaf_id = snapshot.leaf_id
        conversation.leaf_sequence = snapshot.leaf_sequence
        conversation.compaction = snapshot.compaction
        conversation.totals = copy(snapshot.totals)
        conversation.lacks_messages = not snapshot.complete
        conversation.lacks_branch = not _is_one_branch(snapshot.kept)
        conversation.last_sequence = conversation.state_sequence = snapshot.last_sequence
        conversation.idempotency_keys = dict(snapshot.idempotency_keys) or None
        conversation.extra = dict(snapshot.extra) or None
        conversation._metadata = dict(snapshot.metadata) or None
        return conversation

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Title, model, provider, thinking_level, agent_id and whatever else was set; read-only."""
        return MappingProxyType(self._metadata or {})

    def metadata_with(self, entries: Iterable[Entry]) -> dict[str, Any]:
        """The metadata as these entries would change it."""
        changed = dict(self._metadata or {})
        for entry in entries:
            if not isinstance(entry, MessageEntry):
                changed.update(_metadata_of(entry))
        return {name: value for name, value in changed.items() if value is not None}

    @property
    def compaction(self) -> Compaction | None:
        """The newest compaction of the branch, in a copy that a reader may change."""
        known = self._compaction
        if known is None or not (known.messages or known.extra):
            return known
        copied = decode_entry(encode_entry(known))
        assert isinstance(copied, Compaction)  # noqa: S101 - as it was
        return copied

    @compaction.setter
    def compaction(self, compaction: Compaction | None) -> None:
        self._compaction = compaction

    @property
    def window_is_whole(self) -> bool:
        """Whether the window holds all that a model is told of the branch, and not only the newest of it."""
        if self._compaction is None:
            return self.window.newest_evicted == 0
        return self.window.newest_evicted < self.kept_from

    @property
    def kept_from(self) -> int:
        """The sequence number from which on entries are kept by the newest compaction of the branch; 0 without one."""
        compaction = self._compaction
        if compaction is None:
            return 0
        return compaction.sequence if compaction.first_kept_entry_id is None else compaction.first_kept_sequence or 0

    def branch(self) -> Branch:
        """What is in memory of the branch: the window's messages, with the compaction at its place among them."""
        entries: list[Entry] = list(self.window)
        compaction = self.compaction
        if compaction is not None:
            entries.insert(bisect(entries, compaction.sequence, key=lambda entry: entry.sequence), compaction)
        return Branch(entries=tuple(entries), compaction=compaction)

    def apply(self, entry: Entry, encoded: bytes | None = None) -> int:
        """Fold one more entry in; return how many messages left the window for it.

        Args:
            entry: the entry.
            encoded: where it is a message's: the message's JSON, if that is known already.
        """
        self.last_sequence = entry.sequence
        if entry.timestamp > self.updated_at:  # noqa: PLR1730 - the path of every append: max() costs twice
            self.updated_at = entry.timestamp
        if entry.timestamp > self.last_accessed:  # noqa: PLR1730 - same
            self.last_accessed = entry.timestamp
        if entry.parent_id != self.leaf_id and moves_leaf(entry) and not isinstance(entry, LeafMove):
            self._change_branch(entry)
        if isinstance(entry, MessageEntry):
            self.leaf_id = entry.id
            self.leaf_sequence = entry.sequence
            totals, message = self.totals, entry.message
            totals.messages += 1  # `Totals.add`, written out: this is the path of every append
            if not entry.continues:
                totals.events += 1
            if message.usage is not None:
                totals.add_usage(message.usage)
            if entry.idempotency_key is not None:
                self._remember(entry.idempotency_key, entry.id)
            if message.model is not None and message.role is Role.ASSISTANT:
                self._note_model(entry)
            return self.window.push(entry, encoded)
        return self._apply_event(entry)

    def _apply_event(self, entry: Entry) -> int:
        """Fold in an entry that is not a message."""
        self.state_sequence = entry.sequence
        if isinstance(entry, Custom) and entry.idempotency_key is not None:
            self._remember(entry.idempotency_key, entry.id)
        if isinstance(entry, LeafMove):
            self._move_leaf(entry)
            return 0
        if moves_leaf(entry):
            self.leaf_id, self.leaf_sequence = entry.id, entry.sequence
        if isinstance(entry, BranchSummary):
            told = as_message_entry(entry)
            return 0 if told is None else self.window.push(told)
        if isinstance(entry, Compaction):
            self._compact(entry)
        else:
            self._set_metadata(_metadata_of(entry))
        return 0

    def _note_model(self, entry: MessageEntry) -> None:
        """Whoever answered is the model in force."""
        known = self._metadata or {}
        provider, model = provider_of(entry.message) or known.get("provider"), entry.message.model
        if (known.get("provider"), known.get("model")) != (provider, model):
            self.state_sequence = entry.sequence
            self._set_metadata({"provider": provider, "model": model})

    def _move_leaf(self, move: LeafMove) -> None:
        self.leaf_id, self.leaf_sequence = move.target_id, move.target_sequence or 0
        self.window.clear()
        self.compaction = None
        self.lacks_branch = move.target_id is not None

    def _change_branch(self, entry: Entry) -> None:
        """The entry follows another than the leaf: the files of other programs tell a branch in this way alone.

        What the window has from before the parent is of both branches; the store knows the rest.
        """
        place = place_of_parent(entry)
        self.window.keep_to(place)
        if self.compaction is not None and self.compaction.sequence > place:
            self.compaction = None
        self.state_sequence = entry.sequence
        self.lacks_branch = True

    def _compact(self, compaction: Compaction) -> None:
        self.totals.events += 1
        self.compaction = compaction
        self.window.keep_from(
            compaction.sequence
            if compaction.first_kept_entry_id is None
            else compaction.first_kept_sequence or self._place_in_window(compaction.first_kept_entry_id)
        )

    def _place_in_window(self, entry_id: str) -> int:
        return next((entry.sequence for entry in self.window.kept if entry.id == entry_id), 0)

    def rebuild(self, branch: Branch) -> None:
        """Take the window of the branch that the leaf is on, as the store has it."""
        entries = [as_message_entry(e) for e in branch.entries if isinstance(e, MessageEntry | BranchSummary)]
        self.window = Window(self.window.capacity, (entry for entry in entries if entry is not None))
        if not branch.is_whole and branch.entries:
            self.window.newest_evicted = max(self.window.newest_evicted, branch.entries[0].sequence - 1)
        if self.lacks_branch:
            self.compaction = branch.compaction
            self._set_metadata(
                {"provider": branch.provider, "model": branch.model, "thinking_level": branch.thinking_level}
            )
        self.lacks_branch = self.lacks_messages = False

    def capture(self, committed: int) -> Snapshot | None:
        """What a snapshot may say when the store has committed everything up to `committed`.

        A snapshot is never ahead of the store: younger messages are left out. None when that cannot be done yet,
        because a younger entry changed more than the window's tail, has left the window already (folding it in again
        would bring back what it answers), or because nothing in a full window is committed.
        """
        if self.state_sequence > committed or self.lacks_branch or self.lacks_messages:
            return None
        entries = self.window.for_snapshot
        keys = self.idempotency_keys or {}
        complete = self.last_sequence <= committed
        leaf_id, leaf_sequence, totals = self.leaf_id, self.leaf_sequence, copy(self.totals)
        if not complete:
            younger = [entry for entry in entries if entry.sequence > committed]
            if len(younger) != self.last_sequence - committed or len(younger) == self.window.capacity:
                return None
            entries = entries[: -len(younger)]
            younger_ids = {entry.id for entry in younger}
            keys = {key: entry_id for key, entry_id in keys.items() if entry_id not in younger_ids}
            leaf_id, leaf_sequence = younger[0].parent_id, place_of_parent(younger[0])
            for entry in younger:
                totals.add(entry.entry, -1)
        return Snapshot(
            key=self.key,
            incarnation=self.incarnation,
            created_at=self.created_at,
            updated_at=self.updated_at,
            last_accessed=self.last_accessed,
            kept=entries,
            metadata=dict(self._metadata or {}),
            idempotency_keys=dict(keys),
            leaf_id=leaf_id,
            leaf_sequence=leaf_sequence,
            last_sequence=min(self.last_sequence, committed),
            compaction=self._compaction,
            newest_evicted=self.window.newest_evicted,
            totals=totals,
            extra=dict(self.extra or {}),
            complete=complete,
        )

    def _remember(self, key: str, entry_id: str) -> None:
        if self.idempotency_keys is None:
            self.idempotency_keys = {}
        self.idempotency_keys[key] = entry_id
        if len(self.idempotency_keys) > REMEMBERED_KEYS:
            del self.idempotency_keys[next(iter(self.idempotency_keys))]

    def _set_metadata(self, changes: Mapping[str, Any]) -> None:
        merged = {**(self._metadata or {}), **changes}
        self._metadata = {name: value for name, value in merged.items() if value is not None} or None


def _is_one_branch(entries: Sequence[Kept]) -> bool:
    """Whether each can follow the one before; a window of an older version may hold messages of several branches."""
    return isinstance(entries, Packed) or all(
        child.parent_id is not None and (child.parent_sequence is None or child.parent_sequence >= parent.sequence)
        for parent, child in pairwise(entries)
    )


def _metadata_of(entry: Entry) -> Mapping[str, Any]:
    """What an entry sets in the session's metadata; an empty text removes a key, as None does."""
    match entry:
        case SessionInfo():
            return {"title": entry.name or None}
        case ModelChange():
            return {"provider": entry.provider or None, "model": entry.model_id or None}
        case ThinkingLevelChange():
            return {"thinking_level": entry.thinking_level or None}
        case Custom(custom_type=custom_type) if custom_type == METADATA:
            return deepcopy(entry.data)  # whoever made the entry may go on changing its lists
        case _:
            return {}
