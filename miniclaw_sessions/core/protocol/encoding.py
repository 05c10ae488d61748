"""Messages and entries to JSON bytes and back: validated, and without losing a field.

Reading is strict first: msgspec decodes and checks in one pass and refuses any unknown field. Only what it refuses
takes the slow path, which understands the aliases of other programs and gathers unknown fields into `extra`; if that
fails too, the error says what is wrong. Writing puts the gathered fields back where they were, and refuses what would
come back as something else.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar, cast, get_args

import msgspec

from miniclaw_sessions.core.protocol.entries import Compaction, Custom, Entry, EntryBase, MessageEntry, OtherEntry
from miniclaw_sessions.core.protocol.messages import (
    EXTRA,
    ImagePart,
    Message,
    OtherPart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    Usage,
    Value,
    construct,
)
from miniclaw_sessions.errors import InvalidMessage

MAX_DEPTH = 64
"""How deep JSON from outside may nest; deeper is refused before it is parsed (rule S9)."""

STORED_DEPTH = MAX_DEPTH + 8
"""How deep an entry or a snapshot may nest: what was accepted from outside lies a few levels further down in it."""

_SMALLEST, _LARGEST = -(2**63), 2**64 - 1

_encoder = msgspec.json.Encoder(decimal_format="number")
_entry_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)
_message_decoder = msgspec.json.Decoder(Message)
_pieces_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw])
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_any_decoder = msgspec.json.Decoder()
_PARTS: dict[str, type[TextPart | ImagePart | ThinkingPart]] = {
    "text": TextPart,
    "image": ImagePart,
    "thinking": ThinkingPart,
}
_ENTRIES: dict[str, type[Entry]] = {
    kind.__struct_config__.tag: kind for kind in get_args(Entry) if kind is not OtherEntry
}
_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)  # a whole string, or one bracket
_ELEMENT = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{,]', re.DOTALL)  # a whole string, or one of them
_OPENING = (b"[", b"{")
_CLOSING = (b"]", b"}")
_ELEMENTS = (*_OPENING, b",")
_MESSAGE = b'"message":'
T = TypeVar("T", bound=Value)
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
    if (role_text := message.role_text) is not None:
        fields["role"] = _checked_role_text(role_text)
    if message.timestamp is not None:
        fields["timestamp"] = msgspec.to_builtins(in_utc(message.timestamp))
    if message.tool_calls:
        fields["tool_calls"] = [_flatten(call) for call in message.tool_calls]
    if message.usage is not None:
        fields["usage"] = _flatten(message.usage)
    if not isinstance(message.content, str):
        fields["content"] = [_other_part(p) if isinstance(p, OtherPart) else _flatten(p) for p in message.content]
    return fields


def _other_part(part: OtherPart) -> Any:
    if part.fields.get("type") in [*_PARTS]:  # a list: a type that is no text cannot be looked up in a dict
        raise InvalidMessage("a part of a type of ours would be read as such, or not at all; wrap it in another type")
    return check_json(part.fields)


def _checked_role_text(text: Any) -> str:
    if not isinstance(text, str) or not text or _known_role(text) is not None:
        raise InvalidMessage(f"role_text is {text!r}, which would be read as another role than OTHER")
    return text


def _known_role(text: str) -> Role | None:
    try:
        return Role(text)
    except ValueError:
        return None


def check_json(value: Any, levels: int = MAX_DEPTH) -> Any:
    """The same value, provided that it is JSON which every reader gets back as it was written.

    Args:
        value: free-form data: lists, dicts and plain values.
        levels: how deep it may nest.

    Raises:
        InvalidMessage: NaN or an infinity, an integer over 64 bits, a key that is not text, another type, or too deep.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        if not _SMALLEST <= value <= _LARGEST:  # not `in range`: it walks through the range for an IntEnum's member
            raise InvalidMessage("an integer has more than 64 bits; send it as text")
    elif type(value) is float:
        if not math.isfinite(value):
            raise InvalidMessage("JSON has no NaN and no infinity; leave the number out or send it as text")
    elif isinstance(value, dict) or type(value) in (list, tuple):
        _check_nested(value, levels)
    else:
        raise InvalidMessage(f"JSON has no form for a {type(value).__name__}; convert it first")
    return value


