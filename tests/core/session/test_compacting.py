"""Compaction of a live session: whatever the summarizer and everybody else do, nothing that was said is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from miniclaw_sessions.core.protocol.entries import Compaction, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.compacting import CompactionOutcome, CompactionStatus
from miniclaw_sessions.errors import InvalidMessage, SessionDeleted, StoreUnavailable
from tests.core.session.bench import Bench, say, told_by
from tests.legality import is_legal
from tests.texts import texts_of

pytestmark = pytest.mark.anyio

DONE, SKIPPED, FAILED, ABORTED = CompactionStatus


async def summarize(messages: Sequence[Message]) -> str:
    return f"summary of {len(messages)}"


class Summarizer:
    """A summarizer that waits until the test lets it go on."""

    def __init__(self, text: str = "summary") -> None:
        self.text = text
        self.given: list[str] = []
        self.begun = anyio.Event()
        self.go_on = anyio.Event()

    async def __call__(self, messages: Sequence[Message]) -> str:
        self.given = texts_of(messages)
        self.begun.set()
        await self.go_on.wait()
        return self.text

    async def run(
        self, session: Session, meanwhile: Callable[[], Awaitable[Any]], *, keep_tokens: int = 0
    ) -> CompactionOutcome:
        """Compact, and do something else while the summary is made."""
        outcomes = []

        async def compact() -> None:
            outcomes.append(await session.compact(self, keep_tokens=keep_tokens))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(compact)
            await self.begun.wait()
            await meanwhile()
            self.go_on.set()
        return outcomes[0]


# --- done ------------------------------------------------------------------------------------------------------------


async def test_a_summary_stands_for_everything_and_nothing_is_lost(session: Session) -> None:
    ids = await say(session, "a", "b", "c")
    outcome = await session.compact(summarize)
    assert (outcome.status, outcome.entry_id) == (DONE, session.leaf_id)
    assert await told_by(session) == texts_of(session.messages()) == ["summary of 3"]
    assert [entry.id for entry in await session.tree.get_branch()][:3] == ids
    entry = await session.tree.get_entry(outcome.entry_id or "")
    assert isinstance(entry, Compaction)
    assert (entry.reason, entry.tokens_before, entry.tokens_after) == ("manual", 3, outcome.tokens_after)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_compaction_survives_a_restart(tmp_path: Path, kind: Any) -> None:
    bench = Bench(tmp_path / "workspace", kind)
    async with bench.opened() as session:
        await say(session, "a", "b", "c")
        await session.compact(summarize, keep_tokens=1)
        await say(session, "d")
        assert await told_by(session) == ["summary of 2", "c", "d"]
    async with bench.opened() as session:
        assert await told_by(session) == texts_of(session.messages()) == ["summary of 2", "c", "d"]
    bench.lose_snapshots()
    async with bench.opened() as session:
        assert await told_by(session) == texts_of(session.messages()) == ["summary of 2", "c", "d"]
        assert session.event_count == 5


async def test_the_newest_part_is_kept_and_call_and_result_stay_together(session: Session) -> None:
    call = ToolCall("c", "look", "{}")
    await say(session, "first " * 10)
    await session.add_messages([Message.assistant("calling", (call,)), Message.tool_result(call, "found " * 10)])
    await say(session, "thanks")
    outcome = await session.compact(summarize, keep_tokens=10)
    assert outcome.status is DONE
    assert await told_by(session) == ["summary of 1", "calling", "found " * 10, "thanks"]
    assert is_legal((await session.get_context()).messages) == []


async def test_the_next_summary_is_made_of_the_former_one_too(session: Session) -> None:
    await say(session, "a", "b")
    await session.compact(summarize)
    await say(session, "c")
    summarizer = Summarizer()
    await summarizer.run(session, checkpoint)
    assert summarizer.given == ["summary of 2", "c"]
    assert await told_by(session) == ["summary"]
    assert session.event_count == 5


async def test_instructions_are_not_summarized_away(session: Session) -> None:
    await session.tree.append_message(Message.system("be kind"))
    await say(session, "a", "b")
    for _ in range(2):
        summarizer = Summarizer()
        await summarizer.run(session, checkpoint)
        assert "be kind" not in summarizer.given
        roles = [message.role for message in (await session.get_context()).messages]
        assert sorted(roles) == [Role.SYSTEM, Role.USER]
        await say(session, "c")


async def test_a_list_of_messages_stands_for_what_was_said_and_is_copied(session: Session) -> None:
    """Defect D5: the summarizer's list was stored as it was, and the lock held during the model call."""
    extra: dict[str, Any] = {"a": [1]}
    given = [Message.user("in short"), Message(Role.ASSISTANT, "yes", extra=extra)]

    async def shorten(_: Sequence[Message]) -> list[Message]:
        await session.tree.append_message(Message.user("said meanwhile"))  # nothing is locked
        return given

    await say(session, "a", "b")
    assert (await session.compact(shorten)).status is DONE
    given.clear()
    extra["a"].append(2)
    assert await told_by(session) == ["in short", "yes", "said meanwhile"]
    assert session.messages()[1].extra == {"a": [1]}


