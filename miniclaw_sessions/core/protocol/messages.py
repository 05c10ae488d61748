"""What was said: roles, content, tool calls and token usage, as plain immutable values.

There is one canonical `Message`, used as it is by every layer; when a layer needs more, the message grows. Providers,
frameworks and files are codecs in `formats/`. Whatever a message carries that has no field here is kept verbatim in
`extra` and written back at the same place, so nothing is lost on the way through.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import msgspec

_SECRET = os.urandom(8).hex()
EXTRA, OTHER = (f"${name}-{_SECRET}" for name in ("extra", "other"))
"""The JSON names of what our values hold beside their fields: `extra`, and the tag of what is unknown.

They are made anew in every process, never written, and nobody can guess them. With fixed names, the fast decoders would
let JSON from outside fill these places: an `extra` with a "role" in it would change who is speaking.
"""

Instant = Annotated[datetime, msgspec.Meta(tz=True)]
"""A moment with its time zone; UTC wherever we write it."""


class Role(StrEnum):
    """Who speaks. The text is document 004's spelling on disk (plus document 003's special roles).

    Other spellings are understood when reading: `tool`, `function` and `toolResult` are TOOL_RESULT, `model` is
    ASSISTANT. A role that nobody knows becomes OTHER, with its text kept in `Message.role_text`; it is shown to a
    model as user text, never as system, so that a file's content cannot become instructions.
    """

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL_RESULT = "tool_result"
    BASH_EXECUTION = "bashExecution"
    CUSTOM = "custom"
    BRANCH_SUMMARY = "branchSummary"
    COMPACTION_SUMMARY = "compactionSummary"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> Role | None:
        return _ROLE_ALIASES.get(value) if isinstance(value, str) else None


_ROLE_ALIASES = {
    "tool": Role.TOOL_RESULT,
    "function": Role.TOOL_RESULT,
    "toolResult": Role.TOOL_RESULT,
    "model": Role.ASSISTANT,
}


_SYSTEM, _USER, _ASSISTANT, _TOOL_RESULT = Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL_RESULT
"""For what every message is asked again and again: looking up a member of an enum costs more than comparing it."""


class Value(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The base of all values: immutable, invisible to the garbage collector, absent fields unwritten.

    Unknown fields are refused by the fast decoder and gathered into `extra` by `protocol.encoding`.
    """


class TextPart(Value, frozen=True, gc=False, tag="text", tag_field="type"):
    """A piece of text."""

    text: str
    extra: dict[str, Any] | None = msgspec.field(default=None, name=EXTRA)


class ImagePart(Value, frozen=True, gc=False, tag="image", tag_field="type"):
    """An image, inline as base64 `data` or by `url`; `media_type` is a MIME type such as image/png."""

    media_type: str = ""
    data: str | None = None
    url: str | None = None
    extra: dict[str, Any] | None = msgspec.field(default=None, name=EXTRA)


class ThinkingPart(Value, frozen=True, gc=False, tag="thinking", tag_field="type"):
    """A model's reasoning, with the provider's opaque `signature` that makes it replayable."""

    thinking: str
    signature: str | None = None
    redacted: bool = False
    extra: dict[str, Any] | None = msgspec.field(default=None, name=EXTRA)


class OtherPart(Value, frozen=True, gc=False, tag=OTHER, tag_field="type"):
    """A content part of a type that this version does not know, kept as it came."""

    fields: dict[str, Any]


Part = TextPart | ImagePart | ThinkingPart | OtherPart
PARTS = (TextPart, ImagePart, ThinkingPart, OtherPart)


MAX_TOKENS = 2**63 - 1
"""Where a number of tokens stops, and a sum of them: a larger one could not be written in every format."""


_BITS = MAX_TOKENS.bit_length()


def _bounded(tokens: int) -> int:
    return max(-MAX_TOKENS, min(tokens, MAX_TOKENS))


class ToolCall(Value, frozen=True, gc=False):
    """A model's request to run a tool.

    `arguments` is the model's own JSON text, verbatim: it is never parsed and written again. `output` holds a
    serialized function response where a source keeps it on the call (document 002).
    """

    id: str
    name: str
    arguments: str = ""
    output: str | None = None
    extra: dict[str, Any] | None = msgspec.field(default=None, name=EXTRA)


ESTIMATED = "estimated"
"""The field of a usage's `extra` that says that nobody told the numbers: the reply broke off, and they are guessed."""


_COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "total_tokens")

REASONING = "reasoning_tokens"
"""The field of a usage's `extra` that says how many of its output tokens the model thought with."""


