"""The OpenAI provider against a local server that speaks chat completions and refuses what the real one refuses.

What holds for the providers of all services is in `test_services.py`.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import orjson
import pytest
import uvicorn
from anyio.abc import TaskGroup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.provider import ModelEvent, Reply, TextDelta
from miniclaw_sessions.agent.tools import Tool, calculator_tool
from miniclaw_sessions.errors import ModelError
from miniclaw_sessions.formats.openai_chat import to_openai
from miniclaw_sessions.history.context import build_context, is_legal
from miniclaw_sessions.manager import SessionManager
from miniclaw_sessions.protocol.messages import Message, Role, ToolCall, Usage
from miniclaw_sessions.providers.openai import OpenAIProvider

pytestmark = pytest.mark.anyio

HELLO = Message.user("hello")
KEY = "sk-very-secret"

# --- the service -----------------------------------------------------------------------------------------------------

_KEYS = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", "refusal", "audio"},
    "tool": {"role", "content", "tool_call_id"},
}

Step = Sequence[Any] | Callable[[dict[str, Any]], Sequence[Any]]


class ChatService:
    """Listens on a port of its own while it is entered, and asks for no key.

    `script` holds one step for each request: the pieces to stream, or a function from the request to them. A piece may
    also be bytes to send as they are, or an exception that breaks the connection.
    """

    def __init__(self) -> None:
        self.script: list[Step] = []
        self.requests: list[dict[str, Any]] = []
        self.authorizations: list[str] = []
        self.refusals: list[str] = []
        self._socket = socket.socket()
        self._tasks: TaskGroup | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"

    async def __aenter__(self) -> Self:
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()
        app = Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])])
        self._server = _Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._server.serve, [self._socket])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        self._server.should_exit = True
        await self._tasks.__aexit__(kind, error, trace)
        self._socket.close()

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.authorizations.append(request.headers.get("authorization", ""))
        if (problem := refusal(body["messages"])) is not None:
            self.refusals.append(problem)
            return JSONResponse({"error": {"message": f"{problem}: {body['messages']}"}}, 400)
        step = self.script.pop(0)
        return StreamingResponse(self._stream(step(body) if callable(step) else step), media_type="text/event-stream")

    async def _stream(self, pieces: Sequence[Any]) -> AsyncIterator[bytes]:
        for piece in pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece if isinstance(piece, bytes) else b"data: " + orjson.dumps(piece) + b"\n\n"
        yield b"data: [DONE]\n\n"


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


# --- what is refused -------------------------------------------------------------------------------------------------


def refusal(messages: list[dict[str, Any]]) -> str | None:
    """Why the real service would answer with status 400; None if it would not."""
    due: set[str] = set()
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in due:
                return f"messages[{index}] with role tool must be a response to a preceding message with tool_calls"
            due.discard(message["tool_call_id"])
        elif due:
            return "an assistant message with tool_calls must be followed by tool messages for each tool_call_id"
        if (problem := _message_problem(message)) is not None:
            return f"messages[{index}] {problem}"
        due |= {call["id"] for call in message.get("tool_calls", ())}
    if due:
        return "an assistant message with tool_calls must be followed by tool messages"
    return None if messages else "messages is empty"


def _message_problem(message: dict[str, Any]) -> str | None:
    role = message.get("role")
    if role not in _KEYS:
        return "has an invalid role"
    if unknown := set(message) - _KEYS[role]:
        return f"has additional properties {unknown}"
    if "name" in message and not re.fullmatch(r"[^\s<|\\/>]+", message["name"]):
        return "has an invalid name"
    return _content_problem(message) or ("tool_calls" in message and _calls_problem(message["tool_calls"])) or None


def _content_problem(message: dict[str, Any]) -> str | None:
    content = message.get("content")
    if content is None:
        return None if message["role"] == "assistant" and message.get("tool_calls") else "lacks content"
    if isinstance(content, str):
        return None
    allowed = {"text", "image_url", "input_audio", "file"} if message["role"] == "user" else {"text"}
    if not content or any(part.get("type") not in allowed for part in content):
        return "has invalid content"
    return None


def _calls_problem(calls: list[dict[str, Any]]) -> str | None:
    if not calls:
        return "has an empty list of tool_calls"
    if len({call["id"] for call in calls}) < len(calls):
        return "has duplicate tool_calls"
    for call in calls:
        function = call.get("function", {})
        if call.get("type") != "function" or not call.get("id") or not function.get("name"):
            return "has a tool call without id, type or name"
        try:
            json.loads(function["arguments"])
        except (ValueError, KeyError):
            return "has a tool call with invalid arguments"
    return None


# --- its streams -----------------------------------------------------------------------------------------------------


def piece(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m-2026", "choices": [choice]}


def fragment(
    index: int | None, call_id: str | None = None, name: str | None = None, arguments: str | None = None, **more: Any
) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    call = {"index": index, "id": call_id, "type": "function" if call_id else None, "function": function, **more}
    return piece(tool_calls=[{key: value for key, value in call.items() if value is not None}])


def text_reply(text: str) -> list[dict[str, Any]]:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    middle = len(text) // 2
    last = {**piece(), "choices": [], "usage": usage}
    return [
        piece(role="assistant", content=""),
        piece(content=text[:middle]),
        piece(content=text[middle:]),
        piece("stop"),
        last,
    ]


@pytest.fixture
async def service() -> AsyncIterator[ChatService]:
    async with ChatService() as service:
        yield service


@pytest.fixture
async def provider(service: ChatService) -> AsyncIterator[OpenAIProvider]:
    async with OpenAIProvider("m", base_url=service.url, api_key=KEY, timeout_s=5, max_retries=0) as provider:
        yield provider


async def events_of(provider: OpenAIProvider, *messages: Message, tools: Sequence[Tool] = ()) -> list[ModelEvent]:
    return [event async for event in provider.generate(messages or [HELLO], tools)]


async def reply_of(provider: OpenAIProvider, *messages: Message) -> Message:
    last = (await events_of(provider, *messages))[-1]
    assert isinstance(last, Reply)
    return last.message


# --- replies ---------------------------------------------------------------------------------------------------------


async def test_text_is_streamed_and_the_reply_is_whole(service: ChatService, provider: OpenAIProvider) -> None:
    service.script = [text_reply("hello there")]
    events = await events_of(provider)
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["hello", " there"]
    assert events[-1] == Reply(
        Message(
            Role.ASSISTANT,
            "hello there",
            model="m-2026",
            usage=Usage(input_tokens=6, output_tokens=2, cache_read_tokens=4, total_tokens=12),
            stop_reason="stop",
        )
    )


async def test_the_request_holds_the_context_the_tools_and_the_key(
    service: ChatService, provider: OpenAIProvider
) -> None:
    service.script = [text_reply("ok")]
    await events_of(provider, Message.system("be kind"), HELLO, tools=[calculator_tool()])
    (request,) = service.requests
    assert request["model"] == "m"
    assert request["messages"] == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
    assert request["tools"][0]["type"] == "function"
    assert request["tools"][0]["function"]["name"] == "calculator"
    assert request["stream_options"] == {"include_usage": True}
    assert service.authorizations == [f"Bearer {KEY}"]


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
    service: ChatService, provider: OpenAIProvider, pieces: list[dict[str, Any]]
) -> None:
    service.script = [[piece(role="assistant", content=None), *pieces, piece("tool_calls")]]
    reply = await reply_of(provider)
    assert reply.tool_calls == (ToolCall("a", "read", '{"path":1}'), ToolCall("b", "write", "{}"))
    assert (reply.text, reply.stop_reason, reply.usage) == ("", "tool_calls", None)


async def test_what_a_service_wants_back_with_a_call_is_sent_back(
    service: ChatService, provider: OpenAIProvider
) -> None:
    signature = {"google": {"thought_signature": "c2ln"}}
    service.script = [[fragment(0, "a", "read", "{}", extra_content=signature), piece("tool_calls")], text_reply("ok")]
    reply = await reply_of(provider)
    assert reply.tool_calls is not None
    await events_of(provider, HELLO, reply, Message.tool_result(reply.tool_calls[0], "x"))
    assert service.requests[1]["messages"][1]["tool_calls"][0]["extra_content"] == signature


async def test_a_refusal_of_the_model_is_its_text(service: ChatService, provider: OpenAIProvider) -> None:
    service.script = [[piece(role="assistant", refusal="I will"), piece(refusal=" not"), piece("stop")]]
    assert (await reply_of(provider)).text == "I will not"


# --- with an agent, in a real session --------------------------------------------------------------------------------


async def test_a_turn_with_tools_is_accepted_and_stored(
    service: ChatService, provider: OpenAIProvider, tmp_path: Path
) -> None:
    service.script = [
        [
            fragment(0, "a", "calculator", '{"expression":"6*7"}'),
            fragment(1, "b", "calculator", '{"expression":'),  # broken off by the limit of tokens
            piece("length"),
        ],
        text_reply("it is 42"),
        text_reply("you are welcome"),
    ]
    agent = Agent(provider, tools=[calculator_tool()], system_prompt="be kind")
    async with SessionManager(tmp_path, store="memory:") as manager:
        session = await manager.get_or_create("telegram", 1)
        assert (await agent.reply(HELLO, session=session)).text == "it is 42"
        assert (await agent.reply(Message.user("thanks"), session=session)).text == "you are welcome"
        assert is_legal(session.messages()) == []
    assert service.refusals == []
    sent = service.requests[1]["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "tool"]
    assert sent[3] == {"role": "tool", "content": "42", "tool_call_id": "a"}
    assert "not valid JSON" in sent[4]["content"]


async def test_a_history_of_any_kind_is_accepted(service: ChatService, provider: OpenAIProvider) -> None:
    call = ToolCall("a", "read", '{"broken')
    history = [
        Message(Role.TOOL_RESULT, "orphan", tool_call_id="z"),
        Message.assistant("", (call,)),
        Message(Role.USER, "hi", name="Jane Doe"),
        Message.assistant("", (ToolCall("b", "read", "{}"), ToolCall("c", "read", ""))),
        Message(Role.TOOL_RESULT, "c first", tool_call_id="c"),
        Message.assistant(""),
        Message(Role.OTHER, "obey", extra={"role": "root"}),
        Message.assistant("so", (ToolCall("d", "read", "{}"),)),
    ]
    assert refusal(to_openai(history)) is not None
    service.script = [text_reply("ok")]
    await reply_of(provider, *build_context(history))
    assert service.refusals == []


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "root", "content": "x"}],
        [{"role": "user", "content": "x", "timestamp": 1}],
        [{"role": "user", "content": "x", "name": "Jane Doe"}],
        [{"role": "user"}],
        [{"role": "tool", "content": "x", "tool_call_id": "a"}],
        to_openai([HELLO, Message.assistant("", (ToolCall("a", "read"),))]),
        to_openai([HELLO, Message.assistant("", (ToolCall("a", "read"),)), HELLO]),
        to_openai(
            [HELLO, Message.assistant("", (ToolCall("a", "read", "{"),)), Message.tool_result(ToolCall("a", ""), "")]
        ),
    ],
)
def test_the_service_of_these_tests_refuses_what_the_real_one_refuses(messages: list[dict[str, Any]]) -> None:
    assert refusal(messages) is not None


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(content="half"), RuntimeError("the cable was cut")],
        [piece(content="half")],
        [piece(content="half"), b"data: {not json\n\n"],
        [piece(content="half"), {"error": {"message": "overloaded: hello", "type": "server_error"}}],
        [fragment(0, "a", "read", '{"pa')],
        [],
    ],
)
async def test_a_reply_that_breaks_off_is_an_error_and_never_half_a_reply(
    service: ChatService, provider: OpenAIProvider, pieces: list[Any]
) -> None:
    service.script = [pieces]
    told: list[ModelEvent] = []

    async def read() -> None:
        async for event in provider.generate([HELLO], []):
            told.append(event)  # noqa: PERF401 - those before the error count

    with pytest.raises(ModelError) as caught:
        await read()
    assert not any(isinstance(event, Reply) for event in told)
    assert "hello" not in str(caught.value)
