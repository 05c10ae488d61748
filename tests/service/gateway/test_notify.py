"""Talking to a service manager, over a real datagram socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import StoreFull
from miniclaw_sessions.service.gateway.daemon import STEP_DEADLINE_S
from miniclaw_sessions.service.gateway.notify import EXTENSION_S, Notifier, watchdog
from miniclaw_sessions.testing import FakeClock
from miniclaw_sessions.testing.faults import FaultyStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def manager_socket(short_path: Path) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as receiver:
        receiver.bind(str(short_path / "notify"))
        receiver.settimeout(0)
        yield receiver


def received(receiver: socket.socket) -> list[str]:
    messages = []
    while True:
        try:
            messages.append(receiver.recv(4096).decode())
        except BlockingIOError:
            return messages


def test_assignments_arrive_in_one_datagram(manager_socket: socket.socket) -> None:
    with closing(Notifier(manager_socket.getsockname())) as notifier:
        notifier.send("READY=1", "STATUS=listening on é")
    assert received(manager_socket) == ["READY=1\nSTATUS=listening on é"]


def test_a_status_cannot_forge_a_second_assignment(manager_socket: socket.socket) -> None:
    with closing(Notifier(manager_socket.getsockname())) as notifier:
        notifier.send("STATUS=failed\nWATCHDOG=trigger")
    assert received(manager_socket) == ["STATUS=failed WATCHDOG=trigger"]


def test_an_abstract_address_begins_with_an_at_sign() -> None:
    name = f"miniclaw-test-{os.getpid()}"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as receiver:
        receiver.bind(f"\0{name}")
        receiver.settimeout(0)
        with closing(Notifier(f"@{name}")) as notifier:
            notifier.send("READY=1")
        assert received(receiver) == ["READY=1"]


def test_without_a_service_manager_nothing_happens() -> None:
    notifier = Notifier.from_environment({})
    notifier.send("READY=1")
    notifier.progress("recovering 1/2")
    notifier.close()


def test_a_service_manager_that_is_gone_is_not_an_error(short_path: Path) -> None:
    with closing(Notifier(str(short_path / "gone"))) as notifier, capture_logs() as logs:
        notifier.send("READY=1")
    assert [log["action"] for log in logs] == ["notify.failed"]


def test_the_socket_is_not_inherited_by_children(manager_socket: socket.socket) -> None:
    with closing(Notifier(manager_socket.getsockname())) as notifier:
        assert notifier._socket is not None
        assert not notifier._socket.get_inheritable()


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({"WATCHDOG_USEC": "²"}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_watchdog_counts_only_if_it_means_this_process(environ: dict[str, str], seconds: float) -> None:
    with closing(Notifier.from_environment({"NOTIFY_SOCKET": "/nowhere", **environ})) as notifier:
        assert notifier.watchdog_s == seconds
    assert Notifier.from_environment(environ).watchdog_s == 0.0


def test_progress_buys_time_but_not_more_often_than_once_a_second(manager_socket: socket.socket) -> None:
    with closing(Notifier(manager_socket.getsockname())) as notifier:
        for done in range(100):
            notifier.progress(f"flushing {done}/100")
    extension = f"EXTEND_TIMEOUT_USEC={int(EXTENSION_S * 1e6)}"
    assert received(manager_socket) == [f"{extension}\nSTATUS=flushing 0/100"]


async def test_pings_come_while_saving_is_alive_and_end_when_it_hangs(manager_socket: socket.socket) -> None:
    silences = iter([0.0, 59.9, 60.1, 500.0])
    ended = anyio.Event()

    def silence() -> float:
        try:
            return next(silences)
        except StopIteration:
            ended.set()
            return 1000.0

    with closing(Notifier(manager_socket.getsockname(), watchdog_s=0.003)) as notifier, capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: watchdog(notifier, silence, deadline_s=60.0))
            await ended.wait()
            tasks.cancel_scope.cancel()
    assert received(manager_socket) == [
        "WATCHDOG=1",
        "WATCHDOG=1",
        "STATUS=saving has hung; waiting to be restarted",
    ]
    assert [log["action"] for log in logs] == ["watchdog.silent"]


async def test_a_store_that_hangs_is_silence_and_a_full_disk_is_not(short_path: Path) -> None:
    clock, store = FakeClock(), FaultyStore(MemoryStore())

    def is_alive() -> bool:
        return clock.monotonic() - manager.progressed_at <= STEP_DEADLINE_S

    async with (
        SessionManager(short_path / "w", store=store, clock=clock) as manager,
        anyio.create_task_group() as tasks,
    ):
        session = await manager.get_or_create("a", "1")
        assert is_alive()

        store.fail(StoreFull("no space left"))
        with pytest.raises(StoreFull):
            await session.add_message(Message.user("1"))
        for _ in range(10):
            await clock.advance(STEP_DEADLINE_S)
            with pytest.raises(StoreFull):
                await manager.flush()  # waits for the one that began meanwhile: in its thread time is real
            assert is_alive()
        assert not manager.health().ok
        store.heal()
        await manager.flush()
        assert manager.health().ok

        hold = store.hold()
        tasks.start_soon(session.add_message, Message.user("2"))
        await anyio.wait_all_tasks_blocked()
        await clock.advance(STEP_DEADLINE_S - 1)
        assert is_alive()
        await clock.advance(2)
        assert not is_alive()
        hold.release()
        await session.saved()
        assert is_alive()
