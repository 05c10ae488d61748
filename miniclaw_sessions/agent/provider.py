"""What a model must offer so that an agent can use it.

A provider turns a legal context into one reply, streamed. It keeps nothing between calls, repairs nothing that was
said, and runs no tools: the loop does. `providers/` has those that come with this package; any object of this shape
will do.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import msgspec

from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.protocol.messages import Message


class TextDelta(msgspec.Struct, frozen=True, tag=True):
    """The next piece of the reply's text, as it arrives."""

    text: str


class Reply(msgspec.Struct, frozen=True, tag=True):
    """The complete reply: an assistant's message with its tool calls whole, and with its usage."""

    message: Message


ModelEvent = TextDelta | Reply


class Provider(Protocol):
    """A model behind some service, or anything that answers like one."""

    @property
    def name(self) -> str:
        """Who provides the model, such as openai."""
        ...

    @property
    def model(self) -> str:
        """The model's name, as its provider spells it."""
        ...

    def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        """Answer a context: text as it arrives, and at the end one `Reply` with everything.

        Usually an `async def` with `yield`. The loop reads it to its end, or closes it early when the turn is
        cancelled; whatever it holds must then be let go.

        Args:
            messages: a legal context (`history.context`), the system prompt included.
            tools: what the model may call.

        Raises:
            ModelError: the service failed; the text holds neither keys nor what was said. Any other exception is
                wrapped in one by the loop.
        """
        ...
