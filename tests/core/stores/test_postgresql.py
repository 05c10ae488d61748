"""The store on a PostgreSQL server: one statement for a group, and what servers, networks and strangers do to it."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import anyio
import asyncpg
import msgspec
import pytest
import structlog

from miniclaw_sessions.config import PostgreSQLSettings
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import Append, SessionHead, StoredEntry, TurnClaim, is_damaged
from miniclaw_sessions.core.stores.postgresql import statements
from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore
from miniclaw_sessions.errors import (
    ConfigError,
    SchemaTooNew,
    StoreConflict,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
)
from miniclaw_sessions.testing import sample_entries, sample_head
from tests.postgresql import OWNER, PostgreSQLServer, cut_connections, name_of, running_server

pytestmark = pytest.mark.anyio


@pytest.fixture
def database(postgresql_url: str) -> str:
    return postgresql_url


# --- one statement ---------------------------------------------------------------------------------------------------


async def test_a_group_of_sessions_is_one_statement_and_one_commit(postgresql: PostgreSQLServer, database: str) -> None:
    name = name_of(database)
    await postgresql.execute(f"ALTER DATABASE \"{name}\" SET log_statement = 'all'")
    async with PostgreSQLStore(database) as store:
        assert await store.append([Append(sample_head(n), sample_entries(1, 1)) for n in range(100)]) == [None] * 100
        before = len(postgresql.log)
        assert await store.append([Append(sample_head(n), sample_entries(2, 4)) for n in range(100)]) == [None] * 100
        logged = postgresql.log[before:]
    assert sum("execute" in line or "statement:" in line for line in logged.splitlines()) == 1, logged


async def test_what_is_wrong_with_some_sessions_of_a_group_is_no_matter_of_the_others(database: str) -> None:
    async with PostgreSQLStore(database) as store:
        taken = [msgspec.structs.replace(one, idempotency_key="taken") for one in sample_entries(1, 1)]
        first = [Append(sample_head(n), sample_entries(1, 1)) for n in range(97)]
        first += [Append(sample_head("conflict"), sample_entries(1, 2)), Append(sample_head("key"), taken)]
        first += [Append(sample_head("fence"), sample_entries(1, 1), turn=TurnClaim(7, "other", 60))]
        assert await store.append(first) == [None] * 100
        nul = StoredEntry(2, "entry-\0", sample_entries(2, 2)[0].encoded)
        half = StoredEntry(2, "entry-\ud800", sample_entries(2, 2)[0].encoded)
        same_key = [msgspec.structs.replace(one, idempotency_key="taken") for one in sample_entries(2, 2)]
        second = [Append(sample_head(n), sample_entries(2, 2)) for n in range(95)]
        wrong = [
            Append(sample_head("conflict"), sample_entries(2, 2, prefix="other")),
            Append(sample_head("fence"), sample_entries(2, 2), turn=TurnClaim(6, "late", 60)),
            Append(sample_head("key"), same_key),
            Append(sample_head(95), [nul]),
            Append(sample_head(96), [half]),
            Append(sample_head(94, incarnation="second"), sample_entries(2, 2)),
        ]
        outcomes = await store.append([*wrong[:5], *second[:94], wrong[5]])
        kinds = [type(outcome) for outcome in (*outcomes[:5], outcomes[-1])]
        assert kinds == [StoreConflict, StoreConflict, StoreConflict, StoreError, StoreError, StoreConflict]
        assert outcomes[5:-1] == [None] * 94
        for n in range(94):
            assert await store.read(f"telegram_{n}") == sample_entries(1, 2)
        assert await store.read("telegram_95") == await store.read("telegram_96") == sample_entries(1, 1)
        assert await store.check() == []


async def test_an_error_shows_nothing_that_was_said(database: str) -> None:
    secret = "what nobody may read"
    async with PostgreSQLStore(database) as store:
        nul = StoredEntry(1, f"{secret}\0", b"{}", f"{secret}\0")
        (outcome,) = await store.append([Append(sample_head(), [nul])])
        assert isinstance(outcome, StoreError)
        assert secret not in str(outcome)
        assert await store.find_by_idempotency_key("telegram_1", f"{secret}\0") is None
        assert await store.find("telegram_1", "\ud800") is None


async def test_an_append_touches_no_index_but_that_of_its_entries(postgresql: PostgreSQLServer, database: str) -> None:
    async with PostgreSQLStore(database) as store:
        for sequence in range(1, 200):
            assert await store.append([Append(sample_head(), sample_entries(sequence, sequence))]) == [None]
    counted = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'sessions'"
    with anyio.fail_after(60):
        while True:  # the server counts when a connection is idle or gone
            ((updates, in_place),) = await postgresql.execute(counted, name_of(database))
            if updates == 198:
                break
            await anyio.sleep(0.05)
    assert in_place > 0.9 * updates


async def test_entries_of_a_long_and_of_a_short_session_are_found_the_same_way(
    postgresql: PostgreSQLServer, database: str
) -> None:
    async with PostgreSQLStore(database) as store:
        assert await store.append([Append(sample_head(1), sample_entries(1, 5000))]) == [None]
        await postgresql.execute("ANALYZE", name_of(database))
        plan = await postgresql.execute(
            "EXPLAIN SELECT * FROM entries WHERE session_id = 'telegram_1' ORDER BY sequence DESC LIMIT 50",
            name_of(database),
        )
        assert any("Index Scan Backward using pk_entries" in line for (line,) in plan), plan
        assert await store.read_newest("telegram_1", 50) == sample_entries(4951, 5000)
        assert await store.read("telegram_1") == sample_entries(1, 5000)


def test_no_statement_needs_what_other_engines_lack() -> None:
    made = [*vars(statements).values(), *statements.GO_ON.values(), *statements.DELETE]
    texts = [one.text.lower() for one in made if isinstance(one, statements.Statement)]
    assert len(texts) > 20
    for text in (*texts, *map(str.lower, statements.schema())):
        for word in ("nextval", "advisory", "notify", "listen", "trigger", "serial", "generated", "ctid", "references"):
            assert word not in text
    for text in texts:
        for name in ("sessions", "entries", "idempotency_keys"):
            changes = (
                text.count(f"update {name} ") + text.count(f"insert into {name} ") + text.count(f"delete from {name} ")
            )
            assert changes <= 1, text


# --- faults ----------------------------------------------------------------------------------------------------------


async def test_what_was_acknowledged_is_there_once_though_connections_are_cut_in_mid_commit(
    postgresql: PostgreSQLServer, database: str
) -> None:
    name, writers, per_writer = name_of(database), 8, 10
    found: Counter[str] = Counter()
    async with PostgreSQLStore(database) as store:
        async with anyio.create_task_group() as tasks:
            acknowledged = anyio.Semaphore(0)

            async def write(number: int) -> None:
                for sequence in range(1, per_writer + 1):
                    entry = sample_entries(sequence, sequence, prefix=f"{number}")
                    while True:
                        try:
                            (outcome,) = await store.append([Append(sample_head(number), entry)])
                        except StoreUnavailable:  # cut twice
                            continue
                        assert outcome is None
                        acknowledged.release()
                        break

            async def cut() -> None:
                others = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND pid != "
                for _ in range(writers * per_writer):  # a cut that is cancelled here would still reach the readers
                    await acknowledged.acquire()  # or a busy machine, which connects slowly, would get nowhere
                    found["cut"] += len(await postgresql.execute(f"{others} pg_backend_pid()"))

            tasks.start_soon(cut, name="cut")
            for number in range(writers):
                tasks.start_soon(write, number, name=f"writer {number}")
        assert found["cut"] > 0
        for number in range(writers):
            assert await store.read(f"telegram_{number}") == sample_entries(1, per_writer, prefix=f"{number}")
        assert await store.check() == []


async def test_deleting_beside_appending_leaves_no_entries_behind(database: str) -> None:
    async with PostgreSQLStore(database) as one, PostgreSQLStore(database) as other:
        for number in range(30):
            head = sample_head(number)
            assert await one.append([Append(head, sample_entries(1, 1))]) == [None]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(other.append, [Append(head, sample_entries(2, 2))], name="append")
                tasks.start_soon(one.delete, head.session_id, name="delete")
        assert await one.session_ids() == []
        assert await one.check() == []


async def test_a_server_that_goes_and_comes_is_noticed_and_forgiven() -> None:
    with running_server() as running:
        async with PostgreSQLStore(running.url()) as store:
            assert await store.append([Append(sample_head(), sample_entries(1, 1))]) == [None]
            running.stop()
            with pytest.raises(StoreUnavailable, match="cannot append to"):
                await store.append([Append(sample_head(), sample_entries(2, 2))])
            with pytest.raises(StoreUnavailable, match="cannot read"):
                await store.read("telegram_1")
            running.start()
            assert await store.append([Append(sample_head(), sample_entries(2, 2))]) == [None]
            assert await store.read("telegram_1") == sample_entries(1, 2)
            running.stop(signal.SIGQUIT)  # as if it had crashed
            running.start()
            assert await store.read("telegram_1") == sample_entries(1, 2)


async def test_a_damaged_row_is_given_out_as_damaged_and_mended(postgresql: PostgreSQLServer, database: str) -> None:
    async with PostgreSQLStore(database) as store:
        entries = sample_entries(1, 3)
        assert await store.append([Append(sample_head(), entries)]) == [None]
        await postgresql.execute(
            "UPDATE entries SET encoded = overlay(encoded placing 'X'::bytea from 9) WHERE sequence = 2",
            name_of(database),
        )
        read = await store.read("telegram_1")
        assert [is_damaged(one.encoded) for one in read] == [False, True, False]
        assert len(await store.check()) == 1
        assert await store.mend("telegram_1", entries) == 1
        assert await store.read("telegram_1") == entries
        assert await store.check() == []


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("DELETE FROM sessions WHERE session_id = 'telegram_1'", "session telegram_1: 3 entries belong to no session"),
        ("UPDATE sessions SET last_sequence = 2", "session telegram_1: it ends at 3, and says that it ends at 2"),
        ("UPDATE idempotency_keys SET sequence = 2", "1 idempotency keys belong to no entry"),
        ("DELETE FROM entries WHERE sequence = 2", "session telegram_1: after sequence 1 comes 3"),
    ],
)
async def test_check_finds_tables_that_contradict_each_other(
    postgresql: PostgreSQLServer, database: str, damage: str, says: str
) -> None:
    async with PostgreSQLStore(database) as store:
        entries = sample_entries(1, 3)
        entries[0] = msgspec.structs.replace(entries[0], idempotency_key="key")
        assert await store.append([Append(sample_head(), entries)]) == [None]
        await postgresql.execute(damage, name_of(database))
        assert await store.check() == [says]


# --- opening ---------------------------------------------------------------------------------------------------------


async def test_many_gateways_may_start_at_the_same_time_on_an_empty_database(empty_postgresql_url: str) -> None:
    stores = [PostgreSQLStore(empty_postgresql_url) for _ in range(8)]
    async with anyio.create_task_group() as tasks:
        for store in stores:
            tasks.start_soon(store.__aenter__, name="open")
    for store in stores:
        await store.__aexit__(None, None, None)
    async with PostgreSQLStore(empty_postgresql_url) as store:
        assert await store.check() == []


async def test_the_start_says_what_a_commit_waits_for(database: str) -> None:
    with structlog.testing.capture_logs() as logged:
        async with PostgreSQLStore(database):
            pass
    (record,) = [one for one in logged if one.get("action") == "store.connected"]
    assert record["synchronous_commit"] == "on"
    assert record["synchronous_standbys"] == "none"


@pytest.mark.parametrize("setting", ["off", "local", "remote_write"])
async def test_a_server_that_may_lose_what_it_acknowledges_is_refused(
    postgresql: PostgreSQLServer, database: str, setting: str
) -> None:
    await postgresql.execute(f'ALTER DATABASE "{name_of(database)}" SET synchronous_commit = {setting}')
    with pytest.raises(ConfigError, match=f"synchronous_commit is {setting}"):
        await PostgreSQLStore(database).__aenter__()
    async with PostgreSQLStore(f"{database}&allow_unsafe_commits=true") as store:
        assert await store.append([Append(sample_head(), sample_entries(1, 1))]) == [None]


async def test_what_keeps_a_server_from_letting_us_in_is_said_with_what_to_do(
    postgresql: PostgreSQLServer, database: str, tmp_path: Path
) -> None:
    for url, says in (
        (postgresql.url("nowhere"), "make it with createdb"),
        (database.replace("user=miniclaw", "user=nobody"), "see its pg_hba.conf and the role's name"),
        (f"postgresql:///x?host={tmp_path}&user=miniclaw", "cannot open postgresql:"),
    ):
        with pytest.raises((ConfigError, StoreUnavailable), match=says):
            await PostgreSQLStore(url).__aenter__()


@pytest.mark.proof
async def test_a_password_comes_from_a_file_and_is_never_shown(tmp_path: Path) -> None:
    with running_server() as running:
        await running.execute("CREATE ROLE gateway LOGIN PASSWORD 'open sesame'")
        await running.execute("CREATE DATABASE chats OWNER gateway")
        rules = "local all miniclaw trust\nlocal all all scram-sha-256\n"
        await asyncio.to_thread((running.data / "pg_hba.conf").write_text, rules)
        await running.execute("SELECT pg_reload_conf()")
        file = tmp_path / "password"
        url = running.url("chats", password_file=str(file)).replace("user=miniclaw", "user=gateway")
        for password, is_right in (("open sesame\n", True), ("open sesam\n", False)):
            await asyncio.to_thread(file.write_text, password)
            await asyncio.to_thread(file.chmod, 0o600)
            store = PostgreSQLStore(url)
            assert "sesam" not in repr(store)
            if is_right:
                async with store:
                    assert await store.append([Append(sample_head(), sample_entries(1, 1))]) == [None]
            else:
                with pytest.raises(ConfigError, match="see that the password file has the one of this role") as caught:
                    await store.__aenter__()
                assert "sesam" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://me:secret@host/chats", "password_file"),
        ("postgresql://me@host/chats?password=secret", "password_file"),
        ("postgresql://host", "names no database"),
        ("postgresql://host/chats?allow_unsafe_commits=maybe", "sessions.postgresql.allow_unsafe_commits is"),
    ],
)
def test_a_url_that_is_not_usable_is_refused_without_its_password(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        PostgreSQLStore(url)
    assert "secret" not in str(caught.value)


async def test_a_read_only_server_says_so(postgresql: PostgreSQLServer, database: str) -> None:
    async with PostgreSQLStore(database) as store:
        assert await store.append([Append(sample_head(), sample_entries(1, 1))]) == [None]
        await postgresql.execute(f'ALTER DATABASE "{name_of(database)}" SET default_transaction_read_only = on')
        await cut_connections(postgresql, database)
        with pytest.raises(StoreUnavailable, match="it is a standby"):
            await store.append([Append(sample_head(), sample_entries(2, 2))])


async def test_tables_of_others_and_of_newer_versions_are_left_alone(
    postgresql: PostgreSQLServer, empty_postgresql_url: str
) -> None:
    name = name_of(empty_postgresql_url)
    await postgresql.execute("CREATE TABLE invoices (id int)", name)
    with pytest.raises(ConfigError, match="another program's tables"):
        await PostgreSQLStore(empty_postgresql_url).__aenter__()
    await postgresql.execute("DROP TABLE invoices", name)
    async with PostgreSQLStore(empty_postgresql_url):
        pass
    await postgresql.execute("ALTER TABLE entries DROP COLUMN checksum", name)
    with pytest.raises(StoreCorrupt, match="the table entries has other columns"):
        await PostgreSQLStore(empty_postgresql_url).__aenter__()
    await postgresql.execute("UPDATE alembic_version SET version_num = '9999'", name)
    with pytest.raises(SchemaTooNew, match=r"a newer version .* \(schema 9999, this one knows 0003\); install that"):
        await PostgreSQLStore(empty_postgresql_url).__aenter__()


async def test_an_older_schema_is_told_from_a_newer_one_and_what_to_do_about_it(
    postgresql: PostgreSQLServer, database: str
) -> None:
    async with PostgreSQLStore(database):
        pass
    await postgresql.execute("UPDATE alembic_version SET version_num = '0002'", name_of(database))
    with pytest.raises(
        ConfigError, match=r"an older version .* \(schema 0002, this one needs 0003\).*back it up with"
    ) as told:
        await PostgreSQLStore(database).__aenter__()
    assert "newer" not in str(told.value)
    assert "back it up with that version (`miniclaw-sessions backup`)" in str(told.value)


async def test_a_store_that_is_not_open_says_so(database: str) -> None:
    with pytest.raises(StoreUnavailable, match="not open"):
        await PostgreSQLStore(database).head("telegram_1")


async def test_the_longest_names_and_keys_fit(database: str) -> None:
    key = SessionKey.of("c" * 1000, "\U0001f600" * 500)
    head = SessionHead(key.session_id, key, "first", sample_head().created_at)
    widest = "".join(chr(0x1F300 + number) for number in range(512))
    entry = msgspec.structs.replace(sample_entries(1, 1)[0], idempotency_key=widest)
    async with PostgreSQLStore(database) as store:
        assert await store.append([Append(head, [entry])]) == [None]
        assert await store.find_by_idempotency_key(key.session_id, widest) == entry


async def test_who_waits_for_a_server_that_hangs_is_told_after_a_while(
    postgresql: PostgreSQLServer, database: str
) -> None:
    async with PostgreSQLStore(database, PostgreSQLSettings(statement_timeout_s=3)) as store:
        assert await store.append([Append(sample_head(), sample_entries(1, 1))]) == [None]
        other = await asyncpg.connect(host=str(postgresql.directory), user=OWNER, database=name_of(database))
        try:
            async with other.transaction():
                await other.execute("LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE")
                (outcome,) = await store.append([Append(sample_head(), sample_entries(2, 2))])
                assert isinstance(outcome, StoreUnavailable)
        finally:
            await other.close()
        assert await store.append([Append(sample_head(), sample_entries(2, 2))]) == [None]
        assert await store.read("telegram_1") == sample_entries(1, 2)
