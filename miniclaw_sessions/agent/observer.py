"""Who looks on while an agent works, to count and to measure; it changes nothing.

Hooks take part in a turn; an observer is told what happens in all of them, however they end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from miniclaw_sessions.agent.events import AgentEvent
from miniclaw_sessions.agent.provider import Provider
from miniclaw_sessions.core.session import Session


class Observer(Protocol):
    """Is told of every turn, and of every request to the models that it was given."""

    def model(self, provider: Provider) -> Provider:
        """The same model, of which each request is observed: those of turns, and those for summaries."""
        ...

    def turn(self, session: Session) -> AbstractContextManager[Callable[[AgentEvent], None]]:
        """A turn is about to begin; the block lasts as long as it, and raises what ended it, if that was an error.

        What it gives is called with each event of the turn, in the task in which that happens; with the last one, too.
        """
        ...
