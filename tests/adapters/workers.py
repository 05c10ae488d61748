"""One of several worker processes that share a daemon's workspace, or a database: `python -m tests.adapters.workers`.

Each line that it writes is a message that was acknowledged: the session's id, and the text.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory
from typing import Any, cast

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from miniclaw_sessions.adapters.langgraph import MiniclawSaver
from miniclaw_sessions.adapters.openai_agents import MiniclawSession
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.service.client import Client, connect


def acknowledged(session_id: str, text: str) -> None:
    sys.stdout.write(f"{session_id} {text}\n")
    sys.stdout.flush()


async def with_openai_agents(client: Client, worker: str, turns: int) -> None:
    """All workers speak in the same session."""
    memory = MiniclawSession(await client.get_or_create("openai", "shared"))
    for turn in range(turns):
        question, answer = f"{worker}.{turn}?", f"{worker}.{turn}!"
        items: Any = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        await memory.add_items(items)
        acknowledged(memory.session_id, question)
        acknowledged(memory.session_id, answer)
        found = cast("list[dict[str, Any]]", await memory.get_items(limit=100_000))
        said = [item["content"] for item in found]
        assert said.index(answer) == said.index(question) + 1, said


async def with_langgraph(client: Client, worker: str, turns: int) -> None:
    """Each worker has a thread of its own, and a step that is stored before the next one begins."""

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(state["messages"][-1].text.replace("?", "!"))]}

    builder = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
    graph = builder.compile(checkpointer=MiniclawSaver(client, channel="graph"))
    config: Any = {"configurable": {"thread_id": worker}}
    for turn in range(turns):
        question = f"{worker}.{turn}?"
        state = await graph.ainvoke({"messages": [HumanMessage(question)]}, config, durability="sync")
        acknowledged(f"graph_{worker}", question)
        acknowledged(f"graph_{worker}", question.replace("?", "!"))
        assert len(state["messages"]) == 2 * (turn + 1)


@asynccontextmanager
async def sessions_of(place: str, worker: str) -> AsyncIterator[Client]:
    """A client of the daemon in a workspace; or, of a database, of a manager of this process's own."""
    if place.startswith("postgresql:"):
        with TemporaryDirectory(prefix=worker) as workspace:
            async with SessionManager(workspace, store=place) as manager, connect(manager) as client:
                yield client
    else:
        async with connect(place, in_process=False) as client:
            assert not client.is_local
            yield client


async def work(place: str, worker: str, turns: int) -> None:
    async with sessions_of(place, worker) as client:
        await asyncio.gather(with_openai_agents(client, worker, turns), with_langgraph(client, worker, turns))


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))
