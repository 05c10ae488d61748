"""Lists of sessions from a database that several processes share: a page costs the same, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from miniclaw_sessions.persistence.database import Database
from miniclaw_sessions.protocol.entries import INCOMPLETE
from miniclaw_sessions.session import Journal, Session
from miniclaw_sessions.session.home import Home
from miniclaw_sessions.stores.shared import ListPosition

PAGE = 500
"""How many positions are asked for at a time where it is not known how many are wanted."""

LOADED_TOGETHER = 100
"""How many sessions come in one round trip."""

_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\%_"})


class IdPart(msgspec.Struct, frozen=True):
    """What is true of ids that begin with a text, or have it as a part, in upper or lower case.

    A plain function of an id does as well; what a database can look for itself is not sent here to be judged.
    """

    text: str
    at_beginning: bool = False

    def __call__(self, session_id: str) -> bool:
        """Whether it is true of this id."""
        wanted, folded = self.text.casefold(), session_id.casefold()
        return folded.startswith(wanted) if self.at_beginning else wanted in folded

    @property
    def pattern(self) -> str:
        """The same for a database."""
        return f"{'' if self.at_beginning else '%'}{self.text.lower().translate(_SPECIAL)}%"


async def newest_in(  # noqa: PLR0913 - each can be left out
    database: Database,
    *,
    channel: str | None = None,
    only: Callable[[str], bool] | None = None,
    behind: ListPosition | None = None,
    limit: int | None = None,
    offset: int = 0,
) -> list[ListPosition]:
    """A part of all sessions, the most recently used first; see `Listing.newest`."""
    pattern = only.pattern if isinstance(only, IdPart) else "%"
    wanted = None if limit is None else offset + limit
    found: list[ListPosition] = []
    while wanted is None or len(found) < wanted:
        most = PAGE if wanted is None or (only is not None and pattern == "%") else min(PAGE, wanted - len(found))
        page = await database.shared.newest(limit=most, channel=channel, pattern=pattern, behind=behind)
        found += page if only is None else [one for one in page if only(one.session_id)]
        if len(page) < most:
            break
        behind = page[-1]
    return list(islice(found, offset, wanted))


async def sessions_in(database: Database, session_ids: Sequence[str], home: Home) -> dict[str, Session]:
    """Those of these sessions that there are, as they are stored; none of them is cached."""
    found = {}
    for start in range(0, len(session_ids), LOADED_TOGETHER):
        for one in await database.store.load(session_ids[start : start + LOADED_TOGETHER]):
            conversation = (await database.join(one)).conversation
            if INCOMPLETE not in conversation.state.metadata:
                journal = Journal(conversation, home, committed=conversation.state.last_sequence)
                found[journal.session_id] = Session(journal)
    return found
