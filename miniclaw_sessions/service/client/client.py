"""The sessions of a workspace, wherever it is held: the words of `SessionManager`, each a request."""

from __future__ import annotations

import builtins
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import date
from pathlib import Path
from typing import Any, Literal, Unpack

from miniclaw_sessions.config import MAX_MESSAGES
from miniclaw_sessions.core.history.search import SearchOptionsEverywhere, SearchPage, SearchQuery
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import ImportRefused, SessionNotFound
from miniclaw_sessions.service.api import forgetting, search, service, sessions, transfer, upkeep, usage
from miniclaw_sessions.service.api.openai import models
from miniclaw_sessions.service.api.service import CheckReply, FlushReply, HealthReply, RepairReply
from miniclaw_sessions.service.api.shapes import CreateSession, OpenedReply
from miniclaw_sessions.service.api.transfer import FormatRow, ImportReply
from miniclaw_sessions.service.api.upkeep import BackUp, BackupReply, SweepReply
from miniclaw_sessions.service.client.following import End, SessionEvents
from miniclaw_sessions.service.client.session import ClientSession
from miniclaw_sessions.service.client.transport import LocalTransport, Transport, new_key
from miniclaw_sessions.statistics import ManagerStatistics, SessionSummary, UsageReport

PIECE_BYTES = 262_144
"""How much of a file is sent at a time."""

Sent = Callable[[int, int | None], None]
"""Called with the number of bytes of a file that are sent, and its size."""


