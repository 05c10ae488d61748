"""The search index of a SQLite store: it finds what reading finds, and is made anew whenever in doubt."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.streams.text import TextReceiveStream
from hypothesis import given, settings
from hypothesis import strategies as st

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.core.history.search import Hit, Search
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.stores.base import Append, Store, StoredEntry, stored_entry
from miniclaw_sessions.core.stores.encrypted import EncryptedStore
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.core.stores.sqlite import searching
from miniclaw_sessions.core.stores.sqlite.reader import SQLiteReader
from miniclaw_sessions.core.stores.sqlite.search_file import SearchFile, positions_with
from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore
from miniclaw_sessions.core.stores.trigrams import parts_of
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import InvalidSearch, StoreFull, StoreUnavailable
from miniclaw_sessions.testing import sample_head

pytestmark = pytest.mark.anyio

_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


def entry(sequence: int, text: str, prefix: str = "entry-") -> StoredEntry:
    return stored_entry(
        MessageEntry(
            id=f"{prefix}{sequence}",
            parent_id=None,
            timestamp=_NOON + timedelta(seconds=sequence),
            sequence=sequence,
            message=Message.user(text),
        )
    )


async def say(store: Store, chat: int, first: int, *texts: str, prefix: str = "entry-") -> None:
    entries = [entry(first + number, text, prefix) for number, text in enumerate(texts)]
    assert await store.append([Append(sample_head(chat), entries)]) == [None]


async def index_all(store: Store) -> None:
    while await store.index(100):
        pass


async def found(store: Store, query: str, *, cursor: str | None = None, **filters: Any) -> list[tuple[str, int]]:
    """All hits of a search, page by page."""
    hits: list[Hit] = []
    while True:
        page = await store.search(Search.parse(query, cursor=cursor, **filters))
        hits += page.hits
        if (cursor := page.cursor) is None:
            return [(hit.session_id, hit.sequence) for hit in hits]


# --- it finds what reading finds -------------------------------------------------------------------------------------

_WORDS = st.sampled_from(["ab", "abc", "abcd", "bcd", "a b", "xyzzy", "会议", "会", "会议室", "#1", '"', "é", "\n"])
_TEXTS = st.lists(st.lists(_WORDS, min_size=1, max_size=5).map("".join), min_size=1, max_size=12)


@settings(deadline=None)
@given(
    chats=st.lists(_TEXTS, min_size=1, max_size=3),
    queries=st.lists(st.lists(_WORDS, min_size=1, max_size=2).map(" ".join), min_size=1, max_size=4),
    indexed=st.integers(0, 30),
    in_one_chat=st.booleans(),
)
async def test_an_index_in_any_state_finds_what_reading_finds(
    chats: list[list[str]], queries: list[str], indexed: int, *, in_one_chat: bool, tmp_path_factory: Any
) -> None:
    filters: dict[str, Any] = {"session_ids": frozenset({"telegram_0"})} if in_one_chat else {}
    database = tmp_path_factory.mktemp("search") / "sessions.db"
    async with SQLiteStore(database) as store, MemoryStore() as read:
        for chat, texts in enumerate(chats):
            await say(store, chat, 1, *texts)
            await say(read, chat, 1, *texts)
            if indexed:
                await store.index(indexed)
        for query in queries:
            try:
                Search.parse(query)
            except ValueError:
                continue
            assert sorted(await found(store, query, limit=2, **filters)) == sorted(await found(read, query, **filters))


async def test_a_page_stops_looking_after_a_while_and_the_next_one_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "MOST_LOOKED_AT", 5)
    monkeypatch.setattr(searching, "SAMPLE", 3)
    monkeypatch.setattr(searching, "FEW", 0)
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, *["ok" if n % 9 == 0 else "no luck" for n in range(40)])
        for state in ("nothing", "all"):
            if state == "all":
                await index_all(store)
            page = await store.search(Search.parse("luck -no"))
            assert (list(page.hits), page.cursor is None) == ([], False), "everything was looked at"
            for query in ("ok", "luck -no", "no -ok", "luck"):
                expected = [n + 1 for n in range(40) if (n % 9 == 0) == (query == "ok") and query != "luck -no"]
                assert [sequence for _, sequence in await found(store, query)] == expected[::-1], (state, query)


async def test_what_was_said_before_there_was_an_index_is_found_while_it_is_filled(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, *["needle" if n in (0, 30) else "hay" for n in range(40)])
        assert await store.index(5) == 5
        await say(store, 1, 41, "a new needle")
        page = await store.search(Search.parse("needle"))
        assert [hit.sequence for hit in page.hits] == [41, 31, 1]
        assert page.behind == 36
        await index_all(store)
        assert (await store.search(Search.parse("needle"))).behind == 0


async def test_what_follows_a_nul_is_found_and_its_filters_hold(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, "before\0needle")
        await index_all(store)
        assert await found(store, "needle", role="user", channel="telegram") == [("telegram_1", 1)]


@pytest.mark.parametrize("cursor", ["9" * 19, "9" * 40, "-1", "x", "²"])
async def test_a_cursor_from_a_stranger_is_refused(path: Path, cursor: str) -> None:
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, "a needle")
        with pytest.raises(InvalidSearch):
            await found(store, "needle", cursor=cursor)


async def test_a_search_that_cannot_be_judged_does_not_condemn_the_database(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, "a needle")
        with pytest.raises(searching.SearchFailed):
            await store.search(Search(terms=("needle",), before=datetime(2026, 1, 1)))  # noqa: DTZ001 - without a zone
        assert not store.found_damaged()
        assert len(await found(store, "needle")) == 1


# --- made anew -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"no database at all" * 300, b""])
async def test_a_damaged_index_is_made_anew(path: Path, damage: bytes) -> None:
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, "a needle")
        await index_all(store)
    SearchFile(path).path.write_bytes(damage)
    async with SQLiteStore(path) as store:
        assert await found(store, "needle") == [("telegram_1", 1)]
        await say(store, 1, 2, "another needle")
        await index_all(store)
        page = await store.search(Search.parse("needle"))
        assert (len(page.hits), page.behind) == (2, 0)
        assert await store.check() == []


async def test_an_index_that_is_damaged_while_it_is_asked_is_thrown_away(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, *[f"needle {n}" for n in range(300)])
        await index_all(store)
    file = SearchFile(path).path
    with file.open("r+b") as index:
        index.seek(3 * 4096)
        index.write(b"\xff" * (file.stat().st_size - 3 * 4096))
    async with SQLiteStore(path) as store:
        assert len(await found(store, "needle", limit=100)) == 300
        await index_all(store)
        page = await store.search(Search.parse("needle 17", limit=50))
        assert (len(page.hits), page.behind) == (13, 0)


async def test_check_throws_an_index_away_that_would_hide_what_was_said(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, *[f"needle {n}" for n in range(300)])
        await index_all(store)
    with closing(sqlite3.connect(SearchFile(path).path)) as index, index:  # pages of their own kind, without a word
        index.execute("UPDATE said_data SET block = zeroblob(length(block)) WHERE id > 10")
    async with SQLiteStore(path) as store:
        assert await store.check() == []
        assert len(await found(store, "needle", limit=100)) == 300


async def test_a_database_that_was_put_back_has_no_use_for_the_index_of_what_came_after(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, "first")
        await index_all(store)
    shutil.copy(path, path.with_suffix(".old"))
    async with SQLiteStore(path) as store:
        await say(store, 1, 2, "lost word", "lost again")
        await index_all(store)
    shutil.copy(path.with_suffix(".old"), path)
    async with SQLiteStore(path) as store:
        await say(store, 1, 2, "said instead", "third", "fourth", prefix="other-")
        await index_all(store)
        assert await found(store, "instead") == [("telegram_1", 2)]
        assert await found(store, "lost") == []


async def test_an_index_of_another_version_is_made_anew(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, "a needle")
        await index_all(store)
    with closing(sqlite3.connect(SearchFile(path).path)) as index, index:
        index.execute("PRAGMA user_version = 99")
    async with SQLiteStore(path) as store:
        await index_all(store)
        page = await store.search(Search.parse("needle"))
        assert (len(page.hits), page.behind) == (1, 0)


async def test_where_the_index_cannot_be_written_everything_is_said_and_found_all_the_same(path: Path) -> None:
    SearchFile(path).path.mkdir(parents=True)
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, "a needle")
        with pytest.raises(StoreUnavailable, match=r"sessions\.db-search"):
            await store.index(10)
        page = await store.search(Search.parse("needle"))
        assert [hit.sequence for hit in page.hits] == [1]


async def test_an_index_that_is_removed_while_it_is_open_is_made_anew(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, "a needle")
        await index_all(store)
        SearchFile(path).path.unlink()
        assert await found(store, "needle") == [("telegram_1", 1)]
        await index_all(store)
        page = await store.search(Search.parse("needle"))
        assert (len(page.hits), page.behind) == (1, 0)


async def test_whoever_only_reads_asks_the_index_and_makes_none(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, *[f"needle {n}" for n in range(30)])
        await index_all(store)
        await say(store, 1, 31, "a new needle")
        async with SQLiteReader(path) as reader:
            assert len(await found(reader, "needle")) == 31
            assert (await reader.search(Search.parse("new"))).behind == 1
    for file in path.parent.glob("*-search*"):
        file.unlink()
    async with SQLiteReader(path) as reader:
        assert len(await found(reader, "needle")) == 31
    assert list(path.parent.glob("*-search*")) == []


_KILLED = """
import asyncio, sys
from pathlib import Path
from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore

