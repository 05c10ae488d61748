"""What a session takes, what it refuses and says why, and that a repeated call doubles nothing."""

from __future__ import annotations

import http
import sys
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
import pytest

from miniclaw_sessions.core.history.conversation import REMEMBERED_KEYS
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, OtherPart, Role, ToolCall, Usage
from miniclaw_sessions.core.protocol.parts import MAX_TOKENS
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.compacting import CompactionStatus
from miniclaw_sessions.errors import (
    InvalidMessage,
    LeafMoved,
    SessionsError,
    StoreUnavailable,
    TranscriptNotKept,
    UnsafeCompaction,
    WrongThread,
)
from miniclaw_sessions.service.api.error_table import as_request_error
from tests.core.session.bench import Bench, Kind
from tests.texts import texts_of

pytestmark = pytest.mark.anyio

T = TypeVar("T")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "workspace", "sqlite")


# --- messages as others write them -----------------------------------------------------------------------------------


async def test_an_openai_style_dict_is_a_message(session: Session) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    await session.add_message({"role": "user", "content": "hello"})
    session.append({"role": "assistant", "content": None, "tool_calls": [call]})
    session.extend([{"role": "tool", "tool_call_id": "c1", "content": "42"}])
    await session.save_turn([{"role": "user", "content": "and"}, {"role": "assistant", "content": "done"}])
    async with session.turn({"role": "user", "content": "more"}) as turn:
        turn.append({"role": "assistant", "content": "yes"})
    roles = [message.role for message in session.messages()]
    assert roles[:3] == [Role.USER, Role.ASSISTANT, Role.TOOL_RESULT]
    assert texts_of(session.messages()) == ["hello", "", "42", "and", "done", "more", "yes"]
    assert session.messages()[1].tool_calls == (ToolCall("c1", "f", '{"a":1}'),)


@pytest.mark.parametrize("wrong", ["hello", b"hello", 5, None, ["hello"], object(), {}, {"role": 5}, {"content": "x"}])
async def test_what_is_no_message_is_refused_with_what_to_write(session: Session, wrong: Any) -> None:
    for attempt in (session.append, lambda one: session.extend([one]), session.unit().add_message):
        with pytest.raises(InvalidMessage):
            attempt(wrong)
    with pytest.raises(InvalidMessage):
        await session.save_turn([wrong])
    if isinstance(wrong, str):
        with pytest.raises(InvalidMessage, match=r"Message.user\(...\)"):
            session.append(wrong)  # type: ignore[arg-type]
    assert session.messages() == []


@pytest.mark.parametrize(
    "fields",
    [
        {"content": 5},
        {"timestamp": "yesterday"},
        {"tool_calls": "f"},
        {"tool_calls": (5,)},
        {"tool_call_id": 5},
        {"usage": "much"},
        {"extra": [1]},
        {"is_error": "no"},
        {"role": 5},
        {"role": None},
    ],
    ids=repr,
)
async def test_a_field_of_a_wrong_type_is_an_invalid_message(session: Session, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage):
        session.append(Message(**{"role": Role.USER, "content": "x", **fields}))
    assert session.messages() == []


async def test_a_wrong_idempotency_key_is_an_invalid_message(session: Session) -> None:
    key: Any
    for key in (5, b"key", "x" * 513):
        with pytest.raises(InvalidMessage):
            await session.add_message(Message.user("x"), idempotency_key=key)
    assert session.messages() == []


async def test_a_role_as_text_is_the_role_that_it_names(session: Session) -> None:
    texts: Any = ["user", "assistant", "tool"]
    for text in texts:
        session.append(msgspec.structs.replace(Message.system(f"said by {text}"), role=text))
    session.append({"role": "narrator", "content": "x"})
    messages = session.messages()
    assert [message.role for message in messages] == [Role.USER, Role.ASSISTANT, Role.TOOL_RESULT, Role.OTHER]
    assert (messages[0].is_user, messages[3].role_text) == (True, "narrator")
    with pytest.raises(InvalidMessage, match="system, user, assistant, tool_result"):
        session.append(msgspec.structs.replace(Message.user("x"), role="narrator"))


