"""Searching what was said, in all sessions or in one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from miniclaw_sessions.core.history.search import SearchPage, SearchQuery
from miniclaw_sessions.service.api.operation import operation

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context

_ERRORS = ("invalid_search", "session_not_found")


@operation("GET", "/v1/search", SearchQuery, SearchPage, errors=_ERRORS, patient=True)
async def search(context: Context, request: SearchQuery) -> SearchPage:
    """What was said and fits: words, `"phrases"`, `-words`; what was cleared, deleted or has expired is not found."""
    async with context.searches:
        return await context.manager.search(**msgspec.structs.asdict(request))


OPERATIONS = (search,)
