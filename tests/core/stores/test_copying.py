"""A store is copied in batches that neither a long transcript nor large entries make too large."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import pytest

from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.stores.base import BATCH_BYTES, Append, SessionHead, StoredEntry, StoredHead
from miniclaw_sessions.core.stores.copying import GROUP, copy_store
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore
from miniclaw_sessions.errors import StoreError
from miniclaw_sessions.testing import sample_entries, sample_head

pytestmark = pytest.mark.anyio


class Recorder(MemoryStore):
    """Notes how many entries and bytes come in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, int]] = []

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        entries = [entry for append in appends for entry in append.entries]
        self.calls.append((len(entries), sum(len(entry.encoded) for entry in entries)))
        return await super().append(appends)


class Restless(MemoryStore):
    """Something happens right before the first reads, one thing before each."""

    def __init__(self) -> None:
        super().__init__()
        self.happenings: list[Callable[[], Awaitable[object]]] = []

    async def read(self, session_id: str, *, after: int = 0, limit: int | None = None) -> list[StoredEntry]:
        if self.happenings:
            await self.happenings.pop(0)()
        return await super().read(session_id, after=after, limit=limit)


def transcript(chat_id: str, sizes: Sequence[int], incarnation: str = "first") -> Append:
    key = SessionKey("telegram", chat_id)
    head = SessionHead(key.session_id, key, f"{incarnation} of {chat_id}", datetime(2026, 1, 1, tzinfo=UTC))
    return Append(head, [StoredEntry(n, f"{chat_id}/{n}", b"x" * size, f"k{n}") for n, size in enumerate(sizes, 1)])


async def test_batches_are_bounded_in_number_and_in_bytes_and_nothing_is_left_out() -> None:
    source, target = MemoryStore(), Recorder()
    appends = [
        transcript("empty", []),
        transcript("large", [BATCH_BYTES // 3] * 10),
        transcript("long", [10] * (2 * GROUP + 1)),
        transcript("short", [10]),
    ]
    assert await source.append(appends) == [None] * 4
    copied = await copy_store(source, target)
    assert (copied.sessions, copied.entries, copied.problems) == (4, 2 * GROUP + 12, [])
    assert max(count for count, _ in target.calls) == GROUP
    assert max(size for _, size in target.calls) < 2 * BATCH_BYTES
    for append in appends:
        assert await target.head(append.head.session_id) == await source.head(append.head.session_id)
        assert await target.read(append.head.session_id) == append.entries
    await copy_store(source, target)  # again: what is there already changes nothing
    assert await target.read("telegram_long") == appends[2].entries


async def test_a_session_that_another_one_replaces_while_it_is_read_again_is_copied_as_it_is_then() -> None:
    source, target = Restless(), MemoryStore()
    await source.append([transcript("a", [10] * 3), transcript("b", [10])])
    other = transcript("a", [20] * 6, "second")

    async def nothing() -> None: ...

    async def said_meanwhile() -> None:  # so that there is a second pass
        await source.append([transcript("a", [10] * 5)])

    async def replaced() -> None:
        await source.delete("telegram_a")
        await source.append([other])

    source.happenings = [nothing, nothing, said_meanwhile, nothing, replaced]
    copied = await copy_store(source, target)
    assert source.happenings == []
    assert (copied.sessions, copied.entries, copied.different) == (2, 7, [])
    assert await target.head("telegram_a") == await source.head("telegram_a")
    assert await target.read("telegram_a") == other.entries


class Flickering(MemoryStore):
    """One session is made again whenever all are named, and deleted before they are given."""

    async def session_ids(self) -> list[str]:
        await self.append([transcript("b", [10], "another")])
        names = await super().session_ids()
        await self.delete("telegram_b")
        return names


async def test_a_session_that_is_deleted_and_made_again_all_the_time_is_not_unreadable() -> None:
    source, target = Flickering(), MemoryStore()
    await source.append([transcript("a", [10] * 3)])
    copied = await copy_store(source, target)
    assert (copied.sessions, copied.problems, copied.unreadable) == (1, [], [])


class Answering(PostgreSQLStore):
    """Another gateway stores a message in a session that is about to be deleted."""

    async def delete(self, session_id: str, *, known: StoredHead | None = None) -> bool:
        stored = await self.head(session_id)
        assert stored is not None
        number = stored.last_sequence + 1
        assert await self.append([Append(stored.head, sample_entries(number, number))]) == [None]
        return await super().delete(session_id, known=known)


async def test_a_copy_deletes_nothing_that_has_gone_on_in_a_target_that_is_in_use(postgresql_url: str) -> None:
    source = Restless()
    await source.append([Append(sample_head(number), sample_entries(1, 2)) for number in (1, 2)])

    async def nothing() -> None: ...

    async def deleted() -> None:
        await source.delete("telegram_2")

    async with Answering(postgresql_url) as target:
        await target.append([Append(sample_head(3), sample_entries(1, 2))])
        source.happenings = [nothing, nothing, nothing, deleted]
        copied = await copy_store(source, target, delete_others=True)
        assert source.happenings == []
        assert len(copied.different) == 2, copied
        assert all("another process has gone on with it" in one for one in copied.different)
        for session_id in ("telegram_2", "telegram_3"):
            assert len(await target.read(session_id)) == 3
