"""What models' replies have cost, and how it is said in a chat."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from miniclaw_sessions.service.api.operation import operation
from miniclaw_sessions.statistics import UsageReport

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context


class ShowUsage(msgspec.Struct, frozen=True):
    """Which usage: see `SessionManager.usage`.

    Attributes:
        by: what a row is of.
        since: from this day on (UTC).
        until: up to this day, which counts as well.
        channel: of this channel only.
        session_id: of this session only.
        limit: at most this many rows: the newest days, or what cost most.
    """

    by: Literal["day", "model", "channel", "chat"] = "day"
    since: date | None = None
    until: date | None = None
    channel: str | None = None
    session_id: str | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000


@operation("GET", "/v1/usage", ShowUsage, UsageReport, errors=("session_not_found",), patient=True)
async def show_usage(context: Context, request: ShowUsage) -> UsageReport:
    """Tokens and cost of the models' replies, by day, model, channel or chat; of the sessions that there are."""
    return await context.manager.usage(**msgspec.structs.asdict(request))


OPERATIONS = (show_usage,)
