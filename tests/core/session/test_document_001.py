"""Document 001 (Dive) by its own rules: the session, its store, forks and compaction; and the tests of Dive, by name.

What it says of the agent is tested with the agent. Every test of a session runs on one that belongs to a manager and on
one that belongs to nobody (`Session.new`).
"""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from miniclaw_sessions import SessionManager
from miniclaw_sessions.core.history.branch import shown_message
from miniclaw_sessions.core.protocol.entries import Compaction, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, TextPart, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.compacting import CompactionStatus
from miniclaw_sessions.errors import InvalidMessage, SessionDeleted
from miniclaw_sessions.files.transfer.documents import DiveStore
from miniclaw_sessions.testing import FakeClock
from tests.core.session.bench import Bench, say, told_by
from tests.texts import texts_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "workspace", "sqlite")


@pytest.fixture(params=["memory", "sqlite", "detached"])
async def session(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Session]:
    if request.param == "detached":
        yield Session.new("telegram_1", clock=FakeClock())
    else:
        async with Bench(tmp_path / "workspace", request.param).opened() as session:
            yield session


def turn(number: int) -> list[Message]:
    return [Message.user(f"question {number}"), Message.assistant(f"answer {number}")]


async def in_short(messages: Sequence[Message]) -> list[Message]:
    return [Message.user(f"{len(messages)} messages in short")]


async def full_transcript(session: Session) -> list[Message]:
    """Everything that was ever said, and what compactions made of it, in order."""
    said: list[Message] = []
    async for entry in session.tree.read_entries():
        if isinstance(entry, Compaction):
            said += entry.messages
        elif (message := shown_message(entry)) is not None:
            said.append(message)
    return said


# --- messages --------------------------------------------------------------------------------------------------------


async def test_session_messages(session: Session) -> None:
    """S1.9, S1.26, S1.20: two turns give four messages and two events."""
    await session.save_turn(turn(1))
    await session.save_turn(turn(2))
    assert texts_of(session.messages()) == ["question 1", "answer 1", "question 2", "answer 2"]
    assert session.event_count == 2


async def test_session_messages_empty(session: Session) -> None:
    assert session.messages() == []
    assert session.event_count == 0
    await session.save_turn([])
    assert (session.messages(), session.event_count, session.last_sequence) == ([], 0, 0)


async def test_session_messages_returns_copy(session: Session) -> None:
    """S1.7: what is read can be changed without changing what is kept, and what cannot be changed says so."""
    await session.save_turn([Message(turn(1)[0].role, (TextPart("deep"),), extra={"a": [1]})])
    one, other = session.messages(), session.messages()
    one[0] = Message.user("changed")
    one.append(Message.user("added"))
    with pytest.raises(AttributeError):
        other[0].content = "changed"  # type: ignore[misc]
    assert texts_of(session.messages()) == texts_of(other) == ["deep"]


async def test_save_turn_copies_caller_messages(session: Session) -> None:
    extra: dict[str, Any] = {"list": [1, {"deep": True}]}
    parts = [TextPart("said")]
    messages = [Message.user("hi"), Message(turn(1)[1].role, tuple(parts), extra=extra)]
    await session.save_turn(messages)
    messages[0] = Message.user("changed")
    messages.append(Message.user("added"))
    extra["list"].append(2)
    extra["list"][1]["deep"] = False
    assert texts_of(session.messages()) == ["hi", "said"]
    assert session.messages()[1].extra == {"list": [1, {"deep": True}]}


async def test_save_turn_is_all_or_nothing(session: Session) -> None:
    """A turn with a message that cannot be stored leaves the session as it was."""
    with pytest.raises(InvalidMessage):
        await session.save_turn([*turn(1), Message.user("lone surrogate \ud800")])
    assert (session.messages(), session.event_count, session.last_sequence) == ([], 0, 0)


async def test_save_turn_is_one_append(bench: Bench) -> None:
    """S1.3, S1.39."""
    async with bench.opened() as session:
        before = bench.store.calls["append"]
        await session.save_turn([*turn(1), *turn(2)])
        assert bench.store.calls["append"] == before + 1
        assert (session.message_count, session.event_count) == (4, 1)


# --- usage, title, metadata ------------------------------------------------------------------------------------------


async def test_session_total_usage(session: Session) -> None:
    """S1.21: a turn without usage counts as zero."""
    await session.save_turn(turn(1), Usage(input_tokens=100, output_tokens=50, cache_read_tokens=7))
    await session.save_turn(turn(2))
    await session.save_turn(turn(3), Usage(input_tokens=200, output_tokens=75))
    usage = session.total_usage
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.total) == (300, 125, 7, 432)


async def test_session_total_usage_of_a_session_without_any_is_zero(session: Session) -> None:
    assert session.total_usage == Usage()


async def test_usage_is_not_counted_twice_when_messages_bring_their_own(session: Session) -> None:
    [asked, answered] = turn(1)
    spent = Message(answered.role, answered.content, usage=Usage(input_tokens=10))
    await session.save_turn([asked, spent], Usage(input_tokens=10))
    assert session.total_usage.input_tokens == 10


