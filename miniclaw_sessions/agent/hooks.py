"""Hooks of a turn: before and after the generation, before and after each tool call, as in Dive.

The order is fixed: the history is loaded, `before_generation`, the generation, `after_generation`, the reply is
saved. A hook around the generation that raises ends the turn as a failing model does; one around a tool call does not:
its call is answered with an error, which the model sees, and before a tool that means that nothing runs. Such a hook
may raise `SuspendTurn`, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Protocol

from miniclaw_sessions.agent.events import AgentEvent
from miniclaw_sessions.agent.provider import Provider
from miniclaw_sessions.core.protocol.messages import Message, ToolCall, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import AgentError


class Generation:
    """One turn, as hooks see and change it.

    Attributes:
        session: the session of the turn.
        message: the message that is being answered.
        system_prompt: the first instruction to the model; may be changed before the generation.
        added: messages that `before_generation` adds behind the user's: the model sees them, and they are saved.
        reply: the model's last reply; `after_generation` may replace it.
        usage: the cost of the turn so far.
        is_resumed: whether a former process or a suspension left the turn; its hooks are then called again.
    """

    def __init__(self, session: Session, message: Message, system_prompt: str, *, is_resumed: bool = False) -> None:
        self.session = session
        self.message = message
        self.system_prompt = system_prompt
        self.added: list[Message] = []
        self.reply: Message | None = None
        self.usage = Usage()
        self.is_resumed = is_resumed

    def __repr__(self) -> str:
        return f"<Generation in {self.session.session_id}>"


_current: ContextVar[Generation] = ContextVar("generation")


def current_generation() -> Generation:
    """The turn that the running tool was called in, with its session.

    Raises:
        AgentError: no agent has called it.
    """
    try:
        return _current.get()
    except LookupError:
        raise AgentError("this tool is called by an agent, within a turn") from None


def calling_tools_in(generation: Generation) -> None:
    """Let `current_generation` return this turn in this task."""
    _current.set(generation)


class Hooks:
    """Does nothing; override what you need. One object may serve any number of turns at once."""

    async def before_generation(self, generation: Generation) -> None:
        """The history is loaded and the model has not been asked yet."""

    async def after_generation(self, generation: Generation) -> None:
        """The model has answered without calling a tool; the reply is not saved yet."""

    async def before_tool(self, generation: Generation, call: ToolCall) -> ToolCall | Message | None:
        """A tool is about to run.

        Returns:
            None: it runs. Another call with the same id: that runs instead. A tool result: nothing runs, and this is
            what the model sees.
        """

    async def after_tool(self, generation: Generation, call: ToolCall, result: Message) -> Message | None:
        """A tool has ended.

        Returns:
            None: the model sees its result. A tool result: the model sees that instead.
        """


class InTurn(Hooks):
    """Several hooks as one: those before a step in their order, those after it in reverse.

    Args:
        hooks: in their order.
    """

    def __init__(self, hooks: Sequence[Hooks]) -> None:
        self._hooks = tuple(hooks)

    async def before_generation(self, generation: Generation) -> None:
        """As each of them does."""
        for one in self._hooks:
            await one.before_generation(generation)

    async def after_generation(self, generation: Generation) -> None:
        """As each of them does."""
        for one in reversed(self._hooks):
            await one.after_generation(generation)

    async def before_tool(self, generation: Generation, call: ToolCall) -> ToolCall | Message | None:
        """As each of them does, until one returns a result."""
        for one in self._hooks:
            said = await one.before_tool(generation, call)
            if isinstance(said, Message):
                return said
            call = said or call
        return call

    async def after_tool(self, generation: Generation, call: ToolCall, result: Message) -> Message | None:
        """As each of them does."""
        for one in reversed(self._hooks):
            result = await one.after_tool(generation, call, result) or result
        return result


# --- observing -------------------------------------------------------------------------------------------------------


class Observer(Protocol):
    """Observes every turn, and every request to the models that it was given."""

    def model(self, provider: Provider) -> Provider:
        """The same model, of which each request is observed: those of turns, and those for summaries."""
        ...

    def turn(self, session: Session) -> AbstractContextManager[Callable[[AgentEvent], None]]:
        """A turn is about to begin; the block lasts as long as it, and raises what ended it, if that was an error.

        What it gives is called with each event of the turn, in the task in which that happens; with the last one, too.
        """
        ...
