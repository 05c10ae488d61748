"""Many sessions, few of them in memory: each comes back whole, and there is never a second live object for a key."""

from __future__ import annotations

import gc
import os
import shutil
import weakref
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager, local
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.persistence.snapshots import Snapshots
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.stores.base import StoredHead
from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.errors import SchemaTooNew, SessionLimit, SessionNotFound, SnapshotUnreadable, StoreFull
from miniclaw_sessions.testing import FakeClock
from tests.sampled import sampled

pytestmark = pytest.mark.anyio


class Home:
    """A workspace whose manager keeps three sessions in memory."""

    def __init__(self, workspace: Path, store: str) -> None:
        self.workspace = workspace
        self.store = store
        self.clock = FakeClock()

    def manager(self, **settings: Any) -> SessionManager:
        settings = {"max_cached": 3, "store": self.store, **settings}
        return SessionManager(self.workspace, settings=SessionSettings(**settings), clock=self.clock)

    async def fill(self, manager: SessionManager, count: int) -> None:
        """So many sessions with one message each, a minute apart, all of them saved."""
        for number in range(count):
            await said(manager, number)
            await self.clock.advance(60)
        await manager.flush()

    @property
    def file(self) -> Path:
        return self.workspace / "sessions" / "chat_0.json"


@pytest.fixture(params=sampled(["sqlite:", "jsonl:", "none:"], every=3))
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    return Home(tmp_path / "workspace", request.param)


@pytest.fixture
def stored(tmp_path: Path) -> Home:
    return Home(tmp_path / "workspace", "sqlite:")


async def said(manager: SessionManager, number: int, text: str = "first") -> None:
    """Say something to a chat without keeping its session."""
    await (await manager.get_or_create("chat", number)).add_message(Message.user(f"{text} {number}"))


async def texts(manager: SessionManager, number: int) -> list[str]:
    return [message.text for message in (await manager.get("chat", number)).messages()]


# --- in memory and out of it -----------------------------------------------------------------------------------------


async def test_no_more_sessions_stay_in_memory_than_may_and_each_comes_back_whole(home: Home) -> None:
    async with home.manager() as manager:
        await home.fill(manager, 10)
        assert (len(manager), manager.statistics().cached) == (10, 3)
        for number in range(10):
            await said(manager, number, "second")
        await manager.flush()
        assert manager.statistics().cached == 3
        for number in range(10):
            assert await texts(manager, number) == [f"first {number}", f"second {number}"]
        assert manager.statistics().cache_loads >= 14
    async with home.manager() as manager:
        assert (len(manager), manager.statistics().cached) == (10, 0)
        for number in range(10):
            assert await texts(manager, number) == [f"first {number}", f"second {number}"]
        assert (await manager.check()).sound


async def test_what_was_let_go_leaves_the_memory_at_once(stored: Home) -> None:
    async with stored.manager() as manager:
        await stored.fill(manager, 3)
        gc.disable()  # nobody needs to look for it
        try:
            gone = weakref.ref(await manager.get("chat", 0))
            for number in range(1, 6):
                await said(manager, number)
            await manager.flush()
            assert gone() is None
        finally:
            gc.enable()


async def test_the_ones_used_last_stay(stored: Home) -> None:
    async with stored.manager() as manager:
        await stored.fill(manager, 3)
        kept = weakref.ref((await manager.get("chat", 0)).journal)
        await stored.fill(manager, 1)
        await said(manager, 7)
        await manager.flush()
        assert kept() is (await manager.get("chat", 0)).journal


async def test_a_session_that_somebody_holds_is_the_same_object_when_it_is_asked_for_again(home: Home) -> None:
    async with home.manager() as manager:
        held = await manager.get_or_create("chat", "held")
        await held.add_message(Message.user("one"))
        await home.fill(manager, 8)
        assert manager.statistics().cache_evictions >= 6
        await held.add_message(Message.user("two"))  # nobody knows that it was let go
        await home.fill(manager, 8)
        assert await manager.get_or_create("chat", "held") is held
        assert [message.text for message in held.messages()] == ["one", "two"]
    async with home.manager() as manager:
        assert [message.text for message in (await manager.get("chat", "held")).messages()] == ["one", "two"]


