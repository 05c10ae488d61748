"""Starting and stopping ask the service manager for more time, but only when something advanced (rules R26, R27)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.disk import Directory
from miniclaw_sessions.service.gateway import notify
from miniclaw_sessions.service.gateway.daemon import Phase
from miniclaw_sessions.service.gateway.notify import Notifier
from tests.service.gateway.daemons import Here

pytestmark = pytest.mark.anyio


@pytest.fixture
def service_manager(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.setattr(notify, "_PROGRESS_EVERY_S", 0.0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(short_path / "n"))
        receiver.setblocking(False)  # noqa: FBT003 - its only argument
        yield receiver


def asked(receiver: socket.socket) -> list[str]:
    """The statuses with which more time was asked for, since the last call."""
    statuses: list[str] = []
    while True:
        try:
            lines = receiver.recv(4096).decode().splitlines()
        except BlockingIOError:
            return statuses
        if any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in lines):
            statuses += [line for line in lines if line.startswith("STATUS=")]


async def test_recovery_and_the_final_flush_ask_and_a_periodic_flush_does_not(
    short_path: Path, service_manager: socket.socket
) -> None:
    async with SessionManager(short_path / "w") as manager:
        await manager.get_or_create("a", "1")
    with closing(Notifier(service_manager.getsockname())) as notifier:
        phase = Phase(notifier)
        async with SessionManager(short_path / "w", on_progress=phase.progress) as manager:
            assert asked(service_manager)[0] == "STATUS=recovering 1/1"
            phase.ready([])
            session = await manager.get_or_create("a", "2")
            await manager.flush()
            assert asked(service_manager) == []
            phase.stopping()
            await session.add_message(Message.user("x"))
        assert asked(service_manager) == ["STATUS=flushing 1/1"]


async def test_a_flush_that_hangs_does_not_ask(
    short_path: Path, service_manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, go = anyio.Event(), anyio.Event()

    with closing(Notifier(service_manager.getsockname())) as notifier:
        phase = Phase(notifier)
        async with SessionManager(short_path / "w", on_progress=phase.progress) as manager:
            await manager.get_or_create("a", "1")
            asked(service_manager)
            real = Directory.replace

            def replace(self: Directory, files: object, **times: object) -> object:
                anyio.from_thread.run_sync(hanging.set)
                anyio.from_thread.run(go.wait)
                return real(self, files, **times)  # type: ignore[arg-type]

            monkeypatch.setattr(Directory, "replace", replace)
            phase.stopping()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(manager.flush)
                await hanging.wait()
                assert asked(service_manager) == []
                go.set()
            assert asked(service_manager) == ["STATUS=flushing 1/1"]


async def test_the_daemon_asks_while_it_recovers(short_path: Path) -> None:
    async with SessionManager(short_path / "w") as manager:
        await manager.get_or_create("a", "1")
    async with Here(short_path) as daemon:
        assert "STATUS=recovering 1/1" in await daemon.notice("EXTEND_TIMEOUT_USEC=")
        await daemon.notice("READY=1")
        assert await daemon.stopped() == 0
