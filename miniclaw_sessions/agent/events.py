"""The events of a turn, and the reader's end of their stream."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream

from miniclaw_sessions.agent.provider import ReasoningDelta, TextDelta
from miniclaw_sessions.core.persistence.own_task import HeldOpen
from miniclaw_sessions.core.protocol.entries import MessageEntry, WaitingCall
from miniclaw_sessions.core.protocol.messages import Message, ToolCall, Usage
from miniclaw_sessions.core.session.compacting import CompactionOutcome


class MessageAccepted(msgspec.Struct, frozen=True, tag=True):
    """What is being answered is acknowledged by the store; the first event of every turn.

    Attributes:
        entry: the message.
        unseen: the names of the files in it that the model is not shown, in words neither.
    """

    entry: MessageEntry
    unseen: tuple[str, ...] = ()


class ReplyFinished(msgspec.Struct, frozen=True, tag=True):
    """The model has given one complete reply: text, calls, usage. In a turn with tools there are several."""

    message: Message


class ToolStarted(msgspec.Struct, frozen=True, tag=True):
    """A tool begins to run."""

    call: ToolCall


class ToolFinished(msgspec.Struct, frozen=True, tag=True):
    """A tool has ended, or could not run; `result` is what the model will see."""

    call: ToolCall
    result: Message


class PendingCall(msgspec.Struct, frozen=True):
    """A call that waits for a person, or for anything else outside; `reason` and `data` are the tool's.

    `call` is the model's own; `question` is the entry that says that it waits.
    """

    call: ToolCall
    reason: str = ""
    data: Mapping[str, Any] = {}
    question: str = ""

    @property
    def waiting(self) -> WaitingCall:
        """What is logged of it."""
        return WaitingCall(self.call.id, self.reason, dict(self.data), self.question)

    @property
    def asked_about(self) -> ToolCall:
        """The call that would run, which a hook may have put in the place of the model's."""
        return self.waiting.asked_about(self.call)

    @property
    def needs_approval(self) -> bool:
        """Whether a person's yes or no is waited for, and not something else from outside."""
        return self.waiting.needs_approval


class SessionCompacted(msgspec.Struct, frozen=True, tag=True):
    """The older part of the conversation was to be summarized, because it grew too large for the model."""

    outcome: CompactionOutcome


class TurnSuspended(msgspec.Struct, frozen=True, tag=True):
    """The turn waits for the answers of some calls; `Agent.resume` goes on with them, also after a restart.

    The last event of a turn that was suspended.
    """

    pending: tuple[PendingCall, ...]
    usage: Usage


class TurnFinished(msgspec.Struct, frozen=True, tag=True):
    """The reply, acknowledged by the store, and what the whole turn cost. The last event of a turn that succeeds."""

    message: Message
    usage: Usage


class TurnStopped(msgspec.Struct, frozen=True, tag=True):
    """The turn was stopped (`Session.stop_turn`); the last event of such a turn, when the store has acknowledged it.

    Attributes:
        message: the part of the reply that had come, perhaps empty; its `stop_reason` is `ABORTED`.
        usage: what the turn has cost; of the reply that was stopped, an estimate.
    """

    message: Message
    usage: Usage


TurnEnd = TurnFinished | TurnStopped | TurnSuspended
"""The last event of a turn that no error ended."""

AgentEvent = (
    MessageAccepted
    | ReasoningDelta
    | TextDelta
    | ReplyFinished
    | ToolStarted
    | ToolFinished
    | SessionCompacted
    | TurnEnd
)


class Events:
    """The events of one turn, in order; iterate over it once. It raises what ended the turn, if that was an error.

    A slow reader does not slow the turn down: what it has not read yet is kept, and is never more than the turn's own
    messages.
    """

    def __init__(self, received: MemoryObjectReceiveStream[AgentEvent | Exception]) -> None:
        self._received = received

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> AgentEvent:
        try:
            event = await self._received.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None
        if isinstance(event, Exception):
            raise event
        return event


@asynccontextmanager
async def in_task(answer: Callable[..., Awaitable[TurnEnd]]) -> AsyncGenerator[Events, None]:
    """Run a turn in a task of its own, which ends before the block does."""
    sender, receiver = anyio.create_memory_object_stream[AgentEvent | Exception](math.inf)

    async def run() -> None:
        with sender:
            try:
                sender.send_nowait(await answer(on_event=sender.send_nowait))
            except Exception as error:  # noqa: BLE001 - every error belongs to the reader
                sender.send_nowait(error)

    @asynccontextmanager
    async def running() -> AsyncGenerator[Events, None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, name="agent turn")
            yield Events(receiver)
            tasks.cancel_scope.cancel()

    with receiver:
        async with HeldOpen(running(), name="agent events") as events:
            yield events
