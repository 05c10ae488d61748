"""What a test in this process was promised: for trials whose writer need not be another process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import StoreUnavailable
from tests.crash.verifier import Ledger, verify
from tests.crash.writer import described


class Account:
    """Messages that were acknowledged, for the verifier.

    Args:
        store: the store's URL.
    """

    def __init__(self, store: str = "sqlite:") -> None:
        self._store = store
        self.lines: list[dict[str, Any]] = []

    async def say(self, session: Session, size: int = 2000) -> MessageEntry:
        """One message of `size` characters, acknowledged."""
        entry = await session.add_message(Message.user(f"{len(self.lines)} {os.urandom(8).hex()} ".ljust(size, "x")))
        self.lines.append({"kind": "entry", **described(session, entry)})
        return entry

    async def say_until_refused(self, session: Session, size: int = 2000) -> StoreUnavailable:
        """Messages of `size` characters, until the store takes no more of them; the error that says so."""
        for _ in range(10_000):
            try:
                await self.say(session, size)
            except StoreUnavailable as error:
                return error
        raise AssertionError("the disk never refused a message")

    async def assert_kept(self, workspace: Path) -> None:
        """Every message is there, and everything is sound."""
        ledger = Ledger()
        assert ledger.learn(self.lines) > 0
        assert await verify(workspace, ledger, store=self._store) == []
