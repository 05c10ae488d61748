"""LangGraph's long-term memory on our sessions: durable, shared, and found by key, filter and words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

pytest.importorskip("langgraph")
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import Item, PutOp

from miniclaw_sessions.adapters.langgraph import MiniclawSaver, MiniclawStore, store
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.errors import InvalidMessage
from miniclaw_sessions.service.client import Client
from tests.adapters.examples import run_example
from tests.crash.launcher import Launcher

pytestmark = pytest.mark.anyio

ADA = ("users", "ada")


@pytest.fixture
async def memory(sessions: SessionManager | Client) -> MiniclawStore:
    return MiniclawStore(sessions)


def keys(items: list[Any]) -> list[str]:
    return [item.key for item in items]


def value_of(item: Item | None) -> dict[str, Any] | None:
    return None if item is None else item.value


def test_the_example_runs(tmp_path: Path) -> None:
    assert run_example(store, tmp_path) == "city Ada lives in London.\nfood Ada likes figs.\n"


# --- what was put ----------------------------------------------------------------------------------------------------


async def test_items_are_there_after_a_restart_and_know_when_they_began(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        memory = MiniclawStore(manager)
        await memory.aput(ADA, "food", {"likes": "figs"})
        first = await memory.aget(ADA, "food")
        await memory.aput(ADA, "food", {"likes": "plums"})
        await memory.aput(ADA, "gone", {"x": 1})
        await memory.adelete(ADA, "gone")
    async with SessionManager(tmp_path) as manager:
        memory = MiniclawStore(manager)
        item = await memory.aget(ADA, "food")
        assert item is not None
        assert first is not None
        assert (item.value, item.created_at) == ({"likes": "plums"}, first.created_at)
        assert item.updated_at > item.created_at
        assert await memory.aget(ADA, "gone") is None
        assert keys(await memory.asearch(ADA)) == ["food"]


async def test_what_others_put_is_seen_at_once(memory: MiniclawStore, manager: SessionManager) -> None:
    other = MiniclawStore(manager)
    assert await memory.aget(ADA, "a") is None
    for number in range(3):
        await other.aput(ADA, "a", {"number": number})
        assert value_of(await memory.aget(ADA, "a")) == {"number": number}
    await manager.delete((await manager.list(channel="langgraph-store"))[0].session_id)
    await other.aput(ADA, "b", {"number": 9})
    assert keys(await memory.asearch(("users",))) == ["b"]


async def test_a_reader_and_a_writer_cannot_change_what_was_put(memory: MiniclawStore) -> None:
    value: dict[str, Any] = {"likes": ["figs"]}
    await memory.aput(ADA, "food", value)
    value["likes"].append("changed by the writer")
    got = await memory.aget(ADA, "food")
    assert got is not None
    got.value["likes"].append("changed by the reader")
    assert value_of(await memory.aget(ADA, "food")) == {"likes": ["figs"]}


async def test_any_json_comes_back_and_nothing_else_is_taken(memory: MiniclawStore) -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    await memory.aput(ADA, "odd", {"deep": deep, "large": 2**80, "text": "\0\ud7ff", "": None})
    assert value_of(await memory.aget(ADA, "odd")) == {"deep": deep, "large": 2**80, "text": "\0\ud7ff", "": None}
    with pytest.raises(InvalidMessage):
        await memory.abatch([PutOp(ADA, "fine", {"a": 1}), PutOp(ADA, "not", {"a": object()})])
    assert keys(await memory.asearch(ADA)) == ["odd"]


async def test_a_batch_reads_before_it_writes_and_the_last_write_counts(memory: MiniclawStore) -> None:
    await memory.abatch([PutOp(ADA, "a", {"n": 1}), PutOp(ADA, "a", {"n": 2}), PutOp(("b",), "a", None)])
    assert value_of(await memory.aget(ADA, "a")) == {"n": 2}
    assert await memory.alist_namespaces() == [ADA]


# --- what is found ---------------------------------------------------------------------------------------------------


async def test_words_find_items_and_rare_words_come_first(memory: MiniclawStore) -> None:
    texts = {"food": "Ada likes figs", "city": "Ada lives in London", "pet": "a cat named Fig", "job": "counts numbers"}
    for key, text in texts.items():
        await memory.aput(ADA, key, {"text": text, "kind": len(key)})
    found = await memory.asearch(("users",), query="Which city does Ada live in?")
    assert keys(found) == ["city", "food"]
    assert found[0].score is not None
    assert found[1].score is not None
    assert 1 > found[0].score > found[1].score > 0
    assert sorted(keys(await memory.asearch((), query="fig"))) == ["food", "pet"]
    assert keys(await memory.asearch((), query="fig", filter={"kind": {"$lt": 4}})) == ["pet"]
    assert keys(await memory.asearch(("others",), query="fig")) == []


async def test_a_query_looks_at_the_fields_that_were_named(memory: MiniclawStore) -> None:
    await memory.aput(ADA, "a", {"title": "figs", "body": "plums"}, index=["title"])
    await memory.aput(ADA, "b", {"title": "plums"}, index=False)
    assert keys(await memory.asearch(ADA, query="figs")) == ["a"]
    assert keys(await memory.asearch(ADA, query="plums")) == []
    assert keys(await memory.asearch(ADA, filter={"title": "plums"})) == ["b"]


async def test_filters_compare_and_a_missing_field_meets_none(memory: MiniclawStore) -> None:
    for number in range(4):
        await memory.aput(ADA, f"{number}", {"n": number, "of": {"x": [number]}})
    await memory.aput(ADA, "without", {})
    assert keys(await memory.asearch(ADA, filter={"n": {"$gte": 1, "$lt": 3}})) == ["2", "1"]  # the newest first
    assert keys(await memory.asearch(ADA, filter={"of": {"x": [3]}})) == ["3"]
    assert keys(await memory.asearch(ADA, filter={"n": {"$ne": 0}}, limit=2, offset=1)) == ["3", "2"]
    with pytest.raises(ValueError, match="operator"):
        await memory.asearch(ADA, filter={"n": {"$near": 0}})


async def test_namespaces_of_any_length_are_listed(memory: MiniclawStore) -> None:
    long = ("users", "x" * 500, 'with "quotes", and ☃')
    for namespace in (ADA, long):
        await memory.aput(namespace, "a", {"b": 1})
    assert await memory.alist_namespaces(prefix=("users", "*"), suffix=(long[-1],)) == [long]
    assert await memory.alist_namespaces(max_depth=1) == [("users",)]
    assert {item.namespace for item in await memory.asearch(("users",))} == {ADA, long}


# --- where it is used ------------------------------------------------------------------------------------------------


async def test_a_graph_remembers_over_threads(sessions: SessionManager | Client) -> None:
    async def answer(state: MessagesState, runtime: Runtime[Any]) -> dict[str, Any]:
        assert runtime.store is not None
        known = await runtime.store.asearch(("users", "ada"), query="name")
        await runtime.store.aput(("users", "ada"), "name", {"text": f"her name: {state['messages'][0].text}"})
        return {"messages": [("ai", known[0].value["text"] if known else "I do not know you.")]}

    builder = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
    graph = builder.compile(checkpointer=MiniclawSaver(sessions), store=MiniclawStore(sessions))
    said: list[str] = []
    for thread in ("1", "2"):
        config: Any = {"configurable": {"thread_id": thread}}
        state = await graph.ainvoke({"messages": [HumanMessage("Ada")]}, config)
        said.append(state["messages"][-1].text)
    assert said == ["I do not know you.", "her name: Ada"]


async def test_synchronous_calls_are_for_other_threads(memory: MiniclawStore) -> None:
    def elsewhere() -> Any:
        memory.put(ADA, "a", {"b": 1})
        return memory.get(ADA, "a")

    assert value_of(await to_thread.run_sync(elsewhere)) == {"b": 1}
    with pytest.raises(RuntimeError, match="async"):
        memory.get(ADA, "a")


@pytest.mark.parametrize("over_client", [False, True], ids=["held", "asked"])
@pytest.mark.parametrize("url", ["sqlite:", "jsonl:"])
async def test_what_was_acknowledged_is_there_after_each_kill(tmp_path: Path, url: str, *, over_client: bool) -> None:
    expected: dict[tuple[str, str], Any] = {}
    count = 0
    files = {"workspace": str(tmp_path / "workspace"), "account": str(tmp_path / "account"), "store": url}
    with Launcher("tests.adapters.store_process") as launcher:
        for puts, rounds in ((1, 30), (8, 5), (20, 60)):
            orders = {**files, "puts": puts, "rounds": rounds, "first": count, "over_client": over_client}
            assert launcher.start(orders, log=tmp_path / "log").wait() == -9, (tmp_path / "log").read_text()[-2000:]
            lines = (tmp_path / "account").read_text().splitlines() if (tmp_path / "account").exists() else []
            for line in lines[count:]:
                (_, user), key, value = json.loads(line)
                expected[user, key] = value
            count = len(lines)
            unanswered = (f"{(count + 1) % 3}", f"{(count + 1) % 7}")  # stored or not
            async with SessionManager(tmp_path / "workspace", settings=SessionSettings(store=url)) as manager:
                memory = MiniclawStore(manager)
                for (user, key), value in expected.items():
                    got = value_of(await memory.aget(("users", user), key))
                    assert got == value or (user, key) == unanswered, (user, key, got, value)
    assert count > 20


@pytest.mark.parametrize("data", [{}, {"key": 7}, {"key": "food", "fields": 7}, {"key": "food", "index": "text"}])
async def test_strangers_custom_entries_of_our_type_do_no_harm(
    memory: MiniclawStore, manager: SessionManager, data: dict[str, Any]
) -> None:
    await memory.aput(ADA, "food", {"text": "figs"})
    (found,) = await manager.list(channel="langgraph-store")
    await (await manager.find(found.session_id)).tree.append_custom_entry(store.ITEM, data)
    for _ in range(2):
        assert value_of(await memory.aget(ADA, "food")) == {"text": "figs"}
    assert keys(await memory.asearch(ADA, query="figs")) == ["food"]
