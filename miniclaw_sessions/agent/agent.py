"""The agent: a message in, the model and its tools at work, a reply out, all of it saved as one turn.

    async with agent.run(Message.user("what time is it?"), session=session) as events:
        async for event in events:
            ...

A turn: load -> hooks -> context -> model -> tools -> context -> model -> ... -> hooks -> save. The user's message is
committed before the model is asked, every step with tool calls before its tools run and again with their results, and
the reply before `TurnFinished` is published. However the turn ends (an error, the limit of iterations, a cancellation
at any point, a power cut), the session keeps the user's message and every step that was complete, and what it keeps is
legal to send to a model. `resume` goes on with a turn that was left.

Why a context manager and not a bare async generator: a generator that its reader abandons is closed at some later time,
in another task, and would take the turn and its cancel scopes with it. Here the turn runs in a task of its own that
ends, in every case, before the `async with` block does.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from copy import copy
from functools import partial
from typing import Any, Protocol

import anyio
import msgspec

from miniclaw_sessions.agent.attachments import refuse_unseen, taken_by, unseen_files
from miniclaw_sessions.agent.budgets import Budgets
from miniclaw_sessions.agent.calls import Approval, OnEvent, SuspendTurn, ToolRunner, log_pending, pending_calls
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
    in_task,
)
from miniclaw_sessions.agent.foreign_session import AnySession, GiveBack, borrow
from miniclaw_sessions.agent.hooks import Generation, Hooks, Observer
from miniclaw_sessions.agent.model_request import Bill, ContextBuilder, ReplyLimits, answerable, ask, full_name
from miniclaw_sessions.agent.provider import Provider, ReasoningDelta, TextDelta, at_level, thinking_levels
from miniclaw_sessions.agent.reading import FileReader, in_words
from miniclaw_sessions.agent.tools import Content, Tool, Unanswered
from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.config import MAX_MESSAGES
from miniclaw_sessions.core.history.pairing import open_calls
from miniclaw_sessions.core.protocol.messages import ABORTED, Message, Role, ToolCall, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.compacting import CompactionOutcome, CompactionStatus
from miniclaw_sessions.core.session.turn import INTERRUPTED, Opening, Turn
from miniclaw_sessions.errors import (
    AgentError,
    ConfigError,
    ContextOverflow,
    InvalidMessage,
    IterationLimit,
    ModelError,
    NothingToResume,
    SessionsError,
)

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

_SPEAKERS = frozenset({Role.USER, Role.ASSISTANT, Role.TOOL_RESULT})  # not what a hook added, nor summaries
_ADDABLE = frozenset(Role) - {Role.TOOL_RESULT}
_FINAL = frozenset({Role.ASSISTANT})


class ContextKeeper(Protocol):
    """Keeps a session within its model's context; called between the steps of a turn."""

    context: ContextBuilder
    """Builds what is sent to the model."""

    async def before_request(self, turn: Turn) -> CompactionOutcome | None:
        """Called before a request to the model. Returns the compaction that this took, if any."""
        ...

    async def overflowed(self, turn: Turn) -> CompactionOutcome:
        """Called when the model refused the context as too large; it is asked again if the compaction succeeds."""
        ...