async def test_an_open_turn_survives_that_its_session_was_let_go(stored: Home) -> None:
    async with stored.manager() as manager:
        session = await manager.get_or_create("chat", "turn")
        async with session.turn(Message.user("question")) as turn:
            del session
            await manager.flush()
            await stored.fill(manager, 8)
            turn.append(Message.assistant("answer"))
        again = await manager.get("chat", "turn")
        assert [message.text for message in again.messages()] == ["question", "answer"]


async def test_however_many_ask_for_a_sleeping_session_get_one_object_that_was_loaded_once(home: Home) -> None:
    async with home.manager() as manager:
        await home.fill(manager, 8)
    async with home.manager() as manager:
        found: list[Session] = []

        async def ask(by: str) -> None:
            found.append(await (manager.get if by == "get" else manager.get_or_create)("chat", 5))

        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(ask, "get" if number % 2 else "create")
        assert all(session is found[0] for session in found)
        assert manager.statistics().cache_loads == 1


async def test_what_is_dirty_stays_until_it_is_saved_and_a_flush_comes_early(stored: Home) -> None:
    async with stored.manager(flush_interval_s=3600) as manager:
        for number in range(4):
            await said(manager, number)
        while manager.statistics().flushes == 0:
            await anyio.wait_all_tasks_blocked()
        assert manager.statistics().cached == 3


