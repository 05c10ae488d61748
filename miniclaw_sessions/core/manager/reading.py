"""Reading sessions: what a manager, a workspace without its lock and a view within bounds have in common.

Each of them is a `Reader`, with some of these functions as its methods. Nothing is created, and no time to live
renewed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, date, datetime, time
from typing import Protocol, Unpack

import msgspec
from anyio.lowlevel import checkpoint

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.config import MAX_MESSAGES, SessionSettings
from miniclaw_sessions.core.history.search import SearchOptionsEverywhere, SearchPage, SearchQuery
from miniclaw_sessions.core.history.window import Window
from miniclaw_sessions.core.manager.sources import SessionSource
from miniclaw_sessions.core.manager.summaries import calls_for_approval, summarize, words_of
from miniclaw_sessions.core.manager.usage import By, UsageSums
from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.core.protocol.keys import SessionKey, is_session_id
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.searching import search_page
from miniclaw_sessions.core.stores.positions import ListPosition
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.statistics import SessionSummary, UsageReport

_TOGETHER = 100  # sessions are loaded for a sum, before others run

log = get_logger(__name__)


class Reader(Protocol):
    """What reads sessions."""

    @property
    def settings(self) -> SessionSettings:
        """The settings that the sessions are kept by."""
        ...

    @property
    def clock(self) -> Clock:
        """Time."""
        ...

    @property
    def source(self) -> SessionSource:
        """Where the sessions are read from."""
        ...


async def get(reader: Reader, channel: str, chat_id: str | int) -> Session:
    """The session of this chat; does not renew its time to live.

    Raises:
        SessionNotFound: it does not exist.
        InvalidKey: the channel or chat id cannot name a session.
    """
    return await find(reader, SessionKey.of(channel, chat_id).session_id)


async def find(reader: Reader, session_id: str) -> Session:
    """The session with this id; does not renew its time to live.

    Raises:
        SessionNotFound: it does not exist.
        InvalidKey: the text does not have the form of a session id.
    """
    journal = await reader.source.load(session_id)
    if journal is None:
        if not is_session_id(session_id):
            SessionKey.parse(session_id)  # says what is wrong with it
        raise await reader.source.missing(session_id)
    return Session.of(journal)


async def get_session_history(
    reader: Reader, channel: str, chat_id: str | int, *, limit: int = MAX_MESSAGES
) -> list[Message]:
    """The newest messages of a chat, oldest first, at most `limit`; never beginning with an orphan tool result.

    As in `Session.messages`, what stands for the compacted part comes first, if there is room for it.

    Raises:
        SessionNotFound: there is no such session.
    """
    session = await get(reader, channel, chat_id)
    if limit <= 0:
        return []
    newest = [entry.message for entry in Window(max(limit, 2), session.entries())][-limit:]
    newest = newest[1:] if newest and newest[0].is_tool_result else newest
    room = limit - len(newest)
    return [*session.journal.summary()[:room], *newest]


async def list_sessions(  # noqa: PLR0913 - each can be left out
    reader: Reader,
    *,
    channel: str | None = None,
    only: Callable[[str], bool] | None = None,
    limit: int | None = None,
    offset: int = 0,
    after: ListPosition | None = None,
    last_words: bool = False,
) -> list[SessionSummary]:
    """All sessions, or those of one channel, the most recently used first. Creates and renews nothing.

    Sessions on disk are loaded for it, about a tenth of a millisecond each: name a limit where there may be many.

    Args:
        reader: whose sessions.
        channel: only this channel.
        only: only those whose id this is true of; the others are not loaded.
        limit: at most this many; None: all.
        offset: how many to skip.
        after: only those that stand behind this position.
        last_words: whether each has the beginning of its newest message, one without any name
            how the first thing that a person said does, and whether it waits for a person's yes or no.

    Raises:
        SnapshotUnreadable, SchemaTooNew, StoreError: one of them cannot be loaded.
    """
    limit = None if limit is None else max(limit, 0)
    chosen = await reader.source.newest(channel=channel, only=only, behind=after, limit=limit, offset=max(offset, 0))
    sessions = await reader.source.load_listed([one.session_id for one in chosen])
    rows = []
    for used_at, session_id in chosen:
        if (session := sessions.get(session_id)) is not None and channel in (None, session.key.channel):
            row = summarize(session, reader.source.losses.get(session_id))
            row = msgspec.structs.replace(row, last_accessed=used_at)  # where it was found: a page goes on behind that
            if last_words:
                newest, first = await words_of(session)
                waits = bool(await calls_for_approval(session))
                row = msgspec.structs.replace(row, last_words=newest, first_words=first, waiting=waits)
            rows.append(row)
    return rows


async def search(reader: Reader, query: str = "", **options: Unpack[SearchOptionsEverywhere]) -> SearchPage:
    """What was said, in all sessions or some, and is committed; what was cleared, deleted or expired is not found.

    Args:
        reader: whose sessions.
        query: words, of which all must occur, `"phrases"`, and `-words` that must not occur; see `history.search`.
            It may be empty if there is an author, a role, a tool or a time.
        options: `channel`, `session_id`, `author`, `role`, `tool`, `after`, `before`, `branch`, `order`, `limit`
            and `cursor`, as `SearchQuery` describes them.

    Raises:
        InvalidSearch: there is nothing to search for, or something in it cannot be meant.
        SessionNotFound: there is no session `session_id`.
        StoreError: the store cannot be read.
    """
    wanted = SearchQuery(query, **options)
    if wanted.session_id is not None:
        await find(reader, wanted.session_id)
    return await search_page(
        wanted, search_for=reader.source.search_for, find=reader.source.load, now=reader.clock.now()
    )


async def usage(  # noqa: PLR0913 - each can be left out
    reader: Reader,
    *,
    by: By = "day",
    since: date | None = None,
    until: date | None = None,
    channel: str | None = None,
    session_id: str | None = None,
    limit: int = 1_000,
) -> UsageReport:
    """What the models' replies have cost, in tokens and money, by day, model, channel or chat; see `manager.usage`.

    Args:
        reader: whose sessions.
        by: what a row is of.
        since: from this day on (UTC); by default from the first one.
        until: up to this day, which counts as well.
        channel: only this channel.
        session_id: only this session.
        limit: at most this many rows: the newest days, or the most expensive rows.

    Raises:
        SessionNotFound: there is no session `session_id`.
        SnapshotUnreadable, SchemaTooNew, StoreError: one of them cannot be loaded.
    """
    sums = UsageSums(by, since, until)
    if session_id is not None:
        sums.add(await find(reader, session_id))
        return sums.report(limit, reader.settings.currency)
    first = None if since is None else datetime.combine(since, time(), UTC)
    async for session in used_since(reader, first, channel=channel):
        sums.add(session)
    return sums.report(limit, reader.settings.currency)


async def used_since(reader: Reader, moment: datetime | None, *, channel: str | None = None) -> AsyncIterator[Session]:
    """The sessions, or those of one channel, that were used then or later; each is loaded, and others run between.

    Raises:
        SnapshotUnreadable, SchemaTooNew, StoreError: one of them cannot be loaded.
    """
    ids = [one.session_id for one in await reader.source.newest(channel=channel, since=moment)]
    for start in range(0, len(ids), _TOGETHER):
        for session in (await reader.source.load_listed(ids[start : start + _TOGETHER])).values():
            if channel in (None, session.key.channel):
                yield session
        await checkpoint()


async def read_transcript(reader: Reader, session_id: str, *, in_place: bool = False) -> AsyncIterator[Entry]:
    """Every entry of a session that can be read, oldest first, from the store a page at a time.

    With the store `none` there is no transcript: the window's messages are all there is. Damaged entries are left
    out, and logged.

    Args:
        reader: what has the session.
        session_id: whose entries.
        in_place: only the entries whose places do not change any more; see `SessionTree.read_after`.

    Raises:
        SessionNotFound: there is no such session.
        StoreError: the store cannot be read.
    """
    problems: list[str] = []
    async for entry in (await find(reader, session_id)).tree.read_entries(problems, in_place=in_place):
        yield entry
    for problem in problems:
        log.error("a transcript is damaged", action="recovery.entry_damaged", session_id=session_id, error=problem)
