"""Messages and entries to JSON bytes and back: validated, and without losing a field.

Reading is strict first: msgspec decodes and checks in one pass and refuses any unknown field. Only what it refuses
takes the slow path, which understands the aliases of other programs and gathers unknown fields into `extra`; if that
fails too, the error says what is wrong. Writing puts the gathered fields back where they were, and refuses a value that
would come back as another one.
"""

from __future__ import annotations

import math
from datetime import UTC
from typing import Any, TypeVar, cast, get_args

import msgspec

from miniclaw_sessions.core.protocol.content import KNOWN_PARTS
from miniclaw_sessions.core.protocol.entries import Compaction, Custom, Entry, EntryBase, MessageEntry, OtherEntry
from miniclaw_sessions.core.protocol.json_values import (
    STORED_DEPTH,
    check_json,
    field_names,
    gather,
    in_utc,
    parse_json,
)
from miniclaw_sessions.core.protocol.messages import Message, is_bare, message_from_dict
from miniclaw_sessions.core.protocol.parts import EXTRA, OtherPart, Role, Usage, known_role
from miniclaw_sessions.errors import InvalidMessage

_encoder = msgspec.json.Encoder(decimal_format="number")
_entry_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)
_message_decoder = msgspec.json.Decoder(Message)
_ENTRIES: dict[str, type[Entry]] = {
    kind.__struct_config__.tag: kind for kind in get_args(Entry) if kind is not OtherEntry
}
_MESSAGE = b'"message":'
E = TypeVar("E", bound=EntryBase)


# --- writing ---------------------------------------------------------------------------------------------------------


def encode_entry(entry: Entry) -> bytes:
    """An entry as JSON, ready for a store.

    Raises:
        InvalidMessage: it holds something that JSON cannot (a lone surrogate, NaN, an integer over 64 bits).
    """
    try:
        if isinstance(entry, MessageEntry):
            if entry.extra is None and _is_plain(entry.message):
                return _encoder.encode(entry)
            fields = _flatten(msgspec.structs.replace(entry, message=_EMPTY))
            del fields["message"]
            return _encoder.encode({**fields, "message": message_to_dict(entry.message)})
        if isinstance(entry, OtherEntry):
            return bytes(entry.encoded)
        if isinstance(entry, Custom):
            check_json(entry.data)
        if isinstance(entry, Compaction) and (entry.messages or entry.usage is not None):
            fields = _flatten(msgspec.structs.replace(entry, messages=(), usage=None))
            if entry.usage is not None:
                fields["usage"] = _flatten(entry.usage)
            if entry.messages:
                fields["messages"] = [message_to_dict(message) for message in entry.messages]
            return _encoder.encode(fields)
        return _encoder.encode(entry if entry.extra is None else _flatten(entry))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidMessage(f"a {type(entry).__name__} cannot be stored as JSON: {error}") from None


def message_within(entry: MessageEntry, encoded: bytes) -> bytes:
    """The JSON of a message, cut out of its entry's, which `encode_entry` has just made."""
    if entry.extra is not None:  # which may have a "message" of its own
        return encode_message(entry.message)
    return encoded[encoded.index(_MESSAGE) + len(_MESSAGE) : -1]  # a quote within a text is never without a backslash


def encode_message(message: Message) -> bytes:
    """A message as JSON, absent fields left out.

    Raises:
        InvalidMessage: it holds something that JSON cannot.
    """
    try:
        return _encoder.encode(message if _is_plain(message) else message_to_dict(message))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidMessage(f"a message cannot be stored as JSON: {error}") from None


def encode_json(value: Any) -> bytes:
    """Free-form data as JSON.

    Raises:
        InvalidMessage: it holds something that JSON cannot.
    """
    try:
        return _encoder.encode(check_json(value))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidMessage(f"the data cannot be stored as JSON: {error}") from None


def message_to_dict(message: Message) -> dict[str, Any]:
    """A message as JSON-ready data with its unknown fields back in their places.

    Raises:
        InvalidMessage: an unknown field holds something that JSON cannot.
    """
    fields = _flatten(message)
    role_text: Any = message.role_text
    if role_text is not None:
        if not isinstance(role_text, str) or not role_text or known_role(role_text) is not None:
            raise InvalidMessage(f"role_text is {role_text!r}, which would be read as another role than OTHER")
        fields["role"] = role_text
    if message.timestamp is not None:
        fields["timestamp"] = msgspec.to_builtins(in_utc(message.timestamp))
    if message.tool_calls:
        fields["tool_calls"] = [_flatten(call) for call in message.tool_calls]
    if message.usage is not None:
        fields["usage"] = _flatten(message.usage)
    if not isinstance(message.content, str):
        fields["content"] = [_flatten(part) for part in message.content]
    return fields


