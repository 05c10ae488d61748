"""The manager: one live object per chat, nothing acknowledged lost, nothing deleted coming back, nothing hidden."""
# ruff: noqa: PT012 - a manager that fails to close is a block

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from anyio.lowlevel import checkpoint

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.state import Snapshot
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.persistence import flusher
from miniclaw_sessions.core.persistence.checkpoints import Written
from miniclaw_sessions.core.protocol.entries import Entry, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.stores.base import Store, StoredHead
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.core.stores.none import NoStore
from miniclaw_sessions.disk import Directory, DirectoryLock
from miniclaw_sessions.errors import (
    ConfigError,
    DirectoryInUse,
    InvalidKey,
    InvalidMessage,
    ManagerClosed,
    SessionDeleted,
    SessionLimit,
    SessionNotFound,
    StoreConflict,
    StoreFull,
    StoreUnavailable,
    TurnInProgress,
)
from miniclaw_sessions.testing import FakeClock, FaultyStore
from tests.sampled import sampled
from tests.texts import texts

pytestmark = pytest.mark.anyio


class Home:
    """A workspace whose manager can be opened again and again."""

    def __init__(self, workspace: Path, store: str | Store) -> None:
        self.workspace = workspace
        self.store = store
        self.clock = FakeClock()

    def manager(self, **settings: Any) -> SessionManager:
        return SessionManager(self.workspace, settings=SessionSettings(**settings), store=self.store, clock=self.clock)

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in (self.workspace / "sessions").iterdir())

    def read(self, name: str) -> dict[str, Any]:
        return dict(orjson.loads((self.workspace / "sessions" / name).read_bytes()))


class Faulty(Home):
    """The same with a store that fails on request."""

    def __init__(self, workspace: Path) -> None:
        self.faults = FaultyStore(MemoryStore())
        super().__init__(workspace, self.faults)


@pytest.fixture(params=sampled(["sqlite", "none", "memory"], every=3))
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """Every test with this fixture holds for every store."""
    stores: dict[str, str | Store] = {"none": NoStore(), "memory": MemoryStore(), "sqlite": "sqlite:"}
    return Home(tmp_path, stores[request.param])


@pytest.fixture
def faulty(tmp_path: Path) -> Faulty:
    return Faulty(tmp_path)


async def say(manager: SessionManager, text: str, chat_id: str = "1") -> Session:
    session = await manager.get_or_create("telegram", chat_id)
    await session.add_message(Message.user(text))
    return session


def break_disk(monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOSPC) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Directory, "open_temporary", fail)


# --- named after the tests of the original systems -------------------------------------------------------------------


async def test_session_creation(home: Home) -> None:
    async with home.manager() as manager:
        session = await manager.get_or_create("telegram", "123456789")
        assert (session.session_id, session.key.channel, session.key.chat_id) == (
            "telegram_123456789",
            "telegram",
            "123456789",
        )
        assert session.created_at == session.last_accessed == home.clock.now()


async def test_get_or_create_session(home: Home) -> None:
    async with home.manager() as manager:
        one = await manager.get_or_create("telegram", "1")
        assert await manager.get_or_create("telegram", 1) is one
        assert await manager.get("telegram", 1) is one
        assert await manager.find("telegram_1") is one


async def test_session_count(home: Home) -> None:
    async with home.manager() as manager:
        for number in range(5):
            await manager.get_or_create("telegram", number)
        assert manager.statistics().sessions == len(await manager.list()) == 5


async def test_persistence_roundtrip(home: Home) -> None:
    call = ToolCall("c", "search", '{"q": 1}')
    said = [
        Message.user("hi"),
        Message.assistant("", (call,)),
        Message.tool_result(call, "found", is_error=True),
        Message.assistant("answer"),
    ]
    async with home.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        for message in said:
            await session.add_message(message)
        before = session.entries()
        created_at, incarnation = session.created_at, session.journal.incarnation
    async with home.manager() as manager:
        session = await manager.get("telegram", "1")
        assert session.entries() == before
        assert (session.created_at, session.journal.incarnation) == (created_at, incarnation)
        await session.add_message(Message.user("more"))
        assert session.last_sequence == 5


async def test_file_permissions_unix(home: Home) -> None:
    async with home.manager() as manager:
        await say(manager, "hi")
    for path in home.workspace.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


async def test_atomic_write_no_temp_file_left(home: Home) -> None:
    async with home.manager() as manager:
        await say(manager, "hi")
        await manager.flush()
        assert home.files == ["telegram_1.json"]
        assert home.read("telegram_1.json")["messages"][0]["content"] == "hi"


async def test_concurrent_session_access(home: Home) -> None:
    async with home.manager() as manager:

        async def add(number: int) -> None:
            await say(manager, str(number))

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(add, number)
        assert len((await manager.get("telegram", "1")).messages()) == 10


async def test_session_recovery_statistics(home: Home) -> None:
    async with home.manager() as manager:
        for number in range(5):
            await say(manager, "hi", f"user_{number}")
    async with home.manager() as manager:
        assert [summary.messages for summary in await manager.list()] == [1] * 5
        assert manager.statistics().recovered == 5
        assert {summary.chat_id for summary in await manager.list()} == {f"user_{number}" for number in range(5)}


