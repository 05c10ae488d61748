"""What a client promises, over both transports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager.registry import SessionRegistry
from miniclaw_sessions.core.protocol.encoding import message_to_dict
from miniclaw_sessions.core.protocol.entries import Custom, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall, Usage
from miniclaw_sessions.core.session import Journal
from miniclaw_sessions.errors import (
    AmbiguousName,
    ConfigError,
    EntryNotFound,
    ImportRefused,
    InvalidKey,
    InvalidMessage,
    LeafMoved,
    NotArchived,
    SessionExists,
    SessionNotFound,
    SessionsError,
    UnsafeCompaction,
)
from miniclaw_sessions.service.api.error_table import STATUS, RequestError, as_request_error, error_document, error_of
from miniclaw_sessions.service.api.shapes import NewCustom, NewMessage, NewMetadata, NewModelChange
from miniclaw_sessions.service.api.tree import MovedReply
from miniclaw_sessions.service.client import Client, ClientSession

pytestmark = pytest.mark.anyio


async def a_chat(client: Client, *texts: str) -> ClientSession:
    session = await client.get_or_create("a", "1")
    for text in texts:
        await session.add_message(Message.user(text))
    return session


async def texts(session: ClientSession) -> list[str]:
    return [message.text for message in await session.messages()]


# --- sessions --------------------------------------------------------------------------------------------------------


async def test_a_session_is_made_once_and_found_again(client: Client) -> None:
    made = await client.get_or_create("telegram", 42, agent_id="main", title="Hello", metadata={"x": [1]})
    again = await client.get_or_create("telegram", "42", title="other")
    assert made.session_id == again.session_id == "telegram_42"
    info = await (await client.get("telegram", 42)).info()
    assert (info.title, info.agent_id, info.metadata["x"]) == ("Hello", "main", [1])
    assert [row.session_id for row in await client.list()] == ["telegram_42"]


async def test_what_is_not_there_is_told_by_the_same_errors_everywhere(client: Client) -> None:
    session = await a_chat(client, "x")
    with pytest.raises(SessionNotFound) as missing:
        await client.find("nobody_1")
    assert missing.value.session_id == "nobody_1"
    with pytest.raises(EntryNotFound):
        await session.tree.get_entry("none")
    with pytest.raises(InvalidKey):
        await client.get_or_create("", "1")
    with pytest.raises(InvalidMessage):
        await session.add_message({"content": "who speaks?"})
    with pytest.raises(RequestError) as refused:
        await session.update(self=1)
    assert refused.value.param == "metadata.self"
    assert await texts(session) == ["x"]


async def test_a_refused_creation_makes_nothing_and_the_corrected_one_counts(client: Client) -> None:
    with pytest.raises(InvalidMessage):
        await client.get_or_create("a", "1", title="wrong", metadata={"session.secret": 1})
    assert await client.list() == []
    session = await client.get_or_create("a", "1", title="right")
    assert (await session.info()).title == "right"


async def test_metadata_is_set_removed_and_renamed(client: Client) -> None:
    session = await a_chat(client)
    await session.update(title="T", model="m", note={"deep": [1]})
    await client.rename(session.session_id, "better")
    known = await session.metadata()
    assert (known["title"], known["model"], known["note"]) == ("better", "m", {"deep": [1]})
    await session.update(note=None)
    assert "note" not in await session.metadata()


async def test_sessions_are_listed_a_page_at_a_time(client: Client) -> None:
    for number in range(5):
        await client.get_or_create("b" if number % 2 else "a", number)
    assert [row.chat_id for row in await client.list()] == ["4", "3", "2", "1", "0"]
    assert [row.chat_id for row in await client.list(channel="a")] == ["4", "2", "0"]
    assert [row.chat_id for row in await client.list(limit=2)] == ["4", "3"]
    assert (await client.continue_recent(channel="b")).session_id == "b_3"


async def test_a_part_of_a_name_is_enough_where_it_is_unique(client: Client) -> None:
    await client.get_or_create("telegram", "4711", title="Holiday in Rome")
    await client.get_or_create("telegram", "4712", title="Taxes")
    await client.get_or_create("irc", "rome")
    assert (await client.resolve("telegram_4711")).session_id == "telegram_4711"
    assert (await client.resolve("irc")).session_id == "irc_rome"
    assert (await client.resolve("holiday")).session_id == "telegram_4711"
    assert (await client.resolve("taxes")).session_id == "telegram_4712"
    with pytest.raises(AmbiguousName) as several:
        await client.resolve("telegram")
    assert sorted(several.value.candidates) == ["telegram_4711", "telegram_4712"]
    assert (await client.resolve("ROME")).session_id == "irc_rome"  # an id before a title
    with pytest.raises(SessionNotFound):
        await client.resolve("nothing")


async def test_a_beginning_is_looked_for_among_the_ids_and_nothing_else_is_loaded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        await client.get_or_create("a", number)
    await client.get_or_create("telegram", "4711")
    loaded: list[str] = []
    load = SessionRegistry.load

    async def counting(registry: SessionRegistry, session_id: str) -> Journal | None:
        journal = await load(registry, session_id)
        if journal is not None:
            loaded.append(session_id)
        return journal

    monkeypatch.setattr(SessionRegistry, "load", counting)
    assert (await client.resolve("tele")).session_id == "telegram_4711"
    assert (await client.resolve("gram_47")).session_id == "telegram_4711"
    assert [row.session_id for row in await client.list(prefix="TELE")] == ["telegram_4711"]
    assert await client.list(prefix="gram") == []
    assert set(loaded) == {"telegram_4711"}


async def test_a_key_may_have_any_letters(client: Client) -> None:
    session = await a_chat(client)
    first = await session.add_message(Message.user("x"), idempotency_key="ключ \u00fc 鍵")
    again = await session.add_message(Message.user("x"), idempotency_key="ключ \u00fc 鍵")
    assert (again.id, again.duplicate) == (first.id, True)


async def test_a_deleted_session_is_gone_and_deleting_it_again_does_nothing(client: Client) -> None:
    session = await a_chat(client, "x")
    assert await client.delete(session.session_id, idempotency_key="k")
    await a_chat(client, "new")
    assert await client.delete(session.session_id, idempotency_key="k")  # the first answer was lost on the way
    assert await texts(await client.find("a_1")) == ["new"]
    assert await client.delete(session.session_id)
    with pytest.raises(SessionNotFound):
        await client.find("a_1")
    with pytest.raises(SessionNotFound):
        [line async for line in session.transcript()]
    assert not await client.delete(session.session_id)


# --- appending -------------------------------------------------------------------------------------------------------


async def test_an_append_is_acknowledged_with_its_place(client: Client) -> None:
    session = await a_chat(client)
    entry = await session.add_message(Message.user("hi"))
    stored = await session.tree.get_entry(entry.id)
    assert isinstance(stored, MessageEntry)
    assert (stored.message.text, stored.sequence, entry.duplicate) == ("hi", entry.sequence, False)
    assert (await session.info()).committed_sequence == entry.sequence


async def test_a_repeated_append_appends_nothing(client: Client) -> None:
    session = await a_chat(client)
    first = await session.add_messages([Message.user("1"), Message.user("2")], idempotency_key="k")
    again = await session.add_messages([Message.user("1"), Message.user("2")], idempotency_key="k")
    assert [entry.id for entry in first] == [entry.id for entry in again]
    assert [entry.duplicate for entry in again] == [True, True]
    assert await texts(session) == ["1", "2"]


async def test_an_append_can_demand_the_leaf_that_it_answers(client: Client) -> None:
    session = await a_chat(client)
    first = await session.add_message(Message.user("1"), if_leaf="")
    await session.add_message(Message.user("2"), if_leaf=first.id, if_sequence=first.sequence)
    with pytest.raises(LeafMoved):
        await session.add_message(Message.user("late"), if_leaf=first.id)
    with pytest.raises(LeafMoved):
        await session.add_message(Message.user("late"), if_sequence=first.sequence)
    with pytest.raises(LeafMoved):
        await session.save_turn([Message.user("late")], if_leaf="")
    assert await texts(session) == ["1", "2"]


async def test_a_repeated_append_is_the_same_one_though_the_leaf_has_moved_by_it(client: Client) -> None:
    session = await a_chat(client)
    first = await session.add_message(Message.user("1"), if_leaf="", idempotency_key="k")
    again = await session.add_message(Message.user("1"), if_leaf="", idempotency_key="k")
    assert (again.id, again.duplicate) == (first.id, True)


async def test_of_many_who_demand_the_same_leaf_one_appends(client: Client) -> None:
    session = await a_chat(client, "start")
    leaf = await session.leaf_id()
    won: list[str] = []

    async def try_it(number: int) -> None:
        with suppress(LeafMoved):
            won.append((await session.add_message(Message.user(str(number)), if_leaf=leaf)).id)

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(try_it, number)
    assert len(won) == 1
    assert len(await session.messages()) == 2


async def test_a_repeated_turn_is_saved_once(client: Client) -> None:
    session = await a_chat(client)
    call = ToolCall("c1", "grep", "{}")
    turn = [
        Message.user("find"),
        Message.assistant("", (call,)),
        Message.tool_result(call, "3 hits"),
        Message.assistant("found"),
    ]
    first = await session.save_turn(turn, Usage(input_tokens=7), idempotency_key="t1")
    again = await session.save_turn(turn, Usage(input_tokens=7), idempotency_key="t1")
    assert (first.duplicate, again.duplicate) == (False, True)
    assert await texts(session) == ["find", "", "3 hits", "found"]
    assert (await session.total_usage()).input_tokens == 7


async def test_entries_of_any_kind_are_one_unit(client: Client) -> None:
    session = await a_chat(client, "start")
    reply = await session.append(
        [
            NewModelChange(provider="p", model_id="m"),
            NewMessage(message={"role": "user", "content": "hello"}),
            NewCustom(custom_type="state", data={"n": 1}),
        ]
    )
    assert [entry.sequence for entry in reply.entries] == [2, 3, 4]
    with pytest.raises(InvalidMessage):
        await session.append([NewCustom(custom_type="state"), NewCustom(custom_type="metadata")])
    branch = await session.tree.get_branch()
    assert [type(entry).__name__ for entry in branch] == ["MessageEntry", "ModelChange", "MessageEntry", "Custom"]
    assert branch[3].id == reply.id
    assert isinstance(branch[3], Custom)
    assert branch[3].data == {"n": 1}


async def test_a_repeated_unit_is_the_same_one_however_many_came_since(client: Client) -> None:
    session = await a_chat(client, "start")
    unit = [NewCustom(custom_type="state", data={"n": 1}), NewCustom(custom_type="state", data={"n": 2})]
    first = await session.append(unit, idempotency_key="u", if_sequence=1)
    await session.add_messages([Message.user(str(number)) for number in range(300)])
    again = await session.append(unit, idempotency_key="u", if_sequence=1)
    assert [entry.id for entry in again.entries] == [entry.id for entry in first.entries]
    assert all(entry.duplicate for entry in again.entries)
    assert (await session.info()).entries == 303


@pytest.mark.parametrize("way", ["then", "entries", "summary", "bare"])
async def test_a_repeated_step_back_is_the_same_one_however_the_session_went_on(client: Client, way: str) -> None:
    session = await a_chat(client, "one", "two")
    (first, _), tree = await session.tree.get_branch(), session.tree
    leaf_id = await session.leaf_id()

    async def go_back() -> MovedReply:
        if way == "entries":
            new: list[Any] = [NewCustom(custom_type="state"), NewModelChange(provider="p", model_id="m")]
            return await tree.branch_with_entries(first.id, new, if_leaf=leaf_id, idempotency_key="k")
        if way == "summary":
            return await tree.branch_with_summary(first.id, "it went wrong", idempotency_key="k")
        then = [] if way == "bare" else [Message.user("three"), Message.assistant("four")]
        return await tree.branch(first.id, then=then, if_leaf=leaf_id, idempotency_key="k")

    moved = await go_back()
    await session.add_messages([Message.user(str(number)) for number in range(60)])
    again, made = await go_back(), {"then": 2, "entries": 2, "summary": 1, "bare": 0}[way]
    assert (again.entries, again.leaf_id) == (moved.entries, moved.leaf_id)
    assert len(again.entries) == made
    assert (await session.info()).entries == 2 + 1 + made + 60
    assert await texts(session) == (await texts(session))[:-50] + [str(number) for number in range(10, 60)]


async def test_a_repeated_replacement_is_done_once_though_the_entry_is_not_on_the_branch_any_more(
    client: Client,
) -> None:
    session = await a_chat(client, "one", "two", "three")
    (_, second, _), leaf_id = await session.tree.get_branch(), await session.leaf_id()
    for _ in range(2):
        await session.tree.replace(second.id, [Message.user("TWO")], if_leaf=leaf_id, idempotency_key="k")
    assert await texts(session) == ["one", "TWO", "three"]
    assert (await session.info()).entries == 3 + 3
    with pytest.raises(EntryNotFound):
        await session.tree.replace(second.id, [Message.user("TWO")], idempotency_key="another")


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session_settings", [SessionSettings(store="none:")])
async def test_without_a_transcript_a_custom_entry_is_refused_however_it_comes(client: Client) -> None:
    session = await a_chat(client, "x")
    said = NewMessage(message=message_to_dict(Message.user("y")))
    state = NewCustom(custom_type="state", data={"n": 1})
    for attempt in (session.append([said, state]), session.tree.append_custom_entry("state", {"n": 1})):
        with pytest.raises(SessionsError, match="cannot keep a custom entry: the store `none:`"):
            await attempt
    await session.append([NewMetadata(metadata={"topic": "metadata are kept"})])
    assert (await session.info()).metadata == {"topic": "metadata are kept"}
    assert await texts(session) == ["x"]


async def test_the_history_is_paged_beyond_the_window_in_both_directions(client: Client) -> None:
    session = await a_chat(client)
    await session.add_messages([Message.user(str(number)) for number in range(70)])
    newest = await session.history(limit=30)
    assert [shown.message.text for shown in newest.messages] == [str(n) for n in range(40, 70)]
    assert (newest.earlier, newest.later) == (True, False)
    page = await session.history(limit=30, before=newest.messages[0].sequence)
    assert [shown.message.text for shown in page.messages] == [str(n) for n in range(10, 40)]
    first = await session.history(limit=30, before=page.messages[0].sequence)
    assert ([shown.message.text for shown in first.messages], first.earlier) == ([str(n) for n in range(10)], False)
    onward = await session.history(limit=5, after=first.messages[-1].sequence)
    assert [shown.message.text for shown in onward.messages] == [str(n) for n in range(10, 15)]
    assert onward.later
    last = await session.history(limit=30, after=newest.messages[-2].sequence)
    assert ([shown.message.text for shown in last.messages], last.later) == (["69"], False)


async def test_after_a_compaction_the_messages_show_the_summary(client: Client) -> None:
    session = await a_chat(client, "one", "two", "three")
    kept = (await session.history()).messages[-1]
    await session.compact(summary="one and two were said", first_kept_entry_id=kept.id)
    shown = await session.history()
    assert [(one.message.text, one.is_summary) for one in shown.messages] == [
        ("one and two were said", True),
        ("three", False),
    ]
    assert shown.messages[0].message.role is Role.COMPACTION_SUMMARY
    assert await client.get_session_history("a", "1") == await session.messages()
    before = await session.history(before=kept.sequence)
    assert [one.message.text for one in before.messages] == ["one", "two"]


async def test_the_transcript_is_read_forwards_and_backwards(client: Client) -> None:
    session = await a_chat(client, *"abcdef")
    first = await session.read_after(0, limit=4)
    assert [entry.sequence for entry in first] == [1, 2, 3, 4]
    assert [entry.sequence for entry in await session.read_after(4, limit=4)] == [5, 6]
    assert [entry.sequence for entry in await session.read_before(5, limit=3)] == [2, 3, 4]
    assert [entry.sequence for entry in await session.read_before(2, limit=3)] == [1]
    assert await session.read_before(1) == []
    lines = [line async for line in session.transcript()]
    assert len(lines) == 6


async def test_a_branch_is_walked_back_as_far_as_it_is_asked(client: Client) -> None:
    session = await a_chat(client)
    entries = await session.add_messages([Message.user(str(number)) for number in range(25)])
    walked = [entry.id async for entry in session.tree.walk(page=10)]
    assert walked == [entry.id for entry in reversed(entries)]
    assert [entry.id for entry in await session.tree.get_branch(limit=3)] == [entry.id for entry in entries[-3:]]


async def test_a_context_is_legal_and_exact(client: Client) -> None:
    session = await a_chat(client, "hello")
    call = ToolCall("c1", "grep", '{"a": 1}')
    await session.add_message(Message.assistant("", (call,)))
    context = await session.get_context()
    assert [message.role for message in context.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL_RESULT]
    assert context.messages[1].tool_calls == (call,)


# --- the tree --------------------------------------------------------------------------------------------------------


async def test_the_tree_is_branched_labelled_and_told(client: Client) -> None:
    session = await a_chat(client, "root", "left")
    first = (await session.history()).messages[0].id
    await session.tree.set_label(first, "start")
    await session.tree.branch(first, then=[Message.user("right")])
    assert await texts(session) == ["root", "right"]
    await session.tree.branch_with_summary(first, "we went right")
    (tree,) = await session.tree.get_tree()
    assert (tree.entry.id, tree.label) == (first, "start")
    assert await session.tree.get_label(first) == "start"
    assert {type(child).__name__ for child in await session.tree.get_children(first)} >= {"MessageEntry"}
    with pytest.raises(LeafMoved):
        await session.tree.branch(None, if_leaf=first)


async def test_a_move_takes_entries_of_any_kind_with_it(client: Client) -> None:
    session = await a_chat(client, "root", "left")
    first = (await session.history()).messages[0].id
    said, note = NewMessage(message={"role": "user", "content": "right"}), NewCustom(custom_type="note", data={"n": 1})
    moved = await session.tree.branch_with_entries(first, [said, note])
    assert await texts(session) == ["root", "right"]
    assert [one.id for one in moved.entries] == [one.id for one in (await session.tree.get_branch())[1:]]
    assert [one.sequence for one in moved.entries] == [4, 5]
    assert moved.leaf_id == moved.entries[-1].id == await session.leaf_id()


async def test_an_entry_is_replaced_and_what_follows_is_said_again_without_its_cost(client: Client) -> None:
    session = await a_chat(client, "secret", "two")
    secret, two = (message.id for message in (await session.history()).messages)
    await session.add_message(Message(Role.ASSISTANT, "three", usage=Usage(input_tokens=7)))
    await session.tree.append_custom_entry("note", {"n": 1})
    leaf_id = await session.leaf_id()
    with pytest.raises(LeafMoved):
        await session.tree.replace(secret, [Message.user("redacted")], if_leaf=two)
    await session.tree.replace(secret, [Message.user("redacted")], without=[two], if_leaf=leaf_id)
    assert await texts(session) == ["redacted", "three"]
    assert [entry.data for entry in await session.tree.get_branch() if isinstance(entry, Custom)] == [{"n": 1}]
    assert (await session.total_usage()).input_tokens == 7
    with pytest.raises(EntryNotFound):
        await session.tree.replace(two)


async def test_the_tree_of_a_session_with_an_agent_and_of_its_fork_has_one_root(client: Client) -> None:
    session = await client.get_or_create("telegram", 7, agent_id="bot")
    entry = await session.add_message(Message.user("hello"))
    for one in (session, await session.fork()):
        transcript = await one.tree.get_transcript()
        assert [root.id for root in transcript.roots] == [leaf.id for leaf in transcript.leaves] == [entry.id]
        assert (await one.tree.shape()).roots == [entry.id]


async def test_a_fork_has_everything_and_a_repeated_one_is_the_same(client: Client) -> None:
    session = await a_chat(client, "1", "2")
    first = await session.fork(idempotency_key="f")
    again = await session.fork(idempotency_key="f")
    assert first.session_id == again.session_id != session.session_id
    assert await texts(first) == ["1", "2"]
    named = await session.fork("a_copy", leaf_id=(await session.history()).messages[0].id)
    assert await texts(named) == ["1"]
    with pytest.raises(SessionExists):
        await (await client.get_or_create("b", "1")).fork("a_copy")
    assert len(await client.list()) == 4


async def test_a_model_summarizes_where_nobody_brings_a_summary(client: Client) -> None:
    session = await a_chat(client, *("word " * 50 for _ in range(10)))
    outcome = await session.compact(keep_tokens=0)
    assert outcome.status == "done"
    assert (await session.messages())[0].text == "a summary"


async def test_a_cut_that_parts_a_call_from_its_result_is_refused(client: Client) -> None:
    session = await a_chat(client, "go")
    call = ToolCall("c1", "grep", "{}")
    await session.add_message(Message.assistant("", (call,)))
    result = await session.add_message(Message.tool_result(call, "3 hits"))
    with pytest.raises(UnsafeCompaction):
        await session.tree.append_compaction("sum", result.id)


async def test_clearing_empties_the_window_and_keeps_the_transcript(client: Client) -> None:
    session = await a_chat(client, "1")
    assert (await session.clear()).messages == 0
    assert await texts(session) == []
    assert len(await session.read_after(0)) >= 1


# --- files -----------------------------------------------------------------------------------------------------------


async def test_a_session_goes_out_and_comes_in_again(client: Client, tmp_path: Path) -> None:
    session = await a_chat(client, "1", "2\u2028")
    exported = b"".join([chunk async for chunk in client.export(session.session_id)])
    path = tmp_path / "copy.jsonl"
    path.write_bytes(exported)
    sent: list[tuple[int, int | None]] = []
    dry = await client.import_file(path, session_id="b_2", dry_run=True)
    report = await client.import_file(path, session_id="b_2", on_sent=lambda done, size: sent.append((done, size)))
    assert (dry.dry_run, report.dry_run, report.messages) == (True, False, 2)
    assert sent[-1] == (len(exported), len(exported))
    assert await texts(client.session("b_2")) == ["1", "2\u2028"]
    with pytest.raises(SessionExists):
        await client.import_file(path, session_id="b_2")
    assert "jsonl" in [row.name for row in await client.formats()]


async def test_a_file_that_is_no_session_is_refused(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"hello")
    with pytest.raises(ImportRefused):
        await client.import_file(path)
    with pytest.raises(ImportRefused):
        await client.import_file(tmp_path / "not there")
    assert await client.list() == []


async def test_an_import_that_breaks_off_leaves_nothing(client: Client) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b'{"type": "session", "version": 3, "id": "x", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/"}\n'
        raise ValueError("the disk is gone")

    with pytest.raises(ValueError, match="gone"):
        await client.import_stream(broken(), name="x")
    await client.health()
    assert await client.list() == []


# --- the service -----------------------------------------------------------------------------------------------------


async def test_the_service_is_looked_at_and_saved(client: Client) -> None:
    await a_chat(client, "x")
    health = await client.health()
    assert (health.status, health.sessions) == ("ok", 1)
    flushed = await client.flush()
    assert (flushed.written, flushed.failed) == (1, 0)
    assert flushed.bytes_written > 0
    assert (await client.check()).sound
    assert (await client.statistics()).committed >= 1


async def test_a_flush_that_cannot_write_is_an_error(client: Client, monkeypatch: Any) -> None:
    from miniclaw_sessions.core.persistence.flusher import Flusher, FlushReport  # noqa: PLC0415 - the fault's place

    async def failed(self: Flusher) -> FlushReport:
        del self
        return FlushReport(written=1, failed=2)

    monkeypatch.setattr(Flusher, "flush", failed)
    with pytest.raises(RequestError, match="2 sessions could not be written") as refused:
        await client.flush()
    assert refused.value.details["written"] == 1
    monkeypatch.undo()


@pytest.mark.parametrize("kind", sorted(STATUS, key=str))
def test_every_error_of_the_table_comes_back_as_its_class(kind: type[SessionsError]) -> None:
    raised = kind.__new__(kind)
    Exception.__init__(raised, "a sentence")
    refused = as_request_error(raised)
    assert refused is not None
    back = error_of(refused.status, error_document(refused))
    assert type(back) is kind
    assert str(back) == refused.message


def test_an_error_that_nobody_knows_keeps_what_the_reply_says() -> None:
    error = error_of(418, {"error": {"message": "short and stout", "type": "teapot", "param": "spout"}})
    assert isinstance(error, RequestError)
    assert (error.status, error.kind, error.param, str(error)) == (418, "teapot", "spout", "short and stout")
    assert "HTTP status 502" in str(error_of(502, "<html>"))


# --- upkeep ----------------------------------------------------------------------------------------------------------


async def test_a_workspace_is_backed_up_while_it_is_used(client: Client, short_path: Path) -> None:
    await a_chat(client, "hello")
    made = await client.back_up(short_path / "backup")
    assert (made.sessions, made.entries, made.problems) == (1, 1, [])
    with pytest.raises(ConfigError, match="it is there already"):
        await client.back_up(short_path / "backup")
    with pytest.raises(RequestError, match="whole path"):
        await client.back_up("backup")


async def test_idle_sessions_are_swept_and_what_is_not_archived_is_not_brought_back(client: Client) -> None:
    await a_chat(client, "hello")
    assert (await client.sweep(dry_run=True)).sessions == []
    assert (await client.sweep()).expired == 0
    with pytest.raises(NotArchived):
        await client.restore("a_1")
    assert await client.acknowledge_losses() == 0
