"""What only SQLite can get wrong: files, schema, full and failing disks, other programs, crashes."""

# ruff: noqa: ASYNC240 - nothing else runs on the loop while a test looks at its files

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import subprocess
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.stores.base import Append, StoredEntry, is_damaged, stored_entry
from miniclaw_sessions.core.stores.sql.checksums import checksum_of
from miniclaw_sessions.core.stores.sqlite import files, migrations
from miniclaw_sessions.core.stores.sqlite import store as sqlite
from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore
from miniclaw_sessions.core.stores.sqlite.tables import METADATA
from miniclaw_sessions.errors import (
    ConfigError,
    SchemaTooNew,
    StoreConflict,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from miniclaw_sessions.testing import sample_entries, sample_head
from tests.core.stores.durable import append, run_python
from tests.sampled import sampled

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


async def filled(path: Path, *, sessions: int = 3, entries: int = 5) -> None:
    async with SQLiteStore(path) as store:
        for chat_id in range(1, sessions + 1):
            assert await append(store, chat_id, 1, entries) is None


def modes(directory: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()}


def contents(directory: Path) -> dict[str, bytes]:
    """All that SQLite keeps there; its -shm file is scratch space that reading writes to."""
    return {file.name: file.read_bytes() for file in directory.iterdir() if not file.name.endswith("-shm")}


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0, 0o777])
async def test_all_files_are_0600_whatever_the_umask(umask: int, path: Path) -> None:
    before = os.umask(umask)
    try:
        async with SQLiteStore(path) as store:
            await append(store, 1, 1, 5)
            while_open = modes(path.parent)
    finally:
        os.umask(before)
    assert while_open == {"sessions.db": 0o600, "sessions.db-wal": 0o600, "sessions.db-shm": 0o600}
    assert modes(path.parent) == {"sessions.db": 0o600}


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
async def test_what_is_not_a_regular_file_is_refused(kind: str, path: Path) -> None:
    target = path.parent / "elsewhere"
    if kind == "link":
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises((StoreUnavailable, ConfigError), match="cannot open"):
        async with SQLiteStore(path):
            pass
    assert not target.exists()