class Agent:
    """A model with its tools, for any number of sessions at once; it keeps nothing of them.

    Args:
        provider: the model.
        tools: the tools that it may call.
        changing_tools: returns further tools, which may differ from call to call.
        system_prompt: the first instruction to the model.
        hooks: called in each turn.
        session: the default session. Without one, a call that names no session stands alone. Any object with the
            methods of Dive's or the kernel's session will do: see `foreign_session`.
        max_iterations: the limit of requests to the model within one turn.
        tool_timeout_s: seconds after which a tool is cancelled, and its call answered with an error.
        history_limit: how many messages before the current one are sent to the model.
        max_context_tokens: send about this many tokens of the transcript, in place of the window's
            `history_limit` messages; None: the window.
        limits: the size and the time of one reply.
        clock: makes ids for calls that a model left without one; the machine's by default.
        observer: counts and measures the turns.
        choices: other models, by the names that a session may have chosen (`Session.chosen_model`).
        budgets: what may be spent; by default no limit.
        readers: put files that a model does not take into words; by default it is not shown what is in them.

    Attributes:
        context: builds what is sent to the model, unless a keeper does.

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
        readers: Sequence[FileReader] = (),
    ) -> None:
        if max_iterations < 1 or tool_timeout_s <= 0:
            raise ConfigError("max_iterations and tool_timeout_s must be positive")
        self.provider = provider
        self.observer = observer
        self.choices = choices or {}
        self.budgets = budgets
        self.readers = readers
        self.session = session
        self.system_prompt = system_prompt
        self.max_iterations = max_iterations
        self.limits = limits or ReplyLimits()
        self.hooks = hooks or Hooks()
        self.tool_runner = ToolRunner(tools, timeout_s=tool_timeout_s, hooks=self.hooks, changing=changing_tools)
        self.context = ContextBuilder(limit=history_limit, max_tokens=max_context_tokens)
        self.clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"<Agent {self.provider.name}/{self.provider.model}, {len(self.tools)} tools>"

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the model may call now."""
        return self.tool_runner.tools

    @property
    def models(self) -> dict[str, str]:
        """The models that a session may choose, with their providers; the first one is the default."""
        return {name: one.name for name, one in self._models.items()}

    @property
    def thinking_levels(self) -> dict[str, Sequence[str]]:
        """The levels of thinking that a session may choose, the least first, by model; none of one that takes none."""
        return {name: thinking_levels(one) for name, one in self._models.items()}

    @property
    def _models(self) -> Mapping[str, Provider]:
        return self.choices or {self.provider.model: self.provider}

    @property
    def takes(self) -> dict[str, Collection[str]]:
        """The media types of files that each of these models takes, beside texts; as they are, or in words."""
        return {name: self.taken_with(one) for name, one in self._models.items()}

    def taken_with(self, provider: Provider) -> frozenset[str]:
        """The media types of files that are taken if this provider answers, as they are or in words, beside texts."""
        return taken_by(provider).union(*(reader.kinds for reader in self.readers))

    def in_place(self, *, provider: Provider, tools: Iterable[Tool], system_prompt: str) -> Agent:
        """An agent with the hooks and limits of this one, and another provider, tools and prompt."""
        other = copy(self)
        other.provider, other.choices, other.session = provider, {}, None
        other.system_prompt = system_prompt
        other.tool_runner = ToolRunner(tools, timeout_s=self.tool_runner.timeout_s, hooks=self.hooks)
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
            session: the session of the turn; by default the agent's own, which may be none.
            idempotency_key: the sender's own id of the message; see `Session.turn`.
            keeper: keeps the context small enough; see `assistant.AgentSession`.

        Raises, while iterating over the events:
            ModelError: the model failed, or answered nothing.
            BudgetSpent: a budget is spent; the model was not asked.
            IterationLimit: the model still called tools at its last request.
            AgentError: a hook failed. These errors carry what was produced.
            TurnInProgress, DuplicateMessage, StoreError, ...: as for `Session.turn`.
        """
        return in_task(partial(self.answer, message, session=session, idempotency_key=idempotency_key, keeper=keeper))

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
            session: the session of the turn; the agent's own by default.
            results: answers from outside, by the id of their call.
            unanswered: what happens to other calls without a result.
            keeper: as for `run`.

        Raises, while iterating over the events:
            NothingToResume: nothing waits for an answer.
            ModelError, IterationLimit, AgentError, TurnInProgress, StoreError, ...: as for `run`.
        """
        if session is None and self.session is None:
            raise NothingToResume("an agent without a session has no turn that could be resumed")
        return in_task(
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
        on_event: OnEvent = lambda _: None,
    ) -> TurnEnd:
        """Run a turn in this task, and return its last event, which is acknowledged by the store.

        Args:
            message: the user's message, or what the turn begins with, such as an `Approval`; None: as with `resume`.
            session: as for `run`.
            idempotency_key: as for `run`.
            keeper: as for `run`.
            results: as for `resume`.
            unanswered: what happens to calls without result or approval; default: RUN without a message, else CLOSE.
            on_event: called with each event but the last, as it happens.

        Raises:
            ModelError, IterationLimit, AgentError, TurnInProgress, DuplicateMessage, NothingToResume, StoreError, ...:
            as for `run` and `resume`.
        """
        given = self.session if session is None else session
        if message is None and given is None:
            raise NothingToResume("an agent without a session has no turn that could be resumed")
        give_back: GiveBack | None = None
        if isinstance(given, Session):
            ours = given
        else:
            ours, give_back = await borrow(given, message, idempotency_key)
        message = await self._ready(message, ours, idempotency_key)
        turn = ours.turn(message, idempotency_key=idempotency_key)
        observing: AbstractContextManager[Callable[[AgentEvent], None]] = nullcontext(lambda _: None)
        if self.observer is not None:
            observing = self.observer.turn(ours)
        with observing as observed:

            def publish(event: AgentEvent) -> None:
                observed(event)
                on_event(event)

            end = await self._run(
                turn,
                _Wanted(
                    session=ours,
                    keeper=keeper,
                    results=results or {},
                    unanswered=unanswered or (Unanswered.RUN if message is None else Unanswered.CLOSE),
                    approved=message.approved if isinstance(message, Approval) else {},
                    on_event=publish,
                ),
            )
            if give_back is not None:
                await give_back(end, turn.said)
            observed(end)
            return end

    async def _ready(
        self, message: Message | Opening | None, session: Session, key: str | None
    ) -> Message | Opening | None:
        """What a turn begins with, with the words of new files; refused if the model is not shown a file of it."""
        provider = self.model_of(session)
        said = message.said if isinstance(message, Opening) else [message] if message is not None else []
        if self.readers and any(not isinstance(one.content, str) for one in said):
            known = None if key is None else await session.journal.find_by_key(key)
            if known is None:
                said = [await in_words(one, taken_by(provider), self.readers) for one in said]
        refuse_unseen(provider, provider.model, said)
        if isinstance(message, Opening):
            message.said = said
            return message
        return said[0] if said else None

    def model_of(self, session: Session) -> Provider:
        """The model that a session has chosen, at the level of thinking that it has chosen; else the usual one."""
        return at_level(self.choices.get(session.chosen_model or "", self.provider), session.chosen_level or "")

    async def _run(self, opening: Turn, wanted: _Wanted) -> TurnEnd:
        """Run a turn that is not open yet."""
        running: _Running | None = None
        try:
            async with opening as turn:
                unseen = unseen_files(self.model_of(wanted.session), turn.message.message)
                wanted.on_event(MessageAccepted(turn.message, tuple(file.name for file in unseen)))
                running = _Running(self, turn, wanted)
                end: TurnEnd
                try:
                    with turn.stoppable() as work:
                        end = await running.generate()
                    if work.cancelled_caught:
                        end = running.stopped()
                finally:
                    running.bill.settle()
        except AgentError as error:
            if running is not None:
                error.messages, error.usage = tuple(opening.said), running.generation.usage
            raise
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                raise
            raise AgentError(
                "the model or a hook has cancelled itself; what was complete is saved, ask again"
            ) from None
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


