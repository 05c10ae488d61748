"""A stop signal during a long recovery ends it, and the next start finds everything as it was (rule R26)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.core.persistence.recovery import Progress
from miniclaw_sessions.service.gateway.signals import Signals

pytestmark = pytest.mark.anyio

SESSIONS = 40


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """The daemon ignores signals when it has saved everything; the tests go on."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def files_in(workspace: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (workspace / "sessions").iterdir()}


async def test_recovery_is_left_and_changes_nothing(tmp_path: Path) -> None:
    async with SessionManager(tmp_path / "w", store="jsonl:") as manager:
        for number in range(SESSIONS):
            await (await manager.get_or_create("a", number)).add_message(Message.user(str(number)))
    before = files_in(tmp_path / "w")
    stages: list[str] = []
    ready = False

    def on_progress(progress: Progress) -> None:
        stages.append(progress.stage)
        if len(stages) == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with Signals() as signals, anyio.fail_after(60):
        with signals.interrupting() as opening:
            async with SessionManager(tmp_path / "w", store="jsonl:", on_progress=on_progress):
                signals.shield()
                ready = True
        assert signals.stop.is_set()
    assert opening.cancelled_caught
    assert not ready
    assert stages[0] == "recovering"
    assert files_in(tmp_path / "w") == before
    async with SessionManager(tmp_path / "w", store="jsonl:") as manager:
        assert len(manager) == SESSIONS
        assert (await manager.check()).sound


async def test_a_signal_that_comes_before_recovery_is_remembered() -> None:
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        await signals.stop.wait()
        with signals.interrupting() as opening:
            await anyio.sleep_forever()
        assert opening.cancelled_caught


async def test_once_it_is_ready_a_signal_is_only_an_event() -> None:
    with Signals() as signals, signals.interrupting() as opening:
        signals.shield()
        os.kill(os.getpid(), signal.SIGTERM)
        await signals.stop.wait()
        await anyio.lowlevel.checkpoint()
    assert not opening.cancel_called


async def test_a_signal_that_comes_when_everything_is_saved_does_not_change_the_exit_status() -> None:
    with Signals():
        pass
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        assert signal.getsignal(number) is signal.SIG_IGN
