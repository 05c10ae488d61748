"""pi's entries, of every type, from and to ours.

Where the two do not match:

- What pi has no type for is a `custom` entry of ours there, named after us: free metadata, an entry of a type that
  this version does not know, and a move of the leaf, as a child of where it moves to, so that pi goes on there, too.
- What we have no type for is a `Custom` entry of pi's here: it holds the line, and the writer writes that line again.
- pi's own `custom` entries keep their name, unless it is one that means something to us: then it is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, cast

import msgspec
import orjson

from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import (
    METADATA,
    BranchSummary,
    Compaction,
    Custom,
    Entry,
    EntryBase,
    Label,
    LeafMove,
    MessageEntry,
    ModelChange,
    OtherEntry,
    SessionInfo,
    ThinkingLevelChange,
)
from miniclaw_sessions.core.protocol.messages import Message, Role
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.codec import kept_fields, taken, without
from miniclaw_sessions.files.formats.pi.messages import (
    KEPT,
    OWN,
    Setting,
    Shape,
    Unusable,
    form_of,
    from_text,
    read_content,
    read_message,
    read_usage,
    take_own,
    to_text,
    with_own,
    write_message,
    write_parts,
    write_usage,
)

VERSION = 3
"""The version of pi's files that is written, and the newest that is known."""

LINE = "pi:line"
"""The `custom_type` of entries that hold a line of pi's which has no form here."""

_ESCAPE = "pi:"  # before the name of a foreign custom entry that would mean something to us
_OURS = "miniclaw-sessions/"  # before the names of our entries that are custom entries in pi
_LEAF = f"{_OURS}leaf"
_OTHER = f"{_OURS}entry"
_BASE = ("type", "id", "parentId", "timestamp")


class Place(NamedTuple):
    """What every entry has; `is_sound` is False where the reader had to find another parent."""

    id: str
    parent_id: str | None
    timestamp: datetime
    is_sound: bool = True

    def __call__(self, kind: type[EntryBase], **fields: Any) -> Any:
        """An entry of this kind at this place."""
        return kind(id=self.id, parent_id=self.parent_id, timestamp=self.timestamp, **fields)


class _Field(NamedTuple):
    """A field of pi's that is one of ours; `default` is our value where pi has none of this type."""

    name: str
    attribute: str
    kind: type
    default: Any = ""
    required: bool = True  # without it a line is not what its type says
    always: bool = True  # pi always writes it


class _Kind(NamedTuple):
    """A type of entry whose fields match ours one by one."""

    name: str
    entry: type[EntryBase]
    shape: Shape
    fields: tuple[_Field, ...]


def _kind(name: str, entry: type[EntryBase], fields: tuple[_Field, ...], *more: str) -> _Kind:
    """A kind whose lines have these fields, and behind them `more` that we have no place for."""
    names = (field.name for field in fields)
    always = [field.name for field in fields if field.always]
    return _Kind(name, entry, Shape(*_BASE, *names, *more, always=always), fields)


_PROVIDER = _Field("provider", "provider", str)
_MODEL = _Field("modelId", "model_id", str)
_LEVEL = _Field("thinkingLevel", "thinking_level", str)
_NAME = _Field("name", "name", str, required=False)
_TARGET = _Field("targetId", "target_id", str)
_LABEL = _Field("label", "label", str, required=False, always=False)
_FROM = _Field("fromId", "from_id", str, required=False)
_SUMMARY = _Field("summary", "summary", str)
_FIRST_KEPT = _Field("firstKeptEntryId", "first_kept_entry_id", str, None, required=False)
_TOKENS = _Field("tokensBefore", "tokens_before", int, 0, required=False)
_MORE = ("details", "fromHook", "usage", "retainedTail", "systemMessage")
_KINDS = (
    _kind("model_change", ModelChange, (_PROVIDER, _MODEL)),
    _kind("thinking_level_change", ThinkingLevelChange, (_LEVEL,)),
    _kind("session_info", SessionInfo, (_NAME,)),
    _kind("label", Label, (_TARGET, _LABEL)),
    _kind("compaction", Compaction, (_SUMMARY, _FIRST_KEPT, _TOKENS), *_MORE),
    _kind("branch_summary", BranchSummary, (_FROM, _SUMMARY), *_MORE),
)
_BY_NAME = {kind.name: kind for kind in _KINDS}
_BY_ENTRY = {kind.entry: kind for kind in _KINDS}
_MESSAGE = Shape(*_BASE, "message")
_ABOUT_CUSTOM = ("customType", "display", "details")
_CUSTOM_MESSAGE = Shape(
    *("type", "customType", "content", "display", "details", "id", "parentId", "timestamp"),
    always=("customType", "content", "display"),
)
_CUSTOM = Shape("type", "customType", "data", "id", "parentId", "timestamp", always=("customType", "data"))


# --- reading ---------------------------------------------------------------------------------------------------------


