"""Entries of one session that are accepted together: all of them, or none. One commit carries them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from miniclaw_sessions.core.history.branch import Branch
from miniclaw_sessions.core.persistence.committer import IN_PLACE, Receipt
from miniclaw_sessions.core.protocol.encoding import encoded_once
from miniclaw_sessions.core.protocol.entries import (
    COPY_OF,
    METADATA,
    OWN_METADATA,
    BranchSummary,
    Compaction,
    Custom,
    Entry,
    EntryBase,
    Label,
    LeafMove,
    MessageEntry,
    ModelChange,
    OtherEntry,
    SessionInfo,
    ThinkingLevelChange,
    original_id,
    without_wrong_texts,
)
from miniclaw_sessions.core.protocol.messages import Message, dated
from miniclaw_sessions.core.session.journal import Journal
from miniclaw_sessions.core.session.owner import guarded
from miniclaw_sessions.errors import InvalidMessage, LeafMoved

E = TypeVar("E", bound=EntryBase)


_IN_TRANSCRIPTS: Mapping[type[EntryBase], str] = {
    Label: "a label",
    Custom: "a custom entry",
    Compaction: "what a compaction replaces",
    BranchSummary: "the branch that is left",
}
"""What only a transcript can keep, or keeps whole."""


_MADE_ANEW = frozenset({"id", "parent_id", "parent_sequence", "timestamp", "sequence", "idempotency_key"})
"""What a copy of an entry does not have of it."""


@guarded(attrgetter("journal.home.owner"))
class Unit:
    """Entries that are put together one by one and accepted as one, by `accept` or `save`.

    Each is made for its place when it is added: behind the session's newest entry, and behind those added before it.
    What anybody else lets the session accept in between makes `accept` refuse. So wait for nothing in between, or be
    ready to put the unit together again.

    Args:
        journal: of the session whose entries they are.
        has_one_key: whether the idempotency key of one of them, if no other has one, stands for all of them: where
            another process was first with it, none of them is stored.

    Attributes:
        journal: of the session whose entries they are.
    """

    __slots__ = ("_before", "_entries", "_has_one_key", "_key", "_known", "_receipt", "_waited_for", "journal")

    def __init__(self, journal: Journal, *, has_one_key: bool = True) -> None:
        self.journal = journal
        self._has_one_key = has_one_key
        self._entries: list[tuple[Entry, bytes]] = []
        self._key: str | None = None  # of all of it; the first entry has it
        self._before: MessageEntry | None = None  # the entry that has it, where all of it was accepted before
        self._known: dict[str, MessageEntry] = {}  # of what was looked up
        self._waited_for: dict[str, Receipt] = {}  # of what was accepted before, and is waited for, too
        self._receipt: Receipt = IN_PLACE

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> list[Entry]:
        """What was added, in order; when it is acknowledged, as it is stored."""
        return self._receipt.stored([entry for entry, _ in self._entries])

    @property
    def known(self) -> Entry | None:
        """The entry that had the idempotency key of all of it before: none of it is stored then.

        Raises:
            TurnTaken: it was known as that of a turn, and was given up with it.
        """
        return self._receipt.known if self._before is None else self.as_stored(self._before)

    @property
    def made(self) -> list[Entry]:
        """The entries that are new, as they are stored; not those whose key another process was first with."""
        if self.known is not None:
            return []
        return [one for (entry, _), one in zip(self._entries, self.entries, strict=True) if one.id == entry.id]

    def as_stored(self, entry: MessageEntry) -> MessageEntry:
        """What is stored of an entry that was added, or was known: another one, if another process was first with it.

        Raises:
            TurnTaken: it was known as that of a turn, and was given up with it.
        """
        return self._waited_for.get(entry.id, self._receipt).final(entry)

    async def repeats(self, idempotency_key: str | None) -> bool:
        """Whether this key stands for what was accepted before: `save` waits for that; add nothing then.

        Else the first entry that is added has the key. To be called before anything is added.

        Raises:
            InvalidMessage: the key is no text, or too long.
            StoreUnavailable: the store cannot be read.
        """
        known = None if idempotency_key is None else await self.journal.find_by_key(idempotency_key)
        self._key, self._before = idempotency_key, known if known is None else self.wait_for(known)
        return known is not None

    def wait_for(self, entry: MessageEntry) -> MessageEntry:
        """Let `saved` wait for an entry that was accepted before, too. Returns the entry."""
        self._waited_for[entry.id] = self.journal.queue.receipt(entry.id)
        return entry

    def add(self, kind: type[E], **fields: Any) -> E:
        """An entry of any kind, with its own fields; id, parent, time and place are given to it.

        Raises:
            InvalidMessage: it cannot be stored faithfully, or is metadata that only the session itself may have.
            TranscriptNotKept: the store is `none`, which would forget it.
        """
        if kind is Custom and fields.get("custom_type") == METADATA:  # the session's file has it, too
            if own := [name for name in fields["data"] if name.startswith(OWN_METADATA)]:
                sentence = f"metadata {own[0]!r} cannot be set: names that begin with {OWN_METADATA} are ours"
                raise InvalidMessage(sentence)
            if wrong := sorted(fields["data"].keys() - without_wrong_texts(fields["data"]).keys()):
                raise InvalidMessage(f"metadata {wrong[0]!r} is a text; give a str, or None to remove it")
        elif kind in _IN_TRANSCRIPTS:
            self.journal.require_transcript(_IN_TRANSCRIPTS[kind])
        return self._add(kind, **fields)

    def add_own_metadata(self, own: Mapping[str, Any], *, idempotency_key: str | None = None) -> None:
        """The session's own metadata (`OWN_METADATA`); never a caller's.

        Raises:
            InvalidMessage: it cannot be stored faithfully.
        """
        self._add(Custom, custom_type=METADATA, data=dict(own), idempotency_key=idempotency_key)

    def _add(self, kind: type[E], **fields: Any) -> E:
        if self._key is not None and not self._entries:
            fields["idempotency_key"] = self._key
        entry = self.journal.next_entry(kind, self._entries, **fields)
        own, encoded = encoded_once(entry)
        self._entries.append((cast("Entry", own), encoded))
        return own

    def add_message(
        self, message: Message | Mapping[str, Any], *, idempotency_key: str | None = None, continues: bool | None = None
    ) -> MessageEntry:
        """A message.

        Args:
            message: what was said.
            idempotency_key: the sender's own id; a message whose key is known is not added, its entry is returned.
            continues: whether it belongs to the turn of the message before it; by default, unless it is a user's.

        Raises:
            InvalidMessage: it cannot be stored faithfully.
        """
        if idempotency_key is not None:
            known = self._known.get(idempotency_key) or self.journal.known(idempotency_key, self._entries)
            if known is not None:
                return self.wait_for(known)
        said = dated(message, self.journal.now())
        same_turn = not said.is_user if continues is None else continues
        return self._add(MessageEntry, message=said, idempotency_key=idempotency_key, continues=same_turn)

    def add_messages(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        idempotency_keys: Sequence[str | None] = (),
        continues: Iterable[bool] = (),
    ) -> list[MessageEntry]:
        """Several messages; see `Session.extend`."""
        belongs = iter(continues)
        return [
            self.add_message(message, idempotency_key=key, continues=next(belongs, False))
            for message, key in zip(messages, idempotency_keys or [None] * len(messages), strict=True)
        ]

    def add_custom(
        self, custom_type: str, data: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None
    ) -> Custom:
        """An entry that never reaches a model, such as an extension's state.

        Raises:
            InvalidMessage: the data is not JSON, or the type is `metadata`, which `Session.update` sets.
            TranscriptNotKept: the store is `none`, which would forget it.
        """
        if custom_type == METADATA:
            raise InvalidMessage(f"custom_type {METADATA!r} is the session's own; use update(), or another type")
        return self.add(Custom, custom_type=custom_type, data=dict(data or {}), idempotency_key=idempotency_key)

    def add_copies(self, entries: Sequence[Entry], *, instead_of: int) -> None:
        """Entries of a branch again, behind what was added: each says which it stands for (`COPY_OF`).

        Left out are titles, which are the session's and not the branch's, and what this version does not know.

        Args:
            entries: in order.
            instead_of: the place of the entry before them, that what was added stands for.

        Raises:
            InvalidMessage, TranscriptNotKept: as for `add`.
        """
        made: list[Entry] = [entry for entry in self.entries if not isinstance(entry, LeafMove)]
        places = [instead_of] * len(made)  # of what each stands for; they only grow
        copies: dict[str, str] = {}
        for entry in entries:
            if isinstance(entry, SessionInfo | OtherEntry):
                continue
            fields = {name: getattr(entry, name) for name in entry.__struct_fields__ if name not in _MADE_ANEW}
            fields["extra"] = {**(entry.extra or {}), COPY_OF: original_id(entry)}
            if isinstance(entry, MessageEntry):
                fields["message"] = msgspec.structs.replace(entry.message, usage=None)
            elif isinstance(entry, Label):
                fields["target_id"] = copies.get(entry.target_id, entry.target_id)
            elif isinstance(entry, Compaction):
                fields["usage"] = None
            if isinstance(entry, Compaction) and (entry.first_kept_sequence or 0) >= instead_of:
                place = bisect_left(places, entry.first_kept_sequence or 0)
                kept = made[place] if place < len(made) else None
                fields["first_kept_entry_id"] = None if kept is None else kept.id
                fields["first_kept_sequence"] = None if kept is None else kept.sequence
            copy = cast("Entry", self.add(type(entry), **fields))
            copies[entry.id] = copy.id
            places.append(entry.sequence)
            made.append(copy)

    def add_metadata(
        self,
        /,
        *,
        title: str | UnsetType | None = UNSET,
        model: str | UnsetType | None = UNSET,
        provider: str | UnsetType | None = UNSET,
        thinking_level: str | UnsetType | None = UNSET,
        **metadata: Any,
    ) -> None:
        """Changes of metadata; see `Session.update`."""
        if title is not UNSET:
            self.add(SessionInfo, name=title or "")
        if model is not UNSET or provider is not UNSET:
            known = self.journal.conversation.state.metadata
            model = known.get("model") if model is UNSET else model
            provider = known.get("provider") if provider is UNSET else provider
            self.add(ModelChange, provider=provider or "", model_id=model or "")
        if thinking_level is not UNSET:
            self.add(ThinkingLevelChange, thinking_level=thinking_level or "")
        if metadata:
            self.add(Custom, custom_type=METADATA, data=metadata)

    async def look_up(self, idempotency_keys: Iterable[str]) -> None:
        """Ask the store for messages with these keys that are too old for the session to remember them.

        To be called before anything is added.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        for key in idempotency_keys:
            if (entry := await self.journal.find_by_key(key)) is not None:
                self._known[key] = entry

    def accept(
        self, *, if_leaf: str | None = None, if_sequence: int | None = None, branch: Branch | None = None
    ) -> list[Entry]:
        """Let the session accept the entries: in memory, in order, and on their way to the store. Returns at once.

        Args:
            if_leaf: only if this entry is the leaf; the empty text stands for the root. None: any leaf.
            if_sequence: only if this is the session's last sequence number. None: any number.
            branch: where an entry moves the leaf: what is on the branch that it moves to.

        Raises:
            LeafMoved: something was accepted since the first was added, or the leaf or the last sequence is another
                one than was demanded; nothing was accepted.
            InvalidMessage, UnsavedLimit, SessionDeleted: as for `Session.append`; nothing was accepted.
        """
        self._accept(if_leaf, if_sequence, branch)
        return self.entries

    def _accept(self, if_leaf: str | None, if_sequence: int | None, branch: Branch | None = None) -> None:
        conversation = self.journal.conversation
        is_other_leaf = if_leaf is not None and (if_leaf or None) != conversation.state.leaf_id
        if is_other_leaf or if_sequence not in (None, conversation.state.last_sequence):
            raise LeafMoved(
                f"session {self.journal.session_id} went on meanwhile, or elsewhere; look at it and try again"
            )
        is_fixed = if_leaf is not None or if_sequence is not None
        self._receipt = self.journal.accept(
            self._entries, branch=branch, is_fixed=is_fixed, has_one_key=self._has_one_key
        )

    async def save(self, *, if_leaf: str | None = None, if_sequence: int | None = None) -> list[Entry]:
        """`accept`, and return when the entries are acknowledged: the store has committed them.

        Where there is nothing to accept, because it all was before, that is waited for, and nothing else is demanded.

        Raises:
            LeafMoved: as for `accept`.
            StoreFull, StoreUnavailable, InvalidMessage, UnsavedLimit, SessionDeleted: as for `Session.add_message`.
        """
        await self.journal.home.committer.check_store()
        if self._entries:
            self._accept(if_leaf, if_sequence)
        await self.journal.saved()
        self._receipt.check()
        return self.entries

    async def saved(self) -> None:
        """Return when what was accepted is acknowledged.

        Raises:
            LeafMoved: another process was first, so that what was demanded does not hold; nothing of it is stored.
            TurnTaken: it belonged to a turn that another process has; nothing of it is stored.
            StoreFull, StoreUnavailable: as for `Session.add_message`.
        """
        await self.journal.saved()
        self._receipt.check()
