"""A model whose replies a test writes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

import anyio
from anyio.lowlevel import checkpoint

from miniclaw_sessions.agent.provider import ModelEvent, Reply, TextDelta
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.protocol.messages import Message

Script = Iterable[Message | str | Exception | anyio.Event] | Callable[[list[Message]], Message | str]


class ScriptedProvider:
    """A `Provider` for tests: its replies are given, and the contexts of its requests are recorded.

    Args:
        script: either a function from the context to the reply, or the replies one after the other. A text is an
            assistant's message; an exception is raised; an `anyio.Event` is waited for before the next reply. When
            the replies have run out, the model fails with `AssertionError`.
        name: the provider's name.
        model: the model's name.

    Attributes:
        contexts: the context of each request, in order.
        tools: the names of the tools that the last request offered.
        stalled: set when an event of the script is waited for; a new one is made when that wait is over.
        cancelled: how many requests were cancelled.
        closed: how many requests have ended, on any way.
    """

    def __init__(self, script: Script = (), *, name: str = "scripted", model: str = "script-1") -> None:
        self.name = name
        self.model = model
        self.contexts: list[list[Message]] = []
        self.tools: list[str] = []
        self.stalled = anyio.Event()
        self.cancelled = 0
        self.closed = 0
        self._function = script if callable(script) else None
        self._steps = iter(()) if callable(script) else iter(script)

    def __repr__(self) -> str:
        return f"<ScriptedProvider {self.model}, asked {len(self.contexts)} times>"

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        """Record the context and give the next reply, its text in two pieces."""
        self.contexts.append(list(messages))
        self.tools = [tool.name for tool in tools]
        try:
            message = await self._next_reply()
            middle = (len(message.text) + 1) // 2
            for piece in (message.text[:middle], message.text[middle:]):
                if piece:
                    await checkpoint()
                    yield TextDelta(piece)
            await checkpoint()
            yield Reply(message)
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        finally:
            self.closed += 1

    async def _next_reply(self) -> Message:
        if self._function is not None:
            return _as_message(self._function(self.contexts[-1]))
        for step in self._steps:
            if isinstance(step, anyio.Event):
                self.stalled.set()
                await step.wait()
                self.stalled = anyio.Event()
            elif isinstance(step, Exception):
                raise step
            else:
                return _as_message(step)
        raise AssertionError("the script has no more replies")


def _as_message(reply: Message | str) -> Message:
    return Message.assistant(reply) if isinstance(reply, str) else reply
