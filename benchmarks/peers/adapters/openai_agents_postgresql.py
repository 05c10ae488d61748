"""openai-agents: an `SQLAlchemySession` for each conversation, on one engine, as its documentation shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from agents.extensions.memory import SQLAlchemySession
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.peers.adapters.base import Adapter, is_from_user, text_of
from benchmarks.peers.adapters.on_postgresql import url_of


class OpenAIAgentsOnPostgreSQL(Adapter):
    """Its runner reads the items from the database again for every turn."""

    async def open(self) -> None:
        self._engine = create_async_engine(url_of(self.directory, "postgresql+asyncpg"))
        self._sessions: dict[str, SQLAlchemySession] = {}

    async def append(self, session: str, number: int) -> None:
        await self.fill(session, [number])

    async def fill(self, session: str, numbers: Iterable[int]) -> None:
        await self._session(session).add_items([_item(number) for number in numbers])

    async def latest(self, session: str, limit: int) -> Sequence[Any]:
        return await self._session(session).get_items(limit)

    async def reload(self, session: str) -> Sequence[Any]:
        return await self._session(session).get_items()

    def text(self, message: Any) -> str:
        return str(message["content"])

    async def close(self) -> None:
        await self._engine.dispose()

    def _session(self, session: str) -> SQLAlchemySession:
        if session not in self._sessions:
            self._sessions[session] = SQLAlchemySession(session, engine=self._engine, create_tables=True)
        return self._sessions[session]


def _item(number: int) -> Any:
    return {"role": "user" if is_from_user(number) else "assistant", "content": text_of(number)}
