"""Forks: they share nothing, they are complete or not there, and whoever asks for one meanwhile waits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import LeafMove, moves_leaf
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.stores.base import BATCH_ENTRIES, Append, Store
from miniclaw_sessions.errors import (
    EntryNotFound,
    InvalidKey,
    SessionDeleted,
    SessionExists,
    SessionLimit,
    SessionNotFound,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from miniclaw_sessions.files.formats.outline import outline
from miniclaw_sessions.files.formats.registry import format_named
from miniclaw_sessions.files.transfer.exporting import export_session
from miniclaw_sessions.files.transfer.importing import import_stream
from miniclaw_sessions.testing import FaultyStore
from tests.core.session.bench import Bench, Kind, say, told_by
from tests.texts import texts_of

pytestmark = pytest.mark.anyio

FORK = SessionKey("telegram", "fork")


@pytest.fixture
async def session(faulty: Bench) -> AsyncIterator[Session]:
    async with faulty.opened() as session:
        yield session


async def ids_of(session: Session) -> list[str]:
    return [entry.id for entry in (await session.tree.get_transcript()).entries]


async def grown(session: Session) -> list[str]:
    """A tree with two branches, a label, a title, a model, and a summary; the ids of its messages."""
    ids = await say(session, "a", "b", "c")
    await session.tree.set_label(ids[1], "here")
    await session.tree.append_session_info("title")
    await session.tree.branch(ids[1])
    await session.tree.append_model_change("p", "m")
    ids += await say(session, "x", "y")
    await session.tree.append_compaction("summary", ids[1])
    session.update(agent_id="main", tags=["one"])
    await session.saved()
    return ids


# --- what a fork is --------------------------------------------------------------------------------------------------


async def test_a_fork_has_everything_that_its_source_has(bench: Bench) -> None:
    async with bench.opened() as original:
        session = original
        await grown(session)
        fork = await session.fork()
        for _ in range(2):  # and so has the fork of a fork
            assert fork.session_id != session.session_id
            assert fork.journal.incarnation != session.journal.incarnation
            assert await told_by(fork) == await told_by(session) == ["summary", "b", "x", "y"]
            assert texts_of(fork.messages()) == texts_of(session.messages())
            assert fork.leaf_id == session.leaf_id
            assert fork.metadata == {**session.metadata, "parent_session": session.session_id}
            assert (fork.message_count, fork.event_count) == (session.message_count, session.event_count)
            one, other = await session.tree.get_transcript(), await fork.tree.get_transcript()
            assert other.labels == one.labels
            assert other.problems == []
            tree = [entry for entry in one.entries if moves_leaf(entry)]
            assert [other.get(entry.id).parent_id for entry in tree] == [entry.parent_id for entry in tree]
            session, fork = fork, await fork.fork()


async def test_the_tree_of_a_session_and_of_its_fork_is_that_of_the_conversation(bench: Bench) -> None:
    async with bench.manager() as manager:
        session = await manager.get_or_create("telegram", "1", agent_id="bot", metadata={"colour": "green"})
        first, second = await session.add_messages([Message.user("question"), Message.assistant("answer")])
        forks = [await session.fork(), await session.fork(leaf_id=first.id)]
        for fork in forks:
            fork.update(colour="red")
            await fork.saved()
        for one, last in zip((session, *forks), (second, second, first), strict=True):
            transcript = await one.tree.get_transcript()
            assert [entry.id for entry in transcript.roots] == [first.id]
            assert [entry.id for entry in transcript.leaves] == [last.id] == [one.leaf_id]
            assert [root.entry.id for root in await one.tree.get_tree()] == [first.id]
            assert [entry.id for entry in await one.tree.get_children(None)] == [first.id]
            assert {row.entry.id for row in outline(transcript)} == {first.id, last.id}
            assert one.metadata["agent_id"] == "bot"


async def test_a_fork_survives_a_restart_by_either_side(bench: Bench) -> None:
    async with bench.opened() as session:
        await grown(session)
        fork_id = (await session.fork()).session_id
        expected, entries = await told_by(session), await ids_of(session)
    for _ in range(2):
        async with bench.manager() as manager:
            fork = await manager.find(fork_id)
            assert await told_by(fork) == texts_of(fork.messages()) == expected
            assert [entry for entry in await ids_of(fork) if entry in entries] == entries
            assert (await manager.check()).problems == []
        bench.lose_snapshots()


async def test_a_fork_and_its_source_share_nothing(session: Session) -> None:
    session.update(tags=["one", {"deep": [1]}])
    await say(session, "a", "b")
    fork = await session.fork()
    fork.metadata["tags"].append("two")
    fork.update(tags=["other"], title="fork")
    await say(fork, "only in the fork")
    await session.tree.set_label(session.leaf_id or "", "only in the source")
    await say(session, "only in the source")
    assert session.metadata == {"tags": ["one", {"deep": [1]}]}
    assert await told_by(session) == ["a", "b", "only in the source"]
    assert await told_by(fork) == ["a", "b", "only in the fork"]
    assert (await fork.tree.get_transcript()).labels == {}
    assert session.message_count == fork.message_count == 3


async def test_a_fork_and_its_source_are_deleted_alone(bench: Bench) -> None:
    async with bench.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        ids = await say(session, "a", "b")
        one, two = await session.fork(), await session.fork()
        assert await manager.delete(session.session_id)
        assert await told_by(one) == ["a", "b"]
        await one.tree.branch(ids[0])
        assert await manager.delete(one.session_id)
        assert await told_by(two) == ["a", "b"]
        left = two.session_id
    bench.lose_snapshots()
    async with bench.manager() as manager:
        assert [summary.session_id for summary in await manager.list()] == [left]


async def test_a_fork_takes_the_idempotency_keys_along(session: Session) -> None:
    await session.add_message(Message.user("a"), idempotency_key="update-1")
    fork = await session.fork()
    assert (await fork.add_message(Message.user("again"), idempotency_key="update-1")).message.text == "a"
    await fork.add_message(Message.user("b"), idempotency_key="update-2")
    assert await told_by(fork) == ["a", "b"]
    assert session.journal.find_duplicate("update-2") is None


async def test_a_fork_has_the_usage_of_its_source(session: Session) -> None:
    await session.save_turn([Message.user("a"), Message.assistant("b")], Usage(input_tokens=5, output_tokens=2))
    fork = await session.fork()
    assert fork.total_usage == session.total_usage
    assert fork.total_usage.input_tokens == 5


async def test_the_default_key_is_another_each_time_and_stays_in_the_channel(session: Session) -> None:
    forks = [await session.fork() for _ in range(3)]
    assert len({fork.session_id for fork in forks}) == 3
    assert {fork.key.channel for fork in forks} == {"telegram"}


async def test_a_session_that_was_cleared_after_a_branch_is_forked_as_it_is(session: Session) -> None:
    [before] = await say(session, "before")
    await session.tree.append_thinking_level_change("high")
    await session.tree.branch(before)
    session.clear()
    fork = await session.fork()
    assert fork.leaf_id is None
    assert fork.metadata == {"parent_session": "telegram_1"}


async def test_a_branched_session_is_forked_with_the_state_of_its_branch(session: Session) -> None:
    await session.tree.append_model_change("p1", "m1")
    [before] = await say(session, "a")
    await session.tree.append_model_change("p2", "m2")
    await session.tree.branch(before)
    fork = await session.fork()
    assert fork.leaf_id == before
    assert fork.metadata == {**session.metadata, "parent_session": "telegram_1"}


async def test_what_is_not_committed_yet_is_forked_too(session: Session, faulty: Bench) -> None:
    await say(session, "a")
    hold = faulty.store.hold()
    session.append(Message.user("b"))
    forks = []

    async def fork() -> None:
        forks.append(await session.fork())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fork)
        await hold.reached.wait()
        hold.release()
    assert await told_by(forks[0]) == ["a", "b"]


async def test_a_session_larger_than_what_may_wait_for_the_store_is_forked(tmp_path: Path) -> None:
    async with Bench(tmp_path / "workspace").opened(max_unsaved_bytes=8_000_000) as session:
        for _ in range(20):
            await say(session, "x" * 900_000)
        fork = await session.fork()
        assert fork.message_count == 20


async def test_a_long_session_is_forked_in_pieces_and_whole(faulty: Bench) -> None:
    async with faulty.opened() as session:
        ids = [session.append(Message.user(str(n))).id for n in range(2 * BATCH_ENTRIES + 10)]
        await session.tree.branch(ids[3])
        [last] = await say(session, "last")
        fork = await session.fork()
        assert [entry.id for entry in await fork.tree.get_branch()] == [*ids[:4], last]
        assert fork.message_count == len(ids) + 1


# --- one branch of it ------------------------------------------------------------------------------------------------


async def test_a_branched_session_has_the_path_and_the_labels_on_it(bench: Bench) -> None:
    async with bench.opened() as session:
        ids = await say(session, "a", "b", "c")
        await session.tree.set_label(ids[0], "first")
        await session.tree.branch(ids[1])
        other = await say(session, "x")
        await session.tree.set_label(other[0], "not on the path")
        branched = await session.fork(FORK, leaf_id=ids[2])
        assert branched.key == FORK
        assert [entry.id for entry in await branched.tree.get_branch()][:3] == ids
        assert await told_by(branched) == ["a", "b", "c"]
        transcript = await branched.tree.get_transcript()
        assert transcript.labels == {ids[0]: "first"}
        assert transcript.problems == []
        assert branched.metadata["parent_session"] == session.session_id
        assert other[0] not in transcript


async def test_a_branched_session_of_a_fork_says_which_one_it_was_made_of(session: Session) -> None:
    ids = await say(session, "a", "b")
    fork = await session.fork()
    branched = await fork.fork(leaf_id=ids[0])
    assert branched.metadata == {"parent_session": fork.session_id}


async def test_the_label_that_counts_is_the_newest_wherever_it_stands(session: Session) -> None:
    ids = await say(session, "a", "b")
    await session.tree.set_label(ids[0], "old")  # these stand on the path
    await session.tree.set_label(ids[1], "old")
    last = (await say(session, "c"))[0]
    await session.tree.branch(ids[0])
    await session.tree.set_label(ids[0], "new")  # and these do not
    await session.tree.set_label(ids[1], "")
    branched = await session.fork(leaf_id=last)
    assert (await branched.tree.get_transcript()).labels == {ids[0]: "new"}
    assert (await session.tree.get_transcript()).labels == {ids[0]: "new"}


async def test_a_branched_session_keeps_what_the_compaction_of_the_path_says(session: Session) -> None:
    ids = await say(session, "a", "b", "c")
    await session.tree.append_compaction("summary", ids[1])
    [last] = await say(session, "d")
    branched = await session.fork(leaf_id=last)
    assert await told_by(branched) == ["summary", "b", "c", "d"]
    before = await session.fork(leaf_id=ids[2])
    assert await told_by(before) == ["a", "b", "c"]
    assert texts_of(before.messages()) == ["a", "b", "c"]


async def test_a_branched_session_keeps_free_metadata_and_what_is_in_force_on_its_path(session: Session) -> None:
    session.update(agent_id="main")
    await session.tree.append_model_change("p1", "m1")
    [first] = await say(session, "a")
    await session.tree.append_model_change("p2", "m2")
    await say(session, "b")
    branched = await session.fork(leaf_id=first)
    expected = {"agent_id": "main", "provider": "p1", "model": "m1", "parent_session": "telegram_1"}
    assert branched.metadata == expected
    assert branched.chosen_model == session.chosen_model == "m2"
    assert await told_by(branched) == texts_of(branched.messages()) == ["a"]
    assert (branched.leaf_id, (await branched.tree.get_transcript()).problems) == (first, [])
    whole = await session.fork(leaf_id=session.leaf_id)
    moves = [entry for entry in (await whole.tree.get_transcript()).entries if isinstance(entry, LeafMove)]
    assert (whole.chosen_model, moves) == ("m2", []), "it stands on the path, and nothing beside it"


async def test_an_entry_that_the_session_does_not_have_gives_no_branched_session(faulty: Bench) -> None:
    async with faulty.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        with pytest.raises(EntryNotFound):
            await session.fork(leaf_id="nobody")
        assert len(await manager.list()) == 1


# --- keys ------------------------------------------------------------------------------------------------------------


async def test_a_key_that_is_taken_is_refused_and_nothing_is_changed(session: Session) -> None:
    await say(session, "a")
    fork = await session.fork(FORK)
    await say(fork, "b")
    for key in (FORK, FORK.session_id, session.key):
        with pytest.raises(SessionExists):
            await session.fork(key)
    assert await told_by(fork) == ["a", "b"]
    assert await told_by(session) == ["a"]


async def test_a_name_that_is_no_key_is_refused(session: Session) -> None:
    with pytest.raises(InvalidKey):
        await session.fork("")


async def test_the_limit_of_sessions_counts_forks_too(faulty: Bench) -> None:
    async with faulty.opened(max_sessions=2) as session:
        await session.fork()
        with pytest.raises(SessionLimit):
            await session.fork()


async def test_whoever_asks_for_the_key_meanwhile_waits_and_gets_the_fork(faulty: Bench) -> None:
    async with faulty.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        await say(session, "a")
        hold = faulty.store.hold()
        got: list[Session] = []

        async def ask() -> None:
            got.append(await manager.get_or_create("telegram", "fork"))

        async def fork() -> None:
            got.append(await session.fork(FORK))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fork)
            await hold.reached.wait()
            for _ in range(5):
                tasks.start_soon(ask)
            await faulty.clock.advance(0)
            assert got == []
            assert [summary.session_id for summary in await manager.list()] == ["telegram_1"]
            with pytest.raises(SessionNotFound):
                await manager.get("telegram", "fork")
            with pytest.raises(SessionExists):
                await session.fork(FORK)
            hold.release()
        assert len(got) == 6
        assert len({id(one) for one in got}) == 1
        assert await told_by(got[0]) == ["a"]


# --- what goes wrong -------------------------------------------------------------------------------------------------


async def test_a_source_that_was_deleted_gives_no_fork(faulty: Bench) -> None:
    async with faulty.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        ids = await say(session, "a", "b")
        await manager.delete(session.session_id)
        with pytest.raises(SessionDeleted):
            await session.fork(FORK)
        with pytest.raises((SessionDeleted, EntryNotFound)):
            await session.fork(FORK, leaf_id=ids[0])
        assert await manager.list() == []


async def test_a_source_that_is_deleted_meanwhile_gives_no_half_fork(faulty: Bench) -> None:
    async with faulty.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        session.extend([Message.user(str(number)) for number in range(2 * BATCH_ENTRIES)])
        await session.saved()

        async def delete() -> None:
            for _ in range(10):
                await checkpoint()
            await manager.delete(session.session_id)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(delete)
            try:
                fork = await session.fork(FORK)
            except SessionDeleted:
                assert await manager.list() == []
            else:
                assert fork.message_count == 2 * BATCH_ENTRIES


@pytest.mark.parametrize("commits", range(4))
async def test_a_store_that_fails_in_the_middle_leaves_nothing(faulty: Bench, tmp_path: Path, commits: int) -> None:
    """At whichever commit it fails: nobody sees half a fork, now or after a restart, and its key can be used."""
    async with faulty.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        session.extend([Message.user(str(number)) for number in range(2 * BATCH_ENTRIES)])
        await session.saved()
        done = faulty.store.calls["append"]

        async def fail_later() -> None:
            while faulty.store.calls["append"] < done + commits:
                await checkpoint()
            faulty.store.fail(StoreFull("full"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail_later)
            await checkpoint()
            try:
                await session.fork(FORK)
            except StoreFull:
                pass
            else:
                pytest.skip("the fork needs fewer commits")  # pragma: no cover
        assert [summary.session_id for summary in await manager.list()] == ["telegram_1"]
        killed = faulty.crashed(tmp_path / "killed")
        faulty.store.heal()
        await faulty.clock.advance(60)
        new = await manager.get_or_create("telegram", "fork")
        await say(new, "hello")
        assert new.messages()[0].text == "hello"
        assert "incomplete" not in new.metadata
    async with faulty.manager() as manager:
        assert await told_by(await manager.get("telegram", "fork")) == ["hello"]
        assert (await manager.check()).problems == []
    killed.store.heal()
    async with killed.manager() as manager:
        assert [summary.session_id for summary in await manager.list()] == ["telegram_1"]
        await say(await manager.get_or_create("telegram", "fork"), "hello")


async def test_while_what_is_left_of_a_fork_cannot_be_removed_its_key_is_refused(faulty: Bench) -> None:
    async with faulty.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        await say(session, "a")
        faulty.store.fail()
        with pytest.raises(StoreUnavailable):
            await session.fork(FORK)
        with pytest.raises(StoreUnavailable):
            await manager.get_or_create("telegram", "fork")
        faulty.store.heal()
        await faulty.clock.advance(60)
        fork = await session.fork(FORK)
        assert await told_by(fork) == ["a"]


class FailsAtTheEnd(FaultyStore):
    """Refuses the first commit that would make a fork complete, and then all calls of a method until it is healed."""

    def __init__(self, store: Store, fails_then: str) -> None:
        super().__init__(store)
        self.fails_then = fails_then
        self.reached = anyio.Event()
        self.may_fail = anyio.Event()

    async def append(self, appends: Sequence[Append]) -> list[StoreError | None]:
        is_end = any(b'"session.incomplete":null' in entry.encoded for one in appends for entry in one.entries)
        if is_end and not self.reached.is_set():
            self.reached.set()
            await self.may_fail.wait()
            self.fail_next()
            self.fail(method=self.fails_then)
        return await super().append(appends)


@pytest.mark.parametrize(("fails_then", "is_closing"), [("append", False), ("delete", False), ("delete", True)])
@pytest.mark.parametrize("kind", ["memory", "sqlite", "jsonl"])
async def test_a_fork_that_failed_is_not_there_after_the_store_has_recovered_and_a_restart(
    tmp_path: Path, kind: Kind, fails_then: str, is_closing: bool
) -> None:
    bench = Bench(tmp_path / "workspace", kind)
    bench.store = store = FailsAtTheEnd(bench.real, fails_then)
    async with anyio.create_task_group() as tasks, bench.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        await say(session, "a")

        async def fork() -> None:
            with pytest.raises(StoreUnavailable):
                await session.fork(FORK)
            failed.set()

        failed = anyio.Event()
        tasks.start_soon(fork)
        await store.reached.wait()
        if is_closing:
            tasks.start_soon(manager.close)
            await bench.clock.advance(0)
        store.may_fail.set()
        await failed.wait()
        if not is_closing:
            store.heal()
            await manager.flush()
            await say(session, "the store works again")
            assert [summary.session_id for summary in await manager.list()] == ["telegram_1"]
    bench.renew_store()
    async with bench.manager() as manager:
        assert [summary.session_id for summary in await manager.list()] == ["telegram_1"]
        assert (await manager.check()).problems == []
        assert await told_by(await manager.get_or_create("telegram", "fork")) == []


@pytest.mark.parametrize("rounds", [1, 3, 10, 30])
async def test_a_caller_who_is_cancelled_leaves_nothing(bench: Bench, rounds: int) -> None:
    async with bench.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        await say(session, "a")
        forks = []

        async def fork() -> None:
            forks.append(await session.fork(FORK))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fork)
            for _ in range(rounds):
                await checkpoint()
            tasks.cancel_scope.cancel()
        assert len(await manager.list()) == 1 + len(forks)
        new = await manager.get_or_create("telegram", "fork")
        assert await told_by(new) == ["a"] * len(forks)
    async with bench.manager() as manager:
        assert {summary.session_id for summary in await manager.list()} == {"telegram_1", "telegram_fork"}


async def test_a_crash_in_the_middle_leaves_nothing(faulty: Bench, tmp_path: Path) -> None:
    async with faulty.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        session.extend([Message.user(str(number)) for number in range(2 * BATCH_ENTRIES)])
        await session.saved()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.fork, FORK)
            stored = faulty.store.calls["append"]
            while faulty.store.calls["append"] < stored + 2:
                await checkpoint()
            hold = faulty.store.hold()
            await hold.reached.wait()
            await manager._saving.flusher._write_chunk(
                list(manager._saving.flusher._dirty)
            )  # as the 30 seconds might end now
            killed = faulty.crashed(tmp_path / "killed")
            hold.release()
        assert len(await manager.list()) == 2
    assert (await killed.real.read("telegram_fork"))[:1]
    async with killed.manager() as manager:
        assert [summary.session_id for summary in await manager.list()] == ["telegram_1"]
        assert await killed.real.read("telegram_fork") == []
    assert [path.name for path in killed.snapshots] == ["telegram_1.json"]


@pytest.mark.proof
def test_kill_9_in_the_middle_leaves_whole_forks_only(tmp_path: Path) -> None:
    messages = 3 * BATCH_ENTRIES
    command = [sys.executable, "-m", "tests.core.session.fork_and_die", str(tmp_path / "workspace"), str(messages)]
    forker = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[4], env={**os.environ})
    assert forker.stdout is not None
    for number, _ in enumerate(forker.stdout):
        if number == 2:
            break
    forker.kill()
    forker.wait()
    forker.stdout.close()

    async def look() -> list[tuple[str, Any, int]]:
        async with SessionManager(tmp_path / "workspace") as manager:
            assert (await manager.check()).problems == []
            sessions = [await manager.find(summary.session_id) for summary in await manager.list()]
            return [(one.session_id, one.metadata.get("incomplete"), one.message_count) for one in sessions]

    found = anyio.run(look)
    assert {"telegram_1", "telegram_fork-0", "telegram_fork-1"} <= {session_id for session_id, _, _ in found}
    assert {(incomplete, count) for _, incomplete, count in found} == {(None, messages)}


async def test_closing_meanwhile_leaves_no_half_fork(faulty: Bench) -> None:
    errors: list[Exception] = []
    async with anyio.create_task_group() as tasks, faulty.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        session.extend([Message.user(str(number)) for number in range(3 * BATCH_ENTRIES)])
        await session.saved()

        async def fork() -> None:
            try:
                await session.fork(FORK)
            except Exception as error:  # noqa: BLE001 - looked at below
                errors.append(error)

        tasks.start_soon(fork)
        for _ in range(8):
            await checkpoint()
    async with faulty.manager() as manager:
        found = [(summary.session_id, summary.message_count) for summary in await manager.list()]
        assert ("telegram_1", 3 * BATCH_ENTRIES) in found
        assert all(count == 3 * BATCH_ENTRIES for _, count in found)
        assert len(found) == 2 - bool(errors)


async def test_a_fork_of_one_branch_has_all_of_it_though_the_branch_goes_on_behind_metadata(tmp_path: Path) -> None:
    async with SessionManager(tmp_path / "w") as manager:
        session = await manager.get_or_create("telegram", "1")
        await say(session, "my name is Ada")
        session.update(topic="names")
        await session.saved()
        metadata = [entry async for entry in session.tree.read_entries()][-1]
        await say(session, "left")
        await session.tree.branch(metadata.id)
        (last,) = await say(session, "what is my name?")
        for leaf_id in (last, None):
            fork = await session.fork(leaf_id=leaf_id)
            assert texts_of((await fork.get_context()).messages) == ["my name is Ada", "what is my name?"]


async def test_a_fork_and_what_is_exported_have_what_stands_before_a_damaged_line(tmp_path: Path) -> None:
    async with SessionManager(tmp_path / "w", store="jsonl:") as manager:
        session = await manager.get_or_create("telegram", "1")
        ids = await say(session, "m0", "m1", "m2", "m3")
    (file,) = (tmp_path / "w" / "transcripts").rglob("*.jsonl")
    file.write_bytes(file.read_bytes().replace(b'"m1"', b'"m1'))
    async with SessionManager(tmp_path / "w", store="jsonl:") as manager:
        session = await manager.get("telegram", "1")
        for leaf_id in (ids[-1], None):
            fork = await session.fork(leaf_id=leaf_id)
            context = await fork.get_context()
            assert (texts_of(context.messages), context.problems) == (["m0", "m2", "m3"], ())
        for form in ("jsonl", "pi"):
            pieces = export_session(manager, session.session_id, format_named(form))
            again = await import_stream(manager, pieces, name="x", key=SessionKey("import", form))
            context = await (await manager.find(again.session_id)).get_context()
            assert (texts_of(context.messages), context.problems) == (["m0", "m2", "m3"], ())
