"""The built-in responder: it recalls, uses its tools, and always says what it is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.agent.agent import Agent, TextDelta, ToolFinished, TurnFinished
from miniclaw_sessions.agent.providers.offline import LABEL, OfflineProvider, respond
from miniclaw_sessions.agent.tools import calculator_tool, time_tool
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message, Role
from miniclaw_sessions.testing.clock import FakeClock
from tests.legality import is_legal

pytestmark = pytest.mark.anyio

TOOLS = ("time", "calculator")


def asked(*texts: str) -> Message:
    """The answer to the last of these, the others having been said and answered before."""
    history = [m for text in texts[:-1] for m in (Message.user(text), Message.assistant("(offline) ok"))]
    return respond([*history, Message.user(texts[-1])], TOOLS)


@pytest.mark.parametrize(
    ("said", "question", "answer"),
    [
        ("Hi, my name is Ada Lovelace.", "What is my name?", "Your name is Ada Lovelace."),
        ("my name's Ada and I like cake", "who am I?", "Your name is Ada."),
        ("Call me Ishmael. What can you do?", "do you know my name?", "Your name is Ishmael."),
        ("I live in Vienna, Austria.", "Where do I live?", "You live in Vienna, Austria."),
        ("Please remember that the key is under the mat.", "What do you remember?", "the key is under the mat."),
        ("First things first", "What did I say first?", "The first thing I can still see is: “First things first”"),
        ("the sky is blue", "What did I say before?", "Before this you said: “the sky is blue”"),
        ("one", "How many messages are there?", "I can see 3 messages of this conversation, 2 of them yours."),
    ],
)
def test_what_the_user_said_is_recalled(said: str, question: str, answer: str) -> None:
    assert asked(said, question).text.endswith(answer)


def test_the_latest_statement_wins() -> None:
    assert asked("my name is Ada", "my name is Grace", "what's my name?").text == "(offline) Your name is Grace."


@pytest.mark.parametrize("question", ["What is my name?", "Where do I live?", "What did I ask you to remember?"])
def test_what_was_not_said_is_not_made_up(question: str) -> None:
    assert "have not told me" in asked("hello", question).text
    assert "have not told me" in asked("Do you think that my name is Bob?", "What do you remember?").text


def test_a_question_about_a_fact_is_not_taken_for_the_fact() -> None:
    assert "have not told me" in asked("Is it true that my name is Bob?", "What is my name?").text


@pytest.mark.parametrize("question", ["What did I say first?", "What was my last message?"])
def test_the_first_message_has_nothing_before_it(question: str) -> None:
    assert asked(question).text == "(offline) This is your first message."


@pytest.mark.parametrize("statement", ["My name is Ada", "I live in Vienna", "remember: milk"])
def test_a_statement_is_acknowledged(statement: str) -> None:
    assert "You said" not in asked(statement).text


@pytest.mark.parametrize("question", ["What time is it?", "what's the date", "What day is it today?"])
def test_a_question_of_time_asks_the_clock(question: str) -> None:
    (call,) = asked(question).tool_calls or ()
    assert (call.name, call.arguments) == ("time", "{}")
    assert respond([Message.user(question)]).text == "(offline) I have no clock here."


@pytest.mark.parametrize(
    ("question", "expression"),
    [
        ("What is 2 + 2?", "2 + 2"),
        ("(1.5+2)*3", "(1.5+2)*3"),
        ("calculate 2^10 =", "2^10"),
        ("-5 * -(3 - 1)", "-5 * -(3 - 1)"),
    ],
)
def test_arithmetic_asks_the_calculator(question: str, expression: str) -> None:
    (call,) = asked(question).tool_calls or ()
    assert (call.name, call.arguments) == ("calculator", f'{{"expression":"{expression}"}}')


@pytest.mark.parametrize("text", ["call 555-1234 now", "we met on 2026-11-21", "42", "what is 42?", "a + b", "-7"])
def test_a_number_in_a_sentence_is_not_arithmetic(text: str) -> None:
    assert asked(text).tool_calls is None


def test_anything_else_is_told_what_it_can_do_and_that_it_is_no_model() -> None:
    assert asked("Write me a poem").text.startswith("(offline) You said “Write me a poem”. No model is configured")
    assert len(asked("long " * 500).text) < 300


def test_tool_results_are_used_in_the_answer() -> None:
    question = asked("2 + 2")
    (call,) = question.tool_calls or ()
    history = [Message.user("2 + 2"), question]
    assert respond([*history, Message.tool_result(call, "4")]).text == "(offline) The result is 4."
    failed = respond([*history, Message.tool_result(call, "error: division by zero", is_error=True)])
    assert failed.text == "(offline) The calculator could not help: “error: division by zero”"


@given(st.lists(st.builds(Message, role=st.sampled_from(Role), content=st.text(max_size=30)), max_size=6))
def test_every_history_has_one_labelled_answer(history: list[Message]) -> None:
    answer = respond(history, TOOLS)
    assert answer == respond(history, TOOLS)
    assert answer.tool_calls or answer.text.startswith(LABEL)


@pytest.mark.parametrize("piece", ["1 ", "my name is ", "what did i say ", "(", "-1", "remember that "])
def test_a_huge_message_is_answered_at_once(piece: str) -> None:
    before = time.process_time()
    respond([Message.user(piece * 100_000), Message.user(piece * 100_000)], TOOLS)
    assert time.process_time() - before < 1.0


async def test_it_chats_in_a_real_session(tmp_path: Path) -> None:
    clock = FakeClock()
    agent = Agent(OfflineProvider(), tools=[time_tool(clock), calculator_tool()])
    async with SessionManager(tmp_path, store="memory:") as manager:
        session = await manager.get_or_create("cli", "me")
        await agent.reply(Message.user("My name is Ada"), session=session)
        assert (
            await agent.reply(Message.user("what is my name?"), session=session)
        ).text == "(offline) Your name is Ada."
        reply = await agent.reply(Message.user("what time is it?"), session=session)
        assert reply.text == "(offline) It is Thursday, 2026-01-01T00:00:00+00:00."
        assert (await agent.reply(Message.user("6 * 7"), session=session)).text == "(offline) The result is 42."
        assert (await agent.reply(Message.user("1 / 0"), session=session)).text.startswith(
            "(offline) The calculator could not"
        )
        assert is_legal(session.messages()) == []


async def test_it_streams_in_a_few_pieces(tmp_path: Path) -> None:
    agent = Agent(OfflineProvider(), tools=[calculator_tool()])
    async with SessionManager(tmp_path, store="memory:") as manager:
        session = await manager.get_or_create("cli", "me")
        async with agent.run(Message.user("hello there"), session=session) as events:
            told = [event async for event in events]
        pieces = [event.text for event in told if isinstance(event, TextDelta)]
        assert len(pieces) > 2
        assert isinstance(told[-1], TurnFinished)
        assert "".join(pieces) == told[-1].message.text
        async with agent.run(Message.user("2 + 2"), session=session) as events:
            assert any(isinstance(event, ToolFinished) for event in [e async for e in events])
