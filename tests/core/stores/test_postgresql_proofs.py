"""Failures of a server that take one of its own: standbys that go, a disk that is full, a restart under a daemon."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import asyncpg
import httpx2
import pytest
import structlog
from anyio import to_thread

from miniclaw_sessions import Message, Session, SessionManager
from miniclaw_sessions.config import PostgreSQLSettings
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.stores.base import Append, StoredEntry
from miniclaw_sessions.core.stores.postgresql import catalog_sql, search_sql, statements
from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore
from miniclaw_sessions.errors import ConfigError, StoreError, StoreFull, StoreUnavailable
from miniclaw_sessions.testing import FakeClock, sample_entries, sample_head
from tests.crash.filesystem import MEBIBYTE, MountSpace, reason_not_to_mount
from tests.postgresql import OWNER, PostgreSQLServer, running_rack, running_server
from tests.service.gateway.daemons import Process

pytestmark = [pytest.mark.anyio, pytest.mark.proof]

SPOKEN = "what nobody may read"


@pytest.fixture
def rack() -> Iterator[list[PostgreSQLServer]]:
    with running_rack(standbys=1) as servers:
        confirms = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'quorum'"
        while not asyncio.run(servers[0].execute(confirms)):
            pass  # it comes to know who confirms a moment after it was told
        yield servers


async def test_what_no_standby_has_confirmed_is_not_acknowledged_however_often_it_is_sent(
    rack: list[PostgreSQLServer],
) -> None:
    primary, standby = rack
    url = primary.url("postgres", statement_timeout_s="0.2")
    with structlog.testing.capture_logs() as logged:
        async with PostgreSQLStore(url) as store:
            assert await store.append([Append(sample_head(), sample_entries(1, 1))]) == [None]
            with pytest.raises(StoreUnavailable, match="it is a standby"):
                await PostgreSQLStore(standby.url()).__aenter__()
            await to_thread.run_sync(standby.stop)
            refused = [await is_refused(store, Append(sample_head(), sample_entries(2, 2))) for _ in range(3)]
            assert "whether it waits for a standby that is gone" in str(refused[0])
            assert all(isinstance(one, StoreUnavailable) for one in refused), refused
            assert await store.read("telegram_1") == sample_entries(1, 2)  # it is on the primary's disk, and no other
            await store.still_there()
            await to_thread.run_sync(standby.start)
            with anyio.fail_after(60):
                while await is_refused(store, Append(sample_head(), sample_entries(2, 2))):
                    pass
            assert await store.read("telegram_1") == sample_entries(1, 2)
    assert next(one["standbys_connected"] for one in logged if one.get("action") == "store.connected") == 1
    warnings = [one["event"] for one in logged if one.get("action") == "store.at_risk"]
    assert any("waits for 1 standbys and 0 are connected: nothing is acknowledged" in one for one in warnings), warnings


def large() -> StoredEntry:
    entry = sample_entries(1, 1)[0]
    return StoredEntry(1, entry.entry_id, os.urandom(200_000))


async def is_refused(store: PostgreSQLStore, append: Append) -> StoreError | None:
    try:
        (outcome,) = await store.append([append])
    except StoreUnavailable as error:
        return error
    return outcome


@pytest.mark.root
async def test_a_full_disk_of_the_server_refuses_and_takes_again_when_there_is_room() -> None:
    if reason := reason_not_to_mount():
        pytest.skip(reason)
    with MountSpace() as space, space.memory(16 * MEBIBYTE) as disk, running_server() as server:
        for path in disk.parents:
            path.chmod(path.stat().st_mode | 0o011)
        shutil.chown(disk, server.directory.owner())
        await server.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
        await server.execute("CREATE DATABASE chats TABLESPACE small")
        ballast = disk / "ballast"
        await to_thread.run_sync(ballast.write_bytes, bytes(4 * MEBIBYTE))
        async with PostgreSQLStore(server.url("chats")) as store:
            number = 1
            while (error := await is_refused(store, Append(sample_head(number), [large()]))) is None:
                number += 1
            assert isinstance(error, StoreFull)
            assert "free space on the server's disk" in str(error)
            assert await store.read("telegram_1") != []
            await to_thread.run_sync(ballast.unlink)
            assert await store.append([Append(sample_head(number), sample_entries(1, 1))]) == [None]


@pytest.mark.root
async def test_nothing_acknowledged_is_lost_where_the_servers_log_has_no_room_and_the_server_falls() -> None:
    if reason := reason_not_to_mount():
        pytest.skip(reason)
    settings = {"min_wal_size": "32MB", "max_wal_size": "32MB", "wal_recycle": "off", "wal_init_zero": "on"}
    with MountSpace() as space, space.memory(96 * MEBIBYTE) as disk, running_server(settings=settings) as server:
        for path in disk.parents:
            path.chmod(path.stat().st_mode | 0o011)
        await to_thread.run_sync(server.stop)
        log, moved = server.data / "pg_wal", disk / "pg_wal"
        await to_thread.run_sync(shutil.move, log, moved)
        log.symlink_to(moved)
        for path in (disk, moved, *moved.rglob("*")):
            shutil.chown(path, server.directory.owner())
        await to_thread.run_sync(server.start)
        ballast = disk / "ballast"
        await to_thread.run_sync(ballast.write_bytes, bytes(48 * MEBIBYTE))
        async with SessionManager(store=server.url()) as manager:
            session = await manager.get_or_create("telegram", 1)
            acknowledged = await said_until_refused(session)  # the server falls, and cannot rise without room
            await to_thread.run_sync(ballast.unlink)
            await to_thread.run_sync(server.stop, signal.SIGQUIT)  # if it still tries to rise
            await to_thread.run_sync(server.start)
            with anyio.fail_after(60):
                while True:
                    with suppress(StoreUnavailable):
                        await session.add_message(said(acknowledged), idempotency_key=f"{acknowledged}")
                        break
                    await anyio.sleep(0.02)  # what is refused at once lets nothing else run
        assert "PANIC" in server.log
        async with SessionManager(store=server.url()) as manager:
            found = [entry async for entry in (await manager.get("telegram", 1)).tree.walk()]
        texts = [entry.message.text for entry in reversed(found) if isinstance(entry, MessageEntry)]
        assert texts == [said(number).text for number in range(acknowledged + 1)]


async def said_until_refused(session: Session) -> int:
    """How many messages were acknowledged."""
    for number in itertools.count():
        try:
            await session.add_message(said(number), idempotency_key=f"{number}")
        except StoreUnavailable:
            break
    return number


def said(number: int) -> Message:
    """A message that takes a hundredth of the room, in letters that cannot be made shorter."""
    return Message.user(f"{number} {random.Random(number).randbytes(500_000).hex()}")


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
async def test_a_server_that_a_power_cut_would_harm_is_refused(setting: str) -> None:
    with running_server(settings={setting: "off"}) as server:
        with pytest.raises(ConfigError, match=f"may lose what it has acknowledged: {setting} is off"):
            await PostgreSQLStore(server.url()).__aenter__()
        with structlog.testing.capture_logs() as logged:
            async with PostgreSQLStore(server.url(), PostgreSQLSettings(allow_unsafe_commits=True)) as store:
                assert await store.append([Append(sample_head(), sample_entries(1, 1))]) == [None]
        assert any(f"{setting} is off" in one["event"] for one in logged if one.get("action") == "store.at_risk")


async def test_a_store_is_closed_within_seconds_though_its_server_stands_still() -> None:
    with running_server() as server:
        settings = PostgreSQLSettings(statement_timeout_s=3600, acquire_timeout_s=3600)
        backends: list[int] = []
        try:
            with anyio.fail_after(60):
                async with PostgreSQLStore(server.url(), settings) as store:
                    assert await store.append([Append(sample_head(), sample_entries(1, 1))]) == [None]
                    assert await store.read("telegram_1") == sample_entries(1, 1)
                    others = "WHERE application_name = 'miniclaw-sessions'"
                    backends += [pid for (pid,) in await server.execute(f"SELECT pid FROM pg_stat_activity {others}")]
                    assert len(backends) > 1
                    for pid in backends:
                        os.kill(pid, signal.SIGSTOP)
        finally:
            for pid in backends:
                os.kill(pid, signal.SIGCONT)


async def test_a_daemon_says_in_its_health_that_the_server_is_gone_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    with running_server() as server:
        url = server.url()
        async with Process(tmp_path, MINICLAW_SESSIONS_STORE=url, MINICLAW_SESSIONS_FLUSH_INTERVAL_S="0.2") as daemon:
            await daemon.notice("READY=1")
            async with daemon.client() as client:
                chat = {"channel": "b", "chat_id": 1, "message": SPOKEN}
                assert (await client.post("/v1/chat", json=chat)).status_code == 200
                await to_thread.run_sync(server.stop, signal.SIGQUIT)
                await health_is(client, "failing")  # without anybody speaking
                with anyio.fail_after(60):  # what was cut off in the middle of a word says so first
                    while "see that the server runs" not in f"{(found := (await client.get('/health')).json())}":
                        await client.post("/v1/flush")
                assert found["status"] == "failing"
                refused = await client.post("/v1/chat", json=chat)
                assert refused.status_code >= 500
                await to_thread.run_sync(server.start)
                await health_is(client, "ok")
                assert (await client.post("/v1/chat", json={**chat, "chat_id": 2})).status_code == 200
            log = f"{daemon.records()}"  # each line is a record, so that there is no stack trace
        assert "Traceback" not in log
        assert SPOKEN not in f"{found} {refused.text} {log}"


async def health_is(client: httpx2.AsyncClient, status: str) -> None:
    with anyio.fail_after(60):
        while (await client.get("/health")).json()["status"] != status:
            await client.post("/v1/flush")


async def test_what_is_said_to_a_server_that_is_away_for_ten_minutes_is_there_once_when_it_comes_back() -> None:
    clock, ten_minutes = FakeClock(datetime.now(UTC)), anyio.Event()

    async def pass_time() -> None:
        for seconds in itertools.count():
            if seconds == 600:
                ten_minutes.set()
            await anyio.sleep(0.002)
            await clock.advance(1)

    with running_server() as server:
        async with SessionManager(store=server.url(), clock=clock) as manager, anyio.create_task_group() as tasks:
            session = await manager.get_or_create("telegram", 1)
            await session.add_message(Message.user("before"))
            await to_thread.run_sync(server.stop, signal.SIGQUIT)
            tasks.start_soon(pass_time)
            for _ in range(3):  # it is brought again, as a channel does that heard no acknowledgement
                with pytest.raises(StoreUnavailable):
                    await session.add_message(Message.user("meanwhile"), idempotency_key="meanwhile")
            assert not manager.health().ok
            await ten_minutes.wait()
            await to_thread.run_sync(server.start)
            with anyio.fail_after(60):
                while not manager.health().ok:
                    with suppress(StoreError):
                        await manager.flush()
            again = await session.add_message(Message.user("meanwhile"), idempotency_key="meanwhile")
            await session.add_message(Message.user("afterwards"))
            tasks.cancel_scope.cancel()
        async with SessionManager(store=server.url()) as manager:
            said = (await manager.get("telegram", 1)).messages()
            assert [message.text for message in said] == ["before", "meanwhile", "afterwards"]
            assert again.sequence == 2


MANY = """
INSERT INTO sessions (session_id, channel, chat_id, incarnation, created_at, last_sequence, used_at, fence)
    SELECT 'many_' || n, 'many', n, 'first', now(), 2, now() - n * INTERVAL '1 s', 0 FROM generate_series(1, 100000) n;
