"""`/v1/responses`, asked by the unmodified `openai` package, over a real socket; what the model is sent is recorded."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

import anyio
import msgspec
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent

from miniclaw_sessions.agent.provider import ModelEvent, Reply, TextDelta
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.config import ChannelSettings
from miniclaw_sessions.core.protocol.entries import SUSPENDED
from miniclaw_sessions.core.protocol.messages import Message, ToolCall, Usage
from miniclaw_sessions.core.protocol.options import Options
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import Opening
from miniclaw_sessions.errors import ContextOverflow, ModelError, OptionRefused
from miniclaw_sessions.service.api.context import OWNER
from miniclaw_sessions.service.api.openai import response_place
from miniclaw_sessions.service.api.openai.response_request import read_request
from miniclaw_sessions.service.api.openai.shapes import EVENTS, CreateResponse
from miniclaw_sessions.service.api.openai.stored_responses import RESPONSE, StoredResponse, find_response, response_id
from tests.legality import is_legal
from tests.service.gateway.conftest import Served
from tests.texts import texts_of

pytestmark = pytest.mark.anyio

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}

OTHER: Any = {**WEATHER, "name": "other"}


class Recorder:
    """A model that answers with what it was sent: `I see: a | b`; texts that begin with a word do something else.

    Attributes:
        asked: each context, in the order of asking; every one was legal.
        offered: the names of the tools of each request.
        options: those of each request.
        gate: whoever says `slow` waits for it, when its first word is said.
        is_repaired: whether it answers also who says `fail`, at once or behind `slow`.
    """

    name = "test"
    model = "recorder"

    def __init__(self) -> None:
        self.asked: list[list[Message]] = []
        self.offered: list[list[str]] = []
        self.options: list[Options] = []
        self.gate, self.slowed = anyio.Event(), anyio.Event()
        self.is_repaired = False
        self._options = Options()

    def with_options(self, options: Options) -> Self:
        if options.verbosity is not None:
            raise OptionRefused("verbosity", "the recorder says what it says")
        other = type(self)()
        other.__dict__.update(self.__dict__, _options=options)
        return other

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        assert is_legal(messages) == []
        self.asked.append(list(messages))
        self.offered.append([tool.name for tool in tools])
        self.options.append(self._options)
        text = messages[-1].text
        if messages[-1].is_user and text.startswith("call"):
            calls = tuple(
                ToolCall(f"call_{n}_{len(self.asked)}", tools[0].name, '{"city": "Oslo"}')
                for n in range(int(text[5:] or 1))
            )
            yield Reply(Message.assistant("", calls))
        elif messages[-1].is_user and text.startswith("wrong"):
            yield Reply(Message.assistant("", (ToolCall("call_wrong", "weather", '{"city":'),)))
        elif text.startswith("fail") and not self.is_repaired:
            raise ModelError("the model is out of order")
        elif text.startswith("huge"):
            raise ContextOverflow("the conversation is too large")
        else:
            said = " | ".join(message.text for message in messages if not message.is_assistant)
            for word in re.findall(r"\S+\s*", f"I see: {said}"):
                yield TextDelta(word)
                if text.startswith("break"):
                    raise ModelError("the model is out of order")
                if text.startswith("slow") and not self.gate.is_set():
                    self.slowed.set()
                    await self.gate.wait()
                    if "fail" in text and not self.is_repaired:
                        raise ModelError("the model is out of order")
            if text == "slow call":
                yield Reply(Message.assistant("", (ToolCall("call_slow", tools[0].name, "{}"),)))
                return
            reason = "length" if text.startswith("short") else "stop"
            usage = Usage(input_tokens=5, output_tokens=7, cache_read_tokens=2)
            yield Reply(msgspec.structs.replace(Message.assistant(f"I see: {said}"), usage=usage, stop_reason=reason))


MODEL = Recorder
SYSTEM_PROMPT = "Be kind."


@pytest.fixture
def channel_settings() -> ChannelSettings:
    return ChannelSettings(max_waiting_per_chat=5, max_messages=20)


async def events_of(client: AsyncOpenAI, **wanted: Any) -> list[ResponseStreamEvent]:
    return [event async for event in await client.responses.create(stream=True, **wanted)]


async def until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not is_so():  # noqa: ASYNC110 - nobody tells it
            await anyio.sleep(0.001)


# --- answering -------------------------------------------------------------------------------------------------------


async def test_a_response_is_what_the_package_expects(client: AsyncOpenAI) -> None:
    response = await client.responses.create(
        model="gpt-5", input="Hello", metadata={"topic": "x"}, user="u1", temperature=0.5, truncation="auto"
    )
    assert response.id.startswith("resp_")
    assert (response.status, response.output_text) == ("completed", "I see: Be kind. | Hello")
    item: Any = response.output[0]
    assert len(response.output) == 1
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    assert response.model == "recorder"
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (7, 7, 14)
    assert response.usage.input_tokens_details.cached_tokens == 2
    assert (response.metadata, response.user, response.temperature) == ({"topic": "x"}, "u1", 0.5)
    assert (response.tools, response.tool_choice, response.error, response.conversation) == ([], "auto", None, None)
    assert response.completed_at is not None
    assert response.completed_at >= response.created_at
    assert await client.responses.retrieve(response.id) == response


async def test_a_previous_response_is_gone_on_from_wherever_it_stands(client: AsyncOpenAI, provider: Recorder) -> None:
    first = await client.responses.create(input="one")
    left = await client.responses.create(input="two", previous_response_id=first.id)
    right = await client.responses.create(input="three", previous_response_id=first.id)
    again = await client.responses.create(input="four", previous_response_id=left.id)
    answer = "I see: Be kind. | one"
    assert texts_of(provider.asked[1]) == ["Be kind.", "one", answer, "two"]
    assert texts_of(provider.asked[2]) == ["Be kind.", "one", answer, "three"]
    assert texts_of(provider.asked[3]) == ["Be kind.", "one", answer, "two", left.output_text, "four"]
    assert (again.previous_response_id, right.previous_response_id) == (left.id, first.id)
    for response in (first, left, right, again):
        assert await client.responses.retrieve(response.id) == response
    assert len({response.id.split("_", 2)[2] for response in (first, left, right, again)}) == 1  # one session's tree


async def test_two_clients_that_go_on_at_once_disturb_nobody(client: AsyncOpenAI, provider: Recorder) -> None:
    first = await client.responses.create(input="one")
    answers: dict[str, Response] = {}

    async def go_on(text: str) -> None:
        for number in range(3):
            before = answers.get(text, first)
            answers[text] = await client.responses.create(input=f"{text}{number}", previous_response_id=before.id)

    async with anyio.create_task_group() as tasks:
        for text in ("a", "b", "c"):
            tasks.start_soon(go_on, text)
    for text in ("a", "b", "c"):
        last = next(context for context in provider.asked if context[-1].text == f"{text}2")
        assert [message.text for message in last if message.is_user] == ["one", f"{text}0", f"{text}1", f"{text}2"]


async def test_instructions_are_of_one_request_and_no_message(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    first = await client.responses.create(input="one", instructions="Be short.")
    await client.responses.create(input="two", previous_response_id=first.id)
    assert texts_of(provider.asked[0])[0] == "Be short."
    assert texts_of(provider.asked[1])[0] == "Be kind."
    session = await served.manager.find(first.id.split("_", 2)[2])
    assert not any("Be short." in message.text and not message.is_assistant for message in session.messages())
    assert (await client.responses.retrieve(first.id)).instructions == "Be short."


async def test_what_is_not_stored_leaves_nothing(client: AsyncOpenAI, served: Served) -> None:
    kept = await client.responses.create(input="one")
    there = await served.manager.count()
    response = await client.responses.create(input="two", previous_response_id=kept.id, store=False)
    assert response.output_text.endswith("one | two")
    assert response.to_dict()["store"] is False
    alone = await client.responses.create(input="three", store=False)
    assert await served.manager.count() == there
    for gone in (response, alone):
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(gone.id)
    session = await served.manager.find(kept.id.split("_", 2)[2])
    assert [message.text for message in session.messages() if message.is_user] == ["one"]
    async for entry in session.tree.read_entries():
        assert "two" not in str(entry)


async def test_a_conversation_goes_on_by_responses_and_by_chats(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    await served.unix.post("/v1/chat", json={"channel": "telegram", "chat_id": "7", "message": "from a phone"})
    response = await client.responses.create(input="from a program", conversation="telegram_7")
    assert response.conversation is not None
    assert response.conversation.id == "telegram_7"
    await served.unix.post("/v1/chat", json={"channel": "telegram", "chat_id": "7", "message": "from a phone again"})
    said = [message.text for message in provider.asked[-1] if message.is_user]
    assert said == ["from a phone", "from a program", "from a phone again"]
    assert provider.offered == [["time"], [], ["time"]]  # the daemon's own tools are not offered to a program


async def test_chats_and_responses_of_one_session_take_turns(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    await served.manager.get_or_create("telegram", "7")
    done: list[str] = []

    async def respond() -> None:
        await client.responses.create(input="slow program", conversation="telegram_7")
        done.append("program")

    async def chat() -> None:
        await served.unix.post("/v1/chat", json={"channel": "telegram", "chat_id": "7", "message": "phone"})
        done.append("phone")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(respond)
        await provider.slowed.wait()
        tasks.start_soon(chat)
        await until(lambda: served.dispatcher.running == 2)
        assert len(provider.asked) == 1
        provider.gate.set()
    assert done == ["program", "phone"]
    assert [message.text for message in provider.asked[1] if message.is_user] == ["slow program", "phone"]


async def test_leaving_a_conversation_does_not_move_it(client: AsyncOpenAI, provider: Recorder, served: Served) -> None:
    await served.manager.get_or_create("conv", "1")
    inside = await client.responses.create(input="one", conversation="conv_1")
    await client.responses.create(input="two", conversation="conv_1")
    outside = await client.responses.create(input="three", previous_response_id=inside.id)
    await client.responses.create(input="four", conversation="conv_1")
    assert [message.text for message in provider.asked[2] if message.is_user] == ["one", "three"]
    assert [message.text for message in provider.asked[3] if message.is_user] == ["one", "two", "four"]
    assert outside.conversation is None


async def test_a_whole_conversation_can_be_the_input(client: AsyncOpenAI, provider: Recorder) -> None:
    given: Any = [
        {"role": "developer", "content": "Be exact."},
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "thanks"},
    ]
    response = await client.responses.create(input=given)
    assert texts_of(provider.asked[0]) == ["Be kind.", "Be exact.", "weather?", "", "rain", "It rains.", "thanks"]
    items = [item async for item in client.responses.input_items.list(response.id, order="asc", limit=4)]
    kinds = ["message", "message", "function_call", "function_call_output", "message", "message"]
    assert [item.type for item in items] == kinds
    assert len({item.id for item in items}) == 6


# --- functions of the client's ----------------------------------------------------------------------------------------


async def test_a_function_is_called_and_its_output_goes_on(client: AsyncOpenAI, provider: Recorder) -> None:
    first = await client.responses.create(input="call 2", tools=[WEATHER])
    assert (first.status, provider.offered[0]) == ("completed", ["weather"])
    one, two = first.output
    assert one.type == two.type == "function_call"
    assert (one.name, one.arguments, one.status) == ("weather", '{"city": "Oslo"}', "completed")
    outputs: Any = [
        {"type": "function_call_output", "call_id": two.call_id, "output": "snow"},
        {"type": "function_call_output", "call_id": one.call_id, "output": "rain"},
    ]
    second = await client.responses.create(input=outputs, previous_response_id=first.id, tools=[WEATHER])
    assert second.output_text == "I see: Be kind. | call 2 | rain | snow"
    # the same outputs again: another branch from the same response
    third = await client.responses.create(input=outputs, previous_response_id=first.id)
    assert third.output_text == second.output_text
    assert (await client.responses.retrieve(first.id)).output == first.output


async def test_a_call_without_output_is_refused_by_name(client: AsyncOpenAI, provider: Recorder) -> None:
    first = await client.responses.create(input="call 2", tools=[WEATHER])
    one, two = first.output
    assert one.type == two.type == "function_call"
    output: Any = {"type": "function_call_output", "call_id": one.call_id, "output": "rain"}
    user: Any = {"role": "user", "content": "hm"}
    for given, missing in (([output], two.call_id), ([user], one.call_id)):
        with pytest.raises(openai.BadRequestError, match=f"No tool output found for function call {missing}"):
            await client.responses.create(input=given, previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError, match="No tool call found for function call output with call_id"):
        await client.responses.create(input=[output])
    assert len(provider.asked) == 1


async def test_whoever_talks_on_in_a_chat_leaves_the_call_without_output(client: AsyncOpenAI, served: Served) -> None:
    await served.manager.get_or_create("telegram", "7")
    first = await client.responses.create(input="call", tools=[WEATHER], conversation="telegram_7")
    (call,) = first.output
    assert call.type == "function_call"
    await served.unix.post("/v1/chat", json={"channel": "telegram", "chat_id": "7", "message": "never mind"})
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    with pytest.raises(openai.BadRequestError, match="No tool call found"):
        await client.responses.create(input=output, conversation="telegram_7")
    later = await client.responses.create(input=output, previous_response_id=first.id)
    assert later.output_text == "I see: Be kind. | call | rain"


async def test_a_call_that_is_no_json_is_the_models_to_repeat(client: AsyncOpenAI, provider: Recorder) -> None:
    response = await client.responses.create(input="wrong", tools=[WEATHER])
    assert [item.type for item in response.output] == ["message"]
    assert "not valid JSON" in provider.asked[1][-1].text


async def test_what_is_chosen_of_tools_and_words_reaches_the_provider(client: AsyncOpenAI, provider: Recorder) -> None:
    schema: Any = {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}
    await client.responses.create(
        input="x",
        tools=[WEATHER, OTHER],
        tool_choice={"type": "function", "name": "weather"},
        parallel_tool_calls=False,
        max_output_tokens=50,
        temperature=0,
        top_p=0.5,
        reasoning={"effort": "low"},
        text={"format": schema},
    )
    assert provider.options[0].given().keys() == {
        *("temperature", "top_p", "max_output_tokens", "tool_choice", "parallel_tool_calls", "effort", "format")
    }
    assert provider.options[0].tool_choice == "function:weather"
    allowed: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
    await client.responses.create(input="x", tools=[WEATHER, OTHER], tool_choice=allowed)
    assert (provider.offered[1], provider.options[1].tool_choice) == (["other"], "required")


# --- streaming -------------------------------------------------------------------------------------------------------


async def test_a_stream_tells_the_typed_events_in_their_order(client: AsyncOpenAI) -> None:
    events = await events_of(client, input="Hello")
    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    created, completed = events[0], events[-1]
    assert created.type == "response.created"
    assert completed.type == "response.completed"
    assert (created.response.status, created.response.output, created.response.usage) == ("in_progress", [], None)
    assert len(deltas) >= 1
    assert "".join(deltas) == completed.response.output_text == "I see: Be kind. | Hello"
    assert {event.item_id for event in events if event.type == "response.output_text.delta"} == {
        completed.response.output[0].id
    }
    assert await client.responses.retrieve(created.response.id) == completed.response


@pytest.mark.parametrize("text", ["one", "call", "short", "break"])
async def test_a_stream_tells_what_the_document_says(served: Served, text: str) -> None:
    wanted = {"input": text, "tools": [WEATHER], "stream": True}
    stream = (await served.unix.post("/v1/responses", json=wanted)).text
    told = re.findall(r"^event: (.*)\ndata: (.*)$", stream, re.MULTILINE)
    assert told
    for name, data in told:
        shape: Any = EVENTS[name]
        event = msgspec.json.decode(data)
        msgspec.convert(event, shape)
        assert event.keys() == {field.name for field in msgspec.structs.fields(shape)}


async def test_the_packages_own_accumulator_reads_the_stream(client: AsyncOpenAI) -> None:
    async with client.responses.stream(input="call", model="m", tools=[WEATHER]) as stream:
        kinds = [event.type async for event in stream]
        response = await stream.get_final_response()
    assert [kind for kind in kinds if "arguments" in kind] == [
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
    ]
    (call,) = response.output
    assert call.type == "function_call"
    assert call.parsed_arguments == {"city": "Oslo"}


async def test_a_reply_that_is_cut_at_its_limit_is_incomplete(client: AsyncOpenAI) -> None:
    events = await events_of(client, input="short")
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"


async def test_a_model_that_fails_is_told_and_the_conversation_stays_as_it_was(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    await served.manager.get_or_create("conv", "1")
    await client.responses.create(input="one", conversation="conv_1")
    with pytest.raises(openai.InternalServerError, match="out of order") as caught:
        await client.responses.create(input="fail", conversation="conv_1")
    assert caught.value.response.headers["x-should-retry"] == "false"
    events = await events_of(client, input="break off", conversation="conv_1")
    assert events[-1].type == "response.failed"
    failed = events[-1].response
    assert (failed.status, failed.error and failed.error.code) == ("failed", "server_error")
    assert await client.responses.retrieve(failed.id) == failed
    await client.responses.create(input="two", conversation="conv_1")
    assert [message.text for message in provider.asked[-1] if message.is_user] == ["one", "two"]


async def test_a_response_is_cancelled_and_keeps_what_was_said(client: AsyncOpenAI, provider: Recorder) -> None:
    stream = await client.responses.create(input="slow", stream=True)
    created = await anext(aiter(stream))
    assert created.type == "response.created"
    await provider.slowed.wait()
    assert (await client.responses.retrieve(created.response.id)).status == "in_progress"
    cancelled = await client.responses.cancel(created.response.id)
    assert (cancelled.status, cancelled.output_text) == ("cancelled", "I ")
    events = [event async for event in stream]
    assert events[-1].type == "response.incomplete"  # there is no event of one that was cancelled
    assert events[-1].response == cancelled.model_copy(update={"status": "incomplete"})
    assert await client.responses.retrieve(cancelled.id) == cancelled
    assert await client.responses.cancel(cancelled.id) == cancelled
    later = await client.responses.create(input="two", previous_response_id=cancelled.id)
    assert later.output_text == "I see: Be kind. | slow | two"


async def test_a_client_that_goes_away_leaves_a_whole_response(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    stream = await client.responses.create(input="slow", stream=True)
    created = await anext(aiter(stream))
    assert created.type == "response.created"
    await provider.slowed.wait()
    await stream.close()
    provider.gate.set()
    await served.dispatcher.finished()
    assert (await client.responses.retrieve(created.response.id)).output_text == "I see: Be kind. | slow"


# --- what is repeated -------------------------------------------------------------------------------------------------


AGAIN = {"x-stainless-retry-count": "1"}


async def test_what_the_package_sends_again_is_answered_once(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    await served.manager.get_or_create("conv", "1")
    first = await client.responses.create(input="one", conversation="conv_1")
    assert await client.responses.create(input="one", conversation="conv_1", extra_headers=AGAIN) == first
    behind = await client.responses.create(
        input="two", previous_response_id=(await client.responses.create(input="x")).id
    )
    again: Any = {"input": "two", "previous_response_id": behind.previous_response_id, "extra_headers": AGAIN}
    assert await client.responses.create(**again) == behind
    events = await events_of(client, **again)
    assert events[-1].type == "response.completed"
    assert events[-1].response == behind
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == behind.output_text
    assert len(provider.asked) == 3
    # who says the same twice is answered twice
    await client.responses.create(input="one", conversation="conv_1")
    await client.responses.create(input="else", conversation="conv_1")
    later = await client.responses.create(input="one", conversation="conv_1", extra_headers=AGAIN)
    assert [message.text for message in provider.asked[-1] if message.is_user] == ["one", "one", "else", "one"]
    assert later.id != first.id


async def test_a_repeat_is_not_answered_while_the_first_waits_or_is_answered(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    await served.manager.get_or_create("conv", "1")
    named = {"Idempotency-Key": "k"}
    refused: list[str | None] = []

    async def ask(text: str, headers: dict[str, str]) -> None:
        try:
            await client.responses.create(input=text, conversation="conv_1", extra_headers=headers)
        except openai.ConflictError as error:
            refused.append(error.code)

    for first, repeat in ((named, named), ({}, AGAIN)):
        provider.gate, provider.slowed = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "slow", {})
            await provider.slowed.wait()
            tasks.start_soon(ask, "pay 5", first)
            await until(lambda: served.dispatcher.running == 2)
            await ask("pay 5", repeat)
            await ask("pay 5", repeat)
            provider.gate.set()
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(ask, "at once", named)
    assert refused == ["response_in_progress"] * 7
    said = [context[-1].text for context in provider.asked]
    assert (said.count("pay 5"), said.count("at once")) == (2, 1)
    await ask("pay 5", named)
    assert len(provider.asked) == len(said)


async def test_a_response_that_ends_while_it_is_looked_at_has_not_failed_and_is_not_made_twice(
    client: AsyncOpenAI, provider: Recorder, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_slow = True

    async def find_slowly(session: Session, entry_id: str) -> StoredResponse | None:
        nonlocal is_slow
        found = await find_response(session, entry_id)
        if is_slow:  # what was read takes so long that the answer is there meanwhile
            is_slow = False
            provider.gate.set()
            await served.dispatcher.finished()
        return found

    named = {"Idempotency-Key": "k"}
    for look in (
        client.responses.retrieve,
        client.responses.cancel,
        lambda _: client.responses.create(input="slow", extra_headers=named),
    ):
        provider.gate, provider.slowed, asked = anyio.Event(), anyio.Event(), len(provider.asked)
        stream = await client.responses.create(input="slow", stream=True, extra_headers=named)
        created = await anext(aiter(stream))
        assert created.type == "response.created"
        await provider.slowed.wait()
        is_slow = True
        monkeypatch.setattr(response_place, "find_response", find_slowly)
        seen = await look(created.response.id)
        monkeypatch.undo()
        assert (seen.id, seen.status, len(provider.asked)) == (created.response.id, "completed", asked + 1)
        await client.responses.delete(created.response.id)


async def test_a_request_with_a_key_is_answered_once(client: AsyncOpenAI, provider: Recorder, served: Served) -> None:
    await served.manager.get_or_create("conv", "1")
    key = {"Idempotency-Key": "k"}
    places: list[Any] = [{}, {"conversation": "conv_1"}]
    for where in places:
        first = await client.responses.create(input="one", extra_headers=key, **where)
        await client.responses.create(input="else", **where)
        assert await client.responses.create(input="one", extra_headers=key, **where) == first
        inside = await client.responses.create(input="in", previous_response_id=first.id, extra_headers=key)
        assert await client.responses.create(input="in", previous_response_id=first.id, extra_headers=key) == inside
    assert len(provider.asked) == 6
    other = await client.responses.create(input="another", extra_headers=key)
    assert other.output_text == "I see: Be kind. | another"


async def items_in(client: AsyncOpenAI, conversation: str) -> list[str]:
    """What each item says."""
    found: list[Any] = [item async for item in client.conversations.items.list(conversation, order="asc")]
    return [item.content[0].text for item in found]


KEYED = {"Idempotency-Key": "k"}


async def test_a_repeat_takes_nothing_away_that_was_said_since_the_first_failed(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    await served.manager.get_or_create("conv", "1")
    failing = partial(client.responses.create, input="fail", conversation="conv_1", extra_headers=KEYED)
    with pytest.raises(openai.InternalServerError):
        await failing()
    await client.responses.create(input="other", conversation="conv_1")
    await client.conversations.items.create("conv_1", items=[{"role": "user", "content": "item"}])
    provider.is_repaired = True
    answer = await failing()
    assert answer.output_text == "I see: Be kind. | other | item | fail"
    before = ["other", "I see: Be kind. | other", "item"]
    assert await items_in(client, "conv_1") == [*before, "fail", answer.output_text]
    assert await failing() == answer == await client.responses.retrieve(answer.id)


@pytest.mark.parametrize("role", ["user", "assistant"])
async def test_an_answer_that_fails_takes_nothing_away_that_was_said_meanwhile(
    client: AsyncOpenAI, provider: Recorder, served: Served, role: Any
) -> None:
    await served.manager.get_or_create("conv", "1")
    refused: list[str] = []

    async def ask() -> None:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.responses.create(input="slow, and fails", conversation="conv_1", extra_headers=KEYED)
        refused.append(caught.value.message)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await provider.slowed.wait()
        await client.conversations.items.create("conv_1", items=[{"role": role, "content": "item"}])
        provider.gate.set()
    assert refused
    assert await items_in(client, "conv_1") == ["slow, and fails", "item"]


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("text", ["slow", "slow call"])
async def test_what_is_said_while_an_answer_is_made_is_no_part_of_it(
    client: AsyncOpenAI, provider: Recorder, served: Served, text: str, role: Any
) -> None:
    await served.manager.get_or_create("conv", "1")
    answered: list[Response] = []

    async def ask() -> None:
        answered.append(await client.responses.create(input=text, conversation="conv_1", tools=[WEATHER]))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await provider.slowed.wait()
        await client.conversations.items.create("conv_1", items=[{"role": role, "content": "item"}])
        provider.gate.set()
    assert answered[0].status == "completed"
    assert [item.type for item in answered[0].output] == ["function_call" if "call" in text else "message"]
    assert answered[0].output_text == ("" if "call" in text else f"I see: Be kind. | {text}")
    assert await client.responses.retrieve(answered[0].id) == answered[0]


async def cut_off(served: Served, text: str) -> None:
    """What a kill leaves of a request in a conversation: the input, and no answer."""
    wanted = read_request(CreateResponse(input=text, conversation="conv_1"), f"{OWNER.name} k")
    session = await served.manager.find("conv_1")
    async with session.turn(Opening(wanted.messages, mark=(RESPONSE, wanted.mark))):
        pass


async def test_what_was_cut_off_is_tried_again_in_its_place_if_nothing_was_said_since(
    client: AsyncOpenAI, served: Served
) -> None:
    await served.manager.get_or_create("conv", "1")
    await client.responses.create(input="one", conversation="conv_1")
    await cut_off(served, "pay 5")
    await client.responses.create(input="pay 5", conversation="conv_1", extra_headers=KEYED)
    assert (await items_in(client, "conv_1"))[2:] == ["pay 5", "I see: Be kind. | one | pay 5"]


async def test_where_what_was_cut_off_is_tried_again_is_decided_when_its_turn_comes(
    client: AsyncOpenAI, served: Served
) -> None:
    session = await served.manager.get_or_create("conv", "1")
    await cut_off(served, "pay 5")
    async with anyio.create_task_group() as tasks, session.journal.turn_lock:
        ask = partial(client.responses.create, input="pay 5", conversation="conv_1", extra_headers=KEYED)
        tasks.start_soon(ask)
        await until(lambda: session.journal.turn_lock.waiting == 1)
        await client.conversations.items.create("conv_1", items=[{"role": "user", "content": "item"}])
    assert (await items_in(client, "conv_1"))[:3] == ["pay 5", "item", "pay 5"]


async def test_a_deleted_response_is_not_given_out_again_to_its_key(client: AsyncOpenAI, served: Served) -> None:
    await served.manager.get_or_create("conv", "1")
    ask = partial(client.responses.create, input="one", conversation="conv_1", extra_headers=KEYED)
    first = await ask()
    await client.responses.delete(first.id)
    second = await ask()
    assert second.output_text == "I see: Be kind. | one | one"
    assert await ask() == second == await client.responses.retrieve(second.id)
    begin = partial(client.responses.create, input="one", extra_headers=KEYED)
    first = await begin()
    await client.responses.create(input="two", previous_response_id=first.id)
    await client.responses.delete(first.id)
    second = await begin()
    assert second.output_text == "I see: Be kind. | one"
    assert await begin() == second == await client.responses.retrieve(second.id)


# --- what is kept, and refused ----------------------------------------------------------------------------------------


async def test_a_deleted_response_is_gone_and_its_session_with_the_last(client: AsyncOpenAI, served: Served) -> None:
    first = await client.responses.create(input="one")
    second = await client.responses.create(input="two", previous_response_id=first.id)
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="Previous response with id") as caught:
        await client.responses.create(input="x", previous_response_id=first.id)
    assert caught.value.code == "previous_response_not_found"
    assert (await client.responses.retrieve(second.id)).output_text.endswith("one | two")
    await client.responses.delete(second.id)
    assert await served.manager.count() == 0


async def test_a_deleted_response_takes_none_with_it_that_was_given_meanwhile(
    client: AsyncOpenAI, served: Served
) -> None:
    first = await client.responses.create(input="one")
    session = await served.manager.find(first.id.split("_", 2)[2])
    given: list[Response] = []

    async def go_on() -> None:
        given.append(await client.responses.create(input="two", previous_response_id=first.id))

    async with anyio.create_task_group() as tasks, session.journal.between_turns():
        tasks.start_soon(go_on)
        await until(lambda: session.journal.turn_lock.waiting == 1)
        tasks.start_soon(client.responses.delete, first.id)
        await until(lambda: session.journal.turn_lock.waiting == 2)
    (second,) = given
    assert await client.responses.retrieve(second.id) == second
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(first.id)


@pytest.mark.parametrize(
    ("wanted", "param", "code"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_value"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name", "invalid_value"),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name", "invalid_value"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"include": ["message.output_text.logprobs"]}, "include", "unsupported_parameter"),
        ({"service_tier": "flex"}, "service_tier", "unsupported_parameter"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "unsupported_parameter"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "invalid_value"),
        ({"temperature": 3}, "temperature", "invalid_request"),
        ({"input": []}, "input", "missing_required_parameter"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type", "unsupported_parameter"),
        ({"input": [{"role": "assistant", "content": "x"}]}, "input", "invalid_value"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_not_found"),
        ({"previous_response_id": "resp_1", "conversation": "c"}, "conversation", "mutually_exclusive_parameters"),
    ],
)
async def test_what_nothing_here_can_do_is_refused_by_name(  # noqa: PLR0917 - fixtures
    client: AsyncOpenAI, provider: Recorder, served: Served, wanted: dict[str, Any], param: str, code: str
) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(**{"input": "x", **wanted}, stream=stream)
        assert (caught.value.param, caught.value.code, caught.value.type) == (param, code, "invalid_request_error")
    assert (provider.asked, await served.manager.count()) == ([], 0)


async def test_what_asks_for_nothing_is_let_through(client: AsyncOpenAI) -> None:
    response = await client.responses.create(
        input="x",
        model="any-name",
        background=False,
        include=["reasoning.encrypted_content"],
        service_tier="auto",
        prompt_cache_key="k",
        safety_identifier="s",
        top_logprobs=0,
        parallel_tool_calls=True,
        reasoning={"summary": "auto"},
        text={"format": {"type": "text"}},
        stream=False,
    )
    assert (response.prompt_cache_key, response.safety_identifier, response.service_tier) == ("k", "s", "default")


async def test_what_is_not_there_is_not_found(client: AsyncOpenAI) -> None:
    for call in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            await call("resp_0123")
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(input="x", conversation="conv_none")
    with pytest.raises(openai.BadRequestError):
        await client.responses.retrieve("resp_0123", stream=True)


@pytest.mark.parametrize(
    "data",
    [
        {"inputs": "x"},
        {"inputs": 1, "tools": [1]},
        {"inputs": 0, "text": "x"},
        {"inputs": 0, "reasoning": 7},
        {"inputs": -1},
        {"inputs": 0, "status": "completed"},
        {},
    ],
)
async def test_what_only_looks_like_a_response_is_none(
    client: AsyncOpenAI, served: Served, data: dict[str, Any]
) -> None:
    entry = {"type": "custom", "custom_type": "openai.response", "data": data}
    await served.manager.get_or_create("telegram", "1")
    made = (await served.unix.post("/v1/sessions/telegram_1/entries", json=entry)).json()["id"]
    await served.unix.post("/v1/sessions/telegram_1/messages", json={"role": "user", "content": "x"})
    name = response_id("telegram_1", made)
    for call in (client.responses.retrieve, client.responses.input_items.list, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            await call(name)
    assert (await client.responses.create(input="y", conversation="telegram_1")).status == "completed"


@pytest.mark.parametrize("calls", [5, ["a"], [{"x": 1}], None])
async def test_what_only_looks_like_a_suspension_is_none(client: AsyncOpenAI, served: Served, calls: Any) -> None:
    await served.manager.get_or_create("telegram", "1")
    entry = {"type": "custom", "custom_type": SUSPENDED, "data": {"calls": calls}}
    assert (await served.unix.post("/v1/sessions/telegram_1/entries", json=entry)).status_code == 201
    response = await client.responses.create(input="y", conversation="telegram_1")
    assert response.output_text == "I see: Be kind. | y"
    kept_out = await client.responses.create(input="z", conversation="telegram_1", store=False)
    assert kept_out.status == "completed"


async def test_what_is_deleted_while_a_response_waits_stays_deleted(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    await served.manager.get_or_create("conv", "1")
    root = await client.responses.create(input="root")
    caught: list[openai.APIStatusError] = []

    async def wait(**where: Any) -> None:
        try:
            await client.responses.create(input="waiting", **where)
        except openai.APIStatusError as error:
            caught.append(error)

    async def slow(**where: Any) -> None:
        with suppress(openai.APIStatusError):
            await client.responses.create(input="slow", **where)

    for where in ({"conversation": "conv_1"}, {"previous_response_id": root.id}):
        provider.gate, provider.slowed = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(slow, **where))
            await until(lambda: served.dispatcher.running == 1)
            tasks.start_soon(partial(wait, **where))
            await until(lambda: served.dispatcher.running == 2)
            session_id = "conv_1" if "conversation" in where else root.id.split("_", 2)[2]
            tasks.start_soon(partial(served.unix.delete, f"/v1/sessions/{session_id}"))
            lock = (await served.manager.find(session_id)).journal.turn_lock
            await until(lambda: lock.waiting == 1)  # noqa: B023 - it ends within the round
            await provider.slowed.wait()
            provider.gate.set()
        assert await served.manager.count() == (1 if "conversation" in where else 0)
    assert [error.status_code for error in caught] == [404, 400]


async def test_what_is_not_stored_is_told_to_nobody_who_watches(client: AsyncOpenAI, served: Served) -> None:
    told: list[str] = []
    served.manager.events.turns.subscribe(lambda event: told.append(event.kind))
    await client.responses.create(input="x", store=False)
    assert told == []
    await client.responses.create(input="x")
    assert "done" in told
