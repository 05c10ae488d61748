"""The sessions of a workspace that nobody holds: opened here, and closed at the end of the command."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from miniclaw_sessions.cli.backend import ChatEvent, Document, Report
from miniclaw_sessions.config import LoadedSettings
from miniclaw_sessions.encryption import load_keys
from miniclaw_sessions.errors import SessionNotFound
from miniclaw_sessions.gateway.documents import (
    compaction_document,
    encoded_children,
    entry_document,
    event_document,
    import_document,
    session_document,
    tree_document,
)
from miniclaw_sessions.history.compaction import count_tokens, tokens_of
from miniclaw_sessions.manager import SessionManager
from miniclaw_sessions.protocol.encoding import encode_entry
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.protocol.messages import Message
from miniclaw_sessions.session import Session
from miniclaw_sessions.session.compacting import CompactionOutcome, CompactionStatus


class LocalBackend:
    """A `SessionManager` of this process; an async context manager that opens and closes it."""

    def __init__(self, loaded: LoadedSettings, report: Report) -> None:
        self._model = loaded.settings.model
        self._manager = SessionManager(
            loaded.workspace,
            settings=loaded.settings.sessions,
            on_progress=lambda progress: report(progress.stage, progress.done, progress.total),
            encryption=load_keys(loaded.settings.encryption, os.environ),
        )

    async def __aenter__(self) -> Self:
        await self._manager.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._manager.__aexit__(kind, error, trace)

    async def sessions(self, channel: str | None, limit: int | None) -> list[Document]:
        """All sessions."""
        return [msgspec.to_builtins(summary) for summary in await self._manager.list(channel=channel, limit=limit)]

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

    async def chat(self, channel: str, chat_id: str, text: str | None) -> AsyncGenerator[ChatEvent, None]:
        """Say something to the configured model and follow its answer."""
        from miniclaw_sessions.agent.assistant import Assistant  # noqa: PLC0415 - only chats need it
        from miniclaw_sessions.providers.configured import open_agent  # noqa: PLC0415 - same

        message = None if text is None else Message.user(text)
        async with open_agent(self._model) as agent:
            assistant = Assistant(agent, self._model)
            session = await self._manager.get_or_create(channel, chat_id)
            async with assistant.run(session, message) as events:
                async for event in events:
                    yield ChatEvent(*event_document(event))

    # --- the tree ----------------------------------------------------------------------------------------------------

    async def tree(self, session_id: str) -> Document:
        """Who follows whom, the labels and the leaf."""
        session = await self._manager.find(session_id)
        transcript = await session.tree.get_transcript()
        children = b"{" + b",".join(encoded_children(transcript)) + b"}"
        return {**tree_document(transcript), "children": msgspec.json.decode(children)}

    async def branch(self, session_id: str, entry_id: str | None, summary: str | None) -> Document:
        """Go back to an entry, or to the root."""
        session = await self._manager.find(session_id)
        if summary:
            await session.tree.branch_with_summary(entry_id, summary)
        else:
            await session.tree.branch(entry_id)
        return {"leaf_id": session.leaf_id, "session": session_document(session)}

    async def label(self, session_id: str, entry_id: str, label: str) -> str:
        """Bookmark an entry, or remove its bookmark."""
        session = await self._manager.find(session_id)
        return await session.tree.set_label(entry_id, label)

    async def fork(self, session_id: str, new_id: str | None, leaf_id: str | None) -> Document:
        """A new session with the whole tree, or with one branch."""
        session = await self._manager.find(session_id)
        if leaf_id is None:
            return session_document(await session.fork(new_id))
        return session_document(await session.fork(new_id, leaf_id=leaf_id))

    async def compact(
        self, session_id: str, keep_tokens: int, summary: str | None, first_kept_entry_id: str | None
    ) -> Document:
        """Let a summary stand for the older part of the branch."""
        session = await self._manager.find(session_id)
        if summary is not None:
            return compaction_document(await _compact_by_hand(session, summary, first_kept_entry_id))
        from miniclaw_sessions.agent.summarizing import summarizer_of  # noqa: PLC0415 - only this needs a model
        from miniclaw_sessions.providers.configured import open_agent  # noqa: PLC0415 - same

        async with open_agent(self._model) as agent:
            outcome = await session.compact(summarizer_of(agent.provider), keep_tokens=keep_tokens)
        return compaction_document(outcome)

    # --- files -------------------------------------------------------------------------------------------------------

    async def export(self, session_id: str, form: str) -> AsyncGenerator[bytes, None]:
        """A session in the format of this name."""
        from miniclaw_sessions.formats.registry import format_named  # noqa: PLC0415 - loads every format

        async for chunk in self._manager.export(session_id, format_named(form)):
            yield chunk

    async def import_file(
        self, path: Path, form: str | None, session_id: str | None, report: Report, *, dry_run: bool
    ) -> Document:
        """A new session from a file."""
        from miniclaw_sessions.formats.registry import format_named  # noqa: PLC0415 - loads every format

        imported = await self._manager.import_file(
            path,
            key=None if session_id is None else SessionKey.parse(session_id),
            form=None if form is None else format_named(form),
            dry_run=dry_run,
            on_progress=lambda progress: report(progress.stage, progress.done, progress.total),
        )
        return import_document(imported)


async def _compact_by_hand(session: Session, summary: str, first_kept_entry_id: str | None) -> CompactionOutcome:
    """Let a person's summary stand for what comes before an entry."""
    before = tokens_of((await session.tree.read_branch()).entries)
    entry_id = await session.tree.append_compaction(summary, first_kept_entry_id, before)
    after = count_tokens((await session.get_context()).messages)
    return CompactionOutcome(status=CompactionStatus.DONE, entry_id=entry_id, tokens_before=before, tokens_after=after)
