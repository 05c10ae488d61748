"""nanobot: its `SessionManager`, whose `save` writes the whole session, as its agent loop calls it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from nanobot.session.manager import SessionManager

from benchmarks.peers.adapters.base import Adapter, is_from_user, text_of


class Nanobot(Adapter):
    """It keeps up to 128 sessions in memory. Its loop saves without `fsync`, which it leaves to a clean shutdown."""

    concurrent: ClassVar[bool] = False

    async def open(self) -> None:
        workspace = self.directory / "workspace"
        workspace.mkdir(parents=True, exist_ok=True)
        self._manager = SessionManager(workspace, sessions_root=self.directory / "sessions")

    async def append(self, session: str, number: int) -> None:
        await self.fill(session, [number])

    async def fill(self, session: str, numbers: Iterable[int]) -> None:
        held = self._manager.get_or_create(session)
        for number in numbers:
            held.add_message("user" if is_from_user(number) else "assistant", text_of(number))
        self._manager.save(held)

    async def latest(self, session: str, limit: int) -> Sequence[Any]:
        history: Sequence[Any] = self._manager.get_or_create(session).get_history(limit)
        return history

    async def reload(self, session: str) -> Sequence[Any]:
        messages: Sequence[Any] = self._manager.get_or_create(session).messages
        return messages

    def text(self, message: Any) -> str:
        return str(message["content"])

    async def close(self) -> None:
        self._manager.flush_all()
