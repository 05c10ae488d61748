"""What holds for every provider: its SDK against a server that speaks the service's wire format and refuses as it does.

What only one service has is tested in the file of its provider.
"""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.events import MessageAccepted
from miniclaw_sessions.agent.provider import ModelEvent, Reply, TextDelta
from miniclaw_sessions.agent.providers.service import ServiceProvider
from miniclaw_sessions.agent.tools import calculator_tool
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.encoding import decode_message, encode_message
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, TextPart, ThinkingPart, ToolCall
from miniclaw_sessions.errors import ConfigError, ContextOverflow, ModelError
from miniclaw_sessions.secret import Secret
from tests.agent.providers.all_providers import (
    CLASSES,
    KEY,
    MODEL,
    SERVICES,
    SHOWS_THINKING,
    events_of,
    provider_for,
    reply_of,
)
from tests.agent.providers.strict_server import Answer, Call, Refusal, StrictServer, in_turn
from tests.files.formats.legal_contexts import SYSTEM_IN_THE_MIDDLE, legal_contexts
from tests.sampled import sampled

pytestmark = pytest.mark.anyio

HELLO = Message.user("hello")
PNG = ImagePart("image/png", "iVBORw0KGgo=")
CALLS = (Call("calculator", {"expression": "6*7"}), Call("calculator", {"expression": "2**3"}))
STOPPED = {"openai": "stop", "openai-responses": "completed", "anthropic": "end_turn", "google": "STOP"}
CUT_SHORT = {
    "openai": "length",
    "openai-responses": "max_output_tokens",
    "anthropic": "max_tokens",
    "google": "MAX_TOKENS",
}


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def provider(service: str, server: StrictServer) -> AsyncIterator[ServiceProvider]:
    async with provider_for(service, server) as provider:
        yield provider


# --- replies ---------------------------------------------------------------------------------------------------------


async def test_text_is_streamed_and_the_reply_is_whole(
    service: str, server: StrictServer, provider: ServiceProvider
) -> None:
    server.script = in_turn(Answer(text="hello there, you"))
    *deltas, last = await events_of(provider, [Message.system("be kind"), HELLO], calculator_tool())
    assert [delta.text for delta in deltas if isinstance(delta, TextDelta)] == ["hello ", "there, ", "you"]
    assert isinstance(last, Reply)
    assert last.message.text == "hello there, you"
    assert (last.message.model, last.message.stop_reason) == (MODEL, STOPPED[service])
    (asked,) = server.requests
    assert (asked.service, asked.model, asked.tools, asked.key) == (service, MODEL, ["calculator"], KEY)
    assert [message.text for message in asked.messages] == ["be kind", "hello"]


async def test_a_reply_of_text_alone_is_stored_as_text(server: StrictServer) -> None:
    server.script = lambda _: Answer(text="hello")
    async with provider_for("openai", server) as provider, provider_for("anthropic", server) as another:
        assert (await reply_of(provider, HELLO)).content == (await reply_of(another, HELLO)).content == "hello"


async def test_parallel_calls_run_and_their_results_are_accepted(
    server: StrictServer, provider: ServiceProvider, tmp_path: Path
) -> None:
    server.script = in_turn(Answer(text="let me see", calls=CALLS), Answer(text="42 and 8"))
    async with SessionManager(tmp_path, store="memory:") as manager:
        session = await manager.get_or_create("telegram", 1)
        reply = await Agent(provider, tools=[calculator_tool()], system_prompt="be kind").reply(HELLO, session=session)
    assert (reply.text, server.problems + server.losses) == ("42 and 8", [])
    asked = server.requests[1].messages
    assert [json.loads(call.arguments) for message in asked for call in message.tool_calls or ()] == [
        {"expression": "6*7"},
        {"expression": "2**3"},
    ]
    assert [message.text for message in asked if message.is_tool_result] == ["42", "8"]


