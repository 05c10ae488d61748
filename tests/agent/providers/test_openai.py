"""What only the OpenAI provider has: the many ways in which servers of chat completions stream a reply."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from miniclaw_sessions.agent.provider import ModelEvent, ReasoningDelta, Reply, TextDelta
from miniclaw_sessions.agent.providers.service import ServiceProvider
from miniclaw_sessions.core.protocol.messages import Message, TextPart, ThinkingPart, ToolCall
from miniclaw_sessions.errors import ModelError
from miniclaw_sessions.files.formats.openai_chat import to_openai
from tests.agent.providers.all_providers import provider_for, reply_of
from tests.agent.providers.strict_server import Answer, StrictServer

pytestmark = pytest.mark.anyio

HELLO = Message.user("hello")


def piece(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m-2026", "choices": [choice]}


def fragment(
    index: int | None, call_id: str | None = None, name: str | None = None, arguments: str | None = None, **more: Any
) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    call = {"index": index, "id": call_id, "type": "function" if call_id else None, "function": function, **more}
    return piece(tool_calls=[{key: value for key, value in call.items() if value is not None}])


@pytest.fixture
async def server() -> AsyncIterator[StrictServer]:
    async with StrictServer() as server:
        yield server


@pytest.fixture
async def provider(server: StrictServer) -> AsyncIterator[ServiceProvider]:
    async with provider_for("openai", server) as provider:
        yield provider


@pytest.mark.parametrize(
    "pieces",
    [
        [  # as OpenAI streams: the name first, then arguments without it
            fragment(0, "a", "read", ""),
            fragment(0, arguments='{"pa'),
            fragment(0, arguments='th":1}'),
            fragment(1, "b", "write", ""),
            fragment(1, arguments="{}"),
        ],
        [  # interleaved
            fragment(0, "a", "read"),
            fragment(1, "b", "write"),
            fragment(0, arguments='{"path"'),
            fragment(1, arguments="{"),
            fragment(0, arguments=":1}"),
            fragment(1, arguments="}"),
        ],
        [  # whole calls, all with the index 0
            fragment(0, "a", "read", '{"path":1}'),
            fragment(0, "b", "write", "{}"),
        ],
        [  # no index at all
            fragment(None, "a", "read", '{"path'),
            fragment(None, arguments='":1}'),
            fragment(None, "b", "write", "{}"),
        ],
        [  # id and name repeated in every piece
            fragment(0, "a", "read", '{"path'),
            fragment(0, "a", "read", '":1}'),
            fragment(1, "b", "write", "{"),
            fragment(1, "b", "write", "}"),
        ],
    ],
)
async def test_fragments_of_calls_are_put_together(
    server: StrictServer, provider: ServiceProvider, pieces: list[dict[str, Any]]
) -> None:
    server.script = lambda _: Answer(raw=(piece(role="assistant", content=None), *pieces, piece("tool_calls")))
    reply = await reply_of(provider, HELLO)
    assert reply.tool_calls == (ToolCall("a", "read", '{"path":1}'), ToolCall("b", "write", "{}"))
    assert (reply.text, reply.stop_reason, reply.usage) == ("", "tool_calls", None)


async def test_what_a_service_wants_back_with_a_call_is_written_back(
    server: StrictServer, provider: ServiceProvider
) -> None:
    signature = {"google": {"thought_signature": "c2ln"}}
    server.script = lambda _: Answer(raw=(fragment(0, "a", "read", "{}", extra_content=signature), piece("tool_calls")))
    (written,) = to_openai([await reply_of(provider, HELLO)])
    assert written["tool_calls"][0]["extra_content"] == signature


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_what_a_service_shows_of_the_thinking_is_kept_as_thinking(
    server: StrictServer, provider: ServiceProvider, field: str
) -> None:
    thoughts = [piece(content=None, **{field: text}) for text in ("Let me", " see.")]
    said = (*thoughts, piece(content="It is"), piece(content=" noon."), piece(**{field: "Is it?"}), piece("stop"))
    server.script = lambda _: Answer(raw=(piece(role="assistant", content="", **{field: None}), *said))
    events = [event async for event in provider.generate([HELLO], [])]
    told = [(type(event), event.text) for event in events if isinstance(event, TextDelta | ReasoningDelta)]
    assert told == [
        (ReasoningDelta, "Let me"),
        (ReasoningDelta, " see."),
        (TextDelta, "It is"),
        (TextDelta, " noon."),
        (ReasoningDelta, "Is it?"),
    ]
    reply = await reply_of(provider, HELLO)
    assert reply.content == (ThinkingPart("Let me see."), TextPart("It is noon."), ThinkingPart("Is it?"))
    assert to_openai([reply]) == [{"role": "assistant", "content": "It is noon."}]


async def test_a_refusal_of_the_model_is_its_text(server: StrictServer, provider: ServiceProvider) -> None:
    server.script = lambda _: Answer(
        raw=(piece(role="assistant", refusal="I will"), piece(refusal=" not"), piece("stop"))
    )
    assert (await reply_of(provider, HELLO)).text == "I will not"


@pytest.mark.parametrize(
    "pieces",
    [[], [piece(content="half")], [piece(content="half"), "{not json"], [fragment(0, "a", "read", '{"pa')]],
)
async def test_a_stream_that_is_over_without_a_reason_to_stop_is_never_half_a_reply(
    server: StrictServer, provider: ServiceProvider, pieces: list[Any]
) -> None:
    server.script = lambda _: Answer(raw=tuple(pieces))
    told: list[ModelEvent] = []

    async def read() -> None:
        async for event in provider.generate([HELLO], []):
            told.append(event)  # noqa: PERF401 - those before the error count

    with pytest.raises(ModelError):
        await read()
    assert not any(isinstance(event, Reply) for event in told)