async def test_session_file_naming_format(home: Home) -> None:
    async with home.manager() as manager:
        for channel, chat_id in (("telegram", "111"), ("cli", "222"), ("discord", "333")):
            await manager.get_or_create(channel, chat_id)
        await manager.flush()
        assert home.files == ["cli_222.json", "discord_333.json", "telegram_111.json"]


async def test_tool_calls_survive_a_restart_in_order(home: Home) -> None:
    call = ToolCall("c", "search", "{}")
    async with home.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        async with session.turn(Message.user("hi")) as turn:
            turn.append(Message.assistant("", (call,)))
            turn.append(Message.tool_result(call, "found"))
            turn.append(Message.assistant("answer"))
    async with home.manager() as manager:
        history = await manager.get_session_history("telegram", "1")
    assert [message.role.value for message in history] == ["user", "assistant", "tool_result", "assistant"]
    assert history[1].tool_calls == (call,)
    assert history[2].tool_call_id == "c"


async def test_session_isolation(home: Home) -> None:
    async with home.manager() as manager:
        await say(manager, "one", "1")
        await say(manager, "two", "2")
        assert texts(await manager.get("telegram", "1")) == ["one"]
        assert texts(await manager.get("telegram", "2")) == ["two"]


async def test_max_history_turns(home: Home) -> None:
    async with home.manager(window=3) as manager:
        for number in range(5):
            await say(manager, str(number))
        assert texts(await manager.get("telegram", "1")) == ["2", "3", "4"]
        assert manager.statistics().evicted_from_window == 2


async def test_ten_parallel_first_messages_make_one_session(home: Home) -> None:
    async with home.manager() as manager:
        found = []

        async def first() -> None:
            found.append(await manager.get_or_create("telegram", "1"))

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(first)
        assert len({id(session) for session in found}) == 1
        assert manager.statistics().sessions == 1


# --- creating and finding --------------------------------------------------------------------------------------------


async def test_an_unknown_session_is_not_found_and_not_created(home: Home) -> None:
    async with home.manager() as manager:
        for lookup in (
            manager.get("telegram", "1"),
            manager.find("telegram_1"),
            manager.get_session_history("telegram", "1"),
        ):
            with pytest.raises(SessionNotFound):
                await lookup
        with pytest.raises(SessionNotFound):
            _ = [entry async for entry in read_transcript(manager, "telegram_1")]
        assert await manager.list() == []
        assert await manager.delete("telegram_1") is False
        await manager.flush()
        assert home.files == []


@pytest.mark.parametrize(
    ("channel", "chat_id"), [("", "1"), ("telegram", ""), ("a\0", "1"), ("a", "\ud800"), ("a", "x" * 5000)]
)
async def test_a_key_that_cannot_name_a_session_is_refused(home: Home, channel: str, chat_id: str) -> None:
    async with home.manager() as manager:
        with pytest.raises(InvalidKey):
            await manager.get_or_create(channel, chat_id)
        assert await manager.list() == []


@pytest.mark.parametrize("session_id", ["", "nounderscore", "../../etc/passwd", "a/b_c", ".a_b", "a_b\n"])
async def test_a_text_that_is_no_session_id_is_refused(home: Home, session_id: str) -> None:
    async with home.manager() as manager:
        with pytest.raises((InvalidKey, SessionNotFound)):
            await manager.find(session_id)
        assert await manager.delete(session_id) is False


NASTY = [
    "..",
    "a/b",
    "../../x",
    "a_b",
    "A",
    "a",
    "é",
    "e\u0301",
    "ß",
    ".lock",
    "x.tmp",
    "~",
    "-rf",
    "x" * 4000,
    "\n",
    "%",
]


async def test_chats_with_any_name_are_kept_apart_and_come_back(home: Home) -> None:
    async with home.manager() as manager:
        for name in NASTY:
            await say(manager, f"I am {name!r}", name)
    assert len(home.files) == len(NASTY)
    assert {path.name for path in home.workspace.iterdir()} <= {".lock", "sessions", "sessions.db"}
    async with home.manager() as manager:
        for name in NASTY:
            assert texts(await manager.get("telegram", name)) == [f"I am {name!r}"]


async def test_pairs_that_would_be_the_same_text_are_two_sessions(home: Home) -> None:
    async with home.manager() as manager:
        one, two = await manager.get_or_create("a_b", "c"), await manager.get_or_create("a", "b_c")
        assert one is not two
        await one.add_message(Message.user("private"))
        assert two.messages() == []


async def test_a_new_session_is_written_at_the_next_flush_even_when_nothing_was_said(home: Home) -> None:
    async with home.manager() as manager:
        await manager.get_or_create("telegram", "1", agent_id="main")
        assert home.files == []
    async with home.manager() as manager:
        session = await manager.get("telegram", "1")
        assert session.messages() == []
        assert session.metadata.get("agent_id") == "main"


async def test_the_number_of_sessions_is_bounded(home: Home) -> None:
    async with home.manager(max_sessions=2) as manager:
        await manager.get_or_create("telegram", "1")
        await manager.get_or_create("telegram", "2")
        with pytest.raises(SessionLimit, match="max_sessions"):
            await manager.get_or_create("telegram", "3")
        await manager.get_or_create("telegram", "1")
        await manager.delete("telegram_1")
        await manager.get_or_create("telegram", "3")


async def test_a_session_that_could_not_be_created_leaves_no_ghost(home: Home) -> None:
    async with home.manager() as manager:
        with pytest.raises(InvalidMessage):
            await manager.get_or_create("telegram", "1", agent_id="\ud800")
        assert await manager.list() == []
        await manager.flush()
        assert home.files == []


