"""The context of every request: the prompt, the newest of the history, and the whole turn, each exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.model_request import ContextBuilder, fitted, with_system
from miniclaw_sessions.config import SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.agent.conversations import HELLO, assert_legal, calls, echo, tool
from tests.legality import is_legal
from tests.sampled import sampled

pytestmark = pytest.mark.anyio


# --- what is chosen --------------------------------------------------------------------------------------------------


def turns(number: int) -> list[Message]:
    return [m for i in range(number) for m in (Message.user(f"q{i}"), Message.assistant(f"a{i}"))]


def test_the_most_recent_messages_are_selected_and_at_most_the_limit() -> None:
    current = Message.user("now")
    context = with_system("be kind", fitted([*turns(10), current], current, 4))
    assert [message.text for message in context] == ["be kind", "q8", "a8", "q9", "a9", "now"]


def test_a_cut_within_a_turn_is_moved_to_a_legal_place() -> None:
    current = Message.user("now")
    for limit in range(12):
        call = ToolCall("a", "echo", "{}")
        history = [*turns(2), Message.user("q"), Message.assistant("", (call,)), Message.tool_result(call, "x")]
        context = fitted([*history, current], current, limit)
        assert is_legal(context) == []
        assert context[-1] is current
        assert len(context) <= limit + 1


def test_an_equal_older_message_is_not_taken_for_the_current_one() -> None:
    older, current = Message.user("yes"), Message.user("yes")
    history = [older, Message.assistant("a"), current]
    assert [m is current for m in fitted(history, current, 0)] == [True]
    assert len(fitted(history, current, 50)) == 3


def test_an_equal_later_message_is_not_taken_for_the_current_one_either() -> None:
    current, later = Message.user("yes"), Message.user("yes")
    step = Message.assistant("a")
    assert fitted([current, step, later], current, 0) == [current, step, later]


def test_a_current_message_that_left_the_window_is_put_in_front() -> None:
    call = ToolCall("a", "echo", "{}")
    steps = [Message.assistant("", (call,)), Message.tool_result(call, "x")]
    context = fitted(steps, HELLO, 50)
    assert context == [HELLO, *steps]


async def test_a_smaller_window_of_the_manager_is_respected(tmp_path: Path) -> None:
    provider = ScriptedProvider(lambda _: "ok")
    async with SessionManager(tmp_path, store="memory:", settings=SessionSettings(window=4)) as manager:
        session = await manager.get_or_create("telegram", 1)
        for number in range(5):
            await Agent(provider).reply(Message.user(str(number)), session=session)
    assert [message.text for message in provider.contexts[-1]] == ["3", "ok", "4"]


def test_a_summary_comes_first_and_does_not_count_even_where_the_current_message_was_compacted() -> None:
    summary, current, step = Message(Role.COMPACTION_SUMMARY, "They met."), Message.user("now"), Message.assistant("a")
    for history in ([summary, *turns(3), current, step], [summary, step]):
        context = fitted(history, current, 2)
        assert context[0].text.endswith("They met.")
        assert context[-2:] == [current, step]
        assert is_legal(context) == []


def test_limits_are_not_negative() -> None:
    with pytest.raises(ConfigError, match="at least 0"):
        ContextBuilder(limit=-1)
    with pytest.raises(ConfigError, match="at least 0"):
        ContextBuilder(max_tokens=-1)


CALL = ToolCall("a", "echo", "{}")
ANYTHING = st.lists(
    st.sampled_from(
        [
            *(Message.user("q"), Message.assistant("a"), Message.system("s"), Message.assistant("", (CALL,))),
            *(Message.tool_result(CALL, "x"), Message(Role.COMPACTION_SUMMARY, "c"), Message(Role.BRANCH_SUMMARY, "b")),
        ]
    ),
    max_size=12,
)


@given(before=ANYTHING, steps=ANYTHING, limit=st.integers(0, 15))
def test_whatever_was_said_the_context_is_legal_and_has_the_current_message_once(
    before: list[Message], steps: list[Message], limit: int
) -> None:
    current = Message.user("now")
    context = fitted([*before, current, *steps], current, limit)
    assert is_legal(context) == []
    assert [message for message in context if message is current] == [current]
    said = [message for message in context if message.is_user and message.text in ("q", "now")]
    assert said[-1 - sum(step.is_user for step in steps)] is current
    assert sum(message.text == "q" for message in context) <= limit + sum(step.is_user for step in steps)


# --- long turns ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [None, 0, 20, 100_000])
async def test_sixty_parallel_calls_are_all_there(session: Session, max_tokens: int | None) -> None:
    provider = ScriptedProvider([calls(*["echo"] * 60), calls("echo", prefix="b"), "done", "still here"])
    agent = Agent(provider, tools=[tool("echo", echo)], max_context_tokens=max_tokens, session=session)
    await agent.reply(HELLO)
    assert [len(context) for context in provider.contexts] == [1, 62, 64]
    await agent.reply(Message.user("still there?"))
    assert provider.contexts[-1][-1].text == "still there?"
    assert all(context[0].is_user for context in provider.contexts)
    await assert_legal(session, provider)


@pytest.mark.parametrize("max_tokens", sampled([100_000, None, 20], every=3))
async def test_a_turn_of_146_messages_is_whole_in_every_request(session: Session, max_tokens: int | None) -> None:
    provider = ScriptedProvider(lambda context: calls("echo") if len(context) < 145 else "done")
    agent = Agent(provider, tools=[tool("echo", echo)], max_context_tokens=max_tokens, session=session)
    await agent.reply(HELLO)
    assert [len(context) for context in provider.contexts] == list(range(1, 146, 2))
    assert all([message.text for message in context].count("hello") == 1 for context in provider.contexts)
    await assert_legal(session, provider)


@pytest.mark.parametrize("max_tokens", [30, 300, 3000])
async def test_a_budget_of_tokens_is_filled_with_the_newest(session: Session, max_tokens: int) -> None:
    for number in range(60):
        session.extend([Message.user(f"{number:3} " + "x" * 36), Message.assistant("y" * 40)])
    provider = ScriptedProvider(["done"])
    await Agent(provider, max_context_tokens=max_tokens, session=session).reply(HELLO)
    (context,) = provider.contexts
    tokens = sum(len(message.text) // 4 for message in context)
    assert tokens == 120 * 10 + 1 if max_tokens == 3000 else max_tokens - 10 <= tokens <= max_tokens + 10
    assert context[-1].text == "hello"
    await assert_legal(session, provider)
