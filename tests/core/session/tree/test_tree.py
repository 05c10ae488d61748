"""The session's tree: branches that survive, entries that are seen before they are committed, damage that is borne."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import BranchSummary, Entry, LeafMove
from miniclaw_sessions.core.protocol.messages import Message, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import (
    EntryNotFound,
    InvalidMessage,
    SessionDeleted,
    StoreUnavailable,
    TurnInProgress,
    UnsafeCompaction,
)
from tests.core.session.bench import Bench, say, told_by
from tests.texts import texts_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def session(faulty: Bench) -> AsyncIterator[Session]:
    async with faulty.opened() as session:
        yield session


async def leaf_moves(session: Session) -> list[LeafMove]:
    return [entry async for entry in session.tree.read_entries() if isinstance(entry, LeafMove)]


# --- a bare move of the leaf is remembered ---------------------------------------------------------------------------


async def test_what_only_the_file_knows_after_a_lost_store_is_not_in_force_where_the_transcript_does_not_say_it(
    bench: Bench,
) -> None:
    async with bench.opened() as session:
        (said,) = await say(session, "a")
        await session.tree.append_model_change("openai", "gpt")
    bench.lose_store()
    async with bench.opened() as session:
        assert session.metadata["model"] == "gpt"
        await session.tree.branch(said)
        assert "model" not in session.metadata


@pytest.mark.parametrize("is_flushed", [True, False], ids=["after a flush", "before a flush"])
@pytest.mark.parametrize("keeps_snapshots", [True, False], ids=["with snapshots", "snapshots lost"])
async def test_a_bare_branch_survives_kill_9(
    bench: Bench, tmp_path: Path, *, is_flushed: bool, keeps_snapshots: bool
) -> None:
    async with bench.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        ids = await say(session, "a", "b", "c", "d")
        await manager.flush()
        await session.tree.branch(ids[1])
        if is_flushed:
            await manager.flush()
        killed = bench.crashed(tmp_path / "killed")
    if not keeps_snapshots:
        killed.lose_snapshots()
    async with killed.opened() as session:
        assert session.leaf_id == ids[1]
        assert texts_of(session.messages()) == await told_by(session) == ["a", "b"]
        [new] = await say(session, "e")
        assert [entry.id for entry in await session.tree.get_branch()] == [*ids[:2], new]
        assert (await session.tree.get_entry(new)).parent_id == ids[1]


async def test_a_bare_branch_survives_a_close(bench: Bench) -> None:
    async with bench.opened() as session:
        ids = await say(session, "a", "b", "c")
        await session.tree.branch(ids[0])
    async with bench.opened() as session:
        assert session.leaf_id == ids[0]
        assert texts_of(session.messages()) == ["a"]
        assert session.message_count == 3


async def test_a_bare_branch_survives_the_loss_of_the_store(bench: Bench) -> None:
    async with bench.opened() as session:
        ids = await say(session, "a", "b", "c")
        await session.tree.branch(ids[0])
    bench.lose_store()
    async with bench.opened() as session:
        assert session.leaf_id == ids[0]
        assert await told_by(session) == ["a"]


async def test_a_branch_to_the_root_survives_too(bench: Bench) -> None:
    async with bench.opened() as session:
        await say(session, "a", "b")
        session.clear()
    async with bench.opened() as session:
        assert session.leaf_id is None
        assert await told_by(session) == []
        assert session.message_count == 2


async def test_where_a_branch_begins_is_found_across_pages_of_the_store(bench: Bench) -> None:
    async with bench.opened() as session:
        first = await session.tree.append_message(Message.user("first"))
        for number in range(300):
            session.append(Message.user(str(number)))
        await session.tree.branch(first)
        await say(session, "second")
        assert await told_by(session) == ["first", "second"]
    async with bench.opened() as session:
        assert await told_by(session) == ["first", "second"]


async def test_a_branch_longer_than_the_window_is_whole_in_the_context(bench: Bench) -> None:
    async with bench.opened(window=4) as session:
        ids = await say(session, *map(str, range(20)))
        await session.tree.branch(ids[15])
        assert await told_by(session) == [str(number) for number in range(16)]
        assert texts_of(session.messages()) == ["12", "13", "14", "15"]


# --- what is in force ------------------------------------------------------------------------------------------------


async def test_model_and_thinking_level_are_those_of_the_branch(bench: Bench) -> None:
    async with bench.opened() as session:
        await session.tree.append_model_change("p1", "m1")
        [first] = await say(session, "a")
        await session.tree.append_model_change("p2", "m2")
        await session.tree.append_thinking_level_change("high")
        [second] = await say(session, "b")
        await session.tree.branch(first)
        assert session.metadata == {"provider": "p1", "model": "m1"}
        await session.tree.branch(second)
        assert session.metadata == {"provider": "p2", "model": "m2", "thinking_level": "high"}


async def test_what_was_removed_is_absent_on_the_branch_too(bench: Bench) -> None:
    async with bench.opened() as session:
        session.update(model="m", provider="p", thinking_level="high")
        session.update(model=None, provider=None, thinking_level=None)
        [entry_id] = await say(session, "a")
        assert session.metadata == {}
        await session.tree.branch(entry_id)
        assert session.metadata == {}


async def test_a_reply_that_names_its_model_only_keeps_the_provider(bench: Bench) -> None:
    async with bench.opened() as session:
        await session.tree.append_model_change("openai", "gpt-4o")
        await say(session, "a")
        reply = await session.tree.append_message(
            Message(role=Message.assistant().role, content="b", model="gpt-4o-mini")
        )
        expected = {"provider": "openai", "model": "gpt-4o-mini"}
        assert session.metadata == expected
        await session.tree.branch(reply)
        assert session.metadata == expected
    bench.lose_snapshots()
    async with bench.opened() as session:
        assert session.metadata == expected


async def test_going_back_and_forth_keeps_the_model_that_was_chosen_before_a_compaction(bench: Bench) -> None:
    async with bench.opened(window=2) as session:
        [before] = await say(session, "before")
        await session.tree.append_model_change("p", "m")
        await say(session, "a", "b")
        await session.tree.append_compaction("summary", None)
        last = (await say(session, "c", "d", "e", "f"))[-1]
        await session.tree.branch(before)
        assert session.metadata == {}
        await session.tree.branch(last)
        assert session.metadata == {"provider": "p", "model": "m"}


async def test_a_lost_snapshot_does_not_bring_back_a_model_that_was_left_before_clearing(bench: Bench) -> None:
    async with bench.opened() as session:
        [before] = await say(session, "before")
        await session.tree.append_model_change("p", "m")
        await session.tree.branch(before)
        session.clear()
        assert session.metadata == {}
    bench.lose_snapshots()
    async with bench.opened() as session:
        assert session.metadata == {}


# --- accepted, and not yet committed ---------------------------------------------------------------------------------


async def test_what_the_store_has_not_committed_is_seen_by_every_call_that_reads(faulty: Bench) -> None:
    async with faulty.opened(window=2) as session:
        ids = await say(session, "a", "b", "c")
        faulty.store.fail()
        accepted = [session.append(Message.user(text)).id for text in ("d", "e", "f")]
        await faulty.clock.advance(1)
        assert session.journal.committed_sequence == 3
        assert await told_by(session) == ["a", "b", "c", "d", "e", "f"]
        assert [entry.id for entry in await session.tree.get_branch()] == [*ids, *accepted]
        assert [entry.id for entry in await session.tree.get_branch(accepted[0])] == [*ids, accepted[0]]
        assert (await session.tree.get_entry(accepted[1])).parent_id == accepted[0]
        assert [entry.id for entry in (await session.tree.get_transcript()).entries] == [*ids, *accepted]
        assert [entry.id for entry in await session.tree.get_children(ids[2])] == [accepted[0]]
        with pytest.raises(StoreUnavailable):
            await session.tree.branch(ids[0])
        assert session.leaf_id == accepted[-1]
        faulty.store.heal()
        await faulty.clock.advance(60)
        await session.saved()
        assert await told_by(session) == ["a", "b", "c", "d", "e", "f"]


async def test_a_branch_is_seen_while_its_commit_hangs(session: Session, faulty: Bench) -> None:
    ids = await say(session, "a", "b", "c")
    hold = faulty.store.hold()
    late = session.append(Message.user("late")).id
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.tree.branch, late)
        await hold.reached.wait()
        tasks.start_soon(session.tree.branch, ids[0])
        await faulty.clock.advance(0)
        assert session.leaf_id == ids[0]
        assert await told_by(session) == ["a"]
        assert [entry.id for entry in await session.tree.get_branch(late)] == [*ids, late]
        hold.release()
    assert session.journal.committed_sequence == session.last_sequence == 6


async def test_a_label_and_a_compaction_may_name_what_is_not_committed_yet(session: Session, faulty: Bench) -> None:
    hold = faulty.store.hold()
    first, second = (session.append(Message.user(text)).id for text in "ab")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.tree.set_label, first, "here")
        tasks.start_soon(session.tree.append_compaction, "summary", second)
        await hold.reached.wait()
        await faulty.clock.advance(0)
        assert await session.tree.get_label(first) == "here"
        assert await told_by(session) == ["summary", "b"]
        hold.release()


async def test_a_reading_failure_is_told_and_changes_nothing(faulty: Bench) -> None:
    async with faulty.opened(window=2) as session:
        ids = await say(session, "a", "b", "c")
        faulty.store.fail(method="read")
        faulty.store.fail(method="find")
        for attempt in (
            session.tree.branch(ids[0]),
            session.get_context(),
            session.tree.get_branch(),
            session.tree.get_tree(),
        ):
            with pytest.raises(StoreUnavailable):
                await attempt
        assert (session.leaf_id, session.last_sequence) == (ids[2], 3)


# --- turns -----------------------------------------------------------------------------------------------------------


async def test_a_branch_waits_for_the_turn_of_another_task(session: Session, faulty: Bench) -> None:
    ids = await say(session, "a", "b")
    in_turn, go_on = anyio.Event(), anyio.Event()

    async def talk() -> None:
        async with session.turn(Message.user("c")) as turn:
            in_turn.set()
            await go_on.wait()
            turn.append(Message.assistant("d"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(talk)
        await in_turn.wait()
        tasks.start_soon(session.tree.branch, ids[0])
        await faulty.clock.advance(0)
        assert session.leaf_id != ids[0]
        go_on.set()
    assert session.leaf_id == ids[0]
    assert [
        entry.message.text for entry in (await session.tree.get_transcript()).entries if hasattr(entry, "message")
    ] == [
        "a",
        "b",
        "c",
        "d",
    ]


async def test_a_branch_from_within_ones_own_turn_is_refused(session: Session) -> None:
    ids = await say(session, "a", "b")
    async with session.turn(Message.user("c")) as turn:
        with pytest.raises(TurnInProgress):
            await session.tree.branch(ids[0])
        with pytest.raises(TurnInProgress):
            await session.tree.branch_with_summary(ids[0], "summary")
        turn.append(Message.assistant("d"))
    assert await told_by(session) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("rounds", range(1, 8))
async def test_the_summary_of_a_branch_says_which_leaf_was_left(session: Session, rounds: int) -> None:
    """However long the branch takes, and whatever is said meanwhile."""
    ids = await say(session, "a", "b")

    async def go_back() -> None:
        entry_id = await session.tree.branch_with_summary(ids[0], "what happened")
        summary = await session.tree.get_entry(entry_id)
        assert isinstance(summary, BranchSummary)
        [move] = await leaf_moves(session)
        assert summary.from_id == move.parent_id

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go_back)
        for _ in range(rounds):
            await checkpoint()
        session.append(Message.user("said meanwhile"))


# --- unknown ids -----------------------------------------------------------------------------------------------------


async def test_a_move_of_the_leaf_is_no_entry_of_the_tree(session: Session) -> None:
    ids = await say(session, "a", "b")
    await session.tree.branch(ids[0])
    [move] = await leaf_moves(session)
    for attempt in (
        session.tree.get_entry(move.id),
        session.tree.get_branch(move.id),
        session.tree.set_label(move.id, "here"),
        session.tree.branch(move.id),
        session.fork(leaf_id=move.id),
    ):
        with pytest.raises(EntryNotFound):
            await attempt


async def test_a_deleted_session_takes_no_branch(faulty: Bench) -> None:
    async with faulty.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        ids = await say(session, "a", "b")
        await manager.delete(session.session_id)
        for attempt in (
            session.tree.branch_with_summary(None, "s"),
            session.fork(),
            session.tree.append_session_info("t"),
        ):
            with pytest.raises(SessionDeleted):
                await attempt
        with pytest.raises((SessionDeleted, EntryNotFound)):
            await session.tree.branch(ids[0])


# --- cuts ------------------------------------------------------------------------------------------------------------


async def test_a_compaction_with_open_calls_is_refused_and_changes_nothing(session: Session) -> None:
    [asked] = await say(session, "a")
    call = ToolCall("c", "look", "{}")
    await session.tree.append_message(Message.assistant("", (call,)))
    for kept in (asked, None):
        with pytest.raises(UnsafeCompaction):
            await session.tree.append_compaction("summary", kept)
    await session.tree.append_message(Message.tool_result(call, "found"))
    with pytest.raises(UnsafeCompaction):  # between call and result
        await session.tree.append_compaction("summary", session.leaf_id)
    assert session.last_sequence == 3
    await session.tree.append_compaction("summary", None)
    assert await told_by(session) == ["summary"]


async def test_a_compaction_that_keeps_what_is_not_on_the_branch_is_refused(session: Session) -> None:
    ids = await say(session, "a", "b", "c")
    await session.tree.branch(ids[0])
    with pytest.raises(UnsafeCompaction):
        await session.tree.append_compaction("summary", ids[2])
    with pytest.raises(EntryNotFound):
        await session.tree.append_compaction("summary", "nobody")
    assert await told_by(session) == ["a"]


# --- one side is lost ------------------------------------------------------------------------------------------------


async def test_what_was_written_back_after_a_loss_is_one_branch(bench: Bench) -> None:
    """Titles, labels and the like are gone with the store; what hung on them must not be cut off."""
    async with bench.opened(window=6) as session:
        await say(session, "a", "b", "c", "d")
        await session.tree.append_session_info("title")
        ids = await say(session, "e", "f", "g", "h")
        await session.tree.set_label(ids[0], "here")
    bench.lose_store()
    async with bench.opened(window=6) as session:
        await say(session, "i")
        assert await told_by(session) == ["c", "d", "e", "f", "g", "h", "i"]
        assert session.title == "title"
        await session.tree.branch(ids[1])
        assert await told_by(session) == ["c", "d", "e", "f"]


async def test_a_summary_survives_the_loss_of_the_store_and_then_of_the_snapshot(bench: Bench) -> None:
    async with bench.opened() as session:
        ids = await say(session, "a", "b", "c", "d")
        await session.tree.append_compaction("summary", ids[2])
        await say(session, "e")
    bench.lose_store()
    async with bench.opened() as session:
        assert await told_by(session) == ["summary", "c", "d", "e"]
    bench.lose_snapshots()
    async with bench.opened() as session:
        assert await told_by(session) == ["summary", "c", "d", "e"]


async def test_a_snapshot_that_was_taken_while_the_store_failed_outlives_the_store(faulty: Bench) -> None:
    async with faulty.manager(window=3) as manager:
        session = await manager.get_or_create("telegram", "1")
        await say(session, "a", "b", "c")
        faulty.store.fail()
        session.append(Message.user("d"))
        with pytest.raises(StoreUnavailable):
            await manager.flush()
        killed = faulty.crashed(faulty.workspace.parent / "killed")
        faulty.store.heal()
    killed.lose_store()
    async with killed.opened(window=3) as session:
        assert texts_of(session.messages()) == ["b", "c"]
        await say(session, "e")
    async with killed.opened(window=3) as session:
        assert texts_of(session.messages()) == ["b", "c", "e"]


async def test_a_snapshot_that_was_taken_while_the_store_failed_outlives_an_older_store(
    faulty: Bench, tmp_path: Path
) -> None:
    async with faulty.manager(window=3) as manager:
        session = await manager.get_or_create("telegram", "1")
        await say(session, "a")
        older = faulty.crashed(tmp_path / "older")
        await say(session, "b", "c")
        faulty.store.fail()
        session.append(Message.user("d"))
        with pytest.raises(StoreUnavailable):
            await manager.flush()
        killed = faulty.crashed(tmp_path / "killed")
        faulty.store.heal()
    killed.real = older.real
    killed.renew_store()
    async with killed.opened(window=3) as session:
        assert texts_of(session.messages()) == ["b", "c"]
        await say(session, "e")
        assert (await told_by(session))[-2:] == ["c", "e"]


async def test_a_session_whose_first_message_was_never_committed_is_saved_after_the_crash(faulty: Bench) -> None:
    async with faulty.manager() as manager:
        faulty.store.fail()
        session = await manager.get_or_create("telegram", "1")
        session.append(Message.user("lost"))
        with pytest.raises(StoreUnavailable):
            await manager.flush()
        killed = faulty.crashed(faulty.workspace.parent / "killed")
        faulty.store.heal()
    async with killed.manager() as manager:
        session = await manager.get("telegram", "1")
        assert session.messages() == []
        await say(session, "hello")
        await manager.flush()
        assert manager.statistics().dirty == 0


async def test_what_was_removed_stays_removed_when_the_store_is_lost(bench: Bench) -> None:
    async with bench.opened() as session:
        await say(session, "a")
        await session.tree.append_message(Message(role=Message.assistant().role, content="b", model="m"))
        session.update(model=None)
        assert session.metadata == {}
    bench.lose_store()
    async with bench.opened() as session:
        assert session.metadata == {}
    bench.lose_snapshots()
    async with bench.opened() as session:
        assert session.metadata == {}


async def test_starting_twice_after_a_loss_is_starting_once(bench: Bench, tmp_path: Path) -> None:
    """Killed between writing back and the next flush, the old snapshot meets the new store (rule R16)."""
    async with bench.opened() as session:
        ids = await say(session, "a", "b")
        session.update(thinking_level="high")
    bench.lose_store()
    async with bench.opened():
        killed = bench.crashed(tmp_path / "killed")
    async with killed.opened() as session:
        assert session.leaf_id == ids[1]
        assert session.metadata == {"thinking_level": "high"}
        assert await told_by(session) == ["a", "b"]
        assert [entry.id for entry in await session.tree.get_branch()] == ids


async def test_the_summary_of_a_branch_alone_is_no_message_after_a_restart_either(bench: Bench) -> None:
    for _ in range(2):
        async with bench.opened() as session:
            if not session.last_sequence:
                await session.tree.branch_with_summary(None, "nothing was said")
            assert (session.message_count, session.event_count, len(session.messages())) == (0, 0, 1)


async def test_check_finds_a_session_with_the_summary_of_a_branch_sound(bench: Bench) -> None:
    async with bench.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        ids = await say(session, "a", "b")
        await session.tree.branch_with_summary(ids[0], "what happened")
        await manager.flush()
        assert (await manager.check()).problems == []


async def test_what_follows_a_move_is_said_together_with_it(tmp_path: Path) -> None:
    async with SessionManager(tmp_path / "w") as manager:
        session = await manager.get_or_create("telegram", "1")
        first = await session.tree.append_message(Message.user("a"))
        await session.tree.append_message(Message.assistant("b"))
        await session.tree.branch(first, then=[Message.assistant("c"), Message.user("d")])
        assert [message.text for message in session.messages()] == ["a", "c", "d"]
        with pytest.raises(InvalidMessage):
            await session.tree.branch(first, then=[Message.user("\ud800")])
        assert [message.text for message in session.messages()] == ["a", "c", "d"]
        await session.tree.branch(None, then=[Message.user("new")])
    async with SessionManager(tmp_path / "w") as manager:
        session = await manager.continue_recent()
        assert [message.text for message in session.messages()] == ["new"]
        assert [len(branch) for branch in await branches_of(session)] == [2, 3, 1]


async def branches_of(session: Session) -> list[list[Entry]]:
    transcript = await session.tree.get_transcript()
    return [transcript.path(leaf.id) for leaf in transcript.leaves]
