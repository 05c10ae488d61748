"""Searching what was said, in all sessions or in one."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from miniclaw_sessions.core.history.search import MAX_QUERY, MAX_RESULTS, SearchPage, checked
from miniclaw_sessions.service.api.operation import operation

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context

_ERRORS = ("invalid_search", "session_not_found")


class SearchRequest(msgspec.Struct, frozen=True):
    """What is searched for, and where: see `SessionManager.search`.

    Attributes:
        query: words, `"phrases"`, `-words`, at most 1,000 characters; it may be empty if something else narrows the
            search.
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

    query: Annotated[str, Meta(extra_json_schema={"maxLength": MAX_QUERY})] = ""
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

    def __post_init__(self) -> None:
        """Refuse what is too long before it is sent: an address has less room than a query may take.

        Raises:
            InvalidSearch: a text is too long, or no text of ours can have it in it.
        """
        for name in ("query", "channel", "author", "tool"):
            checked(name, getattr(self, name) or "")


@operation("GET", "/v1/search", SearchRequest, SearchPage, errors=_ERRORS, patient=True)
async def search(context: Context, request: SearchRequest) -> SearchPage:
    """What was said and fits: words, `"phrases"`, `-words`; what was cleared, deleted or has expired is not found."""
    async with context.searches:
        return await context.manager.search(**msgspec.structs.asdict(request))


OPERATIONS = (search,)
