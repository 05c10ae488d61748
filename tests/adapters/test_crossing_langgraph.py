"""One conversation, continued in turns by this package's agent and by a LangGraph graph, with restarts in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph")
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages import ToolCall as LangChainCall
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from pydantic import Field

from miniclaw_sessions.adapters.langgraph import MiniclawSaver
from miniclaw_sessions.agent.loop import Agent
from miniclaw_sessions.agent.tools import calculator_tool
from miniclaw_sessions.history.context import is_legal
from miniclaw_sessions.manager import SessionManager
from miniclaw_sessions.protocol.messages import Message, ToolCall
from miniclaw_sessions.session import Session
from miniclaw_sessions.testing.provider import ScriptedProvider

pytestmark = pytest.mark.anyio

CONFIG: Any = {"configurable": {"thread_id": "42"}}


class ScriptedModel(BaseChatModel):
    """A chat model that says what it is told to, and remembers what it was asked with."""

    replies: list[AIMessage]
    asked: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 - LangChain's signature
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002 - same
        **kwargs: Any,  # noqa: ARG002 - same
    ) -> ChatResult:
        self.asked.append(list(messages))
        return ChatResult(generations=[ChatGeneration(message=self.replies[len(self.asked) - 1])])


def graph_of(model: ScriptedModel, saver: MiniclawSaver) -> CompiledStateGraph[Any, Any, Any, Any]:
    """A model, and a tool that doubles a number."""

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def double(state: MessagesState) -> dict[str, Any]:
        calls = state["messages"][-1].tool_calls  # type: ignore[union-attr]
        return {"messages": [ToolMessage(str(2 * call["args"]["x"]), tool_call_id=call["id"]) for call in calls]}

    def next_step(state: MessagesState) -> str:
        return "double" if state["messages"][-1].tool_calls else "__end__"  # type: ignore[union-attr]

    builder = StateGraph(MessagesState).add_node("ask", ask).add_node("double", double)
    builder.add_edge(START, "ask").add_conditional_edges("ask", next_step).add_edge("double", "ask")
    return builder.compile(checkpointer=saver)


@asynccontextmanager
async def opened(workspace: Path) -> AsyncIterator[tuple[SessionManager, Session]]:
    async with SessionManager(workspace) as manager:
        yield manager, await manager.get_or_create("telegram", 42)


def texts(messages: list[Message]) -> list[str]:
    return [message.text for message in messages]


async def test_agent_and_graph_continue_each_other_over_restarts(tmp_path: Path) -> None:
    call = ToolCall("c1", "calculator", '{"expression": "6 * 7"}')
    provider = ScriptedProvider([Message.assistant("", (call,)), "It is 42."])
    async with opened(tmp_path) as (_, session):
        await Agent(provider, tools=[calculator_tool()]).reply(Message.user("What is 6 times 7?"), session=session)

    model = ScriptedModel(
        replies=[
            AIMessage("", tool_calls=[LangChainCall(name="double", args={"x": 42}, id="c2")]),
            AIMessage("The double is 84."),
        ]
    )
    async with opened(tmp_path) as (manager, _):
        graph = graph_of(model, MiniclawSaver(manager, channel="telegram"))
        await graph.ainvoke({"messages": [HumanMessage("And the double?")]}, CONFIG)
    seen = model.asked[0]
    assert [message.type for message in seen] == ["human", "ai", "tool", "ai", "human"]
    assert seen[1].tool_calls[0]["args"] == {"expression": "6 * 7"}  # type: ignore[attr-defined]
    assert (seen[2].text, seen[2].tool_call_id) == ("42", "c1")  # type: ignore[attr-defined]
    assert seen[3].text == "It is 42."

    provider = ScriptedProvider(["You asked for 6 times 7, and for its double."])
    async with opened(tmp_path) as (_, session):
        await Agent(provider).reply(Message.user("What did I ask?"), session=session)
    (context,) = provider.contexts
    assert is_legal(context) == []
    said = ["What is 6 times 7?", "", "42", "It is 42.", "And the double?", "", "84", "The double is 84."]
    assert texts(context) == [*said, "What did I ask?"]
    assert context[5].tool_calls == (ToolCall("c2", "double", '{"x":42}'),)
    assert context[6].tool_call_id == "c2"

    model = ScriptedModel(replies=[AIMessage("Goodbye!")])
    async with opened(tmp_path) as (manager, session):
        graph = graph_of(model, MiniclawSaver(manager, channel="telegram"))
        state = await graph.ainvoke({"messages": [HumanMessage("Bye.")]}, CONFIG)
        everything = [*said, "What did I ask?", "You asked for 6 times 7, and for its double.", "Bye.", "Goodbye!"]
        assert [message.text for message in state["messages"]] == everything
        assert texts(session.messages()) == everything
        assert len({message.id for message in state["messages"]}) == len(everything)
