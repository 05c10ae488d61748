"""`/v1/chat/completions`, asked by the unmodified `openai` package over a real socket; what the model gets is noted."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import anyio
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.config import ChannelSettings
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.files.formats.attached import attached_to
from miniclaw_sessions.service.api.openai import response_place
from miniclaw_sessions.service.api.openai.known_branches import _known
from tests.agent.test_reading import Ears
from tests.service.gateway.conftest import Served
from tests.service.gateway.test_responses import WEATHER, Recorder
from tests.texts import texts_of

pytestmark = pytest.mark.anyio

MODEL = Recorder
SYSTEM_PROMPT = "Be kind."

Turns = list[dict[str, Any]]
TOOL: Any = {"type": "function", "function": {name: WEATHER[name] for name in ("name", "description", "parameters")}}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
    "awAAAABJRU5ErkJggg=="
)
PDF = "data:application/pdf;base64,JVBERi0xLjQK"
AGAIN = {"x-stainless-retry-count": "1"}


@pytest.fixture
def channel_settings() -> ChannelSettings:
    return ChannelSettings(max_waiting_per_chat=5, max_messages=20)


async def say(client: AsyncOpenAI, turns: Turns, text: str, **wanted: Any) -> str:
    """Send the whole conversation with a new question, and add both to it, as a client does that keeps it itself."""
    turns.append({"role": "user", "content": text})
    completion = await client.chat.completions.create(model="any", messages=turns, **wanted)  # type: ignore[arg-type]
    said = completion.choices[0].message
    turns.append(said.model_dump(exclude_none=True))
    return said.content or ""


async def sessions_of(served: Served) -> list[str]:
    return sorted([one.session_id for one in await served.manager.list()])


async def entries_in(served: Served, session_id: str) -> int:
    """How many messages are kept in a session, on all its branches."""
    session = await served.manager.find(session_id)
    return len([one async for one in session.tree.read_entries() if hasattr(one, "message")])


async def only_session(served: Served) -> str:
    (session_id,) = await sessions_of(served)
    return session_id


def seen(provider: Recorder) -> list[str]:
    """What the model was sent last."""
    return texts_of(provider.asked[-1])


# --- the form --------------------------------------------------------------------------------------------------------


async def test_a_completion_is_what_the_package_expects(client: AsyncOpenAI) -> None:
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    completion = await client.chat.completions.create(model="any", messages=messages)
    (choice,) = completion.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == (
        "assistant",
        "I see: Be brief. | hello",
        "stop",
    )
    assert completion.model == "recorder"
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens, completion.usage.total_tokens) == (
        7,
        7,
        14,
    )
    assert ChatCompletion.model_validate(completion.model_dump()) == completion
    # the response that is kept has the same id
    kept = await client.responses.retrieve(completion.id.replace("chatcmpl-", "resp_"))
    assert kept.output_text == choice.message.content


async def test_a_stream_says_what_the_document_says(client: AsyncOpenAI) -> None:
    messages: Any = [{"role": "user", "content": "one two three"}]
    whole = await client.chat.completions.create(model="any", messages=messages, store=False)
    stream = await client.chat.completions.create(
        model="any", messages=messages, store=False, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1
    plain = await client.chat.completions.create(model="any", messages=messages, store=False, stream=True)
    assert all(chunk.choices for chunk in [chunk async for chunk in plain])


async def test_the_packages_own_accumulator_reads_the_stream(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model="any", messages=[{"role": "user", "content": "call 2"}], tools=[TOOL]
    ) as stream:
        whole = await stream.get_final_completion()
    calls = whole.choices[0].message.tool_calls or []
    assert [(call.function.name, call.function.arguments) for call in calls] == [("weather", '{"city": "Oslo"}')] * 2
    assert whole.choices[0].finish_reason == "tool_calls"


async def test_an_answer_that_is_cut_at_its_limit_says_so(client: AsyncOpenAI) -> None:
    completion = await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "short"}])
    assert completion.choices[0].finish_reason == "length"


# --- the conversation ------------------------------------------------------------------------------------------------


async def test_a_client_that_sends_everything_each_time_has_one_conversation_that_is_kept_once(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    turns: Turns = [{"role": "system", "content": "Be brief."}]
    for number in range(5):
        await say(client, turns, f"question {number}")
    assert seen(provider)[1::2] == [f"question {number}" for number in range(5)]
    assert await entries_in(served, await only_session(served)) == 10


async def test_a_conversation_goes_on_after_everything_in_memory_is_gone(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    turns: Turns = []
    await say(client, turns, "one")
    _known.clear()
    await say(client, turns, "two")
    assert await entries_in(served, await only_session(served)) == 4
    assert [one for one in seen(provider) if not one.startswith("I see")] == ["Be kind.", "one", "two"]


async def test_a_question_that_is_edited_or_asked_again_is_another_branch(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    turns: Turns = []
    await say(client, turns, "one")
    await say(client, turns, "two")
    edited, again = turns[:2], turns[:2]
    await say(client, edited, "another two")
    assert "two" not in seen(provider)
    await say(client, again, "two")
    begun_anew: Turns = []
    await say(client, begun_anew, "one")
    assert seen(provider) == ["Be kind.", "one"]
    session = await served.manager.find(await only_session(served))
    assert len((await session.tree.get_transcript()).leaves) == 4
    assert await entries_in(served, session.session_id) == 10  # each question and answer once on its branch


async def test_what_a_client_changes_of_the_space_in_an_answer_does_not_part_the_conversation(
    client: AsyncOpenAI, served: Served
) -> None:
    turns: Turns = []
    await say(client, turns, "one\n")
    turns[-1]["content"] = "\n" + turns[-1]["content"].replace(" ", "  ")
    turns[0] = {"role": "user", "content": [{"type": "text", "text": "one"}]}
    await say(client, turns, "two")
    assert await entries_in(served, await only_session(served)) == 4


async def test_a_history_that_was_made_elsewhere_is_kept_and_shown_to_the_model(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    turns: Turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello from elsewhere"},
    ]
    await say(client, turns, "go on")
    assert seen(provider) == ["Be kind.", "hi", "hello from elsewhere", "go on"]
    await say(client, turns, "and on")
    assert await entries_in(served, await only_session(served)) == 6


async def test_five_clients_at_once_find_each_its_own_branch(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    async def talk(name: str) -> None:
        turns: Turns = []
        await say(client, turns, "hello")
        for number in range(4):
            said = await say(client, turns, f"{name} {number}")
            others = {f"client {other}" for other in range(5)} - {name}
            assert not [other for other in others if other in said]
            assert said.count(name) == number + 1

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(talk, f"client {number}")
    assert len(provider.asked) == 25
    session_id = await only_session(served)
    transcript = await (await served.manager.find(session_id)).tree.get_transcript()
    assert len(transcript.leaves) >= 5  # some of the five same openings may be left
    assert await entries_in(served, session_id) == 50


@pytest.mark.parametrize(
    "apart",
    [
        {"user": "ann"},
        {"safety_identifier": "ann"},
        {"extra_headers": {"X-Conversation-Id": "ann"}},
        {"extra_headers": {"X-OpenWebUI-Chat-Id": "ann"}},
    ],
    ids=["user", "safety-identifier", "conversation-id", "open-webui"],
)
async def test_persons_and_chats_that_a_client_keeps_apart_have_sessions_of_their_own(
    client: AsyncOpenAI, provider: Recorder, served: Served, apart: dict[str, Any]
) -> None:
    ann: Turns = []
    ben: Turns = []
    await say(client, ben, "hello")
    await say(client, ann, "hello", **apart)
    assert len(await sessions_of(served)) == 2
    await say(client, ann, "again", **apart)
    assert [one for one in seen(provider) if not one.startswith("I see")] == ["Be kind.", "hello", "again"]
    assert len(await sessions_of(served)) == 2


async def test_all_of_a_clients_own_chat_is_in_one_session(client: AsyncOpenAI, served: Served) -> None:
    named = {"extra_headers": {"X-Conversation-Id": "chat 1"}}
    turns: Turns = []
    await say(client, turns, "one", **named)
    edited: Turns = []
    await say(client, edited, "one, but edited", **named)
    session = await served.manager.find(await only_session(served))
    assert len((await session.tree.get_transcript()).leaves) == 2


async def test_what_is_not_stored_leaves_nothing(client: AsyncOpenAI, provider: Recorder, served: Served) -> None:
    turns: Turns = []
    await say(client, turns, "one", store=False)
    await say(client, turns, "two", store=False)
    assert seen(provider)[1::2] == ["one", "two"]
    assert await sessions_of(served) == []


# --- a session that is named -----------------------------------------------------------------------------------------


async def test_what_is_said_in_a_named_session_is_its_next_turn(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    session = await served.manager.get_or_create("telegram", "7")
    await session.add_message(Message.user("I am Ada."))
    await session.add_message(Message.assistant("Hello Ada."))
    named: Any = {"metadata": {"session": "telegram_7"}}
    turns: Turns = []
    await say(client, turns, "who am I?", **named)
    assert seen(provider) == ["Be kind.", "I am Ada.", "Hello Ada.", "who am I?"]
    await say(client, turns, "sure?", **named)  # what the client sends of before is there already
    assert [one for one in texts_of(session.messages()) if not one.startswith("I see")] == [
        "I am Ada.",
        "Hello Ada.",
        "who am I?",
        "sure?",
    ]


async def test_a_named_session_is_made_with_the_whole_conversation_if_there_is_none(
    client: AsyncOpenAI, served: Served
) -> None:
    turns: Turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    named: Any = {"metadata": {"session": "web_1"}}
    await say(client, turns, "one", **named)
    await say(client, turns, "two", **named)
    session = await served.manager.find("web_1")
    assert [one for one in texts_of(session.messages()) if not one.startswith("I see")] == ["hi", "hello", "one", "two"]
    with pytest.raises(openai.BadRequestError) as raised:
        await client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "x"}], metadata={"session": "no channel"}
        )
    assert raised.value.param == "metadata.session"


async def test_the_first_question_of_a_named_session_is_answered_once_though_it_is_repeated(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    turns: Any = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    named: Any = {"messages": [*turns, {"role": "user", "content": "one"}], "metadata": {"session": "web_1"}}
    first = await client.chat.completions.create(model="any", **named)
    again = await client.chat.completions.create(model="any", extra_headers=AGAIN, **named)
    assert again == first
    assert len(provider.asked) == 1
    assert await entries_in(served, "web_1") == 4


# --- tools and pictures ----------------------------------------------------------------------------------------------


async def test_a_tool_is_called_and_its_result_goes_on(client: AsyncOpenAI, provider: Recorder, served: Served) -> None:
    turns: Turns = [{"role": "user", "content": "call 2"}]
    first = await client.chat.completions.create(model="any", messages=turns, tools=[TOOL])  # type: ignore[arg-type]
    said = first.choices[0].message
    assert (said.content, first.choices[0].finish_reason) == (None, "tool_calls")
    assert said.tool_calls is not None
    turns.append(said.model_dump(exclude_none=True))
    turns += [
        {"role": "tool", "tool_call_id": call.id, "content": f"{text}"}
        for call, text in zip(said.tool_calls, ("rain", "snow"), strict=True)
    ]
    second = await client.chat.completions.create(model="any", messages=turns, tools=[TOOL])  # type: ignore[arg-type]
    assert second.choices[0].message.content == "I see: Be kind. | call 2 | rain | snow"
    assert provider.offered == [["weather"], ["weather"]]
    turns.append(second.choices[0].message.model_dump(exclude_none=True))
    await say(client, turns, "thanks")
    assert await entries_in(served, await only_session(served)) == 7


async def test_a_picture_is_shown_to_the_model_and_kept_once(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    look: Any = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    turns: Turns = [{"role": "user", "content": look}]
    completion = await client.chat.completions.create(model="any", messages=turns)  # type: ignore[arg-type]
    turns.append(completion.choices[0].message.model_dump(exclude_none=True))
    await say(client, turns, "and now?")
    assert [part.__class__.__name__ for part in provider.asked[-1][1].content] == ["TextPart", "ImagePart"]
    assert await entries_in(served, await only_session(served)) == 4


async def test_files_are_shown_to_a_model_that_takes_them_and_kept_once(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    provider.takes = {"application/pdf", "audio/wav"}  # type: ignore[attr-defined]
    text = base64.b64encode(b"Buy milk.\n").decode()
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}},
        {"type": "file", "file": {"filename": "b.pdf", "file_data": PDF.partition(",")[2]}},  # base64 alone
        {"type": "file", "file": {"filename": "n.txt", "file_data": f"data:application/pdf;base64,{text}"}},
        {"type": "file", "file": {"filename": "p.png", "file_data": PIXEL}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    ]
    turns: Turns = [{"role": "user", "content": parts}]
    assert "Buy milk." in await say(client, turns, "and more?")
    assert "Buy milk." in await say(client, turns, "and now?")
    shown: Any = provider.asked[-1][1]
    assert [(part.name, part.media_type) for part in attached_to(shown.content)] == [
        *(("a.pdf", "application/pdf"), ("b.pdf", "application/pdf"), ("sound.wav", "audio/wav"))
    ]
    assert [type(part).__name__ for part in shown.content][3:5] == ["TextPart", "ImagePart"]
    assert await entries_in(served, await only_session(served)) == 5
    provider.takes = {"audio/wav"}  # type: ignore[attr-defined]
    with pytest.raises(openai.BadRequestError, match="recorder takes texts and WAV sound, and no PDF") as caught:
        await say(client, turns, "and then?")
    assert caught.value.param == "messages[0].content[1].file.file_data"


def spoken(data: bytes) -> list[dict[str, Any]]:
    sound = {"data": base64.b64encode(data).decode(), "format": "wav"}
    return [{"type": "input_audio", "input_audio": sound}]


async def test_a_sound_is_heard_for_a_model_that_takes_none_and_its_branch_is_found_again(
    client: AsyncOpenAI, provider: Recorder, served: Served, agent: Agent
) -> None:
    with pytest.raises(openai.BadRequestError, match="takes texts and pictures, and no WAV sound"):
        await say(client, [{"role": "user", "content": spoken(b"RIFF1")}], "well?")
    agent.readers = [ears := Ears()]
    turns: Turns = [{"role": "user", "content": spoken(b"RIFF1")}]
    completion = await client.chat.completions.create(model="any", messages=turns)  # type: ignore[arg-type]
    assert seen(provider)[-1] == "buy milk\n[said aloud, in sound.wav]\n"
    turns.append(completion.choices[0].message.model_dump(exclude_none=True))
    await say(client, turns, "and now?")
    assert [text for text in seen(provider) if "said aloud" in text]
    assert await entries_in(served, await only_session(served)) == 4  # the same branch, nothing of it again
    kept = await client.responses.input_items.list(completion.id.replace("chatcmpl-", "resp_"))
    (item,) = kept.data
    assert [part.text for part in item.content] == ["(a file of type audio/wav, which cannot be shown)"]  # type: ignore[union-attr]
    assert len(ears.heard) == 1


async def test_another_sound_is_another_conversation(client: AsyncOpenAI, served: Served, agent: Agent) -> None:
    agent.readers = [ears := Ears()]
    for data in (b"RIFF1", b"RIFF2", b"RIFF1"):
        turns: Any = [{"role": "user", "content": spoken(data)}]
        await client.chat.completions.create(model="any", messages=turns, extra_headers=AGAIN)
    assert len(await sessions_of(served)) == 2  # the third one says that it is the first one, sent again
    assert [sound.data for sound in ears.heard] == ["UklGRjE=", "UklGRjI="]


async def test_options_reach_the_model_and_stop_and_penalties_too(client: AsyncOpenAI, provider: Recorder) -> None:
    await client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "x"}],
        temperature=0.5,
        top_p=0.9,
        max_tokens=100,
        stop=["END"],
        frequency_penalty=0.5,
        presence_penalty=0,
        reasoning_effort="low",
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        n=1,
        logprobs=False,
        seed=7,
    )
    options = provider.options[-1]
    assert (options.temperature, options.top_p, options.max_output_tokens, options.stop) == (0.5, 0.9, 100, ("END",))
    assert (options.frequency_penalty, options.presence_penalty, options.effort) == (0.5, None, "low")
    assert options.tool_choice == "function:weather"
    assert options.format is not None
    assert (options.format.name, options.format.schema) == ("a", {"type": "object"})


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ({"messages": [{"role": "alien", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "messages[0].content[0].input_audio.data",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}]},
            "messages[0].content[0].file.file_id",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": PDF}}]}]},
            "messages[0].content[0].file.file_data",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": "!"}}]}]},
            "messages[0].content[0].file.file_data",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png,!"}}]}
                ]
            },
            "messages[0].content[0].image_url",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "tool", "tool_call_id": "a", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}, "messages"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]}]},
            "messages[0].tool_calls[0].function",
        ),
        ({"messages": []}, "messages"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"verbosity": "low"}, "verbosity"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_nothing_here_can_do_is_refused_by_its_own_name(
    client: AsyncOpenAI, provider: Recorder, served: Served, wanted: dict[str, Any], param: str
) -> None:
    asked: Any = {"messages": [{"role": "user", "content": "x"}], **wanted}
    with pytest.raises(openai.BadRequestError) as raised:
        await client.chat.completions.create(model="any", **asked)
    assert raised.value.param == param
    assert provider.asked == []
    assert await sessions_of(served) == []


async def test_a_model_that_fails_is_told_and_the_same_question_may_be_asked_again(
    client: AsyncOpenAI, provider: Recorder
) -> None:
    turns: Turns = []
    await say(client, turns, "one")
    failing = [*turns, {"role": "user", "content": "fail"}]
    with pytest.raises(openai.InternalServerError):
        await client.chat.completions.create(model="any", messages=failing)  # type: ignore[arg-type]
    breaking: Any = [*turns, {"role": "user", "content": "break"}]
    stream = await client.chat.completions.create(model="any", messages=breaking, stream=True)
    with pytest.raises(openai.APIError, match="out of order"):
        _ = [chunk async for chunk in stream]
    provider.is_repaired = True
    await say(client, turns, "fail")
    assert [one for one in seen(provider) if not one.startswith("I see")] == ["Be kind.", "one", "fail"]


# --- what is repeated ------------------------------------------------------------------------------------------------


async def test_a_request_that_the_package_repeats_is_answered_once(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    messages: Any = [{"role": "user", "content": "one"}]
    first = await client.chat.completions.create(model="any", messages=messages)
    again = await client.chat.completions.create(model="any", messages=messages, extra_headers=AGAIN)
    assert again == first
    messages += [first.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "two"}]
    second = await client.chat.completions.create(model="any", messages=messages)
    assert await client.chat.completions.create(model="any", messages=messages, extra_headers=AGAIN) == second
    stream = await client.chat.completions.create(model="any", messages=messages, extra_headers=AGAIN, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == second.choices[0].message.content
    assert len(provider.asked) == 2
    assert await entries_in(served, await only_session(served)) == 4


async def test_a_question_that_was_asked_long_ago_is_asked_anew_also_by_a_repeat(
    client: AsyncOpenAI, provider: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: Any = [{"role": "user", "content": "one"}]
    first = await client.chat.completions.create(model="any", messages=messages)
    monkeypatch.setattr(response_place, "REMEMBERED", timedelta(0))  # it was more than a minute ago
    again = await client.chat.completions.create(model="any", messages=messages, extra_headers=AGAIN)
    assert again.id != first.id
    assert len(provider.asked) == 2


async def test_a_request_with_a_key_is_answered_once(client: AsyncOpenAI, provider: Recorder) -> None:
    messages: Any = [{"role": "user", "content": "one"}]
    named = {"Idempotency-Key": "k1"}
    first = await client.chat.completions.create(model="any", messages=messages, extra_headers=named)
    assert await client.chat.completions.create(model="any", messages=messages, extra_headers=named) == first
    other = await client.chat.completions.create(
        model="any", messages=messages, extra_headers={"Idempotency-Key": "k2"}
    )
    assert other.id != first.id
    assert len(provider.asked) == 2


# --- models ----------------------------------------------------------------------------------------------------------


async def test_a_model_is_found_by_its_name(client: AsyncOpenAI) -> None:
    (first, *_) = (await client.models.list()).data
    assert await client.models.retrieve(first.id) == first
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("none")