def message_document(message: Message) -> dict[str, Any]:
    """A message as `message_to_dict` has it, with its content also where that is empty."""
    return {"content": "", **message_to_dict(message)}


def _is_plain(message: Message) -> bool:
    """Whether the struct's own JSON is the right one: nothing unknown anywhere in it, its time in UTC."""
    usage = message.usage
    return (
        message.extra is None
        and (message.timestamp is None or message.timestamp.tzinfo is UTC)
        and (
            isinstance(message.content, str)
            or all(not isinstance(part, OtherPart) and part.extra is None for part in message.content)
        )
        and (message.tool_calls is None or all(call.extra is None for call in message.tool_calls))
        and (usage is None or (usage.extra is None and (usage.cost is None or math.isfinite(usage.cost))))
    )


def _flatten(value: Any) -> dict[str, Any]:
    """A value as a dict with its unknown fields among the known ones, which they may not replace."""
    if isinstance(value, OtherPart):
        # a list, because a type that is not hashable cannot be looked up in a dict
        if value.fields.get("type") in [*KNOWN_PARTS]:
            raise InvalidMessage(
                "a part of a type of ours would be read as such, or not at all; wrap it in another type"
            )
        fields: dict[str, Any] = check_json(value.fields)
        return fields
    extra = check_json(value.extra)
    own = field_names(value.__class__)[0]
    if isinstance(value, Message) and value.role is Role.OTHER:
        own = own - {"role"}  # `extra` has the text of the unknown role there
    if extra and (clash := sorted(extra.keys() & own)):
        raise InvalidMessage(f"extra holds {clash[0]!r}, which is a field of its own: set that")
    fields = msgspec.to_builtins(value)
    fields.pop(EXTRA, None)
    if isinstance(value, Usage):
        check_json(value.cost)
    return {**fields, **extra} if extra else fields


_EMPTY = Message(Role.OTHER)


def encoded_text(entry: MessageEntry) -> tuple[MessageEntry, bytes]:
    """`encoded_once` for a new entry with a message of plain text (`is_bare`): nothing in it needs another look.

    Raises:
        InvalidMessage: its text is one that JSON cannot hold.
    """
    try:
        return entry, _encoder.encode(entry)
    except ValueError as error:
        raise InvalidMessage(f"a {type(entry).__name__} cannot be stored as JSON: {error}") from None


def encoded_once(entry: E) -> tuple[E, bytes]:
    """An entry as its own bytes say it, and these bytes.

    The entry that is returned shares nothing with its maker. Anything but a message of plain text is read back from
    its bytes, so nothing is accepted that could not be read again.

    Raises:
        InvalidMessage: it cannot be stored faithfully.
    """
    encoded = encode_entry(entry)  # type: ignore[arg-type]
    if isinstance(entry, MessageEntry) and is_bare(entry.message, entry.message.timestamp):
        return entry, encoded
    return cast("E", decode_entry(encoded)), encoded


# --- reading ---------------------------------------------------------------------------------------------------------


def decode_entry(encoded: bytes) -> Entry:
    """An entry from JSON; an unknown type becomes `OtherEntry`, byte for byte.

    Raises:
        InvalidMessage: it is not JSON, or it lacks what every entry needs.
    """
    try:
        entry = _entry_decoder.decode(encoded)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        entry = _tolerant_entry(encoded)
    if isinstance(entry, Custom):
        check_json(entry.data)  # it becomes metadata, which must be fit for a snapshot
    return entry


def decode_message(encoded: bytes) -> Message:
    """A message from JSON, with the aliases and unknown fields of other programs.

    Raises:
        InvalidMessage: it is not JSON, or it is not a message.
    """
    try:
        return _message_decoder.decode(encoded)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return message_from_dict(parse_json(encoded))


def _tolerant_entry(encoded: bytes) -> Entry:
    data = parse_json(encoded, depth=STORED_DEPTH)
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise InvalidMessage('an entry must be a JSON object with a "type"')
    kind = _ENTRIES.get(data["type"])
    fields = {name: value for name, value in data.items() if name != "type"}
    if kind is None:
        base = {name: fields[name] for name in ("id", "parent_id", "timestamp", "sequence") if name in fields}
        return gather(OtherEntry, {**base, "encoded": msgspec.Raw(encoded)})
    if kind is Compaction and isinstance(usage := fields.get("usage"), dict):
        fields["usage"] = gather(Usage, usage)
    if kind is Compaction and isinstance(messages := fields.get("messages"), list):
        compaction = gather(Compaction, {name: value for name, value in fields.items() if name != "messages"})
        return msgspec.structs.replace(compaction, messages=tuple(message_from_dict(message) for message in messages))
    if kind is not MessageEntry:
        return gather(kind, fields)
    entry = gather(MessageEntry, {**fields, "message": {"role": "other"}})
    return msgspec.structs.replace(entry, message=message_from_dict(fields.get("message")))
