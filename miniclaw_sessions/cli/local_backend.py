"""The sessions of a workspace that nobody holds: opened here, and closed at the end of the command."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from miniclaw_sessions.cli.backend import ChatEvent, Document, Report
from miniclaw_sessions.config import LoadedSettings
from miniclaw_sessions.errors import SessionNotFound
from miniclaw_sessions.manager import SessionManager
from miniclaw_sessions.protocol.encoding import encode_entry, message_to_dict
from miniclaw_sessions.protocol.messages import Message

if TYPE_CHECKING:
    from miniclaw_sessions.agent.loop import AgentEvent
    from miniclaw_sessions.session import Session


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
        return _describe(await self._manager.find(session_id))

    async def messages(self, session_id: str) -> list[Document]:
        """The messages of the window."""
        session = await self._manager.find(session_id)
        return [
            {**message_to_dict(entry.message), "id": entry.id, "sequence": entry.sequence}
            for entry in session.entries()
        ]

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
        from miniclaw_sessions.gateway.daemon import make_agent  # noqa: PLC0415 - loads the whole gateway

        agent = make_agent(self._model)
        session = await self._manager.get_or_create(channel, chat_id)
        async with AsyncExitStack() as stack:
            if isinstance(agent.provider, AbstractAsyncContextManager):
                await stack.enter_async_context(agent.provider)
            async for event in await stack.enter_async_context(agent.run(session, Message.user(text))):
                yield _told(event)


def _describe(session: Session) -> Document:
    statistics = session.statistics()
    return {
        "session_id": session.session_id,
        "channel": session.channel,
        "chat_id": session.chat_id,
        "title": session.title,
        "agent_id": session.agent_id,
        "messages": statistics.messages,
        "window": statistics.window,
        "entries": session.last_sequence,
        "committed_sequence": session.committed_sequence,
        "dirty": statistics.dirty,
        "created_at": msgspec.to_builtins(session.created_at),
        "last_accessed": msgspec.to_builtins(session.last_accessed),
        "updated_at": msgspec.to_builtins(session.updated_at),
        "incarnation": session.incarnation,
        "metadata": dict(session.metadata),
    }


def _told(event: AgentEvent) -> ChatEvent:
    """An event of the agent as the HTTP API would tell it."""
    from miniclaw_sessions.agent.loop import ToolFinished, ToolStarted  # noqa: PLC0415 - only chats need the agent
    from miniclaw_sessions.agent.provider import TextDelta  # noqa: PLC0415 - same

    if isinstance(event, TextDelta):
        return ChatEvent("text", {"text": event.text})
    if isinstance(event, ToolStarted):
        call = event.call
        return ChatEvent("tool_started", {"id": call.id, "name": call.name, "arguments": call.arguments})
    if isinstance(event, ToolFinished):
        call = event.call
        return ChatEvent("tool_finished", {"id": call.id, "name": call.name, "is_error": event.is_error})
    usage = msgspec.to_builtins(event.usage)
    return ChatEvent("done", {"message": message_to_dict(event.message), "usage": usage})
