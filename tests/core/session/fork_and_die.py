"""A process that forks a session again and again until it is killed; it says when it is at work."""

from __future__ import annotations

import asyncio
import itertools
import sys

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message


async def main(workspace: str, messages: int) -> None:
    async with SessionManager(workspace) as manager:
        session = await manager.get_or_create("telegram", "1")
        await session.add_messages([Message.user(str(number)) for number in range(messages)])
        for number in itertools.count():
            fork = asyncio.ensure_future(session.fork(f"telegram_fork-{number}"))
            print(number, flush=True)  # noqa: T201 - read by the test
            await fork
            await manager.flush()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
