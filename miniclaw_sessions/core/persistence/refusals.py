"""Which sessions' messages the store does not take, since when, and why: what health knows of acknowledgements."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.errors import StoreCorrupt, StoreError, StoreUnavailable

LISTED = 10
"""At most this many sessions are named."""


class Refusal(NamedTuple):
    """Since when a session's commits are refused, and why the last one was."""

    since: datetime
    error: StoreError


class Refusals(dict[str, Refusal]):
    """By session id: what the store refused and has not taken since.

    It has no entry where the store is not at fault: another process was first, or a value is wrong.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def __repr__(self) -> str:
        return f"<Refusals of {len(self)} sessions>"

    @property
    def damaged(self) -> list[str]:
        """The sessions whose transcripts the store calls damaged: their commits are not tried again by themselves."""
        return [session_id for session_id, one in self.items() if isinstance(one.error, StoreCorrupt)]

    @property
    def problems(self) -> list[str]:
        """One sentence for each session, the first ones by name."""
        named = list(self.items())[:LISTED]
        sentences = [
            f"messages of session {session_id} are not acknowledged since {one.since:%Y-%m-%d %H:%M:%S} UTC: "
            f"{one.error}"
            for session_id, one in named
        ]
        if more := len(self) - len(named):
            sentences.append(f"nor are those of {more} more sessions")
        return sentences

    def note(self, session_id: str, error: StoreError) -> None:
        """Note that a commit of a session was refused; an entry goes if the store is not at fault this time."""
        if isinstance(error, StoreUnavailable | StoreCorrupt):
            known = self.get(session_id)
            self[session_id] = Refusal(self._clock.now() if known is None else known.since, error)
        else:
            self.pop(session_id, None)
