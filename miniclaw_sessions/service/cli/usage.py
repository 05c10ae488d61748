"""The command that shows what the models' replies have cost."""

from __future__ import annotations

import sys
from datetime import UTC, date, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.service.cli.invocation import Invocation, command
from miniclaw_sessions.service.cli.names import find_session
from miniclaw_sessions.service.cli.output import counted, one_line
from miniclaw_sessions.service.cli.search import Chat, moment, option
from miniclaw_sessions.service.cli.tables import Rows

if TYPE_CHECKING:
    from miniclaw_sessions.statistics import UsageReport, UsageRow

app = typer.Typer()

_BY = ("day", "model", "channel", "chat")
_COUNTS = ("replies", "input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens", "total_tokens")
_SMALL = 0.0001
_HEADINGS = ("replies", "input", "cache read", "cache write", "output", "total", "cost")


@command(
    app,
    examples={
        "usage": "what was used in the last 30 days, day by day",
        "usage --by model --since 2026-01-01": "which model cost how much this year",
        "usage --by chat --since 7d --channel telegram": "who cost most in a week",
        "usage --by day --chat telegram_123 --since all": "one chat, from its beginning",
        "usage --by model --json | jq .total.cost": "for a script",
    },
)
async def usage(  # noqa: PLR0913 - each can be left out
    invocation: Invocation,
    *,
    by: Annotated[str, typer.Option(metavar="|".join(_BY), help="What a row is of.")] = "day",
    since: Annotated[str, typer.Option(metavar="TIME", help="From this day on: 30d, 2026-01-31, all.")] = "30d",
    until: Annotated[str | None, option("Up to this day, which counts as well.", "TIME")] = None,
    channel: Annotated[str | None, option("Only this channel.")] = None,
    chat: Chat = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many rows.")] = 1_000,
) -> None:
    """Show what models were sent and what they said, in tokens, and what it cost; days are those of UTC."""
    if by not in _BY:
        raise SessionsError(f"--by {one_line(by)} is none of {', '.join(_BY)}")
    now = SystemClock().now()
    days = {
        name: None if text in (None, "all") else moment(text, now).astimezone(UTC).date()
        for name, text in (("since", since), ("until", until))
    }
    async with invocation.sessions(reads=True) as client:
        session_id = None if chat is None else (await (await find_session(client, chat)).info()).session_id
        invocation.report("adding up", 0, None)
        report = await client.usage(by=by, channel=channel, session_id=session_id, limit=limit, **days)  # type: ignore[arg-type]  # looked at above
        older = 0
        if not report.rows and (first := days["since"]) is not None and first > date.min:
            day = first - timedelta(days=1)
            older = (await client.usage(until=day, channel=channel, session_id=session_id, limit=1)).total.replies
    if invocation.as_json:
        invocation.print_json(report)
    else:
        print_usage(invocation, by, report)
    if older:
        are_older = f"{counted(older, 'reply is', 'replies are')} older"
        invocation.note(f"since {days['since']} there is nothing; {are_older}: --since all shows them", "yellow")
    elif days["since"] is not None and not invocation.as_json:
        invocation.note(f"since {days['since']}; --since all: everything")


def print_usage(invocation: Invocation, by: str, report: UsageReport) -> None:
    """A report as a table, with its sum."""
    if not report.rows:
        invocation.note("nothing was used in this time")
        return
    is_for_people = sys.stdout.isatty()
    rows = Rows(by, *_HEADINGS, *(() if is_for_people else ("currency",)), numeric=_HEADINGS, fold={by})
    for row in report.rows:
        rows.add(*_cells(row, report.currency, is_for_people=is_for_people))
    if is_for_people and (len(rows) > 1 or report.left_out):  # a program that adds rows up would count it twice
        rows.add(*_cells(report.total, report.currency, is_for_people=True))
    invocation.print_rows(rows)
    if report.left_out:
        rows_left = counted(report.left_out, "row", "rows")
        invocation.note(f"{rows_left} more; the total has them: --limit")
    if unpriced := report.total.unpriced:
        invocation.note(f"of {counted(unpriced, 'reply', 'replies')} no price is known: state it in [prices]", "yellow")
    if estimated := report.total.estimated:
        broken_off = counted(estimated, "reply that broke off", "replies that broke off")
        invocation.note(f"the cost of {broken_off} is estimated")


def _cells(row: UsageRow, currency: str, *, is_for_people: bool) -> list[str]:
    """The cells of a row; a program gets the currency in one of its own, because a cost is a number for it."""
    cost = ["", ""]
    if row.cost is not None:
        cost = [f"{row.cost:,.4f}" if row.cost >= _SMALL or not row.cost else f"{row.cost:.1e}", currency]
    counts = (f"{getattr(row, name):,}" for name in _COUNTS)
    name = one_line(row.name) or "(not said)"
    return [name, *counts, " ".join(cost).strip()] if is_for_people else [name, *counts, *cost]