class Client:
    """The sessions of one workspace; see `connect`."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def __repr__(self) -> str:
        return f"<Client {self.transport!r}>"

    @property
    def is_local(self) -> bool:
        """Whether the workspace is held by this very process."""
        return isinstance(self.transport, LocalTransport)

    # --- sessions ----------------------------------------------------------------------------------------------------

    def session(self, session_id: str) -> ClientSession:
        """The session with this id, without asking whether there is one."""
        return ClientSession(self.transport, session_id)

    async def get_or_create(
        self,
        channel: str,
        chat_id: str | int,
        *,
        agent_id: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> ClientSession:
        """The session of this chat, created if it is missing; the arguments behind the key are for a new one.

        Raises:
            InvalidKey, InvalidMessage, SessionLimit: it cannot be made; nothing was.
        """
        body = CreateSession(
            channel=channel, chat_id=chat_id, agent_id=agent_id, title=title, metadata=dict(metadata or {})
        )
        info: OpenedReply = await self.transport.call(sessions.create_session, sessions.CreateSessionRequest(body))
        return ClientSession(self.transport, info.session_id, info)

    async def open(self, session_id: str) -> ClientSession:
        """`get_or_create` by session id."""
        try:
            return await self.find(session_id)
        except SessionNotFound:
            key = SessionKey.parse(session_id)
            return await self.get_or_create(key.channel, key.chat_id)

    async def get(self, channel: str, chat_id: str | int) -> ClientSession:
        """The session of this chat.

        Raises:
            SessionNotFound: no such session exists.
        """
        return await self.find(SessionKey.of(channel, chat_id).session_id)

    async def find(self, session_id: str) -> ClientSession:
        """The session with this id.

        Raises:
            SessionNotFound: no such session exists.
            InvalidKey: the text does not have the form of a session id.
        """
        session = self.session(session_id)
        await session.info()
        return session

    async def resolve(self, name: str) -> ClientSession:
        """The one session that a text means: an id, or a unique beginning or part of an id or a title.

        Raises:
            SessionNotFound: it means none.
            AmbiguousName: it means several.
        """
        found = await self.transport.call(sessions.resolve, sessions.Resolve(name))
        return self.session(found.session_id)

    async def list(
        self, *, channel: str | None = None, prefix: str | None = None, limit: int | None = None
    ) -> builtins.list[SessionSummary]:
        """All sessions, or the newest `limit`, the most recently used first; `prefix`: only ids that begin with it."""
        found: builtins.list[SessionSummary] = []
        async with aclosing(self.pages(channel=channel, prefix=prefix, limit=limit)) as pages:
            async for page in pages:
                found += page
        return found

    async def pages(
        self, *, channel: str | None = None, prefix: str | None = None, limit: int | None = None
    ) -> AsyncGenerator[builtins.list[SessionSummary], None]:
        """`list`, a page at a time."""
        after, left = None, limit
        while left is None or left > 0:
            size = sessions.MAX_PAGE if left is None else min(left, sessions.MAX_PAGE)
            rows, after = await self.page(channel=channel, prefix=prefix, limit=size, after=after)
            yield rows
            left = None if left is None else left - len(rows)
            if after is None:
                return

    async def page(
        self,
        *,
        channel: str | None = None,
        prefix: str | None = None,
        limit: int = 100,
        after: str | None = None,
        last_words: bool = False,
    ) -> tuple[builtins.list[SessionSummary], str | None]:
        """One page of the list, and the `after` of the next one; `last_words` as for `SessionManager.list`."""
        wanted = sessions.ListSessions(channel=channel, prefix=prefix, limit=limit, after=after, last_words=last_words)
        reply = await self.transport.call(sessions.list_sessions, wanted)
        return reply.sessions, reply.next

    async def search(self, query: str = "", **options: Unpack[SearchOptionsEverywhere]) -> SearchPage:
        """What was said, as `SessionManager.search`.

        Raises:
            InvalidSearch: there is nothing to search for, or something in it cannot be meant.
            SessionNotFound: there is no session `session_id`.
        """
        return await self.transport.call(search.search, SearchQuery(query, **options))

    async def models(self) -> dict[str, str]:
        """The models that a chat may choose, and who provides them; the first one answers unless it does."""
        reply = await self.transport.call(models.list_models, service.Nothing())
        return {model.id: model.owned_by for model in reply.data}

    async def takes(self) -> Mapping[str, Collection[str]]:
        """The media types of files that each of these models takes, beside texts."""
        reply = await self.transport.call(models.list_models, service.Nothing())
        return {model.id: model.takes for model in reply.data}

    async def thinking_levels(self) -> dict[str, Sequence[str]]:
        """The levels of thinking that each of these models takes, the least first."""
        reply = await self.transport.call(models.list_models, service.Nothing())
        return {model.id: model.thinking_levels for model in reply.data}

    async def usage(  # noqa: PLR0913 - each can be left out
        self,
        *,
        by: Literal["day", "model", "channel", "chat"] = "day",
        since: date | None = None,
        until: date | None = None,
        channel: str | None = None,
        session_id: str | None = None,
        limit: int = 1_000,
    ) -> UsageReport:
        """What the models' replies have cost, as `SessionManager.usage`.

        Raises:
            SessionNotFound: there is no session `session_id`.
        """
        wanted = usage.ShowUsage(by=by, since=since, until=until, channel=channel, session_id=session_id, limit=limit)
        return await self.transport.call(usage.show_usage, wanted)

    @asynccontextmanager
    async def follow_all(
        self, *, channel: str | None = None, prefix: str | None = None, ends: dict[str, End] | None = None
    ) -> AsyncIterator[SessionEvents]:
        """What happens in all sessions: `async with client.follow_all() as events: async for event in events`.

        Each entry comes once, and in the order of its session, whichever process has written it; a connection that
        breaks is made again, also to a daemon that was killed, or to another one of the same store.

        Args:
            channel: only this channel's sessions.
            prefix: only those whose ids begin so.
            ends: `SessionEvents.ends` of a former call, which goes on where that one was; it is kept up to date. By
                default it begins with what comes from now on; an empty one begins with all that there is.

        Raises:
            Unreachable: the daemon has stopped, and did not come back within five minutes.
        """
        events = SessionEvents(self.transport, channel=channel, prefix=prefix, ends=ends)
        try:
            yield events
        finally:
            await events.close()

    async def continue_recent(self, *, channel: str | None = None) -> ClientSession:
        """The session that was used last, of all or of one channel; renews its time to live.

        Raises:
            SessionNotFound: no such session exists.
        """
        for row in await self.list(channel=channel, limit=1):
            return await self.get_or_create(row.channel, row.chat_id)
        raise SessionNotFound("" if channel is None else f"{channel}_...")

    async def get_session_history(
        self, channel: str, chat_id: str | int, *, limit: int = MAX_MESSAGES
    ) -> builtins.list[Message]:
        """The newest messages of a chat, oldest first; never beginning with an orphan tool result."""
        found = await self.session(SessionKey.of(channel, chat_id).session_id).messages()
        newest = found[-limit:] if limit > 0 else []
        while newest and newest[0].is_tool_result:
            del newest[0]
        return newest

    async def rename(self, session_id: str, title: str | None) -> None:
        """Set the display name; None removes it."""
        await self.session(session_id).update(title=title)

    async def delete(
        self,
        session_id: str,
        *,
        everywhere: bool = True,
        idempotency_key: str | None = None,
        if_match: str | None = None,
    ) -> bool:
        """Forget a session and its transcript; False when no such session exists. See `erase` for `everywhere`.

        Raises:
            LeafMoved: it is not any more as it was when it had the `etag` `if_match`; nothing was changed.
        """
        wanted = sessions.DeleteSession(session_id, everywhere, idempotency_key or new_key(), if_match)
        try:
            return (await self.transport.call(sessions.delete_session, wanted)).deleted
        except SessionNotFound:
            return False

    async def erase(self, session_id: str) -> builtins.list[str]:
        """Forget a session so that its words are in no file of the workspace, but for what is returned.

        Returns:
            What may still hold its words, one sentence each, such as a damaged database that was set aside.

        Raises:
            SessionNotFound: no such session exists.
        """
        wanted = sessions.DeleteSession(session_id, everywhere=True, idempotency_key=new_key())
        return (await self.transport.call(sessions.delete_session, wanted)).remains

    async def forget(
        self,
        *,
        channel: str | None = None,
        older_than_s: float | None = None,
        user: str | None = None,
        only: Iterable[forgetting.MeantRow] | None = None,
        dry_run: bool = False,
    ) -> forgetting.ForgetReply:
        """Delete all sessions of which all is true that is said here; something must be. Expired ones are among them.

        Sessions under legal hold stay, and the reply names them.

        Args:
            channel: of this channel.
            older_than_s: only sessions unused for more seconds than this.
            user: this person is their chat, or the author of a message in them.
            only: of these, only those that a dry run has given, and that are still as they were then.
            dry_run: delete nothing, and return what would go.

        Raises:
            InvalidSearch: nothing says which sessions are meant.
        """
        seen = None
        if only is not None:
            seen = [
                forgetting.Seen(session_id=one.session_id, entries=one.entries, incarnation=one.incarnation)
                for one in only
            ]
        body = forgetting.Forget(channel=channel, older_than_s=older_than_s, user=user, only=seen, dry_run=dry_run)
        return await self.transport.call(forgetting.forget_sessions, forgetting.ForgetRequest(body))

    # --- files -------------------------------------------------------------------------------------------------------

    async def formats(self) -> builtins.list[FormatRow]:
        """Every format of session files."""
        return (await self.transport.call(transfer.list_formats, service.Nothing())).formats

    async def import_stream(  # noqa: PLR0913 - each can be left out
        self,
        chunks: AsyncIterator[bytes],
        *,
        name: str,
        session_id: str | None = None,
        form: str | None = None,
        dry_run: bool = False,
        update: bool = False,
        place: str | None = None,
    ) -> ImportReply:
        """A new session from a file that comes in pieces.

        Args:
            chunks: its bytes.
            name: what the file is called, without its suffix.
            session_id: the new session's id; by default what the file says.
            form: the name of its format; by default it is recognized.
            dry_run: only read it, and report.
            update: a session that was made of this file before gets what it lacks of it.
            place: a JSON object that is kept with the session, for a program that follows the file.

        Raises:
            ImportRefused: it is not a session in a known format, or cannot be taken in; nothing was stored.
            SessionExists: there is a session with this id; with `update`, one that was not made of this file.
            SessionNotFound, SessionExpired: with `place`: it was deleted, or has expired and nothing was said since.
        """
        wanted = transfer.ImportSession(
            body=chunks, name=name, session_id=session_id, format=form, dry_run=dry_run, update=update, place=place
        )
        return await self.transport.call(transfer.import_session, wanted)

    async def import_file(
        self,
        path: str | Path,
        *,
        session_id: str | None = None,
        form: str | None = None,
        dry_run: bool = False,
        on_sent: Sent = lambda sent, size: None,  # noqa: ARG005 - ignore the progress
    ) -> ImportReply:
        """`import_stream` of a file on this machine; `on_sent` gets the number of bytes sent.

        Raises:
            ImportRefused: the file cannot be read, or as for `import_stream`.
        """
        import aiofiles  # noqa: PLC0415 - only this needs it

        name = Path(path).stem.encode(errors="replace").decode()
        try:
            async with aiofiles.open(path, "rb") as file:
                size = await file.seek(0, os.SEEK_END)
                await file.seek(0)

                async def pieces() -> AsyncIterator[bytes]:
                    sent = 0
                    while piece := await file.read(PIECE_BYTES):
                        yield piece
                        sent += len(piece)
                        on_sent(sent, size)

                return await self.import_stream(pieces(), name=name, session_id=session_id, form=form, dry_run=dry_run)
        except OSError as error:
            raise ImportRefused(f"cannot read {path}: {error.strerror}") from error

    def export(self, session_id: str, form: str = transfer.DEFAULT_FORMAT) -> AsyncGenerator[bytes, None]:
        """A session in the format of this name, piece by piece."""
        return self.session(session_id).export(form)

    async def export_person(self, user: str, *, channel: str | None = None) -> AsyncGenerator[bytes, None]:
        """Everything about one person as a ZIP archive, piece by piece: `SessionManager` keeps nothing else of him."""
        wanted = forgetting.ExportPerson(forgetting.Person(user=user, channel=channel))
        async with self.transport.stream(forgetting.export_person, wanted) as pieces:
            async for piece in pieces:
                yield piece

    # --- the service -------------------------------------------------------------------------------------------------

    async def health(self) -> HealthReply:
        """Whether messages are accepted and saved."""
        return await self.transport.call(service.health, service.Nothing())

    async def statistics(self) -> ManagerStatistics:
        """The manager's numbers."""
        return await self.transport.call(service.statistics, service.Nothing())

    async def flush(self) -> FlushReply:
        """Commit and write everything that is dirty.

        Raises:
            StoreUnavailable, RequestError: not all of it could be written.
        """
        return await self.transport.call(service.flush, service.Nothing())

    async def check(self) -> CheckReply:
        """Compare snapshots and store; changes nothing."""
        return await self.transport.call(service.check, service.Nothing())

    async def repair(self) -> RepairReply:
        """Write what the session files have whole over damaged entries of the store.

        Raises:
            StoreError: the store cannot be read or written.
        """
        return await self.transport.call(service.repair, service.Nothing())

    async def back_up(self, directory: str | Path) -> BackupReply:
        """Copy the whole workspace into a directory, consistently, while it is used; `transfer.backup` restores it.

        Args:
            directory: the whole path of one that is not there yet, on the machine of the process that holds the
                workspace; that process must be allowed to make it.

        Raises:
            ConfigError: it is there already, or cannot be written.
        """
        return await self.transport.call(upkeep.back_up, upkeep.BackUpRequest(BackUp(directory=str(directory))))

    async def sweep(self, *, dry_run: bool = False) -> SweepReply:
        """Expire idle sessions now, or only list them."""
        return await self.transport.call(upkeep.sweep, upkeep.Sweep(dry_run))

    async def restore(self, session_id: str) -> ClientSession:
        """Bring an expired session back from the archive, whole.

        Raises:
            NotArchived: the archive has no such session.
            SessionExists: there is a session of this id already.
        """
        info = await self.transport.call(upkeep.unarchive_session, sessions.OneSession(session_id))
        return ClientSession(self.transport, info.session_id, info)

    async def acknowledge_losses(self, session_id: str | None = None) -> int:
        """Let `check`, `list` and `health` report no more what one session, or all, lost; returns how many that was."""
        wanted = upkeep.AcknowledgeLosses(session_id)
        return (await self.transport.call(upkeep.acknowledge_losses, wanted)).acknowledged
