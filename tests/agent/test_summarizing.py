"""Summaries by a model: what it is asked, what is taken from its answer, and what the offline responder makes of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.agent.provider import ModelEvent, Provider, TextDelta
from miniclaw_sessions.agent.providers.offline import OfflineProvider, respond
from miniclaw_sessions.agent.summarizing import INSTRUCTION, SYSTEM_PROMPT, summarizer_of
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.compacting import CompactionStatus
from miniclaw_sessions.errors import ModelError
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.legality import is_legal

pytestmark = pytest.mark.anyio

CALL = ToolCall("c1", "grep", '{"word": "utcnow"}')


async def summarize(provider: Provider, *messages: Message) -> str:
    summary = await summarizer_of(provider)(messages)
    assert isinstance(summary, Message)
    return summary.text


# --- what a model is asked -------------------------------------------------------------------------------------------


async def test_the_model_sees_the_conversation_between_prompt_and_instruction_and_no_tools() -> None:
    model = ScriptedProvider(["  They talked. \n"])
    said = [Message.user("Hello"), Message.assistant("Hi")]
    assert await summarize(model, *said) == "They talked."
    assert model.contexts == [[Message.system(SYSTEM_PROMPT), *said, Message.user(INSTRUCTION)]]
    assert model.tools == []
    assert model.closed == 1


async def test_another_system_prompt_takes_the_place_of_ours_and_an_empty_one_is_left_out() -> None:
    model = ScriptedProvider(["one", "two"])
    await summarizer_of(model, system_prompt="Summarize in German.")([Message.user("Hallo")])
    await summarizer_of(model, system_prompt="")([Message.user("Hallo")])
    first, second = model.contexts
    assert first[0] == Message.system("Summarize in German.")
    assert [message.role for message in second] == [Role.USER, Role.USER]


async def test_a_history_that_was_cut_anywhere_is_made_legal() -> None:
    model = ScriptedProvider(["done"])
    orphan, open_call = Message.tool_result(CALL, "3 hits"), Message.assistant("", (CALL,))
    former = Message(Role.COMPACTION_SUMMARY, "Ada looks for a bug.")
    await summarize(model, former, orphan, Message.user("Search again"), open_call)
    (context,) = model.contexts
    assert is_legal(context) == []
    assert "Ada looks for a bug." in context[1].text
    assert [message.role for message in context[-3:]] == [Role.ASSISTANT, Role.TOOL_RESULT, Role.USER]


# --- what is taken from its answer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stop_reason", ["length", "max_tokens"])
async def test_a_summary_that_was_cut_off_is_none(stop_reason: str) -> None:
    half = msgspec.structs.replace(Message.assistant("The user wants"), stop_reason=stop_reason)
    with pytest.raises(ModelError, match="cut off"):
        await summarize(ScriptedProvider([half]), Message.user("x"))


async def test_a_model_that_ends_without_a_reply_has_given_none() -> None:
    class Silent:
        name, model = "silent", "none"

        async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent]:
            del messages, tools
            yield TextDelta("The user")

    with pytest.raises(ModelError, match="silent/none ended without a reply"):
        await summarize(Silent(), Message.user("x"))


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("Ada wants tea.", CompactionStatus.DONE),
        ("   ", CompactionStatus.FAILED),
        (Message.assistant("", (CALL,)), CompactionStatus.FAILED),
        (ModelError("refused"), CompactionStatus.FAILED),
        (RuntimeError("said in confidence"), CompactionStatus.FAILED),
    ],
    ids=["a text", "blank", "a call instead of a text", "an error", "an unexpected error"],
)
async def test_a_session_is_compacted_or_is_as_it_was(
    session: Session, answer: Message | str | Exception, status: CompactionStatus
) -> None:
    await session.add_messages([Message.user("My name is Ada"), Message.assistant("Hi"), Message.user("Tea, please")])
    before = session.messages()
    outcome = await session.compact(summarizer_of(ScriptedProvider([answer])))
    assert outcome.status is status
    assert "confidence" not in outcome.detail
    if status is CompactionStatus.DONE:
        assert [(message.role, message.text) for message in session.messages()] == [
            (Role.COMPACTION_SUMMARY, "Ada wants tea.")
        ]
    else:
        assert session.messages() == before


async def test_a_summary_that_nobody_waits_for_ends_the_request(session: Session) -> None:
    model = ScriptedProvider([anyio.Event()])
    await session.add_message(Message.user("hello"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.compact, summarizer_of(model))
        await model.stalled.wait()
        tasks.cancel_scope.cancel()
    assert (model.cancelled, model.closed) == (1, 1)
    assert len(session.messages()) == 1


# --- the offline responder -------------------------------------------------------------------------------------------


def offline_summary(*messages: Message) -> str:
    return respond([Message.system(SYSTEM_PROMPT), *messages, Message.user(INSTRUCTION)]).text


async def test_the_offline_responder_lists_what_the_user_said_and_says_what_it_is() -> None:
    said = [Message.user("My name\n is Ada"), Message.assistant("Hi"), Message.user("y" * 500), Message.user(" ")]
    summary = await summarize(OfflineProvider(), *said)
    assert summary.splitlines() == [
        "(offline) Summary made without a model, of what the user said:",
        "- My name is Ada",
        "- " + "y" * 79 + "…",
    ]


async def test_a_fact_is_still_recalled_after_two_compactions(session: Session) -> None:
    summarizer = summarizer_of(OfflineProvider())
    for text in ("My name is Ada", "I live in Vienna"):
        await session.add_messages([Message.user(text), Message.assistant("ok")])
        assert (await session.compact(summarizer)).status is CompactionStatus.DONE
    (summary,) = session.messages()
    assert summary.text.splitlines()[1:] == ["- My name is Ada", "- I live in Vienna"]
    for question, answer in (("What is my name?", "Ada"), ("Where do I live?", "Vienna")):
        assert answer in respond([*session.messages(), Message.user(question)]).text


def test_a_long_conversation_keeps_its_beginning_and_its_end_however_often_it_is_summarized() -> None:
    summary = offline_summary(*(Message.user(f"message {number}") for number in range(1000)))
    for _ in range(3):
        lines = summary.splitlines()[1:]
        assert len(lines) == 101
        assert lines[:10] == [f"- message {number}" for number in range(10)]
        assert lines[10] == "- …"
        assert lines.count("- …") == 1
        summary = offline_summary(Message(Role.COMPACTION_SUMMARY, summary), Message.user("and one more"))
    assert summary.endswith("- and one more")


@given(st.lists(st.text(max_size=200), max_size=30))
def test_an_offline_summary_is_deterministic_short_and_never_empty(texts: list[str]) -> None:
    messages = [Message.user(text) for text in texts]
    summary = offline_summary(*messages)
    assert summary == offline_summary(*messages)
    assert summary.startswith("(offline) Summary")
    assert len(summary) < 100 * (len(texts) + 2)


def test_a_question_about_summaries_is_answered_like_any_other() -> None:
    assert "You said" in respond([Message.user("Summarize the conversation above, please")]).text
