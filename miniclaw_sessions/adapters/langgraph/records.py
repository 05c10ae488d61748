"""How a checkpoint is written as custom entries, and read back.

A record is one custom entry: a header that says what it is, and the values as the serializer made them, in base64. A
value that is too large for an entry stands in pieces right before the record, so that wherever the record is copied to,
its pieces come along in front of it.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.protocol.encoding import decode_entry
from miniclaw_sessions.protocol.entries import Custom, Entry
from miniclaw_sessions.session import Session
from miniclaw_sessions.session.unit import Unit

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
    """One message of a list: the message entry with this id, or the record's value with this number, or both.

    Where there are both, the value is what LangGraph said, and the entry what others are told of it.
    """

    entry: str | None = None
    value: int | None = None


class MessageList(msgspec.Struct, frozen=True, omit_defaults=True):
    """A channel of messages: the first `keep` messages of the version `base`, and those that are added to them.

    `seen` are entries of others that the graph was told of in other words, to make them legal.
    """

    channel: str
    version: Version
    base: Version | None = None
    keep: int = 0
    add: tuple[Reference, ...] = ()
    seen: tuple[str, ...] = ()


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


def add_record(unit: Unit, kind: str, header: Header, values: Sequence[Typed], *, limit: int) -> None:
    """Add a record to a unit, large values in pieces in front of it.

    Args:
        unit: what it is appended with.
        kind: its `custom_type`.
        header: what it says of itself.
        values: as the serializer made them.
        limit: how many bytes an entry may have.
    """
    size = max(1, limit // 2 // 4 * 3)  # base64 makes four characters of three bytes; the rest is for the header
    room = size
    pieces = 0
    written: list[dict[str, Any]] = []
    for name, value in values:
        if len(value) <= room:
            room -= len(value)
            written.append({"type": name, "data": _text(value)})
            continue
        count = 0
        for start in range(0, len(value), size):
            unit.add_custom(PIECE, {"data": _text(value[start : start + size])})
            count += 1
        written.append({"type": name, "pieces": count})
        pieces += count
    fields: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(header, pieces=pieces))
    unit.add_custom(kind, {**fields, "values": written} if written else fields)


async def read_records(session: Session, places: Sequence[Place]) -> dict[Place, list[Typed]]:
    """The values of the records at these places; one that is damaged is left out.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    spans = {place: range(place.sequence - place.pieces, place.sequence + 1) for place in places}
    stored = await session.tree.read_at(sequence for span in spans.values() for sequence in span)
    records: dict[Place, list[Typed]] = {}
    for place, span in spans.items():
        try:
            *pieces, record = (decode_entry(stored[sequence].encoded) for sequence in span)
            records[place] = _values(_data(record), [_data(piece)["data"] for piece in pieces])
        except (InvalidMessage, KeyError, TypeError, ValueError):
            continue  # whoever needs it is told that it is missing
    return records


def _values(data: Mapping[str, Any], pieces: list[str]) -> list[Typed]:
    values: list[Typed] = []
    for value in data.get("values", ()):
        if "data" in value:
            values.append((value["type"], b64decode(value["data"])))
        else:
            count = value["pieces"]
            values.append((value["type"], b"".join(map(b64decode, pieces[:count]))))
            del pieces[:count]
    return values


def _data(entry: Entry) -> Mapping[str, Any]:
    if not isinstance(entry, Custom):
        raise TypeError("the entry at a record's place is no record")
    return entry.data


def _text(value: bytes) -> str:
    return b64encode(value).decode("ascii")
