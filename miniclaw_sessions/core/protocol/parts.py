"""What messages are made of: roles, parts of content, tool calls and token usage, as plain immutable values.

Unknown JSON fields of a value are kept verbatim in its `extra` and written back at the same place.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Protocol, TypeVar

import msgspec

_SECRET = os.urandom(8).hex()
EXTRA, OTHER = (f"${name}-{_SECRET}" for name in ("extra", "other"))
"""The JSON names of what our values hold beside their fields: `extra`, and the tag of values of an unknown type.

Each process makes its own, which cannot be guessed and are never written. With fixed names, the fast decoders would
let JSON from outside fill these places: an `extra` with a "role" in it would change who is speaking.
"""

Instant = Annotated[datetime, msgspec.Meta(tz=True)]
"""A moment with its time zone; UTC wherever we write it."""


class Role(StrEnum):
    """Who speaks. The text is miniclaw's spelling on disk (plus the Go manager's special roles).

    Other spellings are understood when reading: `tool`, `function` and `toolResult` are TOOL_RESULT, `model` is
    ASSISTANT. An unknown role becomes OTHER, with its text kept in `Message.role_text`; it is shown to a
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


def known_role(text: Any) -> Role | None:
    """The role that a text names, also by an alias; None if no role has this name."""
    try:
        return Role(text)
    except ValueError:
        return None


class Value(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The base of all values: immutable, invisible to the garbage collector, absent fields unwritten.

    Unknown fields are refused by the fast decoder and gathered into `extra` by `json_values.gather`.
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
"""The largest number of tokens, and sum of them: not every format could hold a larger one."""


_BITS = MAX_TOKENS.bit_length()


def _bounded(tokens: int) -> int:
    return max(-MAX_TOKENS, min(tokens, MAX_TOKENS))


class ToolCall(Value, frozen=True, gc=False):
    """A model's request to run a tool.

    `arguments` is the model's own JSON text, verbatim: it is never parsed and written again. `output` holds a
    serialized function response where a source keeps it on the call, as in Lango.
    """

    id: str
    name: str
    arguments: str = ""
    output: str | None = None
    extra: dict[str, Any] | None = msgspec.field(default=None, name=EXTRA)


ESTIMATED = "estimated"
"""The field of a usage's `extra` that says that its numbers are estimated: the reply broke off before they came."""


_COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "total_tokens")

REASONING = "reasoning_tokens"
"""The field of a usage's `extra` that says how many of its output tokens the model thought with."""


class Usage(Value, frozen=True, gc=False):
    """Tokens that one model reply cost; a number that the provider did not send is zero.

    No number is larger than `MAX_TOKENS`, or smaller than its negative: what is beyond becomes the bound, wherever the
    usage comes from (a service, a caller, a file, a store).

    Its `cost` is in the currency of the manager (`SessionSettings.currency`), which all sessions share.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    total_tokens: int | None = None
    cost: float | None = None
    extra: dict[str, Any] | None = msgspec.field(default=None, name=EXTRA)

    def __post_init__(self) -> None:
        """Bound the numbers. The usual case returns at once, because each stored usage that is read comes here."""
        try:
            fresh, cached = self.input_tokens | self.output_tokens, self.cache_read_tokens | self.cache_write_tokens
            if not (fresh | cached | (self.total_tokens or 0)) >> _BITS:
                return
        except TypeError:  # not numbers: storing the usage refuses them
            pass
        for name in _COUNTS:
            count = getattr(self, name)
            if isinstance(count, int) and not -MAX_TOKENS <= count <= MAX_TOKENS:
                msgspec.structs.force_setattr(self, name, _bounded(count))

    @property
    def is_estimated(self) -> bool:
        """Whether these numbers are estimated (`ESTIMATED`)."""
        return self.extra is not None and self.extra.get(ESTIMATED) is True

    @property
    def reasoning_tokens(self) -> int:
        """How many of the output tokens the model thought with (`REASONING`); 0 where that is not known."""
        count = (self.extra or {}).get(REASONING)
        return count if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= MAX_TOKENS else 0

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


S = TypeVar("S", bound=Value)


class _Constructing(Protocol):
    """Makes a value of a class."""

    def __call__(self, kind: type[S], /, *values: Any, **fields: Any) -> S: ...


construct: _Constructing = msgspec.StructMeta.__call__
"""Makes a value of a class without looking at the fields: for callers that make many of their own values."""
