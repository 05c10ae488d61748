"""The agent loop: a message in, the model and its tools at work, a reply out, all of it saved as one turn.

    async with agent.run(Message.user("what time is it?"), session=session) as events:
        async for event in events:
            ...

load -> hooks -> context -> model -> tools -> context -> model -> ... -> hooks -> save. The user's message is committed
before the model is asked, every step with tool calls before its tools run and again with their results, and the reply
before `TurnFinished` is told. However the turn ends (an error, the limit of iterations, a cancellation at any point, a
power cut), the session keeps the user's message and every step that was complete, and what it keeps is legal to send to
a model. `resume` goes on where a turn was left.

Why a context manager and not a bare async generator: a generator that its reader abandons is closed at some later time,
in another task, and would take the turn and its cancel scopes with it. Here the turn runs in a task of its own that
ends, in every case, before the `async with` block does.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import StrEnum
from typing import Protocol, TypedDict, Unpack

import anyio
import msgspec

from miniclaw_sessions.agent.asking import ReplyLimits, ask
from miniclaw_sessions.agent.context_builder import ContextBuilder
from miniclaw_sessions.agent.events import (
    ABORTED,
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
    reply_of,
)
from miniclaw_sessions.agent.hooks import Generation, Hooks
from miniclaw_sessions.agent.provider import Provider, TextDelta
from miniclaw_sessions.agent.tool_runner import MALFORMED, SuspendTurn, Tell, ToolRunner
from miniclaw_sessions.agent.tools import Content, Tool
from miniclaw_sessions.clock import Clock, SystemClock
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
from miniclaw_sessions.history.pairing import open_calls
from miniclaw_sessions.history.window import MAX_MESSAGES
from miniclaw_sessions.protocol.encoding import parse_json
from miniclaw_sessions.protocol.entries import Custom, Entry, MessageEntry
from miniclaw_sessions.protocol.messages import ImagePart, Message, Role, ToolCall, Usage
from miniclaw_sessions.session import Session
from miniclaw_sessions.session.compacting import CompactionOutcome, CompactionStatus
from miniclaw_sessions.session.turn import INTERRUPTED, Turn

__all__ = [
    "Agent",
    "AgentEvent",
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
"""How often the model is asked within one turn unless told otherwise (document 004)."""

SUSPENDED = "agent.suspended"
"""The `custom_type` of the entry that says which calls of a suspended turn wait, and for what."""


_SPEAKERS = frozenset({Role.USER, Role.ASSISTANT, Role.TOOL_RESULT})
_ADDABLE = frozenset(Role) - {Role.TOOL_RESULT}
_FINAL = frozenset({Role.ASSISTANT})


class ContextKeeper(Protocol):
    """Whoever keeps a session within its model's context; asked while a turn goes on, between its steps."""

    context: ContextBuilder
    """What the model is sent."""

    async def before_request(self, turn: Turn) -> CompactionOutcome | None:
        """The model is about to be asked; what was done about the context, if anything was."""
        ...

    async def overflowed(self, turn: Turn) -> CompactionOutcome:
        """The model refused the context as too large; it is asked once more if this has made it smaller."""
        ...


class Unanswered(StrEnum):
    """What `resume` does with calls that a crash left without a result."""

    RUN = "run"
    """Run their tools: right where running twice does no harm, for it may have run before."""

    CLOSE = "close"
    """Answer them with an error, and let the model decide."""


class _Options(TypedDict, total=False):
    """What `run` and `resume` pass on to `answer`."""

    idempotency_key: str | None
    results: Mapping[str, Content] | None
    unanswered: Unanswered
    keeper: ContextKeeper | None


class _Request(msgspec.Struct, frozen=True):
    """What one call of an agent asks for."""

    session: Session
    opening: Turn
    keeper: ContextKeeper | None
    results: Mapping[str, Content]
    unanswered: Unanswered
    tell: Tell
    draft: list[str] = msgspec.field(default_factory=list)
    """What the model has said of the reply that is under way."""


