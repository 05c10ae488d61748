"""The message: who said what, with tool calls and token usage, as one plain immutable value.

There is one canonical `Message`, used as it is by every layer; when a layer needs more, the message grows. Models'
services (`agent.providers`), frameworks (`adapters`) and files (`files.formats`) translate it. A field that a message
has no place for is kept verbatim in `extra` and written back at the same place, so nothing is lost on the way through.
The values inside a message are in `protocol.parts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from miniclaw_sessions.core.protocol.content import call_from, calls_of, content_of, is_tuple_of, part_from, role_named
from miniclaw_sessions.core.protocol.json_values import gather, in_utc
from miniclaw_sessions.core.protocol.parts import (
    EXTRA,
    PARTS,
    ImagePart,
    Instant,
    OtherPart,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    Usage,
    Value,
    construct,
    known_role,
)
from miniclaw_sessions.errors import InvalidMessage

__all__ = [
    "ABORTED",
    "ImagePart",
    "Message",
    "OtherPart",
    "Part",
    "Role",
    "TextPart",
    "ThinkingPart",
    "ToolCall",
    "Usage",
    "as_message",
    "dated",
    "is_bare",
    "message_from_dict",
    "message_of",
    "text_message",
]

_BARE = {"role", "content"}

ABORTED = "aborted"
"""The `stop_reason` of a reply that was stopped by a person: the Go manager's word."""


_SYSTEM, _USER, _ASSISTANT, _TOOL_RESULT = Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL_RESULT
"""Each message is compared with these many times; looking up a member of an enum costs more than the comparison."""


class _MessageType(msgspec.StructMeta):
    """Makes messages of what callers give: a role as text, or parts as dicts, become our values (`as_message`).

    The JSON decoder does not come through here, and pays nothing for it.
    """

    if not TYPE_CHECKING:  # which knows the fields of the class

        def __call__(cls, role: Any, content: Any = "", *rest: Any, **fields: Any) -> Message:  # noqa: N805 - a metaclass
            message = construct(cls, role, content, *rest, **fields)
            if type(role) is Role and type(content) is str and not rest and not fields:
                return message
            return message if _has_our_values(message) else as_message(message)


def _has_our_values(message: Message) -> bool:
    """Whether role, content, tool calls and usage are our own values."""
    content, calls, usage = message.content, message.tool_calls, message.usage
    return (
        type(message.role) is Role
        and (type(content) is str or (type(content) is tuple and all(type(part) in PARTS for part in content)))
        and (calls is None or (type(calls) is tuple and all(type(call) is ToolCall for call in calls)))
        and (usage is None or type(usage) is Usage)
    )


