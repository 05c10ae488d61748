"""A disk that refuses: a clear error, reading goes on, health tells, and later all is saved (rule R7)."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from miniclaw_sessions import Message, SessionManager, SessionSettings
from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.persistence.committer import FIRST_RETRY_S, LAST_RETRY_S
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import StoreFull, StoreUnavailable
from miniclaw_sessions.testing import FakeClock, FaultyStore

pytestmark = pytest.mark.anyio

SETTINGS = SessionSettings(store="jsonl:", flush_interval_s=86_400.0, sweep_interval_s=86_400.0)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
FULL = {errno.ENOSPC, errno.EDQUOT}
REFUSALS = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.EIO]


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Every file that is opened to be written, and everything that is written, fails with this error."""
    real_open = os.open

    def open_to_read(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & WRITING:
            raise OSError(number, os.strerror(number))
        return real_open(path, flags, *arguments, **options)

    def write(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", open_to_read)
    monkeypatch.setattr(os, "write", write)


@pytest.mark.parametrize("number", REFUSALS, ids=errno.errorcode.get)
async def test_messages_are_refused_reading_goes_on_and_it_heals_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    clock = FakeClock()
    async with SessionManager(tmp_path / "w", settings=SETTINGS, clock=clock) as manager:
        session = await manager.get_or_create("a", "1")
        await session.add_message(Message.user("before"))
        with monkeypatch.context() as patch:
            refuse(patch, number)
            with pytest.raises(StoreUnavailable) as refusal:
                await session.add_message(Message.user("accepted"))
            assert isinstance(refusal.value, StoreFull) == (number in FULL)
            with pytest.raises(StoreUnavailable, match="cannot append"):
                await session.add_message(Message.user("refused at once"))
            assert not manager.health().ok
            transcript = [entry async for entry in read_transcript(manager, "a_1")]
            assert len(transcript) == 2
        with pytest.raises(StoreUnavailable):
            await session.add_message(Message.user("refused until it is tried again"))
        await clock.advance(LAST_RETRY_S)
        with anyio.fail_after(60):
            while not manager.health().ok:
                await clock.advance(0)
        await session.saved()
        await session.add_message(Message.user("after"))
        assert (await manager.check()).sound
    async with SessionManager(tmp_path / "w", settings=SETTINGS, clock=clock) as manager:
        texts = [message.text for message in (await manager.get("a", "1")).messages()]
        assert texts == ["before", "accepted", "after"]


@pytest.mark.parametrize("call", ["add_message", "saved"])
async def test_a_caller_who_tries_again_without_a_pause_does_not_keep_the_store_from_coming_back(
    tmp_path: Path, call: str
) -> None:
    clock, store = FakeClock(), FaultyStore(MemoryStore())

    async def pass_time() -> None:
        while True:
            await clock.advance(1)

    async with SessionManager(tmp_path / "w", store=store, clock=clock) as manager, anyio.create_task_group() as tasks:
        session = await manager.get_or_create("a", "1")
        store.fail_next(3)
        tasks.start_soon(pass_time)
        refused = 0
        while True:
            try:
                if call == "add_message" or refused == 0:
                    await session.add_message(Message.user("x"), idempotency_key="x")
                await session.saved()
                break
            except StoreUnavailable:
                refused += 1
        assert refused > 0
        tasks.cancel_scope.cancel()
    assert [message.text for message in session.messages()] == ["x"]


class HalvingClock(FakeClock):
    """Its jitter is half of what it is given."""

    def jitter(self, seconds: float) -> float:
        return seconds / 2


async def test_retries_are_spread_so_that_many_processes_do_not_come_at_once(tmp_path: Path) -> None:
    clock, store = HalvingClock(), FaultyStore(MemoryStore())
    async with SessionManager(tmp_path / "w", store=store, clock=clock) as manager:
        session = await manager.get_or_create("a", "1")
        store.fail(StoreUnavailable("gone"))
        with pytest.raises(StoreUnavailable):
            await session.add_message(Message.user("x"))
        failures = manager.statistics().commit_failures
        await clock.advance(FIRST_RETRY_S * 0.49)
        assert manager.statistics().commit_failures == failures
        await clock.advance(FIRST_RETRY_S * 0.02)
        assert manager.statistics().commit_failures == failures + 1
        store.heal()


def test_the_machines_jitter_is_between_half_and_the_whole() -> None:
    drawn = {SystemClock().jitter(8.0) for _ in range(200)}
    assert min(drawn) >= 4.0
    assert max(drawn) <= 8.0
    assert len(drawn) > 100
