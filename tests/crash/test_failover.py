"""The primary is killed under load and a standby promoted: what was acknowledged is there, and the store goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import anyio
import pytest

from miniclaw_sessions.errors import StoreUnavailable
from miniclaw_sessions.stores.base import Append
from miniclaw_sessions.stores.sql.postgresql import PostgreSQLStore
from miniclaw_sessions.testing import sample_entries, sample_head
from tests.postgresql import OWNER, PostgreSQLServer, running_rack

pytestmark = pytest.mark.anyio

SESSIONS = 20
BEFORE_AND_AFTER = 100
"""Entries of each session that are acknowledged before the primary dies, and again after that."""


def kill(server: PostgreSQLServer) -> None:
    """End a server at once, with all processes that belong to it."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    for pid in (server.pid, *map(int, children)):
        os.kill(pid, signal.SIGKILL)


async def received(standby: PostgreSQLServer) -> tuple[int, ...]:
    ((where,),) = await standby.execute("SELECT pg_last_wal_receive_lsn()::text")
    return tuple(int(part, 16) for part in where.split("/"))


@pytest.fixture
def rack() -> Iterator[list[PostgreSQLServer]]:
    with running_rack() as servers:
        yield servers


async def test_nothing_acknowledged_is_lost_when_a_standby_takes_over(rack: list[PostgreSQLServer]) -> None:
    hosts = ",".join(str(server.directory) for server in rack)
    url = f"postgresql:///postgres?host={quote(hosts, safe='')}&user={OWNER}"
    acknowledged = [0] * SESSIONS
    has_begun, goes_on = anyio.Event(), anyio.Event()

    async def write(store: PostgreSQLStore, number: int) -> None:
        while not goes_on.is_set() or acknowledged[number] < after[number]:
            sequence = acknowledged[number] + 1
            try:
                (outcome,) = await store.append([Append(sample_head(number), sample_entries(sequence, sequence))])
            except StoreUnavailable:
                await anyio.sleep(0.02)
                continue
            assert outcome is None
            acknowledged[number] = sequence
            if min(acknowledged) >= BEFORE_AND_AFTER:
                has_begun.set()

    after = [0] * SESSIONS
    async with PostgreSQLStore(url) as store:
        async with anyio.create_task_group() as tasks:
            for number in range(SESSIONS):
                tasks.start_soon(write, store, number, name=f"writer {number}")
            await has_begun.wait()
            kill(rack[0])
            after[:] = [count + BEFORE_AND_AFTER for count in acknowledged]
            newest = max([(await received(standby), standby.directory) for standby in rack[1:]])[1]
            promoted = next(standby for standby in rack[1:] if standby.directory == newest)
            await promoted.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            await promoted.execute("SELECT pg_promote()")
            goes_on.set()
        for number, count in enumerate(acknowledged):
            assert count >= after[number]
            assert await store.read(f"telegram_{number}") == sample_entries(1, count)
        assert await store.check() == []
