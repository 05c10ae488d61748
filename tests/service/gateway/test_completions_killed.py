"""Chat completions over kill -9: three unmodified clients that keep the conversation themselves, and a real daemon."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from agents import Agent as SdkAgent
from agents import OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import MessageEntry
from tests.agent.providers.all_providers import KEY
from tests.agent.providers.strict_server import Answer, Asked, Call, StrictServer
from tests.service.gateway.daemons import Process
from tests.service.gateway.test_completions import PIXEL, TOOL
from tests.service.gateway.test_conversations import package_at
from tests.service.gateway.test_responses_killed import daemon

pytestmark = [pytest.mark.anyio, pytest.mark.proof]

TURNS = 10
Turn = Callable[[str], Awaitable[str]]


def script(asked: Asked) -> Answer:
    last = asked.messages[-1]
    if last.is_user and "weather" in last.text:
        return Answer(calls=(Call("weather", {"city": "Oslo"}),))
    users = [message.text for message in asked.messages if message.is_user]
    return Answer(text=" | ".join(users))


def the_package(client: AsyncOpenAI, turns: list[Any]) -> Turn:
    async def turn(text: str) -> str:
        parts = [{"type": "text", "text": text}]
        if text.endswith("2"):
            parts.append({"type": "image_url", "image_url": {"url": PIXEL}})  # type: ignore[dict-item]
        turns.append({"role": "user", "content": parts})
        while True:
            made = await client.chat.completions.create(model="m", messages=turns, tools=[TOOL])
            said = made.choices[0].message
            turns.append(said.model_dump(exclude_none=True))
            if not said.tool_calls:
                return said.content or ""
            turns.extend({"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in said.tool_calls)

    return turn


def pydantic_ai(client: AsyncOpenAI, history: list[Any]) -> Turn:
    agent = PydanticAgent(OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client)))

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"rain in {city}"

    async def turn(text: str) -> str:
        run = await agent.run(text, message_history=history)
        history[:] = run.all_messages()
        return run.output

    return turn


def the_agents_sdk(client: AsyncOpenAI, history: list[Any]) -> Turn:
    @function_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"rain in {city}"

    set_tracing_disabled(True)
    agent = SdkAgent("teller", tools=[weather], model=OpenAIChatCompletionsModel("m", client))

    async def turn(text: str) -> str:
        run = await Runner.run(agent, [*history, {"role": "user", "content": text}])
        history[:] = run.to_input_list()
        return str(run.final_output)

    return turn


CLIENTS = {"package": the_package, "pydantic": pydantic_ai, "agents": the_agents_sdk}


@asynccontextmanager
async def lives(directory: Path, server: StrictServer) -> AsyncIterator[AsyncOpenAI]:
    async with daemon(directory, server) as one:
        await one.notice("READY=1")
        async with package_at(one.socket) as client:
            yield client
        await one.killed()


async def test_ten_turns_of_three_clients_at_once_survive_kills_and_nothing_is_doubled(short_path: Path) -> None:
    kept: dict[str, list[Any]] = {name: [] for name in CLIENTS}
    expected: dict[str, list[str]] = {name: [] for name in CLIENTS}

    async def talk(name: str, client: AsyncOpenAI, numbers: Sequence[int]) -> None:
        turn = CLIENTS[name](client, kept[name])
        for number in numbers:
            text = f"{name} {'weather ' if number % 4 == 1 else ''}{number}"
            expected[name].append(text)
            assert await turn(text) == " | ".join(expected[name])

    async with StrictServer(script, key=KEY) as server:
        for numbers in ((0, 1, 2), (3, 4, 5), (6, 7), (8, 9)):
            async with lives(short_path, server) as client, anyio.create_task_group() as tasks:
                for name in CLIENTS:
                    tasks.start_soon(talk, name, client, numbers)
        assert server.problems == []
    assert {name: len(texts) for name, texts in expected.items()} == dict.fromkeys(CLIENTS, TURNS)
    async with SessionManager(Process(short_path).workspace) as manager:
        sessions = await manager.list()
        assert len(sessions) == len(CLIENTS)
        for one in sessions:
            session = await manager.find(one.session_id)
            said = [entry async for entry in session.tree.read_entries() if isinstance(entry, MessageEntry)]
            texts = [entry.message.text for entry in said if entry.message.is_user]
            assert texts in expected.values()
            assert len(said) == 2 * TURNS + 2 * 3  # three turns call a tool