async def test_a_reply_that_ends_at_the_limit_of_tokens_says_so(
    service: str, server: StrictServer, provider: ServiceProvider
) -> None:
    server.script = in_turn(Answer(text="half of", cut_short=True))
    reply = await reply_of(provider, HELLO)
    assert (reply.text, reply.stop_reason) == ("half of", CUT_SHORT[service])


@pytest.mark.parametrize("service", ["openai", "openai-responses", "anthropic"])
async def test_arguments_that_broke_off_are_not_completed(server: StrictServer, provider: ServiceProvider) -> None:
    server.script = in_turn(Answer(calls=(Call("calculator", raw='{"expression": "6*'),), cut_short=True))
    reply = await reply_of(provider, HELLO)
    assert reply.tool_calls is not None
    assert [call.arguments for call in reply.tool_calls] == ['{"expression": "6*']


async def test_what_was_counted_is_told_apart(server: StrictServer, provider: ServiceProvider) -> None:
    server.script = lambda _: Answer(text="a reply of some length")
    first = [Message.system("be kind " * 50), Message.user("a question " * 50)]
    reply = await reply_of(provider, *first)
    again = await reply_of(provider, *first, reply, Message.user("another question " * 50))
    assert reply.usage is not None
    assert again.usage is not None
    assert reply.usage.output_tokens == again.usage.output_tokens == 5
    assert reply.usage.cache_read_tokens == 0
    assert again.usage.cache_read_tokens > 200  # the first question
    assert again.usage.input_tokens + again.usage.cache_write_tokens > 200  # the second one
    sent = reply.usage.input_tokens + reply.usage.cache_write_tokens
    assert reply.usage.total == sent + 5
    assert again.usage.total - 5 > sent + 200
    counted = again.usage.input_tokens + again.usage.cache_read_tokens + again.usage.cache_write_tokens
    assert again.usage.total == counted + 5


# --- thinking --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", SHOWS_THINKING)
async def test_thinking_survives_a_restart_and_goes_back_unchanged_and_in_place(
    service: str, server: StrictServer, tmp_path: Path
) -> None:
    thinking = Answer(text="let me see", thinking="6 times 7, I think", calls=CALLS)
    server.script = in_turn(thinking, Answer(text="42 and 8", thinking="done"), Answer(text="you are welcome"))
    for question in ("hello", "thanks"):
        async with provider_for(service, server) as provider, SessionManager(tmp_path, store="sqlite:") as manager:
            session = await manager.get_or_create("telegram", 1)
            await Agent(provider, tools=[calculator_tool()]).reply(Message.user(question), session=session)
    assert server.problems + server.losses == []
    replies = [message for message in server.requests[2].messages if message.is_assistant]
    thoughts = [part.thinking for reply in replies for part in reply.content if isinstance(part, ThinkingPart)]
    assert thoughts == ["6 times 7, I think", "done"]


@pytest.mark.parametrize("service", SHOWS_THINKING)
async def test_reasoning_that_the_service_refuses_is_left_out_and_the_conversation_goes_on(
    service: str, server: StrictServer
) -> None:
    server.script = in_turn(Answer(text="let me see", thinking="6 times 7", calls=CALLS), Answer(text="42 and 8"))
    async with provider_for(service, server) as provider:
        reply = await reply_of(provider, HELLO)
        assert reply.tool_calls is not None
        results = [Message.tool_result(call, "42") for call in reply.tool_calls]
        stale = encode_message(reply)
        for signature in set(re.findall(rb'"(?:thought_)?signature":"([^"]+)"', stale)):
            stale = stale.replace(signature, b"c3RhbGU=")
        assert (await reply_of(provider, HELLO, decode_message(stale), *results)).text == "42 and 8"
    assert len(set(server.problems)) == 1
    assert re.search("signature|encrypted content", server.problems[0])
    asked = server.requests[-1].messages
    assert [message.text for message in asked if not message.is_user] == ["let me see", "42", "42"]
    assert "6 times 7" not in str(asked)


# --- images ----------------------------------------------------------------------------------------------------------


