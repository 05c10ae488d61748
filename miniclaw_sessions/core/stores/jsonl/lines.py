"""The lines of a transcript file: writing and reading them, as plain functions.

    {"type":"session","id":"telegram_1","version":1,...,"channel":"telegram","chat_id":"1","incarnation":...,"crc32":...}
    {"type":"message","id":...,"parent_id":null,"timestamp":...,"sequence":1,"message":{...},"crc32":"0a1b2c3d"}

The first line is the head of the session; each further one is the JSON of an entry. Each ends with the
field `"crc32"`: the CRC-32 of the line without that field, in hexadecimal. Without the field the line is the entry's
JSON byte for byte. Lines of older versions have no checksum, nor have lines from which an editor removed it. An entry
whose bytes are not one line of JSON with its id and sequence is wrapped: `{"type":"opaque","id":..., "sequence":...,`
and then its `"json"`, or its bytes in `"base64"`.

The lines of one append count only together. So each line but the last of an append ends in a space, and each line but
the first begins with one: the hole that a power cut leaves may swallow either. JSON ignores the spaces, and an editor
that strips them does no harm.

Lines end at the byte 0x0A and nowhere else (rule R13).
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any
from zlib import crc32

import msgspec

from miniclaw_sessions.clock import derived_id
from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.json_values import in_utc, parse_json
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import LOST, SessionHead, StoredEntry, damaged
from miniclaw_sessions.errors import InvalidKey, InvalidMessage, SchemaTooNew, StoreCorrupt, StoreError

VERSION = 1
"""The version of the format. Later ones keep `type`, `version` and `incarnation` in the first line for this one."""

LONGEST_LINE = 256 * 1024 * 1024
"""The longest line that we write, in bytes; looking for the end of a longer one could fill the memory."""

MORE_FOLLOWS = b" \n"
"""The end of a line whose append goes on with the next line."""

GOES_ON = b" "
"""The beginning of a line that belongs to the append of the line before it."""

Sequence64 = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]

_OPAQUE = "opaque"
_CRC = b',"crc32":"'
_CRC_BYTES = len(_CRC) + len(b'00000000"}')
_SPACE = b" \t\r\n"
_BASE64 = re.compile(rb'"base64":"([^"]+)')
_NO_BASE64 = re.compile(rb"[^A-Za-z0-9+/]")
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class NotOurs(StoreCorrupt):
    """A file with a session's name is another program's, or another session's; it is left alone."""


class _Header(msgspec.Struct, frozen=True, tag="session", tag_field="type"):
    id: str
    version: int
    timestamp: datetime
    channel: str
    chat_id: str
    incarnation: str


class _Says(msgspec.Struct, frozen=True, gc=False):
    """The fields of an entry's line that are needed here; the rest only has to be JSON."""

    id: str
    sequence: Sequence64
    type: str = ""
    idempotency_key: Any = None


class _Opaque(msgspec.Struct, frozen=True, tag=_OPAQUE, tag_field="type", omit_defaults=True):
    id: str
    sequence: Sequence64
    idempotency_key: str | None = None
    json: msgspec.Raw = msgspec.Raw()
    base64: bytes = b""


_encoder = msgspec.json.Encoder()
_header_decoder = msgspec.json.Decoder(_Header)
_says_decoder = msgspec.json.Decoder(_Says)
_opaque_decoder = msgspec.json.Decoder(_Opaque)

# --- the first line --------------------------------------------------------------------------------------------------


def header_of(head: SessionHead) -> bytes:
    """The first line of a session's file.

    Raises:
        StoreError: the head holds text that is not Unicode.
    """
    created_at = in_utc(head.created_at)
    header = _Header(head.session_id, VERSION, created_at, head.key.channel, head.key.chat_id, head.incarnation)
    try:
        return _with_checksum(_encoder.encode(header)) + b"\n"
    except UnicodeEncodeError:
        raise StoreError(f"cannot create session {head.session_id}: its head is not valid Unicode") from None


def head_in(line: bytes, session_id: str) -> SessionHead:
    """The head of a session, from the first line of its file.

    Raises:
        SchemaTooNew: a newer version of this program wrote it.
        NotOurs: the file is another program's, or another session's.
        StoreCorrupt: the line is damaged.
    """
    line, is_sound = _without_checksum(line.strip(_SPACE))
    if not is_sound:
        raise StoreCorrupt("its first line is damaged: it contradicts its checksum")
    try:
        header = _header_decoder.decode(line)
        key = SessionKey.of(header.channel, header.chat_id)
    except (*_UNREADABLE, InvalidKey):
        raise _refusal(line) from None
    if header.version != VERSION:
        raise _refusal(line)
    if key.session_id != header.id:
        raise StoreCorrupt(f"its first line contradicts itself: that chat's session is {key.session_id}")
    if header.id != session_id:
        raise NotOurs(f"it is the file of session {header.id}; give it that name back, or move it away")
    return SessionHead(session_id, key, header.incarnation, in_utc(header.timestamp))


def _refusal(line: bytes) -> StoreError:
    try:
        fields = parse_json(line)
    except InvalidMessage:
        return StoreCorrupt("its first line is damaged")
    if not isinstance(fields, dict) or fields.get("type") != "session":
        return StoreCorrupt("its first line is not a session's")
    if "incarnation" not in fields and not {"channel", "chat_id"} & fields.keys():
        return NotOurs("another program wrote it, and it does not say which chat it is; import it, or move it away")
    version = fields.get("version")
    if isinstance(version, int) and version > VERSION:
        return SchemaTooNew(
            f"a newer version of miniclaw-sessions wrote it (format {version}, this one knows {VERSION}); "
            "install that version, nothing was changed"
        )
    return StoreCorrupt("its first line is damaged")


