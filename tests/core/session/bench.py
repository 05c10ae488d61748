"""What the tests of sessions share: a workspace whose manager can be opened, crashed and opened again."""

from __future__ import annotations

import copy
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.stores.base import Store
from miniclaw_sessions.core.stores.jsonl.store import JSONLStore
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.core.stores.none import NoStore
from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore
from miniclaw_sessions.testing import FakeClock, FaultyStore

Kind = Literal["memory", "sqlite", "jsonl", "none"]


class Bench:
    """A workspace, its store with faults on request, and a clock in the test's hands."""

    def __init__(self, workspace: Path, kind: Kind = "memory", clock: FakeClock | None = None) -> None:
        self.workspace = workspace
        self.kind: Kind = kind
        self.clock = clock or FakeClock()
        self.real: Store = MemoryStore()
        workspace.mkdir(mode=0o700, exist_ok=True)
        self.renew_store()

    def renew_store(self) -> None:
        """What is in memory of the store is gone; a memory store is what it was."""
        if self.kind == "sqlite":
            self.real = SQLiteStore(self.workspace / "sessions.db")
        elif self.kind == "jsonl":
            self.real = JSONLStore(self.workspace / "transcripts")
        elif self.kind == "none":
            self.real = NoStore()
        self.store = FaultyStore(self.real)

    def lose_store(self) -> None:
        """The transcripts are gone, the snapshots are not. Only while no manager is open."""
        self.real = MemoryStore()
        for file in self.workspace.glob("sessions.db*"):
            file.unlink()
        self.renew_store()

    def lose_snapshots(self) -> None:
        """The snapshots are gone, the transcripts are not. Only while no manager is open."""
        for file in self.snapshots:
            file.unlink()

    @property
    def snapshots(self) -> Sequence[Path]:
        return sorted((self.workspace / "sessions").glob("*.json"))

    def crashed(self, workspace: Path) -> Bench:
        """The disk as it is at this moment: what kill -9 leaves to the next process."""
        shutil.copytree(self.workspace, workspace)
        other = Bench(workspace, self.kind, self.clock)
        if self.kind == "memory":
            other.real = copy.deepcopy(self.real)
            other.renew_store()
        return other

    def manager(self, **settings: Any) -> SessionManager:
        return SessionManager(
            self.workspace, settings=SessionSettings(ttl_days=0, **settings), store=self.store, clock=self.clock
        )

    @asynccontextmanager
    async def opened(self, chat_id: str = "1", **settings: Any) -> AsyncIterator[Session]:
        """The session of one chat, until the manager is closed."""
        async with self.manager(**settings) as manager:
            yield await manager.get_or_create("telegram", chat_id)


async def say(session: Session, *texts: str) -> list[str]:
    """Let user and assistant take turns in saying these, the user first; the entries' ids."""
    speakers: Sequence[Callable[[str], Message]] = (Message.user, Message.assistant)
    return [await session.tree.append_message(speakers[place % 2](text)) for place, text in enumerate(texts)]


async def told_by(session: Session) -> list[str]:
    """The texts of the context, as the session keeps them: without the words that introduce a summary."""
    return [message.text.rpartition("\n\n")[2] for message in (await session.get_context()).messages]


async def path_of(session: Session) -> list[str]:
    """The ids of the entries on the current branch."""
    return [entry.id for entry in await session.tree.get_branch()]
