"""What only the Anthropic provider has: thinking with a budget, and what the service is asked to keep."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from miniclaw_sessions.agent.providers.anthropic import AnthropicProvider
from miniclaw_sessions.agent.tools import calculator_tool
from miniclaw_sessions.core.protocol.encoding import decode_message, encode_message
from miniclaw_sessions.core.protocol.messages import Message, TextPart, ThinkingPart, ToolCall
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.files.formats.anthropic import from_anthropic
from tests.agent.providers.all_providers import KEY, events_of, provider_for, reply_of
from tests.agent.providers.strict_server import Answer, Call, StrictServer, in_turn

pytestmark = pytest.mark.anyio

HELLO = Message.user("hello")
MARK = {"type": "ephemeral"}


@pytest.fixture
async def server() -> AsyncIterator[StrictServer]:
    async with StrictServer(lambda _: Answer(text="ok", thinking="hm")) as server:
        yield server


async def body_of(server: StrictServer, *messages: Message, **options: Any) -> dict[str, Any]:
    async with provider_for("anthropic", server, **options) as provider:
        await events_of(provider, messages, calculator_tool())
    assert server.problems + server.losses == []
    return server.requests[-1].body


# --- thinking --------------------------------------------------------------------------------------------------------


async def test_the_order_of_a_reply_and_what_was_redacted_survive_storage(server: StrictServer) -> None:
    call = Call("calculator", {"expression": "6*7"})
    server.script = in_turn(
        Answer(text="let me see", thinking="6 times 7", redacted=True, calls=(call,)), Answer(text="42")
    )
    async with provider_for("anthropic", server) as provider:
        reply = decode_message(encode_message(await reply_of(provider, HELLO)))
        assert [type(part) for part in reply.content] == [ThinkingPart, ThinkingPart, TextPart]
        assert [part.redacted for part in reply.content if isinstance(part, ThinkingPart)] == [False, True]
        assert reply.tool_calls is not None
        await reply_of(provider, HELLO, reply, Message.tool_result(reply.tool_calls[0], "42"))
    assert server.problems + server.losses == []
    kinds = [block["type"] for block in server.requests[1].body["messages"][1]["content"]]
    assert kinds == ["thinking", "redacted_thinking", "text", "tool_use"]


async def test_a_budget_is_added_to_what_the_answer_may_have(server: StrictServer) -> None:
    body = await body_of(server, HELLO, thinking=2000, max_tokens=100)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2000}
    assert body["max_tokens"] == 2100


async def test_a_model_may_think_as_it_sees_fit_or_not_at_all(server: StrictServer) -> None:
    assert (await body_of(server, HELLO, thinking="adaptive"))["thinking"] == {"type": "adaptive"}
    body = await body_of(server, HELLO, thinking=None)
    assert "thinking" not in body
    assert body["max_tokens"] == 8192


async def test_a_reply_that_was_begun_without_thinking_is_continued_without(server: StrictServer) -> None:
    call = ToolCall("call_1", "calculator", "{}")
    begun = [HELLO, Message.assistant("let me see", (call,)), Message.tool_result(call, "42")]
    assert "thinking" not in await body_of(server, *begun, thinking=2000)
    finished = [*begun, Message.assistant("42"), Message.user("thanks")]
    assert "thinking" in await body_of(server, *finished, thinking=2000)


@pytest.mark.parametrize("options", [{"thinking": 100}, {"max_tokens": 0}])
def test_options_out_of_bounds_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="at least 1024"):
        AnthropicProvider("m", api_key=KEY, **options)


# --- what the service keeps ------------------------------------------------------------------------------------------


async def test_the_service_is_asked_to_keep_the_system_prompt_and_the_conversation(server: StrictServer) -> None:
    body = await body_of(server, Message.system("be kind"), HELLO)
    assert body["system"] == [{"type": "text", "text": "be kind", "cache_control": MARK}]
    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": MARK}]}]


async def test_the_last_result_is_marked_and_no_other(server: StrictServer) -> None:
    calls = (ToolCall("1", "calculator", "{}"), ToolCall("2", "calculator", "{}"))
    results = [Message.tool_result(call, "42") for call in calls]
    body = await body_of(server, HELLO, Message.assistant("", calls), *results)
    assert [block.get("cache_control") for block in body["messages"][2]["content"]] == [None, MARK]
    assert str(body).count("cache_control") == 1


async def test_each_request_finds_what_the_one_before_left(server: StrictServer) -> None:
    said = [Message.system("be kind " * 40), Message.user("a question " * 40)]
    written = 0
    async with provider_for("anthropic", server) as provider:
        read = []
        for _ in range(4):
            reply = await reply_of(provider, *said)
            assert reply.usage is not None
            read.append((reply.usage.cache_read_tokens, reply.usage.input_tokens))
            written = reply.usage.cache_write_tokens
            said += [reply, Message.user("another one " * 40)]
    assert written > 100
    assert [cached for cached, _ in read] == sorted({cached for cached, _ in read})
    assert [fresh for _, fresh in read] == [0, 0, 0, 0]


async def test_without_the_option_nothing_is_marked(server: StrictServer) -> None:
    assert "cache_control" not in str(await body_of(server, Message.system("be kind"), HELLO, cache=False))


async def test_the_marks_of_another_program_are_not_sent(server: StrictServer) -> None:
    marked = {"type": "text", "text": "hi", "cache_control": MARK}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [marked], "cache_control": MARK}
    imported = from_anthropic(
        [
            {"role": "user", "content": [marked, marked, marked]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "x", "input": {}}]},
            {"role": "user", "content": [result, marked]},
        ],
        system=[marked],
    )
    for cache, marks in ((True, 2), (False, 0)):
        body = await body_of(server, *imported, cache=cache)
        assert str(body).count("cache_control") == marks
    assert str([encode_message(message) for message in imported]).count("cache_control") == 7
