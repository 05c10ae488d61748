"""Content blocks as Anthropic's Messages API has them; Claude Code, Dive and nanobot write the same into their files.

What a block says beside its own fields is kept in `extra` under the name of the format that it came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miniclaw_sessions.core.protocol.messages import ImagePart, OtherPart, Part, TextPart, ThinkingPart, ToolCall, Usage
from miniclaw_sessions.files.formats.codec import count_of, keeping, kept_apart, kept_fields, taken
from miniclaw_sessions.files.formats.tool_calls import arguments_text

COUNTS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_input_tokens": "cache_read_tokens",
    "cache_creation_input_tokens": "cache_write_tokens",
}
"""The counts of a usage, by their names in JSON."""

_KNOWN = ("text", "thinking", "redacted_thinking", "image", "tool_use")  # no set: a type may be a list


def read_block(block: Any, kept: str) -> Part | ToolCall | None:  # noqa: PLR0911 - one return for each type
    """A block as a part or a call, of an unknown type as it came; None for one that lacks what its type must have."""
    match block:
        case {"type": "text", "text": str(text), **rest}:
            return TextPart(text, extra=keeping(rest, kept))
        case {"type": "thinking", "thinking": str(text), **rest}:
            return ThinkingPart(text, taken(rest, "signature", str), extra=keeping(rest, kept))
        case {"type": "redacted_thinking", "data": str(data), **rest}:
            return ThinkingPart("", data, redacted=True, extra=keeping(rest, kept))
        case {"type": "image", "source": dict(source), **rest}:
            return _read_image(dict(source), rest, kept)
        case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": arguments, **rest}:
            return ToolCall(call_id, name, arguments_text(arguments), extra=keeping(rest, kept))
        case {"type": str(kind)} if kind not in _KNOWN:
            return OtherPart(dict(block))
        case _:
            return None


def _read_image(source: dict[Any, Any], rest: Mapping[Any, Any], kept: str) -> ImagePart:
    """An image inline or by its address; any other source (a file of the service's) is kept alone."""
    image: dict[str, Any] = {}
    match source:
        case {"type": "base64", "media_type": str(), "data": str()}:
            image = {name: source.pop(name) for name in ("media_type", "data")}
        case {"type": "url", "url": str()}:
            image = {"url": source.pop("url")}
    if image:
        del source["type"]
    return ImagePart(**image, extra=keeping({**rest, "source": source} if source else rest, kept))


def written_part(part: TextPart | ThinkingPart | ImagePart, kept: str) -> dict[str, Any] | None:
    """A part as a block; None for an image of which nothing is known."""
    block = dict(kept_fields(part.extra, kept))
    match part:
        case TextPart(text=text):
            return {**block, "type": "text", "text": text}
        case ThinkingPart(redacted=True, signature=str(data)):
            return {**block, "type": "redacted_thinking", "data": data}
        case ThinkingPart(thinking=thinking, signature=None):
            return {**block, "type": "thinking", "thinking": thinking}
        case ThinkingPart(thinking=thinking, signature=signature):
            return {**block, "type": "thinking", "thinking": thinking, "signature": signature}
        case ImagePart(data=data, url=url):
            source = dict(kept_fields(block, "source"))
            if data is not None:
                source |= {"type": "base64", "media_type": part.media_type, "data": data}
            elif url is not None:
                source |= {"type": "url", "url": url}
            return {**block, "type": "image", "source": source} if source else None


def read_usage(usage: Any, kept: str) -> Usage | None:
    """What a reply cost; None if the reply has no usage."""
    if not isinstance(usage, dict):
        return None
    counted = {theirs: count for theirs in COUNTS if (count := count_of(usage, theirs)) is not None}
    named = {COUNTS[theirs]: count for theirs, count in counted.items()}
    return Usage(**named, extra=kept_apart(usage, counted, kept))
