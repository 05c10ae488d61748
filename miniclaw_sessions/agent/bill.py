"""What requests to a model cost: counted as each ends, also one that is stopped or fails in the middle.

A service tells what a reply has cost at its end only. For one that never came to its end an estimate stands, by the
same counter that contexts are measured with: what was sent, and what was said until then. It is marked (`ESTIMATED`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import anyio
import msgspec

from miniclaw_sessions.agent.budgets import Budgets
from miniclaw_sessions.agent.provider import PricingProvider, Provider
from miniclaw_sessions.core.history.compaction import TokenCounter, count_by_characters, count_tokens
from miniclaw_sessions.core.protocol.encoding import message_to_dict
from miniclaw_sessions.core.protocol.entries import SPENT
from miniclaw_sessions.core.protocol.messages import Message, Role, Usage
from miniclaw_sessions.core.protocol.parts import ESTIMATED
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import AgentError, SessionsError
from miniclaw_sessions.log import get_logger

log = get_logger(__name__)


def estimate(
    provider: Provider, sent: Sequence[Message], said: Sequence[str] = (), count: TokenCounter = count_by_characters
) -> Usage:
    """What a request that broke off has cost, about.

    Args:
        provider: knows the price, if anybody does.
        sent: the context. What a cache had of it is not known, so it counts as if none did.
        said: the reply as far as it came: its text, and what the service showed of its thinking. What it thought beside
            that, or called, is not known.
        count: counts tokens.
    """
    answer = count(Message.assistant("".join(said))) if said else 0
    usage = Usage(count_tokens(sent, count), answer, extra={ESTIMATED: True})
    return provider.with_cost(usage) if isinstance(provider, PricingProvider) else usage


class Bill:
    """What is spent in a session: its budgets count it at once, and so does its account, whatever becomes of the reply.

    Args:
        session: whose.
        budgets: what may be spent; None: whatever it costs.
        model: who is asked.

    Attributes:
        owed: what no entry of the session tells of yet.
    """

    def __init__(self, session: Session, budgets: Budgets | None, model: str) -> None:
        self.owed: Usage | None = None
        self._session = session
        self._budgets = budgets
        self._model = model

    def __repr__(self) -> str:
        return f"<Bill of {self._session.session_id}, owes {self.owed}>"

    def add(self, usage: Usage | None) -> None:
        """A request has ended; None: nobody says what it cost."""
        if usage is None:
            return
        if self._budgets is not None:
            self._budgets.note(self._session, usage)
        if self.owed is not None:
            marks = {**(self.owed.extra or {}), **(usage.extra or {})}
            usage = msgspec.structs.replace(self.owed + usage, extra=marks if ESTIMATED in marks else None)
        self.owed = usage

    @contextmanager
    def asking(
        self,
        provider: Provider,
        sent: Sequence[Message],
        said: Sequence[str] = (),
        count: TokenCounter = count_by_characters,
    ) -> Iterator[None]:
        """Ask a model in this block: what an error says that it cost is added, and an estimate where it is given up.

        Args:
            provider: the model.
            sent: what it is sent.
            said: grows while it answers.
            count: counts tokens.
        """
        try:
            yield
        except AgentError as error:
            self.add(error.usage)
            raise
        except anyio.get_cancelled_exc_class():
            self.add(estimate(provider, sent, said, count))
            raise

    def paid(self) -> None:
        """An entry of the session tells of it now."""
        self.owed = None

    def settle(self) -> None:
        """Note in the session what no entry tells of; it is accepted like a message, and waits for nothing."""
        if (owed := self.owed) is None:
            return
        self.owed = None
        try:
            self._session.journal.note({SPENT: message_to_dict(Message(Role.ASSISTANT, model=self._model, usage=owed))})
        except SessionsError as error:
            log.warning(
                "what a request has cost is in no account",
                action="usage.not_noted",
                session_id=self._session.session_id,
                error_type=type(error).__name__,
            )
