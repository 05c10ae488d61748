"""A model's reply is bounded in bytes and time, whatever a service sends; and its own sentence reaches who asked."""

from __future__ import annotations

import gzip
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from structlog.testing import capture_logs

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.model_request import ReplyLimits
from miniclaw_sessions.agent.provider import ModelEvent, TextDelta
from miniclaw_sessions.agent.providers.configured import open_agent
from miniclaw_sessions.agent.providers.trace_headers import trace_headers
from miniclaw_sessions.agent.summarizing import summarizer_of
from miniclaw_sessions.agent.tools import Tool, calculator_tool
from miniclaw_sessions.channels.base import Incoming, NotAnswered, Reason
from miniclaw_sessions.config import ModelSettings, Settings, load_settings
from miniclaw_sessions.errors import ModelError
from tests.agent.providers.all_providers import CLASSES, KEY, MODEL, SERVICES, provider_for, reply_of
from tests.agent.providers.strict_server import Answer, Asked, Refusal, StrictServer, in_turn
from tests.sampled import sampled

pytestmark = pytest.mark.anyio

HELLO = Message.user("hello")
BOUND = 200_000
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"


@pytest.fixture(params=sampled(SERVICES, every=2))
def service(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@asynccontextmanager
async def serving(answer: Callable[[SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    """The URL of a server that says what it likes, and goes on until nobody listens."""

    async def handle(stream: SocketStream) -> None:
        async with stream:
            try:
                await stream.receive()
                await answer(stream)
            except (anyio.BrokenResourceError, anyio.EndOfStream):
                pass

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        tasks.cancel_scope.cancel()


async def assert_cut_off(service: str, answer: Callable[[SocketStream], Awaitable[None]]) -> None:
    async with serving(answer) as url:
        options = {"base_url": url, "api_key": KEY, "max_retries": 0, "max_reply_bytes": BOUND}
        async with CLASSES[service](MODEL, **options) as provider:
            # Google's own library may give up first, at a line that it does not know
            told = "sent more than it may, and was cut off|cannot be read"
            with anyio.fail_after(120), pytest.raises(ModelError, match=told):
                await reply_of(provider, HELLO)


async def test_a_line_without_end_is_cut_off(service: str) -> None:
    async def answer(stream: SocketStream) -> None:
        await stream.send(HEAD + b"\r\ndata: ")
        while True:
            await stream.send(b"x" * 65_536)

    await assert_cut_off(service, answer)


async def test_lines_without_end_are_cut_off(service: str) -> None:
    async def answer(stream: SocketStream) -> None:
        await stream.send(HEAD + b"\r\n")
        while True:
            await stream.send(b": nothing yet\n\n" * 4096)

    await assert_cut_off(service, answer)


async def test_a_compressed_reply_is_not_unpacked(service: str) -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)

    async def answer(stream: SocketStream) -> None:
        length = b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(bomb)
        await stream.send(HEAD + length + bomb)

    await assert_cut_off(service, answer)


class Parrot:
    """A model that repeats itself for ever."""

    name = "test"
    model = "parrot"

    def __init__(self, pause_s: float = 0.0) -> None:
        self.is_closed = False
        self._pause_s = pause_s

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        del messages, tools
        try:
            while True:
                await anyio.sleep(self._pause_s)
                yield TextDelta("again and " * 100)
        finally:
            self.is_closed = True


async def test_a_model_that_repeats_itself_for_ever_is_cut_off(tmp_path: Path) -> None:
    parrot = Parrot()
    async with SessionManager(tmp_path, store="memory:") as manager:
        session = await manager.get_or_create("telegram", 1)
        with pytest.raises(ModelError, match=r"model\.max_reply_bytes"):
            await Agent(parrot, limits=ReplyLimits(max_bytes=50_000)).reply(HELLO, session=session)
        assert parrot.is_closed
        assert [message.text for message in session.messages()] == ["hello"]


async def test_a_model_that_drips_for_ever_is_cut_off() -> None:
    parrot = Parrot(pause_s=0.001)
    with pytest.raises(ModelError, match=r"model\.reply_timeout_s"):
        await Agent(parrot, limits=ReplyLimits(max_bytes=2**40, timeout_s=0.05)).reply(HELLO)
    assert parrot.is_closed


async def test_a_summary_is_bounded_too() -> None:
    with pytest.raises(ModelError, match=r"model\.max_reply_bytes"):
        await summarizer_of(Parrot(), limits=ReplyLimits(max_bytes=50_000))([HELLO])


# --- what the service says -------------------------------------------------------------------------------------------

SENTENCE = 'model "llama9" not found, try pulling it first'


async def test_the_service_s_own_sentence_reaches_who_asked_and_no_log(service: str) -> None:
    sentence = f"{SENTENCE} (key {KEY})\x1b[31m"
    async with StrictServer(in_turn(Refusal(404, sentence))) as server, provider_for(service, server) as provider:
        with capture_logs() as records, pytest.raises(ModelError) as caught:
            await reply_of(provider, HELLO)
    assert caught.value.provider_message == f"{SENTENCE} (key ***)\\x1b[31m"
    assert "llama9" not in str(caught.value) + repr(records)
    failed = NotAnswered(Incoming("1", HELLO), Reason.FAILED, caught.value)
    assert SENTENCE in failed.text


@pytest.mark.parametrize("body", [b'{"error": "%s"}', b'{"detail": "%s"}', b'{"message": "%s"}', b"%s"])
async def test_a_sentence_is_found_wherever_a_server_puts_it(body: bytes) -> None:
    told = body % b"out of credits"

    async def answer(stream: SocketStream) -> None:
        head = b"HTTP/1.1 402 Payment Required\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        await stream.send(head % len(told) + told)

    async with serving(answer) as url, CLASSES["openai"](MODEL, base_url=url, max_retries=0) as provider:
        with pytest.raises(ModelError) as caught:
            await reply_of(provider, HELLO)
    assert caught.value.provider_message == "out of credits"


# --- models without tools --------------------------------------------------------------------------------------------


async def test_a_model_that_takes_no_tools_still_answers(service: str) -> None:
    def script(asked: Asked) -> Answer | Refusal:
        return Refusal(400, f"{MODEL} does not support tools") if asked.tools else Answer(text="without tools")

    async with StrictServer(script) as server, provider_for(service, server) as provider:
        agent = Agent(provider, tools=[calculator_tool()])
        assert (await agent.reply(HELLO)).text == "without tools"
        assert (await agent.reply(HELLO)).text == "without tools"
        assert [bool(asked.tools) for asked in server.requests] == [True, False, False]  # and is asked only once


@pytest.mark.parametrize("behind", [0, 200])
async def test_words_in_one_chat_take_the_tools_from_no_other(service: str, behind: int) -> None:
    quoting = "x" * behind + "wrong: 'This model does not support tools'"

    def script(asked: Asked) -> Answer | Refusal:
        return Refusal(400, quoting) if "does not support tools" in asked.messages[-1].text else Answer(text="hi")

    async with StrictServer(script) as server, provider_for(service, server) as provider:
        agent = Agent(provider, tools=[calculator_tool()])
        with pytest.raises(ModelError):
            await agent.reply(Message.user("This model does not support tools"))
        assert (await agent.reply(HELLO)).text == "hi"
        assert [bool(asked.tools) for asked in server.requests] == [True, *([] if behind else [False]), True]


async def test_a_refusal_that_only_quotes_is_not_about_tools(service: str) -> None:
    quoting = "x" * 200 + "This model does not support tools"

    def script(asked: Asked) -> Answer | Refusal:
        return Refusal(400, quoting) if asked.tools else Answer(text="hi")

    async with StrictServer(script) as server, provider_for(service, server) as provider:
        with pytest.raises(ModelError):
            await Agent(provider, tools=[calculator_tool()]).reply(HELLO)


async def test_tools_can_be_switched_off() -> None:
    async with StrictServer(lambda _: Answer(text="hi")) as server:
        settings = Settings(model=ModelSettings(model=MODEL, base_url=server.url_for("openai"), tools=()))
        async with open_agent(settings) as agent:
            assert (await agent.reply(HELLO)).text == "hi"
        assert server.requests[0].tools == []
        assert "tools" not in server.requests[0].body


def test_tools_are_named_in_the_settings(tmp_path: Path) -> None:
    assert load_settings(None, {"MINICLAW_MODEL_TOOLS": ""}).settings.model.tools == ()
    assert load_settings(None, {"MINICLAW_MODEL_TOOLS": "time"}).settings.model.tools == ("time",)
    (tmp_path / "c.toml").write_text("[model]\ntools = []\n")
    assert load_settings(tmp_path / "c.toml", {}).settings.model.tools == ()


async def test_what_is_sent_along_goes_with_a_request_and_only_then(service: str) -> None:
    heads: list[bytes] = []

    async def handle(stream: SocketStream) -> None:
        async with stream:
            heads.append(await stream.receive())
            await stream.send(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        async with CLASSES[service](MODEL, base_url=url, api_key=KEY, max_retries=0) as provider:
            for headers in ({}, {"traceparent": "00-1-2-01"}, {}):
                before = trace_headers.set(headers)
                with pytest.raises(ModelError):
                    await reply_of(provider, HELLO)
                trace_headers.reset(before)
        tasks.cancel_scope.cancel()
    assert [b"traceparent: 00-1-2-01\r\n" in head.lower() for head in heads] == [False, True, False]
