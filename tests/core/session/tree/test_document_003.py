"""Document 003 by its own examples, and the tests of the systems that it comes from, by name.

Sections 12 and 13 of the document, and the tests of its Go implementation (`TestSession_...`). Those of pi, which it
replicates, are in `test_pi`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from miniclaw_sessions.core.protocol.entries import (
    BranchSummary,
    Compaction,
    Custom,
    MessageEntry,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
)
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, Role, TextPart, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import EntryNotFound, ImportRefused, SessionNotFound, UnsafeCompaction
from miniclaw_sessions.files.transfer.importing import fork_from
from miniclaw_sessions.testing import FakeClock
from tests.core.session.bench import Bench, path_of, say, told_by
from tests.core.session.samples import COMPLEX, SIMPLE
from tests.texts import texts_of

pytestmark = pytest.mark.anyio

NOW = FakeClock().now()


# --- section 12: the files -------------------------------------------------------------------------------------------


async def test_12_1_simple_session(bench: Bench, tmp_path: Path) -> None:
    """S3.87."""
    file = tmp_path / "simple.jsonl"
    file.write_text(SIMPLE)
    async with bench.manager() as manager:
        session = await fork_from(manager, file)
        assert await path_of(session) == ["msg-1", "msg-2"]
        context = (await session.get_context()).messages
        assert [(message.role, message.text) for message in context] == [
            (Role.USER, "Hello"),
            (Role.ASSISTANT, "Hi there!"),
        ]
    assert file.read_text() == SIMPLE


async def test_12_2_complex_session_with_tools(bench: Bench, tmp_path: Path) -> None:
    """S3.88: the sample's result has no `is_error`, which is false then."""
    file = tmp_path / "complex.jsonl"
    file.write_text(COMPLEX)
    async with bench.manager() as manager:
        session = await fork_from(manager, file)
        asked, called, answered = (await session.get_context()).messages
        assert asked.text == "Read main.go"
        [call] = called.tool_calls or ()
        assert (call.id, call.name, call.arguments) == ("call_abc", "read_file", '{"path":"main.go"}')
        assert (answered.tool_call_id, answered.text, answered.is_error) == ("call_abc", "package main...", False)


# --- section 13: the walkthrough (S3.89, S3.90) ----------------------------------------------------------------------


async def test_13_go_usage_example(bench: Bench) -> None:
    async with bench.manager() as manager:
        with pytest.raises(SessionNotFound):
            await manager.continue_recent()
        session = await manager.get_or_create("cli", "project")
        first = await session.tree.append_message(Message.user("Hello, Agent!"))
        assert texts_of((await session.get_context()).messages) == ["Hello, Agent!"]
        second = await session.tree.append_message(Message.assistant("Hello! How can I help?"))
        await session.tree.branch(first)
        third = await session.tree.append_message(Message.user("Actually, tell me a joke."))
        label = await session.tree.set_label(first, "first-greeting")
        await session.tree.append_custom_entry("extension", {"state": 1})
        compaction = await session.tree.append_compaction("User greeted and then asked for a joke.", third, 1500)
        for reopened in (session, session):
            context = (await reopened.get_context()).messages
            assert [message.role for message in context] == [Role.USER, Role.USER]
            assert context[0].text.endswith("User greeted and then asked for a joke.")
            assert context[1].text == "Actually, tell me a joke."
        assert (await session.tree.get_entry(label)).parent_id == third
        assert (await session.tree.get_entry(second)).parent_id == first
        entry = await session.tree.get_entry(compaction)
        assert isinstance(entry, Compaction)
        assert (entry.first_kept_entry_id, entry.tokens_before) == (third, 1500)
    async with bench.manager() as manager:
        session = await manager.continue_recent()
        assert await told_by(session) == ["User greeted and then asked for a joke.", "Actually, tell me a joke."]
        assert await session.tree.get_label(first) == "first-greeting"


# --- the tests of the Go implementation ------------------------------------------------------------------------------


async def test_session_append_and_context(session: Session) -> None:
    first, _ = await say(session, "1", "2")
    assert await told_by(session) == ["1", "2"]
    await session.tree.branch(first)
    [third] = await say(session, "3")
    assert await told_by(session) == ["1", "3"]
    await session.tree.append_compaction("summary", third, 100)
    await session.tree.append_message(Message.assistant("4"))
    assert await told_by(session) == ["summary", "3", "4"]


async def test_session_persistence(bench: Bench) -> None:
    async with bench.opened() as session:
        ids = await say(session, "1", "2", "3")
    async with bench.opened() as session:
        assert session.leaf_id == ids[-1]
        assert await path_of(session) == ids
        assert (await session.tree.get_entry(await session.tree.append_message(Message.user("4")))).parent_id == ids[-1]


