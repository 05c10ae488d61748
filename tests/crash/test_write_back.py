"""A disk that takes what is written and fails when it is to be synced: nothing is acknowledged that is not safe.

No fault is injected: the image of the file system really has no space for what the kernel writes back. The page cache
goes on showing what is lost, and on XFS a second sync would report success (reliability.md, 1.6).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import StoreUnavailable
from tests.crash.account import Account
from tests.crash.filesystem import KINDS, FailingFilesystem, MountSpace, reason_not_to_mount

pytestmark = [pytest.mark.root, pytest.mark.anyio]

DURABLE = ("sqlite:", "jsonl:")
HEALS_BY_ITSELF = "xfs"
"""ext4 ends its log after such a failure, and is read-only until it is mounted again."""

HEALED_WITHIN_S = 11.0
LARGE = 20_000


@pytest.fixture
def failing(space: MountSpace, request: pytest.FixtureRequest) -> Iterator[FailingFilesystem]:
    reason = reason_not_to_mount(request.param)
    if reason is not None:
        pytest.skip(f"TIER C (power cuts and full disks): {reason}")
    with FailingFilesystem(space, request.param) as filesystem:
        yield filesystem


@contextlib.asynccontextmanager
async def opened(workspace: Path, store: str) -> AsyncIterator[SessionManager]:
    """A manager that is closed in the end, whatever it can still save."""
    manager = SessionManager(workspace, settings=SessionSettings(store=store, flush_interval_s=0.05))
    await manager.__aenter__()
    try:
        yield manager
    finally:
        with contextlib.suppress(StoreUnavailable):
            await manager.close()


async def refused(session: Session) -> bool:
    try:
        await session.add_message(Message.user("on a disk that fails"))
    except StoreUnavailable:
        return True
    return False


@pytest.mark.parametrize("failing", KINDS, indirect=True)
@pytest.mark.parametrize("store", DURABLE)
async def test_what_cannot_be_synced_is_not_acknowledged_and_nothing_else_is_lost(
    failing: FailingFilesystem, store: str
) -> None:
    account, workspace = Account(store), failing.path / "workspace"
    async with opened(workspace, store) as manager:
        sessions = [await manager.get_or_create("failing", number) for number in range(5)]
        for session in sessions:
            await account.say(session)
        await manager.flush()
        failing.sync()
        failing.fail()
        await account.say_until_refused(sessions[0], LARGE)
        assert not manager.health().ok
        assert [await refused(session) for session in sessions] == [True] * 5
        assert all(session.messages() for session in sessions), "reading does not go on"
        failing.heal()
        if failing.kind == HEALS_BY_ITSELF:
            with anyio.fail_after(HEALED_WITHIN_S):
                while not manager.health().ok:  # noqa: ASYNC110 - this is what a monitor does
                    await anyio.sleep(0.02)
            for session in sessions:
                await account.say(session)
        else:
            assert not manager.health().ok
        failing.shut_down()
    failing.remount()
    await account.assert_kept(workspace)
