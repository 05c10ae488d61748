"""What a model thinks, over `/v1/responses`: the real `openai` package, our gateway, and a service that shows it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.providers.service import ServiceProvider
from miniclaw_sessions.service.api.openai.shapes import EVENTS
from tests.agent.providers.all_providers import KEY, SERVICES, provider_for
from tests.agent.providers.strict_server import Answer, Call, StrictServer, in_turn
from tests.service.gateway.conftest import Served

pytestmark = pytest.mark.anyio

THOUGHT = "Let me see."
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather.",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}
OF_REASONING = [
    "response.output_item.added",
    "response.content_part.added",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def upstream() -> AsyncIterator[StrictServer]:
    async with StrictServer(key=KEY) as server:
        server.script = lambda _: Answer(thinking=THOUGHT, text="It is noon.")
        yield server


@pytest.fixture
async def provider(service: str, upstream: StrictServer) -> AsyncIterator[ServiceProvider]:
    async with provider_for(service, upstream) as one:
        yield one


@pytest.fixture
def agent(provider: ServiceProvider) -> Agent:
    return Agent(provider)


only_openai = pytest.mark.parametrize("service", ["openai"], indirect=True)
that_stream = pytest.mark.parametrize("service", ["openai", "anthropic", "google"], indirect=True)


def shown(item: Any) -> str:
    """What an item shows of the thinking."""
    return "".join(part.text for part in (item.content or item.summary))


async def test_what_a_model_thinks_is_an_item_of_the_response(client: AsyncOpenAI) -> None:
    whole = await client.responses.create(input="What time is it?")
    async with client.responses.stream(input="What time is it?", model="m") as stream:
        async for _ in stream:
            pass
        streamed = await stream.get_final_response()
    for response in (whole, streamed, await client.responses.retrieve(streamed.id)):
        assert [item.type for item in response.output] == ["reasoning", "message"]
        assert (shown(response.output[0]), response.output_text) == (THOUGHT, "It is noon.")


@that_stream
@pytest.mark.parametrize("behind", ["message", "function_call"])
async def test_what_a_model_thinks_is_streamed_before_what_it_says(
    client: AsyncOpenAI, upstream: StrictServer, behind: str
) -> None:
    if behind == "function_call":
        upstream.script = lambda _: Answer(thinking=THOUGHT, calls=(Call("weather"),))
    stream = await client.responses.create(input="And now?", tools=[WEATHER], stream=True)
    events: list[Any] = [event async for event in stream]
    deltas = [event for event in events if event.type == "response.reasoning_text.delta"]
    of_first = [event.type for event in events if getattr(event, "output_index", None) == 0 and event not in deltas[1:]]
    assert of_first == OF_REASONING
    assert "".join(event.delta for event in deltas) == THOUGHT
    last = events[-1]
    assert last.type == "response.completed"
    reasoning, said = last.response.output
    content = [{"type": "reasoning_text", "text": THOUGHT}]
    expected = {"id": reasoning.id, "type": "reasoning", "summary": [], "content": content}
    assert (reasoning.model_dump(exclude_unset=True), said.type) == (expected, behind)
    assert {event.item_id for event in deltas} == {reasoning.id}
    assert [event.item for event in events if event.type == "response.output_item.done"] == [reasoning, said]
    assert await client.responses.retrieve(last.response.id) == last.response


@only_openai
async def test_what_a_model_thinks_is_given_again_to_who_repeats_the_request(client: AsyncOpenAI) -> None:
    wanted: Any = {"input": "And now?", "stream": True, "extra_headers": {"idempotency-key": "k"}}
    first, again = [[event async for event in await client.responses.create(**wanted)] for _ in range(2)]
    assert first[-1].response == again[-1].response
    assert [event.type for event in again if getattr(event, "output_index", None) == 0] == OF_REASONING


@only_openai
async def test_reasoning_that_is_given_back_is_kept_from_a_service_that_takes_none(
    client: AsyncOpenAI, upstream: StrictServer
) -> None:
    response = await client.responses.create(input="What time is it?")
    given: Any = [item.model_dump(exclude_unset=True) for item in response.output]
    asked: Any = [{"role": "user", "content": "What time is it?"}, *given, {"role": "user", "content": "Why?"}]
    assert (await client.responses.create(input=asked)).status == "completed"
    sent = upstream.requests[-1].body["messages"]
    assert [(one["role"], one["content"]) for one in sent][-2:] == [("assistant", "It is noon."), ("user", "Why?")]


@only_openai
async def test_the_events_of_thinking_are_as_the_document_says(served: Served) -> None:
    stream = (await served.unix.post("/v1/responses", json={"input": "And now?", "stream": True})).text
    told = re.findall(r"^event: (.*)\ndata: (.*)$", stream, re.MULTILINE)
    assert "response.reasoning_text.delta" in dict(told)
    for name, data in told:
        shape: Any = EVENTS[name]
        event = msgspec.json.decode(data)
        msgspec.convert(event, shape)
        assert event.keys() == {field.name for field in msgspec.structs.fields(shape)}


@pytest.mark.parametrize("service", ["openai", "openai-responses"], indirect=True)
async def test_the_tokens_that_a_model_thought_with_are_in_the_usage(
    client: AsyncOpenAI, upstream: StrictServer
) -> None:
    thinking = Answer(thinking=THOUGHT, calls=(Call("weather"),))
    upstream.script = in_turn(thinking, Answer(thinking=THOUGHT * 2, text="It is noon."), Answer(text="Yes."))
    first = await client.responses.create(input="And now?", tools=[WEATHER])
    call: Any = first.output[-1]
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sun"}]
    second = await client.responses.create(input=output, previous_response_id=first.id, tools=[WEATHER])
    third = await client.responses.create(input="Sure?", previous_response_id=second.id)
    told = [one.usage and one.usage.output_tokens_details.reasoning_tokens for one in (first, second, third)]
    assert told == [len(THOUGHT) // 4, len(THOUGHT * 2) // 4, 0]


@that_stream
async def test_what_a_model_thinks_is_in_the_chunks_of_a_completion_before_its_text(client: AsyncOpenAI) -> None:
    asked: Any = [{"role": "user", "content": "And now?"}]
    stream = await client.chat.completions.create(
        model="m", messages=asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta.to_dict() for chunk in chunks if chunk.choices]
    kinds = [kind for delta in deltas for kind in ("reasoning_content", "content") if delta.get(kind)]
    assert kinds == sorted(kinds, reverse=True)  # all of the thinking comes first
    assert len(kinds) > len(set(kinds))  # in pieces
    assert "".join(str(delta.get("reasoning_content") or "") for delta in deltas) == THOUGHT
    whole = await client.chat.completions.create(model="m", messages=asked)
    assert whole.choices[0].message.to_dict()["reasoning_content"] == THOUGHT
    details = chunks[-1].usage and chunks[-1].usage.completion_tokens_details
    assert details is not None
    assert details == (whole.usage and whole.usage.completion_tokens_details)
