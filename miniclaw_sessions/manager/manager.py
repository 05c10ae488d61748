"""SessionManager: opens, shares, commits, flushes, expires and closes the sessions of one directory.

    async with SessionManager("~/.miniclaw/workspace") as manager:
        session = await manager.get_or_create("telegram", "123456789")
        await session.add_message(Message.user("Hello miniclaw!"))

Sessions live in one dict, keyed `{channel}_{chat_id}` and guarded by a lock for creation; there is never more than one
live object for a key. Opening takes the directory's lock, opens the store and recovers; closing commits and flushes.
"""

from __future__ import annotations

import builtins
import errno
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from miniclaw_sessions.errors import ImportRefused, SessionExists, SessionNotFound
from miniclaw_sessions.history.window import MAX_MESSAGES, Window
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.manager.core import OpenManager
from miniclaw_sessions.manager.residents import Place
from miniclaw_sessions.persistence.recovery import Progress
from miniclaw_sessions.protocol.entries import Entry
from miniclaw_sessions.protocol.keys import SessionKey, is_session_id
from miniclaw_sessions.protocol.messages import Message
from miniclaw_sessions.session import Session
from miniclaw_sessions.statistics import SessionSummary

if TYPE_CHECKING:
    from aiofiles.threadpool.binary import AsyncBufferedReader

    from miniclaw_sessions.formats.foreign import Format
    from miniclaw_sessions.importing import ImportReport

CHUNK_BYTES = 1_048_576
"""How much of a file that is imported is read at a time."""

FEW = 10_000
"""So many sleeping sessions are put in order on the event loop; more would hold it up."""

log = get_logger(__name__)


