"""One chat, several frameworks: each goes on where another left it, over restarts, and sees what was said before.

A step is a function from a session to what its model was shown, as canonical messages; a further framework is one more
step in `STEPS`.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import agents
import agents.testing
import pydantic_ai
import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from miniclaw_sessions.adapters.langchain import MiniclawChatMessageHistory, from_langchain
from miniclaw_sessions.adapters.openai_agents import MiniclawSession
from miniclaw_sessions.adapters.pydantic_ai import load_messages, save
from miniclaw_sessions.adapters.pydantic_ai_messages import from_model_messages
from miniclaw_sessions.agent.loop import Agent
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.formats.openai_items import from_items
from miniclaw_sessions.history.context import is_legal
from miniclaw_sessions.manager import SessionManager
from miniclaw_sessions.protocol.messages import Message, ToolCall
from miniclaw_sessions.session import Session
from miniclaw_sessions.testing import ScriptedProvider

pytestmark = pytest.mark.anyio

Step = Callable[[Session, int], Awaitable[list[Message]]]


def question(number: int) -> str:
    return f"What is the weather in city {number}?"


def answer(number: int) -> str:
    return f"It is {number} degrees."


async def with_openai_agents(session: Session, number: int) -> list[Message]:
    @agents.function_tool
    def weather(city: int) -> str:
        """The weather in a city."""
        return f"{city} degrees"

    model = agents.testing.ScriptedModel(
        [
            [agents.testing.function_call("weather", {"city": number}, call_id=f"call_{number}")],
            [agents.testing.assistant_message(answer(number))],
        ]
    )
    agent = agents.Agent(name="assistant", model=model, tools=[weather])
    result = await agents.Runner.run(agent, question(number), session=MiniclawSession(session))
    assert result.final_output == answer(number)
    shown = model.calls[-1].input
    assert not isinstance(shown, str)
    return from_items([dict(item) for item in shown])


async def with_pydantic_ai(session: Session, number: int) -> list[Message]:
    shown: list[ModelMessage] = []

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        shown[:] = messages
        if not isinstance(messages[-1].parts[0], pydantic_ai.ToolReturnPart):
            return ModelResponse(parts=[ToolCallPart("weather", {"city": number}, f"call_{number}")])
        return ModelResponse(parts=[TextPart(answer(number))])

    agent = pydantic_ai.Agent(FunctionModel(reply))

    @agent.tool_plain
    def weather(city: int) -> str:
        return f"{city} degrees"

    result = await agent.run(question(number), message_history=await load_messages(session))
    assert result.output == answer(number)
    await save(session, result.new_messages())
    return from_model_messages(shown)


async def with_langchain(session: Session, number: int) -> list[Message]:
    history = MiniclawChatMessageHistory(session)
    call = {"name": "weather", "args": {"city": number}, "id": f"call_{number}"}
    model = GenericFakeChatModel(messages=iter([AIMessage("", tool_calls=[call]), AIMessage(answer(number))]))
    await history.aadd_messages([HumanMessage(question(number))])
    await history.aadd_messages([await model.ainvoke(await history.aget_messages())])
    await history.aadd_messages([ToolMessage(f"{number} degrees", tool_call_id=f"call_{number}", name="weather")])
    shown = await history.aget_messages()
    await history.aadd_messages([await model.ainvoke(shown)])
    return from_langchain(shown)


async def with_our_own_agent(session: Session, number: int) -> list[Message]:
    async def weather(arguments: dict[str, int]) -> str:
        return f"{arguments['city']} degrees"

    call = ToolCall(f"call_{number}", "weather", f'{{"city":{number}}}')
    provider = ScriptedProvider([Message.assistant("", (call,)), answer(number)])
    agent = Agent(provider, tools=[Tool("weather", "The weather in a city.", {"type": "object"}, weather)])
    async with agent.run(Message.user(question(number)), session=session) as events:
        async for _ in events:
            pass
    return provider.contexts[-1]


STEPS: dict[str, Step] = {
    "openai-agents": with_openai_agents,
    "pydantic-ai": with_pydantic_ai,
    "langchain": with_langchain,
    "our own": with_our_own_agent,
}


def said(messages: list[Message]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Role, text and calls of each message, as every framework can tell them; the system's own aside."""
    told = []
    for message in messages:
        calls = tuple(f"{call.id} {call.name} {call.arguments.replace(' ', '')}" for call in message.tool_calls or ())
        if message.role != "system":
            told.append((message.role.value, f"{message.tool_call_id or ''} {message.text}".strip(), calls))
    return told


def expected(numbers: range) -> list[tuple[str, str, tuple[str, ...]]]:
    told: list[tuple[str, str, tuple[str, ...]]] = []
    for number in numbers:
        told += [
            ("user", question(number), ()),
            ("assistant", "", (f'call_{number} weather {{"city":{number}}}',)),
            ("tool_result", f"call_{number} {number} degrees", ()),
            ("assistant", answer(number), ()),
        ]
    return told


@pytest.mark.parametrize("names", list(itertools.permutations(STEPS)), ids=" > ".join)
async def test_each_goes_on_where_another_left_it(names: tuple[str, ...], tmp_path: Path) -> None:
    for number, name in enumerate((*names, names[0])):
        async with SessionManager(tmp_path) as manager:  # a restart in between
            session = await manager.get_or_create("telegram", 1)

            shown = await STEPS[name](session, number)

            everything = expected(range(number + 1))
            assert said(shown) == everything[:-1]
            context = (await session.get_context()).messages
            assert said(context) == everything
            assert is_legal(context) == []
            assert session.journal.committed_sequence == session.last_sequence