async def test_a_missing_directory_is_not_created(path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot open"):
        async with SQLiteStore(path.parent / "missing" / "sessions.db"):
            pass


@pytest.mark.parametrize("name", ["a b.db", "50%25.db", "what?mode=memory#x.db", "ä.db"])
async def test_any_file_name_will_do(name: str, tmp_path: Path) -> None:
    await filled(tmp_path / name)
    assert [file.name for file in tmp_path.iterdir()] == [name]


async def test_a_deleted_session_leaves_no_bytes_behind(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await append(store, 1, 1, 100, text="a secret that must go")
        await append(store, 2, 1, 1)
        assert await store.delete("telegram_1")
    assert b"a secret that must go" not in b"".join(contents(path.parent).values())


async def test_commits_are_synced_and_what_is_deleted_is_overwritten(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await append(store, 1, 1, 1)
        writer = store._writer
        assert writer is not None
        settings = ("journal_mode", "synchronous", "secure_delete", "temp_store")
        values = [writer.exec_driver_sql(f"PRAGMA {name}").scalar() for name in settings]
        writer.rollback()
        assert values == ["wal", 2, 1, 2]


# --- schema ----------------------------------------------------------------------------------------------------------


def schema_of(path: Path) -> dict[str, object]:
    """The tables with their columns, indexes and kinds, and what a database without sessions has in them."""
    with closing(sqlite3.connect(path)) as connection:
        tables = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name"))
        kinds = ("AUTOINCREMENT", "WITHOUT ROWID")
        return {
            name: (
                connection.execute(f"PRAGMA table_xinfo({name})").fetchall(),
                connection.execute(f"PRAGMA index_list({name})").fetchall(),
                [kind for kind in kinds if kind in sql],
                connection.execute(f"SELECT * FROM {name}").fetchall(),
            )
            for name, sql in tables.items()
        }


async def test_a_new_database_has_the_tables_that_the_migrations_make(path: Path) -> None:
    async with SQLiteStore(path):
        pass
    migrated = path.with_name("migrated.db")
    files.create_file(migrated)
    with SQLiteStore(migrated)._engine(writing=True).begin() as connection:
        migrations.upgrade(connection)
    assert schema_of(path) == schema_of(migrated)
    with SQLiteStore(path)._engine(writing=True).connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert [script.revision for script in scripts.walk_revisions()][::-1] == list(migrations.REVISIONS)


async def test_an_empty_file_becomes_a_database(path: Path) -> None:
    path.touch()
    await filled(path)
    assert files.schema_version(path) == migrations.REVISIONS[-1]
    assert set(modes(path.parent).values()) == {0o600}


async def test_a_schema_that_cannot_be_made_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_at_the_end(connection: Connection) -> None:
        migrations.create(connection)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "create", fail_at_the_end)
        with pytest.raises(StoreUnavailable):
            async with SQLiteStore(path):
                pass
    assert files.schema_version(path) is None
    await filled(path)


@pytest.mark.parametrize("crashed", [False, True])
async def test_a_newer_schema_is_refused_and_left_byte_for_byte(crashed: bool, tmp_path: Path) -> None:
    original = tmp_path / "original" / "sessions.db"
    original.parent.mkdir()
    await filled(original)
    path = tmp_path / "copy" / "sessions.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(original, isolation_level=None)) as newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
        if not crashed:
            newer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for file in original.parent.iterdir():  # what is there when the process is killed now
            if not file.name.endswith("-shm"):
                path.with_name(file.name).write_bytes(file.read_bytes())
    before = contents(path.parent)
    assert (len(before["sessions.db-wal"]) > 0) is crashed
    for _ in range(2):
        with pytest.raises(SchemaTooNew, match="9999"):
            async with SQLiteStore(path):
                pass
    assert contents(path.parent) == before


async def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE entries (recipe TEXT)")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="another program's"):
        async with SQLiteStore(path):
            pass
    assert path.read_bytes() == before


@pytest.mark.parametrize("exists", sampled([False, True], every=2))
def test_opening_a_store_does_not_import_alembic(path: Path, *, exists: bool) -> None:
    if exists:
        anyio.run(filled, path)
    program = """
        import sys, anyio
        from pathlib import Path
        import miniclaw_sessions.core.stores, miniclaw_sessions.testing
        assert "sqlalchemy" not in sys.modules
        async def main():
            async with miniclaw_sessions.core.stores.open_store("sqlite:", Path(sys.argv[1])) as store:
                print(len(await store.read("telegram_1")))
        anyio.run(main)
        assert "alembic" not in sys.modules
    """
    assert run_python(program, path.parent) == ("5\n" if exists else "0\n")


# --- damage ----------------------------------------------------------------------------------------------------------


async def test_what_is_not_a_database_is_corrupt_and_left_alone(path: Path) -> None:
    path.write_bytes(b"this was never a database, and is long enough for a header" * 200)
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="cannot open"):
        async with SQLiteStore(path):
            pass
    assert path.read_bytes() == before


async def test_damaged_pages_are_reported_and_the_files_can_be_moved(path: Path) -> None:
    await filled(path, sessions=20, entries=100)
    damaged = bytearray(path.read_bytes())
    damaged[8 * 4096 :] = os.urandom(len(damaged) - 8 * 4096)
    path.write_bytes(damaged)
    async with SQLiteStore(path) as store:
        assert await store.check() != []
        with pytest.raises(StoreCorrupt, match="cannot read"):
            await read_all(store)
    for file in store.files:
        if file.exists():
            file.rename(file.with_suffix(".damaged"))
    await filled(path)


async def read_all(store: SQLiteStore) -> None:
    async for stored in store.heads():
        await store.read(stored.head.session_id)


async def test_an_entry_without_a_session_and_a_false_name_are_reported(path: Path) -> None:
    await filled(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE entries SET session = 77 WHERE session = 1 AND sequence = 5")
        other.execute("UPDATE sessions SET chat_id = '5' WHERE session_id = 'telegram_2'")
    async with SQLiteStore(path) as store:
        problems = await store.check()
    assert problems[0] == "1 entries belong to no session"
    assert "telegram_5" in problems[-1]


# --- the log and its index --------------------------------------------------------------------------------------------


async def test_entries_are_read_alike_wherever_the_index_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "MAX_UNPLACED", 7)
    async with SQLiteStore(path) as store:
        for sequence in range(1, 31):
            for chat_id in (1, 2, 3):
                assert await append(store, chat_id, sequence, sequence) is None
                assert await store.read(f"telegram_{chat_id}") == sample_entries(1, sequence)
                assert await store.read(f"telegram_{chat_id}", after=4, limit=20) == sample_entries(
                    5, min(sequence, 24)
                )
                assert await store.read_newest(f"telegram_{chat_id}", 3) == sample_entries(
                    max(sequence - 2, 1), sequence
                )
            assert [stored.last_sequence async for stored in store.heads()] == [sequence] * 3
            assert await append(store, 1, 1, sequence) is None
        assert store._known.unplaced <= 7 + 3
        assert await store.check() == []
    async with SQLiteStore(path) as store:
        assert await store.read("telegram_3") == sample_entries(1, 30)


async def test_whoever_reads_finds_a_short_tail(path: Path) -> None:
    async with SQLiteStore(path) as store:
        assert await append(store, 1, 1, sqlite.SCANNED_ENTRIES) is None
        assert await append(store, 2, 1, 2) is None
        assert store._known.unplaced == sqlite.SCANNED_ENTRIES + 2
        assert len(await store.read("telegram_1")) == sqlite.SCANNED_ENTRIES
        assert store._known.unplaced == 0
        assert await store.read("telegram_2") == sample_entries(1, 2)


async def test_what_a_crash_left_out_of_the_index_is_brought_there_when_the_store_is_opened(path: Path) -> None:
    copy = path.with_name("copy.db")
    async with SQLiteStore(path) as store:
        assert await append(store, 1, 1, 50) is None
        for file, copied in zip(files.database_files(path)[:2], files.database_files(copy), strict=False):
            copied.write_bytes(file.read_bytes())
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as other:
        assert other.execute("SELECT count(*) FROM places").fetchone() == (50,)
    async with SQLiteStore(copy) as store:
        assert await store.read("telegram_1") == sample_entries(1, 50)
        assert await append(store, 1, 51, 52) is None
        assert store._known.unplaced == 2
        assert await store.check() == []


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("DELETE FROM places WHERE session = 1 AND sequence = 2", "telegram_1: 1 entries are not where"),
        ("UPDATE places SET position = 3 WHERE session = 1 AND sequence = 2", "telegram_1: 1 entries are not where"),
        ("INSERT INTO places VALUES (1, 6, 77)", "1 places without an entry"),
        (
            "INSERT INTO entries SELECT 99, session, sequence, entry_id, encoded, NULL, NULL FROM entries",
            "1 entries are not where",
        ),
    ],
)
async def test_an_index_that_contradicts_the_log_is_reported(damage: str, problem: str, path: Path) -> None:
    await filled(path, sessions=1)
    async with SQLiteStore(path) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute(damage + (" WHERE position = 2" if "SELECT" in damage else ""))
        assert any(problem in text for text in await store.check())


