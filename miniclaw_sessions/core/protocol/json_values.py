"""JSON from outside: parsed within bounds, checked, and made into our values without losing a field."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

import msgspec

from miniclaw_sessions.core.protocol.parts import EXTRA, Value
from miniclaw_sessions.errors import InvalidMessage

MAX_DEPTH = 64
"""How deep JSON from outside may nest; deeper is refused before it is parsed (rule S9)."""

STORED_DEPTH = MAX_DEPTH + 8
"""How deep an entry or a snapshot may nest: what was accepted from outside is a few levels further down in it."""

_SMALLEST, _LARGEST = -(2**63), 2**64 - 1

_pieces_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw])
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_any_decoder = msgspec.json.Decoder()
_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)  # a whole string, or one bracket
_ELEMENT = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{,]', re.DOTALL)  # a whole string, or one of them
_OPENING = (b"[", b"{")
_CLOSING = (b"]", b"}")
_ELEMENTS = (*_OPENING, b",")
T = TypeVar("T", bound=Value)


# --- parsing ---------------------------------------------------------------------------------------------------------


def parse_json(encoded: bytes, *, depth: int = MAX_DEPTH, elements: int | None = None) -> Any:
    """Any JSON from outside, as dicts and lists.

    Args:
        encoded: the text.
        depth: how deep it may nest.
        elements: how many objects, lists and commas it may have (rule S10): three bytes of text can take seventy of
            memory, so the length alone is no bound.

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


# --- checking --------------------------------------------------------------------------------------------------------


def check_json(value: Any, levels: int = MAX_DEPTH) -> Any:
    """The same value, if it is JSON that every reader gets back as it was written.

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
        if not levels:
            raise InvalidMessage(f"the JSON nests deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict) and not all(type(name) is str for name in value):
            raise InvalidMessage("a JSON object's keys must be text")
        for item in value.values() if isinstance(value, dict) else value:
            check_json(item, levels - 1)
    else:
        raise InvalidMessage(f"JSON has no form for a {type(value).__name__}; convert it first")
    return value


def in_utc(moment: datetime) -> datetime:
    """The same moment in UTC; one without a time zone is taken to be UTC already."""
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    with suppress(OverflowError):  # hours before the year 1: it stays as it is
        return moment.astimezone(UTC)
    return moment


def instant(value: Any) -> Any:
    """A time from JSON, in UTC; one without a time zone is taken to be UTC. What is not a time stays as it is."""
    try:
        moment = msgspec.convert(value, datetime)
    except msgspec.ValidationError:
        return value
    return in_utc(moment)


# --- values ----------------------------------------------------------------------------------------------------------


def gather(kind: type[T], fields: dict[str, Any]) -> T:
    """Build a value from a dict. What has no field goes into `extra`; null means absent where that is allowed.

    Raises:
        InvalidMessage: a field is missing, or has a wrong type.
    """
    known, required = field_names(kind)
    own = {n: value for n, value in fields.items() if n in known and (value is not None or n in required)}
    if "timestamp" in own:
        own["timestamp"] = instant(own["timestamp"])
    if unknown := {name: value for name, value in fields.items() if name not in known}:
        own[EXTRA] = check_json(unknown)
    try:
        return msgspec.convert(own, kind)
    except msgspec.ValidationError as error:
        raise InvalidMessage(f"not a valid {kind.__name__.lower()}: {error}") from None


@cache
def field_names(kind: type[Value]) -> tuple[frozenset[str], frozenset[str]]:
    """The JSON names of all fields of a type, and of its required fields."""
    fields = [field for field in msgspec.structs.fields(kind) if field.encode_name != EXTRA]
    tag = [kind.__struct_config__.tag_field] if kind.__struct_config__.tag_field else []
    names = frozenset([field.encode_name for field in fields] + tag)
    return names, frozenset(field.encode_name for field in fields if field.required)