class SessionManager(OpenManager):
    """The sessions of one directory; an async context manager."""

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def get_or_create(self, channel: str, chat_id: str | int, *, agent_id: str | None = None) -> Session:
        """The session of this chat, made if there is none. Renews its time to live.

        Any number of tasks may ask for the same chat at once: all get the same object. A new session is written at the
        next flush, and is in the store from its first entry on.

        Args:
            channel: where the conversation takes place, such as telegram.
            chat_id: which chat of the channel it is; a number becomes its decimal text.
            agent_id: stored with the session if it is new.

        Raises:
            InvalidKey: the channel or chat id cannot name a session.
            SessionLimit: there are `max_sessions` sessions already.
            ManagerClosed: the manager is not open.
            StoreError: the store had refused this session's entries, and what it has instead cannot be read now.
        """
        self._require_open()
        key = SessionKey.of(channel, chat_id)
        session_id = key.session_id
        session = self._usable(session_id)
        while session is None:
            if (busy := self._busy.get(session_id)) is not None:
                await busy.wait()  # its predecessor is being deleted; its files must be gone first
            woken = await self._wake(session_id)  # held, so that it is not let go again before it is used
            await self._make_room()
            async with self._lock:
                self._require_open()
                session = self._usable(session_id)
                if session is None and session_id not in self._busy and not self._residents.is_asleep(session_id):
                    await self._clear(session_id)
                    refused = self._residents.get(session_id)
                    session = self._create(key, agent_id) if refused is None else await self._reload(refused)
            del woken
        session.journal.touch()
        return session

    async def open(self, session_id: str) -> Session:
        """`get_or_create` by session id, in the words of document 001.

        Raises:
            InvalidKey: the text is not a session id, or a shortened one that no session has.
            SessionLimit, ManagerClosed, StoreError: as for `get_or_create`.
        """
        known = await self._wake(session_id)
        key = known.key if known is not None else SessionKey.parse(session_id)
        return await self.get_or_create(key.channel, key.chat_id)

    async def put(self, session: Session) -> None:
        """Return when everything of a session is acknowledged, in the words of document 001.

        Sessions save themselves; this waits for it, and is `Session.saved`.

        Raises:
            StoreError: it cannot be saved now.
        """
        await session.saved()

    async def continue_recent(self, *, channel: str | None = None) -> Session:
        """The session that was used last, of all or of one channel; renews its time to live.

        Raises:
            SessionNotFound: there is none.
            ManagerClosed: the manager is not open.
        """
        self._require_open()
        for session_id in await self._newest(channel=channel, limit=None):
            recent = await self._wake(session_id)
            if recent is not None and recent is self._usable(session_id) and channel in (None, recent.key.channel):
                return await self.get_or_create(recent.key.channel, recent.key.chat_id)
        raise SessionNotFound("" if channel is None else f"{channel}_...")

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
        self._require_open()
        session = await self._wake(session_id)
        if session is None:
            if not is_session_id(session_id):
                SessionKey.parse(session_id)  # says what is wrong with it
            raise SessionNotFound(session_id)
        return session

    async def get_session_history(
        self, channel: str, chat_id: str | int, *, limit: int = MAX_MESSAGES
    ) -> builtins.list[Message]:
        """The newest messages of a chat, oldest first, at most `limit`; never beginning with an orphan tool result.

        Raises:
            SessionNotFound: there is no such session.
        """
        session = await self.get(channel, chat_id)
        if limit <= 0:
            return []
        newest = [entry.message for entry in Window(max(limit, 2), session.entries())][-limit:]
        return newest[1:] if newest and newest[0].is_tool_result else newest

    async def list(
        self, *, channel: str | None = None, limit: int | None = None, offset: int = 0, after: Place | None = None
    ) -> builtins.list[SessionSummary]:
        """All sessions, or those of one channel, the most recently used first. Creates and renews nothing.

        Sessions that sleep are loaded for it, about a millisecond each: name a limit where there may be many.

        Args:
            channel: only this channel.
            limit: at most so many of them; None: all.
            offset: after so many others.
            after: only those that stand behind this place.

        Raises:
            SnapshotUnreadable, SchemaTooNew, StoreError: one of them cannot be loaded.
        """
        self._require_open()
        limit = None if limit is None else max(limit, 0)
        chosen = await self._newest(channel=channel, behind=after, limit=limit, offset=max(offset, 0))
        summaries = []
        for session_id in reversed(chosen):  # so that the newest stays in memory longest
            session = await self._wake(session_id)
            if session is not None and channel in (None, session.key.channel):
                summaries.append(summarize(session))
        return summaries[::-1]

    async def _newest(self, **part: Any) -> builtins.list[str]:
        """The ids of a part of all sessions, the most recently used first: `Queue.newest`."""
        queue = await self._queue()
        choose = partial(queue.newest, **part)
        return choose() if len(queue.asleep) < FEW else await to_thread.run_sync(choose)

    async def import_file(
        self,
        path: str | Path,
        *,
        key: SessionKey | None = None,
        form: Format | None = None,
        dry_run: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ImportReport:
        """Make a session of another program's file, or of our own export. The file is only read.

        It is streamed: it may be larger than the memory. Until the session is complete nobody sees it, and a crash
        leaves nothing of it.

        Args:
            path: the file.
            key: the new session's key; by default what the file says, or else `import` and the file's own id.
            form: its format (`formats.registry`); by default it is recognised.
            dry_run: only read it, and report.
            on_progress: told how many bytes are done; by default the manager's own.

        Raises:
            ImportRefused: it is not a session in a known format, or cannot be read; it was not touched.
            SessionExists, SessionLimit, StoreError: the session could not be made; nothing of it is left.
        """
        import aiofiles  # noqa: PLC0415 - importing this package must stay light

        try:
            found, size = await to_thread.run_sync(_regular_file, path)
            async with aiofiles.open(found, "rb") as file:
                chunks = _chunks(file)
                return await self.import_stream(
                    chunks, name=found.stem, key=key, form=form, dry_run=dry_run, on_progress=on_progress, size=size
                )
        except OSError as error:
            raise ImportRefused(f"cannot read {path}: {error.strerror}") from error

    async def import_stream(  # noqa: PLR0913 - each can be left out
        self,
        chunks: AsyncIterator[bytes],
        *,
        name: str,
        key: SessionKey | None = None,
        form: Format | None = None,
        dry_run: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
        size: int | None = None,
    ) -> ImportReport:
        """`import_file` for what comes in pieces: `name` stands for the file's, `size` is in bytes. Raises the same."""
        from miniclaw_sessions.importing import Import  # noqa: PLC0415 - loads every format

        self._require_open()
        progress = on_progress or self._progress
        transfer = Import(chunks, name=name, form=form, clock=self.clock, on_progress=progress, size=size)
        report = await transfer.run(self._new_import, key, dry_run=dry_run)
        if dry_run and report.session_id in self._residents:
            raise SessionExists(
                f"session {report.session_id!r} exists already; delete it first, or choose another name"
            )
        if not dry_run:
            counts = {"entries": report.entries, "repaired": report.repaired, "set_aside": report.set_aside}
            log.info("imported", action="session.imported", session_id=report.session_id, **counts)
        return report

    def _new_import(self, key: SessionKey, created_at: datetime | None) -> AbstractAsyncContextManager[Session]:
        return self.new_session(key, purpose="import", created_at=created_at)

    async def fork_from(self, path: str | Path, *, key: SessionKey | None = None) -> Session:
        """A session made of a file's history, in the words of document 003. Raises as `import_file`."""
        return await self.find((await self.import_file(path, key=key)).session_id)

    async def export(self, session_id: str, form: Format) -> AsyncIterator[bytes]:
        """A session in any format, piece by piece: its whole tree, or its branch where the format has no tree.

        Raises:
            SessionNotFound: there is no such session.
            ImportRefused: the format is only read.
            StoreUnavailable: the store cannot be read.
        """
        from miniclaw_sessions.exporting import export_session  # noqa: PLC0415 - loads every format

        async for chunk in export_session(await self.find(session_id), form):
            yield chunk

    async def delete(self, session_id: str) -> bool:
        """Delete a session: from memory, its file, its quarantined copies and its transcript; whether there was one.

        Waits for the session's open turn. When it returns, a crash does not bring the session back.

        Raises:
            StoreUnavailable: it could not be deleted and is as it was.
            TurnInProgress: this very task holds the session's turn.
        """
        self._require_open()
        session = await self._wake(session_id)
        if session is None:
            return False
        async with session.journal.between_turns():
            if session.journal.is_deleted:
                return False
            await self._remove(session)
        log.info("deleted", action="session.deleted", session_id=session_id)
        return True

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


async def fork_session(manager: SessionManager, from_id: str, to_id: str) -> Session:
    """Fork a session under a new id, in the words of document 001: open, fork and put in one.

    Raises:
        SessionNotFound: there is no session `from_id`.
        SessionExists, SessionLimit, InvalidKey, StoreError: as for `Session.fork`.
    """
    return await (await manager.find(from_id)).fork(to_id)


def _regular_file(path: str | Path) -> tuple[Path, int]:
    """Where the file is and its size, provided that it is one: a pipe would make us wait for ever."""
    path = Path(path).expanduser()
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return path, status.st_size


async def _chunks(file: AsyncBufferedReader) -> AsyncIterator[bytes]:
    while chunk := await file.read(CHUNK_BYTES):
        yield chunk


def summarize(session: Session) -> SessionSummary:
    """A session as one line of a list."""
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
    )
