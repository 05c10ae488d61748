"""The Agents SDK on our Responses: its model class with our base URL, before a service that checks what it is sent.

Tools, handoffs, streaming and structured output as in the SDK's examples, with restarts of the daemon in between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel

from miniclaw_sessions.agent.agent import Agent as Assistant
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from tests.agent.providers.all_providers import KEY, SERVICES, provider_for
from tests.agent.providers.strict_server import Answer, Asked, Call, StrictServer
from tests.serving import serving

pytestmark = pytest.mark.anyio
QUIET = RunConfig(tracing_disabled=True)


class Event(BaseModel):
    name: str
    participants: list[str]


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def script(asked: Asked) -> Answer:
    """A model that looks the weather up, hands Spanish over, and extracts an event where it is told to."""
    last = asked.messages[-1]
    if last.is_tool_result and "rain" in last.text:
        return Answer(text=f"It is {last.text}.")
    if last.text == "weather?":
        return Answer(text="Let me see.", calls=(Call("weather", {"city": "Oslo"}), Call("weather", {"city": "Rome"})))
    if "transfer_to_spanish" in asked.tools:
        return Answer(calls=(Call("transfer_to_spanish", {}),))
    if any(message.text.startswith("Hable") for message in asked.messages):
        return Answer(text="Hola")
    if last.text.startswith("extract"):
        return Answer(text='{"name": "fair", "participants": ["Ann", "Bob"]}')
    return Answer(text=" | ".join(message.text for message in asked.messages if message.is_user))


@asynccontextmanager
async def model_of(directory: Path, server: StrictServer, service: str = "openai") -> AsyncIterator[AsyncOpenAI]:
    """A daemon before a service, and the package's client on its socket."""
    socket = directory / "s"
    http = DefaultAsyncHttpxClient(transport=httpx2.AsyncHTTPTransport(uds=str(socket), verify=False))
    async with (
        provider_for(service, server, **({"thinking": None} if service in ("anthropic", "google") else {})) as provider,
        SessionManager(directory / "w") as manager,
        serving(manager, socket, Assistant(provider)),
        AsyncOpenAI(base_url="http://miniclaw/v1", api_key="any", http_client=http, max_retries=0) as client,
    ):
        yield client


def agent_on(client: AsyncOpenAI, **options: Any) -> Agent[Any]:
    return Agent(name="helper", model=OpenAIResponsesModel("gpt-5", client), **options)


@pytest.mark.parametrize("service", SERVICES)
async def test_tools_run_and_the_answer_follows_them(short_path: Path, service: str) -> None:
    async with StrictServer(script, key=KEY) as server, model_of(short_path, server, service) as client:
        agent = agent_on(client, instructions="Be brief.", tools=[weather])
        result = await Runner.run(agent, "weather?", auto_previous_response_id=True, run_config=QUIET)
        assert result.final_output in ("It is rain in Rome.", "It is rain in Oslo.")
        assert server.problems == []
        assert [tool for asked in server.requests for tool in asked.tools] == ["weather", "weather"]
        before = result.last_response_id
        again = await Runner.run(agent, "and you?", previous_response_id=before, run_config=QUIET)
        assert again.final_output == "weather? | and you?"
        assert server.problems == []


async def test_a_whole_conversation_may_be_sent_each_time(short_path: Path) -> None:
    async with StrictServer(script, key=KEY) as server, model_of(short_path, server) as client:
        agent = agent_on(client, tools=[weather], model_settings=ModelSettings(store=False))
        first = await Runner.run(agent, "weather?", run_config=QUIET)
        second = await Runner.run(
            agent, [*first.to_input_list(), {"role": "user", "content": "thanks"}], run_config=QUIET
        )
        assert second.final_output == "weather? | thanks"
        assert server.problems == []


async def test_one_agent_hands_over_to_another(short_path: Path) -> None:
    async with StrictServer(script, key=KEY) as server, model_of(short_path, server) as client:
        spanish = Agent[Any](name="spanish", instructions="Hable español.", model=OpenAIResponsesModel("gpt-5", client))
        triage = agent_on(client, handoffs=[spanish])
        for options in ({}, {"auto_previous_response_id": True}):
            result = await Runner.run(triage, "¿Hola?", run_config=QUIET, **options)  # type: ignore[arg-type]
            assert (result.final_output, result.last_agent.name) == ("Hola", "spanish")
        assert server.problems == []


async def test_an_answer_streams_with_its_tools(short_path: Path) -> None:
    async with StrictServer(script, key=KEY) as server, model_of(short_path, server) as client:
        result = Runner.run_streamed(agent_on(client, tools=[weather]), "weather?", run_config=QUIET)
        said, ran = "", []
        async for event in result.stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                said += event.data.delta
            elif event.type == "run_item_stream_event":
                ran.append(event.item.type)
        assert said == f"Let me see.{result.final_output}"
        calls = ["message_output_item", "tool_call_item", "tool_call_item"]
        assert ran == [*calls, "tool_call_output_item", "tool_call_output_item", "message_output_item"]
        assert server.problems == []


@pytest.mark.parametrize("service", SERVICES)
async def test_an_answer_has_the_structure_that_was_asked_for(short_path: Path, service: str) -> None:
    async with StrictServer(script, key=KEY) as server, model_of(short_path, server, service) as client:
        result = await Runner.run(agent_on(client, output_type=Event), "extract it", run_config=QUIET)
        assert result.final_output == Event(name="fair", participants=["Ann", "Bob"])
        assert "participants" in str(server.requests[0].body)  # the schema
        assert server.problems == []


async def test_a_conversation_of_the_service_is_one_of_ours_over_restarts(short_path: Path) -> None:
    async with StrictServer(script, key=KEY) as server:
        async with model_of(short_path, server) as client:
            made = await client.conversations.create()
            await Runner.run(agent_on(client, tools=[weather]), "weather?", conversation_id=made.id, run_config=QUIET)
        async with model_of(short_path, server) as client:
            agent = agent_on(client)
            result = await Runner.run(agent, "thanks", conversation_id=made.id, run_config=QUIET)
            assert result.final_output == "weather? | thanks"
            items = [item.type async for item in client.conversations.items.list(made.id, order="asc")]
            assert items == [
                *("message", "message", "function_call", "function_call", "function_call_output"),
                *("function_call_output", "message", "message", "message"),
            ]
        assert server.problems == []
        assert [message.text for message in server.requests[-1].messages if message.is_tool_result] == [
            *("rain in Oslo", "rain in Rome")
        ]


async def test_the_sdks_session_and_our_responses_keep_apart_what_they_keep(short_path: Path) -> None:
    async with StrictServer(script, key=KEY) as server, model_of(short_path, server) as client:
        session = OpenAIConversationsSession(openai_client=client)
        agent = agent_on(client, tools=[weather], model_settings=ModelSettings(store=False))
        await Runner.run(agent, "weather?", session=session, run_config=QUIET)
        result = await Runner.run(agent, "thanks", session=session, run_config=QUIET)
        assert result.final_output == "weather? | thanks"
        assert server.problems == []


def test_the_script_is_of_messages() -> None:
    asked = Asked("openai", "m", [Message.user("hi")], [], {}, "", 0)
    assert script(asked).text == "hi"
