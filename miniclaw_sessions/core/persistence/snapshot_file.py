"""`sessions/<session_id>.json`: the snapshot file of miniclaw, read and written.

The keys are miniclaw's exactly, plus `schema_version` and our own. Files of the Rust original (nanosecond times,
no `tool_calls` where there are none, no `schema_version`) and the document's sample (`"tool_calls": null`) load; what
they lack is made up once. Unknown fields are written back as they came.

Our files end in `,"crc32":"0a1b2c3d"}`: the CRC-32 of the file without that field, in hexadecimal. A file that
contradicts it is damaged. One that agrees is as it was written: a start reads no more of it than `FileHead`, and its
messages stay packed (`history.window.Packed`) until the session is used. One without it, of another program, of an
older version, or reformatted by a person who edited it, is validated message by message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

import msgspec
from msgspec.structs import replace

from miniclaw_sessions.core.history.state import (
    NO_COMPACTION,
    NO_MESSAGES,
    NOT_SAID,
    SCHEMA_VERSION,
    Snapshot,
    State,
    Totals,
)
from miniclaw_sessions.core.history.window import Kept, Packed
from miniclaw_sessions.core.protocol.encoding import decode_message, encode_message
from miniclaw_sessions.core.protocol.entries import INCOMPLETE, place_of_parent, without_wrong_texts
from miniclaw_sessions.core.protocol.json_values import STORED_DEPTH, check_json, instant, parse_json
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message, Role, message_from_dict
from miniclaw_sessions.core.protocol.parts import Instant
from miniclaw_sessions.errors import InvalidKey, InvalidMessage, SchemaTooNew, SessionsError

T = TypeVar("T")

_MAX_SEQUENCE = 2**62
"""No session has more entries; a larger number is damage, and would not fit into a store."""


class DamagedSnapshot(SessionsError):
    """A snapshot file does not hold a session; the text is the reason, without any of its content."""


class FileHead(NamedTuple):
    """What a start reads of a file that is as it was written.

    Attributes:
        session_id, incarnation, last_sequence: as in `State`.
        last_accessed: the same, in seconds since the epoch.
        messages: how many messages it has.
    """

    session_id: str
    incarnation: str
    last_sequence: int
    last_accessed: float
    messages: int


class _Head(msgspec.Struct, gc=False):
    """The fields of `State` that make a `FileHead`; the others are skipped."""

    session_id: str
    last_accessed: Instant
    schema_version: int
    incarnation: str
    last_sequence: int
    sequences: msgspec.Raw = NO_MESSAGES
    metadata: dict[str, Any] = {}


_NULL = b',"tool_calls":null}'
_MESSAGES = b',"messages":['
_BEHIND_MESSAGES = b'],"schema_version":'
_CRC = b',"crc32":"'
_CRC_BYTES = len(_CRC) + len(b'0a1b2c3d"}')
_decoder = msgspec.json.Decoder(State)
_head_decoder = msgspec.json.Decoder(_Head)
_pieces_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_message_decoder = msgspec.json.Decoder(Message)
_encoder = msgspec.json.Encoder()
OWN_FIELDS = frozenset(field.encode_name for field in msgspec.structs.fields(State))


# --- writing ---------------------------------------------------------------------------------------------------------


def encode_snapshot(snapshot: Snapshot, *, max_bytes: int | None = None) -> bytes:
    """The bytes of a snapshot file.

    Args:
        snapshot: what it says.
        max_bytes: to be no larger, the oldest messages are left out, and the file says that it is not complete.

    Raises:
        InvalidMessage: metadata or a message holds something that JSON cannot.
    """
    try:
        data = _encoder.encode(_with_window(snapshot.state, snapshot.kept))
        if snapshot.extra:
            data = data[:-1] + b"," + _encoder.encode(check_json(dict(snapshot.extra)))[1:]
    except (InvalidMessage, TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"session {snapshot.state.session_id} cannot be written as JSON: {error}") from None
    data = b'%s%s%08x"}' % (data[:-1], _CRC, crc32(data))
    if max_bytes is None or len(data) <= max_bytes or not snapshot.kept:
        return data
    return encode_snapshot(_shortened(snapshot, len(data) - max_bytes), max_bytes=max_bytes)


def _shortened(snapshot: Snapshot, excess: int) -> Snapshot:
    """The snapshot without this many bytes of its oldest messages; it begins with no orphan result."""
    kept = list(snapshot.kept)
    first = 0
    while first < len(kept) and (excess > 0 or kept[first].role is Role.TOOL_RESULT):
        excess -= len(kept[first].encoded)
        first += 1
    newest_evicted = max(snapshot.state.newest_evicted, kept[first - 1].sequence)
    state = snapshot.state.copy(newest_evicted=newest_evicted, complete=False)
    return replace(snapshot, state=state, kept=kept[first:])


def _with_window(state: State, kept: Sequence[Kept]) -> State:
    """The state with the messages, and the fields that say of each where it stands."""
    place = NOT_SAID if state.leaf_sequence == state.last_sequence else state.leaf_sequence
    if isinstance(kept, Packed):
        file = _decoder.decode(kept.data)
        window = {"messages": file.messages, "sequences": file.sequences, "ids": file.ids, "parents": file.parents}
    else:  # as miniclaw writes a message: with a null where it calls no tools
        messages = [one.encoded if one.calls_tools else one.encoded[:-1] + _NULL for one in kept]
        window = {
            "messages": msgspec.Raw(b"[%s]" % b",".join(messages)),
            "sequences": [one.sequence for one in kept],
            "ids": [one.id for one in kept],
            "parents": _unusual_parents(kept),
        }
    return replace(state, leaf_sequence=place, metadata=check_json(state.metadata), **window)


def _unusual_parents(entries: Sequence[Kept]) -> dict[str, tuple[str | None, int]]:
    """The parents that are not the message before, with their places."""
    before: str | None = None
    parents = {}
    for entry in entries:
        if entry.parent_id != before:
            parents[entry.id] = (entry.parent_id, place_of_parent(entry))
        before = entry.id
    return parents


def _without_null(message: Message, encoded: msgspec.Raw | bytes) -> bytes:
    """The message's bytes as they are kept, from those in the file."""
    data = bytes(encoded)
    if message.tool_calls is not None:
        return data
    if data.endswith(_NULL):
        return data[: -len(_NULL)] + b"}"
    return encode_message(message)