class Agent:
    """A model with its tools, for any number of sessions at once; it holds nothing of any of them.

    Args:
        provider: the model.
        tools: what it may call.
        system_prompt: what it is told first.
        hooks: who takes part in its turns.
        session: whose conversation it is, where a call names no other; without any, each call stands alone.
        max_iterations: how often it is asked within one turn.
        tool_timeout_s: seconds after which a tool is cancelled, and its call answered with an error.
        history_limit: how many messages from before the current one it is sent.
        max_context_tokens: send as much of the transcript as has about so many tokens, in place of the window's
            `history_limit` messages; None: the window.
        limits: how much one reply may be, in size and time.
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
        hooks: Hooks | None = None,
        session: Session | None = None,
        max_iterations: int = MAX_ITERATIONS,
        tool_timeout_s: float = 30.0,
        history_limit: int = MAX_MESSAGES,
        max_context_tokens: int | None = None,
        limits: ReplyLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        if max_iterations < 1 or tool_timeout_s <= 0:
            raise ConfigError("max_iterations and tool_timeout_s must be positive")
        self.provider = provider
        self.session = session
        self.system_prompt = system_prompt
        self.max_iterations = max_iterations
        self.limits = limits or ReplyLimits()
        self._hooks = hooks or Hooks()
        self._tools = ToolRunner(tools, timeout_s=tool_timeout_s, hooks=self._hooks)
        self._context = ContextBuilder(limit=history_limit, max_tokens=max_context_tokens)
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"<Agent {self._model_name}, {len(self.tools)} tools>"

    @property
    def context(self) -> ContextBuilder:
        """What its model is sent of a session, unless a keeper decides."""
        return self._context

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What the model may call."""
        return self._tools.tools

    def run(
        self,
        message: Message,
        *,
        session: Session | None = None,
        idempotency_key: str | None = None,
        keeper: ContextKeeper | None = None,
    ) -> AbstractAsyncContextManager[Events]:
        """Answer a message within a turn: `async with agent.run(message, session=session) as events`.

        Leaving the block before the turn has ended cancels it. Leaving waits until what it had completed is saved.
        `Session.stop_turn` stops it from anywhere: its last event is then `TurnStopped`.

        Args:
            message: the user's message.
            session: whose conversation it is; the agent's own by default, or none at all.
            idempotency_key: the sender's own id of the message; see `Session.turn`.
            keeper: keeps the context small enough; see `orchestration.AgentSession`.

        Raises, while iterating over the events:
            ModelError: the model failed, or answered nothing.
            IterationLimit: it went on calling tools.
            AgentError: a hook failed. These errors carry what was produced.
            TurnInProgress, DuplicateMessage, StoreError, ...: as for `Session.turn`.
        """
        return self._run(message, session, idempotency_key=idempotency_key, keeper=keeper)

    def resume(
        self,
        session: Session | None = None,
        *,
        results: Mapping[str, Content] | None = None,
        unanswered: Unanswered = Unanswered.RUN,
        keeper: ContextKeeper | None = None,
    ) -> AbstractAsyncContextManager[Events]:
        """Go on with a turn that a crash, an error or a suspension left: `async with agent.resume(session) as events`.

        Calls without a result are answered first. Those that wait for somebody need their answer in `results`; while
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
        return self._run(None, session, results=results, unanswered=unanswered, keeper=keeper)

    async def answer(  # noqa: PLR0913 - as for `run` and `resume`
        self,
        message: Message | None,
        *,
        session: Session | None = None,
        idempotency_key: str | None = None,
        results: Mapping[str, Content] | None = None,
        unanswered: Unanswered | None = None,
        keeper: ContextKeeper | None = None,
        tell: Tell = lambda _: None,
    ) -> TurnEnd:
        """Run a turn in this task, and return its last event, which is acknowledged by the store.

        Args:
            message: the user's message; None: the turn that was left goes on, as with `resume`.
            session: whose conversation it is; the agent's own by default, or none at all.
            idempotency_key: the sender's own id of the message; see `Session.turn`.
            results: as for `resume`.
            unanswered: what becomes of calls without a result; by default those of a turn that goes on are run, and
                those of one whose message was delivered twice are closed.
            keeper: as for `run`.
            tell: called with each event but the last, as it happens.

        Raises:
            ModelError, IterationLimit, AgentError, TurnInProgress, DuplicateMessage, NothingToResume, StoreError, ...:
            as for `run` and `resume`.
        """
        chosen = session or self.session
        if message is None and chosen is None:
            raise NothingToResume("an agent without a session has no turn that could be resumed")
        chosen = chosen or Session.new()
        opening = chosen.turn(message, idempotency_key=idempotency_key)
        unanswered = unanswered or (Unanswered.RUN if message is None else Unanswered.CLOSE)
        return await self._turn(_Request(chosen, opening, keeper, results or {}, unanswered, tell))

    async def reply(
        self, message: Message, *, session: Session | None = None, idempotency_key: str | None = None
    ) -> Message:
        """Answer a message and return the reply, acknowledged by the store.

        Raises:
            ModelError, IterationLimit, AgentError, TurnInProgress, DuplicateMessage, StoreError: as for `run`. A turn
            that is suspended or stopped is an AgentError here.
        """
        return reply_of(await self.answer(message, session=session, idempotency_key=idempotency_key))

    # --- a turn ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _run(
        self, message: Message | None, session: Session | None, **options: Unpack[_Options]
    ) -> AsyncGenerator[Events, None]:
        """Run the turn in a task of its own, which ends before the block does."""
        sender, receiver = anyio.create_memory_object_stream[AgentEvent | Exception](math.inf)
        failure: Exception | None = None

        async def run() -> None:
            with sender:
                try:
                    end = await self.answer(message, session=session, tell=sender.send_nowait, **options)
                    sender.send_nowait(end)
                except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the reader
                    sender.send_nowait(error)

        with receiver:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, name="agent turn")
                try:
                    yield Events(receiver)
                except Exception as error:  # noqa: BLE001 - raised below: within the group it would become a group
                    failure = error
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _turn(self, request: _Request) -> TurnEnd:
        """From the lock to the commit."""
        generation: Generation | None = None
        try:
            async with request.opening as turn:
                request.tell(MessageAccepted(turn.message))
                generation = Generation(
                    request.session, turn.message.message, self.system_prompt, is_resumed=turn.is_resumed
                )
                end: TurnEnd
                with turn.stoppable() as work:
                    end = await self._generate(turn, generation, request)
                if work.cancelled_caught:
                    end = self._stopped(turn, generation, request)
        except AgentError as error:
            if generation is not None:
                error.messages, error.usage = tuple(request.opening.said), generation.usage
            raise
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                raise
            raise AgentError(
                "the model or a hook has cancelled itself; what was complete is saved, ask again"
            ) from None
        return end

    async def _generate(self, turn: Turn, generation: Generation, request: _Request) -> TurnFinished | TurnSuspended:
        """Ask the model and run its tools until it calls none."""
        left = open_calls(turn.messages())
        if turn.is_resumed and not left and not _awaits_reply(turn.messages()):
            raise NothingToResume(f"session {turn.session_id} has no turn that waits for an answer")
        await self._hook(self._hooks.before_generation(generation))
        if left and (still := await self._answer(left, turn, generation, request)):
            return await self._suspend(turn, generation, still)
        for added in generation.added:
            turn.append(self._given_by_hook(turn, added, _ADDABLE))
        for _ in range(self.max_iterations):
            reply = await self._next_reply(turn, generation, request)
            if not reply.tool_calls:
                return await self._finish(turn, generation, reply)
            self._append(turn, reply)
            request.draft.clear()
            await turn.save()  # before a tool does anything that a crash would make us forget
            pending = await self._tools.run_all(reply.tool_calls, turn, generation, request.tell)
            await turn.save()
            if pending:
                return await self._suspend(turn, generation, pending)
        raise IterationLimit(
            f"the model was asked {self.max_iterations} times in one turn and still called tools; "
            "its steps are saved. Raise max_iterations if the task needs more."
        )

    async def _next_reply(self, turn: Turn, generation: Generation, request: _Request) -> Message:
        """Ask the model once; once more where its context had to be made smaller first."""
        keeper = request.keeper
        builder = self._context if keeper is None else keeper.context
        if keeper is not None and (outcome := await keeper.before_request(turn)) is not None:
            request.tell(SessionCompacted(outcome))
        try:
            answer = await self._ask(await builder.build(turn, generation.system_prompt), request)
        except ContextOverflow:
            if keeper is None:
                raise
            outcome = await keeper.overflowed(turn)
            request.tell(SessionCompacted(outcome))
            if outcome.status is not CompactionStatus.DONE:
                raise
            answer = await self._ask(await builder.build(turn, generation.system_prompt), request)
        reply = self._accepted(answer)
        generation.usage += reply.usage or Usage()
        request.tell(ReplyFinished(reply))
        return reply

    async def _finish(self, turn: Turn, generation: Generation, reply: Message) -> TurnFinished:
        generation.reply = reply
        await self._hook(self._hooks.after_generation(generation))
        if generation.reply is reply:
            self._append(turn, reply)
        else:
            turn.append(self._given_by_hook(turn, generation.reply, _FINAL))
        return TurnFinished(turn.said[-1], generation.usage)

    def _stopped(self, turn: Turn, generation: Generation, request: _Request) -> TurnStopped:
        """The end of a turn that was stopped, which also stands in the transcript: it does not wait for a reply."""
        turn.close_calls()
        reply = Message(Role.ASSISTANT, "".join(request.draft), model=self.provider.model, stop_reason=ABORTED)
        try:
            turn.append(reply)
        except InvalidMessage:  # too large, or cut in the middle of a character
            turn.append(msgspec.structs.replace(reply, content=""))
        return TurnStopped(turn.said[-1], generation.usage)

    async def _suspend(self, turn: Turn, generation: Generation, pending: Sequence[PendingCall]) -> TurnSuspended:
        """Log what is waited for, so that a restart knows it."""
        calls = [{"id": one.call.id, "reason": one.reason, "data": dict(one.data)} for one in pending]
        await turn.tree.append_custom_entry(SUSPENDED, {"calls": calls})
        return TurnSuspended(tuple(pending), generation.usage)

    @staticmethod
    async def _hook(hook: Awaitable[None]) -> None:
        try:
            await hook
        except SessionsError:
            raise
        except Exception as error:
            raise AgentError(f"a hook failed with {type(error).__name__}") from error

    @staticmethod
    def _given_by_hook(turn: Turn, message: object, roles: frozenset[Role]) -> Message:
        """A message that a hook gives may not leave a session behind that no model accepts."""
        if not isinstance(message, Message) or message.role not in roles or message.tool_calls:
            known = ", ".join(sorted(role.value for role in roles))
            raise AgentError(f"a hook gave something else than a message of {known} without tool calls")
        try:
            turn.check(message)
        except InvalidMessage as error:
            raise AgentError(f"a hook gave a message that cannot be stored: {error}") from None
        return message

    async def _answer(
        self, calls: Sequence[ToolCall], turn: Turn, generation: Generation, request: _Request
    ) -> list[PendingCall]:
        """Answer the calls that a former process left open; those that still wait for an answer from outside."""
        results = request.results
        waiting = {pending.call.id: pending for pending in await pending_calls(request.session)}
        still = [waiting[call.id] for call in calls if call.id in waiting and call.id not in results]
        to_run = [call for call in calls if call.id not in results and call.id not in waiting]
        for call in calls:
            if call.id in results:
                turn.append(Message.tool_result(call, results[call.id]))
        if request.unanswered is Unanswered.RUN:
            still += await self._tools.run_all(to_run, turn, generation, request.tell)
        else:
            for call in to_run:
                turn.append(Message.tool_result(call, INTERRUPTED, is_error=True))
        await turn.save()
        return still

    # --- the model ---------------------------------------------------------------------------------------------------

    async def _ask(self, context: Sequence[Message], request: _Request) -> Message:
        """One reply of the model, its text told and put into the draft as it arrives."""

        def on_text(delta: TextDelta) -> None:
            request.draft.append(delta.text)
            request.tell(delta)

        request.draft.clear()
        return await ask(self.provider, context, self.tools, self.limits, on_text)

    def _accepted(self, reply: Message) -> Message:
        """A reply that says or calls something, its calls such that each can be answered."""
        calls = self._answerable(reply.tool_calls or ())
        if not calls and not reply.text.strip() and not _has_image(reply):
            raise ModelError(f"the model {self._model_name} answered nothing; ask again")
        return msgspec.structs.replace(reply, tool_calls=calls or None, model=reply.model or self.provider.model)

    def _append(self, turn: Turn, reply: Message) -> None:
        try:
            turn.append(reply)
        except InvalidMessage as error:
            raise ModelError(f"the reply of {self._model_name} cannot be stored: {error}") from None

    def _answerable(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        """The calls that name a tool, each with an id of its own and with arguments that are JSON.

        Arguments that are not JSON cannot be sent again; they are kept beside, for the transcript and the tool runner.
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
                changes |= {"arguments": "{}", "extra": {**(call.extra or {}), MALFORMED: call.arguments}}
            accepted = msgspec.structs.replace(call, **changes) if changes else call
            ids.add(accepted.id)
            answerable.append(accepted)
        return tuple(answerable)

    @property
    def _model_name(self) -> str:
        return f"{self.provider.name}/{self.provider.model}"


