"""Workspaces for the tests of encryption: filled, searched for what was said, and compared byte by byte."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions import Message, SessionManager, SessionSettings
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.files.transfer.rekeying import Rekey, RekeyReport
from miniclaw_sessions.testing import FakeClock

SECRET = "Nobody must read this."
OLD, NEW = b"o" * 32, b"n" * 32
OLD_KEY, NEW_KEY, BOTH = KeyRing([OLD]), KeyRing([NEW]), KeyRing([NEW, OLD])
DAY = 86_400.0

Said = dict[str, list[str]]
"""What was said, by session."""


class Home:
    """A workspace with a store, and the clock that goes with it."""

    def __init__(self, workspace: Path, store: str = "sqlite:") -> None:
        self.workspace = workspace
        self.settings = SessionSettings(store=store, window=4, flush_interval_s=9 * DAY, sweep_interval_s=9 * DAY)
        self.clock = FakeClock()

    def open(self, keys: KeyRing | None, **others: Any) -> SessionManager:
        return SessionManager(self.workspace, settings=self.settings, clock=self.clock, encryption=keys, **others)

    async def fill(self, keys: KeyRing | None, sessions: int = 3) -> None:
        """Sessions with messages inside and outside of their windows, one in the archive, a damaged file set aside."""
        async with self.open(keys) as manager:
            await self.say(manager, "expired")
            await self.clock.advance(31 * DAY)
            assert (await manager.sweep()).archived == 1
            for number in range(sessions):
                await self.say(manager, number)
            await manager.flush()
        damaged = self.file(0)
        damaged.write_bytes(damaged.read_bytes()[:-20])
        async with self.open(keys) as manager:
            assert len(manager.recovery.quarantined) == 1

    async def say(self, manager: SessionManager, chat_id: str | int, count: int = 6) -> None:
        session = await manager.get_or_create("telegram", chat_id)
        session.update(title=f"{SECRET} {chat_id}")
        for number in range(count):
            await session.add_message(Message.user(f"{SECRET} {chat_id}/{number}"))

    async def said(self, keys: KeyRing | None) -> Said:
        """Everything that was said, after everything was found to be sound."""
        async with self.open(keys) as manager:
            assert (await manager.check()).problems == []
            said = {}
            for summary in await manager.list():
                session = await manager.find(summary.session_id)
                assert session.title == f"{SECRET} {summary.chat_id}"
                keeps_all = self.settings.store != "none:"
                history = (await session.tree.get_transcript()).entries if keeps_all else session.entries()
                said[summary.session_id] = [e.message.text for e in history if hasattr(e, "message")]
            return said

    async def rekey(self, keys: KeyRing, *, decrypt: bool = False) -> RekeyReport:
        work = Rekey(self.workspace, self.settings, keys, decrypt=decrypt, on_progress=lambda *_: None)
        return await work.run()

    async def refusal(self, keys: KeyRing | None) -> SessionsError:
        """Why the workspace cannot be opened; it must not have changed by it."""
        before = self.contents()
        with pytest.raises(SessionsError) as caught:
            await self.open(keys).__aenter__()
        assert self.contents() == before
        assert SECRET not in str(caught.value)
        return caught.value

    def file(self, chat_id: str | int) -> Path:
        return self.workspace / "sessions" / f"telegram_{chat_id}.json"

    def contents(self) -> dict[str, bytes]:
        """Every file but the lock, which tells the pid."""
        files = [path for path in self.workspace.rglob("*") if path.is_file() and path.name != ".lock"]
        return {str(path.relative_to(self.workspace)): path.read_bytes() for path in files}

    def showing(self) -> list[str]:
        """The files that show what was said."""
        return sorted(name for name, data in self.contents().items() if SECRET.encode() in data)

    def only(self, directory: str) -> Path:
        """The one file in a directory that is neither a reason nor a leftover."""
        (path,) = [one for one in (self.workspace / directory).iterdir() if one.suffix not in (".reason", ".tmp")]
        return path


def make_leftover(directory: Path) -> None:
    """What a crash leaves of a file that was being written."""
    path = directory / f".{os.urandom(12).hex()}.tmp"
    path.write_text(SECRET)
    path.chmod(0o600)
