"""What a graph's step does to the session: all of it in one commit, and each reply paid for once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph")
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph

from miniclaw_sessions.adapters.chats import _HeldChat, _RemoteChat
from miniclaw_sessions.adapters.langgraph import MiniclawSaver
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.stores import open_store
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.errors import SessionsError, StoreUnavailable
from miniclaw_sessions.service.client import Client
from tests.adapters.full_store import FullAfter
from tests.serving import asked

pytestmark = pytest.mark.anyio

CONFIG: RunnableConfig = {"configurable": {"thread_id": "1"}}
USAGE = UsageMetadata(input_tokens=10, output_tokens=5, total_tokens=15)


def chat(saver: MiniclawSaver) -> CompiledStateGraph[Any, Any, Any, Any]:
    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"reply to {len(state['messages'])}")]}

    return StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile(checkpointer=saver)


async def texts_of(manager: SessionManager) -> list[str]:
    return [message.text for message in (await manager.get("langgraph", 1)).messages()]


@asynccontextmanager
async def placed(manager: SessionManager, place: str) -> AsyncIterator[SessionManager | Client]:
    if place == "held":
        yield manager
    else:
        async with asked(manager) as client:
            yield client


@pytest.mark.parametrize("commits", [0, 1])
async def test_session_is_whole_after_each_commit_of_a_step_that_goes_back(tmp_path: Path, commits: int) -> None:
    store = FullAfter(open_store("sqlite:", tmp_path))
    with suppress(SessionsError):
        async with SessionManager(tmp_path, store=store) as manager:
            graph = chat(MiniclawSaver(manager))
            await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
            older = (await graph.aget_state(CONFIG)).config
            await graph.ainvoke({"messages": [HumanMessage("two")]}, CONFIG)
            store.commits = commits
            with suppress(SessionsError):
                await graph.aupdate_state(older, {"messages": [HumanMessage("three")]}, as_node="answer")
    async with SessionManager(tmp_path) as manager:
        went_on = ["three"] if commits else ["two", "reply to 3"]
        assert await texts_of(manager) == ["one", "reply to 1", *went_on]


@pytest.mark.parametrize("place", ["held", "asked"])
async def test_graph_goes_on_where_it_was_after_a_step_back_that_failed(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = _HeldChat if place == "held" else _RemoteChat

    async def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("as the test wants")

    async with SessionManager(tmp_path, store=MemoryStore()) as manager, placed(manager, place) as sessions:
        graph = chat(MiniclawSaver(sessions))
        await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
        older = (await graph.aget_state(CONFIG)).config
        await graph.ainvoke({"messages": [HumanMessage("two")]}, CONFIG)
        with monkeypatch.context() as patched:
            patched.setattr(kind, "go_to", fail)
            with pytest.raises(StoreUnavailable):
                await graph.aupdate_state(older, {"messages": [HumanMessage("three")]}, as_node="answer")
        await graph.ainvoke({"messages": [HumanMessage("four")]}, CONFIG)
        assert await texts_of(manager) == ["one", "reply to 1", "two", "reply to 3", "four", "reply to 5"]


@pytest.mark.parametrize("place", ["held", "asked"])
async def test_graph_goes_back_though_others_speak_at_that_moment(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = _HeldChat if place == "held" else _RemoteChat
    go_to = kind.go_to

    async def late(self: Any, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(kind, "go_to", go_to)
        await self.session.add_message(Message.user("by others"))
        return await go_to(self, *arguments, **options)

    async with SessionManager(tmp_path, store=MemoryStore()) as manager, placed(manager, place) as sessions:
        graph = chat(MiniclawSaver(sessions))
        await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
        older = (await graph.aget_state(CONFIG)).config
        await graph.ainvoke({"messages": [HumanMessage("two")]}, CONFIG)
        monkeypatch.setattr(kind, "go_to", late)
        state = await graph.ainvoke({"messages": [HumanMessage("three")]}, older)
        state = await graph.ainvoke({"messages": [HumanMessage("four")]}, CONFIG)
        expected = ["one", "reply to 1", "three", "reply to 3", "four", "reply to 5"]
        assert [message.text for message in state["messages"]] == expected == await texts_of(manager)


@pytest.mark.parametrize("place", ["held", "asked"])
@pytest.mark.parametrize("goes_back", [True, False])
async def test_agent_answers_the_last_of_two_questions_that_a_graph_says(
    tmp_path: Path, place: str, *, goes_back: bool
) -> None:
    async with SessionManager(tmp_path, store=MemoryStore()) as manager, placed(manager, place) as sessions:
        graph = chat(MiniclawSaver(sessions))
        await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
        older = (await graph.aget_state(CONFIG)).config
        await graph.ainvoke({"messages": [HumanMessage("two")]}, CONFIG)
        asked_of_it = [HumanMessage("first question"), HumanMessage("second question")]
        await graph.aupdate_state(older if goes_back else CONFIG, {"messages": asked_of_it}, as_node="answer")
        async with (await manager.get("langgraph", 1)).turn() as turn:
            assert turn.message.message.text == "second question"


async def test_reply_that_a_graph_edits_is_paid_for_once(manager: SessionManager, sessions: Any) -> None:
    async def answer(state: MessagesState) -> dict[str, Any]:
        del state
        return {"messages": [AIMessage("draft", id="r1", usage_metadata=USAGE)]}

    async def edit(state: MessagesState) -> dict[str, Any]:
        del state
        return {"messages": [AIMessage("edited", id="r1", usage_metadata=USAGE)]}

    saver = MiniclawSaver(sessions)
    builder = StateGraph(MessagesState).add_node("answer", answer)
    builder.add_node("edit", edit).add_edge(START, "answer").add_edge("answer", "edit")
    graph = builder.compile(checkpointer=saver)
    await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
    session = await manager.get("langgraph", 1)
    assert session.total_usage.total == 15
    for one in (saver, MiniclawSaver(sessions)):
        found = await one.aget_tuple(CONFIG)
        assert found is not None
        assert found.checkpoint["channel_values"]["messages"][-1].usage_metadata == USAGE
