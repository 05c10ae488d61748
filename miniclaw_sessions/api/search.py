"""Searching what was said, in all sessions or in one."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from miniclaw_sessions.api.operation import operation
from miniclaw_sessions.history.search import MAX_RESULTS, SearchPage

if TYPE_CHECKING:
    from miniclaw_sessions.api.context import Context

_ERRORS = ("invalid_search", "session_not_found")


class SearchRequest(msgspec.Struct, frozen=True):
    """What is searched for, and where: see `SessionManager.search`.

    Attributes:
        query: words, `"phrases"`, `-words`; it may be empty if something else narrows the search.
        session_id: in this session only.
        channel: in this channel only.
        author: said by this agent or person.
        role: said in this role; or `title`, `label`.
        tool: calls of this tool, and what they returned.
        after, before: said after, or before, this time.
        branch: `current`: only what the conversations go on from.
        order: the best first, or the newest.
        limit: at most so many.
        cursor: what the page before called `next`.
    """

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


@operation("GET", "/v1/search", SearchRequest, SearchPage, errors=_ERRORS, patient=True)
async def search(context: Context, request: SearchRequest) -> SearchPage:
    """What was said and fits: words, `"phrases"`, `-words`; what was cleared, deleted or has expired is not found."""
    async with context.searches:
        return await context.manager.search(**msgspec.structs.asdict(request))


OPERATIONS = (search,)
