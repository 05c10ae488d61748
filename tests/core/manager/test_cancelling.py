"""Whoever gives up leaves nothing half done behind: no acknowledged message lost, no key stuck, no lock kept."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.manager.registry import SessionRegistry
from miniclaw_sessions.core.persistence.archive import write_archived_file
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.errors import SessionExists
from miniclaw_sessions.files.transfer.importing import import_stream
from tests.sampled import sampled

pytestmark = pytest.mark.anyio

KEY = SessionKey.of("telegram", "1")


@pytest.fixture(params=sampled(["sqlite:", "jsonl:", "none:"], every=3))
def store(request: pytest.FixtureRequest) -> str:
    url: str = request.param
    return url


async def endless_file() -> AsyncIterator[bytes]:
    """The beginning of a file, of which the rest never comes."""
    yield b'{"type": "session", "version": 1, "id": "elsewhere", "session_id": "telegram_1"}\n'
    for number in range(3_000):
        entry = {"type": "message", "id": f"e{number}", "parent_id": f"e{number - 1}" if number else None}
        yield (
            json.dumps({**entry, "message": {"role": "user", "content": f"imported {number} " + "x" * 200}}).encode()
            + b"\n"
        )
    await anyio.sleep_forever()


async def until_begun(manager: SessionManager, store: str, making: asyncio.Task[None]) -> None:
    """Return when something of the import is in the store."""
    while KEY.session_id not in manager._registry._reserved:
        assert not making.done(), making.exception()
        await checkpoint()
    while store != "none:" and await manager._store.head(KEY.session_id) is None:
        await checkpoint()


@pytest.mark.parametrize("times", sampled([2, 1], every=2))
@pytest.mark.parametrize("work", ["import", "fork"])
async def test_a_cancelled_import_or_fork_deletes_nothing_that_is_acknowledged_afterwards(
    tmp_path: Path, store: str, work: str, times: int
) -> None:
    async with SessionManager(tmp_path, store=store) as manager:
        source = await manager.get_or_create("telegram", "source")
        for number in range(3):
            await source.add_message(Message.user(str(number)))

        async def make() -> None:
            if work == "import":
                await import_stream(manager, endless_file(), name="1", key=KEY)
            else:
                async with manager._registry.new_journal(KEY, purpose="fork") as fork:
                    fork.append(Message.user("half a fork"))
                    await fork.saved()
                    await anyio.sleep_forever()

        making = asyncio.create_task(make())
        await until_begun(manager, store, making)
        async with manager._saving.flusher.lock:  # as a check or a flush holds it
            for _ in range(times):
                making.cancel()
                for _ in range(20):
                    await checkpoint()
            with pytest.raises(SessionExists):
                async with manager._registry.new_journal(KEY, purpose="import"):
                    pass
            coming_back = asyncio.create_task(manager.get_or_create("telegram", "1"))
            for _ in range(20):
                await checkpoint()
        with pytest.raises(asyncio.CancelledError):
            await making
        session = await coming_back
        assert session.messages() == []
        for number in range(4):
            await session.add_message(Message.user(f"after {number}"))
        await manager.flush()
        assert (await manager.check()).problems == []
    async with SessionManager(tmp_path, store=store) as manager:
        messages = await manager.get_session_history("telegram", "1")
        assert [message.text for message in messages] == [f"after {number}" for number in range(4)]


@pytest.mark.parametrize("step", sampled(range(0, 60, 3), every=4))
async def test_cancelling_the_opening_lets_the_directory_go(tmp_path: Path, store: str, step: int) -> None:
    async def open_and_close() -> None:
        async with SessionManager(tmp_path, store=store):
            pass

    opening = asyncio.create_task(open_and_close())
    for _ in range(step):
        await checkpoint()
    opening.cancel()
    with suppress(asyncio.CancelledError):
        await opening
    async with SessionManager(tmp_path, store=store) as again:
        await (await again.get_or_create("telegram", "1")).add_message(Message.user("hello"))
        assert (await again.check()).problems == []


@pytest.mark.parametrize("store", ["none:", "sqlite:"])
async def test_cancelling_the_opening_when_it_has_just_succeeded_closes_it(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = SessionRegistry.remove_unfinished  # the last step of opening

    async def open_and_be_cancelled(registry: SessionRegistry) -> None:
        await opened(registry)
        opening.cancel()

    monkeypatch.setattr(SessionRegistry, "remove_unfinished", open_and_be_cancelled)
    manager = SessionManager(tmp_path, store=store)
    opening = asyncio.create_task(manager.__aenter__())
    with anyio.fail_after(60), pytest.raises(asyncio.CancelledError):
        await opening
    monkeypatch.undo()
    async with SessionManager(tmp_path, store=store) as again:
        await (await again.get_or_create("telegram", "1")).add_message(Message.user("hello"))


async def test_what_is_still_written_of_an_archive_that_is_cut_off_goes_into_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()  # a disk that hangs until it is read
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"-" * 4096)
    os.set_blocking(writer, True)
    monkeypatch.setattr(Directory, "open_temporary", lambda _: ("temporary", writer))
    other = tmp_path / "other"

    async def pieces() -> AsyncIterator[bytes]:
        yield b"head\n"
        yield b"x" * 300_000

    async def write() -> None:
        await write_archived_file(tmp_path / "archive", "name", pieces())

    def go_on() -> None:
        while os.read(reader, 65_536):
            pass
        os.close(reader)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await anyio.wait_all_tasks_blocked()
            number = os.open(other, os.O_CREAT | os.O_WRONLY)
            await anyio.to_thread.run_sync(go_on)
    os.close(number)
    assert number != writer
    assert other.read_bytes() == b""
