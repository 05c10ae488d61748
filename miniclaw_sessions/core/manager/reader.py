"""Reading sessions: the words that a manager and a reader without a lock have in common."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack
from weakref import WeakKeyDictionary

import msgspec
from anyio import to_thread
from anyio.lowlevel import checkpoint

from miniclaw_sessions.clock import Clock
from miniclaw_sessions.config import MAX_MESSAGES, SessionSettings
from miniclaw_sessions.core.history.search import Found, Search, SearchOptionsEverywhere, SearchPage, SearchQuery
from miniclaw_sessions.core.history.window import Window
from miniclaw_sessions.core.manager.cache import Listing, moment_of
from miniclaw_sessions.core.manager.usage import By, UsageSums
from miniclaw_sessions.core.protocol.entries import Entry, MessageEntry
from miniclaw_sessions.core.protocol.keys import SessionKey, is_session_id
from miniclaw_sessions.core.protocol.messages import Message, Role
from miniclaw_sessions.core.session import Journal, Session
from miniclaw_sessions.core.session.searching import search_page, search_windows
from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.core.stores.reading import readable
from miniclaw_sessions.core.stores.shared import ListPosition
from miniclaw_sessions.errors import SessionNotFound
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.statistics import SessionSummary, UsageReport

if TYPE_CHECKING:
    from miniclaw_sessions.core.persistence.losses import Loss

FEW = 10_000
"""Up to this many sessions on disk are put in order on the event loop; more would hold it up."""

BEGINNING = 20
"""Among so many of its first entries it is looked for what a session without a name is about."""

_TOGETHER = 100  # sessions are loaded for a sum, before others run

_NOT_BY_HAND = ("<", "# AGENTS.md", "/")  # what agents put before what was said; their commands
_FIRST_WORDS: WeakKeyDictionary[Journal, str] = WeakKeyDictionary()  # they stay what they are

log = get_logger(__name__)


class SessionReader(ABC):
    """Looks sessions up, lists, searches and reads them. Renews no time to live, and creates nothing."""

    clock: Clock
    settings: SessionSettings

    @abstractmethod
    async def _journal(self, session_id: str) -> Journal | None:
        """What stands behind a session, loaded if need be; None if there is none."""

    @abstractmethod
    async def _listing(self) -> Listing:
        """All sessions and when they were last used."""

    @abstractmethod
    def _transcripts(self) -> Store:
        """The store that is open."""

    @property
    @abstractmethod
    def losses(self) -> Mapping[str, Loss]:
        """What older messages were lost with a former store, by session id."""

    async def _load(self, session_id: str) -> Session | None:
        journal = await self._journal(session_id)
        return None if journal is None else Session.of(journal)

    async def get(self, channel: str, chat_id: str | int) -> Session:
        """The session of this chat; does not renew its time to live.

        Raises:
            SessionNotFound: there is none.
            InvalidKey: the channel or chat id cannot name a session.
        """
        return await self.find(SessionKey.of(channel, chat_id).session_id)

    async def find(self, session_id: str) -> Session:
        """The session with this id; does not renew its time to live.

        Raises:
            SessionNotFound: there is none.
            InvalidKey: the text does not have the form of a session id.
        """
        session = await self._load(session_id)
        if session is None:
            if not is_session_id(session_id):
                SessionKey.parse(session_id)  # says what is wrong with it
            raise await self.missing(session_id)
        return session

    async def missing(self, session_id: str) -> SessionNotFound:
        """Why there is no such session, as far as it is known here."""
        return SessionNotFound(session_id)

    async def get_session_history(
        self, channel: str, chat_id: str | int, *, limit: int = MAX_MESSAGES
    ) -> builtins.list[Message]:
        """The newest messages of a chat, oldest first, at most `limit`; never beginning with an orphan tool result.

        As in `Session.messages`, what stands for the compacted part comes first, if there is room for it.

        Raises:
            SessionNotFound: there is no such session.
        """
        session = await self.get(channel, chat_id)
        if limit <= 0:
            return []
        newest = [entry.message for entry in Window(max(limit, 2), session.entries())][-limit:]
        newest = newest[1:] if newest and newest[0].is_tool_result else newest
        room = limit - len(newest)
        return [*session.journal.summary()[:room], *newest]

    async def list(  # noqa: PLR0913 - each can be left out
        self,
        *,
        channel: str | None = None,
        only: Callable[[str], bool] | None = None,
        limit: int | None = None,
        offset: int = 0,
        after: ListPosition | None = None,
        last_words: bool = False,
    ) -> builtins.list[SessionSummary]:
        """All sessions, or those of one channel, the most recently used first. Creates and renews nothing.

        Sessions on disk are loaded for it, about a millisecond each: name a limit where there may be many.

        Args:
            channel: only this channel.
            only: only those whose id this is true of; the others are not loaded.
            limit: at most so many of them; None: all.
            offset: after so many others.
            after: only those that stand behind this position.
            last_words: whether each tells how the newest thing that somebody said begins, and one without any name
                how the first thing that a person said does.

        Raises:
            SnapshotUnreadable, SchemaTooNew, StoreError: one of them cannot be loaded.
        """
        limit = None if limit is None else max(limit, 0)
        chosen = await self._newest(channel=channel, only=only, behind=after, limit=limit, offset=max(offset, 0))
        sessions = await self._load_listed([one.session_id for one in chosen])
        rows = []
        for used_at, session_id in chosen:
            if (session := sessions.get(session_id)) is not None and channel in (None, session.key.channel):
                row = summarize(session, self.losses.get(session_id))
                newest, first = await words_of(session) if last_words else (None, None)
                # it stands where it was found: a page goes on behind that place
                rows.append(msgspec.structs.replace(row, last_accessed=used_at, last_words=newest, first_words=first))
        return rows

    async def _newest(self, **part: Any) -> builtins.list[ListPosition]:
        """A part of all sessions, the most recently used first: `Listing.newest`."""
        listing = await self._listing()
        choose = partial(listing.newest, **part)
        chosen = choose() if len(listing.on_disk) < FEW else await to_thread.run_sync(choose)
        return [ListPosition(moment_of(used), session_id) for used, session_id in chosen]

    async def _load_listed(self, session_ids: Sequence[str]) -> dict[str, Session]:
        """Those of these sessions that there are, loaded if need be."""
        found = {}
        for session_id in reversed(session_ids):  # so that the newest stays in memory longest
            if (session := await self._load(session_id)) is not None:
                found[session_id] = session
        return found

    async def search(self, query: str = "", **options: Unpack[SearchOptionsEverywhere]) -> SearchPage:
        """What was said, in all sessions or some, and is committed; what was cleared, deleted or expired is not found.

        Args:
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
            await self.find(wanted.session_id)
        return await search_page(wanted, look=self._look, find=self._journal, now=self.clock.now())

    async def usage(  # noqa: PLR0913 - each can be left out
        self,
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
            by: what a row is of.
            since: from this day on (UTC); by default from the first one.
            until: up to this day, which counts as well.
            channel: only this channel.
            session_id: only this session.
            limit: at most so many rows: the newest days, or what cost most.

        Raises:
            SessionNotFound: there is no session `session_id`.
            SnapshotUnreadable, SchemaTooNew, StoreError: one of them cannot be loaded.
        """
        sums = UsageSums(by, since, until)
        if session_id is not None:
            sums.add(await self.find(session_id))
            return sums.report(limit, self.settings.currency)
        first = None if since is None else datetime.combine(since, time(), UTC)
        async for session in self.used_since(first, channel=channel):
            sums.add(session)
        return sums.report(limit, self.settings.currency)

    async def used_since(self, moment: datetime | None, *, channel: str | None = None) -> AsyncIterator[Session]:
        """The sessions, or those of one channel, that were used then or later; each is loaded, and others run between.

        Raises:
            SnapshotUnreadable, SchemaTooNew, StoreError: one of them cannot be loaded.
        """
        ids = [one.session_id for one in await self._newest(channel=channel, since=moment)]
        for start in range(0, len(ids), _TOGETHER):
            for session in (await self._load_listed(ids[start : start + _TOGETHER])).values():
                if channel in (None, session.key.channel):
                    yield session
            await checkpoint()

    async def _look(self, search: Search) -> Found:
        store = self._transcripts()
        if store.keeps_entries:
            return await store.search(search)
        return await search_windows(search, self._journals())

    async def _journals(self) -> AsyncIterator[Journal]:
        for _, session_id in await self._newest(limit=None):
            if (journal := await self._journal(session_id)) is not None:
                yield journal

    async def read_transcript(self, session_id: str, *, in_place: bool = False) -> AsyncIterator[Entry]:
        """Every entry of a session that can be read, oldest first, from the store a page at a time.

        With the store `none` there is no transcript: the window's messages are all there is. Damaged entries are left
        out, and logged.

        Args:
            session_id: whose entries.
            in_place: only the entries whose places do not change any more; see `SessionTree.read_after`.

        Raises:
            SessionNotFound: there is no such session.
            StoreError: the store cannot be read.
        """
        problems: list[str] = []
        async for entry in (await self.find(session_id)).tree.read_entries(problems, in_place=in_place):
            yield entry
        for problem in problems:
            log.error("a transcript is damaged", action="recovery.entry_damaged", session_id=session_id, error=problem)


def summarize(session: Session, loss: Loss | None) -> SessionSummary:
    """A session as one line of a list, with what was lost of it."""
    return SessionSummary(
        session_id=session.session_id,
        channel=session.key.channel,
        chat_id=session.key.chat_id,
        title=session.title,
        messages=len(session),
        message_count=session.message_count,
        entries=session.last_sequence,
        created_at=session.created_at,
        updated_at=session.updated_at,
        last_accessed=session.last_accessed,
        dirty=session.journal.is_dirty,
        lost=0 if loss is None else loss.messages,
    )


async def words_of(session: Session) -> tuple[str | None, str | None]:
    """A session's `last_words` and `first_words`, as a row of a list has them; at most `BEGINNING` entries are read."""
    return _last_words(session), await _first_words(session)


def _last_words(session: Session) -> str | None:
    """How the newest message of a person or the assistant begins; None where the window has none with words."""
    from miniclaw_sessions.core.history.first_words import first_words  # noqa: PLC0415 - only a list for people needs it

    for kept in reversed(session.journal.conversation.window.kept):
        if kept.role in (Role.USER, Role.ASSISTANT):
            return first_words(kept.entry)
    return None


async def _first_words(session: Session) -> str | None:
    """What people call a session by that nobody named; None where it has a name, or nobody said anything."""
    from miniclaw_sessions.core.history.first_words import first_words  # noqa: PLC0415 - only a list for people needs it

    journal = session.journal
    if session.title:
        return None
    if (known := _FIRST_WORDS.get(journal)) is not None:
        return known
    said = [first_words(one) for one in await _questions(session)]
    by_hand = next((words for words in said if not words.startswith(_NOT_BY_HAND)), None)
    if by_hand is not None:
        _FIRST_WORDS[journal] = by_hand
    return by_hand or next(iter(said), None)


async def _questions(session: Session) -> builtins.list[MessageEntry]:
    """What people said among a session's first messages: from memory, where that has all of them."""
    if len(session) == session.message_count:
        kept = islice(session.journal.conversation.window.kept, BEGINNING)
        return [one.entry for one in kept if one.role is Role.USER]
    entries = readable(await session.tree.read_after(0, BEGINNING))
    return [entry for entry in entries if isinstance(entry, MessageEntry) and entry.message.is_user]
