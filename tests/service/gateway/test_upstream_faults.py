"""A fault of the model's service keeps its meaning over HTTP: the real `openai` package, our gateway, a real service.

The service is `StrictServer`: it answers each request with the status that the test wants, in the form of each of the
four services, and the providers' own packages read it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from structlog.testing import capture_logs

from miniclaw_sessions import errors
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.providers.service import ServiceProvider
from miniclaw_sessions.channels.base import Incoming, NotAnswered, Reason
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.service.api import chat as chat_operation
from miniclaw_sessions.service.api.error_table import error_of
from tests.agent.providers.all_providers import KEY, SERVICES, provider_for
from tests.agent.providers.strict_server import Answer, Refusal, StrictServer, in_turn
from tests.service.gateway.conftest import Served

pytestmark = pytest.mark.anyio

MEANINGS: dict[int, tuple[int, type[openai.APIStatusError], str, str]] = {
    # the service's: (ours, what the package raises, our `type`, the package's `code`)
    400: (400, openai.BadRequestError, "model_refused", "model_refused"),
    404: (400, openai.BadRequestError, "model_refused", "model_refused"),
    409: (400, openai.BadRequestError, "model_refused", "model_refused"),
    422: (400, openai.BadRequestError, "model_refused", "model_refused"),
    401: (424, openai.APIStatusError, "model_access_denied", "model_access_denied"),
    402: (424, openai.APIStatusError, "model_access_denied", "model_access_denied"),
    403: (424, openai.APIStatusError, "model_access_denied", "model_access_denied"),
    429: (429, openai.RateLimitError, "model_rate_limited", "rate_limit_exceeded"),
    408: (504, openai.InternalServerError, "model_timeout", "model_timeout"),
    504: (504, openai.InternalServerError, "model_timeout", "model_timeout"),
    503: (503, openai.InternalServerError, "model_overloaded", "model_overloaded"),
    529: (503, openai.InternalServerError, "model_overloaded", "model_overloaded"),
    500: (502, openai.InternalServerError, "model_unavailable", "model_unavailable"),
    502: (502, openai.InternalServerError, "model_unavailable", "model_unavailable"),
}
NOWHERE: dict[str, Any] = {}
CHAT = {"channel": "telegram", "chat_id": "1", "message": "hello"}


@pytest.fixture(params=[*SERVICES, pytest.param("pydantic-ai", marks=pytest.mark.proof)])
def service(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def upstream() -> AsyncIterator[StrictServer]:
    async with StrictServer(key=KEY) as server:
        yield server


def made(service: str, upstream: StrictServer, **options: Any) -> ServiceProvider:
    """The provider of a service; pydantic-ai asks as if it was OpenAI's."""
    if service != "pydantic-ai":
        return provider_for(service, upstream, **options)
    from miniclaw_sessions.agent.providers.pydantic_ai import PydanticAIProvider  # noqa: PLC0415 - the quick round lacks it

    given = {"base_url": upstream.url_for("openai"), "api_key": KEY, "timeout_s": 5, "max_retries": 0}
    return PydanticAIProvider("openai-chat:m-2026", **{**given, **options})


