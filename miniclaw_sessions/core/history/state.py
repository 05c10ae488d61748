"""A session's state as one struct: a conversation has it, a snapshot is a copy of it, and a session's file is its JSON.

Which fields that file has, and in which order, is said here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Self

import msgspec

from miniclaw_sessions.core.history.window import Kept
from miniclaw_sessions.core.protocol.encoding import decode_entry, encode_entry
from miniclaw_sessions.core.protocol.entries import Compaction, MessageEntry
from miniclaw_sessions.core.protocol.json_values import in_utc
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Usage
from miniclaw_sessions.core.protocol.parts import Instant
from miniclaw_sessions.errors import InvalidMessage

SCHEMA_VERSION = 1

NOT_SAID = -1
"""The place of the leaf in a file that does not say it: at the end."""

NO_COMPACTION = msgspec.Raw(b"null")
NO_MESSAGES = msgspec.Raw(b"[]")


MOST_SPENT = 4_000
"""Lines that a session's account has at most, enough for ten years; beyond that the oldest half becomes two."""

OLDER = "(older)"
"""Stands for the models of a line that was made of many."""

LONGEST_MODEL = 200
"""Characters of a model's name in an account."""


class Spent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The usage of one model's replies of one day (UTC); `unpriced` of them used tokens without a price.

    `estimated` of them broke off, and were not reported.

    Days and models are few where messages are many: so every session has its own small account, and keeps it in its
    file, and what all sessions cost is the sum of these.
    """

    day: str
    model: str
    replies: int
    usage: Usage
    unpriced: int = 0
    estimated: int = 0

    def __add__(self, other: Spent) -> Spent:
        """Both together, by the name of this one."""
        return Spent(
            self.day,
            self.model,
            self.replies + other.replies,
            self.usage + other.usage,
            self.unpriced + other.unpriced,
            self.estimated + other.estimated,
        )


class Totals(msgspec.Struct, gc=False):
    """What all entries of a transcript add up to, on all branches.

    `events` counts what was saved as one: turns, messages that were saved alone, and compactions, as in Dive.
    `usage` is of all messages and summaries; `spent` has what was spent for this very session: nothing that a fork has
    copied.
    """

    messages: int = 0
    events: int = 0
    usage: Usage | None = None
    spent: list[Spent] = []

    def copy(self) -> Totals:
        """The same, which can be changed without changing this one."""
        return Totals(self.messages, self.events, self.usage, list(self.spent))

    def add(self, entry: MessageEntry, sign: int = 1) -> None:
        """Count one more message, or one less when `sign` is -1."""
        self.messages += sign
        if not entry.continues:
            self.events += sign
        if entry.message.usage is not None:
            self.add_usage(entry.message.usage, said_at(entry), entry.message.model, sign)

    def add_usage(self, usage: Usage, at: datetime, model: str | None, sign: int = 1, *, is_copy: bool = False) -> None:
        """Add what a message or a summary cost, or take it away when `sign` is -1; a copy was paid for elsewhere."""
        known = self.usage or Usage()
        self.usage = known + usage if sign > 0 else known - usage
        if is_copy:
            return
        is_estimated, usage = usage.is_estimated, _not_below_zero(usage)
        day, model = in_utc(at).date().isoformat(), (model or "")[:LONGEST_MODEL]
        place = self._line_of(day, model)
        if place is None and sign < 0:  # its line may have become a part of another one
            place = next((place for place, one in enumerate(self.spent) if one.model == OLDER), None)
        if place is None:
            if len(self.spent) >= MOST_SPENT:
                self._join_oldest()
            place = len(self.spent)
            self.spent.append(Spent(day, model, 0, Usage()))
        unpriced, estimated = sign * (usage.cost is None and usage.total > 0), sign * is_estimated
        change = usage if sign > 0 else Usage() - usage
        both = self.spent[place] + Spent(day, model, sign, change, unpriced, estimated)
        self.spent[place : place + 1] = [both] if both.replies else []

    def _line_of(self, day: str, model: str) -> int | None:
        for place in range(len(self.spent) - 1, -1, -1):  # the newest day comes last
            if (one := self.spent[place]).day == day and one.model == model:
                return place
        return None

    def _join_oldest(self) -> None:
        """Make room; what budgets ask for, the newest days, stays as it is, however many lines are of other days."""
        in_order = sorted(self.spent, key=lambda one: one.day)
        oldest, self.spent = in_order[: MOST_SPENT // 2], in_order[MOST_SPENT // 2 :]
        newest_day = oldest[-1].day
        for part in ([one for one in oldest if one.day == newest_day], [one for one in oldest if one.day < newest_day]):
            if part:
                self.spent.insert(0, sum(part, Spent(part[-1].day, OLDER, 0, Usage())))


def said_at(entry: MessageEntry) -> datetime:
    """When a message was said, by its own account, but not behind its entry: a day to come has no budget to ask."""
    kept_at = in_utc(entry.timestamp)
    return kept_at if entry.message.timestamp is None else min(in_utc(entry.message.timestamp), kept_at)


def _not_below_zero(usage: Usage) -> Usage:
    """The usage, none of it negative: a message with negative usage would give back what was spent."""
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    counts = {name: max(0, getattr(usage, name)) for name in names}
    if min(usage.total, usage.cost or 0) >= 0 and all(getattr(usage, name) == count for name, count in counts.items()):
        return usage
    return Usage(**counts, cost=None if usage.cost is None else max(0.0, usage.cost))


class State(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """What a session's entries lead to, but for the messages of its window.

    Those stand in `messages`, `sequences`, `ids` and `parents` (where a parent is not the message before) only in a
    file: `persistence.snapshot_file` puts them there, and takes them out.

    `chosen_model` is the one of the newest `ModelChange` of all; the metadata say which model answered the branch last.
    `leaf_sequence` is 0 where there is no leaf, or its place is not known. `complete` is False when accepted entries
    were left out because the store has not committed them yet, or messages because the file would be too large: then
    the window may be short, and the store has the rest.
    """

    session_id: str
    channel: str
    chat_id: str
    created_at: Instant
    last_accessed: Instant
    messages: msgspec.Raw
    schema_version: int
    incarnation: str
    updated_at: Instant
    last_sequence: int
    sequences: Sequence[int] = ()
    ids: Sequence[str] = ()
    parents: dict[str, tuple[str | None, int]] = {}
    leaf_id: str | None = None
    leaf_sequence: int = NOT_SAID
    encoded_compaction: msgspec.Raw = msgspec.field(default=NO_COMPACTION, name="compaction")
    newest_evicted: int = 0
    totals: Totals = msgspec.field(default_factory=Totals)
    metadata: dict[str, Any] = {}
    chosen_model: str | None = None
    idempotency_keys: dict[str, str] = {}
    complete: bool = True
    crc32: str = ""

    @classmethod
    def new(cls, key: SessionKey, *, incarnation: str, created_at: datetime, **fields: Any) -> Self:
        """Of a session that has no entries yet, unless `fields` say otherwise."""
        defaults = {"last_accessed": created_at, "updated_at": created_at, "last_sequence": 0, "leaf_sequence": 0}
        return cls(
            session_id=key.session_id,
            channel=key.channel,
            chat_id=key.chat_id,
            incarnation=incarnation,
            created_at=created_at,
            messages=NO_MESSAGES,
            schema_version=SCHEMA_VERSION,
            **{**defaults, **fields},
        )

    def copy(self, **changes: Any) -> Self:
        """The same, which can be changed without changing this one; what it was read from is let go of."""
        return msgspec.structs.replace(
            self,
            **{
                "messages": NO_MESSAGES,
                "sequences": (),
                "ids": (),
                "parents": {},
                "crc32": "",
                "totals": self.totals.copy(),
                "metadata": dict(self.metadata),
                "idempotency_keys": dict(self.idempotency_keys),
                **changes,
            },
        )

    @property
    def key(self) -> SessionKey:
        """The pair (channel, chat_id)."""
        return SessionKey(self.channel, self.chat_id)

    @property
    def compaction(self) -> Compaction | None:
        """The newest compaction of the branch, a new copy.

        Raises:
            InvalidMessage: a file says that something else is one.
        """
        if self.encoded_compaction is NO_COMPACTION:
            return None
        compaction = decode_entry(bytes(self.encoded_compaction))
        if not isinstance(compaction, Compaction):
            raise InvalidMessage("its compaction is another kind of entry")
        return compaction

    @compaction.setter
    def compaction(self, compaction: Compaction | None) -> None:
        self.encoded_compaction = NO_COMPACTION if compaction is None else msgspec.Raw(encode_entry(compaction))


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """A conversation at one moment; what a session's file says.

    Attributes:
        state: a copy of the conversation's.
        kept: the window's messages.
        extra: what else a file says whose fields are not all ours.
    """

    state: State
    kept: Sequence[Kept] = ()
    extra: Mapping[str, Any] = MappingProxyType({})

    @property
    def entries(self) -> list[MessageEntry]:
        """The window's messages, new copies."""
        return [kept.entry for kept in self.kept]
