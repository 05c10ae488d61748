"""The Agents SDK on our sessions: its items come back, and it sees what others said."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from agents import Agent, Runner, SessionSettings, function_tool
from agents import Session as SessionProtocol
from agents.testing import ScriptedModel, assistant_message, function_call
from anyio import to_thread
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.adapters import openai_agents as adapter
from miniclaw_sessions.adapters.openai_agents import KEPT, MiniclawSession
from miniclaw_sessions.config import SessionSettings as Limits
from miniclaw_sessions.core.history.context import NO_RESULT, build_context
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import (
    InvalidMessage,
    SessionDeleted,
    SessionNotFound,
    StoreUnavailable,
    TranscriptNotKept,
)
from miniclaw_sessions.service.client import Client
from miniclaw_sessions.testing import FaultyStore
from tests.adapters.examples import run_example
from tests.files.formats.legal_contexts import legal_contexts, rejects_items
from tests.legality import is_legal

pytestmark = pytest.mark.anyio

Item = dict[str, Any]
CALL = {
    "type": "function_call",
    "call_id": "call_1",
    "name": "weather",
    "arguments": '{"city":  "Paris"}',
    "id": "fc_1",
}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "18 degrees"}
RESPONSE: list[Item] = [
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}],
    },
    CALL,
]


@pytest.fixture
async def adapted(sessions: SessionManager | Client) -> MiniclawSession:
    return MiniclawSession(await sessions.get_or_create("telegram", 1))


def user(text: str) -> Item:
    return {"role": "user", "content": text}


async def add(adapted: MiniclawSession, *items: Any) -> None:
    await adapted.add_items(cast("Any", list(items)))


# --- the example, and the protocol -----------------------------------------------------------------------------------


def test_the_example_runs(tmp_path: Path) -> None:
    assert run_example(adapter, tmp_path) == "Hello Ada! ['I am Ada.', 'Hello Ada!']\n"


async def test_it_is_a_session_of_the_framework(adapted: MiniclawSession) -> None:
    assert isinstance(adapted, SessionProtocol)
    assert adapted.session_id == "telegram_1"
    assert adapted.session_settings == SessionSettings()


async def test_a_run_with_tools_is_remembered_over_a_restart(tmp_path: Path) -> None:
    @function_tool
    def weather(city: str) -> str:
        """The weather."""
        return f"18 degrees in {city}"

    model = ScriptedModel([[function_call("weather", {"city": "Paris"}, call_id="c1")], [assistant_message("Warm.")]])
    agent = Agent(name="assistant", model=model, tools=[weather])
    async with SessionManager(tmp_path) as manager:
        adapted = MiniclawSession(await manager.get_or_create("telegram", 1))
        assert (await Runner.run(agent, "How is Paris?", session=adapted)).final_output == "Warm."
        before = await adapted.get_items()
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 1)
        adapted = MiniclawSession(session)
        assert await adapted.get_items() == before
        roles = [message.role for message in session.messages()]
        assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL_RESULT, Role.ASSISTANT]
        model.enqueue([assistant_message("You asked about Paris.")])
        await Runner.run(agent, "What did I ask?", session=adapted)
        assert model.calls[-1].input == [*before, user("What did I ask?")]


# --- items -----------------------------------------------------------------------------------------------------------


async def test_the_items_of_a_response_are_one_message(adapted: MiniclawSession, session: Session) -> None:
    await add(adapted, user("hi"), *RESPONSE, OUTPUT)

    _, reply, result = session.messages()
    assert (reply.role, reply.text, reply.tool_calls and reply.tool_calls[0].name) == (
        Role.ASSISTANT,
        "Let me see.",
        "weather",
    )
    assert (result.tool_call_id, result.content) == ("call_1", "18 degrees")
    assert await adapted.get_items() == [user("hi"), *RESPONSE, OUTPUT]


numbers = st.integers() | st.floats(allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
odd_items = st.dictionaries(
    st.sampled_from(["type", "role", "content", "call_id", "output", "id", "name", "arguments", "summary", "x"]),
    st.sampled_from(["message", "assistant", "system", "user", "function_call", "function_call_output", "reasoning"])
    | json_values,
    max_size=6,
)
known_items = st.sampled_from(
    [
        user("hi"),
        user(""),
        *RESPONSE,
        OUTPUT,
        {"role": "assistant", "content": "plain"},
        {"role": "assistant", "content": ""},
        {"role": "system", "content": None},
        {"role": "developer", "content": [{"type": "input_text", "text": "be kind"}]},
        {"type": "item_reference", "id": "msg_9"},
        {"type": "compaction", "encrypted_content": "zzz"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "https://x.org/a.png", "detail": "auto"}]},
    ]
)


@given(st.lists(st.lists(known_items | odd_items, max_size=4), max_size=4))
def test_all_items_come_back_exactly_in_order(batches: list[list[Item]]) -> None:
    async def add_and_get() -> tuple[list[Any], list[Any]]:
        adapted = MiniclawSession(Session.new(window=5))
        for batch in batches:
            await add(adapted, *batch)
        return cast("list[Any]", await adapted.get_items()), cast("list[Any]", await adapted.get_items(limit=2))

    everything = [item for batch in batches for item in batch]
    got, newest = asyncio.run(add_and_get())
    assert json.dumps(got, sort_keys=True) == json.dumps(everything, sort_keys=True)
    assert newest == got[-2:]


async def test_an_item_that_no_message_can_hold_is_shown_to_nobody_else(adapted: MiniclawSession) -> None:
    odd = [{"type": "message", "role": "system", "content": None}, {"type": "x", "n": 2**80, "f": float("inf")}]
    await add(adapted, user("hi"), *odd)

    assert await adapted.get_items() == [user("hi"), *odd]
    assert [message.text for message in (await adapted.session.get_context()).messages] == ["hi"]


async def test_what_is_not_json_is_refused_and_nothing_of_it_is_kept(adapted: MiniclawSession) -> None:
    with pytest.raises(TypeError):
        await add(adapted, user("hi"), {"role": "user", "content": object()})
    assert await adapted.get_items() == []
    await add(adapted, user("afterwards"))
    assert await adapted.get_items() == [user("afterwards")]


async def test_an_item_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, settings=Limits(max_message_bytes=1_000)) as manager:
        adapted = MiniclawSession(await manager.get_or_create("telegram", 1))
        with pytest.raises(InvalidMessage, match="max_message_bytes"):
            await add(adapted, user("x" * 2_000))
        assert await adapted.get_items() == []


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 59, 60, 61, None])
async def test_a_limit_gives_the_newest_in_order(session: Session, limit: int | None) -> None:
    adapted = MiniclawSession(session)
    items = [user(f"{number}") for number in range(60)]  # more than the window holds
    await add(adapted, *items)

    expected = items if limit is None else items[len(items) - min(limit, 60) :]
    assert await adapted.get_items(limit) == expected
    assert await MiniclawSession(session, SessionSettings(limit=limit)).get_items() == expected


# --- acknowledged ----------------------------------------------------------------------------------------------------


async def test_items_are_acknowledged_before_add_returns(adapted: MiniclawSession, session: Session) -> None:
    await add(adapted, user("one"), user("two"))
    assert session.journal.committed_sequence == session.last_sequence == 2
    await adapted.pop_item()
    assert session.journal.committed_sequence == session.last_sequence
    await adapted.clear_session()
    assert session.journal.committed_sequence == session.last_sequence


async def test_adding_at_once_keeps_everything_and_each_call_together(session: Session) -> None:
    calls = [[user(f"{task}.{place}") for place in range(3)] for task in range(20)]
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(add, MiniclawSession(session), *call)

    got = await MiniclawSession(session).get_items()
    chunks = [got[start : start + 3] for start in range(0, 60, 3)]
    assert sorted(map(str, chunks)) == sorted(map(str, calls))


async def test_other_threads_and_loops_may_use_it(adapted: MiniclawSession, session: Session) -> None:
    model = ScriptedModel([[assistant_message("Hello!")]])

    def run_sync() -> str:
        asyncio.set_event_loop(loop := asyncio.new_event_loop())
        try:
            return str(Runner.run_sync(Agent(name="a", model=model), "hi", session=adapted).final_output)
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    assert await to_thread.run_sync(run_sync) == "Hello!"
    assert [message.text for message in session.messages()] == ["hi", "Hello!"]
    assert session.journal.committed_sequence == 2


async def test_what_another_thread_adds_is_converted_there(
    adapted: MiniclawSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session's loop has others to serve; some hundred items would hold it up."""
    threads: list[int] = []
    convert = adapter._to_messages

    def converted(items: Sequence[Any]) -> list[Message]:
        threads.append(threading.get_ident())
        return convert(items)

    def add_there() -> int:
        asyncio.run(add(adapted, user("one"), *RESPONSE))
        return threading.get_ident()

    monkeypatch.setattr(adapter, "_to_messages", converted)
    there = await to_thread.run_sync(add_there)
    assert threads == [there]
    assert there != threading.get_ident()
    assert await adapted.get_items() == [user("one"), *RESPONSE]


