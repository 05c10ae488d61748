"""What the strict server answers, and what it must know of each service to say it as the service does.

A `Wire` is all that is particular to one service: what it refuses, how a scripted `Answer` is said in its words, whole
or as a stream of events, and how it fails.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from miniclaw_sessions.core.protocol.messages import Message

Json = dict[str, Any]
Event = tuple[str | None, Json | str]
"""The name and the data of an event; data that is text is sent as it is, JSON or not."""


class Call(msgspec.Struct, frozen=True):
    """A tool call that the scripted model makes; `raw` is sent instead of the arguments, to break them off."""

    name: str
    arguments: Json = {}
    raw: str | None = None

    @property
    def text(self) -> str:
        return json.dumps(self.arguments) if self.raw is None else self.raw


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the scripted model answers.

    Attributes:
        text, thinking, calls: the reply, in this order: thinking, text, calls. Thinking is left out where the service
            does not show any, or was not asked for it.
        redacted: whether the thinking is one that the service only gives encrypted (Anthropic).
        cut_short: whether the reply ends at the limit of tokens.
        with_ids: whether calls have ids (Google's older models give none).
        blocked: whether the service does not let the model answer at all (Google).
        ending: how a streamed reply ends: "whole"; "cut": the connection breaks; "end": it closes in order, but too
            early; "error", "failed": the service reports an overload, or a fault of its own; "overflow": it reports
            that the conversation is too large; "stall": nothing more comes until the client has gone.
        ending_after: after how many events it ends so.
        delay_s: seconds between two events.
        raw: the data of the events, in place of all that the service would make of the above (OpenAI).
    """

    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    redacted: bool = False
    cut_short: bool = False
    with_ids: bool = True
    blocked: bool = False
    ending: Literal["whole", "cut", "end", "error", "failed", "overflow", "stall"] = "whole"
    ending_after: int = 3
    delay_s: float = 0.0
    raw: tuple[Json | str, ...] | None = None


class Refusal(msgspec.Struct, frozen=True):
    """The service refuses the request with this status, and a sentence; clients may repeat it at once."""

    status: int
    sentence: str = ""
    headers: Mapping[str, str] = MappingProxyType({"retry-after-ms": "1"})


class Counts(msgspec.Struct, frozen=True):
    """Tokens of one request: fresh ones, those read from the cache and written to it, and those of the reply."""

    fresh: int
    read: int
    written: int
    said: int


class Wire(ABC):
    """One service."""

    name: str
    key_header: str
    line_end = "\n\n"
    caches_by_itself = True

    @abstractmethod
    def problems(self, body: Json, *, check_signatures: bool) -> list[str]:
        """Why the service refuses the request."""

    def losses(self, body: Json) -> list[str]:  # noqa: ARG002 - for those that sign something
        """What the server gave with a reply, and the service would only like to have back."""
        return []

    @abstractmethod
    def messages(self, body: Json) -> list[Message]:
        """The conversation as canonical messages, for scripts; made by our codecs, unlike the checks."""

    @abstractmethod
    def tools(self, body: Json) -> list[str]:
        """The names of the tools that are offered."""

    @abstractmethod
    def prefix(self, body: Json) -> tuple[list[str], list[int]]:
        """The conversation in pieces, and behind which of them the client wants it to be cached."""

    @abstractmethod
    def events(self, model: str, body: Json, answer: Answer, counts: Counts) -> Iterator[Event]:
        """The reply as a stream."""

    @abstractmethod
    def whole(self, model: str, body: Json, answer: Answer, counts: Counts) -> Json:
        """The reply as one document."""

    @abstractmethod
    def error(self, status: int, message: str) -> Json:
        """The body of a refusal."""

    @abstractmethod
    def overflow(self, tokens: int, limit: int) -> Json:
        """The body of a refusal because of the conversation's size."""

    def error_event(self, body: Json) -> Event:
        """A refusal within a stream."""
        return (None, body)

    def failed_event(self, body: Json) -> Event:
        """A fault of the service within a stream."""
        return self.error_event(body)

    def written(self, event: Event) -> bytes:
        name, data = event
        head = f"event: {name}\n" if name else ""
        text = data if isinstance(data, str) else json.dumps(data)
        return f"{head}data: {text}{self.line_end}".encode()

    def end(self) -> bytes:
        """What stands behind the last event."""
        return b""


def pieces(text: str) -> list[str]:
    """A text as it is streamed, word by word."""
    return re.findall(r"\S+\s*|\s+", text)


def halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def dumped(values: Sequence[Any]) -> list[str]:
    """The pieces of a conversation, such that equal ones are equal texts."""
    return [json.dumps(value, sort_keys=True) for value in values]