async def test_a_use_renews_and_looking_does_not(home: Home) -> None:
    async with home.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        created_at = session.created_at
        await home.clock.advance(10)
        await manager.get("telegram", "1")
        await manager.find("telegram_1")
        await manager.list()
        await manager.get_session_history("telegram", "1")
        assert session.last_accessed == created_at
        await manager.get_or_create("telegram", "1")
        assert session.last_accessed == created_at + timedelta(seconds=10)


async def test_a_session_that_is_only_read_is_still_written_as_used_now_and_then(home: Home) -> None:
    async with home.manager() as manager:
        await manager.get_or_create("telegram", "1")
        await manager.flush()
        await home.clock.advance(60)
        await manager.get_or_create("telegram", "1")
        assert manager.statistics().dirty == 0
        await home.clock.advance(3600)
        await manager.get_or_create("telegram", "1")
        assert manager.statistics().dirty == 1
        used = home.clock.now()
    async with home.manager() as manager:
        assert (await manager.get("telegram", "1")).last_accessed == used


async def test_the_list_is_newest_first_and_can_be_one_channels(home: Home) -> None:
    async with home.manager() as manager:
        for channel, chat_id in (("telegram", "1"), ("cli", "2"), ("telegram", "3")):
            await manager.get_or_create(channel, chat_id)
            await home.clock.advance(1)
        assert [summary.session_id for summary in await manager.list()] == ["telegram_3", "cli_2", "telegram_1"]
        await manager.get_or_create("telegram", "1")
        assert [summary.chat_id for summary in await manager.list(channel="telegram")] == ["1", "3"]
        assert await manager.list(channel="discord") == []


# --- history ---------------------------------------------------------------------------------------------------------


async def test_history_selects_most_recent(home: Home) -> None:
    async with home.manager() as manager:
        for number in range(60):
            await say(manager, str(number))
        history = await manager.get_session_history("telegram", "1")
        assert [message.text for message in history] == [str(number) for number in range(10, 60)]
        assert len(await manager.get_session_history("telegram", "1", limit=1000)) == 50
        assert [message.text for message in await manager.get_session_history("telegram", "1", limit=1)] == ["59"]
        assert await manager.get_session_history("telegram", "1", limit=0) == []
        assert await manager.get_session_history("telegram", "1", limit=-1) == []


async def test_history_never_begins_with_an_orphan_result(home: Home) -> None:
    async with home.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        for number in range(3):
            calls = tuple(ToolCall(f"{number}-{i}", "t") for i in range(3))
            session.append(Message.user("ask"))
            session.append(Message.assistant("", calls))
            for call in calls:
                session.append(Message.tool_result(call, "r"))
        for limit in range(20):
            history = await manager.get_session_history("telegram", "1", limit=limit)
            assert len(history) <= limit
            assert not history or not history[0].is_tool_result, limit
            asked = {call.id for message in history for call in message.tool_calls or ()}
            assert {message.tool_call_id for message in history if message.is_tool_result} <= asked


async def test_the_transcript_has_what_left_the_window(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, settings=SessionSettings(window=5)) as manager:
        for number in range(1203):
            (await manager.get_or_create("telegram", "1")).append(Message.user(str(number)))
        await manager.flush()
        entries: list[Entry] = [entry async for entry in read_transcript(manager, "telegram_1")]
    assert [entry.message.text for entry in entries if isinstance(entry, MessageEntry)] == [
        str(number) for number in range(1203)
    ]


# --- deleting --------------------------------------------------------------------------------------------------------


async def test_deleting_removes_memory_file_and_transcript_and_is_idempotent(home: Home) -> None:
    async with home.manager() as manager:
        session = await say(manager, "hi")
        await manager.flush()
        assert await manager.delete("telegram_1") is True
        assert await manager.delete("telegram_1") is False
        assert session.journal.is_deleted
        assert home.files == []
        with pytest.raises(SessionNotFound):
            await manager.get("telegram", "1")
    async with home.manager() as manager:
        assert await manager.list() == []


async def test_after_deletion_a_new_session_begins_empty_as_another_one(home: Home) -> None:
    async with home.manager() as manager:
        old = await say(manager, "old")
        await manager.delete("telegram_1")
        new = await say(manager, "new")
        assert new is not old
        assert new.journal.incarnation != old.journal.incarnation
        with pytest.raises(SessionDeleted):
            old.append(Message.user("to nobody"))
    async with home.manager() as manager:
        assert texts(await manager.get("telegram", "1")) == ["new"]


