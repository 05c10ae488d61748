"""What may be spent in a chat and in a channel, by day and by month; asked before each request to the model.

What was spent is read from the accounts that sessions keep (`manager.usage`), so a restart forgets nothing, and a
budget that is raised holds at once. A channel's sum is made anew once a minute; meanwhile what is spent in this process
is added to it, and what other processes of a shared store spend is seen then. A request that was begun is finished:
what is under way when a budget is reached goes beyond it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, timedelta

import msgspec

from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.config import BudgetSettings
from miniclaw_sessions.errors import BudgetSpent
from miniclaw_sessions.manager.reader import SessionReader
from miniclaw_sessions.manager.usage import spent_in
from miniclaw_sessions.protocol.messages import Usage
from miniclaw_sessions.session import Session

FRESH_S = 60.0
"""How long a channel's sum is believed."""

_REMEMBERED = 1_000


class Budget(msgspec.Struct, frozen=True):
    """One budget, and what was spent of it.

    Attributes:
        of: whose it is, for people: `this chat`, or the channel.
        period: `today` or `this month`.
        limit: how much there is; 0: it has no bound.
        spent: how much is spent.
        until: the day (UTC) on which there is more.
    """

    of: str
    period: str
    limit: float
    spent: float
    until: date


class _Channel(msgspec.Struct):
    """What was spent in a channel on a day and in its month, summed up at a time of the monotonic clock."""

    day: date
    at: float
    today: float
    month: float


class Budgets:
    """Which budgets there are; one object for all sessions of a program.

    Args:
        settings: how much may be spent.
        manager: whose sessions they are; None: there are no others, and so no budgets of channels.
        currency: what the costs are in, for people.
        clock: time; the machine's by default.
    """

    def __init__(
        self,
        settings: BudgetSettings,
        manager: SessionReader | None,
        *,
        currency: str = "",
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._manager = manager
        self._clock = clock or SystemClock()
        self._channels: dict[str, _Channel] = {}
        self.currency = currency

    def __repr__(self) -> str:
        return f"<Budgets {self._settings}>"

    @property
    def has_any(self) -> bool:
        """Whether anything has a bound."""
        return self._settings.has_any

    async def check(self, session: Session) -> None:
        """Return if something may be spent in a session.

        Raises:
            BudgetSpent: one of its budgets is spent.
        """
        if not self.has_any:
            return
        for budget in await self.of(session):
            if 0 < budget.limit <= budget.spent:
                raise BudgetSpent(
                    f"the budget of {budget.of} for {budget.period} is spent, {self.shown(budget.spent)} of "
                    f"{self.shown(budget.limit)}; it goes on at {budget.until} 00:00 UTC, or when the budget is raised"
                )

    async def of(self, session: Session) -> list[Budget]:
        """What is spent in a session today and this month, and in its channel where that has a budget."""
        settings, today = self._settings, self._clock.now().astimezone(UTC).date()
        first, tomorrow = today.replace(day=1), today + timedelta(days=1)
        following = (first + timedelta(days=32)).replace(day=1)
        rows = [(one.day, one.usage) for one in spent_in(session, first, today)]
        found = [
            Budget("this chat", "today", settings.chat_day, self._sum(rows, today), tomorrow),
            Budget("this chat", "this month", settings.chat_month, self._sum(rows), following),
        ]
        if (settings.channel_day or settings.channel_month) and self._manager is not None:
            known, name = await self._channel(self._manager, session.key.channel, today), session.key.channel
            found += [
                Budget(f"the channel {name}", "today", settings.channel_day, known.today, tomorrow),
                Budget(f"the channel {name}", "this month", settings.channel_month, known.month, following),
            ]
        return found

    def note(self, session: Session, usage: Usage) -> None:
        """Something was spent in a session just now."""
        if (known := self._channels.get(session.key.channel)) is not None:
            amount = self._amount(usage)
            known.today, known.month = known.today + amount, known.month + amount

    def shown(self, amount: float) -> str:
        """An amount, for people."""
        return f"{amount:,.0f} tokens" if self._settings.unit == "tokens" else f"{amount:,.4f} {self.currency}".rstrip()

    async def _channel(self, manager: SessionReader, channel: str, today: date) -> _Channel:
        known, now = self._channels.get(channel), self._clock.monotonic()
        if known is None or known.day != today or now - known.at > FRESH_S:
            report = await manager.usage(since=today.replace(day=1), until=today, channel=channel)
            rows = [(row.name, Usage(total_tokens=row.total_tokens, cost=row.cost)) for row in report.rows]
            known = _Channel(today, now, self._sum(rows, today), self._sum(rows))
            self._channels.pop(channel, None)
            self._channels[channel] = known
            if len(self._channels) > _REMEMBERED:  # callers may choose names of channels
                del self._channels[next(iter(self._channels))]
        return known

    def _sum(self, rows: Iterable[tuple[str, Usage]], day: date | None = None) -> float:
        return sum(self._amount(usage) for its, usage in rows if day is None or its == day.isoformat())

    def _amount(self, usage: Usage) -> float:
        return usage.total if self._settings.unit == "tokens" else usage.cost or 0.0
