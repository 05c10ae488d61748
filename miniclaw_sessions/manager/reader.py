"""Reading sessions: the words that a manager and a reader without a lock have in common."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from anyio import to_thread

from miniclaw_sessions.errors import SessionNotFound
from miniclaw_sessions.history.window import MAX_MESSAGES, Window
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.manager.cache import Listing, ListPosition, moment_of
from miniclaw_sessions.protocol.entries import Entry
from miniclaw_sessions.protocol.keys import SessionKey, is_session_id
from miniclaw_sessions.protocol.messages import Message
from miniclaw_sessions.session import Session
from miniclaw_sessions.statistics import SessionSummary

if TYPE_CHECKING:
    from miniclaw_sessions.formats.codec import Format
    from miniclaw_sessions.persistence.losses import Loss

FEW = 10_000
"""Up to this many sessions on disk are put in order on the event loop; more would hold it up."""

log = get_logger(__name__)


class SessionReader(ABC):
    """Looks sessions up, lists them, and reads them. Renews no time to live, and creates nothing."""

    @abstractmethod
    async def _load(self, session_id: str) -> Session | None:
        """The session, loaded if need be; None if there is none."""

    @abstractmethod
    async def _listing(self) -> Listing:
        """All sessions and when they were last used."""

    def _summary(self, session: Session) -> SessionSummary:
        return summarize(session)

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
            raise SessionNotFound(session_id)
        return session

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

    async def list(
        self,
        *,
        channel: str | None = None,
        only: Callable[[str], bool] | None = None,
        limit: int | None = None,
        offset: int = 0,
        after: ListPosition | None = None,
    ) -> builtins.list[SessionSummary]:
        """All sessions, or those of one channel, the most recently used first. Creates and renews nothing.

        Sessions on disk are loaded for it, about a millisecond each: name a limit where there may be many.

        Args:
            channel: only this channel.
            only: only those whose id this is true of; the others are not loaded.
            limit: at most so many of them; None: all.
            offset: after so many others.
            after: only those that stand behind this position.

        Raises:
            SnapshotUnreadable, SchemaTooNew, StoreError: one of them cannot be loaded.
        """
        limit = None if limit is None else max(limit, 0)
        chosen = await self._newest(channel=channel, only=only, behind=after, limit=limit, offset=max(offset, 0))
        summaries = []
        for used, session_id in reversed(chosen):  # so that the newest stays in memory longest
            session = await self._load(session_id)
            if session is not None and channel in (None, session.key.channel):
                summary = self._summary(session)  # it stands where it was found: a page goes on behind that place
                summaries.append(msgspec.structs.replace(summary, last_accessed=moment_of(used)))
        return summaries[::-1]

    async def _newest(self, **part: Any) -> builtins.list[tuple[float, str]]:
        """A part of all sessions, the most recently used first: `Listing.newest`."""
        listing = await self._listing()
        choose = partial(listing.newest, **part)
        return choose() if len(listing.on_disk) < FEW else await to_thread.run_sync(choose)

    async def export(self, session_id: str, form: Format) -> AsyncIterator[bytes]:
        """A session in any format, piece by piece: its whole tree, or its branch where the format has no tree.

        Raises:
            SessionNotFound: there is no such session.
            ImportRefused: the format is only read.
            StoreUnavailable: the store cannot be read.
        """
        from miniclaw_sessions.transfer.exporting import export_session  # noqa: PLC0415 - loads every format

        async for chunk in export_session(await self.find(session_id), form):
            yield chunk

    async def read_transcript(self, session_id: str) -> AsyncIterator[Entry]:
        """Every entry of a session that can be read, oldest first, from the store a page at a time.

        With the store `none` there is no transcript: the window's messages are all there is. Damaged entries are left
        out, and logged.

        Raises:
            SessionNotFound: there is no such session.
            StoreError: the store cannot be read.
        """
        problems: list[str] = []
        async for entry in (await self.find(session_id)).tree.read_entries(problems):
            yield entry
        for problem in problems:
            log.error("a transcript is damaged", action="recovery.entry_damaged", session_id=session_id, error=problem)


def summarize(session: Session, loss: Loss | None = None) -> SessionSummary:
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


async def fork_session(manager: SessionReader, from_id: str, to_id: str) -> Session:
    """Fork a session under a new id, in the words of document 001: open, fork and put in one.

    Raises:
        SessionNotFound: there is no session `from_id`.
        SessionExists, SessionLimit, InvalidKey, StoreError: as for `Session.fork`.
    """
    return await (await manager.find(from_id)).fork(to_id)
