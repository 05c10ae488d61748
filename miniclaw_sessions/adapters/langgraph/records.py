"""How a checkpoint is written as custom entries, and read back.

A record is one custom entry: a header that says what it is, and the values as the serializer made them, in base64. A
value that is too large for an entry stands in pieces right before the record, and what the graph said in front of
those, so that wherever the record is copied to, its pieces and its messages come along in front of it.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from miniclaw_sessions.core.stores.base import StoredEntry

CHECKPOINT, WRITES, FORGET, PIECE = (f"langgraph.{name}" for name in ("checkpoint", "writes", "forget", "piece"))
"""The `custom_type` of a checkpoint, of a task's pending writes, of what was deleted, and of a piece of a value."""

Typed = tuple[str, bytes]
"""A value as LangGraph's serializers give it: the name of its form, and its bytes."""

Version = str | int | float


class Place(NamedTuple):
    """Where a record stands, and how many pieces stand right before it."""

    sequence: int
    pieces: int


class Reference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a list: a message entry, or the record's value with this number, or both.

    If there are both, the value is LangGraph's own, and the entry is the content for other frameworks.

    Attributes:
        entry: the id of the message entry.
        said: which of the message entries that belong to the record it is, where it is one of those.
        value: the number of the value.
    """

    entry: str | None = None
    said: int | None = None
    value: int | None = None


class MessageList(msgspec.Struct, frozen=True, omit_defaults=True):
    """A channel of messages: the first `keep` messages of the version `base`, and those that are added to them.

    Attributes:
        channel, version: which it is.
        base, keep, add: what it is put together of.
        said: how many message entries belong to the record; they stand right before its pieces.
        until: the id of a message entry; the graph has got every message up to it. Others may append between this
            entry and the record. None, in older records: every message before the record.
    """

    channel: str
    version: Version
    base: Version | None = None
    keep: int = 0
    add: tuple[Reference, ...] = ()
    said: int = 0
    until: str | None = None


class Header(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a record says of itself. Which fields it has depends on what it is.

    Attributes:
        namespace, id: which checkpoint it is, or belongs to.
        parent: the id of the checkpoint before it.
        step, source, run_id: of the checkpoint's metadata, for people and for deleting.
        channels: the channels whose values are in the record, behind the checkpoint and its metadata, with versions.
        messages: the channel of messages, where it changed.
        task, path: the task whose writes they are.
        writes: the place and the channel of each value that was written.
        checkpoints: what was deleted, as pairs of namespace and id; None is everything.
        pieces: how many pieces stand before the record.
    """

    namespace: str = ""
    id: str = ""
    parent: str | None = None
    step: int | None = None
    source: str | None = None
    run_id: str | None = None
    channels: tuple[tuple[str, Version], ...] = ()
    messages: MessageList | None = None
    task: str = ""
    path: str = ""
    writes: tuple[tuple[int, str], ...] = ()
    checkpoints: tuple[tuple[str, str], ...] | None = ()
    pieces: int = 0


class _Custom(msgspec.Struct, tag_field="type", tag="custom"):
    """A custom entry, as far as a record needs it."""

    data: dict[str, Any]


_data = msgspec.json.Decoder(_Custom).decode


def written(header: Header, values: Sequence[Typed], *, limit: int) -> tuple[Header, list[dict[str, Any]]]:
    """A record as the data of custom entries: large values in pieces, and behind them the record itself.

    Args:
        header: what it says of itself.
        values: as the serializer made them.
        limit: how many bytes an entry may have.
    """
    size = max(1, limit // 2 // 4 * 3)  # base64 makes four characters of three bytes; the rest is for the header
    room = size
    entries: list[dict[str, Any]] = []
    stored: list[dict[str, Any]] = []
    for name, value in values:
        if len(value) <= room:
            room -= len(value)
            stored.append({"type": name, "data": _text(value)})
        else:
            pieces = [{"data": _text(value[start : start + size])} for start in range(0, len(value), size)]
            stored.append({"type": name, "pieces": len(pieces)})
            entries += pieces
    header = msgspec.structs.replace(header, pieces=len(entries))
    fields: dict[str, Any] = msgspec.to_builtins(header)
    return header, [*entries, {**fields, "values": stored} if stored else fields]


def values_of(place: Place, stored: Mapping[int, StoredEntry]) -> list[Typed] | None:
    """The values of the record at a place; None where a part of it is missing or damaged.

    Args:
        place: where it stands.
        stored: at least its own entries, by their places.
    """
    values: list[Typed] = []
    try:
        *before, record = (_data(stored[place.sequence - back].encoded).data for back in range(place.pieces, -1, -1))
        pieces = [entry["data"] for entry in before]
        for value in record.get("values", ()):
            if "data" in value:
                values.append((value["type"], b64decode(value["data"])))
            else:
                count = value["pieces"]
                values.append((value["type"], b"".join(map(b64decode, pieces[:count]))))
                del pieces[:count]
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return None
    return values


def _text(value: bytes) -> str:
    return b64encode(value).decode("ascii")
