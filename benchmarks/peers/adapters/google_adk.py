"""google-adk: `SqliteSessionService`. Its runner appends events one by one and reads the session for every turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from benchmarks.peers.adapters.base import Adapter, is_from_user, text_of

APP, USER = "bench", "user"


class GoogleADK(Adapter):
    """It opens a connection for every call."""

    async def open(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._service = SqliteSessionService(str(self.directory / "sessions.db"))
        self._sessions: dict[str, Any] = {}

    async def append(self, session: str, number: int) -> None:
        held = self._sessions.get(session)
        if held is None:
            held = self._sessions[session] = await self._get_or_create(session)
        role = "user" if is_from_user(number) else "model"
        content = types.Content(role=role, parts=[types.Part(text=text_of(number))])
        await self._service.append_event(held, Event(author=role, content=content))

    async def latest(self, session: str, limit: int) -> Sequence[Any]:
        config = GetSessionConfig(num_recent_events=limit)
        held = await self._service.get_session(app_name=APP, user_id=USER, session_id=session, config=config)
        return held.events if held else ()

    async def reload(self, session: str) -> Sequence[Any]:
        held = await self._service.get_session(app_name=APP, user_id=USER, session_id=session)
        return held.events if held else ()

    def text(self, message: Any) -> str:
        return str(message.content.parts[0].text)

    async def close(self) -> None:
        await self._service.close()

    async def _get_or_create(self, session: str) -> Any:
        held = await self._service.get_session(app_name=APP, user_id=USER, session_id=session)
        return held or await self._service.create_session(app_name=APP, user_id=USER, session_id=session)