async def test_two_entries_at_one_sequence_are_damage_and_neither_is_overwritten(path: Path) -> None:
    await filled(path, sessions=2)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("INSERT INTO entries VALUES (99, 1, 5, 'another', '{}', NULL, NULL)")
    async with SQLiteStore(path) as store:
        with pytest.raises(StoreCorrupt, match=r"places\.session, places\.sequence"):
            await store.delete("telegram_2")
        assert [entry.entry_id for entry in await store.read("telegram_1", after=4)] == ["entry-5", "another"]
        assert await store.read("telegram_2") == sample_entries(1, 5)


async def test_a_position_in_the_log_is_never_used_again(path: Path) -> None:
    async with SQLiteStore(path) as one, SQLiteStore(path) as two:
        assert await append(one, 1, 1, 2) is None
        assert await append(two, 9, 1, 5) is None
        assert await two.delete("telegram_9")
        assert await append(one, 1, 3, 3) is None
        assert await one.read("telegram_1") == sample_entries(1, 3)
    async with SQLiteStore(path) as store:
        assert await store.delete("telegram_1")
        assert await append(store, 2, 1, 1) is None
        assert await store.read("telegram_2") == sample_entries(1, 1)
        assert await store.check() == []


async def test_the_log_file_has_its_whole_size_once_the_store_is_in_use(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "FILLED_AFTER", 3)
    wal = files.database_files(path)[1]
    for life in (0, 10):
        async with SQLiteStore(path) as store:
            for sequence in range(life + 1, life + 4):
                assert wal.stat().st_size < files.CHECKPOINT_BYTES
                assert await append(store, 1, sequence, sequence) is None
            for sequence in range(life + 4, life + 11):
                assert await append(store, 1, sequence, sequence) is None
                assert wal.stat().st_size == files.CHECKPOINT_BYTES
        assert not wal.exists()


