"""The test kit itself: a clock that only the test moves, and a store that fails on request."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from miniclaw_sessions.clock import Clock, sleep_unless
from miniclaw_sessions.core.stores.base import Append, Store
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.core.stores.none import NoStore
from miniclaw_sessions.errors import StoreConflict, StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from miniclaw_sessions.testing import FakeClock, FaultyStore, sample_entries, sample_head

pytestmark = pytest.mark.anyio

START = datetime(2026, 1, 1, tzinfo=UTC)


# --- the clock -------------------------------------------------------------------------------------------------------


async def test_time_stands_still_until_it_is_moved() -> None:
    clock: Clock = FakeClock(START)
    assert clock.now() == clock.now() == START
    assert clock.monotonic() == clock.monotonic()


async def test_advancing_moves_both_clocks_and_jumping_only_the_wall() -> None:
    clock = FakeClock(START)
    begun = clock.monotonic()
    await clock.advance(30)
    assert clock.now() == START + timedelta(seconds=30)
    assert clock.monotonic() == begun + 30
    clock.jump(-86400)
    assert clock.now() == START + timedelta(seconds=30 - 86400)
    assert clock.monotonic() == begun + 30


async def test_sleepers_wake_in_order_of_deadline_each_at_its_own_time() -> None:
    clock = FakeClock(START)
    woken: list[tuple[int, datetime]] = []

    async def sleep(seconds: int) -> None:
        await clock.sleep(seconds)
        woken.append((seconds, clock.now()))

    async with anyio.create_task_group() as tasks:
        for seconds in (30, 10, 20):
            tasks.start_soon(sleep, seconds, name=f"sleep {seconds}")
        await clock.advance(0)
        assert clock.sleepers == 3
        await clock.advance(29)
        assert woken == [(seconds, START + timedelta(seconds=seconds)) for seconds in (10, 20)]
        await clock.advance(1)
        assert woken[-1] == (30, START + timedelta(seconds=30))
    assert clock.sleepers == 0


async def test_a_task_that_sleeps_again_and_again_wakes_every_time() -> None:
    clock = FakeClock(START)
    ticks: list[datetime] = []

    async def tick() -> None:
        while True:
            await clock.sleep(0.1)
            ticks.append(clock.now())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick, name="tick")
        await clock.advance(60)
        assert len(ticks) == 600
        for _ in range(10):
            await clock.advance(0.1)
        assert len(ticks) == 610
        tasks.cancel_scope.cancel()


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = FakeClock()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clock.sleep, 30, name="sleep")
        await clock.advance(0)
        assert clock.sleepers == 1
        tasks.cancel_scope.cancel()
    assert clock.sleepers == 0
    assert "0 sleepers" in repr(clock)


async def test_sleeping_no_time_returns_at_once() -> None:
    clock = FakeClock()
    await clock.sleep(0)
    await clock.sleep(-1)
    assert clock.sleepers == 0


@pytest.mark.parametrize("event_first", [True, False])
async def test_a_sleep_can_be_ended_by_an_event(event_first: bool) -> None:
    clock = FakeClock()
    event = anyio.Event()
    outcomes: list[bool] = []

    async def wait() -> None:
        outcomes.append(await sleep_unless(clock, 30, event))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, name="wait")
        await clock.advance(29)
        assert outcomes == []
        if event_first:
            event.set()
        else:
            await clock.advance(1)
    assert outcomes == [event_first]
    assert clock.sleepers == 0


async def test_ids_are_uuids_in_order_and_the_same_in_every_run() -> None:
    clock, same = FakeClock(START), FakeClock(START)
    ids = []
    for _ in range(100):
        ids.append(clock.new_id())
        assert same.new_id() == ids[-1]
    clock.jump(-1_000_000)
    ids.append(clock.new_id())
    await clock.advance(2_000_000)
    ids.append(clock.new_id())
    assert ids == sorted(set(ids))
    assert all(str(uuid.UUID(text)) == text and uuid.UUID(text).version == 7 for text in ids)
    assert clock.jitter(10) == 10


# --- the faulty store ------------------------------------------------------------------------------------------------


async def test_without_faults_it_does_what_the_real_store_does_and_counts_calls() -> None:
    async with FaultyStore(MemoryStore()) as store:
        as_any_store: Store = store
        assert await as_any_store.append([Append(sample_head(), sample_entries(1, 2))]) == [None]
        assert await store.read("telegram_1") == await store.read_newest("telegram_1", 5) == sample_entries(1, 2)
        assert [stored.last_sequence async for stored in store.heads()] == [2]
        assert await store.head("telegram_1") is not None
        assert await store.check() == []
        assert await store.delete("telegram_1") is True
        assert store.calls == dict.fromkeys(("append", "read", "read_newest", "heads", "head", "check", "delete"), 1)
        assert store.files == ()
    assert not FaultyStore(NoStore()).keeps_entries
    assert FaultyStore(MemoryStore()).keeps_entries


async def test_the_next_appends_fail_and_then_no_more() -> None:
    store = FaultyStore(MemoryStore())
    store.fail_next(2, StoreFull("full"))
    store.fail_next()
    for kind in (StoreFull, StoreFull, StoreUnavailable):
        with pytest.raises(kind):
            await store.append([Append(sample_head(), sample_entries(1, 1))])
    assert await store.read("telegram_1") == []
    assert await store.append([Append(sample_head(), sample_entries(1, 1))]) == [None]


async def test_an_answer_can_be_lost_although_the_entries_are_stored() -> None:
    store = FaultyStore(MemoryStore())
    store.fail_next(stored=True)
    with pytest.raises(StoreUnavailable):
        await store.append([Append(sample_head(), sample_entries(1, 1))])
    assert await store.read("telegram_1") == sample_entries(1, 1)
    assert await store.append([Append(sample_head(), sample_entries(1, 2))]) == [None]


async def test_any_method_can_fail_until_it_is_healed() -> None:
    store = FaultyStore(MemoryStore())
    store.fail(StoreCorrupt("damaged"), method="read")
    store.fail(method="heads")
    store.fail_next(method="delete", stored=True)
    for _ in range(2):
        with pytest.raises(StoreCorrupt):
            await store.read("telegram_1")
    with pytest.raises(StoreUnavailable):
        await anext(store.heads())
    with pytest.raises(StoreUnavailable):
        await store.delete("telegram_1")
    assert await store.append([Append(sample_head(), sample_entries(1, 1))]) == [None]
    store.heal()
    assert await store.read("telegram_1") == sample_entries(1, 1)
    assert [stored.last_sequence async for stored in store.heads()] == [1]


async def test_a_refusal_that_is_healed_during_an_append_still_holds_for_it() -> None:
    class HealedMeanwhile(MemoryStore):
        async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
            store.heal()
            return await super().append(appends)

    store = FaultyStore(HealedMeanwhile())
    store.refuse("telegram_1")
    appends = [Append(sample_head(chat_id), sample_entries(1, 1)) for chat_id in (1, 2)]
    assert [type(outcome) for outcome in await store.append(appends)] == [StoreConflict, type(None)]


async def test_one_session_can_be_refused_while_others_are_stored() -> None:
    store = FaultyStore(MemoryStore())
    store.refuse("telegram_2")
    appends = [Append(sample_head(chat_id), sample_entries(1, 1)) for chat_id in (1, 2, 3)]
    outcomes = await store.append(appends)
    assert [type(outcome) for outcome in outcomes] == [type(None), StoreConflict, type(None)]
    assert await store.head("telegram_2") is None
    store.heal()
    assert await store.append(appends) == [None] * 3


async def test_appends_can_be_held_until_they_are_released() -> None:
    store = FaultyStore(MemoryStore())
    hold = store.hold()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.append, [Append(sample_head(), sample_entries(1, 1))], name="append")
        await hold.reached.wait()
        assert await store.read("telegram_1") == []
        hold.release()
    assert await store.read("telegram_1") == sample_entries(1, 1)
    store.hold()
    store.heal()
    assert await store.append([Append(sample_head(), sample_entries(2, 2))]) == [None]


def test_the_kit_needs_no_test_framework() -> None:
    program = "import miniclaw_sessions.testing, sys; assert not {'pytest', 'sqlalchemy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
