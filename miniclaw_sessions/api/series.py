"""The daemon's numbers of the last hour, for plots: a ring of samples that takes some fifty kilobytes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from miniclaw_sessions.api.operation import operation
from miniclaw_sessions.api.shapes import SeriesReply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miniclaw_sessions.api.context import Context

EVERY_S = 5.0
"""Seconds from one sample to the next."""

MOST = 720
"""Samples that are kept: those of an hour."""


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


class ShowSeries(msgspec.Struct, frozen=True):
    """After which time, in seconds since 1970; by default all that there is."""

    after: float | None = None


@operation("GET", "/v1/statistics/series", ShowSeries, SeriesReply, reads=False)
async def show_series(context: Context, request: ShowSeries) -> SeriesReply:
    """The daemon's numbers of the last hour, one sample every five seconds; empty where nobody samples."""
    context.manager.statistics()  # refuses who may not see what is about all sessions
    return context.series.reply(request.after)


OPERATIONS = (show_series,)
