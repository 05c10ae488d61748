"""Searching what was said, in all sessions or in one."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from miniclaw_sessions.core.history.search import SearchPage, SearchQuery
from miniclaw_sessions.errors import SessionNotFound
from miniclaw_sessions.service.api.operation import operation

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context

_ERRORS = ("invalid_search", "session_not_found")


@operation("GET", "/v1/search", SearchQuery, SearchPage, errors=_ERRORS, patient=True)
async def search(context: Context, request: SearchQuery) -> SearchPage:
    """What was said and fits: words, `"phrases"`, `-words`; what was cleared, deleted or has expired is not found."""
    async with context.searches:
        page = await context.manager.search(**msgspec.structs.asdict(request))
        untitled = {one.session_id for one in page.results if not (one.title or "").strip()}
        words = {session_id: await _first_words(context, session_id) for session_id in untitled}
    named = [msgspec.structs.replace(one, first_words=words.get(one.session_id)) for one in page.results]
    return msgspec.structs.replace(page, results=tuple(named))


async def _first_words(context: Context, session_id: str) -> str | None:
    from miniclaw_sessions.core.manager.summaries import words_of  # noqa: PLC0415 - a client has these shapes, and no manager

    with suppress(SessionNotFound):  # it was deleted meanwhile
        return (await words_of(await context.manager.find(session_id)))[1]
    return None


OPERATIONS = (search,)