# --- reading ---------------------------------------------------------------------------------------------------------


def decode_snapshot(data: bytes, *, stem: str, now: datetime, new_id: Callable[[], str]) -> Snapshot:
    """The session in a snapshot file whose name is `stem` + ".json".

    Args:
        data: the file's bytes.
        stem: the file's name without `.json`; the channel and chat id within must map to it.
        now: what a file without times is taken to have been written at.
        new_id: makes the ids that a file from elsewhere lacks.

    Raises:
        SchemaTooNew: a newer version wrote it; it must be left alone.
        DamagedSnapshot: it does not hold a session, or another one than its name says, or contradicts its checksum.
    """
    is_as_written = _check_checksum(data)
    try:
        file = _decoder.decode(data)
        is_one_branch = len(file.ids) == len(file.sequences) and file.parents.keys() <= set(file.ids[:1])
        stays_packed = is_as_written and is_one_branch
        kept: Sequence[Kept] | None = Packed(data, len(file.ids), _unpack) if stays_packed else None
        pieces = _pieces_decoder.decode(file.messages) if kept is None else []
        messages = [_message_decoder.decode(piece) for piece in pieces]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _read_tolerantly(data, stem=stem, now=now, new_id=new_id)
    _refuse_newer(file.schema_version, stem)
    try:
        key = _checked_key(file.channel, file.chat_id, file.session_id, stem)
        if kept is None:
            kept = _kept(file, messages, [_without_null(*both) for both in zip(messages, pieces, strict=True)])
        return _assemble(file, key, kept)
    except (InvalidKey, InvalidMessage) as error:
        raise DamagedSnapshot(str(error)) from None


