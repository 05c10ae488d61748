"""The daemon's numbers of the last hour, for plots: a ring of samples that takes some hundred kilobytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from miniclaw_sessions.service.api.shapes import Reply

EVERY_S = 5.0
"""Seconds from one sample to the next."""

MOST = 720
"""Samples that are kept: those of an hour."""


class SeriesReply(Reply, kw_only=True):
    """Numbers over time, a list for each, all of one length.

    Attributes:
        every_s: seconds from one sample to the next.
        at: when each was taken, in seconds since 1970.
        appended: entries accepted since the start.
        commits, commit_seconds: group commits since the start, and how long they took together.
        flush_seconds: how long the last flush before it took.
        memory_bytes: what the process holds.
        loop_delay_s: the event loop's longest delay since the sample before.
    """

    every_s: float
    at: list[float]
    appended: list[float]
    commits: list[float]
    commit_seconds: list[float]
    flush_seconds: list[float]
    memory_bytes: list[float]
    loop_delay_s: list[float]


class Series:
    """What was measured, oldest first."""

    def __init__(self) -> None:
        self._samples: deque[dict[str, float]] = deque(maxlen=MOST)

    def add(self, sample: Mapping[str, float]) -> None:
        """One more sample, by the names of `SeriesReply`; a name that is left out is 0."""
        self._samples.append({name: sample.get(name, 0.0) for name in _COLUMNS})

    def reply(self, after: float | None) -> SeriesReply:
        """The samples that were taken after a time, column by column."""
        taken = [one for one in self._samples if after is None or one["at"] > after]
        return SeriesReply(every_s=EVERY_S, **{name: [one[name] for one in taken] for name in _COLUMNS})


_COLUMNS = tuple(name for name in SeriesReply.__struct_fields__ if name != "every_s")
