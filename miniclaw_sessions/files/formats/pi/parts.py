"""The content of pi's messages: text, thinking, images and tool calls, in one list, from and to ours.

pi mixes tool calls with the other parts; we keep them apart (`formats.tool_calls` knows in which order they were).
Arguments are an object in pi and the model's own text with us: the text is kept where the object would give another.
"""

from __future__ import annotations

from typing import Any

import orjson

from miniclaw_sessions.core.protocol.json_values import MAX_DEPTH, check_json, parse_json
from miniclaw_sessions.core.protocol.messages import (
    ImagePart,
    Message,
    OtherPart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCall,
)
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.files.formats.codec import kept_fields, without
from miniclaw_sessions.files.formats.pi.shapes import FORM, KEPT, Shape, Unusable, take_own, with_own
from miniclaw_sessions.files.formats.tool_calls import in_order, taken_apart

PARTIAL = "partialJson"
"""What pi leaves on a call whose stream broke off; `history.context` looks for it at the top of a call's `extra`."""

_TEXT = Shape("type", "text", "textSignature")
_THINKING = Shape("type", "thinking", "thinkingSignature", "redacted")
_IMAGE = Shape("type", "data", "mimeType")
_CALL = Shape("type", "id", "name", "arguments", "thoughtSignature", PARTIAL, always=("arguments",))
_WRAPPED = "pi"  # the type of a part that holds one of pi's which is not what its type says
_WRAP = frozenset({"text", "image", "thinking", _WRAPPED})
_ARGUMENTS_DEPTH = MAX_DEPTH - 10  # arguments lie a few levels down in a line, which has a limit of its own


# --- reading ---------------------------------------------------------------------------------------------------------


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
            return _read_thinking(item, thinking)
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


def _read_thinking(item: dict[str, Any], thinking: str) -> ThinkingPart:
    rest = without(item, "type", "thinking")
    signature = rest.pop("thinkingSignature") if isinstance(rest.get("thinkingSignature"), str) else None
    redacted = rest.get("redacted") is True and rest.pop("redacted")
    return ThinkingPart(thinking, signature, redacted, _THINKING.keep(item, rest))


def _read_call(item: dict[str, Any], call_id: str, name: str) -> ToolCall:
    rest = without(item, "type", "id", "name")
    own = take_own(rest)
    arguments = own.get("arguments")
    if isinstance(rest.get("arguments"), dict):
        written = orjson.dumps(rest.pop("arguments")).decode()
        arguments = arguments if isinstance(arguments, str) else written
    output = own.get("output")
    partial = {PARTIAL: rest.pop(PARTIAL)} if PARTIAL in rest else {}
    return ToolCall(
        call_id,
        name,
        arguments if isinstance(arguments, str) else "",
        output if isinstance(output, str) else None,
        {**partial, **(_CALL.keep(item, rest) or {})} or None,
    )


# --- writing ---------------------------------------------------------------------------------------------------------


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
        case ImagePart():
            return _write_image(part)
        case OtherPart(fields={"type": "pi", "part": wrapped}):
            return wrapped
        case OtherPart(fields=fields):
            return fields


def _write_image(image: ImagePart) -> dict[str, Any]:
    """An image that is only a link is written as text: pi would send it without data, which providers refuse."""
    if image.data is None:
        shown = "" if image.url is None or image.url.startswith("data:") else f": {image.url}"
        own = {"image": {"media_type": image.media_type, "url": image.url}}
        return with_own({"type": "text", "text": f"[image{shown}]"}, own)
    fields = {"type": "image", "data": image.data, "mimeType": image.media_type}
    return _IMAGE.restore(with_own(fields, {} if image.url is None else {"url": image.url}), image.extra)


def _write_call(call: ToolCall) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": "toolCall", "id": call.id, "name": call.name}
    own: dict[str, Any] = {} if call.output is None else {"output": call.output}
    arguments = _object_in(call.arguments)
    if arguments is not None:
        fields["arguments"] = arguments
    if (arguments is None or orjson.dumps(arguments).decode() != call.arguments) and not _came_without(call):
        own["arguments"] = call.arguments
    extra = call.extra or {}
    if PARTIAL in extra:
        fields[PARTIAL] = extra[PARTIAL]
    return _CALL.restore(with_own(fields, own), call.extra, defaults={"arguments": {}})


def _came_without(call: ToolCall) -> bool:
    """Whether pi itself had no arguments for a call, or none that are an object: they come back without our help."""
    extra = call.extra or {}
    return not call.arguments and ("arguments" in kept_fields(extra, KEPT) or FORM in extra)


def _object_in(text: str) -> dict[str, Any] | None:
    try:
        value = parse_json(text.encode(), depth=_ARGUMENTS_DEPTH)
        return check_json(value) if isinstance(value, dict) else None
    except (InvalidMessage, UnicodeEncodeError):
        return None
