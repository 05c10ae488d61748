"""One live conversation: the kernel's fourteen session tests by name, then what a session promises beyond them."""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.history.conversation import REMEMBERED_KEYS
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.protocol.entries import Custom, LeafMove, MessageEntry, ModelChange, SessionInfo
from miniclaw_sessions.core.protocol.messages import Message, Role, TextPart, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import InvalidMessage, SessionDeleted, StoreFull, StoreUnavailable, UnsavedLimit
from tests.core.session.bench import Bench
from tests.texts import texts

pytestmark = pytest.mark.anyio


async def logged(bench: Bench) -> list[tuple[int, bytes]]:
    return [(entry.sequence, entry.encoded) for entry in await bench.store.read("telegram_1")]


# --- the kernel's tests (S0.32-S0.45) --------------------------------------------------------------------------------


async def test_new(session: Session) -> None:
    assert session.session_id == "telegram_1"
    assert session.journal.incarnation
    assert session.messages() == []


async def test_session_id_unique(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, store="memory:") as manager:
        one, two = await manager.get_or_create("telegram", "1"), await manager.get_or_create("telegram", "2")
        assert one.session_id != two.session_id
        assert one.journal.incarnation != two.journal.incarnation


async def test_session_id_stable(session: Session) -> None:
    before = (session.session_id, session.journal.incarnation, session.created_at)
    session.append(Message.user("hi"))
    session.clear()
    assert (session.session_id, session.journal.incarnation, session.created_at) == before


async def test_session_add_message_and_messages(session: Session, bench: Bench) -> None:
    call = ToolCall("c1", "search", '{"q": 1}', extra={"index": 0})
    message = Message(
        Role.ASSISTANT,
        (TextPart("text"),),
        timestamp=bench.clock.now() - timedelta(days=1),
        tool_calls=(call,),
        name="agent",
        author="main",
        model="m",
        stop_reason="tool_use",
        extra={"provider_meta": {"a": [1]}},
    )
    await session.add_message(message)
    assert session.messages() == [message]


async def test_a_time_that_utc_has_no_year_for_stays_as_it_is(session: Session) -> None:
    moment = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))
    await session.add_message(Message(Role.USER, "ancient", timestamp=moment))
    assert session.messages()[0].timestamp == moment


async def test_session_messages_order(session: Session) -> None:
    for number in range(10):
        await session.add_message(Message.user(str(number)))
    assert texts(session) == [str(number) for number in range(10)]
    assert [entry.sequence for entry in session.entries()] == list(range(1, 11))


@pytest.mark.parametrize("role", list(Role))
async def test_session_messages_roles(session: Session, role: Role) -> None:
    session.append(Message.user("first"))  # a tool result cannot stand at the head of a window
    session.append(Message(role, "hi", extra={"role": "narrator"} if role is Role.OTHER else None))
    assert session.messages()[-1].role is role


async def test_session_messages_tool_calls(session: Session) -> None:
    call = ToolCall("call-1", "search", '{"q": "weather"}')
    await session.add_message(Message.assistant("", (call,)))
    await session.add_message(Message.tool_result(call, "sunny"))
    asked, answered = session.messages()
    assert asked.tool_calls == (call,)
    assert (answered.tool_call_id, answered.name) == ("call-1", "search")


async def test_session_messages_defensive_copy(session: Session) -> None:
    session.append(Message.user("hi"))
    session.messages().clear()
    session.entries().clear()
    session.messages()[:] = [Message.user("changed")]
    assert texts(session) == ["hi"]


async def test_session_messages_tool_calls_defensive_copy(session: Session) -> None:
    session.append(Message.assistant("", (ToolCall("c", "search", "{}"),)))
    returned = session.messages()[0]
    with pytest.raises(TypeError):
        returned.tool_calls[0] = ToolCall("x", "x")  # type: ignore[index]
    with pytest.raises(AttributeError):
        returned.tool_calls = None  # type: ignore[misc]
    assert session.messages()[0].tool_calls == (ToolCall("c", "search", "{}"),)


