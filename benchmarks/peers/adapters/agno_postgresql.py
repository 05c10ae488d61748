"""agno: `AsyncPostgresDb`, with a run for each message, as `agno` has it with its store for SQLite."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from agno.db.base import SessionType
from agno.db.postgres import AsyncPostgresDb
from agno.models.message import Message
from agno.run.agent import RunOutput
from agno.run.base import RunStatus
from agno.session.agent import AgentSession

from benchmarks.peers.adapters.base import Adapter, is_from_user, text_of
from benchmarks.peers.adapters.on_postgresql import url_of

AGENT = "agent"


class AgnoOnPostgreSQL(Adapter):
    """Its agent reads the session from the database again for every turn."""

    async def open(self) -> None:
        self._db = AsyncPostgresDb(db_url=url_of(self.directory, "postgresql+psycopg"))
        self._known: set[str] = set()

    async def append(self, session: str, number: int) -> None:
        if session not in self._known:
            begun = AgentSession(session_id=session, agent_id=AGENT, session_data={}, created_at=int(time.time()))
            await self._db.upsert_session(begun)
            self._known.add(session)
        message = Message(role="user" if is_from_user(number) else "assistant", content=text_of(number))
        run = RunOutput(
            run_id=f"{session}-{number}",
            session_id=session,
            agent_id=AGENT,
            messages=[message],
            status=RunStatus.completed,
        )
        await self._db.upsert_run(run, session, run_index=number)

    async def latest(self, session: str, limit: int) -> Sequence[Any]:
        held: Any = await self._db.get_session(session, SessionType.AGENT, runs_limit=limit)
        return held.get_messages(limit=limit) if held else ()

    async def reload(self, session: str) -> Sequence[Any]:
        held: Any = await self._db.get_session(session, SessionType.AGENT)
        return held.get_messages() if held else ()

    def text(self, message: Any) -> str:
        return str(message.content)

    async def close(self) -> None:
        await self._db.close()
