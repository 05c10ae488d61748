"""Files in a workspace, damaged while no program had it open, and then the real start.

Many damaged sessions lie side by side, in the midst of what must not be touched: a healthy session, files and a link of
somebody else's within the workspace, and other files around it. A start that is refused as a whole (somebody's newer or
foreign file) is tried again with half of the cases, down to one.
"""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar, Self

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import SessionsError
from miniclaw_sessions.testing.clock import FakeClock
from tests.fuzz.reader import SECRET, Reader, refused, tree_of
from tests.fuzz.seeds import CHAT, SESSION_ID, conversation, snapshots

_FIRST = datetime(2026, 1, 2, tzinfo=UTC)
NEIGHBOUR = "neighbour_1"
_NEIGHBOUR_SAYS = ["one", "two", "three"]


class _WorkspaceReader(Reader):
    """Starts a workspace in which something is damaged."""

    store: ClassVar[str] = "jsonl:"

    async def __aenter__(self) -> Self:
        self._starts = 0
        self._template = self.scratch / f"{self.name}-template"
        async with self.manager(self._template) as manager:
            neighbour = await manager.get_or_create("neighbour", "1")
            for text in _NEIGHBOUR_SAYS:
                await neighbour.add_message(Message.user(text))
        for folder in (self._template / "sessions", self._template / "quarantine"):
            folder.mkdir(exist_ok=True)
            (folder / "notes.txt").write_bytes(b"a person's notes")
        (self._template / "sessions" / "link.json").symlink_to("../../beside.json")
        (self._template / "sessions" / "folder.json").mkdir()
        return self

    def manager(self, workspace: Path) -> SessionManager:
        settings = SessionSettings(store=self.store, window=8, quarantine_max_files=10_000)
        self._starts += 1  # each start is a second later: a clock that was set back would make the same ids again
        return SessionManager(workspace, settings=settings, clock=FakeClock(_FIRST + timedelta(seconds=self._starts)))

    async def read(self, case: bytes) -> bool:
        return (await self.read_together([case]))[0]

    async def read_together(self, cases: Sequence[bytes]) -> list[bool]:
        home = self.scratch / f"{self.name}-home"
        shutil.rmtree(home, ignore_errors=True)
        workspace = home / "workspace"
        shutil.copytree(self._template, workspace, symlinks=True)
        (home / "beside.json").write_bytes(conversation().snapshot)
        files = [self.put(workspace, number, case) for number, case in enumerate(cases)]
        before = tree_of(home)
        try:
            async with self.manager(workspace) as manager:
                await self._check_neighbour(manager)
                accepted = [await self.check(manager, number) for number in range(len(cases))]
        except SessionsError as error:
            refused(error)
            if len(cases) == 1:
                _check_untouched(home, before, files[0])
                return [False]
            half = len(cases) // 2
            return [*await self.read_together(cases[:half]), *await self.read_together(cases[half:])]
        async with self.manager(workspace) as manager:  # and once more: what was put right stays right
            await self._check_neighbour(manager)
            assert manager.recovery.quarantined == [], _reasons(workspace, manager.recovery.quarantined)
        _check_surroundings(home, before)
        return [
            self.check_fate(workspace, file, case) and taken
            for file, case, taken in zip(files, self.placed(cases), accepted, strict=True)
        ]

    async def _check_neighbour(self, manager: SessionManager) -> None:
        neighbour = await manager.find(NEIGHBOUR)
        assert [message.text for message in neighbour.messages()] == _NEIGHBOUR_SAYS
        assert [await manager.find(NEIGHBOUR)] == [neighbour]

    def placed(self, cases: Sequence[bytes]) -> list[bytes]:
        """The cases as they are written: each speaks of a session of its own."""
        return [_of_chat(case, number) for number, case in enumerate(cases)]

    @abstractmethod
    def put(self, workspace: Path, number: int, case: bytes) -> Path:
        """Write a damaged file, and what belongs to it."""

    async def check(self, manager: SessionManager, number: int) -> bool:
        """Look at the session whose file was damaged; whether the start took the file in."""
        session = await manager.find(_session_id(number))
        assert len(session.messages()) <= 9  # the window, and a call that stays with its results
        await session.add_message(Message.user("goes on"))
        assert session.messages()[-1].text == "goes on"
        return True

    @abstractmethod
    def check_fate(self, workspace: Path, file: Path, placed: bytes) -> bool:
        """That no byte of the damaged file is lost; whether it is still in its place."""