async def test_empty_tool_calls_and_ids_are_not_written(session: Session) -> None:
    entry = await session.add_message(Message(Role.ASSISTANT, "x", tool_calls=(), tool_call_id=""))
    [stored] = await session.tree.read_after(entry.sequence - 1)
    assert b"tool_call" not in stored.encoded
    assert (entry.message.tool_calls, entry.message.tool_call_id) == (None, None)


async def test_the_usage_of_a_turn_without_messages_is_refused_and_not_forgotten(session: Session) -> None:
    with pytest.raises(InvalidMessage, match="usage"):
        await session.save_turn([], Usage(1, 2))
    await session.save_turn([])
    assert session.last_sequence == 0


# --- numbers ---------------------------------------------------------------------------------------------------------


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize("value", [http.HTTPStatus.OK, Level.HIGH, True, 2**64 - 1, -(2**63)])
async def test_any_integer_is_kept_and_none_hangs(session: Session, value: int) -> None:
    with anyio.fail_after(60):
        session.update(number=value)
        session.append(Message(Role.USER, "x", extra={"number": value}))
        await session.tree.append_custom_entry("note", {"number": value})
    assert session.metadata["number"] == value
    assert session.messages()[0].extra == {"number": value}


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
async def test_an_integer_over_64_bits_is_refused(session: Session, value: int) -> None:
    with pytest.raises(InvalidMessage):
        session.update(number=value)


async def test_a_sum_of_usages_stops_where_it_could_not_be_written(bench: Bench) -> None:
    most = Usage(2**63 - 1, 2**63 - 1, cost=sys.float_info.max)
    async with bench.opened() as session:
        for _ in range(3):
            await session.add_message(Message(Role.ASSISTANT, "x", usage=most))
        assert session.total_usage.input_tokens == MAX_TOKENS
    async with bench.opened() as session:
        assert session.total_usage.total == MAX_TOKENS
        assert session.total_usage.cost == sys.float_info.max
        assert (await session.fork()).total_usage == session.total_usage


# --- repeated calls --------------------------------------------------------------------------------------------------


async def until_it_works(bench: Bench, call: Callable[[], Awaitable[T]]) -> T:
    """What a caller does who is told to try again later."""
    with anyio.fail_after(60):
        while True:
            try:
                return await call()
            except StoreUnavailable:
                await bench.clock.advance(1)


async def test_a_turn_that_was_repeated_after_an_error_is_there_once(bench: Bench) -> None:
    turn = [Message.user("q"), Message.assistant("a")]
    async with bench.opened() as session:
        bench.store.fail_next()
        with pytest.raises(StoreUnavailable):
            await session.save_turn(turn, Usage(1, 2), idempotency_key="turn 1")
        bench.store.heal()
        for _ in range(2):
            await until_it_works(bench, partial(session.save_turn, turn, Usage(1, 2), idempotency_key="turn 1"))
        assert texts_of(session.messages()) == ["q", "a"]
        assert (session.event_count, session.total_usage.output_tokens) == (1, 2)


async def test_what_is_appended_together_can_demand_where_it_goes(session: Session) -> None:
    said = [Message.user("one"), Message.assistant("two")]
    turn = await session.save_turn(said, Usage(3, 4), idempotency_key="t", if_leaf="", if_sequence=0)
    assert [entry.sequence for entry in turn] == [1, 2]
    with pytest.raises(LeafMoved):
        await session.save_turn(said, idempotency_key="u", if_sequence=0)
    with pytest.raises(LeafMoved):
        await session.add_messages(said, if_leaf=turn[0].id)
    more = await session.add_messages(said, idempotency_keys=["a", "b"], if_leaf=turn[1].id, if_sequence=2)
    assert await session.save_turn(said, idempotency_key="t", if_leaf="") == []  # it was there before
    again = await session.add_messages(said, idempotency_keys=["a", "b"], if_leaf=turn[1].id)
    assert [entry.id for entry in again] == [entry.id for entry in more]
    assert session.last_sequence == 4


async def test_a_fork_that_failed_leaves_nothing_and_can_be_repeated(bench: Bench) -> None:
    async with bench.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        await session.add_message(Message.user("q"))
        bench.store.fail_next()
        with pytest.raises(SessionsError):
            await session.fork("telegram_2")
        bench.store.heal()
        fork = await until_it_works(bench, partial(session.fork, "telegram_2"))
        assert texts_of(fork.messages()) == ["q"]
        assert len(manager) == 2


