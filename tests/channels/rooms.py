"""A channel and a model whose every step a test decides: nothing here waits for a clock."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from miniclaw_sessions.agent.provider import ModelEvent, Reply, TextDelta
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.channels.base import (
    Accepted,
    Incoming,
    Last,
    Outgoing,
    Progress,
)
from miniclaw_sessions.core.protocol.messages import Message

PATIENCE_S = 120.0
"""How long a slow machine may take; nothing waits this long when all is well."""


class Changes:
    """What a local server tells those who wait for something there."""

    def __init__(self) -> None:
        self._changed = anyio.Event()

    def note(self) -> None:
        """Something has changed."""
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so, which is looked at after each change."""
        with anyio.fail_after(PATIENCE_S):
            while not is_so():
                await self._changed.wait()


class Room:
    """A channel: `say` is heard by the dispatcher, `sent` is what it told."""

    def __init__(self, name: str = "room") -> None:
        self.name = name
        self.sent: list[Outgoing] = []
        self.typing_in: list[str] = []
        self.begun = 0
        self._said, self._heard = anyio.create_memory_object_stream[Incoming | BaseException](1000)
        self._changes = Changes()

    def say(self, text: str, chat_id: str = "1", message_id: str | None = None) -> Incoming:
        return self.hear(Incoming(chat_id, Message.user(text), message_id=message_id))

    def hear(self, incoming: Incoming) -> Incoming:
        self._said.send_nowait(incoming)
        return incoming

    def fail(self, error: BaseException) -> None:
        """The connection breaks behind what was said."""
        self._said.send_nowait(error)

    def hang_up(self) -> None:
        """Nothing more comes."""
        self._said.close()

    async def receive(self) -> AsyncGenerator[Incoming, None]:
        self.begun += 1
        async for one in self._heard:
            if isinstance(one, BaseException):
                raise one
            yield one

    async def send(self, chat_id: str, outgoing: Outgoing) -> None:
        assert chat_id == outgoing.incoming.chat_id
        await checkpoint()
        self.sent.append(outgoing)
        self._changes.note()

    @asynccontextmanager
    async def typing(self, chat_id: str) -> AsyncIterator[None]:
        self.typing_in.append(chat_id)
        self._changes.note()
        try:
            yield
        finally:
            self.typing_in.remove(chat_id)
            self._changes.note()

    def close(self) -> None:
        self._said.close()
        self._heard.close()

    # --- looking at what was told ------------------------------------------------------------------------------------

    async def until(self, is_so: Callable[[], bool]) -> None:
        await self._changes.until(is_so)

    async def ended(self, *incoming: Incoming) -> list[Last]:
        """The last that was told of each of these, once it is told."""
        await self.until(lambda: all(self.last(one) for one in incoming))
        return [last for one in incoming if (last := self.last(one)) is not None]

    def last(self, incoming: Incoming) -> Last | None:
        found = [one for one in self.sent if one.incoming is incoming and isinstance(one, Last)]
        assert len(found) < 2, "what becomes of a message is told once"
        return found[0] if found else None

    def was_accepted(self, incoming: Incoming) -> bool:
        return any(isinstance(one, Accepted) and one.incoming is incoming for one in self.sent)

    def texts(self) -> list[str]:
        """What a person in the room reads."""
        return [one.text for one in self.sent if one.text]

    def streamed(self, incoming: Incoming) -> str:
        deltas = (one.event for one in self.sent if isinstance(one, Progress) and one.incoming is incoming)
        return "".join(event.text for event in deltas if isinstance(event, TextDelta))


def deleting_tool(made: list[dict[str, Any]]) -> Tool:
    """A tool that a person must agree to; what it was called with is in `made`."""

    async def run(arguments: dict[str, Any]) -> str:
        made.append(arguments)
        return "deleted"

    return Tool("delete", "Deletes a file.", {"type": "object"}, run, needs_approval=True)


class Doors:
    """A model that answers `echo: hello`, or from `replies`; what has a door waits for it to open, and `fail` fails."""

    name = "test"
    model = "doors"

    def __init__(self) -> None:
        self.doors: dict[str, anyio.Event] = {}
        self.asked: list[str] = []
        self.replies: dict[str, Message] = {}
        self.on_asked: Callable[[], Any] = lambda: None
        self._asked = anyio.Event()

    def close(self, *texts: str) -> None:
        self.doors.update({text: anyio.Event() for text in texts})

    def open(self, *texts: str) -> None:
        for text in texts:
            self.doors[text].set()

    async def was_asked(self, *texts: str) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not set(texts) <= set(self.asked):
                await self._asked.wait()

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        del tools
        text = messages[-1].text
        self.asked.append(text)
        self.on_asked()
        self._asked.set()
        self._asked = anyio.Event()
        await checkpoint()
        if text.startswith("fail"):
            raise RuntimeError("the key sk-secret is wrong")
        yield TextDelta("echo: ")
        if text in self.doors:
            await self.doors[text].wait()
        yield TextDelta(text)
        yield Reply(self.replies.get(text) or Message.assistant(f"echo: {text}"))
