"""The agent loop: a message in, the model and its tools at work, a reply out, all of it saved as one turn.

    async with agent.run(session, Message.user("what time is it?")) as events:
        async for event in events:
            ...

receive -> context -> model -> tools -> context -> model -> ... -> reply. The user's message is committed before the
model is asked; the reply is committed before `TurnFinished` is told. However the turn ends (an error, the limit of
iterations, a cancellation at any point), the session keeps the user's message and every step that was complete, and
what it keeps is legal to send to a model.

Why a context manager and not a bare async generator: a generator that its reader abandons is closed at some later time,
in another task, and would take the turn and its cancel scopes with it. Here the turn runs in a task of its own that
ends, in every case, before the `async with` block does.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from miniclaw_sessions.agent.context_builder import ContextBuilder
from miniclaw_sessions.agent.provider import Provider, Reply, TextDelta
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.errors import AgentError, ConfigError, InvalidMessage, IterationLimit, ModelError
from miniclaw_sessions.events import get_logger
from miniclaw_sessions.history.window import MAX_MESSAGES
from miniclaw_sessions.protocol.encoding import parse_json
from miniclaw_sessions.protocol.messages import ImagePart, Message, ToolCall, Usage
from miniclaw_sessions.session import Session
from miniclaw_sessions.turn import INTERRUPTED, Turn

__all__ = ["Agent", "AgentEvent", "Events", "TextDelta", "ToolFinished", "ToolStarted", "TurnFinished"]

MAX_ITERATIONS = 200
"""How often the model is asked within one turn unless told otherwise (document 004)."""

MAX_ERROR_LENGTH = 2000
"""Characters of a tool's error that a model is shown."""

log = get_logger(__name__)


class ToolStarted(msgspec.Struct, frozen=True, tag=True):
    """A tool begins to run."""

    call: ToolCall


class ToolFinished(msgspec.Struct, frozen=True, tag=True):
    """A tool has ended, or could not run; `result` is what the model will see."""

    call: ToolCall
    result: Message

    @property
    def is_error(self) -> bool:
        """Whether it failed."""
        return self.result.is_error


class TurnFinished(msgspec.Struct, frozen=True, tag=True):
    """The reply, acknowledged by the store, and what the whole turn cost. The last event of a turn that succeeds."""

    message: Message
    usage: Usage


AgentEvent = TextDelta | ToolStarted | ToolFinished | TurnFinished
_Tell = Callable[[AgentEvent], None]


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