async def test_session_clear(session: Session) -> None:
    session.append(Message.user("hi"))
    session.clear()
    assert session.messages() == []


async def test_session_clear_then_add(session: Session) -> None:
    session.append(Message.user("old"))
    session.clear()
    await session.add_message(Message.user("new"))
    assert texts(session) == ["new"]


async def test_session_concurrent_add_message(bench: Bench) -> None:
    async with bench.opened(window=200) as session:
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(session.add_message, Message.user(str(number)))
        assert sorted(texts(session), key=int) == [str(number) for number in range(100)]
        assert [entry.sequence for entry in session.entries()] == list(range(1, 101))
        assert len(await logged(bench)) == 100


async def test_session_concurrent_add_and_read(session: Session) -> None:
    seen: list[list[str]] = []

    async def read() -> None:
        for _ in range(50):
            seen.append(texts(session))
            await checkpoint()

    async def add() -> None:
        for number in range(25):
            await session.add_message(Message.user(str(number)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(add)
        tasks.start_soon(read)
    assert all(one == [str(number) for number in range(len(one))] for one in seen)


async def test_session_concurrent_add_and_clear(session: Session, bench: Bench) -> None:
    async def clear() -> None:
        for _ in range(20):
            session.clear()
            await checkpoint()

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(session.add_message, Message.user(str(number)))
        tasks.start_soon(clear)
    await session.saved()
    assert [sequence for sequence, _ in await logged(bench)] == list(range(1, 41))


# --- accepted, acknowledged ------------------------------------------------------------------------------------------


async def test_appending_is_accepted_at_once_and_acknowledged_later(session: Session) -> None:
    entry = session.append(Message.user("hi"))
    assert (session.last_sequence, session.journal.committed_sequence) == (1, 0)
    assert session.entries() == [entry]
    await session.saved()
    assert session.journal.committed_sequence == 1


async def test_add_message_returns_when_the_store_has_it(session: Session, bench: Bench) -> None:
    entry = await session.add_message(Message.user("hi"))
    assert session.journal.committed_sequence == entry.sequence
    assert [sequence for sequence, _ in await logged(bench)] == [entry.sequence]


async def test_a_message_without_a_time_gets_one_and_its_own_is_kept(session: Session, bench: Bench) -> None:
    other = bench.clock.now() + timedelta(days=400)
    assert session.append(Message.user("hi")).message.timestamp == bench.clock.now()
    assert session.append(Message(Role.USER, "hi", timestamp=other)).message.timestamp == other
    assert session.last_accessed == bench.clock.now()


async def test_order_is_the_order_of_appending_even_when_the_wall_clock_runs_backwards(
    session: Session, bench: Bench
) -> None:
    session.append(Message.user("1"))
    bench.clock.jump(-86_400 * 365)
    session.append(Message.user("2"))
    assert texts(session) == ["1", "2"]
    assert session.updated_at == session.created_at


async def test_while_the_store_fails_add_message_refuses_and_accepts_nothing(session: Session, bench: Bench) -> None:
    bench.store.fail(StoreFull("full"))
    with pytest.raises(StoreFull):
        await session.add_message(Message.user("under the failure"))
    for _ in range(3):
        with pytest.raises(StoreFull):
            await session.add_message(Message.user("refused"))
    assert texts(session) == ["under the failure"]  # accepted before the failure was known
    bench.store.heal()
    await bench.clock.advance(60)
    await session.add_message(Message.user("after"))
    assert texts(session) == ["under the failure", "after"]
    assert [sequence for sequence, _ in await logged(bench)] == [1, 2]


async def test_the_synchronous_append_goes_on_while_the_store_fails_up_to_the_bound(bench: Bench) -> None:
    async with bench.opened(max_unsaved_bytes=2000) as session:
        bench.store.fail(StoreFull("no space left"))

        async def append_for_ever() -> None:
            for number in range(1000):
                session.append(Message.user(str(number)))
                await bench.clock.advance(0)

        with pytest.raises(UnsavedLimit, match="no space left"):
            await append_for_ever()
        accepted = session.last_sequence
        assert 5 < accepted < 20
        assert texts(session) == [str(number) for number in range(accepted)]
        bench.store.heal()
        await bench.clock.advance(60)
        await session.saved()


def forced(message: Message, **fields: object) -> Message:
    """A message with what its constructor would refuse."""
    for name, value in fields.items():
        msgspec.structs.force_setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    "message",
    [
        Message.user("lone surrogate \ud800"),
        Message(Role.USER, extra={"x": 2**64}),
        Message(Role.USER, extra={"x": object()}),
        forced(Message(Role.USER), content=123),
        forced(Message(Role.TOOL_RESULT, "hi"), tool_call_id=5),
        Message.user("x" * 5000),
    ],
    ids=["surrogate", "integer", "object", "number for a text", "number for an id", "too large"],
)
async def test_what_cannot_be_stored_is_refused_and_poisons_nothing(bench: Bench, message: Message) -> None:
    async with bench.opened(max_message_bytes=4096) as session:
        with pytest.raises(InvalidMessage):
            session.append(message)
        with pytest.raises(InvalidMessage):
            session.journal.check(message)
        assert session.messages() == []
        await session.add_message(Message.user("good"))
        assert session.last_sequence == 1


async def test_metadata_that_json_knows_never_keeps_a_snapshot_from_being_written(bench: Bench) -> None:
    metadata: dict[str, Any] = {"a": 2**64, "b": math.nan, "c": bench.clock.now(), "d": {1: 2}, "e": b"x", "f": (1, 2)}
    async with bench.opened() as session:
        for name, value in metadata.items():
            with suppress(InvalidMessage):
                session.update(**{name: value})
        kept = session.metadata
    assert kept
    async with bench.opened() as session:
        assert session.metadata == kept


async def test_nan_is_never_written_as_something_that_is_not_json(session: Session, bench: Bench) -> None:
    with pytest.raises(InvalidMessage, match="JSON has no NaN"):
        await session.add_message(Message(Role.USER, extra={"x": math.nan}))
    assert await logged(bench) == []


async def test_a_message_that_passes_the_check_passes_append(bench: Bench) -> None:
    async with bench.opened(max_message_bytes=1000) as session:
        size = 700
        while True:
            message = Message.user("x" * size)
            try:
                session.journal.check(message)
            except InvalidMessage:
                break
            session.append(message)
            size += 1
        assert 700 < size < 1000


# --- idempotency -----------------------------------------------------------------------------------------------------


async def test_a_known_key_returns_the_first_entry_and_appends_nothing(session: Session) -> None:
    first = await session.add_message(Message.user("hi"), idempotency_key="update-1")
    again = await session.add_message(Message.user("hi again"), idempotency_key="update-1")
    assert again == first
    assert texts(session) == ["hi"]


async def test_keys_survive_a_restart_by_the_snapshot_and_by_the_store(bench: Bench) -> None:
    async with bench.opened() as session:
        first = await session.add_message(Message.user("hi"), idempotency_key="update-1")
    async with bench.opened() as session:
        assert (await session.add_message(Message.user("hi"), idempotency_key="update-1")).id == first.id
    (bench.workspace / "sessions" / "telegram_1.json").unlink()
    async with bench.opened() as session:
        assert await session.add_message(Message.user("hi"), idempotency_key="update-1") == first
        assert session.last_sequence == 1


async def test_a_key_beyond_the_window_is_still_known(bench: Bench) -> None:
    async with bench.opened(window=4) as session:
        first = await session.add_message(Message.user("hi"), idempotency_key="update-1")
        for number in range(10):
            await session.add_message(Message.user(str(number)))
        again = await session.add_message(Message.user("hi"), idempotency_key="update-1")
        assert again.id == first.id
        assert session.last_sequence == 11


async def test_a_repeated_message_beyond_the_window_is_not_acknowledged_before_it_is_committed(bench: Bench) -> None:
    async with bench.opened(window=2) as session:
        hold = bench.store.hold()
        for number in range(5):
            session.append(Message.user(str(number)), idempotency_key=f"update-{number}")
        with anyio.move_on_after(0.01) as scope:
            await session.add_message(Message.user("0"), idempotency_key="update-0")
        hold.release()
        assert scope.cancelled_caught


async def test_the_oldest_of_too_many_keys_is_forgotten(session: Session) -> None:
    for number in range(REMEMBERED_KEYS + 1):
        session.append(Message.user("hi"), idempotency_key=f"update-{number}")
    assert session.journal.find_duplicate("update-0") is None
    assert session.journal.find_duplicate("update-1") is not None
    assert session.journal.find_duplicate(f"update-{REMEMBERED_KEYS}") is not None


async def test_a_message_that_failed_can_be_repeated_with_its_key_and_is_stored_once(
    session: Session, bench: Bench
) -> None:
    bench.store.fail(StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable):
        await session.add_message(Message.user("hi"), idempotency_key="update-1")
    bench.store.heal()
    await bench.clock.advance(60)
    await session.add_message(Message.user("hi"), idempotency_key="update-1")
    assert len(await logged(bench)) == 1


# --- metadata and clearing -------------------------------------------------------------------------------------------


async def test_metadata_is_logged_and_survives_a_restart_by_either_side(bench: Bench) -> None:
    async with bench.opened() as session:
        session.update(title="Weather")
        session.update(agent_id="main")
        session.update(model="m", provider="p", thinking_level="high", tags=["a", {"b": 1}])
        session.update(model="m2")
        expected = {
            "title": "Weather",
            "agent_id": "main",
            "model": "m2",
            "provider": "p",
            "thinking_level": "high",
            "tags": ["a", {"b": 1}],
        }
        assert session.metadata == expected
    async with bench.opened() as session:
        assert session.metadata == expected
        assert (session.title, session.metadata.get("agent_id")) == ("Weather", "main")
    (bench.workspace / "sessions" / "telegram_1.json").unlink()
    async with bench.opened() as session:
        assert session.metadata == expected


async def test_none_removes_metadata(session: Session) -> None:
    session.update(title="t", model="m", thinking_level="low", colour="red")
    session.update(title=None, model=None, thinking_level=None, colour=None)
    assert session.metadata == {}
    assert session.title is None


async def test_an_update_that_cannot_be_stored_changes_nothing_at_all(session: Session) -> None:
    with pytest.raises(InvalidMessage):
        session.update(title="new", model="m", tags=object())
    assert session.metadata == {}
    assert session.last_sequence == 0


async def test_a_change_of_metadata_is_an_entry_but_no_message(session: Session) -> None:
    session.append(Message.user("hi"))
    session.update(title="t", model="m", colour="red")
    assert texts(session) == ["hi"]
    assert session.last_sequence == 4


async def test_clearing_keeps_transcript_metadata_and_identity_and_is_remembered(bench: Bench) -> None:
    async with bench.opened() as session:
        session.append(Message.user("old"), idempotency_key="update-1")
        session.update(title="t")
        session.clear()
        created_at, incarnation = session.created_at, session.journal.incarnation
    async with bench.opened() as session:
        assert texts(session) == []
        assert session.title == "t"
        assert (session.created_at, session.journal.incarnation) == (created_at, incarnation)
        assert session.journal.find_duplicate("update-1") is not None
        await session.add_message(Message.user("new"))
    (bench.workspace / "sessions" / "telegram_1.json").unlink()
    async with bench.opened() as session:
        assert texts(session) == ["new"]
        assert session.entries()[0].parent_id is None


async def test_the_transcript_has_every_entry_with_its_parent(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, store="memory:") as manager:
        session = await manager.get_or_create("telegram", "1")
        session.append(Message.user("1"))
        session.update(title="t")
        session.update(model="m", colour="red")
        session.clear()
        session.append(Message.user("2"))
        await session.saved()
        entries = [entry async for entry in read_transcript(manager, "telegram_1")]
    assert [type(entry) for entry in entries] == [
        MessageEntry,
        SessionInfo,
        ModelChange,
        Custom,
        LeafMove,
        MessageEntry,
    ]
    assert [entry.sequence for entry in entries] == [1, 2, 3, 4, 5, 6]
    first, title, model, metadata, move, last = entries
    assert [entry.parent_id for entry in (first, title, model)] == [None, first.id, title.id]
    assert metadata.parent_id == move.parent_id == model.id  # free metadata is no place in the conversation
    assert last.parent_id is None


# --- the window ------------------------------------------------------------------------------------------------------


async def test_fifo_rotation(session: Session) -> None:
    for number in range(51):
        session.append(Message.user(str(number)))
    assert texts(session) == [str(number) for number in range(1, 51)]
    assert session.journal.evicted == 1
    assert session.journal.statistics().messages == 50


async def test_a_window_never_begins_with_an_orphan_result(session: Session) -> None:
    for number in range(40):
        calls = tuple(ToolCall(f"{number}-{i}", "t") for i in range(2))
        session.append(Message.user(str(number)))
        session.append(Message.assistant("", calls))
        for call in calls:
            session.append(Message.tool_result(call, "r"))
        window = session.messages()
        assert len(window) <= 50
        assert not window[0].is_tool_result


async def test_a_turn_of_sixty_results_leaves_the_users_message_and_pairs(session: Session) -> None:
    calls = tuple(ToolCall(str(number), "t") for number in range(60))
    session.append(Message.user("do it all"))
    session.append(Message.assistant("", calls))
    for call in calls:
        session.append(Message.tool_result(call, "r"))
    window = session.messages()
    assert len(window) == 50
    assert window[0].text == "do it all"
    assert [call.id for call in window[1].tool_calls or ()] == [message.tool_call_id for message in window[2:]]


# --- deleted ---------------------------------------------------------------------------------------------------------


async def test_a_deleted_session_accepts_nothing_and_says_so(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, store="memory:") as manager:
        session = await manager.get_or_create("telegram", "1")
        await manager.delete("telegram_1")
        with pytest.raises(SessionDeleted, match="get_or_create"):
            session.append(Message.user("hi"))
        with pytest.raises(SessionDeleted):
            await session.add_message(Message.user("hi"))
        with pytest.raises(SessionDeleted):
            session.update(title="t")
        with pytest.raises(SessionDeleted):
            session.clear()
        with pytest.raises(SessionDeleted):
            async with session.turn(Message.user("hi")):
                pass
        assert "deleted" in repr(session)


async def test_no_error_and_no_repr_shows_message_text(bench: Bench) -> None:
    async with bench.opened(max_message_bytes=300) as session:
        session.append(Message.user("SECRET"))
        with pytest.raises(InvalidMessage) as refusal:
            session.append(Message.user("SECRET" * 100))
        assert "SECRET" not in f"{session!r} {refusal.value} {session.journal.statistics()}"


async def test_messages_added_together_are_all_accepted_or_none(tmp_path: Path) -> None:
    settings = SessionSettings(max_message_bytes=1000)
    async with SessionManager(tmp_path / "w", store="memory:", settings=settings) as manager:
        session = await manager.get_or_create("telegram", "1")
        with pytest.raises(InvalidMessage, match="max_message_bytes"):
            session.extend([Message.user("fits"), Message.user("x" * 2000)])
        assert session.messages() == []

        first = await session.add_messages([Message.user("a"), Message.user("b")], idempotency_keys=["1", "2"])
        again = await session.add_messages(
            [Message.user("b"), Message.user("c"), Message.user("c")], idempotency_keys=["2", "3", "3"]
        )

        assert [message.text for message in session.messages()] == ["a", "b", "c"]
        assert again[0] == first[1]
        assert again[1] == again[2]
        assert session.journal.committed_sequence == session.last_sequence == 3