async def main():
    async with SQLiteStore(Path(sys.argv[1])) as store:
        print("ready", flush=True)
        while await store.index(7):
            print("indexed", flush=True)
        print("done", flush=True)

asyncio.run(main())
"""


@pytest.mark.proof
async def test_whoever_is_killed_while_indexing_leaves_an_index_that_goes_on(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, *[f"needle {n}" for n in range(400)])
    for life in range(5):
        process = await anyio.open_process([sys.executable, "-c", _KILLED, str(path)], stderr=None)
        assert process.stdout is not None
        lines = TextReceiveStream(process.stdout)
        seen = ""
        while seen.count("indexed") < life * 3 and "done" not in seen:
            seen += await lines.receive()
        process.kill()
        await process.wait()
        await process.aclose()
    async with SQLiteStore(path) as store:
        page = await store.search(Search.parse("needle"))
        assert page.behind < 400 - 7 * 12  # it went on, and did not begin anew
        assert len(await found(store, "needle", limit=100)) == 400
        await index_all(store)
        assert len(await found(store, "needle", limit=100)) == 400
        assert await store.check() == []


async def test_on_a_full_disk_what_is_indexed_stays_and_appends_go_on(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, "a needle")
        await index_all(store)
        await say(store, 1, 2, *[f"another needle {'x' * n}" for n in range(2_000)])
        connection = store._search_file._writer
        assert connection is not None
        connection.execute("PRAGMA max_page_count = 20")  # a quota for this file alone
        with pytest.raises(StoreFull):
            await index_all(store)
        await say(store, 1, 2_002, "a last needle")
        assert len(await found(store, "needle", limit=1_000)) == 2_002
        await index_all(store)
        assert (await store.search(Search.parse("needle"))).behind == 0


# --- deleted, encrypted ----------------------------------------------------------------------------------------------


def candidates(path: Path, term: str) -> Sequence[int]:
    with closing(sqlite3.connect(f"file:{SearchFile(path).path}?mode=ro", uri=True)) as index:
        return positions_with(index, [(part,) for part in parts_of(term)], 2**62, 10)


async def test_what_is_deleted_is_taken_out_of_the_index_at_once(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, "a secret", "a needle", "not indexed")
        await say(store, 2, 1, "a needle")
        await store.index(3)
        await say(store, 1, 4, "a late secret")
        assert await store.delete("telegram_1")
        assert candidates(path, "secret") == []
        assert await found(store, "secret") == []
        await index_all(store)
        assert len(candidates(path, "needle")) == 1
        assert await found(store, "needle") == [("telegram_2", 1)]
        assert await store.check() == []
        await say(store, 1, 1, "a needle again")
        await index_all(store)
        assert sorted(await found(store, "needle")) == [("telegram_1", 1), ("telegram_2", 1)]


async def test_what_was_read_to_be_indexed_is_not_put_in_behind_its_deletion(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, deleted = anyio.Event(), anyio.Event()
    async with SQLiteStore(path) as store:
        await say(store, 2, 1, "a needle")
        await index_all(store)
        await say(store, 1, 1, "a secret")
        aside = store._aside

        async def late(change: Any, *arguments: Any) -> Any:
            if change == store._search_file.add:
                read.set()
                await deleted.wait()
            return await aside(change, *arguments)

        monkeypatch.setattr(store, "_aside", late)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.index, 10, name="index")
            await read.wait()
            await store.delete("telegram_1")
            deleted.set()
        assert candidates(path, "secret") == []


async def test_a_chat_that_is_too_long_to_be_taken_out_makes_the_index_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "MOST_TAKEN_OUT", 2)
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, "a secret", "a secret", "a secret")
        await say(store, 2, 1, "a needle")
        await index_all(store)
        assert await store.delete("telegram_1")
        assert not SearchFile(path).path.exists()
        assert await found(store, "needle") == [("telegram_2", 1)]


async def test_purge_leaves_no_trace_of_what_was_deleted_in_the_index(path: Path) -> None:
    def traces() -> list[str]:
        return [file.name for file in path.parent.glob("*-search*") if b"qxz" in file.read_bytes()]

    async with SQLiteStore(path) as store:
        await say(store, 1, 1, "qxz")
        await say(store, 2, 1, "a needle")
        await index_all(store)
        assert traces()
        assert await store.delete("telegram_1")
        assert await store.purge()
        assert traces() == []
        page = await store.search(Search.parse("needle"))
        assert ([hit.session_id for hit in page.hits], page.behind) == (["telegram_2"], 0)


async def test_a_deletion_that_was_cut_off_makes_the_index_anew(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, "a secret")
        await say(store, 2, 1, "a needle")
        await index_all(store)
        store._search_file.begin_to_take_out("telegram_1")
        await store._write(store._delete, "telegram_1")
    async with SQLiteStore(path) as store:
        await index_all(store)
        assert candidates(path, "secret") == []
        assert await found(store, "needle") == [("telegram_2", 1)]


async def test_an_encrypted_store_has_no_index_and_leaves_none_from_before(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await say(store, 1, 1, "a secret")
        await index_all(store)
        await store.delete("telegram_1")
    async with EncryptedStore(SQLiteStore(path), KeyRing([b"k" * 32])) as store:
        await store.drop_index()  # which a workspace does once the keys are known to be right
        assert list(path.parent.glob("*-search*")) == []
        await say(store, 1, 1, "a needle in the hay")
        await index_all(store)
        assert await found(store, "needle") == [("telegram_1", 1)]
        for file in path.parent.iterdir():
            assert b"needle" not in file.read_bytes()
            assert b"nee" not in file.read_bytes()


# --- in the background -----------------------------------------------------------------------------------------------


async def test_the_manager_indexes_what_was_committed_and_catches_up_with_what_was_left(tmp_path: Path) -> None:
    file = SearchFile(tmp_path / "sessions.db")

    def names(term: str) -> bool:
        with suppress(sqlite3.OperationalError):  # it is being made
            return bool(candidates(tmp_path / "sessions.db", term))
        return False

    async def is_indexed(term: str) -> None:
        with anyio.fail_after(60):
            while not names(term):  # noqa: ASYNC110 - a file has no event
                await anyio.sleep(0.02)

    async with SessionManager(tmp_path, store="sqlite:") as manager:
        session = await manager.get_or_create("telegram", "1")
        await session.add_message(Message.user("a needle"))
        await is_indexed("needle")
        await session.add_message(Message.user("a thimble"))
        await is_indexed("thimble")
    file.remove()
    async with SessionManager(tmp_path, store="sqlite:"):
        await is_indexed("needle")
