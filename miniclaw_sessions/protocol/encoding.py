"""Messages and entries to JSON bytes and back: validated, and without losing a field.

Reading is strict first: msgspec decodes and checks in one pass and refuses any unknown field. Only what it refuses
takes the slow path, which understands the aliases of other programs and gathers unknown fields into `extra`; if that
fails too, the error says what is wrong. Writing puts the gathered fields back where they were.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar, get_args

import msgspec

from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.protocol.entries import Entry, MessageEntry, OtherEntry
from miniclaw_sessions.protocol.messages import (
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
)

MAX_DEPTH = 64
"""How deep JSON from outside may nest; deeper is refused before it is parsed (rule S9)."""

_encoder = msgspec.json.Encoder(decimal_format="number")
_entry_decoder = msgspec.json.Decoder(Entry)
_message_decoder = msgspec.json.Decoder(Message)
_any_decoder = msgspec.json.Decoder()
_PARTS: dict[str, type[TextPart | ImagePart | ThinkingPart]] = {
    "text": TextPart,
    "image": ImagePart,
    "thinking": ThinkingPart,
}
_ENTRIES: dict[str, type[Entry]] = {
    kind.__struct_config__.tag: kind  # type: ignore[misc]
    for kind in get_args(Entry)
    if kind is not OtherEntry
}
_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)  # a whole string, or one bracket
_OPENING = (b"[", b"{")
_CLOSING = (b"]", b"}")
T = TypeVar("T", bound=Value)


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
            return _encoder.encode({**fields, "message": message_to_dict(entry.message)})
        if isinstance(entry, OtherEntry):
            return bytes(entry.encoded)
        return _encoder.encode(entry if entry.extra is None else _flatten(entry))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidMessage(f"a {type(entry).__name__} cannot be stored as JSON: {error}") from None


def encode_message(message: Message) -> bytes:
    """A message as JSON, absent fields left out.

    Raises:
        InvalidMessage: it holds something that JSON cannot.
    """
    try:
        return _encoder.encode(message if _is_plain(message) else message_to_dict(message))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidMessage(f"a message cannot be stored as JSON: {error}") from None


def message_to_dict(message: Message) -> dict[str, Any]:
    """A message as JSON-ready data with its unknown fields back in their places."""
    fields = _flatten(message)
    if message.role is Role.OTHER and message.role_text is not None:
        fields["role"] = message.role_text
    fields.pop("$role", None)
    if message.tool_calls:
        fields["tool_calls"] = [_flatten(call) for call in message.tool_calls]
    if message.usage is not None:
        fields["usage"] = _flatten(message.usage)
    if not isinstance(message.content, str):
        fields["content"] = [p.fields if isinstance(p, OtherPart) else _flatten(p) for p in message.content]
    return fields


def _is_plain(message: Message) -> bool:
    """Whether the struct's own encoding is the right one: nothing unknown anywhere in it."""
    return (
        message.extra is None
        and message.role_text is None
        and (isinstance(message.content, str) or not any(isinstance(p, OtherPart) or p.extra for p in message.content))
        and (message.tool_calls is None or not any(call.extra for call in message.tool_calls))
        and (message.usage is None or message.usage.extra is None)
    )


def _flatten(value: Value) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(value)
    extra = fields.pop("$extra", None)
    return {**fields, **extra} if extra else fields


_EMPTY = Message(Role.OTHER)


# --- reading ---------------------------------------------------------------------------------------------------------


def decode_entry(encoded: bytes) -> Entry:
    """An entry from JSON; an unknown type becomes `OtherEntry`, byte for byte.

    Raises:
        InvalidMessage: it is not JSON, or it lacks what every entry needs.
    """
    try:
        return _entry_decoder.decode(encoded)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _tolerant_entry(encoded)


def decode_message(encoded: bytes) -> Message:
    """A message from JSON, with the aliases and unknown fields of other programs.

    Raises:
        InvalidMessage: it is not JSON, or it is not a message.
    """
    try:
        return _message_decoder.decode(encoded)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return message_from_dict(parse_json(encoded))


