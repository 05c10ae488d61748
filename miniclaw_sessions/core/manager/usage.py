"""What models' replies have cost, summed up from the accounts that sessions keep (`history.state.Totals.spent`).

Nothing is read but the states of sessions: of those in memory at once, of others their files, about a millisecond each.
One that was not used since the day that is asked for is not looked at. What was deleted or has expired is not counted;
what comes back from the archive is. A message counts on any branch, and not again in a fork of its session.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING, Literal

from miniclaw_sessions.core.history.state import Spent
from miniclaw_sessions.core.protocol.messages import Usage
from miniclaw_sessions.statistics import UsageReport, UsageRow

if TYPE_CHECKING:
    from miniclaw_sessions.core.session import Session

By = Literal["day", "model", "channel", "chat"]
"""What a row is of."""

_NOTHING = Spent("", "", 0, Usage())


def spent_in(session: Session, since: date | None = None, until: date | None = None) -> Iterator[Spent]:
    """A session's account, or that of some days, both included."""
    first, last = since.isoformat() if since else "", until.isoformat() if until else "~"
    return (one for one in session.journal.conversation.state.totals.spent if first <= one.day <= last)


class UsageSums:
    """Sums by day, model, channel or chat; give it every session that counts."""

    def __init__(self, by: By, since: date | None = None, until: date | None = None) -> None:
        self._by = by
        self._days = since, until
        self._sums: dict[str, Spent] = {}

    def add(self, session: Session) -> None:
        """Add what a session has cost."""
        of_session = {"channel": session.key.channel, "chat": session.session_id}.get(self._by)
        for one in spent_in(session, *self._days):
            name = of_session or (one.day if self._by == "day" else one.model)
            self._sums[name] = self._sums.get(name, _NOTHING) + one

    def report(self, limit: int, currency: str) -> UsageReport:
        """The newest days, or else the most expensive rows, first; at most this many."""
        rows = [_row(name, one) for name, one in self._sums.items()]
        rows.sort(
            key=lambda row: (row.name,) if self._by == "day" else (row.cost or 0.0, row.total_tokens), reverse=True
        )
        total = _row("total", sum(self._sums.values(), _NOTHING))
        return UsageReport(rows=rows[:limit], total=total, left_out=max(0, len(rows) - limit), currency=currency)


def _row(name: str, one: Spent) -> UsageRow:
    usage = one.usage
    return UsageRow(
        name=name,
        replies=one.replies,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        total_tokens=usage.total,
        cost=usage.cost,
        unpriced=one.unpriced,
        estimated=one.estimated,
    )