async def test_usage_and_events_survive_by_either_side(bench: Bench) -> None:
    async with bench.opened() as session:
        await session.save_turn(turn(1), Usage(input_tokens=3, cost=0.25))
        ids = await say(session, "alone")
        await session.tree.branch(ids[0])
        await session.compact(in_short)
        expected = (session.total_usage, session.event_count, session.message_count)
        assert expected == (Usage(input_tokens=3, total_tokens=3, cost=0.25), 3, 3)
    for is_lost in (False, True):
        if is_lost:
            bench.lose_snapshots()
        async with bench.opened() as session:
            assert (session.total_usage, session.event_count, session.message_count) == expected


async def test_session_title(session: Session) -> None:
    """S1.19."""
    assert session.title is None
    session.update(title="First")
    session.update(title="Second")
    assert session.title == "Second"


async def test_session_metadata(session: Session) -> None:
    assert session.metadata == {}
    given = {"list": [1]}
    session.update(agent_id="main", free=given)
    given["list"].append(2)
    session.metadata["free"]["list"].append(3)
    with pytest.raises(TypeError):
        session.metadata["new"] = 1  # type: ignore[index]
    assert session.metadata == {"agent_id": "main", "free": {"list": [1]}}


async def test_d1_title_and_metadata_are_written_at_once(bench: Bench, tmp_path: Path) -> None:
    """Defect D1: they were written with some later rewrite only."""
    async with bench.opened() as session:
        session.update(title="Title")
        session.update(agent_id="main")
        await session.saved()
        killed = bench.crashed(tmp_path / "killed")
    async with killed.opened() as session:
        assert (session.title, session.metadata.get("agent_id")) == ("Title", "main")


# --- the store -------------------------------------------------------------------------------------------------------


async def store_open(manager: SessionManager, name: str) -> Session:
    return (await DiveStore(manager).open(name)).session


async def test_store_open_creates_or_returns_the_one_that_exists(bench: Bench) -> None:
    """S1.18, S1.27, S1.28: never "not found", and the session saves itself."""
    async with bench.manager() as manager:
        session = await store_open(manager, "telegram_1")
        assert await store_open(manager, "telegram_1") is session
        await session.save_turn(turn(1))
    async with bench.manager() as manager:
        assert texts_of((await store_open(manager, "telegram_1")).messages()) == ["question 1", "answer 1"]


async def test_store_open_concurrently_gives_a_single_instance(bench: Bench) -> None:
    """Eight tasks open and save at once; all eight messages are kept."""
    async with bench.manager() as manager:
        opened: list[Session] = []

        async def save(number: int) -> None:
            session = await store_open(manager, "telegram_1")
            opened.append(session)
            await session.save_turn([Message.user(str(number))])

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(save, number)
        assert len({id(session) for session in opened}) == 1
        assert sorted(texts_of(opened[0].messages())) == list("01234567")


async def test_store_list_is_newest_first_and_its_records_are_copies(bench: Bench) -> None:
    """S1.30."""
    async with bench.manager() as manager:
        for number in range(3):
            session = await store_open(manager, f"telegram_{number}")
            session.update(title=f"Title {number}")
            await bench.clock.advance(60)
        listed = await manager.list()
        assert [summary.title for summary in listed] == ["Title 2", "Title 1", "Title 0"]
        with pytest.raises(AttributeError):
            listed[0].title = "changed"  # type: ignore[misc]
        listed.clear()
        assert len(await manager.list()) == 3


async def test_store_delete_is_idempotent_and_a_session_opened_again_starts_empty(bench: Bench) -> None:
    """S1.31."""
    async with bench.manager() as manager:
        session = await store_open(manager, "telegram_1")
        await session.save_turn(turn(1))
        assert await manager.delete("telegram_1") is True
        assert await manager.delete("telegram_1") is False
        assert (await store_open(manager, "telegram_1")).messages() == []
        with pytest.raises(SessionDeleted):
            await session.save_turn(turn(2))


async def test_store_put_returns_when_everything_is_saved(bench: Bench) -> None:
    """S1.29."""
    async with bench.manager() as manager:
        session = await store_open(manager, "telegram_1")
        session.extend(turn(1))
        await manager.put(session)
        assert session.journal.committed_sequence == session.last_sequence == 2


async def test_store_keeps_a_large_event(bench: Bench) -> None:
    """Two megabytes in one message load and list."""
    async with bench.opened(max_message_bytes=4_000_000) as session:
        await session.save_turn([Message.user("x" * 2_000_000)])
    async with bench.manager(max_message_bytes=4_000_000) as manager:
        [summary] = await manager.list()
        assert summary.message_count == 1
        assert len((await store_open(manager, "telegram_1")).messages()[0].text) == 2_000_000


async def test_d3_files_and_directory_are_private(bench: Bench) -> None:
    """Defect D3: privacy rested on the default of temporary files, and nothing tested it."""
    async with bench.opened() as session:
        await session.save_turn(turn(1))
    found = {
        path.relative_to(bench.workspace).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in bench.workspace.rglob("*")
    }
    assert found["sessions"] == 0o700
    assert found["sessions/telegram_1.json"] == 0o600
    assert all(mode & 0o077 == 0 for mode in found.values()), found