@pytest.fixture
def options(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """What a test sets of the provider; `NOWHERE`: an address where nobody listens."""
    wanted = getattr(request, "param", {})
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        yield {"base_url": url} if wanted is NOWHERE else wanted


@pytest.fixture
async def provider(service: str, upstream: StrictServer, options: dict[str, Any]) -> AsyncIterator[ServiceProvider]:
    async with made(service, upstream, **options) as one:
        yield one


@pytest.fixture
def agent(provider: ServiceProvider) -> Agent:
    return Agent(provider)


only_openai = pytest.mark.parametrize("service", ["openai"], indirect=True)


@pytest.mark.parametrize("stream", [False, True])
async def test_each_status_of_the_service_is_the_packages_own_error_and_names_the_service(
    client: AsyncOpenAI, upstream: StrictServer, stream: bool
) -> None:
    for status, (told, raised, _, code) in MEANINGS.items():
        upstream.script = lambda _, status=status: Refusal(status, "no, said the service")  # type: ignore[misc]  # the loop's
        with capture_logs() as records, pytest.raises(openai.APIStatusError) as caught:
            await client.responses.create(input="hello", stream=stream)
        error = caught.value
        assert (error.status_code, type(error), error.code) == (told, raised, code), status
        assert re.search(f"(127.0.0.1|openai-chat) refused to run .*m-2026 with status {status}: ", error.message)
        body: Any = error.body
        assert (body["upstream_status"], body["provider_message"]) == (status, "no, said the service")
        assert [record["action"] for record in records if record["log_level"] == "error"] == ["http.failed"]


async def test_each_status_of_the_service_is_told_by_chat_too(
    served: Served, upstream: StrictServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_operation, "_STATUS_WAIT_S", 60.0)  # a busy machine answers as late as it likes
    for number, (status, (told, _, kind, _)) in enumerate(MEANINGS.items()):
        upstream.script = lambda _, status=status: Refusal(status, "no, said the service")  # type: ignore[misc]  # the loop's
        chat = {**CHAT, "chat_id": str(number)}
        reply = await served.unix.post("/v1/chat", json=chat)
        streamed = await served.unix.post("/v1/chat", json={**chat, "stream": True})
        assert (reply.status_code, streamed.status_code) == (told, told)
        for one in (reply, streamed):
            about = one.json()["error"]
            assert (about["type"], about["upstream_status"]) == (kind, status)
            assert about["provider_message"] == "no, said the service"
        raised = error_of(told, reply.json())
        assert isinstance(raised, errors.ModelError)
        assert (raised.upstream_status, raised.provider_message) == (status, "no, said the service")


async def test_a_wait_that_the_service_asks_for_is_passed_on(
    client: AsyncOpenAI, served: Served, upstream: StrictServer
) -> None:
    own = {"x-should-retry": "false"}  # else the provider's package waits itself
    upstream.script = lambda _: Refusal(429, headers={**own, "retry-after": "7"})
    for stream in (False, True):
        with pytest.raises(openai.RateLimitError) as caught:
            await client.responses.create(input="hello", stream=stream)
        assert caught.value.response.headers["retry-after"] == "7"
        assert "x-should-retry" not in caught.value.response.headers
    reply = await served.unix.post("/v1/chat", json=CHAT)
    assert (reply.headers["retry-after"], reply.json()["error"]["retry_after_s"]) == ("7", 7)
    upstream.script = lambda _: Refusal(429, headers=own)
    with pytest.raises(openai.RateLimitError) as caught:
        await client.responses.create(input="hello")
    assert "retry-after" not in caught.value.response.headers  # nobody has said when


@only_openai
async def test_the_packages_own_retries_bring_the_answer_once(
    client: AsyncOpenAI, served: Served, upstream: StrictServer
) -> None:
    await served.manager.get_or_create("conv", "1")
    trying = client.with_options(max_retries=2)
    upstream.script = in_turn(Refusal(429), Refusal(503), Answer(text="at last"))
    answer = await trying.responses.create(input="hello", conversation="conv_1")
    assert answer.output_text == "at last"
    said = [message.text for message in (await served.manager.find("conv_1")).messages()]
    assert said == ["hello", "at last"]
    upstream.script = in_turn(Refusal(500), Answer(text="whole"))
    stream = await trying.responses.create(input="more", conversation="conv_1", stream=True)
    assert [event.type async for event in stream][-1] == "response.completed"
    assert len((await served.manager.find("conv_1")).messages()) == 4


@only_openai
async def test_a_request_that_failed_is_answered_when_it_is_repeated_with_its_key(
    client: AsyncOpenAI, served: Served, upstream: StrictServer
) -> None:
    await served.manager.get_or_create("conv", "1")
    named = {"Idempotency-Key": "k"}
    for where in ({"conversation": "conv_1"}, {}):
        upstream.script = in_turn(Refusal(401), Refusal(429), Answer(text="at last"))
        given: Any = {"input": "hello", "extra_headers": named, **where}
        for raised in (openai.APIStatusError, openai.RateLimitError):
            with pytest.raises(raised):
                await client.responses.create(**given)
        answer = await client.responses.create(**given)
        assert answer.output_text == "at last"
        assert await client.responses.create(**given) == answer
    assert [message.text for message in (await served.manager.find("conv_1")).messages()] == ["hello", "at last"]
    upstream.script = in_turn(Refusal(401), Refusal(429), Answer(text="at last"))
    replies = [await served.unix.post("/v1/chat", json={**CHAT, "idempotency_key": "k"}) for _ in range(4)]
    assert [reply.status_code for reply in replies] == [424, 429, 200, 200]
    assert len((await served.manager.find("telegram_1")).messages()) == 2


@only_openai
@pytest.mark.parametrize(("ending", "code"), [("cut", "server_error"), ("error", "server_error")])
async def test_what_fails_when_something_was_said_is_an_event_and_is_not_asked_again(
    client: AsyncOpenAI, upstream: StrictServer, ending: Any, code: str
) -> None:
    upstream.script = lambda _: Answer(text="I was about to say much", ending=ending, ending_after=4)
    events = [event async for event in await client.responses.create(input="hello", stream=True)]
    assert (events[0].type, events[-1].type) == ("response.created", "response.failed")
    assert any(event.type == "response.output_text.delta" for event in events)
    failed = events[-1].response  # type: ignore[union-attr]  # it is a failed one
    assert failed.error is not None
    assert failed.error.code == code
    assert await client.responses.retrieve(failed.id) == failed
    with pytest.raises(openai.InternalServerError) as caught:
        await client.responses.create(input="hello")
    assert caught.value.response.headers["x-should-retry"] == "false"  # it would be paid for twice


@only_openai
async def test_a_stream_begins_when_the_service_has_taken_the_request(
    client: AsyncOpenAI, upstream: StrictServer
) -> None:
    upstream.script = lambda _: Answer(text="not yet", ending="stall", ending_after=0)
    async with await client.responses.create(input="hello", stream=True) as stream:
        assert (await anext(aiter(stream))).type == "response.created"
        assert not upstream.disconnected.is_set()  # the model is still silent


async def test_an_overload_within_the_reply_is_an_overload(client: AsyncOpenAI, upstream: StrictServer) -> None:
    upstream.script = lambda _: Answer(text="never said", ending="error", ending_after=0)
    with pytest.raises(openai.InternalServerError) as caught:
        await client.responses.create(input="hello")
    assert caught.value.status_code in (502, 503)  # not every service has a name for it
    assert "x-should-retry" not in caught.value.response.headers or caught.value.code == "model_error"


async def test_a_conversation_that_is_too_large_is_the_packages_own_error(
    client: AsyncOpenAI, upstream: StrictServer
) -> None:
    upstream.context_tokens = 10
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(input="hello " * 100)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("options", [{"timeout_s": 0.2}], indirect=True)
async def test_a_service_that_does_not_answer_in_time_is_504(client: AsyncOpenAI, upstream: StrictServer) -> None:
    upstream.script = lambda _: Answer(text="I was about to", ending="stall", ending_after=0)
    with pytest.raises(openai.InternalServerError, match=r"did not answer within 0\.2 seconds") as caught:
        await client.responses.create(input="hello")
    assert (caught.value.status_code, caught.value.code) == (504, "model_timeout")


@pytest.mark.parametrize("options", [NOWHERE], indirect=True)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_service_that_is_not_there_is_502(client: AsyncOpenAI, stream: bool) -> None:
    with pytest.raises(openai.InternalServerError, match=r"cannot be reached") as caught:
        await client.responses.create(input="hello", stream=stream)
    assert (caught.value.status_code, caught.value.code) == (502, "model_unavailable")


@pytest.mark.parametrize("kind", ["ModelRefused", "ModelAccessDenied", "ModelRateLimited", "ModelTimeout"])
def test_people_are_told_a_sentence_whatever_it_was(kind: str) -> None:
    error = getattr(errors, kind)("api.example refused to run m with status 400")
    error.provider_message = "the quota is used up"
    said = NotAnswered(Incoming("1", Message.user("hello")), Reason.FAILED, error).text
    assert said.startswith("I could not answer, because the model failed.")
    assert said.endswith("The model's service says: the quota is used up")
