"""What a call answers is what is stored: its entry's id and place, also where another process was first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import anyio
import pytest

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.core.protocol.entries import Custom, Entry, Label, SessionInfo
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.stores.base import Append
from miniclaw_sessions.core.stores.postgresql.store import PostgreSQLStore
from miniclaw_sessions.core.stores.wrapping import WrappingStore
from miniclaw_sessions.errors import LeafMoved, StoreError, StoreUnavailable

pytestmark = pytest.mark.anyio


class Answer(NamedTuple):
    """What a call says of an entry; no sequence: it says its id alone."""

    id: str
    sequence: int | None = None


class Call(Protocol):
    """Says something in a session."""

    __name__: str

    async def __call__(self, session: Session, name: str) -> list[Answer]: ...


def answers(entries: Sequence[Entry]) -> list[Answer]:
    return [Answer(entry.id, entry.sequence) for entry in entries]


def said(name: str, count: int) -> list[Message]:
    return [Message.user(f"{name} {number}") for number in range(count)]


async def add_message(session: Session, name: str) -> list[Answer]:
    return answers([await session.add_message(Message.user(name))])


async def add_message_with_key(session: Session, name: str) -> list[Answer]:
    return answers([await session.add_message(Message.user(name), idempotency_key=name)])


async def add_messages(session: Session, name: str) -> list[Answer]:
    return answers(await session.add_messages(said(name, 3)))


async def add_messages_with_keys(session: Session, name: str) -> list[Answer]:
    keys = [f"{name} {number}" for number in range(3)]
    return answers(await session.add_messages(said(name, 3), idempotency_keys=keys))


async def save_turn(session: Session, name: str) -> list[Answer]:
    return answers(await session.save_turn(said(name, 2), idempotency_key=name))


async def save_unit(session: Session, name: str) -> list[Answer]:
    unit = session.unit()
    unit.add(SessionInfo, name=name)
    unit.add_message(Message.user(name))
    unit.add_custom("note", {"name": name})
    saved = await unit.save()
    assert saved == unit.entries
    return answers(saved)


async def take_turn(session: Session, name: str) -> list[Answer]:
    async with session.turn(Message.user(name)) as turn:
        turn.append(Message.assistant("first"))
        await turn.save()
        turn.append(Message.assistant("second"))
    assert turn.message == turn.entries()[0]
    return answers(turn.entries())


async def append_message(session: Session, name: str) -> list[Answer]:
    return [Answer(await session.tree.append_message(Message.user(name)))]


async def append_custom_entry(session: Session, name: str) -> list[Answer]:
    return [Answer(await session.tree.append_custom_entry("note", {"name": name}))]


async def set_label(session: Session, name: str) -> list[Answer]:
    first = await anext(session.tree.read_entries())
    return [Answer(await session.tree.set_label(first.id, name))]


async def branch_with_summary(session: Session, name: str) -> list[Answer]:
    return [Answer(await session.tree.branch_with_summary(None, name))]


CALLS: list[Call] = [
    add_message,
    add_message_with_key,
    add_messages,
    add_messages_with_keys,
    save_turn,
    save_unit,
    take_turn,
    append_message,
    append_custom_entry,
    set_label,
    branch_with_summary,
]


@asynccontextmanager
async def gateways(url: str, count: int = 2) -> AsyncIterator[list[SessionManager]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(SessionManager(store=url)) for _ in range(count)]


async def places(manager: SessionManager) -> dict[str, int]:
    """Where each entry stands in the store."""
    return {one.entry_id: one.sequence for one in await manager.store.read("telegram_1")}


async def not_so(manager: SessionManager, given: Sequence[Answer]) -> list[Answer]:
    """Those answers that are not what is stored."""
    stored = await places(manager)
    return [one for one in given if one.id not in stored or one.sequence not in (None, stored[one.id])]


async def test_where_another_process_was_first_each_answer_is_where_the_entry_stands(postgresql_url: str) -> None:
    async with gateways(postgresql_url) as (one, other):
        mine, theirs = [await manager.get_or_create("telegram", 1) for manager in (one, other)]
        await mine.add_message(Message.user("hello"))
        given: dict[str, list[Answer]] = {}
        for call in CALLS:
            await theirs.add_messages(said("they were first", 2))
            given[call.__name__] = await call(mine, call.__name__)
        assert {name: await not_so(other, those) for name, those in given.items()} == {name: [] for name in given}


async def test_what_all_say_at_once_is_answered_with_where_it_stands(postgresql_url: str) -> None:
    async with gateways(postgresql_url, 3) as managers:
        await (await managers[0].get_or_create("telegram", 1)).add_message(Message.user("hello"))
        given: list[Answer] = []
        calls = [call for call in CALLS if call is not take_turn]  # which would wait for those of the others

        async def say(session: Session, call: Call, name: str) -> None:
            given.extend(await call(session, name))

        async with anyio.create_task_group() as tasks:
            for number, manager in enumerate(managers):
                session = await manager.get_or_create("telegram", 1)
                for call in calls:
                    tasks.start_soon(say, session, call, f"{number} {call.__name__}")
        assert await not_so(managers[0], given) == []
        own = await places(managers[0])
        assert len({one.id for one in given}) == len(given) >= len(managers) * len(calls)
        assert {one.id for one in given} < own.keys()


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:", "memory:"])
async def test_where_nobody_else_writes_the_answer_is_where_the_entry_stands_too(store: str, tmp_path: Path) -> None:
    async with SessionManager(tmp_path, store=store) as manager:
        session = await manager.get_or_create("telegram", 1)
        given = answers([await session.add_message(Message.user("hello"))])
        for call in CALLS:
            given += await call(session, call.__name__)
        assert await not_so(manager, given) == []
        assert [place for _, place in given if place is not None] == sorted(
            place for _, place in given if place is not None
        )


class LosesAnAnswer(WrappingStore):
    """Loses the answer to one append that was stored."""

    loses = False

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        outcomes = await super().append(appends)
        if self.loses and None in outcomes:
            self.loses = False
            raise StoreUnavailable("the answer was lost")
        return outcomes


async def test_what_was_stored_in_another_place_and_not_answered_is_answered_with_that_place(
    postgresql_url: str,
) -> None:
    store = LosesAnAnswer(PostgreSQLStore(postgresql_url))
    async with SessionManager(store=store) as one, gateways(postgresql_url, 1) as (other,):
        mine, theirs = [await manager.get_or_create("telegram", 1) for manager in (one, other)]
        await theirs.add_messages(said("they were first", 2))
        store.loses, unit = True, mine.unit()
        unit.add_message(Message.user("mine"), idempotency_key="key")
        unit.add_custom("note")
        with pytest.raises(StoreUnavailable):
            await unit.save()
        await one.flush()  # it is tried again, and found there
        again = await mine.add_message(Message.user("mine"), idempotency_key="key")
        assert [again.sequence, *(entry.sequence for entry in unit.entries)] == [3, 3, 4]
        assert await not_so(other, answers([again, *unit.entries])) == []


async def test_a_repeated_message_is_answered_with_its_place_also_where_it_waits_with_another_call(
    postgresql_url: str,
) -> None:
    async with gateways(postgresql_url) as (one, other):
        mine, theirs = [await manager.get_or_create("telegram", 1) for manager in (one, other)]
        await theirs.add_messages(said("they were first", 2))
        given: list[Answer] = []

        async def say(call: Callable[[], Awaitable[list[Answer]]]) -> None:
            given.extend(await call())

        async def repeat() -> list[Answer]:
            repeated = [Message.user("new"), Message.user("key")]
            return answers(await mine.add_messages(repeated, idempotency_keys=["new", "key"]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say, partial(add_message_with_key, mine, "key"))
            tasks.start_soon(say, repeat)
            tasks.start_soon(say, partial(add_message_with_key, mine, "key"))
        assert sorted(one.sequence or 0 for one in given) == [3, 3, 3, 4]
        assert await not_so(other, given) == []


async def test_a_repeated_message_that_has_left_the_window_is_answered_with_its_place(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 1)
        first = await session.add_message(Message.user("first"), idempotency_key="key")
        await session.add_messages(said("more", 60))
        assert await session.add_message(Message.user("first"), idempotency_key="key") == first
        (repeated,) = await session.add_messages([Message.user("first")], idempotency_keys=["key"])
        assert repeated == first


async def test_messages_that_come_with_one_that_is_known_elsewhere_are_stored(postgresql_url: str) -> None:
    async with gateways(postgresql_url) as (one, other):
        mine, theirs = [await manager.get_or_create("telegram", 1) for manager in (one, other)]
        known = await theirs.add_message(Message.user("known"), idempotency_key="key")
        two = [Message.user("new"), Message.user("known")]
        new, same = await mine.add_messages(two, idempotency_keys=[None, "key"])
        assert same == known
        assert await not_so(other, answers([new, same])) == []
        assert await places(other) == {known.id: 1, new.id: 2}


async def test_what_others_have_stored_with_its_key_is_said_by_the_unit(postgresql_url: str) -> None:
    async with gateways(postgresql_url) as (one, other):
        units = []
        for manager in one, other:
            unit = (await manager.get_or_create("telegram", 1)).unit()
            unit.add_custom("command", idempotency_key="key")
            unit.add(SessionInfo, name="title")
            units.append(unit)
        first, second = [await unit.save() for unit in units]
        assert units[0].known is None
        assert units[1].known == second[0] == first[0]
        assert isinstance(first[0], Custom)


async def test_what_demands_its_place_is_refused_each_time_and_the_next_one_has_its_own(postgresql_url: str) -> None:
    async with gateways(postgresql_url) as (one, other):
        mine, theirs = [await manager.get_or_create("telegram", 1) for manager in (one, other)]
        first = await mine.add_message(Message.user("one"))
        await theirs.add_message(Message.user("two"))
        unit = mine.unit()
        unit.add(Label, target_id=first.id, label="one")
        with pytest.raises(LeafMoved):
            await unit.save(if_sequence=1)
        with pytest.raises(LeafMoved):
            await unit.saved()
        (entry,) = await mine.add_messages([Message.user("three")], if_sequence=2)
        assert entry.sequence == 3
        assert unit.entries[0].id not in await places(other)
