"""What only the Google provider has: calls without ids, signatures behind texts, answers that are not let through."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from miniclaw_sessions.core.protocol.encoding import decode_message, encode_message
from miniclaw_sessions.core.protocol.messages import Message, OtherPart, Role, TextPart, ToolCall
from miniclaw_sessions.core.protocol.options import Options
from miniclaw_sessions.errors import ModelError
from miniclaw_sessions.files.formats.google import SKIP_VALIDATION
from tests.agent.providers.all_providers import events_of, provider_for, reply_of
from tests.agent.providers.strict_server import Answer, Asked, Call, StrictServer, in_turn

pytestmark = pytest.mark.anyio

HELLO = Message.user("hello")
CALLS = (Call("calculator", {"expression": "6*7"}), Call("calculator", {"expression": "2**3"}))


@pytest.fixture
async def server() -> AsyncIterator[StrictServer]:
    async with StrictServer(lambda _: Answer(text="ok", thinking="hm")) as server:
        yield server


async def test_calls_without_ids_are_answered_in_their_order(server: StrictServer) -> None:
    server.script = in_turn(Answer(calls=CALLS, with_ids=False), Answer(text="42 and 8"))
    async with provider_for("google", server) as provider:
        reply = decode_message(encode_message(await reply_of(provider, HELLO)))
        assert reply.tool_calls is not None
        assert len({call.id for call in reply.tool_calls}) == 2
        results = [Message.tool_result(call, text) for call, text in zip(reply.tool_calls, ("42", "8"), strict=True)]
        await reply_of(provider, HELLO, reply, *results)
    assert server.problems + server.losses == []
    answers = server.requests[1].body["contents"][2]["parts"]
    assert [answer["functionResponse"]["response"]["output"] for answer in answers] == ["42", "8"]
    assert all("id" not in answer["functionResponse"] for answer in answers)


async def test_a_signature_behind_a_text_stays_in_a_part_of_its_own(server: StrictServer) -> None:
    server.script = in_turn(Answer(text="hello there"), Answer(text="ok"))
    async with provider_for("google", server) as provider:
        reply = decode_message(encode_message(await reply_of(provider, HELLO)))
        assert isinstance(reply.content, tuple)
        assert [part.text for part in reply.content if isinstance(part, TextPart)] == ["hello there", ""]
        await reply_of(provider, HELLO, reply, HELLO)
    assert server.problems + server.losses == []
    first, second = server.requests[1].body["contents"][1]["parts"]
    assert (first, second["text"]) == ({"text": "hello there"}, "")
    assert second["thoughtSignature"]


async def test_calls_of_other_models_are_sent_with_the_stand_in_for_a_signature(server: StrictServer) -> None:
    call = ToolCall("call_1", "calculator", "{}")
    async with provider_for("google", server) as provider:
        await reply_of(provider, HELLO, Message.assistant("", (call,)), Message.tool_result(call, "42"))
    assert server.problems + server.losses == []
    assert server.requests[0].body["contents"][1]["parts"][0]["thoughtSignature"] == SKIP_VALIDATION


async def test_thoughts_are_asked_for_only_with_a_budget(server: StrictServer) -> None:
    for thinking, asked in ((None, None), (0, (False, 0)), (500, (True, 500)), (-1, (True, -1))):
        async with provider_for("google", server, thinking=thinking, max_output_tokens=100) as provider:
            await reply_of(provider, HELLO)
        config = server.requests[-1].body["generationConfig"]
        assert config["maxOutputTokens"] == 100
        given = config.get("thinkingConfig")
        assert asked == (given and (given["include_thoughts"], given["thinking_budget"]))


async def test_newer_models_think_at_a_level_in_place_of_a_budget(server: StrictServer) -> None:
    async with provider_for("google", server, thinking=500) as provider:
        await reply_of(provider.with_options(Options(effort="low")), HELLO)
    given = server.requests[-1].body["generationConfig"]["thinkingConfig"]
    assert given == {"include_thoughts": True, "thinking_level": "LOW"}


async def test_a_conversation_that_the_service_blocks_is_an_error(server: StrictServer) -> None:
    server.script = in_turn(Answer(blocked=True))
    async with provider_for("google", server) as provider:
        with pytest.raises(ModelError, match="refused to let m-2026 answer"):
            await reply_of(provider, HELLO)


async def test_a_part_that_the_package_does_not_know_is_an_error_that_says_so(server: StrictServer) -> None:
    unknown = Message(Role.ASSISTANT, (OtherPart({"hologram": {"secret": "x"}}),), extra={"google": {}})
    async with provider_for("google", server) as provider:
        with pytest.raises(ModelError, match="does not know; update it") as caught:
            await reply_of(provider, HELLO, unknown, HELLO)
    assert "secret" not in str(caught.value)


async def test_requests_at_the_same_time_are_closed_each_for_itself(server: StrictServer) -> None:
    def script(asked: Asked) -> Answer:
        leaves = asked.messages[0].text == "leave"
        return Answer(text="word " * (10_000 if leaves else 200), delay_s=0.001)

    server.script = script
    async with provider_for("google", server) as provider, anyio.create_task_group() as tasks:
        told: list[int] = []

        async def stay() -> None:
            told.append(len(await events_of(provider, [Message.user("stay")])))

        leaving = provider.generate([Message.user("leave")], [])
        await anext(leaving)
        tasks.start_soon(stay)
        await anyio.lowlevel.checkpoint()
        await leaving.aclose()
    assert told == [201]
    assert server.disconnected.is_set()
