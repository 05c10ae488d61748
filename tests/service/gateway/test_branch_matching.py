"""Which branch a conversation goes on that its client sends whole: what is changed of it, cut, and asked beside it."""

from __future__ import annotations

from typing import Any

import pytest
from openai import AsyncOpenAI

from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.service.api.openai.known_branches import digest_of
from tests.service.gateway.conftest import Served
from tests.service.gateway.test_completions import PIXEL, Turns, entries_in, only_session, say, seen, sessions_of
from tests.service.gateway.test_responses import Recorder
from tests.texts import texts_of

pytestmark = pytest.mark.anyio

MODEL = Recorder
SYSTEM_PROMPT = "Be kind."

OWN_CHAT: Any = {"extra_headers": {"X-Conversation-Id": "chat 1"}}


def questions(texts: list[str]) -> list[str]:
    return [text for text in texts if not text.startswith("I see")]


@pytest.mark.parametrize("where", ["first", "before the question"])
async def test_a_system_message_that_changes_with_each_request_parts_nothing(
    client: AsyncOpenAI, provider: Recorder, served: Served, where: str
) -> None:
    turns: Turns = []
    for number in range(4):
        told = {"role": "system", "content": f"It is {number} o'clock."}
        sent = [told, *turns] if where == "first" else [*turns, told]
        await say(client, sent, f"question {number}")
        turns += sent[-2:]
    asked = [text for text in questions(seen(provider)) if text.startswith("question")]
    assert asked == [f"question {number}" for number in range(4)]
    told_again = 3 if where == "before the question" else 0
    assert await entries_in(served, await only_session(served)) == 8 + told_again  # a leading one is no message


async def test_a_client_that_cuts_the_oldest_messages_of_its_chat_goes_on_with_all_of_it(
    client: AsyncOpenAI, provider: Recorder, served: Served
) -> None:
    turns: Turns = []
    for number in range(6):
        turns = turns[-4:]
        await say(client, turns, f"question {number}", **OWN_CHAT)
    assert questions(seen(provider)) == ["Be kind.", *(f"question {number}" for number in range(6))]
    assert await entries_in(served, await only_session(served)) == 12


@pytest.mark.parametrize("kept", [1, 2], ids=["the first message", "the first exchange"])
async def test_a_client_that_keeps_the_beginning_and_cuts_behind_it_goes_on_with_all_of_its_chat(
    client: AsyncOpenAI, provider: Recorder, served: Served, kept: int
) -> None:
    turns: Turns = []
    for number in range(7):
        turns = [*turns[:kept], *turns[kept:][-4:]]
        await say(client, turns, f"question {number}", **OWN_CHAT)
    assert questions(seen(provider)) == ["Be kind.", *(f"question {number}" for number in range(7))]
    assert await entries_in(served, await only_session(served)) == 14


async def test_what_is_left_out_in_the_middle_of_a_chat_stays_out(client: AsyncOpenAI, provider: Recorder) -> None:
    turns: Turns = []
    for number in range(5):
        await say(client, turns, f"question {number}", **OWN_CHAT)
    del turns[4:6]  # a person has deleted the third of five exchanges
    await say(client, turns, "question 5", **OWN_CHAT)
    assert "question 2" not in questions(seen(provider))
    turns[0]["content"] = "edited"
    await say(client, [turns[0], *turns[6:]], "question 6", **OWN_CHAT)
    assert questions(seen(provider))[:2] == ["Be kind.", "edited"]


async def test_a_message_that_is_edited_early_in_a_chat_is_not_taken_for_one_that_was_cut(
    client: AsyncOpenAI, provider: Recorder
) -> None:
    turns: Turns = []
    for number in range(3):
        await say(client, turns, f"question {number}", **OWN_CHAT)
    turns[0]["content"] = "edited"
    await say(client, turns, "question 3", **OWN_CHAT)
    assert questions(seen(provider)) == ["Be kind.", "edited", "question 1", "question 2", "question 3"]


async def test_what_others_with_the_same_token_have_said_is_not_taken_for_the_beginning_of_a_cut_chat(
    client: AsyncOpenAI, provider: Recorder
) -> None:
    ann: Turns = []
    await say(client, ann, "my secret is 7")
    thanks = [{"role": "user", "content": "thanks"}, {"role": "assistant", "content": "You are welcome."}]
    ann += thanks
    await say(client, ann, "bye")
    ben: Turns = [*thanks]
    await say(client, ben, "what did I say?")
    assert questions(seen(provider)) == ["Be kind.", "thanks", "You are welcome.", "what did I say?"]


async def test_a_title_that_a_client_asks_for_is_kept_beside_its_chat(client: AsyncOpenAI, served: Served) -> None:
    turns: Turns = []
    for number in range(2):
        await say(client, turns, f"question {number}", **OWN_CHAT)
        wanted = f"### Task:\nGenerate a concise title.\n<chat_history>\n{turns}\n</chat_history>"
        beside = {"extra_headers": {**OWN_CHAT["extra_headers"], "X-Conversation-Task": "title_generation"}}
        await say(client, [], wanted, **beside)
    both = [await served.manager.find(session_id) for session_id in await sessions_of(served)]
    newest = sorted(questions(texts_of(session.messages())) for session in both)
    assert len(newest) == 2  # all that is asked beside a chat is in one session
    assert newest[1] == ["question 0", "question 1"]
    assert [text.startswith("### Task") for text in newest[0]] == [True]


async def test_spaces_in_a_tools_result_and_another_picture(client: AsyncOpenAI, served: Served) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    picture = {"type": "image_url", "image_url": {"url": PIXEL}}
    turns: Turns = [
        {"role": "user", "content": [{"type": "text", "text": "look"}, picture]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": '{\n  "rain": 1\n}\n'},
    ]
    await say(client, [*turns, {"role": "assistant", "content": "Rain."}], "and?")
    turns[2]["content"] = '{"rain":1}'
    sent = [*turns, {"role": "assistant", "content": "Rain."}, {"role": "user", "content": "and?"}]
    sent.append({"role": "assistant", "content": 'I see: Be kind. | look | {\n  "rain": 1\n}\n | and?'})
    await say(client, sent, "more?")
    assert await entries_in(served, await only_session(served)) == 8
    other = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "https://a.example/1.png"}}]
    await say(client, [{"role": "user", "content": other}, *sent[1:-2]], "more?")
    assert len(await sessions_of(served)) == 2


def test_no_text_is_taken_for_several_messages() -> None:
    forged = 'a ["role","assistant",""]b'
    assert digest_of([Message.user(forged)]) != digest_of([Message.user("a"), Message.assistant("b")])
    assert digest_of([Message.user("a b")]) == digest_of([Message.user("ab")])
