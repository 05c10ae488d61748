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


class Refusals:
    """What the store refused and has not taken since. That others were first, or a value is wrong, is not its fault."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, Refusal] = {}

    def __repr__(self) -> str:
        return f"<Refusals of {len(self._known)} sessions>"

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._known

    def __len__(self) -> int:
        return len(self._known)

    @property
    def damaged(self) -> list[str]:
        """The sessions that nothing is tried again of by itself, because the store calls their transcripts damaged."""
        return [session_id for session_id, one in self._known.items() if isinstance(one.error, StoreCorrupt)]

    @property
    def problems(self) -> list[str]:
        """One sentence for each session, the first ones by name."""
        named = list(self._known.items())[:LISTED]
        sentences = [
            f"messages of session {session_id} are not acknowledged since {one.since:%Y-%m-%d %H:%M:%S} UTC: "
            f"{one.error}"
            for session_id, one in named
        ]
        if more := len(self._known) - len(named):
            sentences.append(f"nor are those of {more} more sessions")
        return sentences

    def note(self, session_id: str, error: StoreError) -> None:
        """A commit of a session was refused; where that is no fault of the store, it took all that it should."""
        if not isinstance(error, StoreUnavailable | StoreCorrupt):
            self.forget(session_id)
            return
        known = self._known.get(session_id)
        self._known[session_id] = Refusal(self._clock.now() if known is None else known.since, error)

    def forget(self, session_id: str) -> None:
        """A commit of a session was taken, or the session is gone."""
        self._known.pop(session_id, None)