async def test_a_log_file_that_cannot_be_filled_keeps_its_size(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite

    def write_a_little(fd: int, data: bytes, offset: int) -> int:
        if offset > 1_000_000:
            raise OSError(28, "No space left on device")
        return pwrite(fd, data[:100_000], offset)

    monkeypatch.setattr(os, "pwrite", write_a_little)
    monkeypatch.setattr(sqlite, "FILLED_AFTER", 0)
    async with SQLiteStore(path) as store:
        assert await append(store, 1, 1, 5) is None
        assert files.database_files(path)[1].stat().st_size < 1_000_000
        assert await store.check() == []


# --- a full disk -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "small"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", disk], check=False)
    if mounted.returncode:
        pytest.skip("a disk of its own needs root and mount")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


async def fill_until_refused(store: SQLiteStore) -> int:
    """Append one entry after the other until the disk is full; how many were acknowledged."""
    for sequence in range(1, 10_000):
        try:
            assert await append(store, 1, sequence, sequence, text="x" * 3000) is None
        except StoreFull:
            return sequence - 1
    pytest.fail("the disk never was full")


@pytest.mark.root
async def test_a_full_disk_refuses_appends_goes_on_reading_and_recovers_by_itself(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    async with SQLiteStore(small_disk / "sessions.db") as store:
        ballast.write_bytes(bytes(300_000))
        acknowledged = await fill_until_refused(store)
        assert acknowledged > 10
        with pytest.raises(StoreFull, match="free space"):
            await append(store, 2, 1, 50, text="x" * 3000)
        assert len(await store.read("telegram_1")) == acknowledged
        ballast.unlink()
        assert await append(store, 1, acknowledged + 1, acknowledged + 1) is None
        assert await append(store, 2, 1, 3) is None
    async with SQLiteStore(small_disk / "sessions.db") as store:
        assert len(await store.read("telegram_1")) == acknowledged + 1
        assert await store.check() == []


def fill(ballast: Path) -> None:
    """Take all the space that there is."""
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.root
async def test_a_store_that_finds_no_space_to_open_says_that_the_disk_is_full(small_disk: Path) -> None:
    await filled(small_disk / "sessions.db")
    ballast = small_disk / "ballast"
    fill(ballast)
    with pytest.raises(StoreFull, match="free space"):
        async with SQLiteStore(small_disk / "sessions.db"):
            pass
    ballast.unlink()
    async with SQLiteStore(small_disk / "sessions.db") as store:
        assert await store.check() == []


# --- a failing disk --------------------------------------------------------------------------------------------------


class FailingConnection(sqlite3.Connection):
    """Its commits fail as long as `failures` lasts, as if the sync had failed."""

    failures = 0
    opened = 0

    def __init__(self, *arguments: object, **settings: object) -> None:
        super().__init__(*arguments, **settings)  # type: ignore[arg-type]
        type(self).opened += 1

    def commit(self) -> None:
        if self.total_changes and type(self).failures > 0:
            type(self).failures -= 1
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        super().commit()


async def test_after_a_failed_sync_nothing_is_acknowledged_and_the_connection_is_never_used_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(path)
    original = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *args, **settings: original(*args, factory=FailingConnection, **settings)
    )
    async with SQLiteStore(path) as store:
        FailingConnection.failures, opened = 2, FailingConnection.opened
        for attempt in (1, 2):
            with pytest.raises(StoreUnavailable, match="disk I/O error") as caught:
                await append(store, 1, 6, 7)
            assert not isinstance(caught.value, StoreFull)
            assert FailingConnection.opened == opened + attempt - 1
            assert len(await store.read("telegram_1")) == 5
        assert await append(store, 1, 6, 7) is None
        assert FailingConnection.opened == opened + 2
        assert len(await store.read("telegram_1")) == 7
        assert await store.check() == []


# --- other programs --------------------------------------------------------------------------------------------------


async def test_two_stores_on_one_file_never_overwrite_each_other(path: Path) -> None:
    async with SQLiteStore(path) as one, SQLiteStore(path) as two:
        for store in (one, two):  # both know now where the sessions stand
            assert await append(store, 1, 1, 2) is None
            assert await append(store, 2, 1, 2) is None
        assert await append(one, 1, 3, 3) is None
        outcomes = await two.append(
            [
                Append(sample_head(1), sample_entries(3, 4, prefix="other")),
                Append(sample_head(2), sample_entries(3, 4)),
                Append(sample_head(3), sample_entries(1, 1)),
            ]
        )
        assert [type(outcome) for outcome in outcomes] == [StoreConflict, type(None), type(None)]
        assert await two.read("telegram_1") == sample_entries(1, 3)
        assert len(await one.read("telegram_2")) == 4
        assert await append(two, 1, 4, 4) is None
        assert await append(one, 1, 4, 5) is None
        assert await one.check() == []


async def test_a_session_that_another_store_deleted_can_begin_anew(path: Path) -> None:
    async with SQLiteStore(path) as one, SQLiteStore(path) as two:
        assert await append(one, 1, 1, 2) is None
        assert await two.delete("telegram_1")
        assert await append(two, 2, 1, 1) is None
        assert isinstance(await append(one, 1, 3, 3), StoreConflict)
        assert await append(one, 1, 1, 1) is None
        assert await one.read("telegram_1") == sample_entries(1, 1)
        assert await one.read("telegram_2") == sample_entries(1, 1)


async def test_a_lock_that_another_program_keeps_is_unavailability_that_passes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BUSY_TIMEOUT_S", 0.01)
    await filled(path)
    async with SQLiteStore(path) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="locked"):
                await append(store, 1, 6, 6)
            assert len(await store.read("telegram_1")) == 5
        assert await append(store, 1, 6, 6) is None