# --- taking back -----------------------------------------------------------------------------------------------------


async def test_pop_takes_one_item_and_leaves_the_rest_of_its_message(adapted: MiniclawSession) -> None:
    items = [user("hi"), *RESPONSE, OUTPUT]
    await add(adapted, *items)

    while items:
        assert await adapted.pop_item() == items.pop()
        assert await adapted.get_items() == items
    assert await adapted.pop_item() is None


@pytest.mark.parametrize("store", ["memory:", "sqlite:", "jsonl:"])
async def test_every_store_takes_back_and_forgets(tmp_path: Path, store: str) -> None:
    async with SessionManager(tmp_path, store=store) as manager:
        adapted = MiniclawSession(await manager.get_or_create("telegram", 1))
        await add(adapted, user("hi"), *RESPONSE)
        assert await adapted.pop_item() == CALL
        assert await adapted.get_items() == [user("hi"), *RESPONSE[:-1]]
        await adapted.clear_session()
        assert await adapted.get_items() == []
        assert await adapted.pop_item() is None


async def test_without_a_transcript_nothing_is_taken_back(tmp_path: Path) -> None:
    async with SessionManager(tmp_path, store="none:") as manager:
        adapted = MiniclawSession(await manager.get_or_create("telegram", 1))
        await add(adapted, user("hi"), *RESPONSE)
        with pytest.raises(TranscriptNotKept, match="none:"):
            await adapted.pop_item()
        assert await adapted.get_items() == [user("hi"), *RESPONSE]