class _Wanted(msgspec.Struct, frozen=True):
    """What a call of `Agent.answer` asks for."""

    session: Session
    keeper: ContextKeeper | None
    results: Mapping[str, Content]
    unanswered: Unanswered
    approved: Mapping[str, Mapping[str, Any]]
    on_event: OnEvent


class _Running:
    """A turn that is open."""

    def __init__(self, agent: Agent, turn: Turn, wanted: _Wanted) -> None:
        session, message = wanted.session, turn.message.message
        self.generation = Generation(session, message, agent.system_prompt, is_resumed=turn.is_resumed)
        self._agent = agent
        self._turn = turn
        self._wanted = wanted
        self._provider = agent.model_of(session)
        self.bill = Bill(session, agent.budgets, self._provider.model)
        self._draft: list[str] = []  # the part of the reply under way that has come

    async def generate(self) -> TurnFinished | TurnSuspended:
        """Ask the model and run its tools until it calls none."""
        agent, turn, generation = self._agent, self._turn, self.generation
        left = open_calls(turn.messages()) if turn.is_resumed else []  # a new message has closed them
        if turn.is_resumed and not left:
            newest = next((message for message in reversed(turn.messages()) if message.role in _SPEAKERS), None)
            if newest is None or newest.is_assistant:
                raise NothingToResume(f"session {turn.session_id} has no turn that waits for an answer")
        await _hook(agent.hooks.before_generation(generation))
        if left and (still := await self._answer(left)):
            return await self._suspend(still)
        for added in generation.added:
            turn.append(self._given_by_hook(added, _ADDABLE))
        for _ in range(agent.max_iterations):
            reply = await self._next_reply()
            if not reply.tool_calls:
                return await self._finish(reply)
            self._append(reply)
            self._draft.clear()
            await turn.save()  # before a tool does anything that a crash would make us forget
            pending = await agent.tool_runner.run_all(reply.tool_calls, turn, generation, self._wanted.on_event)
            await turn.save()
            if pending:
                return await self._suspend(pending)
        raise IterationLimit(
            f"the model was asked {agent.max_iterations} times in one turn and still called tools; "
            "its steps are saved. Raise max_iterations if the task needs more."
        )

    def stopped(self) -> TurnStopped:
        """The end of a turn that was stopped. The transcript has it too, so that the turn does not wait for a reply."""
        turn = self._turn
        turn.close_calls()
        reply = Message(
            Role.ASSISTANT,
            "".join(self._draft),
            model=self._provider.model,
            usage=self.bill.owed,
            stop_reason=ABORTED,
        )
        try:
            turn.append(reply)
        except InvalidMessage:  # too large, or cut in the middle of a character
            turn.append(msgspec.structs.replace(reply, content=""))
        self.bill.paid()
        return TurnStopped(turn.said[-1], self.generation.usage)

    # --- what a former process left ----------------------------------------------------------------------------------

    async def _answer(self, calls: Sequence[ToolCall]) -> list[PendingCall]:
        """Answer the calls that a former process left open, and return those that still wait for an answer."""
        turn, wanted, results = self._turn, self._wanted, self._wanted.results
        waiting = {pending.call.id: pending for pending in await pending_calls(wanted.session)}
        still = [waiting[call.id] for call in calls if call.id in waiting and call.id not in results]
        open_now = [call for call in calls if call.id not in results and call.id not in waiting]
        to_run = [call for call in open_now if wanted.unanswered is Unanswered.RUN or call.id in wanted.approved]
        for call in calls:
            if call.id in results:
                turn.append(Message.tool_result(call, results[call.id]))
        for call in open_now:
            if call not in to_run:
                turn.append(Message.tool_result(call, INTERRUPTED, is_error=True))
        if to_run:
            runner = self._agent.tool_runner
            still += await runner.run_all(to_run, turn, self.generation, wanted.on_event, approved=wanted.approved)
        await turn.save()
        return still

    async def _suspend(self, pending: Sequence[PendingCall]) -> TurnSuspended:
        return TurnSuspended(tuple(await log_pending(self._turn, pending)), self.generation.usage)

    # --- the model ---------------------------------------------------------------------------------------------------

    async def _next_reply(self) -> Message:
        """Ask the model once; a second time if its context had to be made smaller first."""
        agent, keeper, on_event = self._agent, self._wanted.keeper, self._wanted.on_event
        if agent.budgets is not None:
            await agent.budgets.check(self._wanted.session)
        if keeper is not None and (outcome := await keeper.before_request(self._turn)) is not None:
            on_event(SessionCompacted(outcome))
        try:
            answer = await self._ask()
        except ContextOverflow:
            if keeper is None:
                raise
            outcome = await keeper.overflowed(self._turn)
            on_event(SessionCompacted(outcome))
            if outcome.status is not CompactionStatus.DONE:
                raise
            answer = await self._ask()
        reply = answerable(answer, self._provider, agent.clock)
        on_event(ReplyFinished(reply))
        return reply

    async def _ask(self) -> Message:
        """One reply of the model. Its text and thinking are streamed as they arrive; the text is drafted."""
        agent, wanted = self._agent, self._wanted
        builder = agent.context if wanted.keeper is None else wanted.keeper.context
        came: list[str] = []

        def on_piece(piece: TextDelta | ReasoningDelta) -> None:
            came.append(piece.text)
            if isinstance(piece, TextDelta):
                self._draft.append(piece.text)
            wanted.on_event(piece)

        context = await builder.build(self._turn, self.generation.system_prompt)
        self._draft.clear()
        self.bill.settle()  # of a request that was refused in the middle
        try:
            with self.bill.asking(self._provider, context, came, builder.count):
                reply = await ask(self._provider, context, agent.tools, agent.limits, on_piece, count=builder.count)
            self.bill.add(reply.usage)
        finally:
            self.generation.usage += self.bill.owed or Usage()
        return reply

    async def _finish(self, reply: Message) -> TurnFinished:
        generation = self.generation
        generation.reply = reply
        await _hook(self._agent.hooks.after_generation(generation))
        if generation.reply is reply:
            self._append(reply)
        else:
            given = self._given_by_hook(generation.reply, _FINAL)
            if given.usage is None:  # what it stands for was paid for all the same
                given = msgspec.structs.replace(given, usage=reply.usage, model=given.model or reply.model)
            self._turn.append(given)
            self.bill.paid()
        return TurnFinished(self._turn.said[-1], generation.usage)

    def _append(self, reply: Message) -> None:
        try:
            self._turn.append(reply)
        except InvalidMessage as error:
            raise ModelError(f"the reply of {full_name(self._provider)} cannot be stored: {error}") from None
        self.bill.paid()

    def _given_by_hook(self, message: object, roles: frozenset[Role]) -> Message:
        """A message that a hook gives may not leave a session behind that no model accepts."""
        if not isinstance(message, Message) or message.role not in roles or message.tool_calls:
            known = ", ".join(sorted(role.value for role in roles))
            raise AgentError(f"a hook gave something else than a message of {known} without tool calls")
        try:
            self._turn.check(message)
        except InvalidMessage as error:
            raise AgentError(f"a hook gave a message that cannot be stored: {error}") from None
        return message


async def _hook(hook: Awaitable[None]) -> None:
    try:
        await hook
    except SessionsError:
        raise
    except Exception as error:
        raise AgentError(f"a hook failed with {type(error).__name__}") from error