def _check_nested(value: Any, levels: int) -> None:
    if not levels:
        raise InvalidMessage(f"the JSON nests deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        if not all(type(name) is str for name in value):
            raise InvalidMessage("a JSON object's keys must be text")
        value = value.values()
    for item in value:
        check_json(item, levels - 1)


def in_utc(moment: datetime) -> datetime:
    """The same moment in UTC; one without a time zone is taken to be UTC already."""
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    with suppress(OverflowError):  # hours before the year 1: it stays as it is
        return moment.astimezone(UTC)
    return moment


def _is_plain(message: Message) -> bool:
    """Whether the struct's own JSON is the right one: nothing unknown anywhere in it, its time in UTC."""
    return (
        message.extra is None
        and (message.timestamp is None or message.timestamp.tzinfo is UTC)
        and (isinstance(message.content, str) or all(_is_plain_part(part) for part in message.content))
        and (message.tool_calls is None or all(call.extra is None for call in message.tool_calls))
        and (message.usage is None or _is_plain_usage(message.usage))
    )


def _is_plain_part(part: Part) -> bool:
    return not isinstance(part, OtherPart) and part.extra is None


def _is_plain_usage(usage: Usage) -> bool:
    return usage.extra is None and (usage.cost is None or math.isfinite(usage.cost))


def _flatten(value: Any) -> dict[str, Any]:
    """A value as a dict with its unknown fields among the known ones, which they may not replace."""
    extra = check_json(value.extra)
    own = _field_names(value.__class__)[0]
    if isinstance(value, Message) and value.role is Role.OTHER:
        own = own - {"role"}  # there the unknown role's text is
    if extra and (clash := sorted(extra.keys() & own)):
        raise InvalidMessage(f"extra holds {clash[0]!r}, which is a field of its own: set that")
    fields: dict[str, Any] = msgspec.to_builtins(value)
    fields.pop(EXTRA, None)
    if isinstance(value, Usage):
        check_json(value.cost)
    return {**fields, **extra} if extra else fields


@cache
def _field_names(kind: type[Value]) -> tuple[frozenset[str], frozenset[str]]:
    """The JSON names of a value's fields, and of those that it must have."""
    fields = [field for field in msgspec.structs.fields(kind) if field.encode_name != EXTRA]
    tag = [kind.__struct_config__.tag_field] if kind.__struct_config__.tag_field else []
    names = frozenset([field.encode_name for field in fields] + tag)
    return names, frozenset(field.encode_name for field in fields if field.required)


_EMPTY = Message(Role.OTHER)


def encoded_once(entry: E) -> tuple[E, bytes]:
    """An entry as its own bytes say it, and these bytes.

    It shares nothing with whoever made it, and nothing is accepted that could not be read again: what is more than a
    message of plain text is read back.

    Raises:
        InvalidMessage: it cannot be stored faithfully.
    """
    encoded = encode_entry(entry)  # type: ignore[arg-type]
    if isinstance(entry, MessageEntry) and is_bare(entry.message, entry.message.timestamp):
        return entry, encoded
    return cast("E", decode_entry(encoded)), encoded


def is_bare(message: Message, timestamp: datetime | None = None) -> bool:
    """Whether a message is a role and a text, and nothing else but this time."""
    role, content = message.role, message.content
    return type(content) is str and type(role) is Role and message == construct(Message, role, content, timestamp)


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


def parse_json(encoded: bytes, *, depth: int = MAX_DEPTH, elements: int | None = None) -> Any:
    """Any JSON from outside, as dicts and lists.

    Args:
        encoded: the text.
        depth: how deep it may nest.
        elements: how many objects, lists and commas it may have, where its length alone does not bound the memory
            that it takes: three bytes of text can become seventy (rule S10).

    Raises:
        InvalidMessage: it is not valid UTF-8 JSON, or has more levels or elements than it may.
    """
    if elements is not None and has_more_elements(encoded, elements):
        raise InvalidMessage(f"the JSON has more than {elements} elements")
    if nesting_exceeds(encoded, depth):
        raise InvalidMessage(f"the JSON nests deeper than {depth} levels")
    try:
        return _any_decoder.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMessage(f"not valid JSON: {error}") from None


def parse_in_pieces(encoded: bytes) -> Any:
    """`parse_json` of a document that may be long, for a thread: each element of its long list is parsed on its own.

    The interpreter lets no other thread run while a piece of JSON is parsed.

    Raises:
        InvalidMessage: it is not valid UTF-8 JSON, or nests too deep.
    """
    try:
        pieces = _pieces_decoder.decode(encoded)
        if isinstance(pieces, list):
            return [parse_json(bytes(piece), depth=MAX_DEPTH - 1) for piece in pieces]
        return {name: _parsed_list(bytes(value)) for name, value in pieces.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMessage(f"not valid JSON: {error}") from None


def _parsed_list(encoded: bytes) -> Any:
    if encoded[:1] != b"[":
        return parse_json(encoded, depth=MAX_DEPTH - 1)
    return [parse_json(bytes(piece), depth=MAX_DEPTH - 2) for piece in _list_decoder.decode(encoded)]


def has_more_elements(encoded: bytes, limit: int) -> bool:
    """Whether JSON text has more objects, lists and commas than `limit`; those within strings do not count."""
    if encoded.count(b",") + encoded.count(b"[") + encoded.count(b"{") <= limit:
        return False
    found = 0
    for match in _ELEMENT.finditer(encoded):
        if match[0] in _ELEMENTS:
            found += 1
            if found > limit:
                return True
    return False


def nesting_exceeds(encoded: bytes, limit: int) -> bool:
    """Whether JSON text nests deeper than `limit`; brackets within strings do not count."""
    if encoded.count(b"[") + encoded.count(b"{") <= limit:
        return False  # cannot be deeper than it has brackets: the usual case, and fast
    depth = 0
    for match in _STRUCTURE.finditer(encoded):  # not all at once: no other thread would run meanwhile
        token = match[0]
        if token in _OPENING:
            depth += 1
            if depth > limit:
                return True
        elif token in _CLOSING:
            depth -= 1
    return False


def message_from_dict(data: Any) -> Message:
    """A message from parsed JSON; unknown fields and parts go to `extra`, aliases become the canonical roles.

    Raises:
        InvalidMessage: it is not an object, has no role, or a known field has a wrong type.
    """
    if not isinstance(data, dict):
        raise InvalidMessage(f"a message must be a JSON object, not {type(data).__name__}")
    fields = dict(data)
    role_text = fields.get("role")
    if not isinstance(role_text, str) or not role_text:
        raise InvalidMessage('a message needs a "role", such as "user"')
    role = _known_role(role_text)
    fields["role"] = role or Role.OTHER
    if isinstance(content := fields.get("content"), list):
        fields["content"] = [part_from(part) for part in content]
    elif content is None:
        fields["content"] = ""
    calls = fields.pop("tool_calls", None)
    if not isinstance(calls, list | None):
        raise InvalidMessage('"tool_calls" must be a list')
    if calls:
        fields["tool_calls"] = [call_from(call) for call in calls]
    if isinstance(usage := fields.get("usage"), dict):
        fields["usage"] = gather(Usage, usage)
    message = gather(Message, fields)
    return message if role else msgspec.structs.replace(message, extra={**(message.extra or {}), "role": role_text})


def part_from(part: Any) -> Part:
    """A content part from JSON: a text is one of text, a type that nobody knows is kept as it came.

    Raises:
        InvalidMessage: it is no object, or lacks what its type needs.
    """
    if isinstance(part, str):
        return TextPart(part)
    if not isinstance(part, dict):
        raise InvalidMessage("a content part must be an object with a type")
    kind = part.get("type")
    known = _PARTS.get(kind) if isinstance(kind, str) else None
    if known is None:
        return OtherPart(check_json(part))
    return gather(known, {name: value for name, value in part.items() if name != "type"})


def call_from(call: Any) -> ToolCall:
    """A tool call from JSON, also in the nested spelling of OpenAI.

    Raises:
        InvalidMessage: it is none.
    """
    if not isinstance(call, dict):
        raise InvalidMessage("a tool call must be an object with id, name and arguments")
    fields = dict(call)
    if isinstance(function := fields.get("function"), dict) and "name" not in fields:  # OpenAI's nested spelling
        fields["name"], fields["arguments"] = function.get("name"), function.get("arguments")
        fields["function"] = {name: value for name, value in function.items() if name not in ("name", "arguments")}
        if not fields["function"]:
            del fields["function"]
        if fields.get("type") == "function":
            del fields["type"]
    if not isinstance(fields.get("arguments"), str | None):  # some programs store an object; its text is made once
        fields["arguments"] = _encoder.encode(check_json(fields["arguments"])).decode()
    return gather(ToolCall, fields)


def gather(kind: type[T], fields: dict[str, Any]) -> T:
    """Build a value from a dict, putting what it has no field for into `extra`; null means absent where it may be.

    Raises:
        InvalidMessage: a field is missing, or has a wrong type.
    """
    known, required = _field_names(kind)
    own = {n: value for n, value in fields.items() if n in known and (value is not None or n in required)}
    if "timestamp" in own:
        own["timestamp"] = instant(own["timestamp"])
    if unknown := {name: value for name, value in fields.items() if name not in known}:
        own[EXTRA] = check_json(unknown)
    try:
        return msgspec.convert(own, kind)
    except msgspec.ValidationError as error:
        raise InvalidMessage(f"not a valid {kind.__name__.lower()}: {error}") from None


def instant(value: Any) -> Any:
    """A time from JSON, in UTC, where a time that names no zone is taken to be; what is not a time stays as it is."""
    try:
        moment = msgspec.convert(value, datetime)
    except msgspec.ValidationError:
        return value
    return in_utc(moment)


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