async def test_one_message_may_be_the_summary(session: Session) -> None:
    await say(session, "a", "b")

    async def one(_: Sequence[Message]) -> Message:
        return Message.user("in short")

    assert (await session.compact(one)).status is DONE
    assert texts_of(session.messages()) == ["in short"]


# --- skipped, failed -------------------------------------------------------------------------------------------------


async def test_there_is_nothing_to_summarize(session: Session) -> None:
    async def never(_: Sequence[Message]) -> str:
        raise AssertionError("there is something to summarize")

    assert (await session.compact(never)).status is SKIPPED
    await say(session, "a")
    assert (await session.compact(never, keep_tokens=1_000)).status is SKIPPED
    await session.tree.append_message(Message.assistant("", (ToolCall("c", "look", "{}"),)))
    assert (await session.compact(never)).status is SKIPPED
    assert session.last_sequence == 2


async def fails(_: Sequence[Message]) -> str:
    raise ValueError("SECRET")


async def is_empty(_: Sequence[Message]) -> str:
    return ""


async def is_blank(_: Sequence[Message]) -> str:
    return " \n\t "


async def has_no_messages(_: Sequence[Message]) -> list[Message]:
    return []


async def has_blank_messages(_: Sequence[Message]) -> list[Message]:
    return [Message.assistant(" "), Message.user("")]


async def is_none(_: Sequence[Message]) -> Any:
    return None


async def is_something_else(_: Sequence[Message]) -> Any:
    return ["text", {"role": "user"}]


@pytest.mark.parametrize(
    "summarizer", [fails, is_empty, is_blank, has_no_messages, has_blank_messages, is_none, is_something_else]
)
@pytest.mark.parametrize("keep_tokens", [0, 1])
async def test_a_summary_that_cannot_be_used_changes_nothing(
    session: Session, summarizer: Callable[[Sequence[Message]], Awaitable[Any]], keep_tokens: int
) -> None:
    await say(session, "a", "b")
    outcome = await session.compact(summarizer, keep_tokens=keep_tokens)
    assert outcome.status is FAILED
    assert "SECRET" not in outcome.detail
    assert await told_by(session) == ["a", "b"]
    assert session.last_sequence == 2


async def test_a_summary_that_hangs_is_given_up(session: Session) -> None:
    await say(session, "a", "b")
    outcome = await session.compact(Summarizer(), timeout_s=0)
    assert outcome.status is FAILED
    assert "Timeout" in outcome.detail
    assert await told_by(session) == ["a", "b"]


async def test_a_caller_who_is_cancelled_leaves_everything_as_it_was(session: Session) -> None:
    await say(session, "a", "b")
    summarizer = Summarizer()
    outcomes = []

    async def compact() -> None:
        outcomes.append(await session.compact(summarizer))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(compact)
        await summarizer.begun.wait()
        tasks.cancel_scope.cancel()
    assert outcomes == []
    assert session.last_sequence == 2
    assert await told_by(session) == ["a", "b"]
    assert (await session.compact(summarize)).status is DONE


async def test_a_callers_own_deadline_is_not_taken_for_the_summarys(session: Session) -> None:
    await say(session, "a", "b")
    with anyio.move_on_after(0) as scope:
        await session.compact(Summarizer(), timeout_s=1_000)
    assert scope.cancelled_caught
    assert session.last_sequence == 2


async def test_a_summary_that_cannot_be_stored_is_refused_and_changes_nothing(bench: Bench) -> None:
    async with bench.opened(max_message_bytes=1_000) as session:
        await say(session, "a", "b")
        for text in ("x" * 2_000, "lone surrogate \ud800"):
            with pytest.raises(ExceptionGroup) as raised:
                await Summarizer(text).run(session, checkpoint)
            assert raised.group_contains(InvalidMessage)
        assert await told_by(session) == ["a", "b"]


async def test_while_the_store_fails_nothing_is_accepted(session: Session, bench: Bench) -> None:
    await say(session, "a", "b")

    async def break_store() -> None:
        bench.store.fail()
        session.append(Message.user("c"))
        await bench.clock.advance(1)

    with pytest.raises(ExceptionGroup) as raised:
        await Summarizer().run(session, break_store)
    assert raised.group_contains(StoreUnavailable)
    assert texts_of(session.messages()) == ["a", "b", "c"]
    bench.store.heal()
    await bench.clock.advance(60)
    assert await told_by(session) == ["a", "b", "c"]


