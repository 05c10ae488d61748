"""pydantic-ai's messages, from and to canonical ones.

`from_model_messages` followed by `to_model_messages` gives back the same messages, as far as they are JSON. A
response becomes one message; a request becomes one for each of its parts, because a request carries what the system,
the user and the tools said all at once. Both sides work on the JSON of `ModelMessagesTypeAdapter`, where a part of a
later version of pydantic-ai is nothing special.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, get_args

import msgspec
from pydantic import ValidationError
from pydantic_ai.messages import (
    FinishReason,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
)
from pydantic_ai.usage import RequestUsage

from miniclaw_sessions.core.protocol.json_values import instant, parse_json
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
from miniclaw_sessions.files.formats.codec import has_kept, in_order, kept_fields, taken_apart
from miniclaw_sessions.files.formats.histories import presented
from miniclaw_sessions.files.formats.message_list import NOTHING_TO_SHOW
from miniclaw_sessions.files.formats.tool_calls import arguments_object, arguments_text

KEPT = "pydantic-ai"
"""The key of `extra` under which pydantic-ai's fields without a canonical place are kept.

A message's has `response` or `request` (fields of the `ModelMessage` that begins with it), `part` (fields of its part),
or `whole` (a part without a canonical form); parts and calls have the fields of theirs.
"""

WHOLE_PART = "pydantic_ai_part"
"""The type of a part that has no canonical form; its field `part` holds it, verbatim."""

_FINISH_REASONS = frozenset(get_args(FinishReason))
_RETURNED_AS_JSON = "json"  # kept where a tool returned a value and not text, which is its JSON then
_ARGUMENTS = "args"  # kept on a call whose arguments were not text: `object` or `none`
_DATA = str.maketrans("-_", "+/")  # pydantic-ai's base64 is the one for URLs, ours the common one
_DATA_BACK = str.maketrans("+/", "-_")


# --- from pydantic-ai ------------------------------------------------------------------------------------------------


def from_model_messages(messages: Sequence[ModelMessage]) -> list[Message]:
    """pydantic-ai's messages as canonical ones: a response is one message, a request one for each of its parts.

    Raises:
        InvalidMessage: they are not JSON that can be stored.
    """
    dumped = parse_json(ModelMessagesTypeAdapter.dump_json(list(messages)))
    canonical: list[Message] = []
    for message, fields in zip(messages, dumped, strict=True):
        if isinstance(message, ModelResponse):
            canonical.append(_read_response(message, fields))
        else:
            parts = zip(message.parts, fields.pop("parts"), strict=True)
            first, *others = [_read_said(part, of_part) for part, of_part in parts] or [Message(Role.CUSTOM, "")]
            kept = _differing(message, fields, {"kind": "request"})
            canonical += [_keeping(first, {**kept_fields(first.extra, KEPT), "request": kept}), *others]
    return canonical


def _read_said(part: Any, fields: dict[str, Any]) -> Message:
    """A part of a request as a message of its own."""
    moment = _time_of(fields)
    kept: dict[str, Any] = {}
    match fields:
        case {"part_kind": "system-prompt", "content": str(text), "scope": "conversation"}:
            message = Message(Role.SYSTEM, text, moment)
        case {"part_kind": "user-prompt", "content": content}:
            said = content if isinstance(content, str) else tuple(_read_item(item) for item in content)
            message = Message(Role.USER, said, moment)
        case {"part_kind": "tool-return", "content": content, "tool_call_id": str(call_id), "tool_name": str(name)}:
            returned: str | tuple[Part, ...]  # parts where an image is among it, and the JSON of anything else
            if isinstance(content, str):
                returned = content
            elif isinstance(content, list) and any(isinstance(_read_item(item), ImagePart) for item in content):
                returned = tuple(_read_item(item) for item in content)
            else:
                returned = arguments_text(content)
                kept[_RETURNED_AS_JSON] = True
            is_error = fields["outcome"] != "success"
            message = Message(Role.TOOL_RESULT, returned, moment, tool_call_id=call_id, name=name, is_error=is_error)
        case _:
            return _keeping(_in_text(part, fields, moment), {"whole": fields})
    plain = _plain_said(_keeping(message, kept))
    kept["part"] = _differing(part, fields, plain)
    if fields.get("tool_kind") is not None:  # the default of the class that it alone makes the part be
        kept["part"]["tool_kind"] = fields["tool_kind"]
    return _keeping(message, kept)


def _in_text(part: Any, fields: Mapping[str, Any], moment: datetime | None) -> Message:
    """The text, for other frameworks, of a part that is kept whole."""
    match fields["part_kind"]:
        case "retry-prompt" if fields.get("tool_name"):
            call_id, name = fields["tool_call_id"], fields["tool_name"]
            text = part.model_response()
            return Message(Role.TOOL_RESULT, text, moment, tool_call_id=call_id, name=name, is_error=True)
        case "retry-prompt" | "retry-feedback":
            return Message(Role.CUSTOM, part.model_response(), moment)
        case "compaction":
            return Message(Role.COMPACTION_SUMMARY, fields.get("content") or "", moment)
        case "speech":
            return Message(Role.USER, fields.get("transcript") or "", moment)
        case _:
            return Message(Role.CUSTOM, "", moment)


def _read_response(response: ModelResponse, fields: dict[str, Any]) -> Message:
    content, calls = taken_apart(_read_piece(of_part) for of_part in fields.pop("parts"))
    match content:
        case (TextPart(text=text, extra=None),) if text:
            content_or_text: str | tuple[Part, ...] = text
        case _:
            content_or_text = content
    counted, usage = response.usage, None
    if counted.input_tokens or counted.output_tokens:
        read, written = counted.cache_read_tokens, counted.cache_write_tokens
        uncached = counted.input_tokens - read - written  # pydantic-ai's input tokens include those of the cache
        cost = None if counted.cost is None else float(counted.cost)
        usage = Usage(uncached, counted.output_tokens, read, written, cost=cost)
    message = Message(
        Role.ASSISTANT,
        content_or_text,
        _time_of(fields),
        tool_calls=calls,
        model=response.model_name,
        usage=usage,
        stop_reason=response.finish_reason,
    )
    defaults = {field.name for field in dataclasses.fields(RequestUsage)}
    fields["usage"] = {name: value for name, value in fields["usage"].items() if value or name not in defaults}
    return _keeping(message, {"response": _differing(response, fields, _plain_response(message))})


def _read_piece(fields: dict[str, Any]) -> Part | ToolCall:
    """A part of a response; one without a canonical form is kept whole."""
    rest = {name: value for name, value in fields.items() if name != "part_kind" and value is not None}
    match rest:
        case {"content": str(text), **others} if fields["part_kind"] == "text":
            return TextPart(text, extra={KEPT: others} if others else None)
        case {"content": str(text), **others} if fields["part_kind"] == "thinking":
            signature = others.pop("signature", None)
            return ThinkingPart(text, signature, extra={KEPT: others})
        case {"tool_name": str(name), "tool_call_id": str(call_id), **others} if fields["part_kind"] == "tool-call":
            arguments = others.pop(_ARGUMENTS, None)
            if isinstance(arguments, str):
                return ToolCall(call_id, name, arguments, extra={KEPT: others})
            kind = "none" if arguments is None else "object"
            text = "" if arguments is None else arguments_text(arguments)
            return ToolCall(call_id, name, text, extra={KEPT: {**others, _ARGUMENTS: kind}})
        case {"transcript": str(text), **others} if fields["part_kind"] == "speech":
            return TextPart(text, extra={KEPT: {**others, "part_kind": "speech"}})
        case _:
            return OtherPart({"type": WHOLE_PART, "part": fields})


def _read_item(item: Any) -> Part:
    """A piece of a content as a part that gives it back exactly."""
    if isinstance(item, str):
        return TextPart(item)
    part: Part | None = None
    if isinstance(item, dict):
        match item:
            case {"kind": "text-content", "content": str(text), **rest}:
                part = TextPart(text, extra={KEPT: {"kind": "text-content", **rest}})
            case {"kind": "image-url", "url": str(url), "media_type": str(media_type), **rest}:
                part = ImagePart(media_type, url=url, extra={KEPT: rest})
            case {"kind": "binary", "data": str(data), "media_type": str(media_type), **rest}:
                if media_type.startswith("image/"):
                    part = ImagePart(media_type, data.translate(_DATA), extra={KEPT: rest})
    if part is None or _write_item(part) != item:
        return OtherPart({"type": WHOLE_PART, "part": item})
    return part


def _differing(value: Any, fields: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are neither in the canonical form nor pydantic-ai's defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(value)}
    return {name: value for name, value in fields.items() if plain.get(name, defaults.get(name)) != value}


def _keeping(message: Message, kept: dict[str, Any]) -> Message:
    return msgspec.structs.replace(message, extra={KEPT: kept})


def _time_of(fields: Mapping[str, Any]) -> datetime | None:
    """The time of a part, if it says its zone: only such a one comes back from the canonical form as it was."""
    text = fields.get("timestamp")
    moment = instant(text) if isinstance(text, str) else None
    return moment if isinstance(moment, datetime) and _written_time(moment) == text else None


def _written_time(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


# --- to pydantic-ai --------------------------------------------------------------------------------------------------


def to_model_messages(messages: Iterable[Message]) -> list[ModelMessage]:
    """A history as pydantic-ai's messages: those that came from it as they were, those of others made legal."""
    groups = list(_grouped(presented(messages, KEPT)))
    try:
        return _validated(groups)
    except ValidationError:  # a part of another version of pydantic-ai: what it says to others, it says here too
        return [message for group in groups for message in _validated_alone(group)]