class Agent:
    """A model with its tools, for any number of sessions at once; it holds nothing of any of them.

    Args:
        provider: the model.
        tools: what it may call.
        system_prompt: what it is told first.
        max_iterations: how often it is asked within one turn.
        tool_timeout_s: seconds after which a tool is cancelled, and its call answered with an error.
        history_limit: how many messages from before the current one it is sent.
        clock: makes ids for calls that a model left without one; the machine's by default.

    Raises:
        ConfigError: two tools have one name, or a limit is not positive.
    """

    def __init__(  # noqa: PLR0913 - options, each with a name and a default
        self,
        provider: Provider,
        *,
        tools: Iterable[Tool] = (),
        system_prompt: str = "",
        max_iterations: int = MAX_ITERATIONS,
        tool_timeout_s: float = 30.0,
        history_limit: int = MAX_MESSAGES,
        clock: Clock | None = None,
    ) -> None:
        self.provider = provider
        self.tools = tuple(tools)
        self.max_iterations = max_iterations
        self.tool_timeout_s = tool_timeout_s
        self._by_name = {tool.name: tool for tool in self.tools}
        self._context = ContextBuilder(system_prompt, limit=history_limit)
        self._clock = clock or SystemClock()
        if len(self._by_name) < len(self.tools):
            raise ConfigError("an agent cannot have two tools of one name; rename one")
        if max_iterations < 1 or tool_timeout_s <= 0:
            raise ConfigError("max_iterations and tool_timeout_s must be positive")

    def __repr__(self) -> str:
        return f"<Agent {self.provider.name}/{self.provider.model}, {len(self.tools)} tools>"

    @asynccontextmanager
    async def run(
        self, session: Session, message: Message, *, idempotency_key: str | None = None
    ) -> AsyncGenerator[Events, None]:
        """Answer a message within a turn of the session: `async with agent.run(session, message) as events`.

        Leaving the block before the turn has ended cancels it. Leaving waits until what it had completed is saved.

        Args:
            session: whose conversation it is.
            message: the user's message.
            idempotency_key: the sender's own id of it; see `Session.turn`.

        Raises, while iterating over the events:
            ModelError: the model failed, or answered nothing.
            IterationLimit: it went on calling tools.
            TurnInProgress, DuplicateMessage, StoreError, ...: as for `Session.turn`.
        """
        sender, receiver = anyio.create_memory_object_stream[AgentEvent | Exception](math.inf)
        failure: Exception | None = None
        with sender, receiver:
            async with anyio.create_task_group() as tasks:
                name = f"agent turn {session.session_id}"
                tasks.start_soon(self._run, session, message, idempotency_key, sender, name=name)
                try:
                    yield Events(receiver)
                except Exception as error:  # noqa: BLE001 - raised below: within the group it would become a group
                    failure = error
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def reply(self, session: Session, message: Message, *, idempotency_key: str | None = None) -> Message:
        """Answer a message and return the reply, acknowledged by the store.

        Raises:
            ModelError, IterationLimit, TurnInProgress, DuplicateMessage, StoreError: as for `run`.
        """
        async with self.run(session, message, idempotency_key=idempotency_key) as events:
            async for event in events:
                if isinstance(event, TurnFinished):
                    return event.message
        raise AgentError(f"the turn of session {session.session_id} ended without a reply")

    async def _run(
        self,
        session: Session,
        message: Message,
        idempotency_key: str | None,
        sender: MemoryObjectSendStream[AgentEvent | Exception],
    ) -> None:
        """The turn's own task: from the lock to the commit. What ends it is told, not raised."""
        with sender:
            try:
                async with session.turn(message, idempotency_key=idempotency_key) as turn:
                    finished = await self._answer(turn, sender.send_nowait)
                sender.send_nowait(finished)
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the reader
                sender.send_nowait(error)

    async def _answer(self, turn: Turn, tell: _Tell) -> TurnFinished:
        """Ask the model and run its tools until it calls none."""
        usage = Usage()
        for _ in range(self.max_iterations):
            context = self._context.build(turn.messages(), turn.message.message)
            reply = self._accepted(await self._ask(context, tell), turn)
            usage = _sum(usage, reply.usage or Usage())
            if not reply.tool_calls:
                return TurnFinished(turn.messages()[-1], usage)
            await self._run_tools(reply.tool_calls, turn, tell)
        raise IterationLimit(
            f"the model was asked {self.max_iterations} times in one turn and still called tools; "
            "its steps are saved. Raise max_iterations if the task needs more."
        )

    # --- the model ---------------------------------------------------------------------------------------------------

    async def _ask(self, context: Sequence[Message], tell: _Tell) -> Message:
        """One reply of the model, its text told as it arrives."""
        reply: Message | None = None
        try:
            async with aclosing(self.provider.generate(context, self.tools)) as answer:
                async for event in answer:
                    match event:
                        case TextDelta():
                            tell(event)
                        case Reply(message=reply):
                            pass
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"the model {self._model_name} failed with {type(error).__name__}") from error
        if reply is None or not reply.is_assistant:
            raise ModelError(f"the model {self._model_name} ended without a reply")
        return reply

    def _accepted(self, reply: Message, turn: Turn) -> Message:
        """Put a reply into the turn, its calls such that each can be answered."""
        calls = self._answerable(reply.tool_calls or ())
        if not calls and not reply.text.strip() and not _has_image(reply):
            raise ModelError(f"the model {self._model_name} answered nothing; ask again")
        reply = msgspec.structs.replace(reply, tool_calls=calls or None, model=reply.model or self.provider.model)
        try:
            turn.append(reply)
        except InvalidMessage as error:
            raise ModelError(f"the reply of {self._model_name} cannot be stored: {error}") from None
        return reply

    def _answerable(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        """The calls that name a tool, each with an id of its own and with arguments that are JSON.

        Arguments that are not JSON cannot be sent again; they are kept beside, for the transcript and for `_run_tool`.
        """
        answerable: list[ToolCall] = []
        ids: set[str] = set()
        for call in calls:
            if not call.name:
                continue
            changes: dict[str, object] = {}
            if not call.id or call.id in ids:
                changes["id"] = f"call_{self._clock.new_id()}"
            if call.arguments.strip() and not _is_json(call.arguments):
                changes |= {"arguments": "{}", "extra": {**(call.extra or {}), _MALFORMED: call.arguments}}
            accepted = msgspec.structs.replace(call, **changes) if changes else call
            ids.add(accepted.id)
            answerable.append(accepted)
        return tuple(answerable)

    @property
    def _model_name(self) -> str:
        return f"{self.provider.name}/{self.provider.model}"

    # --- the tools ---------------------------------------------------------------------------------------------------

    async def _run_tools(self, calls: Sequence[ToolCall], turn: Turn, tell: _Tell) -> None:
        """Run all calls of one reply at the same time; the turn gets their results in the order of the calls.

        When this is cancelled, those that had ended keep their result and the others are answered with an error.
        """
        results: list[Message | None] = [None] * len(calls)

        async def run(index: int, call: ToolCall) -> None:
            tell(ToolStarted(call))
            result = await self._run_tool(call, turn)
            results[index] = result
            tell(ToolFinished(call, result))

        try:
            async with anyio.create_task_group() as tasks:
                for index, call in enumerate(calls):
                    tasks.start_soon(run, index, call, name=f"tool {call.name}")
        finally:
            for call, result in zip(calls, results, strict=True):
                turn.append(result or Message.tool_result(call, INTERRUPTED, is_error=True))

    async def _run_tool(self, call: ToolCall, turn: Turn) -> Message:
        """One call's result; whatever goes wrong becomes an error result that the model sees."""
        try:
            tool, arguments = self._chosen(call)
            with anyio.move_on_after(self.tool_timeout_s) as scope:
                result = Message.tool_result(call, await tool.run(arguments))
                turn.session.check(result)
                return result
            if scope.cancelled_caught:
                return _error(call, f"no answer within {self.tool_timeout_s:g} seconds")
        except _UncallableError as error:
            return _error(call, str(error))
        except InvalidMessage as error:
            return _error(call, f"the result cannot be stored: {error}")
        except Exception as error:  # noqa: BLE001 - a tool may raise anything
            log.warning(
                "a tool failed; the model is told",
                action="tool.failed",
                session_id=turn.session.session_id,
                tool=call.name,
                error_type=type(error).__name__,
            )
            return _error(call, str(error) or type(error).__name__)
        return _error(call, "the tool ended without a result")

    def _chosen(self, call: ToolCall) -> tuple[Tool, dict[str, object]]:
        """The tool and the arguments that a call asks for."""
        tool = self._by_name.get(call.name)
        if tool is None:
            known = ", ".join(self._by_name) or "none"
            raise _UncallableError(f"there is no tool {call.name!r}; the tools are: {known}")
        if _MALFORMED in (call.extra or {}):
            raise _UncallableError("the arguments were not valid JSON; call the tool again with a JSON object")
        arguments = parse_json(call.arguments.encode()) if call.arguments.strip() else {}
        if not isinstance(arguments, dict):
            raise _UncallableError("the arguments were not a JSON object; call the tool again with one")
        return tool, arguments


class _UncallableError(Exception):
    """A call that no tool can be run for; the text is for the model."""


_MALFORMED = "malformed_arguments"


def _is_json(text: str) -> bool:
    try:
        parse_json(text.encode())
    except (InvalidMessage, UnicodeEncodeError):
        return False
    return True


def _has_image(message: Message) -> bool:
    return any(isinstance(part, ImagePart) for part in message.content)


def _error(call: ToolCall, text: str) -> Message:
    shown = text[:MAX_ERROR_LENGTH].encode(errors="replace").decode()  # a lone surrogate could not be stored
    return Message.tool_result(call, f"error: {shown}", is_error=True)


def _sum(first: Usage, second: Usage) -> Usage:
    """What two replies cost together."""
    costs = [usage.cost for usage in (first, second) if usage.cost is not None]
    return Usage(
        input_tokens=first.input_tokens + second.input_tokens,
        output_tokens=first.output_tokens + second.output_tokens,
        cache_read_tokens=first.cache_read_tokens + second.cache_read_tokens,
        cache_write_tokens=first.cache_write_tokens + second.cache_write_tokens,
        total_tokens=first.total + second.total,
        cost=sum(costs) if costs else None,
    )
