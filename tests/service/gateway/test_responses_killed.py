"""Responses over kill -9 and restarts: a real daemon, the unmodified package, and a service that checks requests."""

from __future__ import annotations

import io
import re
import signal
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import anyio
import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.agent.providers.all_providers import KEY
from tests.agent.providers.strict_server import Answer, Asked, Call, StrictServer
from tests.service.gateway.daemons import Process
from tests.service.gateway.test_conversations import package_at, user
from tests.service.gateway.test_responses import WEATHER

pytestmark = [pytest.mark.anyio, pytest.mark.proof]


def script(asked: Asked) -> Answer:
    last = asked.messages[-1]
    if last.text == "weather?":
        return Answer(calls=(Call("weather", {"city": "Oslo"}),))
    if last.text == "stall":
        return Answer(text="I will never end", ending="stall", ending_after=2)
    return Answer(text=" | ".join(message.text for message in asked.messages if not message.is_assistant))


def daemon(directory: Path, server: StrictServer) -> Process:
    key = directory / "key"
    key.write_text(KEY)
    key.chmod(0o600)
    return Process(
        directory,
        MINICLAW_MODEL_BASE_URL=server.url_for("openai"),
        MINICLAW_MODEL_MODEL="m",
        MINICLAW_MODEL_API_KEY_FILE=str(key),
        MINICLAW_MODEL_SYSTEM_PROMPT="kind",
        MINICLAW_LISTEN_GRACEFUL_TIMEOUT_S="1",
    )


async def test_a_call_waits_for_its_output_over_a_kill(short_path: Path) -> None:
    async with StrictServer(script, key=KEY) as server:
        async with daemon(short_path, server) as one:
            await one.notice("READY=1")
            async with package_at(one.socket) as client:
                begun = await client.responses.create(input="hello")
                asked = await client.responses.create(input="weather?", tools=[WEATHER], previous_response_id=begun.id)
            await one.killed()
        async with daemon(short_path, server) as two:
            await two.notice("READY=1")
            async with package_at(two.socket) as client:
                assert await client.responses.retrieve(asked.id) == asked
                call: Any = asked.output[0]
                output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
                answer = await client.responses.create(input=output, tools=[WEATHER], previous_response_id=asked.id)
                assert answer.output_text == "kind | hello | weather? | rain"
                branch = await client.responses.create(input="other", previous_response_id=begun.id)
                assert branch.output_text == "kind | hello | other"
            await two.killed()
        async with daemon(short_path, server) as three:
            await three.notice("READY=1")
            async with package_at(three.socket) as client:
                for response in (begun, asked, answer, branch):
                    assert await client.responses.retrieve(response.id) == response
        assert server.problems == []


async def test_an_answer_that_a_kill_cut_off_has_failed_and_can_be_gone_on_from(short_path: Path) -> None:
    async with StrictServer(script, key=KEY) as server:
        async with daemon(short_path, server) as one:
            await one.notice("READY=1")
            async with package_at(one.socket) as client:
                made = await client.conversations.create()
                begun = await client.responses.create(input="hello", conversation=made.id)
                stream = await client.responses.create(input="stall", conversation=made.id, stream=True)
                created: Any = await anext(aiter(stream))
                await server.streaming.wait()
                assert (await client.responses.retrieve(created.response.id)).status == "in_progress"
                await one.killed()
        async with daemon(short_path, server) as two:
            await two.notice("READY=1")
            async with package_at(two.socket) as client:
                cut = await client.responses.retrieve(created.response.id)
                assert (cut.status, cut.error and cut.error.code) == ("failed", "server_error")
                assert await client.responses.retrieve(begun.id) == begun
                later = await client.responses.create(input="again", conversation=made.id)
                assert later.output_text.startswith("kind | hello |")
                assert later.output_text.endswith("| again")
        assert server.problems == []


async def test_a_daemon_that_is_stopped_ends_its_streams_in_order(short_path: Path) -> None:
    async with StrictServer(script, key=KEY) as server:
        async with daemon(short_path, server) as one:
            await one.notice("READY=1")
            async with package_at(one.socket) as client:
                stream = await client.responses.create(input="stall", stream=True)
                created: Any = await anext(aiter(stream))
                await server.streaming.wait()
                one.send(signal.SIGTERM)
                kinds = [event.type async for event in stream]
                assert kinds[-1] == "response.failed"
                assert await one.exited() == 0
        async with daemon(short_path, server) as two:
            await two.notice("READY=1")
            async with package_at(two.socket) as client:
                assert (await client.responses.retrieve(created.response.id)).status == "failed"