@pytest.mark.parametrize("restarted", [False, True])
async def test_an_idempotency_key_is_known_however_long_ago_it_was_used(bench: Bench, restarted: bool) -> None:
    async with bench.opened() as session:
        for number in range(REMEMBERED_KEYS + 20):
            session.append(Message.user(str(number)), idempotency_key=f"k{number}")
        await session.saved()
        first = (await session.tree.get_branch())[0]
        if not restarted:
            await repeat_all(session, first.id)
    async with bench.opened() as session:
        await repeat_all(session, first.id)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "jsonl"])
async def test_an_old_key_is_known_after_a_kill_while_later_messages_waited_for_the_store(
    tmp_path: Path, kind: Kind
) -> None:
    bench = Bench(tmp_path / "workspace", kind)
    async with bench.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        for number in range(REMEMBERED_KEYS + 20):
            session.append(Message.user(str(number)), idempotency_key=f"k{number}")
        await session.saved()
        first = (await session.tree.get_branch())[0]
        bench.store.fail()
        with pytest.raises(StoreUnavailable):
            await session.add_message(Message.user("new"), idempotency_key="new")
        with pytest.raises(StoreUnavailable):  # the snapshot of what is committed is written all the same
            await manager.flush()
        killed = bench.crashed(tmp_path / "killed")
        bench.store.heal()
    async with killed.opened() as session:
        await repeat_all(session, first.id)


async def test_a_key_is_known_while_more_than_are_remembered_wait_for_the_store(bench: Bench) -> None:
    async with bench.opened() as session:
        for number in range(REMEMBERED_KEYS + 20):
            session.append(Message.user(str(number)), idempotency_key=f"k{number}")
        again = await session.add_message(Message.user("0"), idempotency_key="k0")
        assert (again.sequence, again.message.text) == (1, "0")
        assert session.last_sequence == REMEMBERED_KEYS + 20


async def repeat_all(session: Session, first_id: str) -> None:
    last = session.last_sequence
    again = await session.add_message(Message.user("0"), idempotency_key="k0")
    assert (again.id, again.message.text) == (first_id, "0")
    entries = await session.add_messages([Message.user("0"), Message.user("1")], idempotency_keys=["k0", "k1"])
    assert entries[0].id == first_id
    await session.save_turn([Message.user("0")], idempotency_key="k0")
    assert session.last_sequence == last


# --- what is read cannot change what is kept -------------------------------------------------------------------------


def everywhere(session: Session) -> list[Message]:
    return [*session.messages(), *(entry.message for entry in session.entries()), *session.journal.summary()]


def spoil(message: Message) -> None:
    """Change whatever in it can be changed."""
    (message.extra or {})["new"] = (message.extra or {}).setdefault("deep", {})["new"] = float("nan")
    for part in message.content:
        if isinstance(part, OtherPart):
            part.fields["new"] = float("nan")
    for call in message.tool_calls or ():
        (call.extra or {})["new"] = float("nan")
    if message.usage is not None:
        (message.usage.extra or {})["new"] = float("nan")


async def test_what_is_read_or_returned_cannot_change_what_is_kept(bench: Bench) -> None:
    rich = Message(
        Role.ASSISTANT,
        (OtherPart({"type": "sound", "of": [1]}),),
        tool_calls=(ToolCall("c", "f", extra={"e": [1]}),),
        usage=Usage(1, extra={"u": [1]}),
        extra={"deep": {"a": [1]}},
    )
    async with bench.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        returned = [await session.add_message(rich), *await session.add_messages([rich])]
        session.extend([Message.tool_result(ToolCall("c", "f"), "42")])
        await session.tree.append_compaction("short", None, messages=[rich])
        await session.add_message(rich)
        before = everywhere(session)
        context = (await session.get_context()).messages
        for message in (*everywhere(session), *(entry.message for entry in returned), *context, rich):
            spoil(message)
        assert everywhere(session) == before
        await manager.flush()
        assert (await manager.check()).problems == []
    async with bench.opened() as session:
        assert everywhere(session) == before


# --- metadata has a bound --------------------------------------------------------------------------------------------