class Message(Value, frozen=True, gc=False, metaclass=_MessageType):
    """One message: who said what, and which tools were asked for.

    A role may be given as text, and a part, a tool call or a usage as a dict of JSON; each becomes the value it means.

    Attributes:
        role: who speaks.
        content: text, or parts where text is not enough.
        timestamp: when it was said, UTC; the session sets it when the caller gives none. Information only.
        tool_calls: on an assistant's message, the tools it asks for, in order; None when it asks for none.
        tool_call_id: on a tool result, the id of the call that it answers.
        name: on a tool result, the tool's name (Google needs it); elsewhere the speaker's name.
        is_error: on a tool result, whether the tool failed.
        author: the agent that produced the message, as in Lango.
        model: the model that produced it.
        usage: what producing it cost.
        stop_reason: why the model stopped, in the provider's word.
        extra: fields that have no place here, verbatim; also the "role" as the source spelled it, when `role` is OTHER.
    """

    role: Role
    content: str | tuple[Part, ...] = msgspec.field(default_factory=str)  # a factory, so that "" is written too
    timestamp: Instant | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    is_error: bool = False
    author: str | None = None
    model: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    extra: dict[str, Any] | None = msgspec.field(default=None, name=EXTRA)

    @classmethod
    def system(cls, content: str) -> Message:
        """A system message."""
        return cls(_SYSTEM, content)

    @classmethod
    def user(cls, content: str | tuple[Part, ...]) -> Message:
        """A user's message."""
        return construct(cls, _USER, content) if type(content) is str else cls(_USER, content)

    @classmethod
    def assistant(cls, content: str | tuple[Part, ...] = "", tool_calls: tuple[ToolCall, ...] | None = None) -> Message:
        """An assistant's message, with the tools that it calls."""
        if type(content) is str and not tool_calls:
            return construct(cls, _ASSISTANT, content)
        return cls(_ASSISTANT, content, tool_calls=tool_calls or None)

    @classmethod
    def tool_result(cls, call: ToolCall, content: str | tuple[Part, ...], *, is_error: bool = False) -> Message:
        """The answer to one tool call."""
        return cls(_TOOL_RESULT, content, tool_call_id=call.id, name=call.name, is_error=is_error)

    @property
    def role_text(self) -> str | None:
        """The role as the source spelled it, when `role` is OTHER."""
        return (self.extra or {}).get("role") if self.role is Role.OTHER else None

    @property
    def is_user(self) -> bool:
        """Whether a user said it."""
        return self.role is _USER

    @property
    def is_assistant(self) -> bool:
        """Whether the assistant said it."""
        return self.role is _ASSISTANT

    @property
    def is_tool_result(self) -> bool:
        """Whether it answers a tool call."""
        return self.role is _TOOL_RESULT

    @property
    def text(self) -> str:
        """The content as plain text: the text parts joined, images and thinking left out."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


def as_message(given: Message | Mapping[str, Any]) -> Message:
    """A message as callers give it: a `Message`, or a dict such as `{"role": "user", "content": "hello"}`.

    A dict may be one of OpenAI's chat completions; an unknown role in it is kept (`Role.OTHER`). In a `Message`, a role
    that is a text becomes the role that it names, a part, a tool call or a usage that is a dict becomes the value that
    it means, and empty `tool_calls` and `tool_call_id` become absent.

    Raises:
        InvalidMessage: it is neither, its role is unknown, a field has a wrong type, or a part of a known type lacks
            what it needs.
    """
    if isinstance(given, Mapping):
        return message_of(given)
    if not isinstance(given, Message):
        raise InvalidMessage(
            f"a message cannot be a {type(given).__name__}: write Message.user(...), Message.assistant(...), or a dict "
            'with "role" and "content"'
        )
    changes: dict[str, Any] = {}
    usage: Any = given.usage
    if type(given.role) is not Role:
        changes["role"] = role_named(given.role)
    if type(given.content) is not str and not is_tuple_of(given.content, PARTS):
        changes["content"] = content_of(given.content)
    if given.tool_calls is not None and not (given.tool_calls and is_tuple_of(given.tool_calls, (ToolCall,))):
        changes["tool_calls"] = calls_of(given.tool_calls) or None
    if isinstance(usage, Mapping):
        changes["usage"] = gather(Usage, dict(usage))
    if given.tool_call_id is not None and not given.tool_call_id:
        changes["tool_call_id"] = None
    if given.timestamp is not None and not isinstance(given.timestamp, datetime):
        raise InvalidMessage(f"a message's timestamp is a datetime, not a {type(given.timestamp).__name__}")
    return msgspec.structs.replace(given, **changes) if changes else given


def message_of(given: Mapping[str, Any]) -> Message:
    """A message from JSON that a client sends now.

    Raises:
        InvalidMessage: it has no role, a field has a wrong type, or a part of a known type lacks what it needs.
    """
    fields, content = dict(given), given.get("content")
    if content is None or isinstance(content, str):
        return message_from_dict(fields)
    return msgspec.structs.replace(message_from_dict({**fields, "content": ""}), content=content_of(content))


def dated(given: Message | Mapping[str, Any], now: datetime) -> Message:
    """A message as callers give it (`as_message`), with a time in UTC: its own, or `now`.

    Raises:
        InvalidMessage: as for `as_message`.
    """
    if type(given) is Message and is_bare(given):  # the usual case, without looking at each field
        return text_message(given, now)
    message = as_message(given)
    if message.timestamp is None:
        return msgspec.structs.replace(message, timestamp=now)
    if message.timestamp.tzinfo is not UTC:
        return msgspec.structs.replace(message, timestamp=in_utc(message.timestamp))
    return message


def text_message(given: Message, now: datetime) -> Message:
    """A message that `is_bare`, with this time."""
    return construct(Message, given.role, given.content, now)


def is_bare(message: Message, timestamp: datetime | None = None) -> bool:
    """Whether a message is a role and a text, and has no other field set but this time."""
    role, content = message.role, message.content
    return type(content) is str and type(role) is Role and message == construct(Message, role, content, timestamp)


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
    role = known_role(role_text)
    if fields.keys() == _BARE and type(fields["content"]) is str and role is not None:
        return construct(Message, role, fields["content"])  # the usual case, without looking at each field
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


def provider_of(message: Message) -> str | None:
    """The provider of a message's model, which pi and others keep with the message; None if it is not known."""
    for kept in (message.extra, *((message.extra or {}).values())):
        if isinstance(kept, dict) and isinstance(provider := kept.get("provider"), str):
            return provider
    return None