async def test_the_synchronous_client_chats_with_the_built_in_responder(short_path: Path) -> None:
    async with Process(short_path) as one:
        await one.notice("READY=1")

        def chat() -> list[str]:
            http = httpx2.Client(transport=httpx2.HTTPTransport(uds=str(one.socket), verify=False))
            with OpenAI(base_url="http://miniclaw/v1", api_key="any", http_client=http) as client:
                first = client.responses.create(model="any", input="My name is Ada.")
                second = client.responses.create(input="What is my name?", previous_response_id=first.id)
                with client.responses.stream(model="any", input="Who am I?", previous_response_id=second.id) as stream:
                    for _ in stream:
                        pass
                    third = stream.get_final_response()
                adding: Any = {"type": "function", "name": "calculator", "parameters": {"type": "object"}}
                fourth = client.responses.create(input="2+2", tools=[adding])
                with pytest.raises(openai.BadRequestError, match=r"text\.format"):
                    client.responses.create(input="x", text={"format": {"type": "json_object"}})
                return [first.output_text, second.output_text, third.output_text, fourth.output[0].to_json(indent=None)]

        said = await anyio.to_thread.run_sync(chat)
        assert said[0].startswith("(offline) Nice to meet you, Ada.")
        assert said[1:3] == ["(offline) Your name is Ada."] * 2
        assert '"name":"calculator"' in said[3].replace(" ", "")


PAGE = (Path(__file__).parents[3] / "docs/how-to/use-the-openai-sdk.md").read_text(encoding="utf-8")


async def test_the_pages_examples_say_what_they_print(short_path: Path) -> None:
    examples = PAGE.partition("\n## Responses\n")[2]
    code = "\n".join(re.findall(r"^```py\n(.*?)^```", examples, re.DOTALL | re.MULTILINE))
    assert code
    printed = io.StringIO()
    async with Process(short_path) as one:
        await one.notice("READY=1")

        def run() -> None:
            http = httpx2.Client(transport=httpx2.HTTPTransport(uds=str(one.socket), verify=False))
            with (
                OpenAI(base_url="http://miniclaw/v1", api_key="any", http_client=http) as client,
                redirect_stdout(printed),
            ):
                exec(code, {"client": client})

        await anyio.to_thread.run_sync(run)
    assert printed.getvalue().splitlines() == re.findall(r"# prints: (.*)$", code, re.MULTILINE)


async def test_a_conversation_that_a_kill_cut_off_is_asked_again_and_doubles_nothing(short_path: Path) -> None:
    """The package sends the request again by itself, to the daemon that comes in the place of the killed one."""
    said: list[list[str]] = []

    def answer(asked: Asked) -> Answer:
        said.append([message.text for message in asked.messages if message.is_user])
        return Answer(text="late", ending="stall", ending_after=2) if len(said) == 1 else Answer(text="here I am")

    async with StrictServer(answer, key=KEY) as server, daemon(short_path, server) as one:
        await one.notice("READY=1")
        answered, is_answered = list[Any](), anyio.Event()

        async def ask(client: AsyncOpenAI, conversation: str) -> None:
            answered.append(await client.responses.create(input="hello?", conversation=conversation))
            is_answered.set()

        async with package_at(one.socket) as client, anyio.create_task_group() as tasks:
            made = await client.conversations.create()
            tasks.start_soon(ask, client.with_options(max_retries=100), made.id)
            await server.streaming.wait()
            await one.killed()
            async with daemon(short_path, server) as two:
                await two.notice("READY=1")
                with anyio.fail_after(60):
                    await is_answered.wait()
                assert answered[0].output_text == "here I am"
                items = [item async for item in client.conversations.items.list(made.id)]
                assert len(items) == 2
    assert said == [["hello?"], ["hello?"]]


async def test_what_others_said_since_a_kill_stays_when_the_request_is_repeated(short_path: Path) -> None:
    stalls = True

    def answer(asked: Asked) -> Answer:
        said = " | ".join(message.text for message in asked.messages if message.is_user)
        is_cut = stalls and said.endswith("pay 5")
        return Answer(text="late", ending="stall", ending_after=2) if is_cut else Answer(text=f"to {said}")

    async with StrictServer(answer, key=KEY) as server:
        repeated: Any = {"input": "pay 5", "extra_headers": {"Idempotency-Key": "k"}}
        async with daemon(short_path, server) as one:
            await one.notice("READY=1")
            async with package_at(one.socket) as client:
                made = await client.conversations.create()
                await client.responses.create(input="zero", conversation=made.id)
                stream = await client.responses.create(conversation=made.id, stream=True, **repeated)
                await anext(aiter(stream))
                await server.streaming.wait()
                await one.killed()
        stalls = False
        async with daemon(short_path, server) as two:
            await two.notice("READY=1")
            async with package_at(two.socket) as client:
                await client.responses.create(input="other", conversation=made.id)
                await client.conversations.items.create(made.id, items=[user("item")])
                items: Any = client.conversations.items
                before = [item async for item in items.list(made.id, order="asc")]
                answered = await client.responses.create(conversation=made.id, **repeated)
                assert answered.output_text == "to zero | pay 5 | other | item | pay 5"
                after = [item async for item in items.list(made.id, order="asc")]
                assert after[: len(before)] == before
                assert [item.content[0].text for item in after[len(before) :]] == ["pay 5", answered.output_text]
                assert await client.responses.create(conversation=made.id, **repeated) == answered
        assert server.problems == []
