"""Every store keeps every promise."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from miniclaw_sessions.core.stores import open_store
from miniclaw_sessions.core.stores.base import Append, Store, StoredHead
from miniclaw_sessions.core.stores.jsonl.store import JSONLStore
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.core.stores.none import NoStore
from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore
from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.testing import (
    SEARCH_CHECKS,
    SHARED_STORE_CHECKS,
    STORE_CHECKS,
    FaultyStore,
    StoreCheck,
    StoreMaker,
    check_store,
    sample_entries,
    sample_head,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite", "jsonl", "faulty", "postgresql"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> StoreMaker:
    numbers = count(1)
    made: dict[Store, Path] = {}

    def open_path(path: Path) -> Store:
        store: Store = JSONLStore(path) if request.param == "jsonl" else SQLiteStore(path)
        made[store] = path
        return store

    def new() -> Store:
        return open_path(tmp_path / f"{next(numbers)}.{request.param}")

    def reopen(closed: Store) -> Store:
        return open_path(made[closed])

    if request.param == "postgresql":
        url: str = request.getfixturevalue("postgresql_url")
        return StoreMaker(lambda: PostgreSQLStore(url), lambda _closed: PostgreSQLStore(url))
    if request.param == "memory":
        return StoreMaker(MemoryStore, lambda closed: closed)
    if request.param == "faulty":
        return StoreMaker(lambda: FaultyStore(MemoryStore()))
    return StoreMaker(new, reopen)


@pytest.mark.parametrize("check", [*STORE_CHECKS, *SEARCH_CHECKS], ids=lambda check: check.__name__)
async def test_a_store_keeps_its_promise(check: StoreCheck, stores: StoreMaker) -> None:
    await check(stores)


@pytest.mark.parametrize("check", SHARED_STORE_CHECKS, ids=lambda check: check.__name__)
async def test_a_shared_store_keeps_its_promise(check: StoreCheck, postgresql_url: str) -> None:
    assert PostgreSQLStore(postgresql_url).shared
    await check(StoreMaker(lambda: PostgreSQLStore(postgresql_url), lambda _other: PostgreSQLStore(postgresql_url)))


async def test_check_store_runs_every_check_and_names_the_broken_promise() -> None:
    class Forgetful(MemoryStore):
        async def delete(self, session_id: str, *, known: StoredHead | None = None) -> bool:
            await super().delete(session_id, known=known)
            return False

    await check_store(MemoryStore)
    with pytest.raises(AssertionError, match="deleting says that there was a session"):
        await check_store(Forgetful)


async def test_the_store_none_acknowledges_and_keeps_nothing() -> None:
    async with NoStore() as store:
        assert await store.append([Append(sample_head(), sample_entries(1, 3))]) == [None]
        assert await store.append([Append(sample_head(), sample_entries(1, 1, prefix="other"))]) == [None]
        assert await store.head("telegram_1") is None
        assert await store.read("telegram_1") == await store.read_newest("telegram_1", 5) == []
        assert [stored async for stored in store.heads()] == []
        assert await store.delete("telegram_1") is False
        assert await store.check() == []
        assert not store.durable
        assert not store.keeps_entries


@pytest.mark.parametrize(
    ("url", "kind"),
    [("none:", "NoStore"), ("memory:", "MemoryStore"), ("sqlite:", "SQLiteStore"), ("jsonl:", "JSONLStore")],
)
async def test_a_url_names_a_store(url: str, kind: str, tmp_path: Path) -> None:
    async with open_store(url, tmp_path) as store:
        assert type(store).__name__ == kind
        assert await store.append([Append(sample_head(), sample_entries(1, 1))]) == [None]


def test_sqlite_lives_in_the_workspace_or_where_its_url_says() -> None:
    assert open_store("sqlite:", Path("/work space")).files[0] == Path("/work space/sessions.db")
    assert open_store("sqlite:///srv/a?b#c.db", Path("/elsewhere")).files[0] == Path("/srv/a?b#c.db")


async def test_jsonl_lives_in_the_workspace_or_where_its_url_says(tmp_path: Path) -> None:
    for url, path in (("jsonl:", tmp_path / "transcripts"), (f"jsonl://{tmp_path}/a b?c#d", tmp_path / "a b?c#d")):
        async with open_store(url, tmp_path) as store:
            assert await store.append([Append(sample_head(), sample_entries(1, 1))]) == [None]
        assert {file.name for file in path.iterdir()} == {".lock", "telegram_1.jsonl"}


@pytest.mark.parametrize(
    "url",
    [
        *("", "sqlite", "sqlite:name.db", "sqlite://host/x.db", "sqlite:///", "memory:x", "nonsense:"),
        *("jsonl", "jsonl:name", "jsonl:/absolute", "jsonl://host/directory", "jsonl:///", "jsonl:///a/", "JSONL:"),
    ],
)
def test_an_unknown_url_is_refused_with_the_value_and_the_possible_ones(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url, Path("/"))
    assert repr(url) in str(caught.value)
    assert all(possible in str(caught.value) for possible in ("none:", "memory:", "sqlite:", "jsonl:"))


@pytest.mark.parametrize("url", ["postgres://user:secret@host/db", "postgresql://user:secret@host/db"])
def test_a_refused_url_does_not_show_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url, Path("/"))
    assert "secret" not in str(caught.value)