def head_of_damaged(line: bytes, session_id: str, first: StoredEntry) -> SessionHead:
    """The head of a session whose first line is damaged, from the rest of the line, the file name and the first entry.

    If the incarnation is lost, the session gets a new one, which is the same at each start.

    Raises:
        StoreCorrupt: channel and chat id cannot be recovered.
    """
    with suppress(*_UNREADABLE, InvalidKey):
        header = _header_decoder.decode(line)
        key = SessionKey.of(header.channel, header.chat_id)
        if key.session_id == session_id:
            return SessionHead(session_id, key, header.incarnation, in_utc(header.timestamp))
    try:
        key = SessionKey.parse(session_id)
        created_at = decode_entry(first.encoded).timestamp
    except (InvalidKey, InvalidMessage) as error:
        raise StoreCorrupt(f"its first line is damaged, and the rest does not identify its session ({error})") from None
    return SessionHead(session_id, key, derived_id(f"{session_id} {first.entry_id}"), in_utc(created_at))


# --- the other lines -------------------------------------------------------------------------------------------------


def lines_of(entries: Sequence[StoredEntry]) -> bytes:
    """The lines of one append.

    Raises:
        StoreError: no form of an entry can be read back unchanged.
    """
    return (MORE_FOLLOWS + GOES_ON).join([_line_of(entry) for entry in entries]) + b"\n" if entries else b""


def _line_of(entry: StoredEntry) -> bytes:
    """The first form of the entry that reads back as the same entry."""
    content = entry.sequence, entry.entry_id, entry.encoded
    with suppress(UnicodeEncodeError, OverflowError):
        for line in _forms(entry):
            read = entry_in(line) if b"\n" not in line and len(line) < LONGEST_LINE else None
            if read is None or (read.sequence, read.entry_id, read.encoded) != content:
                continue
            if entry.idempotency_key in (None, read.idempotency_key):  # one that only its JSON has may be added
                return line
    raise StoreError(f"cannot store an entry at sequence {entry.sequence}: a line of JSON cannot hold it")


def _forms(entry: StoredEntry) -> Iterator[bytes]:
    if entry.encoded.endswith(b"}"):
        yield _with_checksum(entry.encoded)
    who = entry.entry_id, entry.sequence, entry.idempotency_key
    yield _with_checksum(_encoder.encode(_Opaque(*who, json=msgspec.Raw(entry.encoded))))
    yield _with_checksum(_encoder.encode(_Opaque(*who, base64=entry.encoded)))


def entry_in(line: bytes) -> StoredEntry | None:
    """The entry of a line, or None if the line is damaged."""
    text, is_sound = _without_checksum(line.strip(_SPACE))
    return _entry_of(text) if is_sound else None


def damaged_in(line: bytes, sequence: int) -> StoredEntry:
    """A damaged entry for a damaged line; with the id in the line, if the line has this sequence too."""
    text, _ = _without_checksum(line.strip(_SPACE))
    said = _entry_of(text)
    if said is not None and said.sequence == sequence:
        return damaged(said)
    if (wrapped := _BASE64.search(text)) is not None:  # its other bytes may show what it was
        text = b64decode(_NO_BASE64.sub(b"A", wrapped[1][: len(wrapped[1]) // 4 * 4]))
    return damaged(StoredEntry(sequence, f"damaged-{sequence}", text))


def was_line_of(entry: StoredEntry, line: bytes) -> bool:
    """Whether a damaged line was this entry's, by its checksum or by the rest of the line; or is lost."""
    right, text = _line_of(entry), line.strip(_SPACE)
    if text == right:
        return False
    stored = entry_in(line)
    is_lost = stored is not None and stored.encoded == LOST
    return is_lost or text[-_CRC_BYTES:] == right[-_CRC_BYTES:] or text[:-_CRC_BYTES] == right[:-_CRC_BYTES]


def is_whole(line: bytes) -> bool:
    """Whether a line was written completely, so that its damage has another cause than a crash."""
    return line.endswith(b"\n") and b"\0" not in line and _CRC in line.strip(_SPACE)[-_CRC_BYTES:]


def _with_checksum(text: bytes) -> bytes:
    return b'%s,"crc32":"%08x"}' % (text[:-1], crc32(text))


def _without_checksum(text: bytes) -> tuple[bytes, bool]:
    """The JSON of a line without its checksum, and whether they agree; True if there is no checksum."""
    if text[-_CRC_BYTES : -_CRC_BYTES + len(_CRC)] != _CRC:
        return text, True
    plain = text[:-_CRC_BYTES] + b"}"
    return plain, text.endswith(b'%08x"}' % crc32(plain))


def _entry_of(text: bytes) -> StoredEntry | None:
    try:
        says = _says_decoder.decode(text)
        if says.type != _OPAQUE:
            key = says.idempotency_key
            return StoredEntry(says.sequence, says.id, text, key if isinstance(key, str) else None)
        opaque = _opaque_decoder.decode(text)
    except _UNREADABLE:
        return None
    return StoredEntry(opaque.sequence, opaque.id, bytes(opaque.json) or opaque.base64, opaque.idempotency_key)


def states_key(key: str) -> bytes:
    """The bytes that each line with this idempotency key contains, as we write it."""
    return b'"idempotency_key":' + _encoder.encode(key)