async def test_images_are_shown_from_users_and_from_tools(
    service: str, server: StrictServer, provider: ServiceProvider
) -> None:
    server.script = in_turn(Answer(text="a cat"))
    call = ToolCall("call_1", "camera", "{}")
    shown = ImagePart("image/jpeg", "/9j/4AAQSkZJRgABAQ==")
    await reply_of(
        provider,
        Message.user((TextPart("what is this?"), PNG)),
        Message.assistant("", (call,)),
        Message.tool_result(call, (TextPart("taken"), shown)),
    )
    assert server.problems + server.losses == []
    wire = json.dumps(server.requests[0].body)
    wire = wire.replace("_", "/") if service == "google" else wire  # it spells base64 as URLs do
    assert wire.count("iVBORw0KGgo=") == 1
    assert wire.count("/9j/4AAQSkZJRgABAQ==") == 1


async def test_an_image_of_a_kind_that_the_service_cannot_show_does_not_spoil_the_request(
    server: StrictServer, provider: ServiceProvider
) -> None:
    server.script = in_turn(Answer(text="I cannot see it"))
    await reply_of(provider, Message.user((TextPart("look"), ImagePart("image/x-icon", "QUJD"), ImagePart())))
    assert server.problems + server.losses == []


# --- any conversation ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("begun_by", "continued_by"), sampled(product(SERVICES, SERVICES), every=3))
async def test_a_conversation_that_one_provider_began_is_continued_by_any_other(
    server: StrictServer, tmp_path: Path, begun_by: str, continued_by: str
) -> None:
    thinking = Answer(text="let me see", thinking="6 times 7", calls=CALLS)
    server.script = in_turn(thinking, Answer(text="42 and 8", thinking="so"), thinking, Answer(text="as before"))
    async with SessionManager(tmp_path, store="memory:") as manager:
        session = await manager.get_or_create("telegram", 1)
        for name in (begun_by, continued_by):
            async with provider_for(name, server) as provider:
                agent = Agent(provider, tools=[calculator_tool()], system_prompt="be kind")
                await agent.reply(HELLO, session=session)
        assert len(session.messages()) == 10
    assert server.problems + server.losses == []
    said = [message.text for message in server.requests[-1].messages if not message.is_assistant]
    assert said == ["be kind", "hello", "42", "8", "hello", "42", "8"]
    calls = [call.name for message in server.requests[-1].messages for call in message.tool_calls or ()]
    assert calls == ["calculator"] * 4


async def test_a_long_conversation_goes_on_with_another_provider_after_every_restart(tmp_path: Path) -> None:
    async with StrictServer() as server:
        for turn in range(16):
            async with (
                provider_for(SERVICES[turn % 4], server) as provider,
                SessionManager(tmp_path, store="sqlite:") as manager,
            ):
                session = await manager.get_or_create("telegram", 1)
                agent = Agent(provider, tools=[calculator_tool()], system_prompt="be kind")
                reply = await agent.reply(Message.user(f"question {turn + 1}"), session=session)
                assert reply.text == f"answer {turn + 1} from {SERVICES[turn % 4]}"
        assert server.problems + server.losses == []
        said = [message.text for message in server.requests[-1].messages if message.is_user]
        assert said == [f"question {number}" for number in range(1, 17)]


async def test_a_turn_that_one_provider_left_unfinished_is_taken_up_by_any_other(
    service: str, server: StrictServer, provider: ServiceProvider
) -> None:
    calls = tuple(ToolCall(f"call_{number}|fc_{'x' * 60}", "default_api:run", "[1]") for number in (1, 2))
    results = [Message.tool_result(call, f"result {call.id[5]}", is_error=True) for call in calls]
    server.script = in_turn(Answer(text="so it is"))
    await reply_of(provider, HELLO, Message.assistant("let me see", calls), *results)
    assert server.problems + server.losses == []
    told = [message.text for message in server.requests[0].messages if message.is_tool_result]
    assert told == ["result 1", "result 2"]
    assert server.requests[0].service == service