def parse_json(encoded: bytes) -> Any:
    """Any JSON from outside, as dicts and lists.

    Raises:
        InvalidMessage: it is not valid UTF-8 JSON, or nests deeper than `MAX_DEPTH`.
    """
    if nesting_exceeds(encoded, MAX_DEPTH):
        raise InvalidMessage(f"the JSON nests deeper than {MAX_DEPTH} levels")
    try:
        return _any_decoder.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMessage(f"not valid JSON: {error}") from None


def nesting_exceeds(encoded: bytes, limit: int) -> bool:
    """Whether JSON text nests deeper than `limit`; brackets within strings do not count."""
    if encoded.count(b"[") + encoded.count(b"{") <= limit:
        return False  # cannot be deeper than it has brackets: the usual case, and fast
    depth = 0
    for token in _STRUCTURE.findall(encoded):
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
    try:
        fields["role"] = Role(role_text)
    except ValueError:
        fields["role"], fields["$role"] = Role.OTHER, role_text
    if isinstance(content := fields.get("content"), list):
        fields["content"] = [_part_from(part) for part in content]
    elif content is None:
        fields["content"] = ""
    if calls := fields.pop("tool_calls", None):
        if not isinstance(calls, list):
            raise InvalidMessage('"tool_calls" must be a list')
        fields["tool_calls"] = [_call_from(call) for call in calls]
    if isinstance(usage := fields.get("usage"), dict):
        fields["usage"] = _gather(Usage, usage)
    return _gather(Message, fields)


def _part_from(part: Any) -> Part:
    if isinstance(part, str):
        return TextPart(part)
    if not isinstance(part, dict):
        raise InvalidMessage("a content part must be an object with a type")
    known = _PARTS.get(part.get("type", ""))
    if known is None:
        return OtherPart(part)
    return _gather(known, {name: value for name, value in part.items() if name != "type"})


def _call_from(call: Any) -> ToolCall:
    if not isinstance(call, dict):
        raise InvalidMessage("a tool call must be an object with id, name and arguments")
    fields = dict(call)
    if isinstance(function := fields.get("function"), dict) and "name" not in fields:  # OpenAI's nested spelling
        fields["name"], fields["arguments"] = function.get("name"), function.get("arguments", "")
        del fields["function"]
        if fields.get("type") == "function":
            del fields["type"]
    if not isinstance(fields.get("arguments", ""), str):  # some programs store an object; its text is made once
        fields["arguments"] = _encoder.encode(fields["arguments"]).decode()
    return _gather(ToolCall, fields)


def _gather(kind: type[T], fields: dict[str, Any]) -> T:
    """Build a value from a dict, putting what it has no field for into `extra`."""
    known = {field.encode_name for field in msgspec.structs.fields(kind)}  # type: ignore[arg-type]
    own = {name: value for name, value in fields.items() if name in known and name != "$extra"}
    if unknown := {name: value for name, value in fields.items() if name not in known or name == "$extra"}:
        own["$extra"] = unknown
    try:
        return msgspec.convert(own, kind)
    except msgspec.ValidationError as error:
        raise InvalidMessage(f"not a valid {kind.__name__.lower()}: {error}") from None


def _tolerant_entry(encoded: bytes) -> Entry:
    data = parse_json(encoded)
    if not isinstance(data, dict):
        raise InvalidMessage("an entry must be a JSON object")
    kind = _ENTRIES.get(data.get("type", ""))
    fields = {name: value for name, value in data.items() if name != "type"}
    if kind is None:
        base = {name: fields[name] for name in ("id", "parent_id", "timestamp", "sequence") if name in fields}
        return _gather(OtherEntry, {**base, "encoded": msgspec.Raw(encoded)})
    if kind is not MessageEntry:
        return _gather(kind, fields)
    entry = _gather(MessageEntry, {**fields, "message": {"role": "other"}})
    return msgspec.structs.replace(entry, message=message_from_dict(fields.get("message")))