async def test_d4_a_session_without_a_turn_holds_no_lock(bench: Bench) -> None:
    """Defect D4: sessions and turn locks were kept for ever; here a deleted session is in nobody's hands."""
    async with bench.manager() as manager:
        session = await store_open(manager, "telegram_1")
        assert session.journal.turn_lock._lock is None
        async with session.turn(Message.user("hi")) as saying:
            saying.append(Message.assistant("hello"))
        await manager.delete("telegram_1")
        assert manager.statistics().sessions == len(manager) == 0


# --- fork ------------------------------------------------------------------------------------------------------------


async def test_session_fork(session: Session) -> None:
    """S1.22: a new id, the title, as many events, and nothing in common."""
    session.update(title="Original")
    await session.save_turn(turn(1), Usage(input_tokens=5))
    fork = await session.fork("telegram_fork")
    assert fork.session_id == "telegram_fork" != session.session_id
    assert (fork.title, fork.event_count, fork.total_usage) == ("Original", 1, session.total_usage)
    await fork.save_turn(turn(2))
    fork.update(title="Fork")
    assert texts_of(session.messages()) == ["question 1", "answer 1"]
    assert (session.title, session.event_count, fork.event_count) == ("Original", 1, 2)
    await session.save_turn(turn(3))
    assert texts_of(fork.messages())[2:] == ["question 2", "answer 2"]


async def test_fork_session(bench: Bench) -> None:
    """S1.44: open, fork and put in one; what it gives is saved."""
    async with bench.manager() as manager:
        await (await store_open(manager, "telegram_1")).save_turn(turn(1))
        fork = await DiveStore(manager).fork_session("telegram_1", "telegram_2")
        await fork.save_turn(turn(2))
    bench.lose_snapshots()
    async with bench.manager() as manager:
        assert len((await store_open(manager, "telegram_1")).messages()) == 2
        assert len((await store_open(manager, "telegram_2")).messages()) == 4


async def test_forked_after_a_compaction(session: Session) -> None:
    await session.save_turn(turn(1))
    await session.compact(in_short)
    await session.save_turn(turn(2))
    fork = await session.fork()
    assert await told_by(fork) == await told_by(session) == ["2 messages in short", "question 2", "answer 2"]
    assert texts_of(fork.messages()) == texts_of(session.messages())


# --- compaction ------------------------------------------------------------------------------------------------------


async def test_session_compact(session: Session) -> None:
    """S1.23, S1.45; two turns and one checkpoint are three events, with one message in the window."""
    await session.save_turn(turn(1))
    await session.save_turn(turn(2))
    given: list[str] = []

    async def summarizer(messages: Sequence[Message]) -> list[Message]:
        given.extend(texts_of(messages))
        return await in_short(messages)

    assert (await session.compact(summarizer)).status is CompactionStatus.DONE
    assert given == ["question 1", "answer 1", "question 2", "answer 2"]
    assert session.event_count == 3
    assert texts_of(session.messages()) == ["4 messages in short"]


async def test_compaction_history(bench: Bench) -> None:
    """Two turns and one checkpoint: three events, one message in the active window, five in the full transcript."""
    async with bench.opened() as session:
        await session.save_turn(turn(1))
        await session.save_turn(turn(2))
        await session.compact(in_short)
        assert (session.event_count, len(session.messages()), len(await full_transcript(session))) == (3, 1, 5)
        await session.save_turn(turn(3))
        await session.compact(in_short)
    for is_lost in (False, True):
        if is_lost:
            bench.lose_snapshots()
        async with bench.opened() as session:
            assert (session.event_count, len(session.messages()), len(await full_transcript(session))) == (5, 1, 8)
            compactions = [entry async for entry in session.tree.read_entries() if isinstance(entry, Compaction)]
            assert [texts_of(entry.messages) for entry in compactions] == [
                ["4 messages in short"],
                ["3 messages in short"],
            ]
            replaced = [entry async for entry in session.tree.read_entries() if isinstance(entry, MessageEntry)]
            assert len(replaced) == 6


async def test_session_compact_error(session: Session) -> None:
    """A summarizer that fails leaves the session as it was."""
    await session.save_turn(turn(1))

    async def fails(_: Sequence[Message]) -> list[Message]:
        raise RuntimeError

    assert (await session.compact(fails)).status is CompactionStatus.FAILED
    assert len(session.messages()) == 2
    assert session.event_count == 1


async def test_d5_the_session_can_be_used_while_it_is_compacted(session: Session) -> None:
    """Defect D5: the lock was held during the model call."""
    await session.save_turn(turn(1))

    async def summarizer(messages: Sequence[Message]) -> list[Message]:
        with anyio.fail_after(60):
            await session.save_turn(turn(2))
            assert len(session.messages()) == 4
            assert len((await session.get_context()).messages) == 4
        return await in_short(messages)

    await session.compact(summarizer)
    assert await told_by(session) == ["2 messages in short", "question 2", "answer 2"]