# --- meanwhile -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_tokens", [0, 1])
async def test_what_is_said_while_the_summary_is_made_is_kept(session: Session, keep_tokens: int) -> None:
    await say(session, "a", "b", "c")
    summarizer = Summarizer()
    outcome = await summarizer.run(session, lambda: say(session, "d", "e"), keep_tokens=keep_tokens)
    assert outcome.status is DONE
    expected = ["summary", *["c"][:keep_tokens], "d", "e"]
    assert await told_by(session) == texts_of(session.messages()) == expected
    assert summarizer.given + expected[1:] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("rounds", range(1, 10))
async def test_what_is_said_at_the_last_moment_is_kept_too(session: Session, rounds: int) -> None:
    """Between the end of the summary and its entry there are moments in which others run."""
    await say(session, "a", "b")

    async def late() -> None:
        for _ in range(rounds):
            await checkpoint()
        session.append(Message.user("late"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(late)
        outcome = await session.compact(summarize)
    assert outcome.status is DONE
    context = await told_by(session)
    summarized = 3 if context[0] == "summary of 3" else 2
    assert context == [f"summary of {summarized}", "late"][: 4 - summarized]


async def test_a_call_that_was_begun_meanwhile_keeps_the_compaction_off(session: Session) -> None:
    await say(session, "a", "b")
    call = ToolCall("c", "look", "{}")

    async def begin() -> None:
        await session.tree.append_message(Message.assistant("", (call,)))

    assert (await Summarizer().run(session, begin)).status is ABORTED
    await session.tree.append_message(Message.tool_result(call, "found"))
    assert (await told_by(session))[:2] == ["a", "b"]


@pytest.mark.parametrize("keep_tokens", [0, 1])
async def test_a_branch_that_was_left_meanwhile_is_not_summarized_for_another(
    session: Session, keep_tokens: int
) -> None:
    ids = await say(session, "a", "b", "c")

    async def leave() -> None:
        await session.tree.branch(ids[0])
        await say(session, "x", "y")

    outcome = await Summarizer().run(session, leave, keep_tokens=keep_tokens)
    assert outcome.status is ABORTED
    assert await told_by(session) == ["a", "x", "y"]


async def test_clearing_meanwhile_aborts(session: Session) -> None:
    await say(session, "a", "b")

    async def clear() -> None:
        session.clear()

    assert (await Summarizer().run(session, clear)).status is ABORTED
    assert session.messages() == []


@pytest.mark.parametrize("keep_tokens", [0, 1])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_of_two_summaries_at_once_one_counts_and_nothing_is_lost(
    tmp_path: Path, keep_tokens: int, kind: Any
) -> None:
    async with Bench(tmp_path / "workspace", kind).opened() as session:
        ids = await say(session, "a", "b", "c")
        go_on = anyio.Event()
        outcomes: list[CompactionOutcome] = []

        async def compact(text: str) -> None:
            summarizer = Summarizer(text)
            summarizer.go_on = go_on
            outcomes.append(await session.compact(summarizer, keep_tokens=keep_tokens))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(compact, "one")
            tasks.start_soon(compact, "two")
            for _ in range(20):
                await checkpoint()
            go_on.set()
        assert sorted(outcome.status for outcome in outcomes) == [ABORTED, DONE]
        assert (await told_by(session))[0] in ("one", "two")
        entries = [entry async for entry in session.tree.read_entries()]
        assert [entry.id for entry in entries if isinstance(entry, MessageEntry)] == ids
        assert sum(isinstance(entry, Compaction) for entry in entries) == 1


async def test_a_session_that_was_deleted_meanwhile_aborts(bench: Bench) -> None:
    async with bench.manager() as manager:
        session = await manager.get_or_create("telegram", "1")
        await say(session, "a", "b")
        outcome = await Summarizer().run(session, lambda: manager.delete(session.session_id))
        assert outcome.status is ABORTED
        assert await manager.list() == []
        with pytest.raises(SessionDeleted):
            await session.tree.append_compaction("summary", None)


async def test_a_turn_that_is_open_meanwhile_goes_on(session: Session) -> None:
    await say(session, "a", "b")

    async def talk() -> None:
        async with session.turn(Message.user("c")) as turn:
            turn.append(Message.assistant("d"))

    assert (await Summarizer().run(session, talk)).status is DONE
    assert await told_by(session) == ["summary", "c", "d"]


async def test_a_summary_may_be_made_within_a_turn(session: Session) -> None:
    await say(session, "a", "b")
    async with session.turn(Message.user("c")) as turn:
        assert (await session.compact(summarize, keep_tokens=1)).status is DONE
        turn.append(Message.assistant("d"))
    assert await told_by(session) == ["summary of 2", "c", "d"]


async def test_a_compaction_on_a_branch_longer_than_the_window_reads_all_of_it(bench: Bench) -> None:
    async with bench.opened(window=4) as session:
        texts = list(map(str, range(30)))
        await say(session, *texts)
        summarizer = Summarizer()
        await summarizer.run(session, checkpoint, keep_tokens=10)
        assert summarizer.given == texts[:20]
        assert await told_by(session) == ["summary", *texts[20:]]
        assert texts_of(session.messages()) == ["summary", *texts[26:]]
