"""Our own stores, with the default settings."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import ClassVar

from benchmarks.peers.adapters.base import Adapter, is_from_user, text_of
from miniclaw_sessions import Message, Role, SessionManager
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.session import Session

IMPORTED_LATE = (
    *("anyio._backends._asyncio", "structlog"),
    *("miniclaw_sessions.core.stores.jsonl.store", "miniclaw_sessions.core.stores.sqlite.store"),
)
"""What the package imports when it is first needed. Here it counts as part of the import, as it does for the others."""

for late in IMPORTED_LATE:
    importlib.import_module(late)


class SQLite(Adapter):
    """`sqlite:`, the default."""

    url: ClassVar[str] = "sqlite:"

    async def open(self) -> None:
        self._manager = SessionManager(self.directory, store=self.url)
        await self._manager.__aenter__()

    async def append(self, session: str, number: int) -> None:
        await (await self._session(session)).add_message(_message(number))

    async def fill(self, session: str, numbers: Iterable[int]) -> None:
        held = await self._session(session)
        for number in numbers:
            held.append(_message(number))
        await held.saved()

    async def latest(self, session: str, limit: int) -> Sequence[Message]:
        return (await self._session(session)).messages()[-limit:]

    async def reload(self, session: str) -> Sequence[Message]:
        return (await self._session(session)).messages()

    async def whole(self, session: str) -> Sequence[Message]:
        held = await self._session(session)
        entries = read_transcript(self._manager, held.session_id)
        return [entry.message async for entry in entries if isinstance(entry, MessageEntry)]

    def text(self, message: Message) -> str:
        return message.text

    async def close(self) -> None:
        await self._manager.close()

    async def _session(self, session: str) -> Session:
        return await self._manager.get_or_create("bench", session)


class JSONLines(SQLite):
    """`jsonl:`, a file for each session."""

    url: ClassVar[str] = "jsonl:"


def _message(number: int) -> Message:
    return Message(Role.USER if is_from_user(number) else Role.ASSISTANT, text_of(number))