async def test_session_labels_and_tree(session: Session) -> None:
    ids = await say(session, "1", "2")
    await session.tree.branch(ids[0])
    ids += await say(session, "3")
    await session.tree.set_label(ids[0], "root")
    [root] = await session.tree.get_tree()
    assert (root.entry.id, root.label) == (ids[0], "root")
    assert [node.entry.id for node in root.children] == ids[1:]
    await session.tree.set_label(ids[0], "")
    [root] = await session.tree.get_tree()
    assert root.label is None


async def test_session_branching_advanced(session: Session) -> None:
    ids = await say(session, "1", "2", "3")
    summary = await session.tree.branch_with_summary(ids[0], "what was tried")
    assert session.leaf_id == summary
    entry = await session.tree.get_entry(summary)
    assert isinstance(entry, BranchSummary)
    assert (entry.parent_id, entry.from_id, entry.summary) == (ids[0], ids[2], "what was tried")
    await say(session, "4")
    assert await told_by(session) == ["1", "what was tried", "4"]
    branched = await session.fork(leaf_id=ids[2])
    assert await path_of(branched) == ids


async def test_manager_extended(bench: Bench) -> None:
    async with bench.manager() as manager:
        older = await manager.get_or_create("cli", "older")
        ids = await say(older, "1", "2")
        await bench.clock.advance(60)
        newer = await manager.get_or_create("cli", "newer")
        fork = await older.fork()
        assert fork.session_id != older.session_id
        assert await path_of(fork) == ids
        assert len(await manager.list()) >= 2
        await bench.clock.advance(60)
        await say(newer, "3")
        assert await manager.continue_recent() is newer


async def test_session_custom_entries(session: Session) -> None:
    await say(session, "1")
    entry_id = await session.tree.append_custom_entry("my-extension", {"key": "value", "list": [1, {"deep": None}]})
    await say(session, "2")
    entry = await session.tree.get_entry(entry_id)
    assert isinstance(entry, Custom)
    assert (entry.custom_type, entry.data) == ("my-extension", {"key": "value", "list": [1, {"deep": None}]})
    assert await told_by(session) == ["1", "2"]
    assert entry_id in await path_of(session)


async def test_session_miscellaneous(bench: Bench, tmp_path: Path) -> None:
    async with bench.opened() as session:
        assert isinstance(
            await session.tree.get_entry(await session.tree.append_thinking_level_change("high")), ThinkingLevelChange
        )
        assert isinstance(
            await session.tree.get_entry(await session.tree.append_model_change("openai", "gpt-4o")), ModelChange
        )
        assert isinstance(
            await session.tree.get_entry(await session.tree.append_session_info("My session")), SessionInfo
        )
        context = await session.get_context()
        assert (context.provider, context.model, context.thinking_level) == ("openai", "gpt-4o", "high")
        assert context.messages == []
        assert session.title == "My session"
        with pytest.raises(EntryNotFound):
            await session.tree.get_entry("nobody")
    async with bench.manager() as manager:
        with pytest.raises(ImportRefused):
            await fork_from(manager, tmp_path / "nothing.jsonl")
        assert manager.workspace is not None
        assert manager.workspace.is_absolute()


async def test_session_append_multiple_assistant_messages(session: Session) -> None:
    await session.tree.append_message(Message.user("1"))
    await session.tree.append_message(Message.assistant("2"))
    await session.tree.append_message(Message.assistant("3"))
    assert await told_by(session) == ["1", "2", "3"]


async def test_stream_compaction(bench: Bench) -> None:
    """Five messages, a summary and two more: three are visible, eight are stored."""
    async with bench.opened() as session:
        await say(session, *"12345")
        await session.tree.append_compaction("summary", None)
        await say(session, "6", "7")
        for _ in range(2):
            assert len((await session.get_context()).messages) == len(session.messages()) == 3
            assert len((await session.tree.get_transcript()).entries) == session.last_sequence == 8
    async with bench.opened() as session:
        assert len((await session.get_context()).messages) == 3
        assert session.message_count == 7


# --- what else sections 4 to 9 say -----------------------------------------------------------------------------------


async def test_every_entry_has_a_unique_id_a_parent_and_a_time_in_utc(session: Session) -> None:
    """S3.10, S3.52."""
    await say(session, "1", "2")
    await session.tree.append_model_change("p", "m")
    await session.tree.set_label(session.leaf_id or "", "here")
    entries = (await session.tree.get_transcript()).entries
    assert len({entry.id for entry in entries}) == 4
    assert [entry.parent_id for entry in entries] == [None, *(entry.id for entry in entries[:-1])]
    assert all(entry.timestamp.utcoffset() is not None and not entry.timestamp.utcoffset() for entry in entries)