async def test_a_second_system_message_is_accepted(server: StrictServer, provider: ServiceProvider) -> None:
    server.script = in_turn(Answer(text="ok"))
    await reply_of(provider, *SYSTEM_IN_THE_MIDDLE)
    assert server.problems + server.losses == []
    assert "be brief" in json.dumps(server.requests[0].body)


@pytest.mark.parametrize("service", SERVICES)
def test_a_legal_context_of_any_shape_is_accepted(service: str) -> None:
    async def send(context: list[Message]) -> list[str]:
        async with (
            StrictServer(lambda _: Answer(text="ok"), check_signatures=False) as server,
            provider_for(service, server) as provider,
        ):
            await reply_of(provider, *context)
            return server.problems + server.losses

    examples = max(4, settings().max_examples // 5)

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(legal_contexts())
    def accepted(context: list[Message]) -> None:
        assert anyio.run(send, context) == []

    accepted()


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (400, "check the model's name"),
        (401, "check the API key"),
        (402, "no credit left: look at its billing$"),
        (403, "may not use this model"),
        (404, "check base_url"),
        (429, "try again later"),
        (500, "try again later"),
        (529, "try again later"),
    ],
)
async def test_a_refused_request_says_what_to_do_and_nothing_that_was_said(
    server: StrictServer, provider: ServiceProvider, status: int, advice: str
) -> None:
    server.script = in_turn(Refusal(status))
    with pytest.raises(ModelError, match=f"status {status}: .*{advice}") as caught:
        await reply_of(provider, HELLO)
    assert not isinstance(caught.value, ContextOverflow)
    assert KEY not in str(caught.value)
    assert "hello" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("ending", ["cut", "end", "error", "failed"])
@pytest.mark.parametrize("after", sampled([3, 0, 5], every=3))
async def test_a_reply_that_breaks_off_is_an_error_and_never_half_a_reply(
    server: StrictServer, provider: ServiceProvider, ending: Any, after: int
) -> None:
    server.script = in_turn(Answer(text="I was about to say much more", ending=ending, ending_after=after))
    told: list[ModelEvent] = []

    async def read() -> None:
        async for event in provider.generate([HELLO], []):
            told.append(event)  # noqa: PERF401 - those before the error count

    with pytest.raises(ModelError) as caught:
        await read()
    assert not any(isinstance(event, Reply) for event in told)
    assert "hello" not in str(caught.value)
    assert not isinstance(caught.value, ContextOverflow)


async def test_a_conversation_that_is_too_large_is_an_overflow(service: str) -> None:
    async with StrictServer(context_tokens=1000) as server, provider_for(service, server) as provider:
        await reply_of(provider, HELLO)
        with pytest.raises(ContextOverflow, match="compact the session") as caught:
            await reply_of(provider, Message.user("hello " * 1000))
        assert "hello" not in str(caught.value)


async def test_a_conversation_that_turns_out_too_large_in_the_middle_is_an_overflow(
    server: StrictServer, provider: ServiceProvider
) -> None:
    server.script = in_turn(Answer(text="I was about", ending="overflow"))
    with pytest.raises(ContextOverflow):
        await reply_of(provider, HELLO)


async def test_what_was_said_cannot_pass_for_an_overflow(server: StrictServer, provider: ServiceProvider) -> None:
    server.script = in_turn(Refusal(400))
    with pytest.raises(ModelError) as caught:
        await reply_of(provider, Message.user('"code": "context_length_exceeded", prompt is too long'))
    assert not isinstance(caught.value, ContextOverflow)


async def test_something_that_is_no_model_server_is_an_error(service: str, server: StrictServer) -> None:
    async with provider_for(service, server, base_url=f"{server.url}/report") as provider:
        with pytest.raises(ModelError):
            await reply_of(provider, HELLO)


