"""Who answers in the sessions of a program: an agent, and how large a conversation its model takes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.events import AgentEvent, Events, TurnEnd
from miniclaw_sessions.agent.orchestration import AgentSession
from miniclaw_sessions.agent.summarizing import summarizer_of
from miniclaw_sessions.config import ModelSettings
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.compacting import Summarizer
from miniclaw_sessions.core.session.turn import Opening
from miniclaw_sessions.errors import ConfigError, ContextOverflow


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
        tell: Callable[[AgentEvent], None] = lambda _: None,
    ) -> TurnEnd:
        """Answer a message in this task, and return the turn's last event; see `Agent.answer`.

        Args:
            session: whose conversation it is.
            message: the user's message, or what the turn begins with; None: the newest one in the session is answered,
                or its turn goes on.
            idempotency_key: the sender's own id of the message; see `Session.turn`.
            tell: called with each event but the last, as it happens.

        Raises:
            ContextOverflow: the conversation is larger than the model takes, also after compaction.
            AgentError, NothingToResume, StoreError, ...: as for `Agent.answer`.
        """
        keeper = self._keeper(session)
        try:
            return await self.agent.answer(
                message, session=session, idempotency_key=idempotency_key, keeper=keeper, tell=tell
            )
        except ContextOverflow as error:
            raise error if keeper is not None else self._advised(error) from None

    def run(self, session: Session, message: Message | Opening | None) -> AbstractAsyncContextManager[Events]:
        """Answer a message in a task of its own: `async with assistant.run(session, message) as events`.

        See `Agent.run`, and without a message `Agent.resume`.
        """
        if message is None:
            return self.agent.resume(session, keeper=self._keeper(session))
        return self.agent.run(message, session=session, keeper=self._keeper(session))

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

    @staticmethod
    def _advised(error: ContextOverflow) -> ContextOverflow:
        advised = ContextOverflow(
            "the conversation is larger than the model takes; set model.context_window, so that its older part "
            "is summarized in time"
        )
        advised.messages, advised.usage = error.messages, error.usage
        return advised
