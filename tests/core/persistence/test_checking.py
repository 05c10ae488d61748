"""The check finds every kind of tampering, invents none, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.persistence.checking import CheckReport
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.stores.base import StoredEntry, damaged
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.testing import FakeClock

pytestmark = pytest.mark.anyio


class Home:
    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.store = MemoryStore()
        self.clock = FakeClock()
        self.file = workspace / "sessions" / "telegram_1.json"

    def open(self, **settings: Any) -> SessionManager:
        return SessionManager(self.workspace, settings=SessionSettings(**settings), store=self.store, clock=self.clock)

    @property
    def entries(self) -> list[StoredEntry]:
        return self.store._sessions["telegram_1"].entries

    async def check_after(self, tamper: Callable[[Home], None]) -> CheckReport:
        """Save two sessions, tamper with the first, check."""
        async with self.open() as manager:
            for chat_id in ("1", "2"):
                session = await manager.get_or_create("telegram", chat_id)
                for number in range(3):
                    await session.add_message(Message.user(f"text {number}"))
            await manager.flush()
            tamper(self)
            before = self.files()
            report = await manager.check()
            assert self.files() == before
            return report

    def files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.workspace.rglob("*") if path.is_file()}

    def rewrite(self, **changes: Any) -> None:
        fields = orjson.loads(self.file.read_bytes())
        del fields["crc32"]
        self.file.write_bytes(orjson.dumps({**fields, **changes}))

    def rewrite_message(self, **changes: Any) -> None:
        messages = orjson.loads(self.file.read_bytes())["messages"]
        messages[1].update(changes)
        self.rewrite(messages=messages)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def nothing(_: Home) -> None:
    pass


async def test_what_was_left_alone_is_sound(home: Home) -> None:
    report = await home.check_after(nothing)
    assert report.sound
    assert (report.sessions, report.entries, report.problems, report.notes) == (2, 6, [], [])


@pytest.mark.parametrize(
    ("tamper", "found"),
    [
        (lambda home: home.file.write_bytes(b"{"), "telegram_1.json"),
        (lambda home: home.file.write_bytes(b""), "telegram_1.json"),
        (lambda home: home.file.write_bytes(home.file.read_bytes().replace(b"text 1", b"text 0")), "checksum"),
        (lambda home: home.file.chmod(0o644), "mode is 0644"),
        (lambda home: (home.file.unlink(), home.file.mkdir()), "not a regular file"),
        (lambda home: home.rewrite(schema_version=99), "schema_version 99"),
        (lambda home: home.rewrite(chat_id="2"), "another file name"),
        (lambda home: home.rewrite(incarnation="other"), "earlier session"),
        (lambda home: home.rewrite(last_sequence=7), "ahead of the store"),
        (lambda home: home.rewrite(ids=["a", "b", "c"]), "differs"),
        (lambda home: home.rewrite(sequences=[1, 1, 2]), "order"),
        (lambda home: home.rewrite_message(content="forged"), "message 2 differs"),
        (lambda home: home.rewrite_message(role="system"), "message 2 differs"),
        (lambda home: home.rewrite_message(tool_calls=[{"id": "x", "name": "t"}]), "message 2 differs"),
        (lambda home: home.rewrite_message(timestamp="2020-01-01T00:00:00Z"), "message 2 differs"),
        (lambda home: home.entries.pop(1), "2"),
        (lambda home: home.entries.pop(), "not in the store"),
        (lambda home: home.entries.__setitem__(1, StoredEntry(2, home.entries[1].entry_id, b"{")), "damaged"),
        (
            lambda home: home.entries.__setitem__(
                1, StoredEntry(2, home.entries[1].entry_id, home.entries[1].encoded.replace(b"text 1", b"forged"))
            ),
            "differs",
        ),
        (lambda home: home.store._sessions.pop("telegram_1"), "does not know this session"),
    ],
)
async def test_every_kind_of_tampering_is_found_and_only_there(
    home: Home, tamper: Callable[[Home], None], found: str
) -> None:
    report = await home.check_after(tamper)
    assert not report.sound
    assert any(found in problem for problem in report.problems), report.problems
    assert all("telegram_1" in problem for problem in report.problems), report.problems


async def test_no_problem_shows_message_text(home: Home) -> None:
    report = await home.check_after(lambda home: home.rewrite_message(content="forged SECRET"))
    assert "SECRET" not in str(report)


async def test_what_is_not_flushed_yet_is_no_problem(home: Home) -> None:
    async with home.open() as manager:
        session = await manager.get_or_create("telegram", "1")
        await session.add_message(Message.user("1"))
        report = await manager.check()
        assert report.sound
        assert report.notes == ["1 sessions are in the store and have no snapshot yet"]
        await manager.flush()
        await session.add_message(Message.user("2"))
        session.append(Message.user("3"))
        assert (await manager.check()).sound


async def test_evicted_trimmed_cleared_and_renamed_sessions_are_sound(home: Home) -> None:
    calls = tuple(ToolCall(str(number), "t") for number in range(9))
    async with home.open(window=5) as manager:
        session = await manager.get_or_create("telegram", "1")
        session.append(Message.user("do it"))
        session.append(Message.assistant("", calls))
        for call in calls:
            session.append(Message.tool_result(call, "r"))
        session.update(title="t", model="m", colour="red")
        await manager.flush()
        assert (await manager.check()).problems == []
        session.clear()
        session.append(Message.user("next"))
        await manager.flush()
        assert (await manager.check()).problems == []


async def test_damaged_files_in_the_quarantine_are_worth_a_note(home: Home) -> None:
    async with home.open() as manager:
        await manager.get_or_create("telegram", "1")
    home.file.write_bytes(b"{")
    async with home.open() as manager:
        report = await manager.check()
        assert report.sound
        assert any("1 damaged files" in note for note in report.notes)


async def test_without_a_store_the_files_are_checked_for_themselves(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, store="none:") as manager:
        session = await manager.get_or_create("telegram", "1")
        await session.add_message(Message.user("1"))
        await manager.flush()
        assert (await manager.check()).sound
        (tmp_path / "sessions" / "telegram_1.json").write_bytes(b"{")
        assert not (await manager.check()).sound


async def test_the_only_right_copy_of_a_message_is_not_to_be_removed(home: Home) -> None:
    report = await home.check_after(lambda home: home.entries.__setitem__(1, damaged(home.entries[1])))
    assert not [problem for problem in report.problems if "remove" in problem]
    assert "session telegram_1: entry 2 is damaged: it contradicts its checksum or its seal, or cannot be read" in (
        report.problems
    )


async def test_a_database_that_was_deleted_under_the_manager_is_not_sound(tmp_path: Path) -> None:
    async with SessionManager(tmp_path / "w", settings=SessionSettings()) as manager:
        await (await manager.get_or_create("telegram", "1")).add_message(Message.user("said"))
        assert (await manager.check()).sound
        (tmp_path / "w" / "sessions.db").unlink()
        assert any("deleted or replaced" in problem for problem in (await manager.check()).problems)