async def test_what_was_popped_stays_in_the_transcript(adapted: MiniclawSession, session: Session) -> None:
    await add(adapted, user("one"), user("two"))
    await adapted.pop_item()
    await adapted.clear_session()

    entries = [entry async for entry in session.tree.read_entries()]
    assert [entry.message.text for entry in entries if isinstance(entry, MessageEntry)] == ["one", "two"]


async def test_pop_and_add_again_survives_a_restart(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        adapted = MiniclawSession(await manager.get_or_create("telegram", 1))
        await add(adapted, user("hi"), *RESPONSE)
        await adapted.pop_item()
        await add(adapted, user("never mind"))
        expected = await adapted.get_items()
    async with SessionManager(tmp_path) as manager:
        adapted = MiniclawSession(await manager.get_or_create("telegram", 1))
        assert await adapted.get_items() == expected == [user("hi"), *RESPONSE[:-1], user("never mind")]


@pytest.mark.parametrize("keeps", [True, False])
async def test_pop_does_not_bring_back_what_was_compacted(
    adapted: MiniclawSession, session: Session, *, keeps: bool
) -> None:
    await add(adapted, user("old"), {"role": "assistant", "content": "older"}, user("kept"))
    kept = session.entries()[-1].id
    await session.tree.append_compaction("They greeted.", kept if keeps else None)
    await add(adapted, user("new"))
    items = list(await adapted.get_items())
    assert "They greeted." in str(items[0])

    while items:
        assert await adapted.pop_item() == items.pop()
        assert await adapted.get_items() == items


async def test_reply_is_paid_for_once_though_an_item_behind_a_compaction_is_popped(
    adapted: MiniclawSession, session: Session
) -> None:
    paid = Message(Role.ASSISTANT, "paid", usage=Usage(10, 5, cost=1.0), model="m")
    await session.add_messages([Message.user("old"), paid, Message.user("kept"), paid, Message.user("new")])
    await session.tree.append_compaction("They greeted.", session.entries()[-3].id)
    items = list(await adapted.get_items())
    while items:
        assert await adapted.pop_item() == items.pop()
        assert await adapted.get_items() == items
    assert session.total_usage.cost == 2.0


@given(legal_contexts(), st.lists(known_items, max_size=3))
def test_pop_takes_the_items_of_others_one_by_one(context: list[Message], items: list[Item]) -> None:
    async def pop_all() -> None:
        adapted = MiniclawSession(Session.new())
        await adapted.session.add_messages(context)
        await add(adapted, *items)
        left = list(await adapted.get_items())
        while left:
            assert await adapted.pop_item() == left.pop()
            assert await adapted.get_items() == left

    asyncio.run(pop_all())


async def test_a_deleted_session_says_so(manager: SessionManager, adapted: MiniclawSession) -> None:
    await manager.delete(adapted.session_id)
    with pytest.raises((SessionDeleted, SessionNotFound)):  # a daemon knows it no more
        await add(adapted, user("hi"))


async def test_a_store_that_fails_is_told_and_what_was_accepted_comes_later(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with SessionManager(tmp_path, store=store) as manager:
        adapted = MiniclawSession(await manager.get_or_create("telegram", 1))
        store.fail_next()
        with pytest.raises(StoreUnavailable):
            await add(adapted, user("hi"))
        assert await adapted.get_items() == [user("hi")]
    async with SessionManager(tmp_path, store=store) as manager:
        adapted = MiniclawSession(await manager.get_or_create("telegram", 1))
        assert await adapted.get_items() == [user("hi")]


# --- what others said ------------------------------------------------------------------------------------------------


@given(legal_contexts(), st.lists(known_items, max_size=3))
def test_what_others_said_is_acceptable_to_the_service(context: list[Message], items: list[Item]) -> None:
    async def get() -> list[Any]:
        adapted = MiniclawSession(Session.new())
        await adapted.session.add_messages(context)
        before = list(await adapted.get_items())
        await add(adapted, *items)
        assert await adapted.get_items() == [*before, *items]
        return before

    assert [problem for problem in rejects_items(asyncio.run(get())) if "reasoning" not in problem] == []


async def test_a_call_of_somebody_else_is_answered_and_one_of_its_own_is_not(adapted: MiniclawSession) -> None:
    await adapted.session.add_message(Message.user("hi"))
    await adapted.session.add_message(Message.assistant("", (ToolCall("theirs", "search", "{}"),)))
    await add(adapted, user("go on"), CALL)

    kinds = [(item.get("type"), item.get("output")) for item in cast("list[Item]", await adapted.get_items())]
    assert kinds[1:] == [
        ("function_call", None),
        ("function_call_output", NO_RESULT),
        (None, None),
        ("function_call", None),
    ]


async def test_its_own_call_is_answered_once_somebody_else_went_on(adapted: MiniclawSession) -> None:
    await add(adapted, user("hi"), CALL)
    await adapted.session.add_message(Message.user("are you there?"))

    items = cast("list[Item]", await adapted.get_items())
    assert [item.get("output") for item in items] == [None, None, NO_RESULT, None]


async def test_a_result_that_somebody_else_gave_is_the_answer(adapted: MiniclawSession, session: Session) -> None:
    await add(adapted, user("hi"), CALL)
    result = Message.tool_result(ToolCall("call_1", "weather"), "rain")
    await session.add_messages([result, Message.assistant("It rains.")])

    items = cast("list[Item]", await adapted.get_items())
    assert [item.get("output") for item in items] == [None, None, "rain", None]
    assert is_legal(build_context(session.messages())) == []


async def test_its_messages_are_marked_as_its_own(adapted: MiniclawSession, session: Session) -> None:
    await add(adapted, user("hi"))
    (message,) = session.messages()
    assert message.extra == {KEPT: {}}


async def test_what_a_session_hands_out_cannot_change_it(tmp_path: Path) -> None:
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi", "extra": {"deep": [1]}}]},
        {"type": "mcp_call", "id": "m1", "arguments": "{}", "name": "f", "server_label": "s", "more": {"deep": [1]}},
    ]
    expected = json.loads(json.dumps(items))
    async with SessionManager(tmp_path) as manager:
        memory = MiniclawSession(await manager.get_or_create("telegram", 1))
        await memory.add_items(items)
        items[1]["more"]["deep"].append(2)
        for _ in range(2):
            found: list[Any] = await memory.get_items()
            assert found == expected
            found[0]["content"][0]["extra"]["deep"].append(3)
            found[1]["more"].clear()
        assert (await manager.check()).problems == []


@pytest.mark.parametrize("call_id", ["functions.weather:0", "call_1|fc_2", "ça va ☃", "x" * 400])
async def test_an_own_call_with_an_odd_id_is_answered_under_that_id_once_others_went_on(
    session: Session, adapted: MiniclawSession, call_id: str
) -> None:
    call = {"type": "function_call", "call_id": call_id, "name": "weather", "arguments": "{}"}
    await add(adapted, user("weather?"), call)
    await session.add_messages([Message.user("well?"), Message.assistant("It rains.")])

    made_up = {"type": "function_call_output", "call_id": call_id, "output": NO_RESULT}
    rained = {"role": "assistant", "content": "It rains."}
    expected = [user("weather?"), call, made_up, user("well?"), rained]
    assert [_plain(item) for item in await adapted.get_items()] == expected
    await add(adapted, user("and now?"))
    assert [_plain(item) for item in await adapted.get_items()] == [*expected, user("and now?")]


async def test_an_own_call_that_its_runner_left_behind_is_its_runners_affair(
    session: Session, adapted: MiniclawSession
) -> None:
    odd = {"type": "function_call", "call_id": "functions.weather:0", "name": "weather", "arguments": "{}"}
    await add(adapted, user("weather?"), odd)
    await add(adapted, user("hello?"))  # the framework itself went on
    await session.add_message(Message.user("well?"))
    assert await adapted.get_items() == [user("weather?"), odd, user("hello?"), user("well?")]
    model = ScriptedModel([[assistant_message("Sorry.")]])

    await Runner.run(Agent(name="a", model=model), "and now?", session=adapted)
    assert model.calls[-1].input == [user("weather?"), user("hello?"), user("well?"), user("and now?")]
    assert rejects_items(cast("list[Item]", model.calls[-1].input)) == []


def _plain(item: Any) -> Item:
    """An item of others as this test writes it: the fields that say something."""
    content = item.get("content")
    if item.get("role") == "assistant" and isinstance(content, list):
        return {"role": "assistant", "content": "".join(part["text"] for part in content)}
    return dict(item)