INSERT INTO entries (session_id, sequence, entry_id, encoded, checksum)
    SELECT 'many_' || n / 2, n % 2, 'entry', '', 1 FROM generate_series(2, 200001) n;
INSERT INTO idempotency_keys (session_id, idempotency_key, sequence)
    SELECT 'many_' || n, 'key', 1 FROM generate_series(1, 100000) n;
"""
READS_ALL = re.compile(r"Seq Scan on (sessions|entries|idempotency_keys)\b")


async def test_every_statement_on_the_path_of_a_message_goes_by_a_key_among_a_hundred_thousand_sessions(
    postgresql: PostgreSQLServer, postgresql_url: str
) -> None:
    name = urlsplit(postgresql_url).path.strip("/")
    async with PostgreSQLStore(postgresql_url) as store:
        assert await store.append([Append(sample_head(), sample_entries(1, 1))]) == [None]
    connection = await asyncpg.connect(host=str(postgresql.directory), user=OWNER, database=name)
    try:
        await connection.execute(MANY)
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("SET plan_cache_mode = force_generic_plan")  # whatever the parameters are
        hot = [
            *statements.GO_ON.values(),
            statements.BEGIN,
            statements.CLAIM,
            statements.VERSIONS,
            statements.LOCKED_HEAD,
            statements.LOCKED_FOR_DELETION,
        ]
        hot += [
            statements.OLDEST_FIRST,
            statements.NEWEST_FIRST,
            statements.WITH_KEY,
            statements.IDS_BETWEEN,
            *statements.DELETE,
        ]
        hot += [
            catalog_sql.LOAD,
            catalog_sql.NEWEST,
            *catalog_sql.USED.values(),
            catalog_sql.WRITE_CHECKPOINTS,
            catalog_sql.READ_CHECKPOINTS,
            catalog_sql.IDLE,
        ]
        hot += [search_sql.BEHIND, search_sql.BEGIN, search_sql.LOCKED, search_sql.LACKING, search_sql.MOVE]
        for number, statement in enumerate(hot):
            await connection.execute(f"PREPARE hot{number} AS {statement.text}")
            nothing = ", ".join(["NULL"] * len(statement.names))
            plan = "\n".join(line for (line,) in await connection.fetch(f"EXPLAIN EXECUTE hot{number}({nothing})"))
            assert not re.search(r"Seq Scan on (sessions|entries|idempotency_keys)\b", plan), (
                f"{statement.text}\n{plan}"
            )
    finally:
        await connection.close()