async def test_metadata_has_a_bound_as_a_whole(bench: Bench) -> None:
    async with bench.opened(max_metadata_bytes=1_000) as session:
        session.update(one="x" * 600)
        for change in ({"two": "x" * 600}, {"title": "x" * 600}, {"model": "x" * 600}):
            with pytest.raises(InvalidMessage, match="max_metadata_bytes"):
                session.update(**change)
        assert session.metadata == {"one": "x" * 600}
        session.update(one=None, two="x" * 600)
        await session.saved()
    async with bench.opened(max_metadata_bytes=100) as session:  # the limit was lowered: it can shrink, and not grow
        with pytest.raises(InvalidMessage):
            session.update(three="x")
        session.update(two="x" * 300)
        session.update(two=None)
        assert session.metadata == {}


# --- the store `none` ------------------------------------------------------------------------------------------------


async def test_without_a_transcript_what_only_a_transcript_keeps_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "none", "none")

    async def in_short(messages: Sequence[Message]) -> str:
        return f"{len(messages)} messages"

    async with bench.opened() as session:
        entry = await session.add_message(Message.user("q"))
        await session.add_message(Message.assistant("a"))
        tree, before = session.tree, session.entries()
        attempts: list[Awaitable[Any]] = [
            tree.set_label(entry.id, "here"),
            tree.append_custom_entry("note", {"a": 1}),
            tree.branch(entry.id),
            tree.branch_with_summary(entry.id, "they talked"),
            tree.append_compaction("in short", None),
        ]
        for attempt in attempts:
            with pytest.raises(TranscriptNotKept, match="none:") as refused:
                await attempt
            told = as_request_error(refused.value)
            assert told is not None
            assert (told.status, told.kind, told.message) == (409, "transcript_not_kept", str(refused.value))
        outcome = await session.compact(in_short)
        assert (outcome.status, "none:" in outcome.detail) == (CompactionStatus.SKIPPED, True)
        assert session.entries() == before
    async with bench.opened() as session:
        assert texts_of(session.messages()) == ["q", "a"]


# --- one thread, one loop --------------------------------------------------------------------------------------------


async def test_another_thread_or_event_loop_is_refused(session: Session) -> None:
    await session.add_message(Message.user("q"))

    async def add() -> None:
        await session.add_message(Message.user("from another loop"))

    for attempt in (partial(session.append, Message.user("x")), partial(session.update, a=1), session.clear):
        with pytest.raises(WrongThread):
            await anyio.to_thread.run_sync(attempt)
    with pytest.raises(WrongThread):
        await anyio.to_thread.run_sync(partial(anyio.run, add))
    with pytest.raises(WrongThread):
        await anyio.to_thread.run_sync(partial(anyio.run, session.saved))
    assert texts_of(session.messages()) == ["q"]


# --- what is told of a tree ------------------------------------------------------------------------------------------


async def test_bookkeeping_is_no_root_of_a_fork_s_tree(bench: Bench) -> None:
    async with bench.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        await session.add_message(Message.user("q"))
        fork = await session.fork()
        [root] = await fork.tree.get_tree()
        assert isinstance(root.entry, MessageEntry)
        assert await fork.tree.get_children(None) == [root.entry]


async def test_the_reason_why_a_cut_is_refused_is_the_right_one(session: Session) -> None:
    old, left = [await session.tree.append_message(Message.user(text)) for text in ("old", "left")]
    await session.tree.branch(old)
    kept = await session.tree.append_message(Message.user("kept"))
    await session.tree.append_compaction("short", kept)
    with pytest.raises(UnsafeCompaction, match="stands for it already"):
        await session.tree.append_compaction("shorter", old)
    with pytest.raises(UnsafeCompaction, match="not on the current branch"):
        await session.tree.append_compaction("shorter", left)


async def test_every_reading_of_a_window_shows_the_summary(bench: Bench) -> None:
    async with bench.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        await session.add_messages([Message.user("q"), Message.assistant("a")])
        await session.tree.append_compaction("they greeted", None)
        assert await manager.get_session_history("telegram", "1") == session.messages()
        await session.add_message(Message.user("more"))
        assert await manager.get_session_history("telegram", "1") == session.messages()
        assert texts_of(await manager.get_session_history("telegram", "1", limit=1)) == ["more"]
