"""The response items within Codex's rollout lines, which have the shape of OpenAI's Responses API, as messages.

What one reply of the model says comes as several items: reasoning, text, calls. They become one assistant message,
as long as nothing parts them: a result, a user, or a second text. So parallel calls
stand on one message, and their results right behind it. Fields without a canonical place are kept under
`extra["codex"]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from miniclaw_sessions.core.protocol.images import image_at
from miniclaw_sessions.core.protocol.messages import (
    Message,
    OtherPart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    Usage,
)
from miniclaw_sessions.files.formats.codec import (
    content_of,
    count_of,
    kept_apart,
    kept_whole,
    role_named,
    stated,
    text_of,
    without,
)
from miniclaw_sessions.files.formats.tool_calls import arguments_text

KEPT = "codex"
"""The key of `extra` under which fields without a canonical place are kept."""

CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "local_shell_call_output"})
HOSTED = frozenset({"web_search_call", "image_generation_call", "file_search_call", "code_interpreter_call"})
ITEMS = CALLS | OUTPUTS | HOSTED | {"message", "reasoning"}
"""The types of items that are messages or parts of one."""

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM, "developer": Role.SYSTEM}
_TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})


class _Reply:
    """A model's reply, item by item."""

    def __init__(self, since: datetime | None) -> None:
        self.since = since
        self.parts: list[Part] = []
        self.calls: list[ToolCall] = []
        self.kept: dict[str, Any] = {}
        self.has_text = False

    def add(self, item: Mapping[str, Any]) -> None:
        kind = item["type"]
        if kind == "message":
            self.has_text = True
            content = content_of(item.get("content"), _part)
            self.parts += (TextPart(content),) if isinstance(content, str) else content
            self.kept |= without(stated(item), "type", "role", "content")
        elif kind == "reasoning":
            self.parts.append(_reasoning(item))
        elif (call := _call(item)) is not None:
            self.calls.append(call)
        else:
            self.parts.append(OtherPart(dict(item)))

    def message(self) -> Message:
        return Message(
            Role.ASSISTANT,
            tuple(self.parts),
            timestamp=self.since,
            tool_calls=tuple(self.calls) or None,
            extra={KEPT: self.kept} if self.kept else None,
        )


class Replies:
    """Makes messages of items, in order; holds the model's reply until it is complete."""

    def __init__(self) -> None:
        self._reply: _Reply | None = None

    @property
    def is_open(self) -> bool:
        """Whether a reply is held."""
        return self._reply is not None

    @property
    def open(self) -> Message | None:
        """The reply that is held, as it stands; it stays held."""
        return None if self._reply is None else self._reply.message()

    def feed(self, item: Mapping[str, Any], timestamp: datetime | None) -> list[Message] | None:
        """The messages that are complete with this item; None if it is no message, nor part of one."""
        kind = item.get("type")
        if not isinstance(kind, str) or kind not in ITEMS:
            return None
        if kind in OUTPUTS:
            return [*self.finish(), _result(item, timestamp)]
        if kind == "message" and item.get("role") != "assistant":
            message = _message(item, timestamp)
            return None if message is None else [*self.finish(), message]
        complete: list[Message] = []
        if kind == "message" and self._reply is not None and (self._reply.has_text or self._reply.calls):
            complete = self.finish()
        if self._reply is None:
            self._reply = _Reply(timestamp)
        self._reply.add(item)
        return complete

    def finish(self) -> list[Message]:
        """The reply that is open, if there is one, as it stands."""
        reply, self._reply = self._reply, None
        return [] if reply is None else [reply.message()]


def messages_of(items: Iterable[Any], timestamp: datetime | None) -> tuple[list[Message], list[Any]]:
    """The messages that items make, and the items that make none."""
    replies = Replies()
    messages: list[Message] = []
    rest: list[Any] = []
    for item in items:
        complete = replies.feed(item, timestamp) if isinstance(item, dict) else None
        if complete is None:
            rest.append(item)
        else:
            messages += complete
    return messages + replies.finish(), rest


