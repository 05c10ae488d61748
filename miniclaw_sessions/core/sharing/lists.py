"""Lists of sessions from a database that several processes share: a page costs the same, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from miniclaw_sessions.core.history.conversation import Conversation
from miniclaw_sessions.core.protocol.entries import INCOMPLETE
from miniclaw_sessions.core.session import Journal, Session
from miniclaw_sessions.core.session.home import Home
from miniclaw_sessions.core.sharing.database import Database, is_far_behind
from miniclaw_sessions.core.sharing.queue import shared_journal
from miniclaw_sessions.core.stores.positions import IdPart, ListPosition

PAGE = 500
"""How many positions are asked for at a time where it is not known how many are wanted."""

LOADED_TOGETHER = 100
"""How many sessions come in one round trip."""


async def newest_in(  # noqa: PLR0913 - each can be left out
    database: Database,
    *,
    channel: str | None = None,
    only: Callable[[str], bool] | None = None,
    behind: ListPosition | None = None,
    since: datetime | None = None,
    limit: int | None = None,
    offset: int = 0,
    own: Sequence[tuple[ListPosition, str]] = (),
) -> list[ListPosition]:
    """A part of all sessions, the most recently used first; see `Listing.newest`.

    Args:
        database: has them.
        channel: only this channel's.
        only: only those whose id this is true of.
        behind: only those that stand behind this position.
        since: only those that were used then or later.
        limit: at most this many.
        offset: after this many others.
        own: those that were used here and of which the database does not know it yet, with their channel: they stand
            where they belong for callers in this process.
    """
    known = {one.session_id for one, _ in own}
    found = [
        one
        for one, its in own
        if channel in (None, its) and (only is None or only(one.session_id)) and (behind is None or one < behind)
    ]
    pattern = only.pattern if isinstance(only, IdPart) else "%"
    wanted = None if limit is None else offset + limit
    theirs: list[ListPosition] = []
    while wanted is None or len(theirs) < wanted:
        most = PAGE if wanted is None or (only is not None and pattern == "%") else min(PAGE, wanted + len(known))
        page = await database.store.watch(
            database.server.newest(limit=most, channel=channel, pattern=pattern, behind=behind)
        )
        theirs += [one for one in page if one.session_id not in known and (only is None or only(one.session_id))]
        if len(page) < most or (since is not None and page[-1].last_accessed < since):
            break
        behind = page[-1]
    return sorted((one for one in (*found, *theirs) if since is None or one.last_accessed >= since), reverse=True)[
        offset:wanted
    ]


async def sessions_in(
    database: Database, session_ids: Sequence[str], home: Home[Journal], folded: list[Conversation] | None = None
) -> dict[str, Session]:
    """Those of these sessions that there are, as they are stored; none of them is cached.

    Args:
        database: has them.
        session_ids: which.
        home: the home of their journals.
        folded: gets those that have no checkpoint, or an old one, and were folded from their entries.
    """
    found = {}
    for start in range(0, len(session_ids), LOADED_TOGETHER):
        for one in await database.store.load(session_ids[start : start + LOADED_TOGETHER]):
            conversation = (await database.join(one)).conversation
            if folded is not None and is_far_behind(one):
                folded.append(conversation)
            if INCOMPLETE not in conversation.state.metadata:
                journal = shared_journal(conversation, home)
                found[journal.session_id] = Session(journal)
    return found