async def test_content_of_every_kind_survives(bench: Bench) -> None:
    """S3.25-S3.30."""
    call = ToolCall("call", "read", '{"path": "main.go"}')
    image = ImagePart(media_type="image/png", data="aGVsbG8=")
    said = [
        Message.user((TextPart('Analyze this file:\n<file name="main.go">'), image, ImagePart(url="https://x/y.png"))),
        Message.assistant((TextPart("reading"),), (call,)),
        Message.tool_result(call, "package main", is_error=True),
    ]
    async with bench.opened() as session:
        for message in said:
            await session.tree.append_message(message)
    bench.lose_snapshots()
    async with bench.opened() as session:
        found = (await session.get_context()).messages
        assert [(m.content, m.tool_calls, m.tool_call_id, m.is_error) for m in found] == [
            (m.content, m.tool_calls, m.tool_call_id, m.is_error) for m in said
        ]


@pytest.mark.parametrize("behind", ["user", "plain assistant", "model change", "call"])
async def test_valid_cut_points(session: Session, behind: str) -> None:
    """S3.62-S3.65: before a user's message, an assistant's without calls, and what is no message."""
    call = ToolCall("call", "read", "{}")
    ids = await say(session, "1", "2")
    change = await session.tree.append_model_change("p", "m")
    await session.tree.append_message(Message.user("3"))
    asking = await session.tree.append_message(Message.assistant("4", (call,)))
    result = await session.tree.append_message(Message.tool_result(call, "5"))
    with pytest.raises(UnsafeCompaction):
        await session.tree.append_compaction("summary", result)
    kept = {"user": ids[0], "plain assistant": ids[1], "model change": change, "call": asking}[behind]
    await session.tree.append_compaction("summary", kept)
    expected = {
        "user": ["1", "2", "3", "4", "5"],
        "plain assistant": ["2", "3", "4", "5"],
        "model change": ["3", "4", "5"],
        "call": ["4", "5"],
    }
    assert await told_by(session) == ["summary", *expected[behind]]


async def test_a_label_takes_no_part_in_the_context_and_neither_does_the_name(session: Session) -> None:
    """S3.74, S3.77; defect O10."""
    [entry_id] = await say(session, "1")
    await session.tree.set_label(entry_id, "needs_review")
    await session.tree.append_session_info("name")
    assert await told_by(session) == ["1"]


# --- defects of the systems that it comes from -----------------------------------------------------------------------


async def test_o2_a_compaction_hides_what_it_summarizes_and_nothing_more(session: Session) -> None:
    texts = list(map(str, range(10)))
    ids = await say(session, *texts)
    await session.tree.append_compaction("first half", ids[5])
    assert await told_by(session) == ["first half", *texts[5:]]


async def test_o3_two_handles_of_one_session_are_one(bench: Bench) -> None:
    async with bench.manager() as manager:
        one, other = await manager.get_or_create("cli", "1"), await manager.get_or_create("cli", "1")
        assert one is other
        await say(one, "1")
        await say(other, "2")
        assert await told_by(one) == ["1", "2"]


async def test_o4_a_line_of_a_megabyte_is_read_again(bench: Bench) -> None:
    async with bench.opened(max_message_bytes=4_000_000) as session:
        await say(session, "x" * 2_000_000, "small")
    bench.lose_snapshots()
    async with bench.opened(max_message_bytes=4_000_000) as session:
        assert [len(text) for text in await told_by(session)] == [2_000_000, 5]


async def test_o8_forking_keeps_later_roots_roots(session: Session) -> None:
    first = await say(session, "1", "2")
    session.clear()
    second = await say(session, "3", "4")
    fork = await session.fork()
    transcript = await fork.tree.get_transcript()
    assert [entry.id for entry in transcript.roots if isinstance(entry, MessageEntry)] == [first[0], second[0]]
    assert await told_by(fork) == ["3", "4"]


async def test_o8_a_branch_with_its_summary_is_one_step(bench: Bench) -> None:
    """It was two, each with a lock of its own: others came in between, and a crash left half of it."""
    async with bench.opened() as session:
        ids = await say(session, "1", "2")
        before = bench.store.calls["append"]
        await session.tree.branch_with_summary(ids[0], "summary")
        assert bench.store.calls["append"] == before + 1


async def test_o9_the_place_of_a_branch_is_stored(bench: Bench) -> None:
    async with bench.opened() as session:
        ids = await say(session, "1", "2", "3")
        await session.tree.branch(ids[0])
    bench.lose_snapshots()
    async with bench.opened() as session:
        assert session.leaf_id == ids[0]
