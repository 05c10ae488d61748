"""What only the Responses provider has: nothing is stored at the service, and reasoning is asked for, or not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from miniclaw_sessions.agent.provider import ReasoningDelta
from miniclaw_sessions.agent.providers.openai_responses import OpenAIResponsesProvider
from miniclaw_sessions.agent.tools import calculator_tool
from miniclaw_sessions.core.protocol.encoding import decode_message, encode_message
from miniclaw_sessions.core.protocol.messages import Message, ThinkingPart
from tests.agent.providers.all_providers import KEY, events_of, provider_for, reply_of
from tests.agent.providers.strict_rules import NO_REASONING, NO_SUMMARY
from tests.agent.providers.strict_server import Answer, Call, StrictServer, in_turn

pytestmark = pytest.mark.anyio

HELLO = Message.user("hello")


@pytest.fixture
async def server() -> AsyncIterator[StrictServer]:
    async with StrictServer(lambda _: Answer(text="ok")) as server:
        yield server


async def body_of(server: StrictServer, **options: Any) -> dict[str, Any]:
    async with provider_for("openai-responses", server, **options) as provider:
        await events_of(provider, [HELLO], calculator_tool())
    assert server.problems + server.losses == []
    return server.requests[-1].body


async def test_nothing_is_stored_and_the_reasoning_comes_along(server: StrictServer) -> None:
    body = await body_of(server)
    assert body["store"] is False
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["tools"][0]["strict"] is False
    assert body.keys() == {"model", "input", "stream", "store", "include", "reasoning", "tools"}
    assert body["reasoning"] == {"summary": "auto"}


async def test_a_model_that_does_not_reason_is_not_asked_to(server: StrictServer) -> None:
    body = await body_of(server, reasoning=False)
    assert not {"include", "reasoning"} & body.keys()


async def test_a_model_that_refuses_to_be_asked_for_reasoning_is_asked_once(server: StrictServer) -> None:
    server.script = lambda _: Answer(text="ok")
    async with OpenAIResponsesProvider("gpt-4o", base_url=server.url_for("openai-responses"), api_key=KEY) as provider:
        for _ in range(3):
            assert (await reply_of(provider, HELLO)).text == "ok"
    assert server.problems == [NO_REASONING, NO_SUMMARY]


async def test_the_reasoning_is_shown_as_it_comes(server: StrictServer) -> None:
    server.script = lambda _: Answer(text="42", thinking="6 times 7")
    async with provider_for("openai-responses", server) as provider:
        events = await events_of(provider, [HELLO])
    assert [event.text for event in events if isinstance(event, ReasoningDelta)] == ["6 times 7"]


async def test_effort_and_length_can_be_set(server: StrictServer) -> None:
    body = await body_of(server, effort="low", max_output_tokens=100)
    assert (body["reasoning"], body["max_output_tokens"]) == ({"summary": "auto", "effort": "low"}, 100)


async def test_the_items_of_a_reply_go_back_verbatim(server: StrictServer) -> None:
    call = Call("calculator", {"expression": "6*7"})
    server.script = in_turn(Answer(text="let me see", thinking="6 times 7", calls=(call, call)), Answer(text="42"))
    async with provider_for("openai-responses", server) as provider:
        reply = decode_message(encode_message(await reply_of(provider, HELLO)))
        assert isinstance(reply.content[0], ThinkingPart)
        assert reply.content[0].thinking == "6 times 7"
        assert reply.tool_calls is not None
        await reply_of(provider, HELLO, reply, *(Message.tool_result(call, "42") for call in reply.tool_calls))
    assert server.problems + server.losses == []
    items = server.requests[1].body["input"]
    assert [item.get("type") for item in items[1:5]] == ["reasoning", "message", "function_call", "function_call"]
    assert items[2]["content"] == [{"type": "output_text", "annotations": [], "logprobs": [], "text": "let me see"}]
    assert len({item["id"].split("_")[1] for item in items[1:5]}) == 1


async def test_reasoning_without_an_answer_is_kept_and_not_sent_alone(server: StrictServer) -> None:
    server.script = in_turn(Answer(thinking="for ever", cut_short=True), Answer(text="ok"))
    async with provider_for("openai-responses", server) as provider:
        reply = await reply_of(provider, HELLO)
        assert (reply.text, reply.stop_reason, reply.tool_calls) == ("", "max_output_tokens", None)
        await reply_of(provider, HELLO, reply, HELLO)
    assert server.problems + server.losses == []
