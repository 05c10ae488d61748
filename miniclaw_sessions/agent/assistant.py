"""An agent that keeps sessions within its model's context: `AgentSession` one session, `Assistant` any number."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import msgspec

from miniclaw_sessions.agent.agent import Agent, Unanswered, reply_of
from miniclaw_sessions.agent.earlier_turns import in_place_of, once_more
from miniclaw_sessions.agent.events import AgentEvent, Events, TurnEnd
from miniclaw_sessions.agent.model_request import Bill, ContextBuilder, with_system
from miniclaw_sessions.agent.summarizing import summarizer_of
from miniclaw_sessions.agent.tools import Content
from miniclaw_sessions.config import ModelSettings
from miniclaw_sessions.core.history.branch import Branch, BranchCollector, shown_message
from miniclaw_sessions.core.history.compaction import (
    KEEP_TOKENS,
    TokenCounter,
    count_by_characters,
    count_tokens,
    tokens_of,
    tokens_with,
)
from miniclaw_sessions.core.history.context import build_context
from miniclaw_sessions.core.protocol.entries import Entry, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Role
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.compacting import CompactionOutcome, CompactionStatus, Summarizer
from miniclaw_sessions.core.session.turn import Opening, Turn
from miniclaw_sessions.errors import ConfigError, ContextOverflow, InvalidMessage
from miniclaw_sessions.log import get_logger

RESERVE_TOKENS = 16_384
"""The default part of the model's context that stays free for its reply and for errors of a count."""

COMPACTION_TIMEOUT_S = 120.0
"""How long a summary may keep a turn waiting."""

log = get_logger(__name__)


