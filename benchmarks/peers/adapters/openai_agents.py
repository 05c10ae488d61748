"""openai-agents: a `SQLiteSession` for each conversation, on one file, as its documentation shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from agents import SQLiteSession

from benchmarks.peers.adapters.base import Adapter, is_from_user, text_of


class OpenAIAgents(Adapter):
    """Its runner reads the items from the file again for every turn."""

    async def open(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._sessions: dict[str, SQLiteSession] = {}

    async def append(self, session: str, number: int) -> None:
        await self._session(session).add_items([_item(number)])

    async def fill(self, session: str, numbers: Iterable[int]) -> None:
        await self._session(session).add_items([_item(number) for number in numbers])

    async def latest(self, session: str, limit: int) -> Sequence[Any]:
        return await self._session(session).get_items(limit)

    async def reload(self, session: str) -> Sequence[Any]:
        items = await self._session(session).get_items()
        self._sessions.pop(
            session
        ).close()  # each holds a connection for each thread; a thousand would use up the files
        return items

    def text(self, message: Any) -> str:
        return str(message["content"])

    async def close(self) -> None:
        for session in self._sessions.values():
            session.close()

    def _session(self, session: str) -> SQLiteSession:
        if session not in self._sessions:
            self._sessions[session] = SQLiteSession(session, self.directory / "conversations.db")
        return self._sessions[session]


def _item(number: int) -> Any:
    return {"role": "user" if is_from_user(number) else "assistant", "content": text_of(number)}
