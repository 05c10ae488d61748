"""The strict server refuses what the services refuse; above all, reasoning that does not come back as it was given."""

from __future__ import annotations

import copy
import json
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.tools import calculator_tool
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message
from tests.agent.providers.all_providers import CLASSES, KEY, MODEL, SERVICES, provider_for
from tests.agent.providers.strict_server import WIRES, Answer, Call, PrefixCache, StrictServer, in_turn

pytestmark = pytest.mark.anyio

CALL = Call("calculator", {"expression": "6*7"})
Edit = Callable[[dict[str, Any]], None]


async def body_of(service: str, tmp_path: Any) -> dict[str, Any]:
    """A request with a reply that thought and called a tool, as the provider sends it; its server had no objection."""
    async with StrictServer() as server, provider_for(service, server) as provider:
        server.script = in_turn(Answer(text="let me see", thinking="6 times 7", calls=(CALL,)), Answer(text="42"))
        async with SessionManager(tmp_path, store="memory:") as manager:
            session = await manager.get_or_create("telegram", 1)
            agent = Agent(provider, tools=[calculator_tool()], system_prompt="be kind")
            await agent.reply(Message.user("hello"), session=session)
        assert server.problems + server.losses == []
        return copy.deepcopy(server.requests[1].body)


def _at(*path: str | int) -> Callable[[dict[str, Any]], Any]:
    def found(body: dict[str, Any]) -> Any:
        value: Any = body
        for step in path:
            value = value[step]
        return value

    return found


def _set(*path: str | int, to: Any) -> Edit:
    return lambda body: _at(*path[:-1])(body).__setitem__(path[-1], to)


def _drop(*path: str | int) -> Edit:
    return lambda body: _at(*path[:-1])(body).__delitem__(path[-1])


def _reverse(*path: str | int) -> Edit:
    return lambda body: _at(*path)(body).reverse()


EDITS: list[tuple[str, Edit]] = [
    ("openai", _set("messages", 2, "tool_calls", 0, "id", to="x" * 41)),
    ("openai", _set("messages", 3, "tool_call_id", to="another")),
    ("openai", _set("tools", 0, "function", "name", to="git commit")),
    ("openai", _set("tools", 0, "function", "parameters", to={"type": "array"})),
    ("openai", _set("messages", 1, "timestamp", to=1)),
    ("openai", _drop("messages", 3)),
    ("openai", _drop("model")),
    ("openai-responses", _set("input", 2, "encrypted_content", to="AAAA")),
    ("openai-responses", _set("input", 2, "summary", to=[])),
    ("openai-responses", _drop("input", 2)),
    ("openai-responses", _reverse("input")),
    ("openai-responses", _drop("input", 2, "encrypted_content")),
    ("openai-responses", _set("tools", 0, "parameters", to={"type": "object", "required": ["x"]})),
    ("openai-responses", _set("seed", to=1)),
    ("anthropic", _set("messages", 1, "content", 0, "signature", to="AAAA")),
    ("anthropic", _set("messages", 1, "content", 0, "thinking", to="no")),
    ("anthropic", _set("messages", 1, "content", 1, "text", to="no")),
    ("anthropic", _drop("messages", 1, "content", 0)),
    ("anthropic", _set("messages", 1, "content", to=[])),
    ("anthropic", _reverse("messages", 1, "content")),
    ("anthropic", _set("max_tokens", to=100)),
    ("anthropic", _drop("max_tokens")),
    ("anthropic", _set("thinking", to={"type": "enabled", "budget_tokens": 5})),
    ("anthropic", _set("messages", 1, "content", 0, "cache_control", to={"type": "ephemeral"})),
    ("anthropic", _set("system", to=[{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}] * 5)),
    ("anthropic", _set("tools", 0, "input_schema", "required", to=["another"])),
    ("google", _set("contents", 1, "parts", 2, "thoughtSignature", to="AAAA")),
    ("google", _drop("contents", 1, "parts", 2, "thoughtSignature")),
    ("google", _set("contents", 1, "parts", 2, "functionCall", "args", to={"expression": "1"})),
    ("google", _set("tools", 0, "functionDeclarations", 0, "name", to="")),
    ("google", _set("temperature", to=1)),
]


