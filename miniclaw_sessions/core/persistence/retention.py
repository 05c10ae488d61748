"""How long sessions are kept, by channel, and whether the clock that decides can be believed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.config import RetentionSettings, SessionSettings
from miniclaw_sessions.core.persistence.archive import Archive, session_of, time_of
from miniclaw_sessions.core.protocol.keys import of_channel

JUMP = timedelta(hours=1)
"""A difference between wall clock and monotonic clock that is no drift any more."""

LONG_SILENCE = timedelta(days=1)
"""No session used for longer than this before the start: the clock may be wrong."""

Held = Callable[[Sequence[str]], Awaitable[list[str]]]
"""Gives those of some sessions, by their ids, that are under legal hold."""


class Looked(NamedTuple):
    """What was looked at for expiry.

    Attributes:
        scanned: how many sessions.
        idle: the ids of those that may go.
        held: the ids of those that are idle as well, and stay because they are under legal hold.
    """

    scanned: int
    idle: list[str]
    held: list[str]


class Rule(NamedTuple):
    """How long the sessions of a channel live, whether the archive gets them then, and how long it keeps them.

    The rule with the channel None is for all channels without one of their own. A time of zero means for ever.
    """

    channel: str | None
    ttl: timedelta
    archives: bool
    archived_for: timedelta

    def is_idle(self, last_accessed: datetime, at: datetime) -> bool:
        """True if it was idle for strictly longer than its time to live by then; a use in the future counts as now."""
        return self.ttl > timedelta(0) and at - last_accessed > self.ttl


class Retention:
    """The rules of a workspace.

    Attributes:
        rules: those of single channels, and last the one for all others.
        expires: whether anything ever goes.
    """

    def __init__(self, settings: SessionSettings) -> None:
        own = [_rule(settings, channel, said) for channel, said in settings.retention.items()]
        self._others = _rule(settings, None, RetentionSettings())
        self._by_channel = {rule.channel: rule for rule in own}
        self._by_id: list[tuple[Callable[[str], bool], Rule]] = [(of_channel(rule.channel or ""), rule) for rule in own]
        self.rules = (*own, self._others)
        self.expires = any(rule.ttl or rule.archived_for for rule in self.rules)

    @property
    def channels(self) -> list[str]:
        """Those that have a rule of their own."""
        return [rule.channel for rule in self.rules if rule.channel is not None]

    def of(self, channel: str) -> Rule:
        """The rule for a channel."""
        return self._by_channel.get(channel, self._others)

    def of_id(self, session_id: str) -> Rule:
        """The rule for the channel of a session that is only known by its id."""
        return next((rule for is_its, rule in self._by_id if is_its(session_id)), self._others)

    async def outdated(self, archive: Archive, now: datetime, held: Held) -> tuple[list[str], list[str]]:
        """The names of the archived files that have been kept for longer than they are to be.

        Behind them the ids of those sessions whose files have been, and stay: they are in use again, and held.
        """
        if not any(rule.archived_for for rule in self.rules):
            return [], []
        names = []
        for name in await archive.names():
            kept_for, archived_at = self.of_id(session_of(name)).archived_for, time_of(name)
            if kept_for and archived_at is not None and now - archived_at > kept_for:
                names.append(name)
        kept = await held(list(dict.fromkeys(map(session_of, names))))
        return [name for name in names if session_of(name) not in kept], kept


class ClockGuard:
    """Decides whether the wall clock can be believed.

    Attributes:
        ahead: by how much the wall clock has jumped ahead since the start, less what it was set back since.
    """

    def __init__(self, clock: Clock, *, newest_access: datetime | None, patience_s: float) -> None:
        self._clock = clock
        self._started_at = self._wall = clock.now()
        self._trusted_from = self._monotonic = clock.monotonic()
        self._patient_until = self._monotonic + patience_s
        self._patience_s = patience_s
        self.ahead = timedelta(0)
        self._reason = "no session was used for more than a day before the start: the clock may be wrong"
        if newest_access is not None:
            self.consider(newest_access)

    def consider(self, newest_access: datetime) -> None:
        """Take note that a session was last used then, and none later, before the start."""
        if abs(self._started_at - newest_access) > LONG_SILENCE:
            self._trusted_from = max(self._trusted_from, self._patient_until)

    def distrust(self) -> None:
        """The clock jumped: believe it only after a while."""
        self._trusted_from = self._clock.monotonic() + self._patience_s
        self._reason = "the clock jumped: it may be wrong"

    def jump(self) -> tuple[datetime, timedelta]:
        """By how much the wall clock ran ahead of the monotonic one since the last call, and where it should be.

        A suspended machine looks the same and is treated the same: its sessions could not be used meanwhile.
        """
        wall, monotonic = self._clock.now(), self._clock.monotonic()
        expected = self._wall + timedelta(seconds=monotonic - self._monotonic)
        self._wall, self._monotonic = wall, monotonic
        if abs(wall - expected) > JUMP:
            self.ahead = max(timedelta(0), self.ahead + wall - expected)
        return expected, (wall - expected if wall - expected > JUMP else timedelta(0))

    def doubt(self) -> str | None:
        """Why nothing should expire now, or None."""
        if self._clock.monotonic() < self._trusted_from:
            return self._reason
        return None


def _rule(settings: SessionSettings, channel: str | None, said: RetentionSettings) -> Rule:
    ttl_days = settings.ttl_days if said.ttl_days is None else said.ttl_days
    archives = settings.archive_expired if said.archive_expired is None else said.archive_expired
    archive_days = settings.archive_days if said.archive_days is None else said.archive_days
    return Rule(channel, timedelta(days=ttl_days), archives, timedelta(days=archive_days))
