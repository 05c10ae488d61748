"""A session's state as one struct: a conversation has it, a snapshot is a copy of it, and a session's file is its JSON.

The struct alone defines the fields of that file, and their order.
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
"""The sequence of the leaf in a file without that field: the leaf is the newest entry."""

NO_COMPACTION = msgspec.Raw(b"null")
NO_MESSAGES = msgspec.Raw(b"[]")


MOST_SPENT = 4_000
"""The largest number of lines of a session's account, enough for ten years; then the oldest half is summed up."""

OLDER = "(older)"
"""The model of a line that sums up lines of several models."""

LONGEST_MODEL = 200
"""The largest number of characters of a model's name in an account."""


class Spent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The cost of one model's replies of one day (UTC): a line of a session's account.

    `unpriced` counts replies that used tokens and have no known price, `estimated` replies that broke off without
    numbers.

    Days and models are few, messages are many: so each session has a small account in its file, and the cost of all
    sessions is the sum of these.
    """

    day: str
    model: str
    replies: int
    usage: Usage
    unpriced: int = 0
    estimated: int = 0

    def __add__(self, other: Spent) -> Spent:
        """The sum, with the day and model of this line."""
        return Spent(
            self.day,
            self.model,
            self.replies + other.replies,
            self.usage + other.usage,
            self.unpriced + other.unpriced,
            self.estimated + other.estimated,
        )


class Totals(msgspec.Struct, gc=False):
    """The totals of all entries of a transcript, on all branches.

    `events` counts turns, messages that were saved alone, and compactions, as in Dive. `usage` is the sum over all
    messages and summaries; `spent` is what this session itself has spent, without what a fork has copied.
    """

    messages: int = 0
    events: int = 0
    usage: Usage | None = None
    spent: list[Spent] = []

    def copy(self) -> Totals:
        """A copy that can be changed independently."""
        return Totals(self.messages, self.events, self.usage, list(self.spent))

    def add(self, entry: MessageEntry, sign: int = 1) -> None:
        """Count one more message, or one less if `sign` is -1."""
        self.messages += sign
        if not entry.continues:
            self.events += sign
        if entry.message.usage is not None:
            self.add_usage(entry.message.usage, said_at(entry), entry.message.model, sign)

    def add_usage(self, usage: Usage, at: datetime, model: str | None, sign: int = 1, *, is_copy: bool = False) -> None:
        """Add the usage of a message or a summary, or subtract it if `sign` is -1; a copy costs nothing."""
        known = self.usage or Usage()
        self.usage = known + usage if sign > 0 else known - usage
        if is_copy:
            return
        is_estimated, usage = usage.is_estimated, _not_below_zero(usage)
        day, model = in_utc(at).date().isoformat(), (model or "")[:LONGEST_MODEL]
        newest_first = range(len(self.spent) - 1, -1, -1)
        same = (place for place in newest_first if self.spent[place].day == day and self.spent[place].model == model)
        place = next(same, None)
        if place is None and sign < 0:  # its line may be summed up already
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

    def _join_oldest(self) -> None:
        """Sum up old lines. The newest days, which budgets need, stay as they are."""
        in_order = sorted(self.spent, key=lambda one: one.day)
        oldest, self.spent = in_order[: MOST_SPENT // 2], in_order[MOST_SPENT // 2 :]
        newest_day = oldest[-1].day
        for part in ([one for one in oldest if one.day == newest_day], [one for one in oldest if one.day < newest_day]):
            if part:
                self.spent.insert(0, sum(part, Spent(part[-1].day, OLDER, 0, Usage())))


def said_at(entry: MessageEntry) -> datetime:
    """The time of a message, but not later than its entry's: a future day would escape budgets."""
    kept_at = in_utc(entry.timestamp)
    return kept_at if entry.message.timestamp is None else min(in_utc(entry.message.timestamp), kept_at)


def _not_below_zero(usage: Usage) -> Usage:
    """The usage without negative numbers: otherwise a message could reduce what was spent."""
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    counts = {name: max(0, getattr(usage, name)) for name in names}
    if min(usage.total, usage.cost or 0) >= 0 and all(getattr(usage, name) == count for name, count in counts.items()):
        return usage
    return Usage(**counts, cost=None if usage.cost is None else max(0.0, usage.cost))


class State(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The state of a session after its entries, without the messages of its window.

    These are in `messages`, `sequences`, `ids` and `parents` (if a parent is not the message before) only in a file:
    `persistence.snapshot_file` puts them there, and takes them out.

    `chosen_model` and `chosen_level` are those of the newest `ModelChange` and `ThinkingLevelChange`; the metadata have
    the model that answered last on the branch. `leaf_sequence` is 0 if there is no leaf, or its sequence is not known.
    `complete` is False if accepted entries were left out because the store has not committed them yet, or messages
    because the file would be too large: then the window may be short, and the store has the rest.
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
    chosen_level: str | None = None
    idempotency_keys: dict[str, str] = {}
    complete: bool = True
    crc32: str = ""

    @classmethod
    def new(cls, key: SessionKey, *, incarnation: str, created_at: datetime, **fields: Any) -> Self:
        """The state of a session without entries, changed by `fields`."""
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
        """A copy that can be changed independently; it does not keep the bytes from which this one was read."""
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
        """The newest compaction of the branch, decoded.

        Raises:
            InvalidMessage: a file has another entry in its place.
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
    """A conversation at one moment, as a session's file has it.

    Attributes:
        state: a copy of the conversation's state.
        kept: the window's messages.
        extra: further fields of a file.
    """

    state: State
    kept: Sequence[Kept] = ()
    extra: Mapping[str, Any] = MappingProxyType({})

    @property
    def entries(self) -> list[MessageEntry]:
        """The window's messages, decoded."""
        return [kept.entry for kept in self.kept]