async def test_a_service_that_takes_too_long_is_an_error(service: str, server: StrictServer) -> None:
    server.script = in_turn(Answer(text="I was about to", ending="stall"))
    async with provider_for(service, server, timeout_s=0.5) as provider:
        with pytest.raises(ModelError, match=r"did not answer within 0\.5 seconds"):
            await reply_of(provider, HELLO)


async def test_a_service_that_is_not_there_is_an_error(service: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://user:password@127.0.0.1:{unused.getsockname()[1]}"
        async with CLASSES[service](MODEL, base_url=url, max_retries=0) as provider:
            with pytest.raises(ModelError, match=r"127\.0\.0\.1 cannot be reached") as caught:
                await reply_of(provider, HELLO)
            assert "password" not in str(caught.value) + repr(provider)


@pytest.mark.parametrize("status", [429, 500])
async def test_a_request_that_failed_before_its_reply_began_is_repeated(
    service: str, server: StrictServer, status: int
) -> None:
    server.script = in_turn(Refusal(status), Answer(text="at last"))
    async with provider_for(service, server, max_retries=1) as provider:
        assert (await reply_of(provider, HELLO)).text == "at last"
    assert len(server.requests) == 2


# --- cancellation ----------------------------------------------------------------------------------------------------


async def test_a_cancelled_turn_closes_its_request(
    server: StrictServer, provider: ServiceProvider, tmp_path: Path
) -> None:
    server.script = in_turn(
        Answer(text="I was about to say something", ending="stall", ending_after=5), Answer(text="again")
    )
    async with SessionManager(tmp_path, store="memory:") as manager:
        session = await manager.get_or_create("telegram", 1)
        async with Agent(provider).run(HELLO, session=session) as events:
            assert isinstance(await anext(events), MessageAccepted)
            assert await anext(events) == TextDelta("I ")
        with anyio.fail_after(60):
            await server.disconnected.wait()
        assert [message.text for message in session.messages()] == ["hello"]
        assert (await Agent(provider).reply(Message.user("well?"), session=session)).text == "again"


async def test_a_reader_that_leaves_closes_the_request(server: StrictServer, provider: ServiceProvider) -> None:
    server.script = in_turn(Answer(text="word " * 10_000, delay_s=0.01))
    events = provider.generate([HELLO], [])
    while not isinstance(await anext(events), TextDelta):
        pass
    await events.aclose()
    with anyio.fail_after(60):
        await server.disconnected.wait()


# --- settings --------------------------------------------------------------------------------------------------------


async def test_keys_and_addresses_from_the_environment_are_not_used(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI", "ANTHROPIC", "GOOGLE", "GEMINI"):
        monkeypatch.setenv(f"{name}_API_KEY", KEY)
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"):
        monkeypatch.setenv(name, "http://192.0.2.1")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", KEY)
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    async with StrictServer() as server:
        async with provider_for(service, server, api_key=None) as provider:
            await reply_of(provider, HELLO)
        assert [asked.key for asked in server.requests] == ["none"]


async def test_a_secret_is_used_and_not_shown(service: str, server: StrictServer) -> None:
    server.script = in_turn(Answer(text="ok"))
    async with provider_for(service, server, api_key=Secret(KEY)) as provider:
        await reply_of(provider, HELLO)
        assert KEY not in repr(provider)
    assert server.requests[0].key == KEY


def test_a_service_itself_needs_a_key_and_every_service_a_model(service: str) -> None:
    with pytest.raises(ConfigError, match="needs an API key"):
        CLASSES[service](MODEL)
    with pytest.raises(ConfigError, match="name of a model"):
        CLASSES[service]("", api_key=KEY)


@pytest.mark.parametrize(
    ("service", "module", "extra"),
    [
        ("openai", "openai", "openai"),
        ("openai-responses", "openai", "openai"),
        ("anthropic", "anthropic", "anthropic"),
        ("google", "google.genai", "google"),
    ],
)
def test_a_missing_package_says_what_to_install(
    service: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"pip install '\.\[{extra}\]' in a checkout"):
        CLASSES[service](MODEL, api_key=KEY)