# --- one bad append --------------------------------------------------------------------------------------------------


async def test_a_value_that_sqlite_cannot_hold_fails_its_own_session_only(path: Path) -> None:
    async with SQLiteStore(path) as store:
        outcomes = await store.append(
            [
                Append(sample_head(1), sample_entries(1, 2)),
                Append(sample_head(2), [StoredEntry(1, "\ud800", b"private words")]),
                Append(sample_head(3), [StoredEntry(2**80, "entry", b"private words")]),
                Append(sample_head(4), sample_entries(1, 2)),
            ]
        )
        assert [outcome is None for outcome in outcomes] == [True, False, False, True]
        assert all("private" not in str(outcome) for outcome in outcomes)
        assert [stored.head.session_id async for stored in store.heads()] == ["telegram_1", "telegram_4"]


async def test_more_sessions_than_are_remembered_are_looked_up_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "MAX_KNOWN_POSITIONS", 2)
    async with SQLiteStore(path) as store:
        for sequence in range(1, 5):
            for chat_id in range(1, 6):
                assert await append(store, chat_id, sequence, sequence) is None
                assert len(store._known.positions) <= 3
        assert await store.check() == []


async def test_nothing_is_committed_behind_a_log_that_a_crash_left(path: Path, tmp_path: Path) -> None:
    """If a sync had failed before the crash, the page cache may show of that log what the disk has lost (rule R5)."""
    crashed = tmp_path / "crashed"
    async with SQLiteStore(path) as store:
        assert await append(store, 1, 1, 5) is None
        crashed.mkdir()
        for file in files.database_files(path)[:2]:
            shutil.copy(file, crashed)
    async with SQLiteStore(crashed / path.name) as store:
        alone = tmp_path / "alone.db"
        shutil.copy(crashed / path.name, alone)  # without its log
        assert await append(store, 1, 6, 6) is None
    async with SQLiteStore(alone) as store:
        assert [entry.sequence for entry in await store.read(sample_head(1).session_id)] == [1, 2, 3, 4, 5]


