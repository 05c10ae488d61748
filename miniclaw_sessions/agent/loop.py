"""One turn, from the session's lock to the commit.

load -> hooks -> context -> model -> tools -> context -> model -> ... -> hooks -> save. The user's message is committed
before the model is asked, every step with tool calls before its tools run and again with their results, and the reply
before `TurnFinished` is published. However the turn ends (an error, the limit of iterations, a cancellation at any
point, a power cut), the session keeps the user's message and every step that was complete, and what it keeps is legal
to send to a model.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import anyio
import msgspec

from miniclaw_sessions.agent.budgets import Budgets
from miniclaw_sessions.agent.context_builder import ContextBuilder
from miniclaw_sessions.agent.events import (
    MessageAccepted,
    PendingCall,
    ReplyFinished,
    SessionCompacted,
    TurnEnd,
    TurnFinished,
    TurnStopped,
    TurnSuspended,
)
from miniclaw_sessions.agent.hooks import Generation, Hooks
from miniclaw_sessions.agent.model_request import Bill, ReplyLimits, answerable, ask, full_name
from miniclaw_sessions.agent.provider import Provider, ReasoningDelta, TextDelta
from miniclaw_sessions.agent.suspension import log_pending, pending_calls
from miniclaw_sessions.agent.tool_runner import Tell, ToolRunner
from miniclaw_sessions.agent.tools import Content
from miniclaw_sessions.clock import Clock
from miniclaw_sessions.core.history.pairing import open_calls
from miniclaw_sessions.core.protocol.messages import ABORTED, Message, Role, ToolCall, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.compacting import CompactionOutcome, CompactionStatus
from miniclaw_sessions.core.session.turn import INTERRUPTED, Turn
from miniclaw_sessions.errors import (
    AgentError,
    ContextOverflow,
    InvalidMessage,
    IterationLimit,
    ModelError,
    NothingToResume,
    SessionsError,
)

_SPEAKERS = frozenset({Role.USER, Role.ASSISTANT, Role.TOOL_RESULT})
_ADDABLE = frozenset(Role) - {Role.TOOL_RESULT}
_FINAL = frozenset({Role.ASSISTANT})


class ContextKeeper(Protocol):
    """Keeps a session within its model's context; called between the steps of a turn."""

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


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn is run with: the agent's parts, and what one call of it asks for.

    Attributes:
        provider: the model.
        budgets: what may be spent, asked before each request; None: no limit.
        tools: what it may call.
        hooks: who takes part.
        context: what the model is sent, unless a keeper decides.
        system_prompt: its first instruction.
        max_iterations: how often it is asked.
        limits: how much one reply may be.
        clock: makes ids for calls without one.
        session: whose conversation it is.
        keeper: keeps the context small enough.
        results: answers from outside, by the id of their call.
        unanswered: what becomes of other calls without a result.
        approved: as for `ToolRunner.run_all`, of calls that waited for it.
        tell: called with each event but the last, as it happens.
    """

    provider: Provider
    budgets: Budgets | None
    tools: ToolRunner
    hooks: Hooks
    context: ContextBuilder
    system_prompt: str
    max_iterations: int
    limits: ReplyLimits
    clock: Clock
    session: Session
    keeper: ContextKeeper | None
    results: Mapping[str, Content]
    unanswered: Unanswered
    approved: Mapping[str, Mapping[str, Any]]
    tell: Tell


async def run_turn(opening: Turn, job: Job) -> TurnEnd:
    """Run a turn that is not open yet, and return its last event, which is acknowledged by the store.

    Raises:
        ModelError, IterationLimit, AgentError, TurnInProgress, DuplicateMessage, NothingToResume, StoreError, ...:
        as for `Agent.answer`.
    """
    running: _Running | None = None
    try:
        async with opening as turn:
            job.tell(MessageAccepted(turn.message))
            running = _Running(turn, job)
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
        raise AgentError("the model or a hook has cancelled itself; what was complete is saved, ask again") from None
    return end


class _Running:
    """A turn that is open."""

    def __init__(self, turn: Turn, job: Job) -> None:
        self.generation = Generation(job.session, turn.message.message, job.system_prompt, is_resumed=turn.is_resumed)
        self.bill = Bill(job.session, job.budgets, job.provider.model)
        self._turn = turn
        self._job = job
        self._draft: list[str] = []  # what the model has said of the reply that is under way

    async def generate(self) -> TurnFinished | TurnSuspended:
        """Ask the model and run its tools until it calls none."""
        turn, generation, job = self._turn, self.generation, self._job
        left = open_calls(turn.messages())
        if turn.is_resumed and not left and not _awaits_reply(turn.messages()):
            raise NothingToResume(f"session {turn.session_id} has no turn that waits for an answer")
        await _hook(job.hooks.before_generation(generation))
        if left and (still := await self._answer(left)):
            return await self._suspend(still)
        for added in generation.added:
            turn.append(self._given_by_hook(added, _ADDABLE))
        for _ in range(job.max_iterations):
            reply = await self._next_reply()
            if not reply.tool_calls:
                return await self._finish(reply)
            self._append(reply)
            self._draft.clear()
            await turn.save()  # before a tool does anything that a crash would make us forget
            pending = await job.tools.run_all(reply.tool_calls, turn, generation, job.tell)
            await turn.save()
            if pending:
                return await self._suspend(pending)
        raise IterationLimit(
            f"the model was asked {job.max_iterations} times in one turn and still called tools; "
            "its steps are saved. Raise max_iterations if the task needs more."
        )

    def stopped(self) -> TurnStopped:
        """The end of a turn that was stopped, which also stands in the transcript: it does not wait for a reply."""
        turn = self._turn
        turn.close_calls()
        reply = Message(
            Role.ASSISTANT,
            "".join(self._draft),
            model=self._job.provider.model,
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
        """Answer the calls that a former process left open; those that still wait for an answer from outside."""
        turn, results = self._turn, self._job.results
        waiting = {pending.call.id: pending for pending in await pending_calls(self._job.session)}
        still = [waiting[call.id] for call in calls if call.id in waiting and call.id not in results]
        open_now = [call for call in calls if call.id not in results and call.id not in waiting]
        job = self._job
        to_run = [call for call in open_now if job.unanswered is Unanswered.RUN or call.id in job.approved]
        for call in calls:
            if call.id in results:
                turn.append(Message.tool_result(call, results[call.id]))
        for call in open_now:
            if call not in to_run:
                turn.append(Message.tool_result(call, INTERRUPTED, is_error=True))
        if to_run:
            still += await job.tools.run_all(to_run, turn, self.generation, job.tell, approved=job.approved)
        await turn.save()
        return still

    async def _suspend(self, pending: Sequence[PendingCall]) -> TurnSuspended:
        return TurnSuspended(tuple(await log_pending(self._turn, pending)), self.generation.usage)

    # --- the model ---------------------------------------------------------------------------------------------------

    async def _next_reply(self) -> Message:
        """Ask the model once; once more where its context had to be made smaller first."""
        keeper, tell, budgets, session = self._job.keeper, self._job.tell, self._job.budgets, self._job.session
        if budgets is not None:
            await budgets.check(session)
        if keeper is not None and (outcome := await keeper.before_request(self._turn)) is not None:
            tell(SessionCompacted(outcome))
        try:
            answer = await self._ask()
        except ContextOverflow:
            if keeper is None:
                raise
            outcome = await keeper.overflowed(self._turn)
            tell(SessionCompacted(outcome))
            if outcome.status is not CompactionStatus.DONE:
                raise
            answer = await self._ask()
        reply = answerable(answer, self._job.provider, self._job.clock)
        tell(ReplyFinished(reply))
        return reply

    async def _ask(self) -> Message:
        """One reply of the model. Its text is streamed and drafted as it arrives; its thinking is only billed."""
        job = self._job
        builder = job.context if job.keeper is None else job.keeper.context

        came: list[str] = []

        def on_piece(piece: TextDelta | ReasoningDelta) -> None:
            came.append(piece.text)
            if isinstance(piece, TextDelta):
                self._draft.append(piece.text)
                job.tell(piece)

        context = await builder.build(self._turn, self.generation.system_prompt)
        self._draft.clear()
        self.bill.settle()  # of a request that was refused in the middle
        try:
            with self.bill.asking(job.provider, context, came, builder.count):
                reply = await ask(job.provider, context, job.tools.tools, job.limits, on_piece, count=builder.count)
            self.bill.add(reply.usage)
        finally:
            self.generation.usage += self.bill.owed or Usage()
        return reply

    async def _finish(self, reply: Message) -> TurnFinished:
        generation = self.generation
        generation.reply = reply
        await _hook(self._job.hooks.after_generation(generation))
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
            raise ModelError(f"the reply of {full_name(self._job.provider)} cannot be stored: {error}") from None
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


def _awaits_reply(messages: Sequence[Message]) -> bool:
    """Whether the newest word is not the assistant's; what a hook added, and summaries of branches, are no words."""
    newest = next((one for one in reversed(messages) if one.role in _SPEAKERS), None)
    return newest is not None and not newest.is_assistant
