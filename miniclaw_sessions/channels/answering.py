"""Who answers in the sessions of a program: an agent, and how large a conversation its model takes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from miniclaw_sessions.agent.events import Events
from miniclaw_sessions.agent.loop import Agent
from miniclaw_sessions.agent.orchestration import AgentSession
from miniclaw_sessions.config import ModelSettings
from miniclaw_sessions.errors import ConfigError, ContextOverflow
from miniclaw_sessions.protocol.messages import Message
from miniclaw_sessions.session import Session
from miniclaw_sessions.session.compacting import CompactionOutcome

if TYPE_CHECKING:
    from miniclaw_sessions.session.turn import Turn


class Assistant:
    """Answers in any session, and keeps each within the model's context where its size is known.

    Args:
        agent: who answers.
        settings: `context_window`, `reserve_tokens` and `keep_tokens` of these. With a `context_window` of 0, the size
            is unknown: the model is sent the window of messages, and nothing is summarised.

    Raises:
        ConfigError: the reserve leaves nothing of the context.
    """

    def __init__(self, agent: Agent, settings: ModelSettings | None = None) -> None:
        self.agent = agent
        self._settings = settings or ModelSettings()
        if 0 < self._settings.context_window <= self._settings.reserve_tokens:
            raise ConfigError(
                f"model.context_window is {self._settings.context_window} tokens and model.reserve_tokens "
                f"{self._settings.reserve_tokens}: that leaves no room for a conversation; lower the reserve"
            )

    def __repr__(self) -> str:
        return f"<Assistant {self.agent!r}, {self._settings.context_window or 'unknown'} tokens>"

    def answer(
        self,
        session: Session,
        message: Message | None,
        *,
        idempotency_key: str | None = None,
        on_accepted: Callable[[], None] = lambda: None,
    ) -> AbstractAsyncContextManager[Events]:
        """Answer a message: `async with assistant.answer(session, message) as events`.

        Args:
            session: whose conversation it is.
            message: the user's message; None: the newest one in the session is answered, or its turn goes on.
            idempotency_key: the sender's own id of the message; see `Session.turn`.
            on_accepted: called when the message is acknowledged by the store, before the model is asked.

        Raises, while iterating over the events:
            As for `Agent.run`, and without a message as for `Agent.resume`.
        """
        keeper = _Keeper(self.agent, self._kept(session), on_accepted)
        if message is None:
            return self.agent.resume(session, keeper=keeper)
        return self.agent.run(message, session=session, idempotency_key=idempotency_key, keeper=keeper)

    def _kept(self, session: Session) -> AgentSession | None:
        if not self._settings.context_window:
            return None
        return AgentSession(
            self.agent,
            session,
            context_window=self._settings.context_window,
            reserve_tokens=self._settings.reserve_tokens,
            keep_tokens=self._settings.keep_tokens,
        )


class _Keeper:
    """Says when the message is acknowledged, which it is before the model is asked; leaves the rest to `kept`."""

    def __init__(self, agent: Agent, kept: AgentSession | None, on_accepted: Callable[[], None]) -> None:
        self.context = agent.context if kept is None else kept.context
        self._kept = kept
        self._on_accepted = on_accepted
        self._is_accepted = False

    async def before_request(self, turn: Turn) -> CompactionOutcome | None:
        if not self._is_accepted:
            self._is_accepted = True
            self._on_accepted()
        return None if self._kept is None else await self._kept.before_request(turn)

    async def overflowed(self, turn: Turn) -> CompactionOutcome:
        if self._kept is None:
            raise ContextOverflow(
                "the conversation is larger than the model takes; set model.context_window, so that its older part "
                "is summarised in time"
            )
        return await self._kept.overflowed(turn)