# --- cancellation and crashes ----------------------------------------------------------------------------------------


async def test_an_append_whose_caller_is_cancelled_runs_to_its_end_and_closing_waits_for_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SQLiteStore(path) as store:
        assert await append(store, 1, 1, 1) is None
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            begun, begin = threading.Event(), store._append

            def report_and_begin(appends: Sequence[Append]) -> list[StoreError | None]:
                begun.set()
                return begin(appends)

            monkeypatch.setattr(store, "_append", report_and_begin)
            call = asyncio.create_task(append(store, 1, 2, 100), name="append")
            await anyio.to_thread.run_sync(begun.wait)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            other.execute("COMMIT")
    async with SQLiteStore(path) as store:
        assert await store.read("telegram_1") == sample_entries(1, 100)
        assert await store.check() == []


# --- idempotency keys ------------------------------------------------------------------------------------------------


def keyed_entries(*keys: str | None) -> list[StoredEntry]:
    return [
        stored_entry(
            MessageEntry(
                id=f"entry-{sequence}",
                parent_id=None,
                timestamp=datetime(2026, 1, 1, tzinfo=UTC),
                sequence=sequence,
                message=Message.user("hello"),
                idempotency_key=key,
            )
        )
        for sequence, key in enumerate(keys, 1)
    ]


async def test_the_keys_of_a_database_of_the_first_version_are_found(path: Path) -> None:
    entries = keyed_entries("a", None, "b", "a")
    async with SQLiteStore(path) as store:
        await store.append([Append(sample_head(), entries)])
    connection = sqlite3.connect(path)
    connection.executescript(
        "DROP TABLE idempotency_keys; ALTER TABLE entries DROP COLUMN idempotency_key;"
        "ALTER TABLE entries DROP COLUMN checksum; UPDATE alembic_version SET version_num = '0001';"
    )
    connection.close()
    async with SQLiteStore(path) as store:
        assert await store.find_by_idempotency_key("telegram_1", "a") == entries[0]
        assert await store.find_by_idempotency_key("telegram_1", "b") == entries[2]
        assert await store.find_by_idempotency_key("telegram_1", "c") is None
        assert await store.read("telegram_1") == entries
        assert await store.check() == []


async def test_rows_of_the_second_version_keep_their_checksums_and_are_still_checked(path: Path) -> None:
    entries = keyed_entries("a", None, "c")
    async with SQLiteStore(path) as store:
        await store.append([Append(sample_head(), entries[:2])])
    connection = sqlite3.connect(path)
    for number, entry in enumerate(entries[:2], 1):
        said = f"1 {entry.sequence} {entry.entry_id} {entry.idempotency_key or ''}".encode()  # as it was written then
        checksum = zlib.crc32(entry.encoded, zlib.crc32(said))
        connection.execute("UPDATE entries SET checksum = ? WHERE position = ?", (checksum, number))
    connection.execute("UPDATE alembic_version SET version_num = '0002'")
    connection.commit()
    connection.close()
    async with SQLiteStore(path) as store:
        await store.append([Append(sample_head(), entries)])
        assert await store.read("telegram_1") == entries
        assert await store.check() == []
    connection = sqlite3.connect(path)
    assert [old >= 0 for (old,) in connection.execute("SELECT checksum FROM entries")] == [True, True, False]
    connection.execute("UPDATE entries SET encoded = replace(encoded, 'hello', 'hellp')")
    connection.commit()
    connection.close()
    async with SQLiteStore(path) as store:
        assert [is_damaged(entry.encoded) for entry in await store.read("telegram_1")] == [True] * 3


