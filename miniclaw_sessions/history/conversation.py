"""A session's state as the fold of its entries.

`Conversation.apply` is the one place that knows what an entry does: live appending, catching up with the store at
startup and rebuilding a lost snapshot all go through it, so they cannot disagree. A `Snapshot` is a conversation at one
moment, ready to be written; folding the later entries over it gives the later conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from datetime import datetime
from types import MappingProxyType
from typing import Any

import msgspec

from miniclaw_sessions.history.window import Window
from miniclaw_sessions.protocol.entries import (
    METADATA,
    Custom,
    Entry,
    LeafMove,
    MessageEntry,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
)
from miniclaw_sessions.protocol.keys import SessionKey

REMEMBERED_KEYS = 256
"""How many idempotency keys a session remembers, newest first."""


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
    entries: tuple[MessageEntry, ...] = ()
    metadata: Mapping[str, Any] = MappingProxyType({})
    idempotency_keys: Mapping[str, str] = MappingProxyType({})
    leaf_id: str | None = None
    last_sequence: int = 0
    extra: Mapping[str, Any] = MappingProxyType({})
    complete: bool = True


class Conversation:
    """The state that a sequence of entries leads to: window, metadata, leaf, remembered keys."""

    __slots__ = (
        "_metadata",
        "created_at",
        "extra",
        "idempotency_keys",
        "incarnation",
        "key",
        "last_accessed",
        "last_sequence",
        "leaf_id",
        "state_sequence",
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
        conversation.window = Window(capacity, snapshot.entries)
        conversation.leaf_id = snapshot.leaf_id
        conversation.last_sequence = conversation.state_sequence = snapshot.last_sequence
        conversation.idempotency_keys = dict(snapshot.idempotency_keys) or None
        conversation.extra = dict(snapshot.extra) or None
        conversation._metadata = dict(snapshot.metadata) or None
        return conversation

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Title, model, provider, thinking_level, agent_id and whatever else was set; read-only."""
        return MappingProxyType(self._metadata or {})

    def apply(self, entry: Entry) -> int:
        """Fold one more entry in; return how many messages left the window for it."""
        self.last_sequence = entry.sequence
        self.leaf_id = entry.id
        if entry.timestamp > self.updated_at:  # noqa: PLR1730 - the path of every append: max() costs twice
            self.updated_at = entry.timestamp
        if entry.timestamp > self.last_accessed:  # noqa: PLR1730 - same
            self.last_accessed = entry.timestamp
        if isinstance(entry, MessageEntry):
            if entry.idempotency_key is not None:
                self._remember(entry.idempotency_key, entry.id)
            return self.window.push(entry)
        self.state_sequence = entry.sequence
        if isinstance(entry, LeafMove):
            self.leaf_id = entry.target_id
            if entry.target_id is None:
                self.window.clear()
        else:
            self._set_metadata(_metadata_of(entry))
        return 0

    def capture(self, committed: int) -> Snapshot | None:
        """What a snapshot may say when the store has committed everything up to `committed`.

        A snapshot is never ahead of the store: younger messages are left out. None when that cannot be done yet,
        because a younger entry changed more than the window's tail, has left the window already (folding it in again
        would bring back what it answers), or because nothing in a full window is committed.
        """
        if self.state_sequence > committed:
            return None
        entries = tuple(self.window)
        keys = self.idempotency_keys or {}
        complete = self.last_sequence <= committed
        leaf_id = self.leaf_id
        if not complete:
            younger = [entry for entry in entries if entry.sequence > committed]
            if len(younger) != self.last_sequence - committed or len(younger) == self.window.capacity:
                return None
            entries = entries[: -len(younger)]
            younger_ids = {entry.id for entry in younger}
            keys = {key: entry_id for key, entry_id in keys.items() if entry_id not in younger_ids}
            leaf_id = younger[0].parent_id
        return Snapshot(
            key=self.key,
            incarnation=self.incarnation,
            created_at=self.created_at,
            updated_at=self.updated_at,
            last_accessed=self.last_accessed,
            entries=entries,
            metadata=dict(self._metadata or {}),
            idempotency_keys=dict(keys),
            leaf_id=leaf_id,
            last_sequence=min(self.last_sequence, committed),
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