async def test_where_nothing_can_be_saved_the_memory_has_a_bound(stored: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stored.manager() as manager:
        await stored.fill(manager, 5)
        checkpoints = manager._storage.checkpoints
        assert isinstance(checkpoints, Snapshots)
        monkeypatch.setattr(checkpoints._directory, "replace", _fail_with_no_space)
        with pytest.raises(StoreFull, match="no more sessions can be in memory"):
            await say_to_all(manager, 20, "unsaved")
        assert manager.statistics().cached <= 7
        monkeypatch.undo()
        await said(manager, 19)
        assert await texts(manager, 0) == ["first 0", "unsaved 0"]


async def say_to_all(manager: SessionManager, count: int, text: str) -> None:
    for number in range(count):
        await said(manager, number, text)


def _fail_with_no_space(files: list[Any], **_: object) -> list[OSError]:
    return [OSError(28, "No space left on device") for _ in files]


async def test_sleeping_sessions_count_as_sessions(stored: Home) -> None:
    async with stored.manager(max_sessions=5) as manager:
        await stored.fill(manager, 5)
        with pytest.raises(SessionLimit):
            await manager.get_or_create("chat", "sixth")
        assert await manager.delete("chat_0")  # it sleeps
        await manager.get_or_create("chat", "sixth")
        with pytest.raises(SessionNotFound):
            await manager.get("chat", 0)


async def test_a_sleeping_session_is_forked_and_exported_like_any_other(stored: Home) -> None:
    async with stored.manager() as manager:
        await stored.fill(manager, 8)
        fork = await (await manager.find("chat_0")).fork("chat_fork")
        assert [message.text for message in fork.messages()] == ["first 0"]
        assert len([entry async for entry in read_transcript(manager, "chat_1")]) == 1


@pytest.mark.parametrize("max_cached", [1000, 3])
async def test_a_list_loads_sleeping_sessions_together(
    stored: Home, monkeypatch: pytest.MonkeyPatch, max_cached: int
) -> None:
    async with stored.manager() as manager:
        await stored.fill(manager, 20)
    questions = list[int]()
    versions = SQLiteStore.versions

    async def noted(store: SQLiteStore, session_ids: Collection[str]) -> Mapping[str, StoredHead]:
        questions.append(len(session_ids))
        return await versions(store, session_ids)

    monkeypatch.setattr(SQLiteStore, "versions", noted)
    async with stored.manager(max_cached=max_cached) as manager:
        questions.clear()
        assert len(await manager.list()) == 20
        assert questions == [20]
        assert manager.statistics().cache_loads == 20


async def test_one_session_that_cannot_be_loaded_hides_no_other_one(stored: Home) -> None:
    async with stored.manager() as manager:
        await stored.fill(manager, 6)
        fields = {**orjson.loads(stored.file.read_bytes()), "schema_version": 99}
    del fields["crc32"]
    stored.file.write_bytes(orjson.dumps(fields))
    async with stored.manager() as manager:
        with pytest.raises(SchemaTooNew):
            await manager.list()
        assert await texts(manager, 1) == ["first 1"]


# --- in order --------------------------------------------------------------------------------------------------------


async def test_lists_hold_sleeping_sessions_in_the_order_of_their_last_use(home: Home) -> None:
    async with home.manager() as manager:
        await home.fill(manager, 10)
        await home.clock.advance(60)
        await said(manager, 4)
        await manager.flush()
        expected = [f"chat_{number}" for number in (4, 9, 8, 7, 6, 5, 3, 2, 1, 0)]
        assert [one.session_id for one in await manager.list()] == expected
        assert [one.session_id for one in await manager.list(limit=3, offset=2)] == expected[2:5]
        assert manager.statistics().cached == 3
        assert (await manager.continue_recent()).session_id == "chat_4"
        assert (await manager.list(channel="other")) == []
        with pytest.raises(SessionNotFound):
            await manager.continue_recent(channel="other")


async def test_after_a_start_the_times_of_the_files_tell_the_order(home: Home) -> None:
    async with home.manager() as manager:
        await home.fill(manager, 6)
    for number in range(6):
        touch(home.workspace / "sessions" / f"chat_{number}.json", at=home.clock.now().timestamp() - 1000 * number)
    async with home.manager() as manager:
        assert [one.session_id for one in await manager.list(limit=2)] == ["chat_0", "chat_1"]
        assert (await manager.continue_recent()).session_id == "chat_0"


def touch(path: Path, *, at: float) -> None:
    os.utime(path, (at, at))


# --- starting with more than may be in memory ------------------------------------------------------------------------


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_two_lists_at_once_after_a_start_have_the_order_of_the_last_use(
    stored: Home, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    async with stored.manager() as manager:
        await stored.fill(manager, 9)
    newest_first = [f"chat_{number}" for number in range(9)]
    for number in range(9):
        touch(stored.workspace / "sessions" / f"chat_{number}.json", at=stored.clock.now().timestamp() - 1000 * number)
    monkeypatch.setattr(local, "LEARNED_AT_ONCE", 1)
    lists = list[list[str]]()
    async with stored.manager() as manager:

        async def look() -> None:
            lists.append([row.session_id for row in await manager.list()])

        async with anyio.create_task_group() as tasks:
            first = anyio.CancelScope()
            learn_times = manager._cache.learn_times

            def learn(times: Iterable[tuple[str, float]]) -> None:
                learn_times(times)
                monkeypatch.setattr(manager._cache, "learn_times", learn_times)
                tasks.start_soon(look)  # while the first list has looked at one file of the nine
                if is_cancelled:
                    first.cancel()

            monkeypatch.setattr(manager._cache, "learn_times", learn)
            with first:
                await look()
        assert lists == [newest_first] * (1 if is_cancelled else 2)


async def test_after_a_crash_each_session_is_brought_up_when_it_is_loaded(stored: Home, tmp_path: Path) -> None:
    async with stored.manager() as manager:
        await stored.fill(manager, 6)
        for number in range(6):
            await said(manager, number, "second")
        await said(manager, 99)
        shutil.copytree(stored.workspace, tmp_path / "crashed")
    stored.workspace = tmp_path / "crashed"
    async with stored.manager() as manager:
        assert len(manager) == 7
        for number in range(6):
            assert await texts(manager, number) == [f"first {number}", f"second {number}"]
        assert await texts(manager, 99) == ["first 99"]
        await manager.flush()
        assert (await manager.check()).sound


async def test_a_damaged_file_is_found_when_it_is_loaded_and_rebuilt(stored: Home) -> None:
    async with stored.manager() as manager:
        await stored.fill(manager, 6)
    stored.file.write_bytes(b'{"session_id": "chat_0", "mess')
    async with stored.manager() as manager:
        assert manager.statistics().quarantined == 0
        assert await texts(manager, 0) == ["first 0"]
        assert manager.statistics().quarantined == 1
        assert len(list((stored.workspace / "quarantine").iterdir())) == 2  # the file and its reason
        assert await texts(manager, 1) == ["first 1"]


async def test_a_file_that_a_newer_version_wrote_concerns_its_own_session_only(stored: Home) -> None:
    async with stored.manager() as manager:
        await stored.fill(manager, 6)
    fields = {**orjson.loads(stored.file.read_bytes()), "schema_version": 99}
    del fields["crc32"]
    newer = orjson.dumps(fields)
    stored.file.write_bytes(newer)
    async with stored.manager() as manager:
        for _ in range(2):
            with pytest.raises(Exception, match="schema_version 99"):
                await manager.get("chat", 0)
        assert await texts(manager, 1) == ["first 1"]
    assert stored.file.read_bytes() == newer


async def test_an_unreadable_file_is_no_missing_session(stored: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stored.manager() as manager:
        await stored.fill(manager, 6)
    async with stored.manager() as manager:
        with monkeypatch.context() as patched:
            patched.setattr(Directory, "open_file", _fail_to_open)
            with pytest.raises(SnapshotUnreadable, match="chat_0"):
                await manager.get_or_create("chat", 0)
        assert await texts(manager, 0) == ["first 0"]


def _fail_to_open(directory: Directory, name: str) -> int:
    raise OSError(5, "Input/output error", f"{directory.path}/{name}")


async def test_when_the_store_is_lost_the_start_gives_it_what_the_files_have(stored: Home) -> None:
    async with stored.manager() as manager:
        await stored.fill(manager, 6)
    for file in stored.workspace.glob("sessions.db*"):
        file.unlink()
    async with stored.manager() as manager:
        assert (len(manager), manager.recovery.written_back, manager.statistics().cached) == (6, 6, 0)
        for number in range(6):
            assert await texts(manager, number) == [f"first {number}"]
        await manager.flush()
        assert (await manager.check()).sound


async def test_files_of_another_program_get_their_names_at_the_start(stored: Home) -> None:
    async with stored.manager() as manager:
        await stored.fill(manager, 6)
    raw = b'{"session_id":"a_b_c","channel":"a_b","chat_id":"c","created_at":"2026-01-01T00:00:00Z",'
    raw += b'"last_accessed":"2026-01-01T00:00:00Z","messages":[]}'
    (stored.workspace / "sessions" / "a_b_c.json").write_bytes(raw)
    async with stored.manager() as manager:
        assert (await manager.get("a_b", "c")).session_id == "a%5Fb_c"
        assert len(manager) == 7


async def test_half_a_fork_that_sleeps_is_no_session(stored: Home, tmp_path: Path) -> None:
    async with stored.manager() as manager:
        await stored.fill(manager, 6)
        key = (await manager.get("chat", 0)).key._replace(chat_id="half")
        async with manager._registry.new_journal(key, purpose="fork") as half:
            half.append(Message.user("half"))
            await half.saved()
            await manager.flush()
            shutil.copytree(stored.workspace, tmp_path / "crashed")
    stored.workspace = tmp_path / "crashed"
    async with stored.manager() as manager:
        with pytest.raises(SessionNotFound):
            await manager.get("chat", "half")
        assert len(manager) == 6
        assert (await manager.get_or_create("chat", "half")).messages() == []


# --- time ------------------------------------------------------------------------------------------------------------


async def test_sleeping_sessions_expire_too(home: Home) -> None:
    async with home.manager(ttl_days=2, archive_expired=False, sweep_interval_s=1e8, flush_interval_s=3600) as manager:
        await home.fill(manager, 6)
        await home.clock.advance(86_400)
        await said(manager, 1)
        await home.clock.advance(86_400 + 3600)
        assert (await manager.sweep()).expired == 5
        assert len(manager) == 1
        assert await texts(manager, 1) == ["first 1", "first 1"]


async def test_expiry_is_put_off_when_all_that_sleeps_is_old_at_the_start(home: Home) -> None:
    async with home.manager() as manager:
        await home.fill(manager, 6)
    at = (home.clock.now() - timedelta(days=40)).timestamp()
    for file in (home.workspace / "sessions").iterdir():
        touch(file, at=at)
    async with home.manager() as manager:
        assert (await manager.sweep()).postponed is not None
        assert len(manager) == 6