class Usage(Value, frozen=True, gc=False):
    """Tokens that one model reply cost; a number that the provider did not tell is zero.

    None is larger than `MAX_TOKENS`, or smaller than its negative: whatever is beyond becomes the bound, wherever the
    usage comes from (a service, a caller, a file, a store).

    Its `cost` is in the currency of the manager (`SessionSettings.currency`), which is that of all.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    total_tokens: int | None = None
    cost: float | None = None
    extra: dict[str, Any] | None = msgspec.field(default=None, name=EXTRA)

    def __post_init__(self) -> None:
        """Bound the numbers; most are let through at once, because every stored usage that is read comes here."""
        try:
            fresh, cached = self.input_tokens | self.output_tokens, self.cache_read_tokens | self.cache_write_tokens
            if not (fresh | cached | (self.total_tokens or 0)) >> _BITS:
                return
        except TypeError:  # they are no numbers, which is refused where the usage is stored
            pass
        for name in _COUNTS:
            count = getattr(self, name)
            if isinstance(count, int) and not -MAX_TOKENS <= count <= MAX_TOKENS:
                msgspec.structs.force_setattr(self, name, _bounded(count))

    @property
    def is_estimated(self) -> bool:
        """Whether nobody told these numbers (`ESTIMATED`)."""
        return self.extra is not None and self.extra.get(ESTIMATED) is True

    @property
    def reasoning_tokens(self) -> int:
        """How many of the output tokens the model thought with (`REASONING`); 0 where nobody said."""
        told = (self.extra or {}).get(REASONING)
        return told if isinstance(told, int) and not isinstance(told, bool) and 0 < told <= MAX_TOKENS else 0

    @property
    def total(self) -> int:
        """The provider's total, or the sum of the four counts, at most `MAX_TOKENS`."""
        counted = self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens
        return _bounded(counted) if self.total_tokens is None else self.total_tokens

    def __add__(self, other: Usage) -> Usage:
        """What both cost together; the fields of other programs are not added up."""
        return self._combined(other, 1)

    def __sub__(self, other: Usage) -> Usage:
        """What is left without the other."""
        return self._combined(other, -1)

    def _combined(self, other: Usage, sign: int) -> Usage:
        costs = [usage.cost for usage in (self, other) if usage.cost is not None]
        cost = (self.cost or 0.0) + sign * (other.cost or 0.0)
        return Usage(
            input_tokens=self.input_tokens + sign * other.input_tokens,
            output_tokens=self.output_tokens + sign * other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + sign * other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + sign * other.cache_write_tokens,
            total_tokens=self.total + sign * other.total,
            cost=max(-sys.float_info.max, min(cost, sys.float_info.max)) if costs else None,
        )


ABORTED = "aborted"
"""The `stop_reason` of a reply that was stopped by a person: document 003's word."""


S = TypeVar("S", bound=Value)


class _Constructing(Protocol):
    """Makes a value of a class."""

    def __call__(self, kind: type[S], /, *values: Any, **fields: Any) -> S: ...


construct: _Constructing = msgspec.StructMeta.__call__
"""Makes a value of a class as it is given: for those who make many, and know what they put in."""


class _MessageType(msgspec.StructMeta):
    """What makes messages: a role as text, parts as dicts and the like become what they say (`given.as_message`).

    Reading JSON makes them without it, and pays nothing for it.
    """

    if not TYPE_CHECKING:  # which knows the fields of the class

        def __call__(cls, role: Any, content: Any = "", *rest: Any, **fields: Any) -> Message:  # noqa: N805 - a metaclass
            message = construct(cls, role, content, *rest, **fields)
            if type(role) is Role and type(content) is str and not rest and not fields:
                return message
            return message if _is_made(message) else _put_right(message)


def _is_made(message: Message) -> bool:
    """Whether each field that others look into is a value of ours."""
    content, calls, usage = message.content, message.tool_calls, message.usage
    return (
        type(message.role) is Role
        and (type(content) is str or (type(content) is tuple and all(type(part) in PARTS for part in content)))
        and (calls is None or (type(calls) is tuple and all(type(call) is ToolCall for call in calls)))
        and (usage is None or type(usage) is Usage)
    )


def _put_right(message: Message) -> Message:
    from miniclaw_sessions.core.protocol.given import as_message  # noqa: PLC0415 - which is made of messages

    return as_message(message)


class Message(Value, frozen=True, gc=False, metaclass=_MessageType):
    """One message: who said what, and which tools were asked for.

    What is given as JSON has it (a role as text, a part, a tool call or a usage as a dict) becomes what it says.

    Attributes:
        role: who speaks.
        content: text, or parts where text is not enough.
        timestamp: when it was said, UTC; the session sets it when the caller gives none. Information only.
        tool_calls: on an assistant's message, the tools it asks for, in order; None when it asks for none.
        tool_call_id: on a tool result, the id of the call that it answers.
        name: on a tool result, the tool's name (Google needs it); elsewhere the speaker's name.
        is_error: on a tool result, whether the tool failed.
        author: the agent that produced the message (document 002).
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