@pytest.mark.parametrize("key", [None, "", "a"])
def test_every_bit_of_a_row_is_in_its_checksum(key: str | None) -> None:
    row, sequence, entry_id, encoded = 7, 2**40 + 3, "0198c7a2", b'{"a":"hello"}'
    right = checksum_of(row, sequence, entry_id, key, encoded)
    flipped = [checksum_of(row ^ 1 << bit, sequence, entry_id, key, encoded) for bit in range(63)]
    flipped += [checksum_of(row, sequence ^ 1 << bit, entry_id, key, encoded) for bit in range(63)]
    for place in range(len(encoded) * 8):
        other = (int.from_bytes(encoded) ^ 1 << place).to_bytes(len(encoded))
        flipped.append(checksum_of(row, sequence, entry_id, key, other))
    flipped += [checksum_of(row, sequence, entry_id, other, encoded) for other in (None, "", "a", "b") if other != key]
    flipped.append(checksum_of(row, sequence, "0198c7a3", key, encoded))
    assert right < 0
    assert right not in flipped


async def test_an_index_of_keys_that_lost_one_is_reported(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await store.append([Append(sample_head(), keyed_entries("a", "b"))])
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM idempotency_keys WHERE idempotency_key = 'a'")
    connection.commit()
    connection.close()
    async with SQLiteStore(path) as store:
        assert await store.check() == ["1 idempotency keys are not found by the index, or belong to no entry"]


async def test_a_flipped_bit_in_a_row_is_noticed(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await store.append([Append(sample_head(), keyed_entries("a", "b"))])
    data = path.read_bytes()
    assert data.count(b"hello") == 2
    path.write_bytes(data.replace(b"hello", b"hellp", 1))
    async with SQLiteStore(path) as store:
        damaged = [entry for entry in await store.read("telegram_1") if is_damaged(entry.encoded)]
        assert len(damaged) == len(await store.check()) == 1
        assert b"hellp" in damaged[0].encoded


# --- gone under our hands --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deleted", "replaced", "without its log"])
async def test_nothing_is_acknowledged_into_a_database_that_nobody_will_find_again(how: str, path: Path) -> None:
    async with SQLiteStore(path) as store:
        assert await append(store, 1, 1, 3) is None
        await store.still_there()
        if how == "without its log":
            path.with_name("sessions.db-wal").unlink()
        else:
            path.unlink()
        if how == "replaced":
            path.write_bytes(b"")
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="deleted or replaced"):
                await append(store, 1, 4, 4)
            with pytest.raises(StoreUnavailable, match="deleted or replaced"):
                await store.still_there()
        assert len(await store.read("telegram_1")) == 3
    async with SQLiteStore(path) as store:
        left = await store.read("telegram_1")
        assert left == (sample_entries(1, 3) if how == "without its log" else [])
        assert await append(store, 2, 1, 1) is None


async def test_a_database_that_does_not_say_its_version_is_damaged_not_new(path: Path) -> None:
    await filled(path)
    for version in ("NULL", "'\x10002'", "2"):
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("DROP TABLE alembic_version")
            other.execute("CREATE TABLE alembic_version (version_num)")
            other.execute(f"INSERT INTO alembic_version VALUES ({version})")
        with pytest.raises(StoreCorrupt, match="version"):
            async with SQLiteStore(path):
                pass


async def test_a_damaged_row_is_mended_and_a_sound_one_left_alone(path: Path) -> None:
    entries = sample_entries(1, 3)
    async with SQLiteStore(path) as store:
        assert await append(store, 1, 1, 3) is None
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE entries SET encoded = '{}' WHERE sequence = 2")
    async with SQLiteStore(path) as store:
        assert [is_damaged(entry.encoded) for entry in await store.read("telegram_1")] == [False, True, False]
        forged = sample_entries(1, 3, text="forged")
        assert await store.mend("telegram_1", [forged[0], entries[1], forged[2]]) == 1
        assert await store.mend("telegram_9", entries) == 0
        assert await store.read("telegram_1") == entries
        assert await store.check() == []