class AgentSession:
    """One session at work.

    Args:
        agent: who answers.
        session: whose conversation it is.
        context_window: how many tokens the model takes.
        reserve_tokens: how many of them stay free; beyond that the session is compacted.
        keep_tokens: about how much of the newest part a compaction keeps as it is.
        summarizer: makes the summaries; the agent's own model by default.
        count: counts what no provider has counted.
        compaction_timeout_s: how long a summary may take; after that the turn goes on without it.

    Raises:
        ConfigError: the reserve leaves nothing of the context.
    """

    def __init__(  # noqa: PLR0913 - options, each with a name and a default
        self,
        agent: Agent,
        session: Session,
        *,
        context_window: int,
        reserve_tokens: int = RESERVE_TOKENS,
        keep_tokens: int = KEEP_TOKENS,
        summarizer: Summarizer | None = None,
        count: TokenCounter = count_by_characters,
        compaction_timeout_s: float = COMPACTION_TIMEOUT_S,
    ) -> None:
        self.limit = context_window - reserve_tokens
        if self.limit < 1 or keep_tokens < 1:
            raise ConfigError(
                f"a context of {context_window} tokens with {reserve_tokens} in reserve leaves no room for a "
                "conversation; lower the reserve"
            )
        self.agent = agent
        self.session = session
        self._newest = NewestBranch(session, max_tokens=2 * self.limit, count=count)
        self.context = ContextBuilder(max_tokens=self.limit, count=count, read_branch=self._newest.read)
        self.keep_tokens = min(keep_tokens, max(1, self.limit // 2))
        self.last_compaction: CompactionOutcome | None = None
        self._summarizer = summarizer or summarizer_of(agent.provider, limits=agent.limits)
        self._count = count
        self._timeout_s = compaction_timeout_s
        self._bill = Bill(session, agent.budgets, agent.provider.model)
        self._failed_in: Turn | None = None

    def __repr__(self) -> str:
        return f"<AgentSession {self.session.session_id}, at most {self.limit} tokens>"

    # --- answering ---------------------------------------------------------------------------------------------------

    def run(self, message: Message, *, idempotency_key: str | None = None) -> AbstractAsyncContextManager[Events]:
        """Answer a message: `async with agent_session.run(message) as events`. See `Agent.run`."""
        return self.agent.run(message, session=self.session, idempotency_key=idempotency_key, keeper=self)

    def resume(
        self, *, results: Mapping[str, Content] | None = None, unanswered: Unanswered = Unanswered.RUN
    ) -> AbstractAsyncContextManager[Events]:
        """Go on with a turn that was left: `async with agent_session.resume() as events`. See `Agent.resume`."""
        return self.agent.resume(self.session, results=results, unanswered=unanswered, keeper=self)

    async def reply(self, message: Message, *, idempotency_key: str | None = None) -> Message:
        """Answer a message and return the reply. Raises as `Agent.reply`."""
        answer = self.agent.answer(message, session=self.session, idempotency_key=idempotency_key, keeper=self)
        return reply_of(await answer)

    def retry(self) -> AbstractAsyncContextManager[Events]:
        """Answer the user's newest message once more, on a branch of its own; the former answer stays in the tree.

        Raises, while iterating over the events:
            NothingToResume: the user has said nothing yet.
            TranscriptNotKept: the store is `none`, which keeps no branches.
            ModelError, StoreError, ...: as for `run`.
        """
        return self.agent.run(once_more(self.session), session=self.session, keeper=self)

    @asynccontextmanager
    async def edit_and_resend(
        self, entry_id: str, message: Message, *, summarize: bool = False
    ) -> AsyncGenerator[Events, None]:
        """Say something else in place of an earlier message, and answer that; what followed stays in the tree.

        Args:
            entry_id: the message to be replaced.
            message: what is said instead.
            summarize: give the model a summary of the branch that is left.

        Raises:
            EntryNotFound: the session has no such entry.
            TranscriptNotKept, ModelError, StoreError, ...: while iterating over the events, as for `retry`.
        """
        parent_id = (await self.session.tree.get_entry(entry_id)).parent_id
        summary = await self._summary_of_what_is_left(parent_id) if summarize else ""
        opening = in_place_of(self.session, entry_id, message, summary=summary)
        async with self.agent.run(opening, session=self.session, keeper=self) as events:
            yield events

    async def branch(self, entry_id: str | None, *, summarize: bool = False) -> None:
        """Go back to an entry, or to the root where it is None.

        Args:
            entry_id: where the conversation goes on.
            summarize: let the model summarize the branch that is left, for the new branch. If that fails,
                the conversation goes back without a summary.

        Raises:
            EntryNotFound, TurnInProgress, StoreError, ...: as for `Session.branch`.
        """
        summary = await self._summary_of_what_is_left(entry_id) if summarize else ""
        if summary:
            await self.session.tree.branch_with_summary(entry_id, summary)
        else:
            await self.session.tree.branch(entry_id)

    async def _summary_of_what_is_left(self, entry_id: str | None) -> str:
        """What the model says of the entries between the target and the leaf; empty where it says nothing."""
        path = await self.session.tree.get_branch()
        kept = {entry.id for entry in await self.session.tree.get_branch(entry_id)} if entry_id is not None else set()
        left = [message for entry in path if entry.id not in kept and (message := shown_message(entry)) is not None]
        if not left:
            return ""
        try:
            with anyio.fail_after(self._timeout_s):
                given = await self._summarize(left)
            messages = [given] if isinstance(given, str | Message) else given
            summary = "\n\n".join(one if isinstance(one, str) else one.text for one in messages).strip()
            self.session.journal.check(Message(Role.BRANCH_SUMMARY, summary))
        except Exception as error:  # noqa: BLE001 - the branch matters more than its summary
            log.warning(
                "a branch was left without a summary",
                action="compaction.unchanged",
                session_id=self.session.session_id,
                status="failed",
                detail=type(error).__name__,
            )
            return ""
        finally:
            self._bill.settle()
        return summary

    async def _summarize(self, messages: Sequence[Message]) -> str | Message | Sequence[Message]:
        """A summary, if something may still be spent."""
        if self.agent.budgets is not None:
            await self.agent.budgets.check(self.session)
        with self._bill.asking(self.agent.provider, messages, count=self._count):
            summary = await self._summarizer(messages)
        for one in [summary] if isinstance(summary, str | Message) else summary:
            if isinstance(one, Message):
                self._bill.add(one.usage)
        return summary

    # --- keeping within the context ----------------------------------------------------------------------------------

    async def context_tokens(self) -> int:
        """How large the context is now, about: the provider's count of its last request, and what came since."""
        return await self._newest.context_tokens()

    async def compact(self, *, reason: str = "manual", keep_tokens: int | None = None) -> CompactionOutcome:
        """Let a summary stand for the older part of the conversation. See `Session.compact`."""
        try:
            self.last_compaction = await self.session.compact(
                self._summarize,
                keep_tokens=self.keep_tokens if keep_tokens is None else keep_tokens,
                count=self._count,
                reason=reason,
                timeout_s=self._timeout_s,
            )
            if self.last_compaction.status is CompactionStatus.DONE:
                self._bill.paid()
        finally:
            self._bill.settle()
        return self.last_compaction

    async def before_request(self, turn: Turn) -> CompactionOutcome | None:
        """Compact where the next request would come too near the model's limit; once in a turn where that fails."""
        if turn.staged:
            await turn.save()  # what is only staged could not be summarized
        if turn is self._failed_in or await self.context_tokens() <= self.limit:
            return None
        outcome = await self._compact_in_turn("threshold", self.keep_tokens)
        if outcome.status is CompactionStatus.FAILED:
            self._failed_in = turn  # each of its requests would wait for a summary that never comes
        return None if outcome.status is CompactionStatus.SKIPPED else outcome

    async def overflowed(self, turn: Turn) -> CompactionOutcome:
        """The model has refused the context: keep half as much as usual, because the count was wrong."""
        if turn.staged:
            await turn.save()
        return await self._compact_in_turn("overflow", self.keep_tokens // 2)

    async def _compact_in_turn(self, reason: str, keep_tokens: int) -> CompactionOutcome:
        """Compact; a summary that cannot be stored is no reason to end the turn, either.

        What is kept is counted. If the provider reported a larger context than was counted, as much
        less is kept: else a Chinese conversation, counted at a quarter of its size, would be compacted at every step.
        """
        branch = await self._newest.read()
        counted, real = count_tokens(branch.messages(), self._count), tokens_of(branch.entries, self._count)
        if real > counted:
            keep_tokens = keep_tokens * counted // real
        try:
            return await self.compact(reason=reason, keep_tokens=max(1, keep_tokens))
        except InvalidMessage as error:
            self.last_compaction = CompactionOutcome(status=CompactionStatus.FAILED, detail=str(error))
            return self.last_compaction


class NewestBranch:
    """The newest part of one session's branch; only what is new is read and counted.

    Args:
        session: whose branch.
        max_tokens: about how much of it is ever asked for.
        count: how tokens are counted.
    """

    def __init__(self, session: Session, *, max_tokens: int, count: TokenCounter) -> None:
        self._session = session
        self._max_tokens = max_tokens
        self._count = count
        self._branch = Branch()
        self._tokens = 0
        self._context_tokens = 0

    def __repr__(self) -> str:
        return f"<NewestBranch of {self._session.session_id}, {len(self._branch.entries)} entries>"

    async def read(self, max_tokens: int | None = None) -> Branch:
        """The branch as it is now.

        Args:
            max_tokens: only the newest part, of about this many tokens, and back to a user's message; None: all that is
                known, which is at least what the constructor was asked for.

        Raises:
            StoreUnavailable: the store must be read, and cannot be.
        """
        new = self._said_since()
        if new is None or self._tokens > 2 * self._max_tokens:  # too much of it is old
            self._branch = await self._session.tree.read_branch(max_tokens=self._max_tokens, count=self._count)
            self._tokens = self._size(self._branch.entries)
            self._context_tokens = tokens_of(self._branch.entries, self._count)
        elif new:
            self._branch = msgspec.structs.replace(self._branch, entries=(*self._branch.entries, *new))
            self._tokens += self._size(new)
            self._context_tokens = tokens_with(self._context_tokens, new, self._count)
        if max_tokens is None or self._tokens <= max_tokens:
            return self._branch
        collector = BranchCollector(at_most=max_tokens, size=self._count, needs_compaction=False)
        for entry in reversed(self._branch.entries):
            collector.feed(entry)
            if collector.has_enough:
                break
        return msgspec.structs.replace(collector.branch(), compaction=self._branch.compaction)

    async def context_tokens(self) -> int:
        """The size of the context that the branch gives now, as `tokens_of` has it; only what is new is counted.

        Raises:
            StoreUnavailable: as for `read`.
        """
        await self.read()
        return self._context_tokens

    def _said_since(self) -> list[MessageEntry] | None:
        """The messages from what is known to the leaf; None where anything else may stand between."""
        if not self._branch.entries:
            return None
        known_id = self._branch.entries[-1].id
        new: list[MessageEntry] = []
        wanted = self._session.leaf_id
        for entry in reversed(self._session.entries()):
            if wanted == known_id:
                break
            if entry.id != wanted:
                return None
            new.append(entry)
            wanted = entry.parent_id
        return new[::-1] if wanted == known_id else None

    def _size(self, entries: Sequence[Entry]) -> int:
        return sum(self._count(message) for entry in entries if (message := shown_message(entry)) is not None)


class Assistant:
    """Answers in any session, and keeps each within the model's context where its size is known.

    Args:
        agent: who answers.
        settings: `context_window`, `reserve_tokens` and `keep_tokens` of these. With a `context_window` of 0, the size
            is unknown: the model is sent the window of messages, and nothing is summarized.
        summarizer: who summarizes; the agent's own model by default.

    Raises:
        ConfigError: the reserve leaves nothing of the context.
    """

    def __init__(
        self, agent: Agent, settings: ModelSettings | None = None, *, summarizer: Summarizer | None = None
    ) -> None:
        self.agent = agent
        self._summarizer = summarizer
        self._settings = settings or ModelSettings()
        if 0 < self._settings.context_window <= self._settings.reserve_tokens:
            raise ConfigError(
                f"model.context_window is {self._settings.context_window} tokens and model.reserve_tokens "
                f"{self._settings.reserve_tokens}: that leaves no room for a conversation; lower the reserve"
            )

    def __repr__(self) -> str:
        return f"<Assistant {self.agent!r}, {self._settings.context_window or 'unknown'} tokens>"

    def with_agent(self, agent: Agent) -> Assistant:
        """One like this with another agent; who summarizes stays the same."""
        summarizer = self._summarizer or summarizer_of(self.agent.provider, limits=self.agent.limits)
        return Assistant(agent, self._settings, summarizer=summarizer)

    async def answer(
        self,
        session: Session,
        message: Message | Opening | None,
        *,
        idempotency_key: str | None = None,
        on_event: Callable[[AgentEvent], None] = lambda _: None,
    ) -> TurnEnd:
        """Answer a message in this task, and return the turn's last event; see `Agent.answer`.

        Args:
            session: whose conversation it is.
            message: the user's message, or what the turn begins with; None: the newest one in the session is answered,
                or its turn goes on.
            idempotency_key: the sender's own id of the message; see `Session.turn`.
            on_event: called with each event but the last, as it happens.

        Raises:
            ContextOverflow: the conversation is larger than the model takes, also after compaction.
            AgentError, NothingToResume, StoreError, ...: as for `Agent.answer`.
        """
        keeper = self._keeper(session)
        try:
            return await self.agent.answer(
                message, session=session, idempotency_key=idempotency_key, keeper=keeper, on_event=on_event
            )
        except ContextOverflow as error:
            if keeper is not None:
                raise
            advised = ContextOverflow(
                "the conversation is larger than the model takes; set model.context_window, so that its older part "
                "is summarized in time"
            )
            advised.messages, advised.usage = error.messages, error.usage
            raise advised from None

    def run(self, session: Session, message: Message | Opening | None) -> AbstractAsyncContextManager[Events]:
        """Answer a message in a task of its own: `async with assistant.run(session, message) as events`.

        See `Agent.run`, and without a message `Agent.resume`.
        """
        if message is None:
            return self.agent.resume(session, keeper=self._keeper(session))
        return self.agent.run(message, session=session, keeper=self._keeper(session))

    def tokens_of_request(self, before: Sequence[Message], said: Sequence[Message]) -> int:
        """How many tokens the model would be sent, about: by characters, no service is asked.

        Args:
            before: the conversation so far, as a model is shown it.
            said: what the model answers.
        """
        agent, window = self.agent, self._settings.context_window
        history = before if window else before[max(0, len(before) - agent.context.limit) :]
        context = with_system(agent.system_prompt, build_context([*history, *said]))
        offered = [
            {"name": one.name, "description": one.description, "parameters": one.parameters} for one in agent.tools
        ]
        tools = [Message.user(msgspec.json.encode(one).decode()) for one in offered]
        return count_tokens([*context, *tools], agent.context.count)

    def _keeper(self, session: Session) -> AgentSession | None:
        if not self._settings.context_window:
            return None
        return AgentSession(
            self.agent,
            session,
            context_window=self._settings.context_window,
            reserve_tokens=self._settings.reserve_tokens,
            keep_tokens=self._settings.keep_tokens,
            summarizer=self._summarizer,
        )
