"""What pi promises of its sessions, by the names of its own tests, and what it had to mend later.

Document 003 replicates pi: build-context, tree-traversal, labels, file-operations, save-entry.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions.core.history.branch import resolve
from miniclaw_sessions.core.history.transcript import Transcript, TreeNode
from miniclaw_sessions.core.protocol.entries import (
    BranchSummary,
    Compaction,
    Entry,
    Label,
    LeafMove,
    MessageEntry,
    ModelChange,
    ThinkingLevelChange,
)
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import EntryNotFound, ImportRefused, SessionNotFound
from miniclaw_sessions.files.transfer.importing import fork_from
from miniclaw_sessions.testing import FakeClock
from tests.core.session.bench import Bench, path_of, say, told_by
from tests.core.session.samples import SIMPLE
from tests.texts import texts_of

pytestmark = pytest.mark.anyio

NOW = FakeClock().now()


# --- pi: build-context -----------------------------------------------------------------------------------------------


def entry_of(kind: Any, entry_id: str, parent_id: str | None, **fields: Any) -> Entry:
    entry: Entry = kind(id=entry_id, parent_id=parent_id, timestamp=NOW, **fields)
    return entry


def said(entry_id: str, parent_id: str | None, text: str = "", role: Role = Role.USER, **fields: Any) -> Entry:
    return entry_of(MessageEntry, entry_id, parent_id, message=Message(role, text or entry_id, **fields))


def compaction(entry_id: str, parent_id: str, summary: str, first_kept: str | None) -> Entry:
    return entry_of(Compaction, entry_id, parent_id, summary=summary, first_kept_entry_id=first_kept)


def context_of(entries: list[Entry], leaf_id: str | None = None) -> list[str]:
    return texts_of(resolve(Transcript(entries).path(leaf_id)).messages())


CONVERSATION = [
    said("1", None),
    said("2", "1", role=Role.ASSISTANT),
    said("3", "2"),
    said("4", "3", role=Role.ASSISTANT),
]


def test_build_context_empty_entries_give_an_empty_context() -> None:
    assert context_of([]) == []


def test_build_context_simple_conversation() -> None:
    assert context_of(CONVERSATION) == ["1", "2", "3", "4"]


def test_build_context_tracks_thinking_level_changes() -> None:
    changes = [said("1", None), entry_of(ThinkingLevelChange, "2", "1", thinking_level="high"), said("3", "2")]
    assert resolve(Transcript(changes).path()).thinking_level == "high"
    assert context_of(changes) == ["1", "3"]


def test_build_context_tracks_the_model_from_an_assistants_message() -> None:
    branch = resolve(Transcript([said("1", None), said("2", "1", role=Role.ASSISTANT, model="claude")]).path())
    assert branch.model == "claude"


def test_build_context_tracks_the_model_from_a_model_change() -> None:
    entries = [
        said("1", None),
        entry_of(ModelChange, "2", "1", provider="openai", model_id="gpt-4"),
        said("3", "2", role=Role.ASSISTANT, model="claude"),
    ]
    branch = resolve(Transcript(entries).path())
    assert (branch.provider, branch.model) == ("openai", "claude")
    assert resolve(Transcript(entries).path("2")).model == "gpt-4"


def test_build_context_includes_the_summary_before_the_kept_messages() -> None:
    entries = [*CONVERSATION, compaction("5", "4", "summary", "3"), said("6", "5"), said("7", "6", role=Role.ASSISTANT)]
    assert context_of(entries) == ["summary", "3", "4", "6", "7"]


def test_build_context_compaction_keeping_from_the_first_message() -> None:
    entries = [*CONVERSATION[:2], compaction("3", "2", "nothing left out", "1"), said("4", "3")]
    assert context_of(entries) == ["nothing left out", "1", "2", "4"]


def test_build_context_multiple_compactions_use_the_latest() -> None:
    entries = [
        *CONVERSATION[:2],
        compaction("3", "2", "first summary", "1"),
        said("4", "3"),
        said("5", "4", role=Role.ASSISTANT),
        compaction("6", "5", "second summary", "4"),
        said("7", "6"),
    ]
    assert context_of(entries) == ["second summary", "4", "5", "7"]
    assert context_of(entries, "5") == ["first summary", "1", "2", "4", "5"]


def test_build_context_follows_the_path_to_the_leaf_of_a_branch() -> None:
    entries = [*CONVERSATION[:2], said("a", "2"), said("b", "2")]
    assert context_of(entries, "a") == ["1", "2", "a"]
    assert context_of(entries, "b") == ["1", "2", "b"]


def test_build_context_includes_a_branch_summary_of_the_path() -> None:
    summary = entry_of(BranchSummary, "s", "2", summary="what was tried", from_id="4")
    assert context_of([*CONVERSATION, summary, said("6", "s")]) == ["1", "2", "what was tried", "6"]


def test_build_context_complex_tree_with_branches_and_compaction() -> None:
    entries = [
        *CONVERSATION,
        compaction("5", "4", "compacted", "3"),
        said("6", "5"),
        said("7", "6", role=Role.ASSISTANT),
        said("8", "3", role=Role.ASSISTANT),
        entry_of(BranchSummary, "9", "3", summary="tried wrong approach", from_id="8"),
        said("10", "9"),
    ]
    assert context_of(entries, "7") == ["compacted", "3", "4", "6", "7"]
    assert context_of(entries, "10") == ["1", "2", "3", "tried wrong approach", "10"]


def test_build_context_compaction_on_another_branch_is_ignored() -> None:
    entries = [*CONVERSATION, compaction("5", "4", "summary", "3"), said("x", "2")]
    assert context_of(entries) == ["1", "2", "x"]


def test_build_context_an_unknown_leaf_leaves_the_last_entry_the_leaf() -> None:
    entries = [*CONVERSATION[:2], entry_of(LeafMove, "m", "2", target_id="nobody")]
    assert context_of(entries) == ["1", "2"]
    assert Transcript(entries).problems


def test_build_context_a_missing_parent_gives_only_the_orphan() -> None:
    assert context_of([said("1", None), said("2", "missing", role=Role.ASSISTANT)]) == ["2"]


def test_build_context_a_kept_entry_that_is_not_on_the_path_hides_nothing_after_the_compaction() -> None:
    """Defect O1: everything after the compaction disappeared from the context."""
    entries = [*CONVERSATION, compaction("5", "4", "summary", "nobody"), said("6", "5"), said("7", "6")]
    branch = resolve(Transcript(entries).path())
    assert texts_of(branch.messages()) == ["summary", "6", "7"]
    assert len(branch.problems) == 1


def test_o6_an_id_that_occurs_twice_is_reported_and_the_first_one_counts() -> None:
    transcript = Transcript([said("1", None), said("2", "1"), said("2", "1", "again"), said("3", "3")])
    assert [entry.id for entry in transcript.entries] == ["1", "2", "3"]
    assert context_of([said("1", None), said("2", "1"), said("2", "1", "again")]) == ["1", "2"]
    assert len(transcript.problems) == 2


# --- pi: tree-traversal ----------------------------------------------------------------------------------------------


async def test_tree_traversal_append_message_makes_a_chain_of_parents(session: Session) -> None:
    ids = await say(session, "1", "2", "3")
    entries = [await session.tree.get_entry(entry_id) for entry_id in ids]
    assert [entry.parent_id for entry in entries] == [None, *ids[:-1]]


@pytest.mark.parametrize("kind", ["thinking", "model", "compaction", "custom", "name", "label"])
async def test_tree_traversal_every_entry_takes_its_place_in_the_tree(session: Session, kind: str) -> None:
    [first] = await say(session, "1")
    append = {
        "thinking": lambda: session.tree.append_thinking_level_change("high"),
        "model": lambda: session.tree.append_model_change("openai", "gpt-4"),
        "compaction": lambda: session.tree.append_compaction("summary", first, 1000),
        "custom": lambda: session.tree.append_custom_entry("x", {"a": 1}),
        "name": lambda: session.tree.append_session_info("name"),
        "label": lambda: session.tree.set_label(first, "here"),
    }
    entry_id = await append[kind]()
    assert (await session.tree.get_entry(entry_id)).parent_id == first
    assert session.leaf_id == entry_id
    [last] = await say(session, "2")
    assert (await session.tree.get_entry(last)).parent_id == entry_id


async def test_tree_traversal_the_leaf_advances_after_each_append(session: Session) -> None:
    assert session.leaf_id is None
    for text in "123":
        [entry_id] = await say(session, text)
        assert session.leaf_id == entry_id


async def test_tree_traversal_the_path_of_an_empty_session_is_empty(session: Session) -> None:
    assert await session.tree.get_branch() == []
    assert await session.tree.get_tree() == []
    assert await session.tree.get_children(None) == []


async def test_tree_traversal_the_path_to_an_entry(session: Session) -> None:
    ids = await say(session, "1", "2", "3")
    assert await path_of(session) == ids
    assert [entry.id for entry in await session.tree.get_branch(ids[1])] == ids[:2]
    with pytest.raises(EntryNotFound):
        await session.tree.get_branch("nobody")


def shape(nodes: Any) -> list[Any]:
    """A tree as nested lists of texts."""
    return [[getattr(node.entry, "message", Message.user("?")).text, *shape(node.children)] for node in nodes]


async def test_tree_traversal_a_linear_session_has_one_root(session: Session) -> None:
    await say(session, "1", "2", "3")
    assert shape(await session.tree.get_tree()) == [["1", ["2", ["3"]]]]


async def test_tree_traversal_several_branches_at_one_point_and_deep_ones(session: Session) -> None:
    ids = await say(session, "1", "2", "3", "4")
    await session.tree.branch(ids[1])
    await say(session, "a")
    await session.tree.branch(ids[1])
    ids += await say(session, "b", "c")
    await session.tree.branch(ids[4])
    await say(session, "d")
    assert shape(await session.tree.get_tree()) == [["1", ["2", ["3", ["4"]], ["a"], ["b", ["c"], ["d"]]]]]
    assert (await session.tree.get_children(ids[1]))[0].id == ids[2]
    assert {
        entry.message.text for entry in (await session.tree.get_transcript()).leaves if hasattr(entry, "message")
    } == set("4acd")


async def test_tree_traversal_branch_moves_the_leaf(session: Session) -> None:
    ids = await say(session, "1", "2", "3")
    await session.tree.branch(ids[0])
    assert session.leaf_id == ids[0]
    [new] = await say(session, "new")
    assert (await session.tree.get_entry(new)).parent_id == ids[0]


async def test_tree_traversal_unknown_ids_are_refused_everywhere(session: Session) -> None:
    await say(session, "1")
    for attempt in (
        session.tree.branch("nobody"),
        session.tree.branch_with_summary("nobody", "summary"),
        session.tree.set_label("nobody", "label"),
        session.fork(leaf_id="nobody"),
        session.tree.get_children("nobody"),
        session.tree.append_compaction("summary", "nobody"),
    ):
        with pytest.raises(EntryNotFound):
            await attempt
    assert session.last_sequence == 1


async def test_tree_traversal_branch_with_summary_inserts_the_summary_and_advances_the_leaf(session: Session) -> None:
    ids = await say(session, "1", "2", "3")
    summary = await session.tree.branch_with_summary(ids[0], "summary")
    assert session.leaf_id == summary
    assert (await session.tree.get_entry(summary)).parent_id == ids[0]
    root = await session.tree.branch_with_summary(None, "from the root")
    assert (await session.tree.get_entry(root)).parent_id is None
    assert await told_by(session) == ["from the root"]


async def test_tree_traversal_create_branched_session_extracts_the_path_of_a_branched_tree(session: Session) -> None:
    ids = await say(session, "1", "2", "3")
    await session.tree.branch(ids[1])
    ids += await say(session, "4", "5")
    branched = await session.fork(leaf_id=ids[3])
    assert await path_of(branched) == [*ids[:2], ids[3]]
    assert await told_by(branched) == ["1", "2", "4"]


async def test_tree_traversal_no_entry_is_there_twice_after_forking_from_the_first_message(session: Session) -> None:
    ids = await say(session, "1", "2")
    branched = await session.fork(SessionKey("telegram", "branched"), leaf_id=ids[0])
    new = await say(branched, "2", "3")
    entries = [entry.id async for entry in branched.tree.read_entries() if isinstance(entry, MessageEntry)]
    assert entries == [ids[0], *new]


# --- pi: labels ------------------------------------------------------------------------------------------------------


async def test_labels_are_set_and_cleared_and_the_last_one_wins(session: Session) -> None:
    [entry_id] = await say(session, "1")
    assert await session.tree.get_label(entry_id) is None
    for label in ("first", "second", "third"):
        label_id = await session.tree.set_label(entry_id, label)
        assert isinstance(await session.tree.get_entry(label_id), Label)
        assert await session.tree.get_label(entry_id) == label
    await session.tree.set_label(entry_id, "")
    assert await session.tree.get_label(entry_id) is None


async def test_labels_are_in_the_nodes_of_the_tree(session: Session) -> None:
    ids = await say(session, "1", "2")
    await session.tree.set_label(ids[0], "start")
    await session.tree.set_label(ids[1], "reply")

    def labels(nodes: Any) -> dict[str, str]:
        found = {node.entry.id: node.label for node in nodes if node.label}
        return found | {k: v for node in nodes for k, v in labels(node.children).items()}

    tree = await session.tree.get_tree()
    assert all(isinstance(node, TreeNode) for node in tree)
    assert labels(tree) == {ids[0]: "start", ids[1]: "reply"}


async def test_labels_on_the_path_are_kept_in_a_branched_session_and_others_are_not(session: Session) -> None:
    ids = await say(session, "1", "2", "3")
    for entry_id in ids:
        await session.tree.set_label(entry_id, f"label of {entry_id}")
    branched = await session.fork(leaf_id=ids[1])
    assert (await branched.tree.get_transcript()).labels == {on: f"label of {on}" for on in ids[:2]}


async def test_labels_are_not_in_the_context(session: Session) -> None:
    [entry_id] = await say(session, "1")
    await session.tree.set_label(entry_id, "checkpoint")
    assert texts_of((await session.get_context()).messages) == ["1"]


async def test_labels_survive_a_restart(bench: Bench) -> None:
    async with bench.opened() as session:
        ids = await say(session, "1", "2")
        await session.tree.set_label(ids[0], "here")
        await session.tree.set_label(ids[1], "there")
        await session.tree.set_label(ids[1], "")
    async with bench.opened() as session:
        assert (await session.tree.get_transcript()).labels == {ids[0]: "here"}


# --- pi: file-operations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", b'{"type":"other","id":"1"}\n', b"not json\n", b'{"type":"session"', b"\x00" * 512, b"\n\n\n"],
    ids=["empty", "something else", "malformed", "torn header", "NULs", "blank lines"],
)
async def test_file_operations_what_is_no_session_is_refused_and_left_alone(
    bench: Bench, tmp_path: Path, content: bytes
) -> None:
    """pi emptied such a file; it is neither changed nor made into a session."""
    file = tmp_path / "file.jsonl"
    file.write_bytes(content)
    async with bench.manager() as manager:
        with pytest.raises(ImportRefused):
            await fork_from(manager, file)
        assert await manager.list() == []
    assert file.read_bytes() == content


async def test_file_operations_malformed_lines_in_the_middle_are_passed_over(bench: Bench, tmp_path: Path) -> None:
    header, first, second = SIMPLE.splitlines()
    file = tmp_path / "file.jsonl"
    lines = [header, first, "not valid json", '{"torn":', second]
    file.write_text("".join(f"{line}\n" for line in lines))
    async with bench.manager() as manager:
        session = await fork_from(manager, file)
        assert await told_by(session) == ["Hello", "Hi there!"]


async def test_file_operations_find_most_recent_session(bench: Bench) -> None:
    """Defect O7: the most recent one was found by a time that was only set at creation."""
    async with bench.manager() as manager:
        with pytest.raises(SessionNotFound):
            await manager.continue_recent()
        one = await manager.get_or_create("cli", "1")
        await bench.clock.advance(60)
        await manager.get_or_create("cli", "2")
        await bench.clock.advance(60)
        await say(one, "newer")
    async with bench.manager() as manager:
        assert (await manager.continue_recent()).session_id == "cli_1"
        with pytest.raises(SessionNotFound):
            await manager.continue_recent(channel="telegram")


# --- pi: save-entry --------------------------------------------------------------------------------------------------


async def test_save_entry_custom_entries_are_part_of_the_path_and_not_of_the_context(session: Session) -> None:
    [first] = await say(session, "hello")
    custom = await session.tree.append_custom_entry("my_data", {"foo": "bar"})
    second = await session.tree.append_message(Message.assistant("hi"))
    assert await path_of(session) == [first, custom, second]
    assert await told_by(session) == ["hello", "hi"]
    assert (await session.tree.get_entry(second)).parent_id == custom


# --- pi's own fixes (part C2) ----------------------------------------------------------------------------------------


async def test_pi_932_a_file_without_a_header_is_not_appended_to(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "headerless.jsonl"
    file.write_text(SIMPLE.split("\n", 1)[1])
    before = file.read_bytes()
    async with bench.manager() as manager:
        session = await fork_from(manager, file)
        await say(session, "only here")
        assert await told_by(session) == ["Hello", "Hi there!", "only here"]
    assert file.read_bytes() == before


async def test_pi_1242_a_fork_never_writes_into_its_parent(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "parent.jsonl"
    file.write_text(SIMPLE)
    async with bench.manager() as manager:
        forks = [await fork_from(manager, file, key=SessionKey("cli", chat_id)) for chat_id in ("1", "2")]
        await say(forks[0], "only here")
        assert await told_by(forks[1]) == ["Hello", "Hi there!"]
    assert file.read_text() == SIMPLE


async def test_pi_1118_resuming_adds_no_entry(bench: Bench) -> None:
    async with bench.opened() as session:
        await say(session, "1", "2")
        await session.tree.append_model_change("p", "m")
        before = session.last_sequence
    for _ in range(3):
        async with bench.opened() as session:
            assert session.last_sequence == before


async def test_pi_1717_results_are_never_sent_before_their_call(session: Session) -> None:
    call = ToolCall("call", "read", "{}")
    await session.tree.append_message(Message.user("1"))
    await session.tree.append_message(Message.tool_result(call, "too early"))
    await session.tree.append_message(Message.assistant("2", (call,)))
    context = (await session.get_context()).messages
    assert [message.role for message in context] == [Role.USER, Role.ASSISTANT, Role.TOOL_RESULT]
    assert context[-1].is_error


async def test_pi_compaction_with_branched_sessions_does_not_mix_branches(session: Session) -> None:
    ids = await say(session, "1", "2", "3")
    await session.tree.branch(ids[0])
    await say(session, "a", "b")

    given: list[str] = []

    async def summarize(messages: Any) -> str:
        given.extend(texts_of(messages))
        return "summary"

    await session.compact(summarize)
    assert given == ["1", "a", "b"]
    await session.tree.branch(ids[2])
    assert await told_by(session) == ["1", "2", "3"]


async def test_pi_1764_chained_compactions_leave_no_orphan_result(session: Session) -> None:
    calls = [ToolCall(f"call-{number}", "read", "{}") for number in range(3)]
    for call in calls:
        await session.tree.append_message(Message.user("go on " * 20))
        await session.tree.append_message(Message.assistant("reading", (call,)))
        await session.tree.append_message(Message.tool_result(call, "found " * 20))

    async def summarize(_: Any) -> str:
        return "summary"

    for keep_tokens in (60, 31, 25, 1):
        await session.compact(summarize, keep_tokens=keep_tokens)
        context = (await session.get_context()).messages
        called = {call.id for message in context for call in message.tool_calls or ()}
        assert {message.tool_call_id for message in context if message.is_tool_result} == called
