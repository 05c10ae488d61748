"""The sessions of a workspace that nobody holds: opened here, and closed at the end of the command."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

import msgspec

from miniclaw_sessions.cli.backend import ChatEvent, Document, Report
from miniclaw_sessions.config import LoadedSettings
from miniclaw_sessions.errors import SessionNotFound
from miniclaw_sessions.gateway.documents import entry_document, event_document, session_document
from miniclaw_sessions.manager import SessionManager
from miniclaw_sessions.protocol.encoding import encode_entry
from miniclaw_sessions.protocol.messages import Message


class LocalBackend:
    """A `SessionManager` of this process; an async context manager that opens and closes it."""

    def __init__(self, loaded: LoadedSettings, report: Report) -> None:
        self._model = loaded.settings.model
        self._manager = SessionManager(
            loaded.workspace,
            settings=loaded.settings.sessions,
            on_progress=lambda progress: report(progress.stage, progress.done, progress.total),
        )

    async def __aenter__(self) -> Self:
        await self._manager.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._manager.__aexit__(kind, error, trace)

    async def sessions(self, channel: str | None) -> list[Document]:
        """All sessions."""
        return [msgspec.to_builtins(summary) for summary in await self._manager.list(channel=channel)]

    async def session(self, session_id: str) -> Document:
        """One session's description."""
        return session_document(await self._manager.find(session_id))

    async def messages(self, session_id: str) -> list[Document]:
        """The messages of the window."""
        session = await self._manager.find(session_id)
        return [entry_document(entry) for entry in session.entries()]

    async def transcript(self, session_id: str) -> AsyncGenerator[bytes, None]:
        """Every entry, read from the store a page at a time."""
        async for entry in self._manager.read_transcript(session_id):
            yield encode_entry(entry)

    async def clear(self, session_id: str) -> None:
        """Empty the window."""
        session = await self._manager.find(session_id)
        session.clear()
        await session.saved()

    async def delete(self, session_id: str) -> None:
        """Forget a session."""
        if not await self._manager.delete(session_id):
            raise SessionNotFound(session_id)

    async def statistics(self) -> Document:
        """The manager's numbers."""
        document: Document = msgspec.to_builtins(self._manager.statistics())
        return document

    async def chat(self, channel: str, chat_id: str, text: str) -> AsyncGenerator[ChatEvent, None]:
        """Say something to the configured model and follow its answer."""
        from miniclaw_sessions.providers.configured import open_agent  # noqa: PLC0415 - only chats need it

        async with open_agent(self._model) as agent:
            session = await self._manager.get_or_create(channel, chat_id)
            async with agent.run(session, Message.user(text)) as events:
                async for event in events:
                    yield ChatEvent(*event_document(event))
