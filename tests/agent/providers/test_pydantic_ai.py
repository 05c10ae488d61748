"""Any model by pydantic-ai's model layer, against a server that speaks and refuses as four services do."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.provider import ReasoningDelta, TextDelta
from miniclaw_sessions.agent.providers.configured import open_agent
from miniclaw_sessions.agent.providers.pydantic_ai import PydanticAIProvider
from miniclaw_sessions.agent.tools import calculator_tool
from miniclaw_sessions.config import load_settings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, TextPart, ThinkingPart, message_from_dict
from miniclaw_sessions.core.protocol.options import Options
from miniclaw_sessions.errors import (
    ConfigError,
    ContextOverflow,
    ModelAccessDenied,
    ModelError,
    ModelOverloaded,
    ModelRateLimited,
    ModelRefused,
)
from tests.agent.providers.all_providers import KEY, events_of, provider_for, reply_of
from tests.agent.providers.strict_server import Answer, Call, Refusal, StrictServer, in_turn

pytestmark = [pytest.mark.anyio, pytest.mark.proof]  # it needs pydantic-ai, which the quick round does without

HELLO = Message.user("hello")
CALLS = (Call("calculator", {"expression": "6*7"}),)
MODELS = {
    "openai": "openai-chat:m-2026",
    "openai-responses": "openai-responses:m-2026",
    "anthropic": "anthropic:m-2026",
    "google": "google:gemini-2.5-pro",
}


@pytest.fixture(params=list(MODELS))
def service(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def made(service: str, server: StrictServer, **options: Any) -> PydanticAIProvider:
    given = {"base_url": server.url_for(service), "api_key": KEY, "timeout_s": 6, **options}
    return PydanticAIProvider(MODELS[service], **given)


async def test_a_turn_with_thinking_and_tools_streams_is_kept_and_goes_back_as_it_was(
    service: str, server: StrictServer, tmp_path: Path
) -> None:
    thinking = {"anthropic": {"thinking": 2048}, "google": {"thinking": -1}}.get(service, {})
    for _ in range(2):
        server.script = in_turn(Answer(text="let me see", thinking="6 times 7", calls=CALLS), Answer(text="42 it is"))
        async with made(service, server, **thinking) as provider, SessionManager(tmp_path) as manager:
            session = await manager.get_or_create("telegram", 1)
            agent = Agent(provider, tools=[calculator_tool()], system_prompt="be kind")
            reply = await agent.reply(HELLO, session=session)
            assert (reply.text, server.problems, server.losses) == ("42 it is", [], [])
            assert reply.model == MODELS[service].split(":")[1]
            assert reply.usage is not None
            assert reply.usage.output_tokens == 2
            assert reply.usage.input_tokens + reply.usage.cache_read_tokens + reply.usage.cache_write_tokens > 50
    asked = server.requests[-1].messages
    said = [message.text.replace('{"return_value":"42"}', "42") for message in asked if not message.is_assistant]
    assert said == ["be kind", "hello", "42", "hello", "42"]  # pydantic-ai words Google's results so
    assert server.requests[0].tools == ["calculator"]
    if service == "openai":  # as DeepSeek's models demand it
        sent = [
            one.get("reasoning_content") for one in server.requests[-1].body["messages"] if one["role"] == "assistant"
        ]
        assert sent == ["6 times 7", None, "6 times 7"]
    if service in ("anthropic", "google"):
        kept = [part for one in asked if one.is_assistant for part in one.content if isinstance(part, ThinkingPart)]
        assert [part.thinking for part in kept] == ["6 times 7", "6 times 7"]


async def test_no_message_makes_it_fetch_an_address_of_this_machine(server: StrictServer) -> None:
    """Google's models are sent what an address has, and anybody may write fields of pydantic-ai's into a message."""
    fetched: list[bytes] = []

    async def serve(stream: SocketStream) -> None:
        async with stream:
            fetched.append(await stream.receive())
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nsecret")

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/secret.png"
        local = {"url": url, "force_download": "allow-local"}
        image = {"type": "image", "media_type": "image/png", "url": url, "pydantic-ai": local}
        document = {"type": "pydantic_ai_part", "part": {"kind": "document-url", "media_type": "text/plain", **local}}
        server.script = lambda _: Answer(text="nothing")
        async with made("google", server) as provider:
            for part in (image, document):
                message = message_from_dict({"role": "user", "content": [{"type": "text", "text": "what?"}, part]})
                with suppress(ModelError):
                    await reply_of(provider, message)
        tasks.cancel_scope.cancel()
    assert fetched == []


async def test_text_comes_as_it_is_said(service: str, server: StrictServer) -> None:
    server.script = in_turn(Answer(text="hello there, you"))
    async with made(service, server) as provider:
        *deltas, _ = await events_of(provider, [HELLO])
    assert [delta.text for delta in deltas if isinstance(delta, TextDelta)] == ["hello ", "there, ", "you"]


async def test_thinking_comes_as_it_is_thought(service: str, server: StrictServer) -> None:
    thinking = {"anthropic": {"thinking": 2048}, "google": {"thinking": -1}}.get(service, {})
    server.script = lambda _: Answer(text="42", thinking="6 times 7")
    async with made(service, server, **thinking) as provider:
        events = await events_of(provider, [HELLO])
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "6 times 7"


async def test_errors_are_ours_and_tell_nothing_of_the_key(service: str, server: StrictServer) -> None:
    refusals = {429: ModelRateLimited, 503: ModelOverloaded, 401: ModelAccessDenied, 404: ModelRefused}
    for status, kind in refusals.items():
        server.script = lambda _, status=status: Refusal(status)  # type: ignore[misc]  # a default, for the loop
        async with made(service, server) as provider:
            with pytest.raises(ModelError, match=f"status {status}") as caught:
                await reply_of(provider, HELLO)
        assert type(caught.value) is kind
        assert KEY not in str(caught.value) + str(caught.value.provider_message)


@pytest.mark.parametrize("ending", ["cut", "error"])
async def test_a_reply_that_breaks_off_is_an_error_and_never_half_a_reply(
    service: str, server: StrictServer, ending: Any
) -> None:
    server.script = lambda _: Answer(text="I was about to say much more", ending=ending, ending_after=4)
    async with made(service, server) as provider:
        with pytest.raises(ModelError):
            await reply_of(provider, HELLO)


async def test_a_conversation_that_is_too_large_is_an_overflow(service: str) -> None:
    async with StrictServer(context_tokens=1000) as server, made(service, server) as provider:
        with pytest.raises(ContextOverflow):
            await reply_of(provider, Message.user("hello " * 1000))


async def test_it_goes_on_with_what_others_said_and_shows_images(service: str, server: StrictServer) -> None:
    server.script = in_turn(Answer(text="let me see", calls=CALLS), Answer(text="a cat"))
    async with provider_for("openai", server) as other, made(service, server) as provider:
        asked = await reply_of(other, HELLO)
        results = [Message.tool_result(call, "42") for call in asked.tool_calls or ()]
        shown = Message.user((TextPart("what is this?"), ImagePart("image/png", "iVBORw0KGgo=")))
        assert (await reply_of(provider, HELLO, asked, *results, shown)).text == "a cat"
    assert server.problems + server.losses == []
    assert "iVBORw0KGgo" in json.dumps(server.requests[-1].body)


async def test_the_configuration_chooses_it_its_effort_and_its_key(
    server: StrictServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script = lambda _: Answer(text="hi")
    environ = {
        "MINICLAW_MODEL_PROVIDER": "pydantic-ai",
        "MINICLAW_MODEL_MODEL": "openai-responses:gpt-5",
        "MINICLAW_MODEL_THINKING": "low",
        "MINICLAW_MODEL_API_KEY_ENV": "THE_KEY",
        "MINICLAW_MODEL_BASE_URL": server.url_for("openai-responses"),
    }
    monkeypatch.setenv("THE_KEY", KEY)
    async with open_agent(load_settings(None, environ).settings) as agent:
        await agent.reply(HELLO)
    assert server.requests[0].body["reasoning"]["effort"] == "low"
    for name, sentence in {
        "openai": "pydantic-ai cannot use model.model = 'openai'",
        "nobody:m": "pydantic-ai cannot use model.model = 'nobody:m'",
        "openai:": "",
    }.items():
        if sentence:
            with pytest.raises(ConfigError, match=sentence):
                PydanticAIProvider(name, api_key=KEY)


async def test_a_key_in_the_environment_is_not_sent_to_another_address_than_its_services(
    server: StrictServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script, server.key = lambda _: Answer(text="hi"), ""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai-alone")
    environ = {
        "MINICLAW_MODEL_PROVIDER": "pydantic-ai",
        "MINICLAW_MODEL_MODEL": "openai-responses:gpt-5",
        "MINICLAW_MODEL_BASE_URL": server.url_for("openai-responses"),
    }
    async with open_agent(load_settings(None, environ).settings) as agent:
        await agent.reply(HELLO)
    assert [asked.key for asked in server.requests] == ["none"]


async def test_a_service_without_a_budget_for_thinking_says_so() -> None:
    with pytest.raises(ConfigError, match="openai-chat has no budget for thinking"):
        PydanticAIProvider("openai-chat:m", api_key=KEY, thinking=100)
    provider = PydanticAIProvider("openai-chat:m", api_key=KEY)
    assert repr(provider.with_options(Options(effort="low"))) == "<PydanticAIProvider openai-chat:m at openai-chat>"
    await provider.close()
