"""What may be spent in a chat and in a channel, by day and by month; asked before each request to the model.

What was spent is read from the accounts that sessions keep (`manager.usage`), so a restart forgets nothing, and a
budget that is raised holds at once. What is spent in this process is added to a channel's sum as it is spent; once a
minute the accounts are looked at that were used since, for what others spend: at the first time all of this month. What
was seen once stays spent, though its session is deleted or expires. A request that was begun is finished: what is under
way when a budget is reached goes beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from functools import partial

import anyio
import msgspec

from miniclaw_sessions.clock import Clock, SystemClock
from miniclaw_sessions.config import BudgetSettings
from miniclaw_sessions.core.manager.reading import Reader, used_since
from miniclaw_sessions.core.manager.usage import spent_in
from miniclaw_sessions.core.protocol.messages import Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import BudgetSpent
from miniclaw_sessions.files.transfer.linked import linked_sessions

FRESH_S = 60.0
"""How long a channel's sum is believed."""

_OVERLAP = timedelta(minutes=10)
"""Seconds before the newest look in which a used session is looked at again: clocks differ, and reports come late."""

_REMEMBERED = 1_000


class Budget(msgspec.Struct, frozen=True):
    """One budget, and what was spent of it.

    Attributes:
        of: whose it is, for people: `this chat`, or the channel.
        period: `today` or `this month`.
        limit: how much there is; 0: it has no bound.
        spent: how much is spent.
        until: the day (UTC) on which there is more.
        spans_chats: other chats spend of it, too.
    """

    of: str
    period: str
    limit: float
    spent: float
    until: date
    spans_chats: bool = False


class _Sum:
    """What was spent in many sessions, each known by its incarnation."""

    def __init__(self) -> None:
        self.total = 0.0
        self._parts: dict[str, float] = {}

    def add(self, incarnation: str, amount: float) -> None:
        """So much more was spent in one."""
        self._parts[incarnation] = self._parts.get(incarnation, 0.0) + amount
        self.total += amount

    def saw(self, incarnation: str, amount: float) -> None:
        """So much its account says, which may not have all of what was spent just now."""
        if (more := amount - self._parts.get(incarnation, 0.0)) > 0:
            self.add(incarnation, more)


class _Channel:
    """What was spent in a channel in a month, and on the newest day of it; and which accounts were looked at."""

    def __init__(self, month: date) -> None:
        self.month = self.day = month
        self.in_month, self.in_day = _Sum(), _Sum()
        self.looking = anyio.Lock()
        self.looked_at = -math.inf
        self.looked_from = datetime.combine(month, time(), UTC)

    def begin(self, day: date) -> None:
        """It is this day of the month."""
        if self.day != day:
            self.day, self.in_day = day, _Sum()


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
        manager: Reader | None,
        *,
        currency: str = "USD",
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._manager = manager
        self._clock = clock or SystemClock()
        self._channels: dict[str, _Channel] = {}
        self.currency = currency

    def __repr__(self) -> str:
        return f"<Budgets {self._settings}>"

    async def check(self, session: Session) -> None:
        """Return if something may be spent in a session.

        Raises:
            BudgetSpent: one of its budgets is spent.
        """
        for budget in await self.of(session):
            if 0 < budget.limit <= budget.spent:
                raise BudgetSpent(
                    f"the budget of {budget.of} for {budget.period} is {self.described(budget)}; "
                    f"it goes on at {budget.until} 00:00 UTC, or when the budget is raised"
                )

    async def of(self, session: Session) -> list[Budget]:
        """What is spent in a session today and this month, and in its channel where that has a budget.

        Linked chats have one budget together, of which counts what each spends and has spent.
        """
        settings, today = self._settings, self._clock.now().astimezone(UTC).date()
        first, tomorrow = today.replace(day=1), today + timedelta(days=1)
        following = (first + timedelta(days=32)).replace(day=1)
        chats = [session] if self._manager is None else await linked_sessions(self._manager, session)
        rows = [(one.day, one.usage) for chat in chats for one in spent_in(chat, first, today)]
        found = [
            Budget("this chat", "today", settings.chat_day, self._sum(rows, today), tomorrow),
            Budget("this chat", "this month", settings.chat_month, self._sum(rows), following),
        ]
        if (settings.channel_day or settings.channel_month) and self._manager is not None:
            known = await self._channel(self._manager, session.key.channel, today)
            shared = partial(Budget, f"the channel {session.key.channel}", spans_chats=True)
            found += [
                shared("today", settings.channel_day, known.in_day.total, tomorrow),
                shared("this month", settings.channel_month, known.in_month.total, following),
            ]
        return found

    def note(self, session: Session, usage: Usage) -> None:
        """Something was spent in a session just now."""
        if (known := self._channels.get(session.key.channel)) is not None:
            for one in (known.in_day, known.in_month):
                one.add(session.journal.incarnation, self._amount(usage))

    def described(self, budget: Budget) -> str:
        """How much of a budget is spent, for the person in the chat: other chats' spending stays hidden."""
        is_spent = "spent" if budget.spent >= budget.limit else "not spent yet"
        if budget.spans_chats:
            return is_spent
        return f"{is_spent}, {self._shown(budget.spent)} of {self._shown(budget.limit)}"

    def _shown(self, amount: float) -> str:
        return f"{amount:,.0f} tokens" if self._settings.unit == "tokens" else f"{amount:,.4f} {self.currency}"

    async def _channel(self, manager: Reader, channel: str, today: date) -> _Channel:
        month = today.replace(day=1)
        known = self._channels.get(channel)
        if known is None or known.month != month:
            self._channels.pop(channel, None)
            known = self._channels[channel] = _Channel(month)
            if len(self._channels) > _REMEMBERED:  # callers may choose names of channels
                del self._channels[next(iter(self._channels))]
        known.begin(today)
        async with known.looking:
            if self._clock.monotonic() - known.looked_at > FRESH_S:
                now, at = self._clock.now(), self._clock.monotonic()
                async for session in used_since(manager, known.looked_from, channel=channel):
                    rows = [(one.day, one.usage) for one in spent_in(session, month, known.day)]
                    known.in_day.saw(session.journal.incarnation, self._sum(rows, known.day))
                    known.in_month.saw(session.journal.incarnation, self._sum(rows))
                known.looked_from, known.looked_at = now - _OVERLAP, at
        return known

    def _sum(self, rows: Iterable[tuple[str, Usage]], day: date | None = None) -> float:
        return sum(self._amount(usage) for its, usage in rows if day is None or its == day.isoformat())

    def _amount(self, usage: Usage) -> float:
        return usage.total if self._settings.unit == "tokens" else usage.cost or 0.0
