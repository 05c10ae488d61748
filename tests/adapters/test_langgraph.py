"""LangGraph on our sessions: its own conformance suite, one conversation for all, and what a step costs."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar, TypedDict

import anyio
import pytest
from anyio import to_thread
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("langgraph")
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, interrupt

from miniclaw_sessions.adapters import langgraph as adapter
from miniclaw_sessions.adapters.langchain import MiniclawChatMessageHistory
from miniclaw_sessions.adapters.langgraph import MiniclawSaver
from miniclaw_sessions.adapters.langgraph import saver as saver_module
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import Custom, MessageEntry
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, TextPart, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import SessionExists, StoreUnavailable
from miniclaw_sessions.service.client import Client
from miniclaw_sessions.testing.clock import FakeClock
from miniclaw_sessions.testing.faults import FaultyStore
from tests.adapters.examples import run_example
from tests.postgresql import PostgreSQLServer

pytestmark = pytest.mark.anyio

CONFIG: RunnableConfig = {"configurable": {"thread_id": "1"}}


@pytest.fixture
async def saver(sessions: SessionManager | Client) -> MiniclawSaver:
    return MiniclawSaver(sessions)


def chat(saver: MiniclawSaver, reply: str = "reply") -> CompiledStateGraph[Any, Any, Any, Any]:
    """A graph that answers with how many messages it was given."""

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{reply} to {len(state['messages'])}")]}

    return StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile(checkpointer=saver)


async def session_of(manager: SessionManager) -> Session:
    return await manager.get("langgraph", 1)


def texts(messages: Sequence[Any]) -> list[str]:
    return [message.text for message in messages]


# --- the framework's own judgement -----------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["sqlite:", "jsonl:", "postgresql:"])
async def test_conformance_suite_passes_with_every_capability(
    tmp_path: Path, store: str, postgresql: PostgreSQLServer
) -> None:
    directory = TemporaryDirectory(dir=tmp_path)

    @checkpointer_test(name=store)
    async def savers() -> AsyncIterator[MiniclawSaver]:
        url = postgresql.url(await postgresql.new_database()) if store == "postgresql:" else store
        with TemporaryDirectory(dir=directory.name) as workspace:
            async with SessionManager(workspace, store=url) as manager:
                yield MiniclawSaver(manager)

    report = await validate(savers)
    assert report.results.keys() == {capability.value for capability in ALL_CAPABILITIES}
    assert {name: result.failures for name, result in report.results.items() if not result.passed} == {}
    assert sum(result.tests_passed for result in report.results.values()) >= 81


def test_example_runs(tmp_path: Path) -> None:
    assert run_example(adapter, tmp_path) == "['I am Ada.', 'Hello Ada!']\n"


# --- one conversation ------------------------------------------------------------------------------------------------


async def test_graphs_messages_are_the_sessions_each_once(manager: SessionManager, saver: MiniclawSaver) -> None:
    graph = chat(saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
    await graph.ainvoke({"messages": [HumanMessage("two")]}, CONFIG)
    session = await session_of(manager)
    assert texts(session.messages()) == ["one", "reply to 1", "two", "reply to 3"]
    assert [message.role.value for message in session.messages()] == ["user", "assistant"] * 2


async def test_what_others_said_is_given_to_the_graph_once(manager: SessionManager) -> None:
    session = await manager.get_or_create("telegram", 7)
    call = ToolCall("c1", "time", '{"zone": "UTC"}')
    said = [
        Message.user("when?"),
        Message.assistant("", (call,)),
        Message.tool_result(call, "noon"),
        Message.assistant("it is noon"),
    ]
    await session.add_messages(said)
    graph = chat(MiniclawSaver(manager, channel="telegram"))
    config: RunnableConfig = {"configurable": {"thread_id": 7}}

    state = await graph.ainvoke({"messages": [HumanMessage("thanks")]}, config)
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "ai", "human", "ai"]
    assert state["messages"][1].tool_calls == [
        {"name": "time", "args": {"zone": "UTC"}, "id": "c1", "type": "tool_call"}
    ]
    assert state["messages"][2].tool_call_id == "c1"
    await session.add_message(Message.user("and now?"))
    await session.add_message(Message.assistant("still noon"))
    state = await graph.ainvoke({"messages": [HumanMessage("thanks again")]}, config)

    expected = ["when?", "", "noon", "it is noon", "thanks", "reply to 5", "and now?", "still noon", "thanks again"]
    assert texts(state["messages"]) == [*expected, "reply to 9"]
    assert texts(session.messages()) == texts(state["messages"])
    assert len({message.id for message in state["messages"]}) == 10


async def test_a_call_that_others_left_open_is_closed_for_the_graph_and_not_offered_again(
    manager: SessionManager, saver: MiniclawSaver
) -> None:
    session = await manager.get_or_create("langgraph", 1)
    await session.add_messages([Message.user("when?"), Message.assistant("", (ToolCall("c1", "time", "{}"),))])
    await session.add_message(Message.user("hello?"))
    graph = chat(saver)
    await graph.ainvoke({"messages": [HumanMessage("more")]}, CONFIG)
    state = await graph.ainvoke({"messages": [HumanMessage("more")]}, CONFIG)
    types = [message.type for message in state["messages"]]
    assert types == ["human", "ai", "tool", "human", "human", "ai", "human", "ai"]


async def test_a_call_that_langchain_left_open_is_closed_for_the_graph(
    manager: SessionManager, saver: MiniclawSaver
) -> None:
    history = MiniclawChatMessageHistory(await manager.get_or_create("langgraph", 1))
    call = {"name": "time", "args": {}, "id": "c1", "type": "tool_call"}
    await history.aadd_messages([HumanMessage("when?"), AIMessage("", tool_calls=[call])])
    state: dict[str, Any] = {}
    for question in ("hello?", "and now?"):
        state = await chat(saver).ainvoke({"messages": [HumanMessage(question)]}, CONFIG)
    types = [message.type for message in state["messages"]]
    assert types == ["human", "ai", "tool", "human", "ai", "human", "ai"]
    assert state["messages"][2].tool_call_id == "c1"


ODD = ToolCall("functions.weather:0", "the weather", '{"city": "Oslo"}')


async def test_altered_messages_of_others_at_the_end_of_a_history_are_not_said_again(
    manager: SessionManager, saver: MiniclawSaver
) -> None:
    session = await manager.get_or_create("langgraph", 1)
    heic = ImagePart("image/heic", "QUJD")
    await session.add_messages([Message.user((TextPart("look"), heic)), Message.assistant("", (ODD,))])
    said = (await session.get_context()).messages
    graph = chat(saver)
    state: dict[str, Any] = {}
    for question in ("one", "two"):
        state = await graph.ainvoke({"messages": [HumanMessage(question)]}, CONFIG)
        if question == "one":
            await session.add_messages([Message.assistant("", (ODD,)), Message.tool_result(ODD, "rain")])
    types = [message.type for message in state["messages"]]
    assert types == ["human", "ai", "tool", "human", "ai", "ai", "tool", "human", "ai"]
    calls = [call["id"] for message in state["messages"] for call in getattr(message, "tool_calls", ())]
    answered = [message.tool_call_id for message in state["messages"] if isinstance(message, ToolMessage)]
    assert calls == answered
    assert len(set(calls)) == 2
    assert len({message.id for message in state["messages"]}) == len(types)
    kept = [entry.message.text for entry in await messages_of(session)]
    assert kept == ["look", "", "one", "reply to 4", "", "rain", "two", "reply to 8"]
    assert said[0] == session.messages()[0]


async def test_an_own_call_with_an_odd_id_is_answered_under_that_id_once_others_went_on(
    manager: SessionManager, saver: MiniclawSaver
) -> None:
    call = {"name": "weather", "args": {}, "id": ODD.id, "type": "tool_call"}
    await put(saver, [HumanMessage("weather?", id="m1"), AIMessage("", id="m2", tool_calls=[call])])
    await (await session_of(manager)).add_message(Message.user("well?"))
    state = await chat(saver).ainvoke({"messages": [HumanMessage("and?")]}, CONFIG)
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "human", "human", "ai"]
    assert state["messages"][2].tool_call_id == ODD.id


async def test_what_others_said_is_given_again_after_the_session_went_back_behind_its_being_taken_up(
    manager: SessionManager, saver: MiniclawSaver
) -> None:
    graph = chat(saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
    session = await session_of(manager)
    other = await session.add_message(Message.user("from elsewhere"))
    await graph.ainvoke({"messages": [HumanMessage("two")]}, CONFIG)
    await session.tree.branch(other.id)
    state = await graph.ainvoke({"messages": [HumanMessage("three")]}, CONFIG)
    assert texts(state["messages"]) == ["one", "reply to 1", "from elsewhere", "three", "reply to 4"]


@pytest.mark.parametrize("before", [[], ["one", "reply to 1"]])
async def test_what_others_said_is_given_again_after_the_run_that_took_it_up_was_deleted(
    manager: SessionManager, saver: MiniclawSaver, before: list[str]
) -> None:
    graph = chat(saver)
    for text in before[::2]:
        await graph.ainvoke({"messages": [HumanMessage(text)]}, CONFIG)
    session = await manager.get_or_create("langgraph", 1)
    await session.add_messages([Message.user("hi"), Message.assistant("hello")])
    for run in ("first", "second"):
        state = await graph.ainvoke({"messages": [HumanMessage(run)]}, {**CONFIG, "metadata": {"run_id": run}})
        assert texts(state["messages"])[:-1] == [*before, "hi", "hello", run]
        await saver.adelete_for_runs([run])
    await session.add_message(Message.user("and now?"))

    expected = [*before, "hi", "hello", "and now?"]
    for own in ("three", "four", "five"):  # each once, from then on
        saver = MiniclawSaver(manager)
        state = await chat(saver).ainvoke({"messages": [HumanMessage(own)]}, CONFIG)
        expected += [own, f"reply to {len(expected) + 1}"]
        assert texts(state["messages"]) == expected
        await saver.aprune(["1"])


async def test_what_a_graph_removed_is_not_given_again_when_the_runs_before_that_are_deleted(
    manager: SessionManager, saver: MiniclawSaver
) -> None:
    session = await manager.get_or_create("langgraph", 1)
    await session.add_messages([Message.user("hi"), Message.assistant("hello")])
    graph = chat(saver)
    state: dict[str, Any] = {}
    for run in ("first", "second"):
        state = await graph.ainvoke({"messages": [HumanMessage(run)]}, {**CONFIG, "metadata": {"run_id": run}})
    await graph.aupdate_state(CONFIG, {"messages": [RemoveMessage(id=state["messages"][0].id)]})
    await saver.adelete_for_runs(["first", "second"])
    state = await graph.ainvoke({"messages": [HumanMessage("third")]}, CONFIG)
    assert texts(state["messages"])[:-1] == ["hello", "first", "reply to 3", "second", "reply to 5", "third"]


async def test_what_a_run_did_not_see_is_given_to_the_next_one(manager: SessionManager, saver: MiniclawSaver) -> None:
    session = await manager.get_or_create("langgraph", 1)
    await session.add_message(Message.user("before"))

    async def answer(state: MessagesState) -> dict[str, Any]:
        if len(state["messages"]) == 2:
            await session.add_message(Message.user("meanwhile"))
            await saver.aget_tuple(CONFIG)  # another run begins
        return {"messages": [AIMessage(f"reply to {len(state['messages'])}")]}

    graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile(checkpointer=saver)
    state: dict[str, Any] = {}
    for text in ("one", "two"):
        state = await graph.ainvoke({"messages": [HumanMessage(text)]}, CONFIG)
    assert texts(state["messages"]) == ["before", "one", "reply to 2", "meanwhile", "two", "reply to 5"]


async def test_values_that_a_saver_hands_out_cannot_change_what_is_stored(
    manager: SessionManager, saver: MiniclawSaver
) -> None:
    said = AIMessage("hello", id="m1", additional_kwargs={"note": {"deep": [1]}}, response_metadata={"a": 1})
    expected = said.model_copy(deep=True)
    config = await put(saver, [said])
    said.additional_kwargs["note"]["deep"].append(2)
    for _ in range(2):
        found = await saver.aget_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"]["messages"] == [expected]
        (message,) = found.checkpoint["channel_values"]["messages"]
        message.additional_kwargs["note"]["deep"].append(3)
        message.response_metadata.clear()
        message.content = "changed"
        found.checkpoint["channel_versions"].clear()
    assert (await session_of(manager)).messages()[0].text == "hello"


async def test_history_survives_a_restart_and_is_read_from_the_transcript(tmp_path: Path) -> None:
    states = []
    for turn in range(3):
        async with SessionManager(tmp_path, settings=SessionSettings(window=4)) as manager:
            graph = chat(MiniclawSaver(manager))
            states.append(await graph.ainvoke({"messages": [HumanMessage(f"turn {turn}")]}, CONFIG))
    assert texts(states[-1]["messages"]) == ["turn 0", "reply to 1", "turn 1", "reply to 3", "turn 2", "reply to 5"]


async def test_interrupt_is_resumed_after_a_restart(tmp_path: Path) -> None:
    def ask(state: MessagesState) -> dict[str, Any]:  # noqa: ARG001 - LangGraph's signature
        return {"messages": [AIMessage(f"you said {interrupt('may I?')}")]}

    builder = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask")
    async with SessionManager(tmp_path) as manager:
        graph = builder.compile(checkpointer=MiniclawSaver(manager))
        stopped = await graph.ainvoke({"messages": [HumanMessage("go")]}, CONFIG)
        assert stopped["__interrupt__"][0].value == "may I?"
    async with SessionManager(tmp_path) as manager:
        state = await builder.compile(checkpointer=MiniclawSaver(manager)).ainvoke(Command(resume="yes"), CONFIG)
        assert texts(state["messages"]) == ["go", "you said yes"]
        assert texts((await session_of(manager)).messages()) == ["go", "you said yes"]


async def test_graph_goes_on_without_the_messages_it_removed_and_the_session_keeps_them(
    manager: SessionManager, saver: MiniclawSaver
) -> None:
    graph = chat(saver)
    state = await graph.ainvoke({"messages": [HumanMessage("secret")]}, CONFIG)
    first = state["messages"][0]
    await graph.aupdate_state(CONFIG, {"messages": [RemoveMessage(id=first.id)]}, as_node="answer")
    state = await graph.ainvoke({"messages": [HumanMessage("next")]}, CONFIG)
    assert texts(state["messages"]) == ["reply to 1", "next", "reply to 2"]
    assert texts((await session_of(manager)).messages()) == ["secret", "reply to 1", "next", "reply to 2"]


async def test_messages_stay_apart_when_told_so(manager: SessionManager) -> None:
    session = await manager.get_or_create("langgraph", 1)
    await session.add_message(Message.user("from elsewhere"))
    graph = chat(MiniclawSaver(manager, messages_channel=None))
    state = await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
    assert texts(state["messages"]) == ["one", "reply to 1"]
    assert texts(session.messages()) == ["from elsewhere"]


async def test_artifact_that_is_not_json_comes_back_and_others_see_what_was_said(
    manager: SessionManager, saver: MiniclawSaver
) -> None:
    result = ToolMessage("two rows", tool_call_id="c1", artifact={1, 2}, id="m1")
    await put(saver, [result])
    found = await saver.aget_tuple(CONFIG)
    assert found is not None
    assert found.checkpoint["channel_values"]["messages"] == [result]
    assert found.checkpoint["channel_values"]["messages"][0].artifact == {1, 2}
    (message,) = [entry.message for entry in await messages_of(await session_of(manager))]
    assert (message.role.value, message.text, message.tool_call_id) == ("tool_result", "two rows", "c1")


# --- one tree --------------------------------------------------------------------------------------------------------


async def test_branching_the_session_takes_the_graph_back(manager: SessionManager, saver: MiniclawSaver) -> None:
    graph = chat(saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
    session = await session_of(manager)
    after_one = session.leaf_id
    assert after_one is not None
    await graph.ainvoke({"messages": [HumanMessage("two")]}, CONFIG)
    await session.tree.branch(after_one)
    state = await graph.ainvoke({"messages": [HumanMessage("three")]}, CONFIG)
    assert texts(state["messages"]) == ["one", "reply to 1", "three", "reply to 3"]
    assert texts(session.messages()) == texts(state["messages"])
    session.clear()
    await session.saved()  # who asks another process sees what is acknowledged
    state = await graph.ainvoke({"messages": [HumanMessage("anew")]}, CONFIG)
    assert texts(state["messages"]) == ["anew", "reply to 1"]


async def test_the_graph_goes_on_from_any_of_its_own_messages(manager: SessionManager, saver: MiniclawSaver) -> None:
    graph = chat(saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
    session = await session_of(manager)
    said = [one.id for one in await session.tree.get_branch() if isinstance(one, MessageEntry)]
    for there, before in zip(said, (["one"], ["one", "reply to 1"]), strict=True):
        await session.tree.branch(there)  # before the first of them is a checkpoint that has no messages yet
        state = await graph.ainvoke({"messages": [HumanMessage("two")]}, CONFIG)
        assert texts(state["messages"])[:-1] == [*before, "two"]
        assert texts(session.messages()) == texts(state["messages"])


async def test_the_graph_sees_the_whole_branch_from_whichever_entry_the_session_goes_on(
    manager: SessionManager, saver: MiniclawSaver
) -> None:
    session = await manager.get_or_create("langgraph", 1)
    await session.add_message(Message.user("before"))
    graph = chat(saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
    for there in [entry.id for entry in await session.tree.get_branch()]:
        await session.tree.branch(there)
        await session.add_message(Message.user("after"))
        state = await graph.ainvoke({"messages": [HumanMessage("two")]}, CONFIG)
        assert texts(state["messages"])[-3:-1] == ["after", "two"]
        assert texts(session.messages()) == texts(state["messages"])


async def test_a_run_that_is_repeated_from_its_first_checkpoint_sees_what_others_said_before_it(
    manager: SessionManager, saver: MiniclawSaver
) -> None:
    session = await manager.get_or_create("langgraph", 1)
    graph = chat(saver)
    for other, own in (("before", "one"), ("between", "two")):
        await session.add_message(Message.user(other))
        await graph.ainvoke({"messages": [HumanMessage(own)]}, CONFIG)
    first = [state.config async for state in graph.aget_state_history(CONFIG) if state.next == (START,)]
    expected = ["before", "one", "reply to 2", "between", "two", "reply to 5"]
    for config, until in zip(first, (6, 3), strict=True):
        state = await graph.ainvoke(None, config)
        assert texts(state["messages"]) == expected[:until]
        assert texts(session.messages()) == expected[:until]


async def test_going_on_from_an_older_checkpoint_branches_the_session(
    manager: SessionManager, saver: MiniclawSaver
) -> None:
    graph = chat(saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
    older = (await graph.aget_state(CONFIG)).config
    await graph.ainvoke({"messages": [HumanMessage("two")]}, CONFIG)
    state = await graph.ainvoke({"messages": [HumanMessage("three")]}, older)
    assert texts(state["messages"]) == ["one", "reply to 1", "three", "reply to 3"]
    session = await session_of(manager)
    assert texts(session.messages()) == texts(state["messages"])
    assert texts([e.message for e in await messages_of(session)]).count("two") == 1
    assert texts((await graph.aget_state(CONFIG)).values["messages"]) == texts(state["messages"])


async def test_a_branched_copy_holds_the_whole_state_of_its_branch(
    manager: SessionManager, saver: MiniclawSaver
) -> None:
    graph = chat(saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
    session = await session_of(manager)
    after_one = session.leaf_id
    assert after_one is not None
    await graph.ainvoke({"messages": [HumanMessage("two")]}, CONFIG)
    await session.tree.branch(after_one)
    await graph.ainvoke({"messages": [HumanMessage("three")]}, CONFIG)
    assert session.leaf_id is not None
    await session.fork("langgraph_2", leaf_id=session.leaf_id)
    state = await graph.aget_state({"configurable": {"thread_id": "2"}})
    assert texts(state.values["messages"]) == ["one", "reply to 1", "three", "reply to 3"]


# --- what is written -------------------------------------------------------------------------------------------------


class Sum(TypedDict):
    total: Annotated[int, operator.add]
    notes: str


async def test_step_writes_as_much_in_a_long_conversation_as_in_a_short_one(
    manager: SessionManager, saver: MiniclawSaver
) -> None:
    graph = chat(saver)
    written = []
    for turn in range(60):
        before = 0 if turn == 0 else (await session_of(manager)).last_sequence
        await graph.ainvoke({"messages": [HumanMessage("x" * 300)]}, CONFIG)
        session = await session_of(manager)
        written.append(
            sum(len(stored.encoded) for stored in await session.journal.reader.read("langgraph_1", after=before))
        )
    assert written[-1] < 1.1 * written[5]
    assert written[-1] < 12_000


async def test_everything_is_acknowledged_when_a_call_returns(manager: SessionManager, saver: MiniclawSaver) -> None:
    config = await put(saver, [HumanMessage("hello", id="m1")])
    session = await session_of(manager)
    assert session.journal.committed_sequence == session.last_sequence
    await saver.aput_writes(config, [("messages", [AIMessage("draft")])], "task")
    assert session.journal.committed_sequence == session.last_sequence == 3


async def test_a_step_that_the_store_refuses_fails_and_is_whole_when_the_store_recovers(tmp_path: Path) -> None:
    store, clock = FaultyStore(MemoryStore()), FakeClock()
    async with SessionManager(tmp_path, store=store, clock=clock) as manager:
        saver = MiniclawSaver(manager)
        one, two = HumanMessage("one", id="m1"), AIMessage("two", id="m2")
        await put(saver, [one])
        store.fail()
        with pytest.raises(StoreUnavailable):
            await put(saver, [one, two], version=2)
        store.heal()
        await clock.advance(60)
        await (await session_of(manager)).saved()
        for fresh in (saver, MiniclawSaver(manager)):
            found = await fresh.aget_tuple(CONFIG)
            assert found is not None
            assert found.checkpoint["channel_values"]["messages"] == [one, two]


async def test_large_values_stand_in_pieces(tmp_path: Path) -> None:
    limit = 4_096
    async with SessionManager(tmp_path, settings=SessionSettings(max_message_bytes=limit)) as manager:
        saver = MiniclawSaver(manager)
        big = {
            "notes": "ä" * 10_000,
            "more": b"\0" * 9_000,
            "small": 1,
            "messages": [HumanMessage("y" * 9_000, id="m")],
        }
        await saver.aput(CONFIG_ROOT, checkpoint(big, 1), {"step": 0}, dict.fromkeys(big, "1"))
        sizes = [len(stored.encoded) for stored in await (await session_of(manager)).journal.reader.read("langgraph_1")]
        assert max(sizes) <= limit
        assert len(sizes) > 10
    async with SessionManager(tmp_path) as manager:
        found = await MiniclawSaver(manager).aget_tuple(CONFIG)
        assert found is not None
        assert found.checkpoint["channel_values"] == big


class Delta(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer)]


async def test_delta_channel_keeps_what_it_was_begun_with_over_pruning_and_restarts(tmp_path: Path) -> None:
    async def answer(state: Delta) -> dict[str, Any]:
        return {"messages": [AIMessage(f"reply to {len(state['messages'])}")]}

    builder = StateGraph(Delta).add_node("answer", answer).add_edge(START, "answer")
    states = []
    for turn in range(3):
        async with SessionManager(tmp_path) as manager:
            if turn == 0:
                await (await manager.get_or_create("langgraph", 1)).add_message(Message.user("from elsewhere"))
            saver = MiniclawSaver(manager)
            graph = builder.compile(checkpointer=saver)
            states.append(await graph.ainvoke({"messages": [HumanMessage(f"turn {turn}")]}, CONFIG))
            await saver.aprune(["1"])
    said = ["from elsewhere", "turn 0", "reply to 2", "turn 1", "reply to 4", "turn 2", "reply to 6"]
    assert texts(states[-1]["messages"]) == said


async def test_state_that_is_no_messages_works_too(manager: SessionManager, saver: MiniclawSaver) -> None:
    async def add(state: Sum) -> dict[str, Any]:
        return {"total": 1, "notes": f"was {state['total']}"}

    graph = StateGraph(Sum).add_node("add", add).add_edge(START, "add").compile(checkpointer=saver)
    states = [await graph.ainvoke({"total": 10, "notes": ""}, CONFIG) for _ in range(3)]
    assert states[-1] == {"total": 33, "notes": "was 32"}
    assert await messages_of(await session_of(manager)) == []


# --- any list of messages --------------------------------------------------------------------------------------------

CONFIG_ROOT: RunnableConfig = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}


def checkpoint(values: dict[str, Any], version: int) -> Checkpoint:
    return {
        **empty_checkpoint(),
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, str(version)),
    }


async def put(saver: MiniclawSaver, messages: list[BaseMessage], *, version: int = 1) -> RunnableConfig:
    made = checkpoint({"messages": messages}, version)
    return await saver.aput(CONFIG_ROOT, made, {"step": version}, {"messages": str(version)})


async def messages_of(session: Session) -> list[MessageEntry]:
    return [entry async for entry in session.tree.read_entries() if isinstance(entry, MessageEntry)]


some_messages = st.builds(
    lambda kind, text, number: kind(text, id=f"m{number}"),
    st.sampled_from([HumanMessage, AIMessage, SystemMessage]),
    st.sampled_from(["", "yes", "no"]),
    st.integers(0, 6),
)
edits = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.just(0), some_messages),
        st.tuples(st.sampled_from(["insert", "replace", "remove", "say"]), st.integers(0, 8), some_messages),
    ),
    max_size=12,
)


def edited(messages: list[BaseMessage], kind: str, place: int, message: BaseMessage) -> list[BaseMessage]:
    place = min(place, len(messages))
    match kind:
        case "append":
            return [*messages, message]
        case "insert":
            return [*messages[:place], message, *messages[place:]]
        case "replace":
            return [*messages[:place], message, *messages[place + 1 :]]
        case _:
            return [*messages[:place], *messages[place + 1 :]]


@given(edits=edits)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_every_version_of_a_list_comes_back_whatever_was_done_to_it(
    edits: list[tuple[str, int, BaseMessage]],
) -> None:
    with TemporaryDirectory() as workspace:
        async with SessionManager(workspace, store="memory:") as manager:
            saver = MiniclawSaver(manager)
            messages: list[BaseMessage] = []
            stored: list[tuple[RunnableConfig, list[BaseMessage]]] = []
            for version, (kind, place, message) in enumerate(edits, 1):
                if kind == "say":
                    await (await manager.get_or_create("langgraph", 1)).add_message(Message.user(f"other {version}"))
                    found = await saver.aget_tuple(CONFIG)
                    assert found is not None
                    messages = found.checkpoint["channel_values"]["messages"]
                    assert messages[-1].text == f"other {version}"
                else:
                    messages = edited(messages, kind, place, message)
                stored.append((await put(saver, messages, version=version), messages))
            for fresh in (saver, MiniclawSaver(manager)):
                for config, expected in stored:
                    found = await fresh.aget_tuple(config)
                    assert found is not None
                    assert found.checkpoint["channel_values"]["messages"] == expected


# --- threads, memory, deleting ---------------------------------------------------------------------------------------


async def test_synchronous_methods_work_from_other_threads_only(manager: SessionManager, saver: MiniclawSaver) -> None:
    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"reply to {len(state['messages'])}")]}

    graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile(checkpointer=saver)

    def work() -> tuple[list[str], int]:
        graph.invoke({"messages": [HumanMessage("one")]}, CONFIG)
        state = graph.invoke({"messages": [HumanMessage("two")]}, CONFIG)
        return texts(state["messages"]), len(list(saver.list(CONFIG, limit=4)))

    assert await to_thread.run_sync(work) == (["one", "reply to 1", "two", "reply to 3"], 4)
    with pytest.raises(RuntimeError, match="use the async method"):
        saver.get_tuple(CONFIG)
    await to_thread.run_sync(saver.copy_thread, "1", "2")
    await to_thread.run_sync(lambda: saver.prune(["1"]))
    await to_thread.run_sync(saver.delete_thread, "1")
    assert [summary.session_id for summary in await manager.list()] == ["langgraph_2"]


async def test_places_are_held_for_the_sessions_used_last(
    manager: SessionManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver_module, "MAX_INDEXED", 20)
    saver = MiniclawSaver(manager)
    graph = chat(saver)
    for thread in range(8):
        await graph.ainvoke({"messages": [HumanMessage("hello")]}, {"configurable": {"thread_id": str(thread)}})
    assert len(saver._indexes) < 4
    state = await graph.ainvoke({"messages": [HumanMessage("again")]}, {"configurable": {"thread_id": "0"}})
    assert texts(state["messages"]) == ["hello", "reply to 1", "again", "reply to 3"]


async def test_what_others_said_is_stored_once_though_the_places_were_let_go_before_the_graph_wrote(
    manager: SessionManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver_module, "MAX_INDEXED", 1)

    class Busy(MiniclawSaver):
        """Reads another thread before each write, until nothing is held of this one."""

        async def aput(self, *arguments: Any) -> RunnableConfig:
            while "langgraph_1" in self._indexes._indexes:
                await self.aget_tuple({"configurable": {"thread_id": "other"}})
            return await super().aput(*arguments)

    await chat(MiniclawSaver(manager)).ainvoke(
        {"messages": [HumanMessage("x")]}, {"configurable": {"thread_id": "other"}}
    )
    graph = chat(Busy(manager))
    await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
    session = await session_of(manager)
    await session.add_messages([Message.user("by others"), Message.assistant("answered there")])
    await graph.ainvoke({"messages": [HumanMessage("two")]}, CONFIG)
    expected = ["one", "reply to 1", "by others", "answered there", "two", "reply to 5"]
    assert texts(session.messages()) == expected
    assert texts((await graph.aget_state(CONFIG)).values["messages"]) == expected


async def test_many_threads_at_once_keep_their_states_apart(saver: MiniclawSaver) -> None:
    graph = chat(saver)
    states: dict[int, Any] = {}

    async def talk(thread: int) -> None:
        for turn in range(3):
            question = {"messages": [HumanMessage(f"{thread}.{turn}")]}
            states[thread] = await graph.ainvoke(question, {"configurable": {"thread_id": str(thread)}})

    async with anyio.create_task_group() as tasks:
        for thread in range(10):
            tasks.start_soon(talk, thread)
    for thread, state in states.items():
        assert texts(state["messages"])[::2] == [f"{thread}.{turn}" for turn in range(3)]


async def test_pruned_history_goes_on(manager: SessionManager, saver: MiniclawSaver) -> None:
    graph = chat(saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
    await saver.aprune(["1"])
    assert len([found async for found in saver.alist(CONFIG)]) == 1
    state = await graph.ainvoke({"messages": [HumanMessage("two")]}, CONFIG)
    assert texts(state["messages"]) == ["one", "reply to 1", "two", "reply to 3"]
    assert texts((await session_of(manager)).messages()) == texts(state["messages"])
    with pytest.raises(ValueError, match="keep_latest"):
        await saver.aprune(["1"], strategy="everything")


async def test_a_thread_is_not_copied_over_another_one(saver: MiniclawSaver) -> None:
    graph = chat(saver)
    for thread in ("1", "2"):
        await graph.ainvoke({"messages": [HumanMessage("hi")]}, {"configurable": {"thread_id": thread}})
    with pytest.raises(SessionExists):
        await saver.acopy_thread("1", "2")


async def test_a_thread_that_is_deleted_while_all_are_listed_is_left_out(
    manager: SessionManager, saver: MiniclawSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = chat(saver)
    for thread in ("1", "2"):
        await graph.ainvoke({"messages": [HumanMessage("hi")]}, {"configurable": {"thread_id": thread}})
    ids = saver._chats.ids

    async def ids_before_a_deletion(channel: str | None = None) -> list[str]:
        found = await ids(channel)
        await manager.delete("langgraph_2")
        return found

    monkeypatch.setattr(saver._chats, "ids", ids_before_a_deletion)
    assert {found.config["configurable"]["thread_id"] async for found in saver.alist(None)} == {"1"}


@dataclass
class Made:
    """Whatever is named in a checkpoint: reading it calls that."""

    count: ClassVar[int] = 0
    text: str

    def __post_init__(self) -> None:
        type(self).count += 1


async def test_reading_a_checkpoint_runs_nothing_that_was_not_allowed(manager: SessionManager) -> None:
    """A checkpoint is an entry, and whoever may write into the session, or made an imported file, can have made it."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"], checkpoint["channel_versions"] = {"state": Made("x")}, {"state": "1"}
    config: RunnableConfig = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
    await MiniclawSaver(manager).aput(config, checkpoint, {}, {"state": "1"})
    Made.count = 0
    found = await MiniclawSaver(manager).aget_tuple(CONFIG)
    assert found is not None
    assert Made.count == 0
    allowing = MiniclawSaver(manager, serde=JsonPlusSerializer(allowed_msgpack_modules=[Made]))
    allowed = await allowing.aget_tuple(CONFIG)
    assert allowed is not None
    assert allowed.checkpoint["channel_values"] == {"state": Made("x")}


async def test_strangers_custom_entries_of_our_type_do_no_harm(manager: SessionManager, saver: MiniclawSaver) -> None:
    session = await manager.get_or_create("langgraph", 1)
    for kind in ("checkpoint", "writes", "forget", "piece"):
        await session.tree.append_custom_entry(
            f"langgraph.{kind}", {"namespace": 7, "channels": "no", "checkpoints": 1}
        )
    graph = chat(saver)
    state = await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
    assert texts(state["messages"]) == ["one", "reply to 1"]
    kinds = [entry.custom_type async for entry in session.tree.read_entries() if isinstance(entry, Custom)]
    assert kinds.count("langgraph.checkpoint") == 4
