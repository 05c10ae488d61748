"""A session's state as the fold of its entries.

`Conversation.apply` is the only place that defines the effect of an entry: live appends, catching up with the store at
startup and rebuilding a lost snapshot all use it, so they cannot disagree. A `Snapshot` is a conversation at one
moment, ready to be written; applying the later entries to it gives the later conversation.
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from datetime import datetime
from itertools import islice, pairwise
from typing import Any

import msgspec

from miniclaw_sessions.core.history.branch import Branch, as_message_entry
from miniclaw_sessions.core.history.state import NO_COMPACTION, Snapshot, State, said_at
from miniclaw_sessions.core.history.window import Packed, Window
from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.protocol.entries import (
    COPIES,
    FORK,
    INCOMPLETE,
    METADATA,
    SPENT,
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
    without_wrong_texts,
)
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Role, message_from_dict, provider_of
from miniclaw_sessions.errors import InvalidMessage

REMEMBERED_KEYS = 256
"""The number of idempotency keys that a session remembers."""


class Conversation:
    """The state after a sequence of entries, and the window.

    A move of the leaf changes the window to that of another branch, which only the store has. Until `rebuild` gets that
    branch, `lacks_branch` is true and the window has no meaning.

    Attributes:
        state: the state; a snapshot has a copy of it.
        window: the newest messages.
        extra: further fields of the session's file.
        lacks_branch: whether `rebuild` must be called.
        lacks_messages: the same, while the compaction and the metadata are right.
        state_sequence: the newest entry that changed more than the window's tail.
        branch_changes: how often the messages that a model sees changed in another way than by more of them at the end.
    """

    __slots__ = (
        *("__weakref__", "_forgotten_keys", "branch_changes", "extra", "lacks_branch", "lacks_messages", "state"),
        *("state_sequence", "window"),
    )

    def __init__(self, state: State, window: Window, extra: Mapping[str, Any] | None = None) -> None:
        self.state = state
        self.window = window
        self.extra = extra
        self.lacks_branch = self.lacks_messages = False
        self.state_sequence = state.last_sequence
        self.branch_changes = 0
        # the newest that were forgotten: a snapshot that leaves out what has pushed them out has them again
        self._forgotten_keys: deque[tuple[str, str]] | None = None

    @classmethod
    def new(cls, key: SessionKey, *, incarnation: str, created_at: datetime, capacity: int) -> Conversation:
        """A conversation without entries."""
        return cls(State.new(key, incarnation=incarnation, created_at=created_at), Window(capacity))

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot, *, capacity: int) -> Conversation:
        """The conversation of a snapshot, with its window cut to `capacity` by whole units."""
        window = Window(capacity, kept=snapshot.kept)
        window.newest_evicted = max(window.newest_evicted, snapshot.state.newest_evicted)
        conversation = cls(snapshot.state.copy(complete=True), window, snapshot.extra or None)
        conversation.lacks_messages = not snapshot.state.complete
        is_one_branch = isinstance(snapshot.kept, Packed) or all(
            child.parent_id is not None and (child.parent_sequence is None or child.parent_sequence >= parent.sequence)
            for parent, child in pairwise(snapshot.kept)
        )
        conversation.lacks_branch = not is_one_branch  # a window of an older version may hold several branches
        return conversation

    def metadata_with(self, entries: Iterable[Entry]) -> dict[str, Any]:
        """The metadata after these entries."""
        changed = dict(self.state.metadata)
        for entry in entries:
            if not isinstance(entry, MessageEntry):
                changed.update(_metadata_of(entry))
        return {name: value for name, value in changed.items() if value is not None}

    @property
    def window_is_whole(self) -> bool:
        """Whether the window holds all that a model sees of the branch, and not only the newest messages."""
        if self.state.encoded_compaction is NO_COMPACTION:
            return self.window.newest_evicted == 0
        return self.window.newest_evicted < self.kept_from

    @property
    def kept_from(self) -> int:
        """The sequence of the first entry that the branch's newest compaction keeps; 0 without a compaction."""
        compaction = self.state.compaction
        if compaction is None:
            return 0
        return compaction.sequence if compaction.first_kept_entry_id is None else compaction.first_kept_sequence or 0

    def branch(self) -> Branch:
        """The part of the branch in memory: the window's messages, with the compaction at its place."""
        entries: list[Entry] = list(self.window)
        compaction = self.state.compaction
        if compaction is not None:
            entries.insert(bisect(entries, compaction.sequence, key=lambda entry: entry.sequence), compaction)
        return Branch(entries=tuple(entries), compaction=compaction)

    def apply(self, entry: Entry, encoded: bytes | None = None) -> int:
        """Apply one more entry. Returns how many messages left the window for it.

        Args:
            entry: the entry.
            encoded: its JSON, if it was just made.
        """
        state, timestamp = self.state, entry.timestamp
        state.last_sequence = entry.sequence
        if timestamp > state.updated_at:  # noqa: PLR1730 - the path of every append: max() costs twice
            state.updated_at = timestamp
        if timestamp > state.last_accessed:  # noqa: PLR1730 - same
            state.last_accessed = timestamp
        if entry.idempotency_key is not None:
            self._remember_key(entry.idempotency_key, entry.id)
        if entry.parent_id != state.leaf_id and moves_leaf(entry) and not isinstance(entry, LeafMove):
            self._change_branch(entry)
        if isinstance(entry, MessageEntry):
            state.leaf_id = entry.id
            state.leaf_sequence = entry.sequence
            totals, message = state.totals, entry.message
            totals.messages += 1  # `Totals.add`, inlined: this is the path of every append
            if not entry.continues:
                totals.events += 1
            if message.usage is not None:
                totals.add_usage(message.usage, said_at(entry), message.model, is_copy=self._is_copying)
            if message.model is not None and message.role is Role.ASSISTANT:
                self._note_model(entry)
            return self.window.push(entry, encoded)
        return self._apply_event(entry, encoded)

    def pass_over(self, sequence: int, entry_id: str, idempotency_key: str | None) -> None:
        """Go on behind an entry that cannot be read; its key stays used."""
        self.state.last_sequence = sequence
        if idempotency_key is not None:
            self._remember_key(idempotency_key, entry_id)
        self.lacks_branch = True  # it may have been a move of the leaf
        self.branch_changes += 1

    def _remember_key(self, key: str, entry_id: str) -> None:
        keys = self.state.idempotency_keys
        keys[key] = entry_id
        if len(keys) <= REMEMBERED_KEYS:
            return
        oldest = next(iter(keys))
        if self._forgotten_keys is None:  # most sessions never need it
            self._forgotten_keys = deque(maxlen=self.window.capacity)
        self._forgotten_keys.append((oldest, keys.pop(oldest)))

    def _apply_event(self, entry: Entry, encoded: bytes | None) -> int:
        """Apply an entry that is not a message."""
        self.state_sequence = entry.sequence
        if isinstance(entry, LeafMove):
            self.state.leaf_id, self.state.leaf_sequence = entry.target_id, entry.target_sequence or 0
            self.window.clear()
            self.state.compaction = None
            self.lacks_branch = entry.target_id is not None
            self.branch_changes += 1
            return 0
        if moves_leaf(entry):
            self.state.leaf_id, self.state.leaf_sequence = entry.id, entry.sequence
        if isinstance(entry, BranchSummary):
            message = as_message_entry(entry)
            return 0 if message is None else self.window.push(message)
        if isinstance(entry, ModelChange):
            self.state.chosen_model = entry.model_id or None
        if isinstance(entry, ThinkingLevelChange):
            self.state.chosen_level = entry.thinking_level or None
        if isinstance(entry, Compaction):
            self._compact(entry, encoded)
        else:
            changes = dict(_metadata_of(entry))
            if (said := changes.pop(SPENT, None)) is not None:
                self._spend(said, entry.timestamp)
            self._set_metadata(changes)
        return 0

    @property
    def _is_copying(self) -> bool:
        """Whether a fork is being made, or restored, whose messages are copies."""
        return self.state.metadata.get(INCOMPLETE) == FORK or COPIES in self.state.metadata

    def _note_model(self, entry: MessageEntry) -> None:
        """Note the model that answered as the current one."""
        known = self.state.metadata
        provider, model = provider_of(entry.message) or known.get("provider"), entry.message.model
        if (known.get("provider"), known.get("model")) != (provider, model):
            self.state_sequence = entry.sequence
            self._set_metadata({"provider": provider, "model": model})

    def _change_branch(self, entry: Entry) -> None:
        """Change the branch, because the entry does not follow the leaf: files of other programs branch only like this.

        Messages up to the parent are on both branches; the store has the rest.
        """
        place = place_of_parent(entry)
        self.window.keep_to(place)
        if self.state.compaction is not None and self.state.compaction.sequence > place:
            self.state.compaction = None
        self.state_sequence = entry.sequence
        self.lacks_branch = True
        self.branch_changes += 1

    def _compact(self, compaction: Compaction, encoded: bytes | None) -> None:
        self.branch_changes += 1
        self.state.totals.events += 1
        if (usage := compaction.usage) is not None:
            self.state.totals.add_usage(usage, compaction.timestamp, compaction.model, is_copy=self._is_copying)
        self.state.encoded_compaction = msgspec.Raw(encode_entry(compaction) if encoded is None else encoded)
        first_id, first = compaction.first_kept_entry_id, compaction.first_kept_sequence
        if first_id is None:
            first = compaction.sequence
        elif not first:
            first = next((entry.sequence for entry in self.window.kept if entry.id == first_id), 0)
        self.window.keep_from(first)

    def _spend(self, said: object, at: datetime) -> None:
        """Add the cost of a request that gave no message."""
        with suppress(InvalidMessage):
            message = message_from_dict(said)
            if message.usage is not None:
                self.state.totals.add_usage(message.usage, at, message.model, is_copy=self._is_copying)

    def rebuild(self, branch: Branch) -> None:
        """Fill the window with the leaf's branch from the store."""
        entries = [as_message_entry(e) for e in branch.entries if isinstance(e, MessageEntry | BranchSummary)]
        self.window = Window(self.window.capacity, (entry for entry in entries if entry is not None))
        if not branch.is_whole and branch.entries:
            self.window.newest_evicted = max(self.window.newest_evicted, branch.entries[0].sequence - 1)
        if self.lacks_branch:
            self.state.compaction = branch.compaction
            self._set_metadata(
                {"provider": branch.provider, "model": branch.model, "thinking_level": branch.thinking_level}
            )
        self.lacks_branch = self.lacks_messages = False
        self.branch_changes += 1

    def capture(self, committed: int) -> Snapshot | None:
        """The snapshot that may be written when the store has committed everything up to `committed`.

        A snapshot is never ahead of the store: later messages are left out. None if that cannot be done yet, because a
        later entry changed more than the window's tail or has left the window already (applying it again would bring
        back what it answers), or because no message of a full window is committed.
        """
        state = self.state
        if self.state_sequence > committed or self.lacks_branch or self.lacks_messages:
            return None
        kept = self.window.for_snapshot
        captured = state.copy(newest_evicted=self.window.newest_evicted)
        if state.last_sequence > committed:
            younger = [entry for entry in kept if entry.sequence > committed]
            if len(younger) != state.last_sequence - committed or len(younger) == self.window.capacity:
                return None
            kept = kept[: -len(younger)]
            ids = {entry.id for entry in younger}
            captured.idempotency_keys = self._keys_without(ids)
            captured.leaf_id, captured.leaf_sequence = younger[0].parent_id, place_of_parent(younger[0])
            captured.last_sequence, captured.complete = committed, False
            for entry in younger:
                captured.totals.add(entry.entry, -1)
        return Snapshot(captured, kept, self.extra or {})

    def _keys_without(self, ids: set[str]) -> dict[str, str]:
        """The keys that would be remembered without these entries, which are fewer than the window may hold."""
        kept = {key: one for key, one in self.state.idempotency_keys.items() if one not in ids}
        forgotten = self._forgotten_keys or ()
        pushed_out = islice(forgotten, max(0, len(forgotten) - (REMEMBERED_KEYS - len(kept))), None)
        return {**dict(pushed_out), **kept}

    def _set_metadata(self, changes: Mapping[str, Any]) -> None:
        merged = {**self.state.metadata, **changes}
        self.state.metadata = {name: value for name, value in merged.items() if value is not None}


def _metadata_of(entry: Entry) -> Mapping[str, Any]:
    """The metadata that an entry sets; an empty text removes a key, as None does."""
    match entry:
        case SessionInfo():
            return {"title": entry.name or None}
        case ModelChange():
            return {"provider": entry.provider or None, "model": entry.model_id or None}
        case ThinkingLevelChange():
            return {"thinking_level": entry.thinking_level or None}
        case Custom(custom_type=custom_type) if custom_type == METADATA:
            return without_wrong_texts(deepcopy(entry.data))  # the caller may still change the lists in it
        case _:
            return {}