def head_of(data: bytes, *, stem: str) -> FileHead | None:
    """The head of a session's file whose name is `stem` + ".json"; None if only `decode_snapshot` can judge the file.

    Its messages are skipped: where their checksum agrees, they are as they were written.
    """
    begin, end = data.find(_MESSAGES), data.rfind(_BEHIND_MESSAGES)
    if not 0 < begin < end:
        return None
    # the same texts within a message or the metadata stand deeper: what is left then is no JSON
    without_messages = b"%s%s%s" % (data[:begin], _MESSAGES, data[end:])
    try:
        head = _head_decoder.decode(without_messages) if _check_checksum(data) else None
    except (DamagedSnapshot, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if head is None or head.session_id != stem or head.schema_version > SCHEMA_VERSION or INCOMPLETE in head.metadata:
        return None
    numbers = bytes(head.sequences)
    messages = 0 if numbers == bytes(NO_MESSAGES) else numbers.count(b",") + 1
    return FileHead(stem, head.incarnation, head.last_sequence, head.last_accessed.timestamp(), messages)


def _check_checksum(data: bytes) -> bool:
    """Whether a file has a checksum.

    Raises:
        DamagedSnapshot: it has, and contradicts it.
    """
    text = data.rstrip()  # an editor ends it with a line's end
    if text[-_CRC_BYTES : -_CRC_BYTES + len(_CRC)] != _CRC:
        return False
    if text[-_CRC_BYTES:] != b'%s%08x"}' % (_CRC, crc32(b"}", crc32(memoryview(text)[:-_CRC_BYTES]))):
        raise DamagedSnapshot("it contradicts its checksum")
    return True


def _unpack(data: bytes) -> list[Kept]:
    file = _decoder.decode(data)
    pieces = [bytes(piece) for piece in _pieces_decoder.decode(file.messages)]
    messages = [decode_message(piece) for piece in pieces]
    return _kept(file, messages, [_without_null(*both) for both in zip(messages, pieces, strict=True)])


def _kept(file: State, messages: Sequence[Message], encoded: Sequence[bytes]) -> list[Kept]:
    """The messages as the window keeps them, provided that what the file says of them agrees."""
    if not len(messages) == len(file.sequences) == len(file.ids):
        raise DamagedSnapshot("messages, sequences and ids differ in length")
    if len(set(file.ids)) < len(file.ids):
        raise DamagedSnapshot("two of its messages have the same id")
    kept: list[Kept] = []
    key_of = {entry_id: one for one, entry_id in file.idempotency_keys.items()}
    before: str | None = None
    previous = 0
    for message, data, sequence, entry_id in zip(messages, encoded, file.sequences, file.ids, strict=True):
        if sequence <= previous:
            raise DamagedSnapshot("its messages are not in order of sequence")
        parent_id, place = file.parents.get(entry_id, (before, previous)) if file.parents else (before, previous)
        kept.append(
            Kept(
                entry_id,
                parent_id,
                sequence,
                None if parent_id is None or place == sequence - 1 else place,
                message.timestamp or file.updated_at,
                message.role,
                message.tool_calls is not None,
                data,
                key_of.get(entry_id) if key_of else None,
            )
        )
        before, previous = entry_id, sequence
    return kept


def _assemble(file: State, key: SessionKey, kept: Sequence[Kept], extra: dict[str, Any] | None = None) -> Snapshot:
    """The snapshot of a file whose window is known, provided that the rest makes sense; `file` becomes its state."""
    if not (file.sequences[-1] if file.sequences else 0) <= file.last_sequence < _MAX_SEQUENCE:
        raise DamagedSnapshot("its last_sequence is below a message's sequence, or impossibly large")
    place = file.last_sequence if file.leaf_sequence == NOT_SAID else file.leaf_sequence
    if not 0 <= place <= file.last_sequence or not 0 <= file.newest_evicted <= file.last_sequence:
        raise DamagedSnapshot("its leaf_sequence or newest_evicted is no place in the session")
    if bytes(file.encoded_compaction) == bytes(NO_COMPACTION):
        file.encoded_compaction = NO_COMPACTION
    elif file.compaction is not None:  # raises unless it is one
        file.encoded_compaction = file.encoded_compaction.copy()  # or all of the file would stay in memory
    if not file.totals.messages and (said := sum(one.role is not Role.BRANCH_SUMMARY for one in kept)):
        file.totals = Totals(said, said)  # its writer does not count
    file.session_id, (file.channel, file.chat_id) = key.session_id, key
    file.last_accessed = _same(file.last_accessed, file.updated_at)
    file.leaf_id, file.leaf_sequence = _same(file.leaf_id, file.ids[-1] if file.ids else None), place
    file.metadata = without_wrong_texts(check_json(file.metadata))
    file.messages, file.sequences, file.ids, file.parents, file.crc32 = NO_MESSAGES, (), (), {}, ""
    return Snapshot(file, kept, check_json(extra or {}))


def _same(value: T, known: T) -> T:
    """Of two equal values one: thousands of sessions are in memory."""
    return known if value == known else value


def _read_tolerantly(data: bytes, *, stem: str, now: datetime, new_id: Callable[[], str]) -> Snapshot:
    """The slow path: foreign files, unknown fields, and everything that is wrong."""
    try:
        fields = parse_json(data, depth=STORED_DEPTH)
        if not isinstance(fields, dict):
            raise DamagedSnapshot(f"it holds a JSON {type(fields).__name__}, not an object")
        _refuse_newer(fields.get("schema_version", SCHEMA_VERSION), stem)
        key = _checked_key(fields.get("channel"), fields.get("chat_id"), fields.get("session_id"), stem)
        if not isinstance(messages := fields.get("messages"), list):
            raise DamagedSnapshot('it has no list of "messages"')
        known = {name: value for name, value in fields.items() if name in OWN_FIELDS}
        known |= {name: instant(known[name]) for name in ("created_at", "last_accessed", "updated_at") if name in known}
        found = [message_from_dict(message) for message in messages]
        extra = {name: value for name, value in fields.items() if name not in OWN_FIELDS}
        file = _decoder.decode(_encoder.encode({**_with_defaults(known, found, now, new_id), "messages": []}))
        if "sequences" not in fields:  # from elsewhere; ours says what the store says
            found = [m if m.timestamp else replace(m, timestamp=file.updated_at) for m in found]
        return _assemble(file, key, _kept(file, found, [encode_message(message) for message in found]), extra)
    except (InvalidMessage, InvalidKey, msgspec.MsgspecError) as error:
        raise DamagedSnapshot(str(error)) from None


def _with_defaults(
    fields: dict[str, Any], messages: Sequence[Message], now: datetime, new_id: Callable[[], str]
) -> dict[str, Any]:
    """What a file from elsewhere lacks, made up so that it can live on here."""
    times = [message.timestamp for message in messages if message.timestamp is not None]
    created_at = fields.get("created_at") or (times[0] if times else now)
    defaults = {
        "session_id": "",
        "created_at": created_at,
        "last_accessed": times[-1] if times else created_at,
        "updated_at": times[-1] if times else created_at,
        "schema_version": SCHEMA_VERSION,
        "incarnation": new_id(),
        "last_sequence": len(messages),
        "sequences": list(range(1, len(messages) + 1)),
    }
    merged = {**defaults, **{name: value for name, value in fields.items() if value is not None}}
    merged.setdefault("ids", [new_id() for _ in messages])
    if isinstance(merged["ids"], list) and merged["ids"]:
        merged.setdefault("leaf_id", merged["ids"][-1])
    return merged


def _refuse_newer(version: Any, stem: str) -> None:
    if not isinstance(version, int) or isinstance(version, bool):
        raise DamagedSnapshot("its schema_version is not a number")
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"{stem}.json has schema_version {version}; this version of miniclaw-sessions understands up to "
            f"{SCHEMA_VERSION}. Nothing was changed: upgrade, or move the file away."
        )


def _checked_key(channel: Any, chat_id: Any, session_id: Any, stem: str) -> SessionKey:
    """The key, provided that the file's name and its session_id speak of the same session (rule S2)."""
    key = SessionKey.of(channel, chat_id)
    names = (key.session_id, f"{key.channel}_{key.chat_id}")  # ours, and the Rust original's unescaped one
    if stem not in names or (session_id is not None and session_id not in names):
        raise DamagedSnapshot("its channel and chat id belong to another file name")
    return key
