"""The stores and managers of Dive, the Go manager and miniclaw in their exact words, over one `SessionManager`.

Thin, as `session.documents` is: each call is one or two of the manager's. Where a document names a session by one text,
`SessionKey.named` says which key that is. The table of all words is in docs/reference/other-names.md.
"""

from __future__ import annotations

import builtins
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec
from anyio import to_thread

from miniclaw_sessions.core.manager.manager import SessionManager
from miniclaw_sessions.core.persistence.snapshots import SUFFIX
from miniclaw_sessions.core.protocol.keys import NAMED, SessionKey
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.copying import PARENT_SESSION
from miniclaw_sessions.core.session.documents import DiveSession, GoSession
from miniclaw_sessions.errors import InvalidKey, SessionNotFound, StoreCorrupt
from miniclaw_sessions.files.transfer.importing import fork_from, import_stream, source_file

_OWN = ("sessions", "transcripts")
"""Where in a workspace a session has a file of its own, named after its id."""


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The Go manager's `SessionInfo`: one line of a list.

    Attributes:
        id: its name.
        path: its file, which the next flush writes; None where the sessions are in a database alone.
        name: its title; empty where it has none.
        created, modified: when it began, and when its content last changed, UTC.
        message_count: how many messages it has, on all branches.
    """

    id: str
    path: Path | None
    name: str
    created: datetime
    modified: datetime
    message_count: int


class _Documents:
    """What stands for a manager that is open."""

    def __init__(self, manager: SessionManager) -> None:
        self.manager = manager

    async def list(self, *, limit: int | None = None, offset: int = 0) -> builtins.list[SessionInfo]:
        """All sessions, the most recently used first; see `SessionManager.list` for what it raises."""
        workspace = self.manager.workspace
        return [
            SessionInfo(
                id=SessionKey(one.channel, one.chat_id).name,
                path=None if workspace is None else workspace / "sessions" / f"{one.session_id}{SUFFIX}",
                name=one.title or "",
                created=one.created_at,
                modified=one.updated_at,
                message_count=one.message_count,
            )
            for one in await self.manager.list(limit=limit, offset=offset)
        ]

    async def _key(self, name: str) -> SessionKey:
        if "~" in name:  # a shortened session id, of which only the session knows the key
            with suppress(SessionNotFound, InvalidKey):
                return (await self.manager.find(name)).key
        return SessionKey.named(name)


def _directory_of(path: Path) -> Path:
    return path.expanduser().parent.resolve()


class DiveStore(_Documents):
    """Dive's `Store`; a session that it opens saves itself."""

    async def open(self, name: str) -> DiveSession:
        """The session of this name, created if missing; see `SessionManager.get_or_create` for what it raises."""
        return DiveSession(await self.manager.get_or_create(*await self._key(name)))

    async def put(self, session: DiveSession) -> DiveSession:
        """Save a session that was made elsewhere, such as a fork; see `SessionManager.put` for what it raises."""
        return DiveSession(await self.manager.put(session.session))

    async def delete(self, name: str) -> bool:
        """Delete a session; whether there was one. See `SessionManager.delete` for what it raises."""
        return await self.manager.delete((await self._key(name)).session_id)

    async def fork_session(self, from_name: str, to_name: str) -> DiveSession:
        """Open, fork and put in one; see `Session.fork` for what it raises."""
        source = await self.manager.find((await self._key(from_name)).session_id)
        return await DiveSession(source).fork(to_name)


class GoManager(_Documents):
    """The Go manager's `Manager`, of sessions as trees."""

    async def new(self, parent_session_id: str = "") -> GoSession:
        """A new session with a UUID for its name, which may say what session it was made of."""
        parent = {PARENT_SESSION: parent_session_id} if parent_session_id else None
        new_id = self.manager.clock.new_id()
        return GoSession(await self.manager.get_or_create(NAMED, new_id, metadata=parent))

    async def load(self, path: str | Path) -> GoSession:
        """The session of a file: of the workspace's own, or of another program's, which is taken in and only read.

        Loading such a file again gives the same session, with what the file has gained since.

        Raises:
            ImportRefused: it cannot be read, or is no session in a known format.
            SessionExists: there is a session of its name that was not made of it.
            SessionLimit, StoreError, ManagerClosed: the session could not be made.
        """
        known = None
        if self.manager.workspace is not None:  # other programs' files may lie in its directories, too
            directory = await to_thread.run_sync(_directory_of, Path(path))
            with suppress(SessionNotFound, InvalidKey, StoreCorrupt):
                if directory in map(self.manager.workspace.joinpath, _OWN):
                    known = await self.manager.find(Path(path).stem)
        if known is None:
            async with source_file(path) as file:
                report = await import_stream(self.manager, file.chunks, name=file.name, size=file.size, update=True)
            known = await self.manager.find(report.session_id)
        return GoSession(await self.manager.get_or_create(*known.key))

    async def continue_recent(self) -> GoSession:
        """The session that was used last; see `SessionManager.continue_recent` for what it raises."""
        return GoSession(await self.manager.continue_recent())

    async def fork_from(self, path: str | Path) -> GoSession:
        """A new session made of a file's history; see `import_file` for what it raises."""
        return GoSession(await fork_from(self.manager, path))


class MiniclawManager(_Documents):
    """The `SessionManager` of miniclaw; opening the manager itself is its `initialize`."""

    async def get_or_create_session(self, channel: str, chat_id: str | int) -> Session:
        """The session of this chat, created if missing; see `SessionManager.get_or_create` for what it raises."""
        return await self.manager.get_or_create(channel, chat_id)

    async def update_session(self, session: Session) -> Session:
        """Keep a session, and return the one to go on with; see `SessionManager.put` for what it raises.

        A session of this manager is the live one already, so nothing is replaced by it, and nothing said meanwhile is
        lost; one that was made elsewhere is copied.
        """
        return await self.manager.put(session)

    async def persist_session(self, session_id: str) -> None:
        """Return when a session is in the store, and in its file; those of other changed sessions are written too.

        Raises:
            SessionNotFound: no session has this name.
            StoreFull, StoreUnavailable: it could not be saved.
        """
        await (await self.manager.find(session_id)).saved()
        await self.manager.flush()

    async def get_session_history(self, channel: str, chat_id: str | int) -> builtins.list[Message]:
        """The newest messages of a chat; see `SessionManager.get_session_history` for what it raises."""
        return await self.manager.get_session_history(channel, chat_id)