class RecoveryReader(_WorkspaceReader):
    """A snapshot is damaged; the store is sound. Nothing that was acknowledged may be missing."""

    name: ClassVar[str] = "recovery"
    share: ClassVar[int] = 10_000
    batch: ClassVar[int] = 64

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.seeds = snapshots()
        return self

    def put(self, workspace: Path, number: int, case: bytes) -> Path:
        transcript = workspace / "transcripts" / f"{_session_id(number)}.jsonl"
        transcript.write_bytes(_of_chat(conversation().transcript, number))
        file = workspace / "sessions" / f"{_session_id(number)}.json"
        file.write_bytes(_of_chat(case, number))
        return file

    def check_fate(self, workspace: Path, file: Path, placed: bytes) -> bool:
        transcript = workspace / "transcripts" / f"{file.stem}.jsonl"
        number = int(file.stem[-5:])
        assert transcript.read_bytes().startswith(_of_chat(conversation().transcript, number))
        return placed not in _files_in(workspace / "quarantine", file.name)


class TranscriptReader(_WorkspaceReader):
    """A transcript of the store `jsonl:` is damaged; the snapshot is sound. The window may not be lost."""

    name: ClassVar[str] = "transcripts"
    share: ClassVar[int] = 8_000
    batch: ClassVar[int] = 32

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.seeds = [conversation().transcript]
        return self

    def put(self, workspace: Path, number: int, case: bytes) -> Path:
        snapshot = workspace / "sessions" / f"{_session_id(number)}.json"
        snapshot.write_bytes(_of_chat(conversation().snapshot, number))
        file = workspace / "transcripts" / f"{_session_id(number)}.jsonl"
        file.write_bytes(_of_chat(case, number))
        return file

    def check_fate(self, workspace: Path, file: Path, placed: bytes) -> bool:
        if placed in _files_in(workspace / "quarantine", file.name):
            return False
        torn = [b"", *_files_in(workspace / "transcripts" / "torn", file.name)]
        now = file.read_bytes()
        assert any(placed.endswith(rest) and now.startswith(placed[: len(placed) - len(rest)]) for rest in torn)
        return True


class DatabaseReader(_WorkspaceReader):
    """The database is damaged; the snapshots are sound. No window may be lost."""

    name: ClassVar[str] = "database"
    share: ClassVar[int] = 500
    store: ClassVar[str] = "sqlite:"

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        async with self.manager(self._template) as manager:
            session = await manager.get_or_create("fuzz", CHAT)
            for number in range(12):
                await session.add_message(Message.user(f"{SECRET} {number}"))
        self._snapshots = {path.name: path.read_bytes() for path in (self._template / "sessions").glob("*_*.json")}
        self.seeds = [(self._template / "sessions.db").read_bytes()]
        return self

    def put(self, workspace: Path, number: int, case: bytes) -> Path:
        del number
        file = workspace / "sessions.db"
        file.write_bytes(case)
        return file

    async def _check_neighbour(self, manager: SessionManager) -> None:
        assert manager.workspace is not None
        quarantined = manager.workspace / "quarantine"
        for name, data in self._snapshots.items():  # or else it is evidence now, because the database knew better
            session = await manager.find(name.removesuffix(".json"))
            assert len(session.messages()) >= 3 or data in _files_in(quarantined, name)

    def check_fate(self, workspace: Path, file: Path, placed: bytes) -> bool:
        return placed not in _files_in(workspace / "quarantine", file.name)


def _session_id(number: int) -> str:
    return SESSION_ID.replace(CHAT, f"chat{number:05}")


def _of_chat(data: bytes, number: int) -> bytes:
    return data.replace(CHAT.encode(), b"chat%05d" % number)


def _files_in(folder: Path, name: str) -> list[bytes]:
    """What was set aside of a file."""
    return [path.read_bytes() for path in folder.glob(f"*-{name}")] if folder.exists() else []


def _reasons(workspace: Path, names: Sequence[str]) -> list[str]:
    return [(workspace / "quarantine" / f"{name}.reason").read_text(encoding="utf-8") for name in names]


def _check_surroundings(home: Path, before: dict[str, str]) -> None:
    """What is not ours is as it was."""
    now = tree_of(home)
    ours = (
        "workspace/sessions/fuzz",
        "workspace/sessions/neighbour",
        "workspace/transcripts/",
        "workspace/sessions.db",
    )
    theirs = {name for name in before if not name.startswith(ours) and name != "workspace/.lock"}
    assert {name: now.get(name) for name in theirs} == {name: before[name] for name in theirs}
    assert {"workspace/sessions/notes.txt", "workspace/sessions/link.json", "beside.json"} <= theirs


def _check_untouched(home: Path, before: dict[str, str], file: Path) -> None:
    """After a start that was refused the damaged file is where it was, or in the quarantine, whole."""
    name = str(file.relative_to(home))
    now = tree_of(home)
    aside = {identity for place, identity in now.items() if place.startswith("workspace/quarantine/")}
    assert now.get(name) == before[name] or before[name] in aside
    _check_surroundings(home, before)
