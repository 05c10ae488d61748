"""pi's messages, of every role, and the parts of their content, from and to ours; and how pi lays out its objects.

pi mixes tool calls with the other parts; we keep them apart (`codec.in_order` knows in which order they were).
Arguments are an object in pi and the model's own text with us: the text is kept where the object would give another.

pi counts on some fields that others do without, such as the usage of an assistant's message: where we have none, the
writer makes one up, and notes that it did, so that the reader leaves it out again.

What our values have no field for survives under three names. Under `extra["pi"]` stand the fields of pi that have no
canonical place, verbatim. Under `extra["pi-form"]` stands how the object was written, where pi's usual way would not
give it back: above all its names, when their order or their number is unusual. And in pi's file, under "miniclaw",
stands what only we know; pi passes such fields on without looking at them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from miniclaw_sessions.core.protocol.json_values import MAX_DEPTH, check_json, in_utc, parse_json
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    Message,
    OtherPart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    Usage,
)
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.codec import in_order, kept_fields, plain, role_named, taken, taken_apart, without

KEPT = "pi"
"""The key of `extra` under which pi's fields without a canonical place are kept."""

FORM = "pi-form"
"""The key of `extra` that says how an object was written, where that is not pi's usual way."""

OWN = "miniclaw"
"""The field of pi's objects in which we write what pi has no field for."""

_MADE = "made"  # within OWN: the fields that stand there only because pi expects them
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_SHAPES_REMEMBERED = 256  # distinct orders of names; a file has a handful


class Unusable(Exception):
    """A line of a known type does not hold what its type promises; the text says what is missing."""


