"""Searching what was said, in all sessions or in one."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from miniclaw_sessions.api.operation import operation
from miniclaw_sessions.history.search import SearchPage

if TYPE_CHECKING:
    from miniclaw_sessions.api.context import Context

MAX_RESULTS = 100
"""Results in one reply."""


class SearchRequest(msgspec.Struct, frozen=True):
    """What is searched for, and where: see `SessionManager.search`."""

    query: str = ""
    session_id: str | None = None
    channel: str | None = None
    author: str | None = None
    role: str | None = None
    tool: str | None = None
    after: datetime | None = None
    before: datetime | None = None
    branch: Literal["all", "current"] = "all"
    order: Literal["best", "newest"] = "best"
    limit: Annotated[int, Meta(ge=1, le=MAX_RESULTS)] = 20
    cursor: str | None = None


@operation("GET", "/v1/search", SearchRequest, SearchPage, patient=True)
async def search(context: Context, request: SearchRequest) -> SearchPage:
    """What was said and fits: words, `"phrases"`, `-words`; what was cleared, deleted or has expired is not found."""
    async with context.searches:
        return await context.manager.search(**msgspec.structs.asdict(request))


OPERATIONS = (search,)