async def test_a_deletion_is_not_undone_by_a_flush_in_flight(faulty: Faulty) -> None:
    async with faulty.manager() as manager:
        await say(manager, "hi")
        hold = faulty.faults.hold()
        other = await manager.get_or_create("telegram", "2")
        other.append(Message.user("slow"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(manager.flush)
            await hold.reached.wait()
            tasks.start_soon(manager.delete, "telegram_1")
            await faulty.clock.advance(0)
            hold.release()
        await manager.flush()
        assert faulty.files == ["telegram_2.json"]


async def test_a_deletion_is_not_undone_by_a_flush_whose_caller_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowDisk(monkeypatch)
    async with SessionManager(tmp_path, store="memory:", clock=FakeClock()) as manager:
        await say(manager, "hi")
        flushing = asyncio.create_task(manager.flush())
        await slow.reached()
        flushing.cancel()
        deleting = asyncio.create_task(manager.delete("telegram_1"))
        await checkpoint()
        slow.release()
        await deleting
        await asyncio.wait([flushing])
    assert list((tmp_path / "sessions").iterdir()) == []


async def test_deleting_waits_for_the_open_turn(home: Home) -> None:
    async with home.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        deleted = []

        async def delete() -> None:
            deleted.append(await manager.delete("telegram_1"))

        async def talk() -> None:
            async with session.turn(Message.user("hi")) as turn:
                await home.clock.sleep(5)
                assert deleted == []
                turn.append(Message.assistant("answer"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk)
            while not session.journal.committed_sequence:
                await checkpoint()
            tasks.start_soon(delete)
            await home.clock.advance(10)
        assert deleted == [True]


async def test_a_deletion_that_still_waits_when_the_manager_closes_is_refused(faulty: Faulty) -> None:
    async def deleting(manager: SessionManager) -> None:
        with pytest.raises(ManagerClosed):
            await manager.delete("telegram_1")

    async with anyio.create_task_group() as tasks:
        async with faulty.manager() as manager:
            session = await say(manager, "hi")
            await session.journal.turn_lock.acquire()
            tasks.start_soon(deleting, manager)
            await faulty.clock.advance(0)
        session.journal.turn_lock.release()
    async with faulty.manager() as manager:
        assert texts(await manager.get("telegram", "1")) == ["hi"]


async def test_deleting_ones_own_session_in_a_turn_is_refused_instead_of_waiting_for_ever(home: Home) -> None:
    async with home.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        async with session.turn(Message.user("hi")):
            with pytest.raises(TurnInProgress), anyio.fail_after(60):
                await manager.delete("telegram_1")
        assert await manager.delete("telegram_1") is True


async def test_whoever_asks_for_a_session_that_is_being_deleted_gets_a_new_one(faulty: Faulty) -> None:
    async with faulty.manager() as manager:
        old = await say(manager, "old")
        hold = faulty.faults.hold()
        old.append(Message.user("slow"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(manager.delete, "telegram_1")
            await hold.reached.wait()
            await faulty.clock.advance(0)
            found: list[Session] = []

            async def ask() -> None:
                try:
                    found.append(await say(manager, "new"))
                finally:
                    hold.release()

            for _ in range(3):
                tasks.start_soon(ask)
            await faulty.clock.advance(0)
            hold.release()
        assert len({id(session) for session in found}) == 1
        assert found[0] is not old
        assert texts(found[0]) == ["new"] * 3


async def test_a_deletion_that_fails_leaves_the_session_as_it_was(faulty: Faulty) -> None:
    async with faulty.manager() as manager:
        session = await say(manager, "hi")
        await manager.flush()
        faulty.faults.fail(method="delete")
        with pytest.raises(StoreUnavailable):
            await manager.delete("telegram_1")
        faulty.faults.heal()
        assert await manager.get_or_create("telegram", "1") is session
        await session.add_message(Message.user("still here"))
    async with faulty.manager() as manager:
        assert texts(await manager.get("telegram", "1")) == ["hi", "still here"]
        assert await manager.delete("telegram_1") is True


@pytest.mark.parametrize("native", [False, True])
async def test_a_deletion_whose_caller_is_cancelled_leaves_no_session_that_refuses_everything(
    faulty: Faulty, *, native: bool
) -> None:
    async with faulty.manager() as manager:
        session = await say(manager, "hi")
        hold = faulty.faults.hold()
        session.append(Message.user("slow"))
        async with anyio.create_task_group() as tasks:
            deleting = asyncio.create_task(manager.delete("telegram_1")) if native else None
            if not native:
                tasks.start_soon(manager.delete, "telegram_1")
            await hold.reached.wait()
            await faulty.clock.advance(0)
            if deleting is not None:
                deleting.cancel()
            else:
                tasks.cancel_scope.cancel()
                hold.release()
        hold.release()
        if deleting is not None:
            await asyncio.wait([deleting])
        with anyio.fail_after(60):
            await say(manager, "and on")
    async with faulty.manager() as manager:
        assert texts(await manager.get("telegram", "1"))[-1] == "and on"
        assert (await manager.check()).problems == []


# --- opening ---------------------------------------------------------------------------------------------------------


async def test_a_second_manager_on_the_directory_is_refused_with_the_pid(home: Home) -> None:
    async with home.manager() as manager:
        await say(manager, "hi")
        with pytest.raises(DirectoryInUse) as refusal:
            async with SessionManager(home.workspace, store="memory:"):
                pass
        assert refusal.value.pid == os.getpid()
        await say(manager, "unharmed")
    async with home.manager() as manager:
        assert texts(await manager.get("telegram", "1")) == ["hi", "unharmed"]


async def test_a_workspace_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file"):
        async with SessionManager(tmp_path / "file", store="memory:"):
            pass


async def test_an_opening_that_fails_lets_the_directory_go(faulty: Faulty) -> None:
    faulty.faults.fail(method="heads")
    with pytest.raises(StoreUnavailable):
        async with faulty.manager():
            pass
    faulty.faults.heal()
    async with faulty.manager() as manager:
        await say(manager, "hi")


async def test_an_unknown_store_is_a_clear_error_and_its_password_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        async with SessionManager(tmp_path, store="oracle://user:secret@host/db"):
            pass
    assert "secret" not in str(refusal.value)


async def test_a_manager_that_is_not_open_refuses_everything(home: Home) -> None:
    manager = home.manager()
    await check_that_all_is_refused(manager)
    assert manager.health().ok is False
    async with manager:
        session = await say(manager, "hi")
    await check_that_all_is_refused(manager)
    with pytest.raises(ManagerClosed):
        session.append(Message.user("late"))
    with pytest.raises(ManagerClosed):
        await session.add_message(Message.user("late"))
    with pytest.raises(ManagerClosed):
        session.update(title="late")
    assert texts(session) == ["hi"]
    await manager.close()
    assert manager.health().ok is False


async def check_that_all_is_refused(manager: SessionManager) -> None:
    for call in (
        lambda: manager.get_or_create("telegram", "1"),
        lambda: manager.get("telegram", "1"),
        lambda: manager.find("telegram_1"),
        manager.list,
        lambda: manager.delete("telegram_1"),
        manager.flush,
        manager.sweep,
        manager.check,
    ):
        with pytest.raises(ManagerClosed):
            await call()


async def test_a_manager_has_its_numbers_from_when_it_is_opened_and_after_it_was_closed_too(home: Home) -> None:
    manager = home.manager()
    for numbers in (manager.statistics, lambda: manager.store, lambda: manager.progressed_at):
        with pytest.raises(ManagerClosed, match="is not open"):
            numbers()
    async with manager:
        await say(manager, "hi")
    assert manager.statistics().sessions == 1


async def test_a_closed_manager_is_not_opened_again_but_a_new_one_is(home: Home) -> None:
    manager = home.manager()
    async with manager:
        await say(manager, "hi")
    with pytest.raises(ManagerClosed):
        async with manager:
            pass
    async with home.manager() as again:
        assert texts(await again.get("telegram", "1")) == ["hi"]


async def test_the_path_may_begin_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    async with SessionManager("~/work", store="memory:") as manager:
        assert manager.workspace == tmp_path / "work"
    assert SessionManager().workspace == tmp_path / ".miniclaw" / "workspace"


# --- closing ---------------------------------------------------------------------------------------------------------


async def test_closing_commits_and_flushes_what_was_only_accepted(home: Home) -> None:
    async with home.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        for number in range(5):
            session.append(Message.user(str(number)))
        session.update(title="t")
    async with home.manager() as manager:
        session = await manager.get("telegram", "1")
        assert texts(session) == [str(number) for number in range(5)]
        assert session.title == "t"
        assert manager.statistics().dirty == 0


async def test_closing_raises_when_messages_could_not_be_saved(faulty: Faulty) -> None:
    with pytest.raises(StoreFull, match="1 messages"):
        async with faulty.manager() as manager:
            (await manager.get_or_create("telegram", "1")).append(Message.user("unsaved"))
            faulty.faults.fail(StoreFull("full"))
    async with SessionManager(faulty.workspace, store="memory:"):
        pass  # the directory was let go all the same


async def test_closing_raises_when_only_snapshots_could_not_be_written(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreFull, match="1 snapshots"):
        async with home.manager() as manager:
            await say(manager, "hi")
            break_disk(monkeypatch)
    monkeypatch.undo()
    if not isinstance(home.store, NoStore):
        async with home.manager() as manager:
            assert texts(await manager.get("telegram", "1")) == ["hi"]


async def test_closing_tells_of_the_session_that_the_store_refused(faulty: Faulty) -> None:
    with pytest.raises(StoreUnavailable, match="telegram_1 is refused"):
        async with faulty.manager() as manager:
            session = await say(manager, "hi")
            faulty.faults.refuse("telegram_1")
            with pytest.raises(StoreConflict):
                await session.add_message(Message.user("refused"))


async def test_a_full_disk_is_told_as_such_when_closing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreFull):
        async with home.manager() as manager:
            await say(manager, "hi")
            break_disk(monkeypatch, errno.EDQUOT)


async def test_an_error_of_the_body_is_not_hidden_by_one_of_closing(faulty: Faulty) -> None:
    with pytest.raises(ZeroDivisionError):
        async with faulty.manager() as manager:
            (await manager.get_or_create("telegram", "1")).append(Message.user("unsaved"))
            faulty.faults.fail(StoreFull("full"))
            raise ZeroDivisionError


@pytest.mark.parametrize("native", [False, True])
async def test_cancelling_the_body_still_saves_everything(home: Home, *, native: bool) -> None:
    entered = anyio.Event()

    async def serve() -> None:
        async with home.manager() as manager:
            (await manager.get_or_create("telegram", "1")).append(Message.user("accepted"))
            entered.set()
            await anyio.sleep_forever()

    if native:
        serving = asyncio.create_task(serve())
        await entered.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
    else:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            await entered.wait()
            tasks.cancel_scope.cancel()
    async with home.manager() as manager:
        assert texts(await manager.get("telegram", "1")) == ["accepted"]
        assert manager.recovery.brought_up == 0  # the snapshot was written too


async def test_a_close_that_asyncio_itself_cancels_still_saves_everything_and_lets_the_directory_go(
    faulty: Faulty,
) -> None:
    hold = faulty.faults.hold()

    async def serve() -> None:
        async with faulty.manager() as manager:
            (await manager.get_or_create("telegram", "1")).append(Message.user("accepted"))

    serving = asyncio.create_task(serve())
    await hold.reached.wait()
    await faulty.clock.advance(0)  # the body is over: it is closing
    for _ in range(2):
        serving.cancel()
        await faulty.clock.advance(0)
        assert not serving.done()
    faulty.faults.heal()
    with pytest.raises(asyncio.CancelledError):
        await serving
    async with faulty.manager() as manager:
        assert texts(await manager.get("telegram", "1")) == ["accepted"]
        assert manager.recovery.brought_up == 0


async def test_who_waits_for_a_store_that_hangs_gets_an_error_when_the_manager_closes(faulty: Faulty) -> None:
    with pytest.raises(StoreUnavailable, match="1 messages"):
        async with faulty.manager(shutdown_timeout_s=0.05) as manager:
            hold = faulty.faults.hold()
            waiting = asyncio.create_task(say(manager, "unsaved"))
            await hold.reached.wait()
    with pytest.raises(StoreUnavailable) as refusal:
        await waiting
    assert "when the store recovers" not in str(refusal.value)


async def test_a_store_that_hangs_does_not_keep_the_manager_from_closing(faulty: Faulty) -> None:
    with pytest.raises(StoreUnavailable, match="1 messages"), anyio.fail_after(60):
        async with faulty.manager(shutdown_timeout_s=0.05) as manager:
            faulty.faults.hold()
            (await manager.get_or_create("telegram", "1")).append(Message.user("unsaved"))
            await faulty.clock.advance(0)


async def test_closing_goes_on_as_long_as_it_advances(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first flush of very many sessions takes longer than the time without any progress that closing allows."""
    monkeypatch.setattr(flusher, "CHUNK", 1)
    given_up_at = []
    async with home.manager() as manager:
        for chat_id in "123":
            await say(manager, "hi", chat_id)
        snapshots = manager._storage.checkpoints
        write = snapshots.write

        async def watched(some: Sequence[Snapshot]) -> list[Written]:
            assert manager._patience is not None
            given_up_at.append(manager._patience.deadline)
            return await write(some)

        monkeypatch.setattr(snapshots, "write", watched)
    assert len(given_up_at) == 3
    assert given_up_at == sorted(set(given_up_at))


async def test_whoever_closes_while_another_closes_waits_until_it_is_closed(home: Home) -> None:
    async with home.manager() as manager:
        await say(manager, "hi")
        first, second = asyncio.create_task(manager.close()), asyncio.create_task(manager.close())
        await second
        DirectoryLock(home.workspace).release()  # nobody has it any more
        await first


# --- flushing --------------------------------------------------------------------------------------------------------


async def test_only_dirty_sessions_are_written(home: Home) -> None:
    async with home.manager() as manager:
        await say(manager, "hi", "1")
        await say(manager, "hi", "2")
        assert (await manager.flush()).written == 2
        assert (await manager.flush()).written == 0
        await say(manager, "more", "2")
        report = await manager.flush()
        assert (report.written, report.failed) == (1, 0)
        assert report.bytes_written == (home.workspace / "sessions" / "telegram_2.json").stat().st_size


async def test_a_session_that_cannot_be_written_stays_dirty_and_its_neighbours_are_written(home: Home) -> None:
    async with home.manager() as manager:
        (home.workspace / "sessions" / "telegram_1.json").mkdir()
        await say(manager, "hi", "1")
        await say(manager, "hi", "2")
        report = await manager.flush()
        assert (report.written, report.failed) == (1, 1)
        assert manager.health().problems
        (home.workspace / "sessions" / "telegram_1.json").rmdir()
        assert (await manager.flush()).written == 1
        assert manager.health().ok
        assert manager.statistics().flush_failures == 1


class SlowDisk:
    """Snapshots are written when the test says so; each write stands still just before its rename."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reached, self._go = threading.Event(), threading.Event()
        rename = Directory._rename

        def slowly(directory: Directory, temporary: str, name: str) -> OSError | None:
            first = not self._reached.is_set()
            self._reached.set()
            if first:
                self._go.wait(10)
            return rename(directory, temporary, name)

        monkeypatch.setattr(Directory, "_rename", slowly)

    async def reached(self) -> None:
        assert await anyio.to_thread.run_sync(self._reached.wait, 10)

    def release(self) -> None:
        self._go.set()


async def test_an_older_snapshot_never_overtakes_a_newer_one_even_when_its_flush_was_cancelled(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowDisk(monkeypatch)
    async with home.manager() as manager:
        session = await say(manager, "old")
        flushing = asyncio.create_task(manager.flush())
        await slow.reached()
        flushing.cancel()
        session.append(Message.user("new"))
        again = asyncio.create_task(manager.flush())
        await home.clock.advance(0)
        slow.release()
        await again
        await asyncio.wait([flushing])
        assert manager.statistics().dirty == 0
        assert [message["content"] for message in home.read("telegram_1.json")["messages"]] == ["old", "new"]


async def test_what_changes_during_a_flush_stays_dirty(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowDisk(monkeypatch)
    async with home.manager() as manager:
        session = await say(manager, "before")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(manager.flush)
            await slow.reached()
            await session.add_message(Message.user("during"))
            slow.release()
        assert manager.statistics().dirty == 1
        assert len(home.read("telegram_1.json")["messages"]) == 1
        await manager.flush()
        assert not session.journal.checkpoint.is_dirty
        assert len(home.read("telegram_1.json")["messages"]) == 2


async def test_the_timer_flushes_after_thirty_seconds(home: Home) -> None:
    async with home.manager() as manager:
        await say(manager, "hi")
        await home.clock.advance(29.9)
        assert manager.statistics().flushes == 0
        await home.clock.advance(0.2)
        await manager.flush()  # joins the one that is under way
        assert manager.statistics().flushes == 2
        assert home.files == ["telegram_1.json"]


# --- conflicts -------------------------------------------------------------------------------------------------------


async def refused(faulty: Faulty, manager: SessionManager) -> Session:
    """A session that has said something and of which the store refuses what comes next; it is well again by now."""
    session = await say(manager, "hi")
    faulty.faults.refuse("telegram_1")
    with pytest.raises(StoreConflict):
        await session.add_message(Message.user("refused"))
    faulty.faults.heal()
    return session


async def test_a_session_that_the_store_refuses_is_reloaded_and_goes_on(faulty: Faulty) -> None:
    async with faulty.manager() as manager:
        session = await refused(faulty, manager)
        with pytest.raises(StoreConflict):
            session.append(Message.user("refused too"))
        again = await manager.get_or_create("telegram", "1")
        assert again is not session
        assert texts(again) == ["hi"]
        await again.add_message(Message.user("on"))
        assert texts(await manager.get_or_create("telegram", "1")) == ["hi", "on"]
    async with faulty.manager() as manager:
        assert texts(await manager.get("telegram", "1")) == ["hi", "on"]


async def test_a_refused_session_that_cannot_be_reloaded_yet_can_still_be_deleted(faulty: Faulty) -> None:
    async with faulty.manager() as manager:
        await refused(faulty, manager)
        faulty.faults.fail(method="head")
        with pytest.raises(StoreUnavailable):
            await manager.get_or_create("telegram", "1")
        assert await manager.delete("telegram_1") is True
        assert await manager.list() == []


async def test_a_refused_session_that_was_replaced_never_becomes_dirty_again(faulty: Faulty) -> None:
    async with faulty.manager() as manager:
        session = await refused(faulty, manager)
        await manager.get_or_create("telegram", "1")
        await manager.flush()
        await faulty.clock.advance(2 * 3600)
        session.journal.checkpoint.touch()
        assert manager.statistics().dirty == 0


async def test_a_refused_and_reloaded_session_can_be_deleted(faulty: Faulty) -> None:
    async with faulty.manager() as manager:
        await refused(faulty, manager)
        await manager.get_or_create("telegram", "1")
        assert await manager.delete("telegram_1") is True


async def test_a_refused_session_that_is_reloaded_while_its_deletion_waits_is_deleted(faulty: Faulty) -> None:
    async with faulty.manager() as manager:
        session = await refused(faulty, manager)
        deleted: list[bool] = []

        async def delete() -> None:
            deleted.append(await manager.delete("telegram_1"))

        await session.journal.turn_lock.acquire()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(delete, name="delete")
            await anyio.wait_all_tasks_blocked()
            assert await manager.get_or_create("telegram", "1") is not session
            session.journal.turn_lock.release()
        assert deleted == [True]
        assert await manager.list() == []


async def test_a_refused_session_is_reloaded_once_before_its_deletion_and_holds_up_no_other(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with faulty.manager() as manager:
        session = await refused(faulty, manager)
        let_go, looked, head = anyio.Event(), list[str](), faulty.faults.head

        async def slow_head(session_id: str) -> StoredHead | None:
            if session_id == session.session_id:
                looked.append(session_id)
                await let_go.wait()
            return await head(session_id)

        monkeypatch.setattr(faulty.faults, "head", slow_head)
        got, deleted = set[Session](), list[bool]()

        async def get() -> None:
            got.add(await manager.get_or_create("telegram", "1"))

        async def delete() -> None:
            deleted.append(await manager.delete("telegram_1"))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(get, name="get")
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(delete, name="delete")
            await anyio.wait_all_tasks_blocked()
            await (await manager.find("telegram_1")).fork("telegram_2")  # while the other one's store is slow
            await say(manager, "hello", "3")
            assert (looked, got, deleted) == (["telegram_1"], set(), [])
            let_go.set()
        assert looked == ["telegram_1"]
        assert (len(got), deleted) == (1, [True])
        assert session not in got
        assert sorted(one.session_id for one in await manager.list()) == ["telegram_2", "telegram_3"]


async def test_a_deletion_waits_also_for_the_second_reload_where_the_first_one_fails(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with faulty.manager() as manager:
        await refused(faulty, manager)
        let_go, looks, head = [anyio.Event(), anyio.Event()], [0], faulty.faults.head

        async def slow_head(session_id: str) -> StoredHead | None:
            look = looks[0]
            looks[0] += 1
            await let_go[look].wait()
            if look == 0:
                raise StoreUnavailable("not now")
            return await head(session_id)

        monkeypatch.setattr(faulty.faults, "head", slow_head)
        outcomes: list[str] = []

        async def get() -> None:
            try:
                await manager.get_or_create("telegram", "1")
                outcomes.append("reloaded")
            except StoreUnavailable:
                outcomes.append("failed")

        async def delete() -> None:
            assert await manager.delete("telegram_1")
            outcomes.append("deleted")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(get, name="first")
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(get, name="second")
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(delete, name="delete")
            for event in let_go:
                await anyio.wait_all_tasks_blocked()
                event.set()
        assert outcomes == ["failed", "reloaded", "deleted"]
        assert await manager.list() == []


# --- numbers ---------------------------------------------------------------------------------------------------------


async def test_statistics_count_what_happened(faulty: Faulty) -> None:
    async with faulty.manager(window=2) as manager:
        for number in range(3):
            await say(manager, str(number))
        await manager.get_or_create("telegram", "2")
        await manager.flush()
        numbers = manager.statistics()
        assert (numbers.sessions, numbers.dirty, numbers.messages_in_memory) == (2, 0, 2)
        assert (numbers.appended, numbers.committed, numbers.commits, numbers.unsaved_entries) == (3, 3, 3, 0)
        assert (numbers.evicted_from_window, numbers.snapshots_written, numbers.flushes) == (1, 2, 1)
        assert (numbers.store, numbers.store_state) == ("FaultyStore", "ok")
        faulty.faults.fail()
        with pytest.raises(StoreUnavailable):
            await say(manager, "unsaved")
        numbers = manager.statistics()
        assert (numbers.store_state, numbers.commit_failures, numbers.unsaved_entries) == ("failing", 1, 1)
        assert numbers.unsaved_bytes > 0
        health = manager.health()
        assert not health.ok
        assert len(health.problems) == 1
        faulty.faults.heal()


async def test_progress_is_now_when_idle_and_stands_still_while_the_store_hangs(faulty: Faulty) -> None:
    async with faulty.manager() as manager:
        await faulty.clock.advance(100)
        assert manager.progressed_at == faulty.clock.monotonic()
        hold = faulty.faults.hold()
        (await manager.get_or_create("telegram", "1")).append(Message.user("hi"))
        began = faulty.clock.monotonic()
        await faulty.clock.advance(100)
        assert manager.progressed_at == began
        hold.release()
        await manager.flush()
        assert manager.progressed_at == faulty.clock.monotonic()


async def test_a_full_store_that_answers_is_progress(faulty: Faulty) -> None:
    async with faulty.manager() as manager:
        faulty.faults.fail(StoreFull("full"))
        (await manager.get_or_create("telegram", "1")).append(Message.user("hi"))
        await faulty.clock.advance(100)
        with pytest.raises(StoreFull):
            await manager.flush()
        assert manager.progressed_at == faulty.clock.monotonic()
        faulty.faults.heal()


async def test_progress_is_told_while_recovering_and_flushing(home: Home) -> None:
    async with home.manager() as manager:
        await say(manager, "hi")
    stages = []
    manager = SessionManager(
        home.workspace, store=home.store, clock=home.clock, on_progress=lambda progress: stages.append(progress.stage)
    )
    async with manager:
        await say(manager, "more")
    assert stages[0] == "recovering"
    assert "flushing" in stages


async def test_message_text_is_in_no_log(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    async with home.manager() as manager:
        session = await say(manager, "SECRET")
        session.update(title="SECRET")
    (home.workspace / "sessions" / "telegram_1.json").write_bytes(b'{"SECRET')
    async with home.manager() as manager:
        await say(manager, "SECRET")
        await manager.delete("telegram_1")
    assert "SECRET" not in capsys.readouterr().out


async def test_a_list_can_be_read_a_page_at_a_time(tmp_path: Path) -> None:
    async with SessionManager(tmp_path / "w", store="memory:") as manager:
        for chat_id in range(5):
            await manager.get_or_create("telegram", chat_id)
        everything = [summary.session_id for summary in await manager.list()]
        assert [one.session_id for one in await manager.list(limit=2)] == everything[:2]
        assert [one.session_id for one in await manager.list(limit=2, offset=2)] == everything[2:4]
        assert [one.session_id for one in await manager.list(offset=4)] == everything[4:]
        assert await manager.list(limit=0) == await manager.list(offset=9) == []


async def test_forks_under_way_count_for_the_limit(tmp_path: Path) -> None:
    async with SessionManager(tmp_path / "w", store="memory:", settings=SessionSettings(max_sessions=3)) as manager:
        session = await manager.get_or_create("telegram", 1)
        outcomes: list[str] = []

        async def fork() -> None:
            try:
                outcomes.append((await session.fork()).key.channel)
            except SessionLimit:
                outcomes.append("refused")

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(fork)
        assert sorted(outcomes) == ["refused"] * 8 + ["telegram"] * 2
        assert len(manager) == 3


async def test_the_most_recent_session_is_not_one_that_is_being_deleted(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with SessionManager(tmp_path / "w", store=store) as manager:
        with pytest.raises(SessionNotFound, match="no sessions yet"):
            await manager.continue_recent()
        await (await manager.get_or_create("t", "a")).add_message(Message.user("x"))
        newer = await manager.get_or_create("t", "b")
        await newer.add_message(Message.user("y"))
        hold = store.hold()
        newer.append(Message.user("z"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(manager.delete, "t_b")
            await hold.reached.wait()
            await checkpoint()
            assert (await manager.continue_recent()).session_id == "t_a"
            hold.release()


def test_another_kind_of_event_loop_is_told_what_is_needed(tmp_path: Path) -> None:
    """As trio steps a coroutine: without a loop of asyncio."""
    opening = SessionManager(tmp_path / "w").__aenter__()
    with pytest.raises(ConfigError, match="run on asyncio"):
        opening.send(None)
    assert not (tmp_path / "w").exists()
