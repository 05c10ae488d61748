"""The assistant: the window where nothing is known of the model, and summaries where its size is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.events import AgentEvent, SessionCompacted, TurnFinished
from miniclaw_sessions.config import ModelSettings
from miniclaw_sessions.core.history.compaction import count_tokens
from miniclaw_sessions.core.protocol.messages import Role
from miniclaw_sessions.core.session.compacting import CompactionStatus
from miniclaw_sessions.errors import ConfigError, ContextOverflow
from miniclaw_sessions.testing import ScriptedProvider

pytestmark = pytest.mark.anyio


SMALL = ModelSettings(context_window=400, reserve_tokens=100, keep_tokens=100)


def wordy(context: Sequence[Message]) -> str:
    """Summaries when a summary is asked for, else a long answer."""
    return "A summary." if is_for_a_summary(context) else "Well. " * 60


def is_for_a_summary(context: Sequence[Message]) -> bool:
    """Agents of these tests have no system prompt; the summarizer does."""
    return context[0].role is Role.SYSTEM


async def ask(assistant: Assistant, manager: SessionManager, text: str) -> list[AgentEvent]:
    session = await manager.get_or_create("room", "1")
    async with assistant.run(session, Message.user(text)) as events:
        return [event async for event in events]


async def test_a_long_conversation_stays_within_a_known_context(manager: SessionManager) -> None:
    provider = ScriptedProvider(wordy)
    assistant = Assistant(Agent(provider), SMALL)
    events = [event for number in range(12) for event in await ask(assistant, manager, f"message {number}")]
    outcomes = [event.outcome for event in events if isinstance(event, SessionCompacted)]
    assert [outcome.status for outcome in outcomes] == [CompactionStatus.DONE] * len(outcomes)
    assert len(outcomes) > 2
    answered = [context for context in provider.contexts if not is_for_a_summary(context)]
    assert max(map(count_tokens, answered)) <= SMALL.context_window - SMALL.reserve_tokens
    assert "A summary." in answered[-1][0].text
    session = await manager.get("room", "1")
    assert session.message_count == 24  # nothing is lost
    assert sum(isinstance(event, TurnFinished) for event in events) == 12


async def test_without_a_known_context_the_model_is_sent_the_window(manager: SessionManager) -> None:
    provider = ScriptedProvider(wordy)
    assistant = Assistant(Agent(provider))
    events = [event for number in range(40) for event in await ask(assistant, manager, f"message {number}")]
    assert not any(isinstance(event, SessionCompacted) for event in events)
    assert max(map(len, provider.contexts)) <= 51
    assert len(provider.contexts[-1]) > 45


async def test_an_overflow_without_a_known_context_says_which_setting_helps(manager: SessionManager) -> None:
    assistant = Assistant(Agent(ScriptedProvider([ContextOverflow("too large")])))
    session = await manager.get_or_create("room", "1")
    with pytest.raises(ContextOverflow, match=r"set model\.context_window"):
        await assistant.answer(session, Message.user("hello"))


async def test_an_overflow_with_a_known_context_is_summarized_and_asked_again(manager: SessionManager) -> None:
    large = "Well. " * 300
    provider = ScriptedProvider([large, "short", ContextOverflow("too large"), "A summary.", "fits"])
    assistant = Assistant(Agent(provider), ModelSettings(context_window=100_000, keep_tokens=10))
    for text in ("one", "two"):
        await ask(assistant, manager, text)
    events = await ask(assistant, manager, "three")
    assert [event.outcome.status for event in events if isinstance(event, SessionCompacted)] == [CompactionStatus.DONE]
    assert isinstance(events[-1], TurnFinished)
    assert events[-1].message.text == "fits"


@pytest.mark.parametrize("reserve_tokens", [400, 500])
def test_a_reserve_that_leaves_no_room_is_refused_at_once(reserve_tokens: int) -> None:
    with pytest.raises(ConfigError, match="lower the reserve"):
        Assistant(Agent(ScriptedProvider()), ModelSettings(context_window=400, reserve_tokens=reserve_tokens))


async def test_without_a_context_window_the_agent_s_own_limits_hold(manager: SessionManager) -> None:
    provider = ScriptedProvider(lambda _: "ok")
    session = await manager.get_or_create("telegram", "1")
    for number in range(10):
        await session.save_turn([Message.user(f"q{number}"), Message.assistant("a")])
    async with Assistant(Agent(provider, history_limit=2)).run(session, Message.user("now")) as events:
        async for _ in events:
            pass
    assert [message.text for message in provider.contexts[0]] == ["q9", "a", "now"]