class Shape:
    """The names of one kind of object, in pi's order; those in `always` are never left out."""

    __slots__ = ("_unusual", "always", "order")

    def __init__(self, *order: str, always: Iterable[str] = ()) -> None:
        self.order = order
        self.always = frozenset(always)
        self._unusual = lru_cache(_SHAPES_REMEMBERED)(self._find_unusual)

    def _find_unusual(self, names: tuple[str, ...]) -> list[str] | None:
        names = tuple(name for name in names if name != OWN)
        usual = [name for name in self.order if name in names or name in self.always]
        usual += [name for name in names if name not in self.order]
        return None if list(names) == usual else list(names)

    def keep(self, fields: Mapping[str, Any], rest: Mapping[str, Any], **form: Any) -> dict[str, Any] | None:
        """What must be remembered of an object, as an `extra`; None when that is nothing.

        Args:
            fields: the object as it was read.
            rest: those of its fields that were not understood.
            form: more about how it was written; None stands for what was written as usual.
        """
        names = self._unusual(tuple(fields))
        if not rest and names is None and not form:
            return None
        unusual = {name: value for name, value in form.items() if value is not None}
        if names is not None:
            unusual["names"] = list(names)
        return ({KEPT: dict(rest)} if rest else {}) | ({FORM: unusual} if unusual else {}) or None

    def restore(
        self,
        fields: Mapping[str, Any],
        extra: Mapping[str, Any] | None,
        *,
        defaults: Mapping[str, Any] | None = None,
        made: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The object as pi writes it, or as it was read.

        Args:
            fields: what our value says; nothing that was kept overrides it.
            extra: what `keep` remembered.
            defaults: what is written where neither says anything, unless it was absent when it was read.
            made: the same, for fields that mean nothing to us and only satisfy pi.
        """
        kept = kept_fields(extra, KEPT)
        named = form_of(extra).get("names") if extra else None
        names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else None
        absent: frozenset[str] = frozenset() if names is None else self.always.difference(names)
        whole = {**(made or {}), **(defaults or {})}
        if absent:
            whole = {name: value for name, value in whole.items() if name not in absent}
        written = [name for name in made or () if name in whole and name not in kept and name not in fields]
        whole |= kept
        whole |= fields
        if written:
            whole[OWN] = {**whole.get(OWN, {}), _MADE: written}
        ordered = {name: whole[name] for name in (names or self.order) if name in whole}
        return ordered if len(ordered) == len(whole) else {**ordered, **whole}


def form_of(extra: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """How an object was written, where that was unusual."""
    return kept_fields(extra, FORM)


def take_own(rest: dict[str, Any]) -> Mapping[str, Any]:
    """Take out of an object's fields what we wrote for ourselves, and what we only wrote to satisfy pi."""
    if not isinstance(rest.get(OWN), dict):
        return {}
    own: dict[str, Any] = rest.pop(OWN)
    if isinstance(made := own.get(_MADE), list):
        for name in made:
            if isinstance(name, str):
                rest.pop(name, None)
    return own


def with_own(fields: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an object with those that only we know, if there are any."""
    return {**fields, OWN: dict(own)} if own else fields


# --- times -----------------------------------------------------------------------------------------------------------


def from_milliseconds(value: Any) -> datetime | None:
    """The moment that a count of Unix milliseconds stands for; None when it is not one."""
    if type(value) is not int:
        return None
    try:
        return _EPOCH + value * _MILLISECOND
    except OverflowError:
        return None


def to_milliseconds(moment: datetime) -> int:
    """A moment as Unix milliseconds; what is finer is cut off."""
    return (in_utc(moment) - _EPOCH) // _MILLISECOND


def to_text(moment: datetime) -> str:
    """A moment as pi writes it: with milliseconds and Z; finer only where the moment is."""
    moment = in_utc(moment)
    text = moment.isoformat(timespec="microseconds" if moment.microsecond % 1000 else "milliseconds")
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def from_text(value: Any) -> datetime | None:
    """The moment that an entry's time stands for, in UTC: ISO 8601, or Unix milliseconds; None when it is neither."""
    if not isinstance(value, str):
        return from_milliseconds(value)
    try:
        return in_utc(datetime.fromisoformat(value))
    except ValueError:
        return None


# --- the shapes of messages -------------------------------------------------------------------------------------------

PARTIAL = "partialJson"
"""What pi leaves on a call whose stream broke off; `history.context` looks for it at the top of a call's `extra`."""

_TEXT = Shape("type", "text", "textSignature")
_THINKING = Shape("type", "thinking", "thinkingSignature", "redacted")
_IMAGE = Shape("type", "data", "mimeType")
_CALL = Shape("type", "id", "name", "arguments", "thoughtSignature", PARTIAL, always=("arguments",))
_WRAPPED = "pi"  # the type of a part that holds one of pi's which is not what its type says
_WRAP = frozenset({"text", "image", "thinking", _WRAPPED})
_ARGUMENTS_DEPTH = MAX_DEPTH - 10  # arguments lie a few levels down in a line, which has a limit of its own

_ROLES = {
    Role.USER: "user",
    Role.ASSISTANT: "assistant",
    Role.TOOL_RESULT: "toolResult",
    Role.BASH_EXECUTION: "bashExecution",
    Role.CUSTOM: "custom",
    Role.BRANCH_SUMMARY: "branchSummary",
    Role.COMPACTION_SUMMARY: "compactionSummary",
    Role.SYSTEM: "system",
    Role.OTHER: "other",
}
_ROLES_BACK = {text: role for role, text in _ROLES.items() if role is not Role.OTHER}
_ROLES_BACK["hookMessage"] = Role.CUSTOM  # version 2's name
_SUMMARIES = (Role.BRANCH_SUMMARY, Role.COMPACTION_SUMMARY)
_IN_PARTS = (Role.ASSISTANT, Role.TOOL_RESULT)  # pi always has their content as a list

BASH_FIELDS = ("command", "output", "excludeFromContext")
"""What `history.context` reads of a shell command, at the top of a message's `extra`."""

_PLAIN = Shape("role", "content", "timestamp", always=("content", "timestamp"))
_SHAPES = {
    Role.ASSISTANT: Shape(
        *("role", "content", "api", "provider", "model", "usage", "stopReason", "timestamp"),
        *("responseId", "errorMessage"),
        always=("content", "api", "provider", "model", "usage", "stopReason", "timestamp"),
    ),
    Role.TOOL_RESULT: Shape(
        *("role", "toolCallId", "toolName", "content", "details", "isError", "timestamp"),
        always=("toolCallId", "toolName", "content", "isError", "timestamp"),
    ),
    Role.BASH_EXECUTION: Shape(
        *("role", "command", "output", "exitCode", "cancelled", "truncated", "fullOutputPath", "timestamp"),
        "excludeFromContext",
        always=("command", "output", "cancelled", "truncated", "timestamp"),
    ),
    Role.CUSTOM: Shape(
        *("role", "customType", "content", "display", "details", "timestamp"),
        always=("customType", "content", "display", "timestamp"),
    ),
    Role.BRANCH_SUMMARY: Shape("role", "summary", "fromId", "timestamp", always=("summary", "fromId", "timestamp")),
    Role.COMPACTION_SUMMARY: Shape(
        *("role", "summary", "tokensBefore", "timestamp"), always=("summary", "tokensBefore", "timestamp")
    ),
}
_COUNTS = ("input", "output", "cacheRead", "cacheWrite")
_USAGE = Shape(*_COUNTS, "totalTokens", "cost", always=(*_COUNTS, "cost"))
_NO_COST = {**dict.fromkeys(_COUNTS, 0), "total": 0}
_NO_USAGE = {**dict.fromkeys(_COUNTS, 0), "totalTokens": 0, "cost": _NO_COST}
_ATTRIBUTES = {"toolCallId": "tool_call_id", "model": "model", "stopReason": "stop_reason"}
_OWN_ATTRIBUTES = ("name", "author")


class Setting(NamedTuple):
    """Where a message stands: what pi wants to know of one, and the message itself may not say.

    Attributes:
        moment: when its entry was logged.
        provider: the provider of the model in force.
        model: the model in force.
    """

    moment: datetime
    provider: str = ""
    model: str = ""


# --- reading messages -------------------------------------------------------------------------------------------------


def read_message(fields: Any, moment: datetime) -> Message:
    """One of pi's messages.

    Args:
        fields: the message as parsed JSON.
        moment: when its entry was logged; the message has this time where pi's milliseconds agree with it.

    Raises:
        Unusable: it is not an object, has no role, or its content is neither text nor parts.
    """
    if not isinstance(fields, dict):
        raise Unusable("its message is not an object")
    rest = dict(fields)
    own = take_own(rest)
    role, role_extra = _take_role(rest)
    found: dict[str, Any] = {"content": ""}
    if rest.get("content") is not None:
        found["content"], found["tool_calls"] = read_content(rest.pop("content"))
    elif role in _SUMMARIES and isinstance(rest.get("summary"), str):
        found["content"] = rest.pop("summary")
    names = {**_ATTRIBUTES, "toolName": "name"} if role is Role.TOOL_RESULT else _ATTRIBUTES
    for name, attribute in names.items():
        if isinstance(rest.get(name), str):
            found[attribute] = rest.pop(name)
    _take_rest(role, rest, found, moment)
    for attribute in _OWN_ATTRIBUTES:
        if isinstance(own.get(attribute), str):
            found[attribute] = own[attribute]
    if own.get("plain") is True:
        found["content"] = plain(found["content"])  # it was text with us before it became a list for pi
    top = {name: rest.pop(name) for name in BASH_FIELDS if name in rest} if role is Role.BASH_EXECUTION else {}
    is_unusual = role in _IN_PARTS and not isinstance(fields.get("content"), list)
    kept = _shape(role).keep(fields, rest, **({"list": False} if is_unusual else {}))
    return Message(role, **found, extra={**top, **role_extra, **(kept or {})} or None)


def _take_role(rest: dict[str, Any]) -> tuple[Role, dict[str, Any]]:
    """The role, and the `extra` that an unknown one needs; another spelling of a known one stays among the fields."""
    text = rest.get("role")
    if not isinstance(text, str) or not text:
        raise Unusable("its message has no role")
    role = role_named(text, _ROLES_BACK)
    if text in _ROLES_BACK:
        del rest["role"]
    elif role is Role.OTHER and text != role.value:
        return role, {"role": rest.pop("role")}
    return role, {}


def _take_rest(role: Role, rest: dict[str, Any], found: dict[str, Any], moment: datetime) -> None:
    """Whether it is an error, what it cost and when it was said, where these are what they should be."""
    if rest.get("isError") is True or (role is Role.TOOL_RESULT and rest.get("isError") is False):
        found["is_error"] = rest.pop("isError")
    if isinstance(rest.get("usage"), dict):
        found["usage"] = read_usage(rest.pop("usage"))
    if (said := from_milliseconds(rest.get("timestamp"))) is not None:
        del rest["timestamp"]
        found["timestamp"] = moment if to_milliseconds(moment) == to_milliseconds(said) else said


def read_usage(fields: dict[str, Any]) -> Usage:
    """What a message, or a summary, cost."""
    rest = dict(fields)
    take_own(rest)
    input_, output, cache_read, cache_write = (_take_count(rest, name) or 0 for name in _COUNTS)
    total = _take_count(rest, "totalTokens")
    cost = None
    match rest.get("cost"):
        case {"total": int() | float() as number} if not isinstance(number, bool):
            cost = float(number)
            if rest["cost"] == {**_NO_COST, "total": number} and list(rest["cost"]) == list(_NO_COST):
                del rest["cost"]
    return Usage(input_, output, cache_read, cache_write, total, cost, _USAGE.keep(fields, rest))


def _take_count(rest: dict[str, Any], name: str) -> int | None:
    return rest.pop(name) if type(rest.get(name)) is int else None


# --- reading parts ----------------------------------------------------------------------------------------------------


def read_content(content: Any) -> tuple[str | tuple[Part, ...], tuple[ToolCall, ...] | None]:
    """The content of one of pi's messages, and the tool calls in it.

    Raises:
        Unusable: it is neither text nor a list of parts.
    """
    if isinstance(content, str):
        return content, None
    if not isinstance(content, list):
        raise Unusable("its content is neither text nor a list of parts")
    return taken_apart([_read_item(item) for item in content])


def _read_item(item: Any) -> Part | ToolCall:
    match item:
        case {"type": "text", "text": str(text)}:
            return _read_text(item, text)
        case {"type": "thinking", "thinking": str(thinking)}:
            rest = without(item, "type", "thinking")
            redacted = rest.get("redacted") is True and rest.pop("redacted")
            return ThinkingPart(thinking, taken(rest, "thinkingSignature", str), redacted, _THINKING.keep(item, rest))
        case {"type": "image", "data": str(data), "mimeType": str(media_type)}:
            rest = without(item, "type", "data", "mimeType")
            url = take_own(rest).get("url")
            return ImagePart(media_type, data, url if isinstance(url, str) else None, _IMAGE.keep(item, rest))
        case {"type": "toolCall", "id": str(call_id), "name": str(name)}:
            return _read_call(item, call_id, name)
        case {"type": str(kind)} if kind not in _WRAP:
            return OtherPart(item)
        case _:
            return OtherPart({"type": _WRAPPED, "part": item})


def _read_text(item: dict[str, Any], text: str) -> TextPart | ImagePart:
    if len(item) == 2:  # noqa: PLR2004 - a type and a text: nearly all parts
        return TextPart(text, _TEXT.keep(item, {}))
    rest = without(item, "type", "text")
    match take_own(rest).get("image"):
        case {"media_type": str(media_type), "url": str() | None as url}:
            return ImagePart(media_type, url=url)
    return TextPart(text, _TEXT.keep(item, rest))


def _read_call(item: dict[str, Any], call_id: str, name: str) -> ToolCall:
    rest = without(item, "type", "id", "name")
    own = take_own(rest)
    arguments, output = own.get("arguments"), own.get("output")
    if isinstance(rest.get("arguments"), dict):
        written = orjson.dumps(rest.pop("arguments")).decode()
        arguments = arguments if isinstance(arguments, str) else written
    partial = {PARTIAL: rest.pop(PARTIAL)} if PARTIAL in rest else {}
    return ToolCall(
        call_id,
        name,
        arguments if isinstance(arguments, str) else "",
        output if isinstance(output, str) else None,
        {**partial, **(_CALL.keep(item, rest) or {})} or None,
    )


# --- writing messages -------------------------------------------------------------------------------------------------


def write_message(message: Message, setting: Setting) -> dict[str, Any]:
    """A message as pi's, with the fields of pi that it came with."""
    role = message.role
    spellings = (message.role_text, kept_fields(message.extra, KEPT).get("role"))
    is_same = (text for text in spellings if isinstance(text, str) and role_named(text, _ROLES_BACK) is role)
    fields: dict[str, Any] = {"role": next(is_same, _ROLES[role])}
    defaults: dict[str, Any] = {}
    own: dict[str, Any] = {} if message.author is None else {"author": message.author}
    if message.name is not None:
        (fields if role is Role.TOOL_RESULT else own)["toolName" if role is Role.TOOL_RESULT else "name"] = message.name
    _write_content(message, fields, defaults, own)
    for name, attribute in _ATTRIBUTES.items():
        if (value := getattr(message, attribute)) is not None:
            fields[name] = value
    if message.is_error:
        fields["isError"] = True
    elif role is Role.TOOL_RESULT:
        (fields if kept_fields(message.extra, KEPT).get("isError") is True else defaults)["isError"] = False
    if message.usage is not None:
        fields["usage"] = write_usage(message.usage)
    if message.timestamp is not None:
        fields["timestamp"] = to_milliseconds(message.timestamp)
    if role is Role.BASH_EXECUTION:
        extra = message.extra or {}
        fields |= {name: extra[name] for name in BASH_FIELDS if name in extra}
    made = _made(message, setting)
    return _shape(role).restore(with_own(fields, own), message.extra, defaults=defaults, made=made)


def _shape(role: Role) -> Shape:
    return _SHAPES.get(role, _PLAIN)


def _write_content(message: Message, fields: dict[str, Any], defaults: dict[str, Any], own: dict[str, Any]) -> None:
    """The content, where pi has it: a summary's in another field, an assistant's and a result's always as a list."""
    content, role = message.content, message.role
    has_list = role in _IN_PARTS and form_of(message.extra).get("list") is not False
    is_list = has_list or not isinstance(content, str) or bool(message.tool_calls)
    if is_list and isinstance(content, str):
        own["plain"] = True
    if role in _SUMMARIES and not is_list and "summary" not in kept_fields(message.extra, KEPT):
        (fields if content else defaults)["summary"] = content
    elif is_list and (content or message.tool_calls or not isinstance(content, str)):
        fields["content"] = write_parts(message)
    elif content:
        fields["content"] = content
    elif role is not Role.BASH_EXECUTION:
        defaults["content"] = [] if is_list else ""


def _made(message: Message, setting: Setting) -> dict[str, Any]:
    """What pi counts on in a message of this role, for one that does not have it."""
    made: dict[str, Any] = {}
    match message.role:
        case Role.ASSISTANT:
            stopped = "toolUse" if message.tool_calls else "stop"
            made = {"api": "", "provider": setting.provider, "model": setting.model}
            made |= {"usage": _NO_USAGE, "stopReason": stopped}
        case Role.TOOL_RESULT:
            made = {"toolCallId": "", "toolName": ""}
        case Role.BASH_EXECUTION:
            made = {"command": "", "output": message.text, "cancelled": False, "truncated": False}
        case Role.CUSTOM:
            made = {"customType": OWN, "display": True}
        case Role.BRANCH_SUMMARY:
            made = {"summary": message.text, "fromId": ""}
        case Role.COMPACTION_SUMMARY:
            made = {"summary": message.text, "tokensBefore": 0}
    return {**made, "timestamp": to_milliseconds(setting.moment)}


def write_usage(usage: Usage) -> dict[str, Any]:
    """The same in pi's words."""
    kept = kept_fields(usage.extra, KEPT)
    counts = (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
    fields: dict[str, Any] = {name: count for name, count in zip(_COUNTS, counts, strict=True) if count}
    if usage.total_tokens is not None:
        fields["totalTokens"] = usage.total_tokens
    if usage.cost is not None:
        split = kept["cost"] if isinstance(kept.get("cost"), dict) else _NO_COST
        read, total = split.get("total"), usage.cost
        if read == total and not isinstance(read, bool):
            total = read
        elif total.is_integer() and abs(total) < 2**53:
            total = int(total)  # as JavaScript writes it: without a fraction if that is zero
        fields["cost"] = {**split, "total": total}
    return _USAGE.restore(fields, usage.extra, defaults=dict.fromkeys(_COUNTS, 0), made={"cost": _NO_COST})


# --- writing parts ----------------------------------------------------------------------------------------------------


def write_parts(message: Message) -> list[Any]:
    """The content and the calls of a message as a list of pi's parts; an empty text gives none."""
    return [_write_call(piece) if isinstance(piece, ToolCall) else _write_part(piece) for piece in in_order(message)]


def _write_part(part: Part) -> Any:
    match part:
        case TextPart(text=text, extra=extra):
            return _TEXT.restore({"type": "text", "text": text}, extra) if extra else {"type": "text", "text": text}
        case ThinkingPart(thinking=thinking, signature=signature, redacted=redacted, extra=extra):
            fields: dict[str, Any] = {"type": "thinking", "thinking": thinking}
            fields |= {} if signature is None else {"thinkingSignature": signature}
            fields |= {"redacted": True} if redacted else {}
            return _THINKING.restore(fields, extra)
        case ImagePart(data=None, url=url):  # as text: pi would send it without data, which providers refuse
            shown = "" if url is None or url.startswith("data:") else f": {url}"
            own = {"image": {"media_type": part.media_type, "url": url}}
            return with_own({"type": "text", "text": f"[image{shown}]"}, own)
        case ImagePart(data=data, url=url):
            fields = {"type": "image", "data": data, "mimeType": part.media_type}
            return _IMAGE.restore(with_own(fields, {} if url is None else {"url": url}), part.extra)
        case OtherPart(fields={"type": "pi", "part": wrapped}):
            return wrapped
        case OtherPart(fields=fields):
            return fields


def _write_call(call: ToolCall) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": "toolCall", "id": call.id, "name": call.name}
    own: dict[str, Any] = {} if call.output is None else {"output": call.output}
    extra = call.extra or {}
    try:
        arguments = parse_json(call.arguments.encode(), depth=_ARGUMENTS_DEPTH)
        arguments = check_json(arguments) if isinstance(arguments, dict) else None
    except (InvalidMessage, UnicodeEncodeError):
        arguments = None
    if arguments is not None:
        fields["arguments"] = arguments
    # where pi itself had no arguments, or none that are an object, they come back without our help
    came_without = not call.arguments and ("arguments" in kept_fields(extra, KEPT) or FORM in extra)
    if (arguments is None or orjson.dumps(arguments).decode() != call.arguments) and not came_without:
        own["arguments"] = call.arguments
    if PARTIAL in extra:
        fields[PARTIAL] = extra[PARTIAL]
    return _CALL.restore(with_own(fields, own), call.extra, defaults={"arguments": {}})