def to_own_model(messages: Iterable[Message]) -> list[ModelMessage]:
    """The same for a model that this process itself asks: only of a reply it keeps what pydantic-ai alone knows of it.

    Every other such mark may be a stranger's, and name a file or an address of ours.
    """
    return to_model_messages(message if message.is_assistant else _without_kept(message) for message in messages)


def _validated(groups: Iterable[Sequence[Message]]) -> list[ModelMessage]:
    encoded = msgspec.json.encode([_asking_for_no_local_file(_write(group)) for group in groups])
    return ModelMessagesTypeAdapter.validate_json(encoded)


def _validated_alone(group: Sequence[Message]) -> list[ModelMessage]:
    try:
        return _validated([group])
    except ValidationError:
        return _validated(_grouped(presented([_without_kept(message) for message in group], KEPT)))


def _asking_for_no_local_file(value: Any) -> Any:
    """A stored part may ask to fetch an address, but not to allow one of this machine's network."""
    if isinstance(value, dict):
        kept = {name: _asking_for_no_local_file(one) for name, one in value.items()}
        return {**kept, "force_download": True} if kept.get("force_download") == "allow-local" else kept
    return [_asking_for_no_local_file(one) for one in value] if isinstance(value, list) else value


def _grouped(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """The messages of each request or response."""
    request: list[Message] = []
    for message in messages:
        begins = "request" in kept_fields(message.extra, KEPT)
        if request and has_kept(request[-1].extra, KEPT) != has_kept(message.extra, KEPT):
            begins = True
        if request and (message.is_assistant or begins):
            yield request
            request = []
        if message.is_assistant:
            yield [message]
        else:
            request.append(message)
    if request:
        yield request


def _write(group: Sequence[Message]) -> dict[str, Any]:
    first = group[0]
    kept = kept_fields(first.extra, KEPT)
    if first.is_assistant:
        pieces = [written for piece in in_order(first) if (written := _write_piece(piece)) is not None]
        if not pieces and not has_kept(first.extra, KEPT):
            pieces = [{"part_kind": "text", "content": NOTHING_TO_SHOW}]
        return {**_plain_response(first), **kept.get("response", {}), "parts": pieces}
    parts: list[dict[str, Any]] = []
    for message in group:
        of_message = kept_fields(message.extra, KEPT)
        if "whole" in of_message:
            parts.append(of_message["whole"])
        elif "part" in of_message or not has_kept(message.extra, KEPT):  # else it was a request without parts
            parts.append({**_plain_said(message), **of_message.get("part", {})})
    return {"kind": "request", **kept.get("request", {}), "parts": parts}


def _plain_said(message: Message) -> dict[str, Any]:
    """The part of a request that says what a message says."""
    times = {} if message.timestamp is None else {"timestamp": _written_time(message.timestamp)}
    if message.role is Role.SYSTEM:
        return {"part_kind": "system-prompt", "content": message.text, **times}
    if not message.is_tool_result:
        return {"part_kind": "user-prompt", "content": _write_content(message), **times}
    as_json = kept_fields(message.extra, KEPT).get(_RETURNED_AS_JSON) is True
    return {
        "part_kind": "tool-return",
        "tool_name": message.name or "unknown",
        "tool_call_id": message.tool_call_id or "",
        "content": parse_json(message.text.encode()) if as_json else _write_content(message),
        "outcome": "failed" if message.is_error else "success",
        **times,
    }


def _plain_response(message: Message) -> dict[str, Any]:
    """The fields of a response, but for its parts, with the content of a message."""
    counted: dict[str, int] = {}
    if (usage := message.usage) is not None:
        counted = {
            "input_tokens": usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "cache_read_tokens": usage.cache_read_tokens,
            "output_tokens": usage.output_tokens,
        }
    fields: dict[str, Any] = {
        "kind": "response",
        "usage": {name: count for name, count in counted.items() if count},
    }
    if message.timestamp is not None:
        fields["timestamp"] = _written_time(message.timestamp)
    if message.model is not None:
        fields["model_name"] = message.model
    if message.stop_reason in _FINISH_REASONS:
        fields["finish_reason"] = message.stop_reason
    return fields


def _write_piece(piece: Part | ToolCall) -> dict[str, Any] | None:
    """A part of a response; None for what only its writer can use."""
    kept = {} if isinstance(piece, OtherPart) else kept_fields(piece.extra, KEPT)
    match piece:
        case TextPart(text=text):
            text_field = "transcript" if kept.get("part_kind") == "speech" else "content"
            return {"part_kind": "text", text_field: text, **kept}
        case ThinkingPart(thinking=text, signature=signature) if has_kept(piece.extra, KEPT):
            signed = {} if signature is None else {"signature": signature}
            return {"part_kind": "thinking", "content": text, **signed, **kept}
        case ToolCall():
            return _write_call(piece, kept)
        case OtherPart(fields={"type": "pydantic_ai_part", "part": dict(part)}):
            return part
        case _:
            return None


def _write_call(call: ToolCall, kept: Mapping[str, Any]) -> dict[str, Any]:
    fields = {"part_kind": "tool-call", "tool_name": call.name, "tool_call_id": call.id, **kept}
    if kept.get(_ARGUMENTS) == "none":
        return {**fields, _ARGUMENTS: None}
    if kept.get(_ARGUMENTS) == "object":
        return {**fields, _ARGUMENTS: arguments_object(call.arguments)}
    if has_kept(call.extra, KEPT) or call.arguments.lstrip().startswith("{"):
        return {**fields, _ARGUMENTS: call.arguments}
    return {**fields, _ARGUMENTS: arguments_object(call.arguments)}


def _write_content(message: Message) -> str | list[Any]:
    if isinstance(message.content, str):
        return message.content
    return [written for part in message.content if (written := _write_item(part)) is not None]


def _write_item(part: Part) -> Any:
    """A part of a user's message or of a result as pydantic-ai has it; None for what only its writer can use."""
    kept = {} if isinstance(part, OtherPart) else kept_fields(part.extra, KEPT)
    match part:
        case TextPart(text=text):
            return {"content": text, **kept} if kept.get("kind") == "text-content" else text
        case ImagePart(data=str(data)):
            media_type = part.media_type or "image/png"
            return {"kind": "binary", "data": data.translate(_DATA_BACK), "media_type": media_type, **kept}
        case ImagePart(url=str(url)):
            typed = {"media_type": part.media_type} if part.media_type else {}
            return {"kind": "image-url", "url": url, **typed, **kept}
        case OtherPart(fields={"type": "pydantic_ai_part", "part": item}):
            return item
        case _:
            return None


def _without_kept(message: Message) -> Message:
    """The message as if another had written it."""
    parts = message.content
    if not isinstance(parts, str):
        parts = tuple(
            part if isinstance(part, OtherPart) else msgspec.structs.replace(part, extra=None)
            for part in parts
            if not (isinstance(part, OtherPart) and part.fields.get("type") == WHOLE_PART)
        )
    calls = tuple(msgspec.structs.replace(call, extra=None) for call in message.tool_calls or ()) or None
    return msgspec.structs.replace(message, content=parts, tool_calls=calls, extra=None)