async def pending_calls(session: Session) -> list[PendingCall]:
    """The calls of a suspended turn that wait for an answer from outside.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    entries = (await session.tree.read_branch()).entries
    suspended = next((entry for entry in reversed(entries) if _is_suspension(entry) or _asks(entry)), None)
    if not isinstance(suspended, Custom):
        return []
    told_calls = {call["id"]: call for call in suspended.data.get("calls", ())}
    unanswered = open_calls(session.messages())
    return [
        PendingCall(call, told_calls[call.id].get("reason", ""), told_calls[call.id].get("data", {}))
        for call in unanswered
        if call.id in told_calls
    ]


def _is_suspension(entry: Entry) -> bool:
    return isinstance(entry, Custom) and entry.custom_type == SUSPENDED


def _asks(entry: Entry) -> bool:
    """An assistant's message; what was suspended before it is over, although it may use the same ids."""
    return isinstance(entry, MessageEntry) and entry.message.is_assistant


def _awaits_reply(messages: Sequence[Message]) -> bool:
    """Whether the newest word is not the assistant's; what a hook added, and summaries of branches, are no words."""
    newest = next((one for one in reversed(messages) if one.role in _SPEAKERS), None)
    return newest is not None and not newest.is_assistant


def _is_json(text: str) -> bool:
    try:
        parse_json(text.encode())
    except (InvalidMessage, UnicodeEncodeError):
        return False
    return True


def _has_image(message: Message) -> bool:
    return any(isinstance(part, ImagePart) for part in message.content)
