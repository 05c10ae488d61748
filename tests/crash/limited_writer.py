"""A writer whose files may not grow: the kernel cuts a write short, and refuses the next one.

`python -m tests.crash.limited_writer WORKSPACE STORE` talks, meets a limit, goes on when it is lifted, meets another
one, and closes while nothing can be saved. It prints what it was promised and what it saw, as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

import anyio

from miniclaw_sessions.config import LogSettings, SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import StoreError, StoreFull
from miniclaw_sessions.log.records import configure_logging
from tests.crash.writer import described

SESSIONS = 3
ROOM_BYTES = 1_500
"""How much the largest snapshot may still grow."""

MESSAGE_BYTES = 60_000
MOST_MESSAGES = 200


class LimitedWriter:
    """Talks, meets the limit twice, and closes."""

    def __init__(self, workspace: Path, store: str) -> None:
        self.lines: list[dict[str, Any]] = []
        self.seen: dict[str, Any] = {}
        self._workspace = workspace
        self._settings = SessionSettings(store=store, flush_interval_s=3600.0)
        self._number = 0

    async def write(self) -> None:
        """The whole story."""
        manager = SessionManager(self._workspace, settings=self._settings)
        try:
            async with manager:
                sessions = [await manager.get_or_create("limited", number) for number in range(SESSIONS)]
                await self._say_and_flush(manager, sessions)
                before = self._snapshots()
                await self._meet_the_limit(manager, sessions)
                self.seen["snapshots_are_whole"] = self._snapshots() == before
                self.seen["was_healthy"] = manager.health().ok
                self.seen["readable"] = [len(session.messages()) for session in sessions]
                limit(None)
                await manager.flush()
                self.seen["is_healthy"] = manager.health().ok
                await self._say_and_flush(manager, sessions)
                self.seen["problems"] = (await manager.check()).problems
                await self._meet_the_limit(manager, sessions)
        except StoreFull as error:
            self.seen["unsaved"] = str(error)
        finally:
            limit(None)

    async def _meet_the_limit(self, manager: SessionManager, sessions: list[Session]) -> None:
        limit(max(map(len, self._snapshots().values())) + ROOM_BYTES)
        if self._settings.store == "none:":
            for session in sessions:
                session.append(self._message())
            self.seen["failed"] = (await manager.flush()).failed
            self.seen["refusal"] = manager.health().problems[0]
            return
        for _ in range(MOST_MESSAGES):
            try:
                await self._say(sessions[0])
            except StoreFull as error:
                self.seen["refusal"] = str(error)
                break
        try:
            await sessions[1].add_message(self._message())
        except StoreError as error:
            self.seen["next_refusal"] = type(error).__name__

    async def _say_and_flush(self, manager: SessionManager, sessions: list[Session]) -> None:
        if self._settings.store != "none:":
            for session in sessions:
                await self._say(session)
            await manager.flush()
            return
        said = [described(session, session.append(self._message())) for session in sessions]
        assert (await manager.flush()).failed == 0
        self.lines += [{"kind": "entry", **line} for line in said]

    async def _say(self, session: Session) -> None:
        entry = await session.add_message(self._message())
        self.lines.append({"kind": "entry", **described(session, entry)})

    def _message(self) -> Message:
        self._number += 1
        return Message.user(f"{self._number} ".ljust(MESSAGE_BYTES, "x"))

    def _snapshots(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self._workspace / "sessions").iterdir()}


def limit(size: int | None) -> None:
    """Let no file of this process grow beyond a size; None: let them grow."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most if size is None else size, most))


def main() -> None:
    """Write, and print."""
    workspace, store = sys.argv[1:]
    configure_logging(LogSettings())
    writer = LimitedWriter(Path(workspace), store)
    anyio.run(writer.write)
    sys.stdout.write(json.dumps({"lines": writer.lines, **writer.seen}))


if __name__ == "__main__":
    main()
