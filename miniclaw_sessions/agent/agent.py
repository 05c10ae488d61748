"""The agent: a message in, the model and its tools at work, a reply out, all of it saved as one turn.

    async with agent.run(Message.user("what time is it?"), session=session) as events:
        async for event in events:
            ...

What happens within a turn, and what survives of it however it ends, is described in `loop`; `resume` goes on where one
was left.

Why a context manager and not a bare async generator: a generator that its reader abandons is closed at some later time,
in another task, and would take the turn and its cancel scopes with it. Here the turn runs in a task of its own that
ends, in every case, before the `async with` block does.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from copy import copy
from functools import partial

import anyio

from miniclaw_sessions.agent.budgets import Budgets
from miniclaw_sessions.agent.context_builder import ContextBuilder
from miniclaw_sessions.agent.events import (
    AgentEvent,
    Events,
    MessageAccepted,
    PendingCall,
    ReplyFinished,
    SessionCompacted,
    ToolFinished,
    ToolStarted,
    TurnEnd,
    TurnFinished,
    TurnStopped,
    TurnSuspended,
)
from miniclaw_sessions.agent.foreign_session import AnySession, GiveBack, borrow
from miniclaw_sessions.agent.hooks import Generation, Hooks, Observer
from miniclaw_sessions.agent.loop import ContextKeeper, Job, Unanswered, run_turn
from miniclaw_sessions.agent.model_request import ReplyLimits
from miniclaw_sessions.agent.provider import Provider, TextDelta
from miniclaw_sessions.agent.suspension import Approval
from miniclaw_sessions.agent.tool_runner import SuspendTurn, Tell, ToolRunner
from miniclaw_sessions.agent.tools import Content, Tool
from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.config import MAX_MESSAGES
from miniclaw_sessions.core.persistence.own_task import HeldOpen
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import Opening
from miniclaw_sessions.errors import AgentError, ConfigError, NothingToResume

__all__ = [
    "Agent",
    "AgentEvent",
    "ContextKeeper",
    "Events",
    "Generation",
    "Hooks",
    "MessageAccepted",
    "PendingCall",
    "ReplyFinished",
    "SessionCompacted",
    "SuspendTurn",
    "TextDelta",
    "ToolFinished",
    "ToolStarted",
    "TurnFinished",
    "TurnStopped",
    "TurnSuspended",
    "Unanswered",
]

MAX_ITERATIONS = 200
"""The default limit of requests to the model within one turn."""


class Agent:
    """A model with its tools, for any number of sessions at once; it holds nothing of any of them.

    Args:
        provider: the model.
        tools: what it may call.
        changing_tools: gives further ones, which come and go.
        system_prompt: its first instruction.
        hooks: who takes part in its turns.
        session: whose conversation it is, where a call names no other; without any, each call stands alone. Any object
            that has the methods of Dive's or the kernel's session will do: see `foreign_session`.
        max_iterations: how often it is asked within one turn.
        tool_timeout_s: seconds after which a tool is cancelled, and its call answered with an error.
        history_limit: how many messages from before the current one it is sent.
        max_context_tokens: send about this many tokens of the transcript, in place of the window's
            `history_limit` messages; None: the window.
        limits: how much one reply may be, in size and time.
        clock: makes ids for calls that a model left without one; the machine's by default.
        observer: who counts and measures its turns.
        choices: other models, by the names that a session may have chosen (`Session.chosen_model`).
        budgets: what may be spent; by default no limit.

    Raises:
        ConfigError: two tools have one name, or a limit is not positive.
    """

    def __init__(  # noqa: PLR0913 - options, each with a name and a default
        self,
        provider: Provider,
        *,
        tools: Iterable[Tool] = (),
        changing_tools: Callable[[], Iterable[Tool]] = tuple,
        system_prompt: str = "",
        hooks: Hooks | None = None,
        session: AnySession | None = None,
        max_iterations: int = MAX_ITERATIONS,
        tool_timeout_s: float = 30.0,
        history_limit: int = MAX_MESSAGES,
        max_context_tokens: int | None = None,
        limits: ReplyLimits | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
        choices: Mapping[str, Provider] | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        if max_iterations < 1 or tool_timeout_s <= 0:
            raise ConfigError("max_iterations and tool_timeout_s must be positive")
        self.provider = provider
        self.observer = observer
        self.choices = choices or {}
        self.budgets = budgets
        self.session = session
        self.system_prompt = system_prompt
        self.max_iterations = max_iterations
        self.limits = limits or ReplyLimits()
        self._hooks = hooks or Hooks()
        self._tools = ToolRunner(tools, timeout_s=tool_timeout_s, hooks=self._hooks, changing=changing_tools)
        self._context = ContextBuilder(limit=history_limit, max_tokens=max_context_tokens)
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"<Agent {self.provider.name}/{self.provider.model}, {len(self.tools)} tools>"

    @property
    def context(self) -> ContextBuilder:
        """What its model is sent of a session, unless a keeper decides."""
        return self._context

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What the model may call."""
        return self._tools.tools

    @property
    def models(self) -> dict[str, str]:
        """The models that a session may choose, and who provides them; the first one answers unless it does."""
        return {name: one.name for name, one in self.choices.items()} or {self.provider.model: self.provider.name}

    def in_place(self, *, provider: Provider, tools: Iterable[Tool], system_prompt: str) -> Agent:
        """An agent like this one, with its hooks and limits, that works with another provider, tools and prompt."""
        other = copy(self)
        other.provider, other.choices, other.session = provider, {}, None
        other.system_prompt = system_prompt
        other._tools = ToolRunner(tools, timeout_s=self._tools.timeout_s, hooks=self._hooks)  # noqa: SLF001 - its own class
        return other

    def run(
        self,
        message: Message | Opening,
        *,
        session: AnySession | None = None,
        idempotency_key: str | None = None,
        keeper: ContextKeeper | None = None,
    ) -> AbstractAsyncContextManager[Events]:
        """Answer a message within a turn: `async with agent.run(message, session=session) as events`.

        Leaving the block before the turn has ended cancels it. Leaving waits until what it had completed is saved.
        `Session.stop_turn` stops it from anywhere: its last event is then `TurnStopped`.

        Args:
            message: the user's message, or what the turn begins with.
            session: whose conversation it is; the agent's own by default, or none at all.
            idempotency_key: the sender's own id of the message; see `Session.turn`.
            keeper: keeps the context small enough; see `assistant.AgentSession`.

        Raises, while iterating over the events:
            ModelError: the model failed, or answered nothing.
            BudgetSpent: nothing more may be spent here; the model was not asked.
            IterationLimit: it went on calling tools.
            AgentError: a hook failed. These errors carry what was produced.
            TurnInProgress, DuplicateMessage, StoreError, ...: as for `Session.turn`.
        """
        return _in_task(partial(self.answer, message, session=session, idempotency_key=idempotency_key, keeper=keeper))

    def resume(
        self,
        session: AnySession | None = None,
        *,
        results: Mapping[str, Content] | None = None,
        unanswered: Unanswered = Unanswered.RUN,
        keeper: ContextKeeper | None = None,
    ) -> AbstractAsyncContextManager[Events]:
        """Go on with a turn that a crash, an error or a suspension left: `async with agent.resume(session) as events`.

        Calls without a result are answered first. Those that wait for a person need their answer in `results`; while
        one is missing, the turn is suspended again.

        Args:
            session: whose turn; the agent's own by default.
            results: answers from outside, by the id of their call.
            unanswered: what becomes of other calls without a result.
            keeper: as for `run`.

        Raises, while iterating over the events:
            NothingToResume: nothing waits for an answer.
            ModelError, IterationLimit, AgentError, TurnInProgress, StoreError, ...: as for `run`.
        """
        if session is None and self.session is None:
            raise NothingToResume("an agent without a session has no turn that could be resumed")
        return _in_task(
            partial(self.answer, None, session=session, results=results, unanswered=unanswered, keeper=keeper)
        )

    async def answer(  # noqa: PLR0913 - as for `run` and `resume`
        self,
        message: Message | Opening | None,
        *,
        session: AnySession | None = None,
        idempotency_key: str | None = None,
        results: Mapping[str, Content] | None = None,
        unanswered: Unanswered | None = None,
        keeper: ContextKeeper | None = None,
        tell: Tell = lambda _: None,
    ) -> TurnEnd:
        """Run a turn in this task, and return its last event, which is acknowledged by the store.

        Args:
            message: the user's message, or what the turn begins with, such as an `Approval`; None: as with `resume`.
            session: as for `run`.
            idempotency_key: as for `run`.
            keeper: as for `run`.
            results: as for `resume`.
            unanswered: what happens to calls without result or approval; default: RUN without a message, else CLOSE.
            tell: called with each event but the last, as it happens.

        Raises:
            ModelError, IterationLimit, AgentError, TurnInProgress, DuplicateMessage, NothingToResume, StoreError, ...:
            as for `run` and `resume`.
        """
        given = self.session if session is None else session
        if message is None and given is None:
            raise NothingToResume("an agent without a session has no turn that could be resumed")
        chosen, give_back = await _own_or_borrowed(given, message, idempotency_key)
        turn = chosen.turn(message, idempotency_key=idempotency_key)
        with nullcontext(_ignore) if self.observer is None else self.observer.turn(chosen) as observed:

            def publish(event: AgentEvent) -> None:
                observed(event)
                tell(event)

            job = Job(
                provider=self.choices.get(chosen.chosen_model or "", self.provider),
                budgets=self.budgets,
                tools=self._tools,
                hooks=self._hooks,
                context=self._context,
                system_prompt=self.system_prompt,
                max_iterations=self.max_iterations,
                limits=self.limits,
                clock=self._clock,
                session=chosen,
                keeper=keeper,
                results=results or {},
                unanswered=unanswered or (Unanswered.RUN if message is None else Unanswered.CLOSE),
                approved=message.approved if isinstance(message, Approval) else {},
                tell=publish,
            )
            end = await run_turn(turn, job)
            if give_back is not None:
                await give_back(end, turn.said)
            observed(end)
            return end

    async def reply(
        self, message: Message, *, session: AnySession | None = None, idempotency_key: str | None = None
    ) -> Message:
        """Answer a message and return the reply, acknowledged by the store.

        Raises:
            ModelError, IterationLimit, AgentError, TurnInProgress, DuplicateMessage, StoreError: as for `run`. A turn
            that is suspended or stopped is an AgentError here.
        """
        return reply_of(await self.answer(message, session=session, idempotency_key=idempotency_key))


def reply_of(end: TurnEnd) -> Message:
    """The reply that a turn ended with.

    Raises:
        AgentError: it was suspended or stopped before the model had replied.
    """
    match end:
        case TurnFinished(message=message):
            return message
        case TurnStopped():
            raise AgentError("the turn was stopped; what was said by then is in the session")
        case TurnSuspended():
            raise AgentError("the turn ended without a reply; it waits for the answer of a tool")


async def _own_or_borrowed(
    given: AnySession | None, message: Message | Opening | None, idempotency_key: str | None
) -> tuple[Session, GiveBack | None]:
    return (given, None) if isinstance(given, Session) else await borrow(given, message, idempotency_key)


def _ignore(_: AgentEvent) -> None:
    """Observes nothing."""


@asynccontextmanager
async def _in_task(answer: Callable[..., Awaitable[TurnEnd]]) -> AsyncGenerator[Events, None]:
    """Run a turn in a task of its own, which ends before the block does."""
    sender, receiver = anyio.create_memory_object_stream[AgentEvent | Exception](math.inf)

    async def run() -> None:
        with sender:
            try:
                sender.send_nowait(await answer(tell=sender.send_nowait))
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