def read_entry(fields: Mapping[str, Any], place: Place) -> Entry | None:
    """One of pi's entries at its place; None for a type that we do not know.

    Raises:
        Unusable: it does not hold what its type promises.
    """
    name = fields.get("type")
    if not isinstance(name, str):
        raise Unusable("it has no type")
    if (kind := _BY_NAME.get(name)) is not None:
        return _read_matching(kind, fields, place)
    read = _READERS.get(name)
    return None if read is None else read(fields, place)


def read_line(line: str, place: Place) -> Custom:
    """A line that has no form here, kept as it is."""
    return cast("Custom", place(Custom, custom_type=LINE, data={"line": line}))


def _rest_of(fields: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """The fields beside those that every entry has; among them its time where we would write it otherwise."""
    rest = without(fields, "type", "id", "parentId")
    if rest.get("timestamp") == to_text(place.timestamp):
        del rest["timestamp"]
    return rest


def _read_matching(kind: _Kind, fields: Mapping[str, Any], place: Place) -> Entry:
    rest = _rest_of(fields, place)
    own = take_own(rest)
    found: dict[str, Any] = {}
    for field in kind.fields:
        value = rest.get(field.name)
        if type(value) is field.kind and (field.always or value != field.default):
            found[field.attribute] = rest.pop(field.name)
        elif field.required:
            raise Unusable(f"its {field.name} is missing, or of a wrong type")
        else:
            found[field.attribute] = field.default
            if value is None and field.default is None and field.name in rest:
                del rest[field.name]
    if kind.entry is Compaction:
        found |= _more_of_compaction(rest, own, place)
    return cast("Entry", place(kind.entry, **found, extra=kind.shape.keep(fields, rest)))


def _more_of_compaction(rest: dict[str, Any], own: Mapping[str, Any], place: Place) -> dict[str, Any]:
    found = {name: own[name] for name in ("model", "reason") if isinstance(own.get(name), str)}
    if isinstance(tail := rest.get("retainedTail"), list) and tail:
        try:
            found["messages"] = tuple(read_message(message, place.timestamp) for message in tail)
        except Unusable:
            raise Unusable("a message of its retainedTail is not one") from None
        del rest["retainedTail"]
    if isinstance(rest.get("usage"), dict):
        found["usage"] = read_usage(rest.pop("usage"))
    if type(own.get("tokens_after")) is int:
        found["tokens_after"] = own["tokens_after"]
    return found


def _read_message_entry(fields: Mapping[str, Any], place: Place) -> MessageEntry:
    rest = _rest_of(fields, place)
    own = take_own(rest)
    message = read_message(rest.pop("message", None), place.timestamp)
    return _message_entry(place, message, own, _MESSAGE.keep(fields, rest))


def _read_custom_message(fields: Mapping[str, Any], place: Place) -> MessageEntry:
    rest = _rest_of(fields, place)
    own = take_own(rest)
    if not isinstance(rest.get("customType"), str):
        raise Unusable("its customType is missing, or of a wrong type")
    content, calls = read_content(rest.pop("content", None))
    about = {name: rest.pop(name) for name in _ABOUT_CUSTOM if name in rest}
    message = Message(Role.CUSTOM, content, tool_calls=calls, extra={KEPT: about})
    return _message_entry(place, message, own, _CUSTOM_MESSAGE.keep(fields, rest, type="custom_message"))


def _message_entry(place: Place, message: Message, own: Mapping[str, Any], extra: Any) -> MessageEntry:
    key = own.get("idempotency_key")
    return MessageEntry(
        id=place.id,
        parent_id=place.parent_id,
        timestamp=place.timestamp,
        message=message,
        idempotency_key=key if isinstance(key, str) else None,
        continues=own.get("continues") is True,
        extra=extra,
    )


def _read_custom(fields: Mapping[str, Any], place: Place) -> Entry:
    name, data = fields.get("customType"), fields.get("data")
    if not isinstance(name, str):
        raise Unusable("its customType is missing, or of a wrong type")
    ours = _read_ours(name, data, place)
    if ours is not None:
        return ours
    rest = without(_rest_of(fields, place), "customType")
    data = taken(rest, "data", dict) or {}
    if name.startswith(_OURS) and name not in (_LEAF, _OTHER):  # those were damaged, or they would not come here
        name = name.removeprefix(_OURS)
    elif name == METADATA or name.startswith(_ESCAPE):
        name = _ESCAPE + name
    return cast("Entry", place(Custom, custom_type=name, data=data, extra=_CUSTOM.keep(fields, rest)))


def _read_ours(name: str, data: Any, place: Place) -> Entry | None:
    """An entry that our writer wrote in the form of a custom one; None when it is another."""
    match name, data:
        case (n, {"left": str() | None as left}) if n == _LEAF and place.is_sound:
            return LeafMove(id=place.id, parent_id=left, timestamp=place.timestamp, target_id=place.parent_id)
        case (n, {"encoded": str(encoded)}) if n == _OTHER:
            try:
                entry = decode_entry(encoded.encode())
            except InvalidMessage:
                return None
            is_same = isinstance(entry, OtherEntry) and (entry.id, entry.parent_id) == place[:2]
            return entry if is_same else None
    return None


_READERS: dict[str, Callable[[Mapping[str, Any], Place], Entry]] = {
    "message": _read_message_entry,
    "custom_message": _read_custom_message,
    "custom": _read_custom,
}

TYPES = frozenset([*_BY_NAME, *_READERS])
"""The types of entries that we know."""


# --- writing ---------------------------------------------------------------------------------------------------------


def write_entry(entry: Entry, setting: Setting) -> bytes:
    """An entry as one of pi's lines, without its end."""
    match entry:
        case MessageEntry():
            return orjson.dumps(_write_message_entry(entry, setting))
        case LeafMove(target_id=target):
            return _write_ours(entry, _LEAF, {"left": entry.parent_id}, parent_id=target)
        case OtherEntry(encoded=encoded):
            return _write_ours(entry, _OTHER, {"encoded": bytes(encoded).decode()}, parent_id=entry.parent_id)
        case Custom():
            return _write_custom(entry)
        case _:
            return orjson.dumps(_write_matching(_BY_ENTRY[type(entry)], entry, setting))


def _base(entry: EntryBase, name: str) -> dict[str, Any]:
    """What every line has; the time in the words in which it came, as long as they mean this moment."""
    read = kept_fields(entry.extra, KEPT).get("timestamp")
    moment = read if read is not None and from_text(read) == entry.timestamp else to_text(entry.timestamp)
    return {"type": name, "id": entry.id, "parentId": entry.parent_id, "timestamp": moment}


def _write_matching(kind: _Kind, entry: EntryBase, setting: Setting) -> dict[str, Any]:
    fields = _base(entry, kind.name)
    defaults: dict[str, Any] = {}
    for field in kind.fields:
        value = getattr(entry, field.attribute)
        if value != field.default:
            fields[field.name] = value
        elif field.always:
            defaults[field.name] = value
    own: dict[str, Any] = {}
    if isinstance(entry, Compaction):
        if entry.messages:
            fields["retainedTail"] = [write_message(message, setting) for message in entry.messages]
        if entry.usage is not None:
            fields["usage"] = write_usage(entry.usage)
        own = {"reason": entry.reason} if entry.reason else {}
        own |= {} if entry.model is None else {"model": entry.model}
        own |= {} if entry.tokens_after is None else {"tokens_after": entry.tokens_after}
    return kind.shape.restore(with_own(fields, own), entry.extra, defaults=defaults)


def _write_message_entry(entry: MessageEntry, setting: Setting) -> dict[str, Any]:
    message = entry.message
    own: dict[str, Any] = {} if entry.idempotency_key is None else {"idempotency_key": entry.idempotency_key}
    own |= {"continues": True} if entry.continues else {}
    if form_of(entry.extra).get("type") != "custom_message" or message.role is not Role.CUSTOM:
        fields = _base(entry, "message") | {"message": write_message(message, setting)}
        return _MESSAGE.restore(with_own(fields, own), entry.extra)
    kept = kept_fields(message.extra, KEPT)
    about = {name: kept[name] for name in _ABOUT_CUSTOM if name in kept}
    is_text = isinstance(message.content, str) and not message.tool_calls
    fields = _base(entry, "custom_message") | about | {"content": message.content if is_text else write_parts(message)}
    return _CUSTOM_MESSAGE.restore(with_own(fields, own), entry.extra, made={"customType": OWN, "display": True})


def _write_ours(entry: EntryBase, name: str, data: dict[str, Any], *, parent_id: str | None) -> bytes:
    moment = to_text(entry.timestamp)
    fields = {"type": "custom", "customType": name, "data": data, "id": entry.id, "parentId": parent_id}
    return orjson.dumps({**fields, "timestamp": moment})


def _write_custom(entry: Custom) -> bytes:
    line = entry.data.get("line")
    if entry.custom_type == LINE and isinstance(line, str) and (written := _at_place(line, entry)) is not None:
        return written
    name = entry.custom_type
    plain = name.removeprefix(_ESCAPE)
    if plain != name and (plain == METADATA or plain.startswith(_ESCAPE)):
        name = plain
    elif name == METADATA or name.startswith((_ESCAPE, _OURS)):
        name = _OURS + name
    fields = _base(entry, "custom") | {"customType": name}
    fields |= {"data": entry.data} if entry.data else {}
    return orjson.dumps(_CUSTOM.restore(fields, entry.extra, defaults={"data": {}}))


def _at_place(line: str, entry: EntryBase) -> bytes | None:
    """A kept line as it came, with the id and parent of its entry if these differ. None if it is no line."""
    encoded = line.encode()
    try:
        fields = msgspec.json.decode(encoded, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return None
    base = {"id": orjson.dumps(entry.id), "parentId": orjson.dumps(entry.parent_id)}
    if all(name in fields and bytes(fields[name]) == value for name, value in base.items()):
        return None if b"\n" in encoded else encoded
    return msgspec.json.encode(fields | {name: msgspec.Raw(value) for name, value in base.items()})
