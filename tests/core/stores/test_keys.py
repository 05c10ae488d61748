"""That a key is new is known without looking, and no key that was used is ever taken for new."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.stores.base import Append, StoredEntry, stored_entry
from miniclaw_sessions.core.stores.jsonl.store import JSONLStore
from miniclaw_sessions.core.stores.keys import MAX_SESSIONS, KeyFilter, UsedKeys
from miniclaw_sessions.core.stores.sqlite.store import SQLiteStore
from miniclaw_sessions.errors import StoreUnavailable
from miniclaw_sessions.testing import sample_head

pytestmark = pytest.mark.anyio

SESSION = sample_head(1).session_id
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def entry(sequence: int, key: str | None) -> StoredEntry:
    said = Message.user("hello")
    return stored_entry(
        MessageEntry(
            id=f"e{sequence}", parent_id=None, timestamp=NOW, sequence=sequence, message=said, idempotency_key=key
        )
    )


def appended(*keys: str | None, first: int = 1, chat_id: int = 1) -> list[Append]:
    return [Append(sample_head(chat_id), [entry(sequence, key) for sequence, key in enumerate(keys, first)])]


@pytest.fixture(params=[SQLiteStore, JSONLStore])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], SQLiteStore | JSONLStore]:
    return lambda: request.param(tmp_path / "store")


def test_a_filter_knows_all_that_was_added_and_takes_few_others_for_it() -> None:
    keys = KeyFilter([f"early {number}" for number in range(5_000)])
    for number in range(5_000):
        keys.add(f"late {number}")
    assert keys.room >= 0
    assert all(f"early {number}" in keys and f"late {number}" in keys for number in range(5_000))
    assert sum(f"other {number}" in keys for number in range(10_000)) < 200


def test_an_empty_filter_has_nothing_in_it_and_room() -> None:
    assert "" not in KeyFilter()
    assert KeyFilter().room > 256


async def test_a_new_key_is_answered_without_looking_and_a_used_one_is_found(
    opened: Callable[[], SQLiteStore | JSONLStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as store:
        await store.append(appended("a", None, "b"))
        assert await store.find_by_idempotency_key(SESSION, "x") is None
        await store.append(appended("c", "a", first=4))
        found = [await store.find_by_idempotency_key(SESSION, key) for key in "abc"]
        assert [one and one.sequence for one in found] == [1, 3, 4]

        def refuse(*_: object, **__: object) -> None:
            raise StoreUnavailable("nobody may look")

        with monkeypatch.context() as patch:
            patch.setattr(store, "_read" if isinstance(store, SQLiteStore) else "_find_by_key", refuse)
            for number in range(20):
                assert await store.find_by_idempotency_key(SESSION, f"new {number}") is None
            with pytest.raises(StoreUnavailable):
                await store.find_by_idempotency_key(SESSION, "c")
    async with opened() as store:
        assert await store.find_by_idempotency_key(SESSION, "x") is None
        assert await store.find_by_idempotency_key(SESSION, "c") == entry(4, "c")


async def test_what_is_appended_while_the_keys_are_read_is_found(
    opened: Callable[[], SQLiteStore | JSONLStore],
) -> None:
    async with opened() as store:
        await store.append(appended("k0"))
        outcomes: list[object] = []

        async def write() -> None:
            for number in range(1, 40):
                outcomes.extend(await store.append(appended(f"k{number}", first=number + 1)))

        async def ask() -> None:
            for number in range(40):
                store._keys.forget(SESSION)
                await store.find_by_idempotency_key(SESSION, f"other {number}")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            tasks.start_soon(ask)
        assert outcomes == [None] * 39
        for number in range(40):
            found = await store.find_by_idempotency_key(SESSION, f"k{number}")
            assert found is not None
            assert found.sequence == number + 1


async def test_a_session_that_is_made_anew_has_none_of_the_old_keys(
    opened: Callable[[], SQLiteStore | JSONLStore],
) -> None:
    async with opened() as store:
        await store.append(appended("a"))
        assert await store.find_by_idempotency_key(SESSION, "b") is None
        await store.delete(SESSION)
        assert await store.find_by_idempotency_key(SESSION, "a") is None
        await store.append(appended("b"))
        assert await store.find_by_idempotency_key(SESSION, "b") == entry(1, "b")


async def test_keys_that_another_program_appended_are_found_once_the_conflict_told_of_it(tmp_path: Path) -> None:
    async with SQLiteStore(tmp_path / "store") as store, SQLiteStore(tmp_path / "store") as other:
        await store.append(appended("a"))
        assert await store.find_by_idempotency_key(SESSION, "b") is None
        await other.append(appended("b", first=2))
        (conflict,) = await store.append([Append(sample_head(1), [stored_entry_of_another()])])
        assert conflict is not None
        assert await store.find_by_idempotency_key(SESSION, "b") == entry(2, "b")


def stored_entry_of_another() -> StoredEntry:
    return stored_entry(
        MessageEntry(id="mine", parent_id=None, timestamp=NOW, sequence=2, message=Message.user("hello"))
    )


async def test_a_filter_that_is_full_is_made_anew_and_few_sessions_are_remembered() -> None:
    stored: set[str] = set()

    async def read(_: str) -> KeyFilter:
        return KeyFilter(stored)

    used = UsedKeys(read)
    room = KeyFilter().room
    assert not await used.may_have(SESSION, "k0")
    for number in range(room + 10):
        stored.add(f"k{number}")
        used.note(appended(f"k{number}"))
        assert await used.may_have(SESSION, f"k{number}")
    assert not await used.may_have(SESSION, "another")
    stored.clear()
    for number in range(MAX_SESSIONS + 10):
        await used.may_have(f"s{number}", "k")
    assert len(used.sessions) <= MAX_SESSIONS
