"""The part of one branch that a model sees: the entries from the leaf upwards, with the newest compaction resolved.

Of a branch's compactions only the newest counts: its summary comes first, then the messages from its first kept entry
to the leaf. A `BranchCollector` is fed the entries from the leaf towards the root until it has enough, so that the cost
of a context depends on its size, not on the length of the transcript.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from miniclaw_sessions.core.protocol.entries import (
    BranchSummary,
    Compaction,
    Entry,
    MessageEntry,
    ModelChange,
    ThinkingLevelChange,
    place_of_parent,
)
from miniclaw_sessions.core.protocol.messages import Message, Role, provider_of


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """One branch, as far as it matters at its leaf.

    Attributes:
        entries: the kept entries, oldest first: from the compaction's first kept entry (or the root) to the leaf,
            including the compaction itself.
        compaction: the newest compaction; None without one.
        is_whole: whether the entries are all that a model sees of the branch, and not only the newest.
        provider, model, thinking_level: the settings at the leaf, as far as these entries have them.
        problems: the problems of the branch, one sentence each.
    """

    entries: tuple[Entry, ...] = ()
    compaction: Compaction | None = None
    is_whole: bool = True
    provider: str | None = None
    model: str | None = None
    thinking_level: str | None = None
    problems: tuple[str, ...] = ()

    def messages(self) -> list[Message]:
        """The summary, if there is one, and the kept messages; not yet made legal for a model."""
        shown = (shown_message(entry) for entry in self.entries)
        return [*summary_messages(self.compaction), *(message for message in shown if message is not None)]


def shown_message(entry: Entry) -> Message | None:
    """The message that a model sees for an entry: its own, or the summary of a branch that was left; None: nothing."""
    if isinstance(entry, MessageEntry):
        return entry.message
    if isinstance(entry, BranchSummary) and entry.summary:
        return Message(Role.BRANCH_SUMMARY, entry.summary, entry.timestamp)
    return None


def as_message_entry(entry: MessageEntry | BranchSummary) -> MessageEntry | None:
    """An entry as the window holds it; None for an empty summary."""
    if isinstance(entry, MessageEntry):
        return entry
    message = shown_message(entry)
    if message is None:
        return None
    return MessageEntry(
        id=entry.id,
        parent_id=entry.parent_id,
        timestamp=entry.timestamp,
        sequence=entry.sequence,
        parent_sequence=entry.parent_sequence,
        message=message,
    )


def says_what_is_in_force(entry: Entry) -> bool:
    """Whether an entry sets model or thinking level, or names the model that wrote it."""
    if isinstance(entry, MessageEntry):
        return entry.message.is_assistant and entry.message.model is not None
    return isinstance(entry, ModelChange | ThinkingLevelChange)


def summary_messages(compaction: Compaction | None) -> list[Message]:
    """The messages in a context that replace everything before a compaction."""
    if compaction is None:
        return []
    summary = [Message(Role.COMPACTION_SUMMARY, compaction.summary, compaction.timestamp)] if compaction.summary else []
    return [*summary, *compaction.messages]


def rejoined(entries: Sequence[Entry], *, stored: int = 0) -> list[Entry]:
    """Entries of one branch with lost entries between them: each becomes the child of the one before.

    Args:
        entries: the remaining entries, oldest first.
        stored: up to this sequence nothing is lost.
    """
    joined: list[Entry] = []
    for entry in entries:
        child = entry
        if entry.parent_id is not None and not _is_stored(place_of_parent(entry), stored):
            parent_id, place = (joined[-1].id, joined[-1].sequence) if joined else (None, None)
            child = msgspec.structs.replace(
                entry, parent_id=parent_id, parent_sequence=None if place == entry.sequence - 1 else place
            )
        joined.append(child)
    reaches_back = bool(joined) and _is_stored(place_of_parent(joined[0]), stored)
    return [_keeping(joined, entry, stored * reaches_back) for entry in joined]


def _is_stored(place: int, stored: int) -> bool:
    return 0 < place <= stored


def _keeping(entries: Sequence[Entry], entry: Entry, stored: int) -> Entry:
    """A compaction whose first kept entry is lost keeps the rest of the entries that it kept."""
    if not isinstance(entry, Compaction) or entry.first_kept_entry_id is None:
        return entry
    if _is_stored(entry.first_kept_sequence or 0, stored) or any(e.id == entry.first_kept_entry_id for e in entries):
        return entry
    oldest = entries[0] if entries[0].sequence < entry.sequence else None
    return msgspec.structs.replace(
        entry,
        first_kept_entry_id=None if oldest is None else oldest.id,
        first_kept_sequence=None if oldest is None else oldest.sequence,
    )


class BranchCollector:
    """Collects a branch from its leaf upwards.

    Args:
        at_most: stop when the messages have reached this size, and a user's is among them; None: collect all.
        size: returns the size of a message, such as its tokens; None: messages are counted.
        needs_compaction: whether to look for the newest compaction even if the messages do not reach up to it.
        needs_state: whether to go on towards the root until model and thinking level are known.
    """

    def __init__(
        self,
        *,
        at_most: int | None = None,
        size: Callable[[Message], int] = lambda _: 1,
        needs_compaction: bool = True,
        needs_state: bool = False,
    ) -> None:
        self._at_most = at_most
        self._size_of = size
        self._size = 0
        self._needs_compaction = needs_compaction
        self._needs_state = needs_state
        self._entries: list[Entry] = []  # newest first
        self._has_user = False
        self._compaction: Compaction | None = None
        self._after_compaction = 0  # number of entries that are not older than the compaction
        self._is_complete = False
        self._left_out = False
        self._provider: str | None = None
        self._model: str | None = None
        self._thinking_level: str | None = None

    @property
    def has_enough(self) -> bool:
        """Whether the rest of the branch would change nothing."""
        has_compaction = self._compaction is not None or not self._needs_compaction
        has_state = None not in (self._provider, self._model, self._thinking_level) or not self._needs_state
        return self._has_messages and has_compaction and has_state

    @property
    def _has_messages(self) -> bool:
        return self._is_complete or (self._at_most is not None and self._size >= self._at_most and self._has_user)

    def feed(self, entry: Entry) -> None:
        """The next entry towards the root."""
        self._note_state(entry)
        has_messages = self._has_messages
        if not has_messages:
            self._entries.append(entry)
            if (message := shown_message(entry)) is not None:
                self._has_user = self._has_user or message.is_user
                if self._at_most is not None:
                    self._size += self._size_of(message)
        elif not self._is_complete:
            self._left_out = self._left_out or shown_message(entry) is not None
        if self._compaction is None and isinstance(entry, Compaction):
            self._compaction = entry
            self._after_compaction = len(self._entries)
            self._is_complete = self._is_complete or entry.first_kept_entry_id is None
        elif self._compaction is not None and entry.id == self._compaction.first_kept_entry_id:
            self._is_complete = True

    def branch(self, problems: Iterable[str] = ()) -> Branch:
        """The collected branch; call it when there is enough, or the branch has ended."""
        found = list(problems)
        entries = self._entries
        if self._compaction is not None and not self._is_complete and not self.has_enough:
            found.append(
                f"compaction {self._compaction.id} keeps what follows {self._compaction.first_kept_entry_id}, which is "
                "not on its branch; nothing from before the compaction is kept"
            )
            entries = entries[: self._after_compaction]
        return Branch(
            entries=tuple(reversed(entries)),
            compaction=self._compaction,
            is_whole=not self._left_out and (self._is_complete or not self.has_enough),
            provider=self._provider or None,
            model=self._model or None,
            thinking_level=self._thinking_level or None,
            problems=tuple(found),
        )

    def _note_state(self, entry: Entry) -> None:
        """Note model and thinking level: the newest change counts, which comes first, or the model of a message.

        An empty text counts as well: the value was removed.
        """
        if isinstance(entry, MessageEntry):
            message = entry.message
            if message.model is not None and message.is_assistant:
                self._note_model(provider_of(message), message.model)
        elif isinstance(entry, ModelChange):
            self._note_model(entry.provider, entry.model_id)
        elif isinstance(entry, ThinkingLevelChange) and self._thinking_level is None:
            self._thinking_level = entry.thinking_level

    def _note_model(self, provider: str | None, model: str) -> None:
        """Note a model. A message may name its model without the provider: then an older entry has it."""
        self._provider = provider if self._provider is None else self._provider
        self._model = model if self._model is None else self._model


def resolve(path: Iterable[Entry]) -> Branch:
    """The branch with all these entries, root first."""
    collector = BranchCollector()
    for entry in reversed(list(path)):
        collector.feed(entry)
    return collector.branch()