def read_usage(event: Mapping[str, Any]) -> Usage | None:
    """What an event says that the last reply cost; OpenAI counts cached tokens among the input, we do not."""
    match event:
        case {"type": "token_count", "info": {"last_token_usage": dict(last)}}:
            pass
        case _:
            return None
    cached = count_of(last, "cached_input_tokens") or 0
    return Usage(
        input_tokens=max((count_of(last, "input_tokens") or 0) - cached, 0),
        output_tokens=count_of(last, "output_tokens") or 0,
        cache_read_tokens=cached,
        total_tokens=count_of(last, "total_tokens") or None,
        extra={KEPT: without(event, "type")},
    )


# --- one item --------------------------------------------------------------------------------------------------------


def _message(item: Mapping[str, Any], timestamp: datetime | None) -> Message | None:
    role_text = item.get("role")
    if not isinstance(role_text, str) or not role_text:
        return None
    role = role_named(role_text, _ROLES)
    extra = kept_apart(stated(item), ("type", "role", "content"), KEPT) or {}
    if role_text == "developer":
        extra.setdefault(KEPT, {})["role"] = role_text
    if role is Role.OTHER and role_text != Role.OTHER:
        extra["role"] = role_text
    return Message(role, content_of(item.get("content"), _part), timestamp=timestamp, extra=extra or None)


def _part(part: Any) -> Part:
    match part:
        case {"type": str(kind), "text": str(text)} if kind in _TEXTS:
            return TextPart(text, extra=kept_apart(part, ("type", "text"), KEPT))
        case {"type": "refusal", "refusal": str(text)}:
            return TextPart(text, extra={KEPT: {"type": "refusal"}})
        case {"type": "input_image", "image_url": str(url)}:
            return image_at(url, kept_apart(part, ("type", "image_url"), KEPT))
        case _:
            return kept_whole(part, KEPT, "part")


def reasoning_texts(item: Mapping[str, Any]) -> list[str]:
    """The summary that a model gave of its reasoning; without one, the reasoning itself."""
    return texts_of(item.get("summary")) or texts_of(item.get("content"))


def texts_of(parts: Any) -> list[str]:
    """The texts of content parts."""
    if not isinstance(parts, list):
        return []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _reasoning(item: Mapping[str, Any]) -> ThinkingPart:
    signature = item.get("encrypted_content")
    return ThinkingPart(
        "\n\n".join(reasoning_texts(item)),
        signature if isinstance(signature, str) else None,
        extra=kept_apart(stated(item), ("type", "summary", "encrypted_content"), KEPT),
    )


def _call(item: Mapping[str, Any]) -> ToolCall | None:
    """A call; what is not a function's JSON is wrapped into an object, because a model is sent nothing else."""
    call_id = item.get("call_id") or item.get("id")
    if not isinstance(call_id, str):
        return None
    match item:
        case {"type": "function_call", "name": str(name), "arguments": arguments}:
            known = ["type", "call_id", "name", "arguments"]
            text = arguments if isinstance(arguments, str) else arguments_text(arguments)
        case {"type": "custom_tool_call", "name": str(name), "input": str(free)}:  # its kept type says: free text
            text, known = arguments_text({"input": free}), ["call_id", "name", "input"]
        case {"type": "local_shell_call", "action": dict(action)}:
            name, text, known = "local_shell", arguments_text(action), ["call_id", "action"]
        case _:
            return None
    return ToolCall(call_id, name, text, extra=kept_apart(stated(item), known, KEPT))


def _result(item: Mapping[str, Any], timestamp: datetime | None) -> Message:
    output, is_error = item.get("output"), False
    if isinstance(output, dict) and isinstance(output.get("content"), str):
        is_error, output = output.get("success") is False, output["content"]
    return Message(
        Role.TOOL_RESULT,
        content_of(output, _part),
        timestamp=timestamp,
        tool_call_id=text_of(item, "call_id"),
        name=text_of(item, "name"),
        is_error=is_error,
        extra=kept_apart(stated(item), ("type", "call_id", "output", "name"), KEPT),
    )