@pytest.mark.parametrize(("service", "edit"), EDITS, ids=[f"{name}-{index}" for index, (name, _) in enumerate(EDITS)])
async def test_what_a_service_would_refuse_is_refused(service: str, edit: Edit, tmp_path: Any) -> None:
    body = await body_of(service, tmp_path)
    assert WIRES[service].problems(body, check_signatures=True) == []
    edit(body)
    assert WIRES[service].problems(body, check_signatures=True) != []


@pytest.mark.parametrize("service", SERVICES)
async def test_a_request_without_streaming_is_answered_as_the_sdk_expects(service: str) -> None:
    async with StrictServer(in_turn(Answer(text="hi", calls=(CALL,)))) as server:
        provider = CLASSES[service](MODEL, base_url=server.url_for(service), api_key=KEY)
        async with provider:
            assert await _whole_reply(service, provider._client) == ("hi", "calculator")
    assert server.problems + server.losses == []


async def _whole_reply(service: str, client: Any) -> tuple[str, str]:
    user = [{"role": "user", "content": "hello"}]
    match service:
        case "openai":
            message = (await client.chat.completions.create(model=MODEL, messages=user)).choices[0].message
            return message.content, message.tool_calls[0].function.name
        case "openai-responses":
            response = await client.responses.create(model=MODEL, input="hello")
            return response.output_text, response.output[1].name
        case "anthropic":
            reply = await client.messages.create(model=MODEL, messages=user, max_tokens=9)
            return reply.content[0].text, reply.content[1].name
        case _:
            answer = await client.aio.models.generate_content(model=MODEL, contents="hello")
            parts = answer.candidates[0].content.parts
            return parts[0].text, parts[1].function_call.name


@pytest.mark.parametrize(
    ("service", "edit"),
    [
        ("anthropic", _drop("messages", 1, "content", 0)),
        ("google", _set("contents", 1, "parts", 2, "thoughtSignature", to="skip_thought_signature_validator")),
    ],
)
async def test_what_a_service_would_miss_is_noticed(service: str, edit: Edit, tmp_path: Any) -> None:
    body = await body_of(service, tmp_path)
    assert WIRES[service].losses(body) == []
    edit(body)
    assert len(WIRES[service].losses(body)) == 1


def test_a_cache_tells_what_was_read_before_from_what_is_written() -> None:
    cache = PrefixCache()
    first = cache.count(["a" * 40, "b" * 40], [1], 0)
    again = cache.count(["a" * 40, "b" * 40, "c" * 40, "d" * 40], [1, 2], 0)
    assert (first.fresh, first.read, first.written) == (0, 0, 20)
    assert (again.fresh, again.read, again.written) == (10, 20, 10)
    assert cache.count(["b" * 40], None, 0).read == 0


@pytest.mark.proof
async def test_it_runs_as_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "tests.agent.providers.strict_server", "--port", "0", "--key", KEY]
    async with await anyio.open_process(command) as process:
        try:
            assert process.stdout is not None
            url = f"http://127.0.0.1:{(await process.stdout.receive()).decode().strip()}"
            async with CLASSES["anthropic"](MODEL, base_url=url, api_key=KEY) as provider:
                agent = Agent(provider, tools=[calculator_tool()])
                replies = [await agent.reply(Message.user(text)) for text in ("one", "two")]
            assert [reply.text for reply in replies] == ["answer 1 from anthropic"] * 2
            report = await anyio.to_thread.run_sync(lambda: json.load(urllib.request.urlopen(f"{url}/report")))
            assert report == {"requests": 2, "problems": [], "losses": []}
        finally:
            process.terminate()
