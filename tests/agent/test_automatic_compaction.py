"""AgentSession keeps a session within its model's context, however long the conversation is and whatever fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import RESERVE_TOKENS, AgentSession
from miniclaw_sessions.agent.events import SessionCompacted, TurnFinished
from miniclaw_sessions.agent.provider import TextDelta
from miniclaw_sessions.agent.summarizing import INSTRUCTION
from miniclaw_sessions.core.history.compaction import KEEP_TOKENS
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.compacting import CompactionStatus
from miniclaw_sessions.errors import (
    ConfigError,
    ContextOverflow,
)
from miniclaw_sessions.testing.provider import ScriptedProvider
from tests.agent.conversations import HELLO, assert_legal, calls, costing, echo, opened, read, roles, tool
from tests.agent.small_models import FAILING, SmallModel, assert_sound, compactions, small
from tests.texts import texts

pytestmark = pytest.mark.anyio


# --- within the context ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tells_usage", [True, False])
async def test_a_long_conversation_is_compacted_before_the_limit_again_and_again(
    tmp_path: Path, tells_usage: bool
) -> None:
    model = SmallModel(lambda context: f"answer to {context[-1].text}" * 3, window=1000, tells_usage=tells_usage)
    for half in range(2):  # with a restart in between
        async with opened(tmp_path) as session:
            agent_session = small(model, session, window=1000)
            for number in range(30):
                await agent_session.reply(Message.user(f"question {half}.{number} " + "x" * 100))
                assert await agent_session.context_tokens() < 1000
            await assert_sound(session, model)
            done = await compactions(session)
            assert model.summaries == len(done) >= 2 * (half + 1)
            assert {compaction.reason for compaction in done} == {"threshold"}
    assert model.refused == 0
    assert max(model.sizes) <= 1000
    assert model.summaries < 15
    (summary,) = [message for message in model.contexts[-1] if "Summary of the conversation" in message.text]
    assert summary.text.endswith(f"Summary {model.summaries}.")


async def test_a_conversation_that_fits_is_never_compacted(session: Session) -> None:
    model = SmallModel(lambda _: "short", window=100_000)
    agent_session = AgentSession(Agent(model), session, context_window=100_000)
    for number in range(40):
        await agent_session.reply(Message.user(f"question {number}"))
    assert model.summaries == 0
    assert len(model.contexts[-1]) == 79  # more than the window's 50 messages


async def test_the_defaults_are_those_of_document_003(session: Session) -> None:
    agent_session = AgentSession(Agent(ScriptedProvider()), session, context_window=128_000)
    assert (agent_session.limit, agent_session.keep_tokens) == (128_000 - 16_384, 20_000)
    assert (RESERVE_TOKENS, KEEP_TOKENS) == (16_384, 20_000)
    for context_window, keep_tokens in ((16_384, 20_000), (128_000, 0)):
        with pytest.raises(ConfigError, match="reserve"):
            AgentSession(Agent(ScriptedProvider()), session, context_window=context_window, keep_tokens=keep_tokens)


@pytest.mark.parametrize("characters_per_token", [4, 1])
async def test_a_long_turn_is_compacted_in_its_midst_and_goes_on(session: Session, characters_per_token: int) -> None:
    steps = 73

    def answer(context: list[Message]) -> Message | str:
        if context[-1].text == "question before":
            return "answer"
        done = len(model.asked) - model.refused - 2
        call = ToolCall(f"call_{done}", "echo", json.dumps({"say": f"result {done} " + "y" * 200}))
        return Message.assistant(f"step {done}", (call,)) if done < steps else "finished"

    model = SmallModel(answer, window=2500, characters_per_token=characters_per_token)
    agent_session = small(model, session, window=2500, reserve_tokens=700, tools=[tool("echo", echo)])
    await agent_session.reply(Message.user("question before"))
    events = await read(agent_session.run(Message.user("question now")))
    told = [event.outcome for event in events if isinstance(event, SessionCompacted)]
    done = await compactions(session)
    assert [outcome.status for outcome in told] == [CompactionStatus.DONE] * len(done)
    assert 3 <= len(done) <= steps * 500 / characters_per_token / 800
    assert model.refused == 0
    assert isinstance(events[-1], TurnFinished)
    await assert_sound(session, model)
    for before, after in zip(model.asked[1:], model.asked[2:], strict=False):
        assert any(message.text == "question now" for message in after)
        newest = [message.text for message in before if message.is_assistant][-1:]
        assert {message.text for message in after} >= set(newest)  # no step is forgotten that was just made


async def test_sixty_parallel_calls_and_146_messages_reach_the_model_whole(session: Session) -> None:
    def answer(context: list[Message]) -> Message | str:
        steps = sum(message.is_assistant for message in context)
        return calls(*["echo"] * 60) if steps == 0 else calls("echo") if steps < 43 else "finished"

    model = SmallModel(answer, window=100_000)
    await small(model, session, window=100_000, tools=[tool("echo", echo)]).reply(Message.user("question"))
    assert len(model.contexts[1]) == 62
    assert len(model.contexts[-1]) == 146
    assert [context[0].text for context in model.contexts] == ["question"] * 44
    await assert_sound(session, model)


async def test_a_custom_count_decides_how_much_is_read_and_kept(session: Session) -> None:
    def count(message: Message) -> int:
        return 1 + len(message.text) // 100  # far fewer than by characters

    model = ScriptedProvider(lambda context: "s" if context[-1].text == INSTRUCTION else "a" * 200)
    agent_session = small(model, session, window=100, count=count)
    for number in range(20):
        await agent_session.reply(Message.user(f"question {number} " + "x" * 200))
        assert await agent_session.context_tokens() <= 100
    assert len(await compactions(session)) >= 1


async def test_what_the_provider_told_counts_and_only_what_came_later_is_counted(session: Session) -> None:
    provider = ScriptedProvider([costing("hi", 700), "again"])
    agent_session = small(provider, session, window=100_000)
    await agent_session.reply(HELLO)
    assert await agent_session.context_tokens() == 700
    await session.add_message(Message.user("x" * 400))
    assert await agent_session.context_tokens() == 800
    assert session.total_usage.total == 700


async def test_a_reply_that_came_near_the_limit_is_followed_by_a_compaction_before_the_next(session: Session) -> None:
    provider = ScriptedProvider([costing(calls("echo"), 950), "They said hello.", costing("done", 50)])
    agent_session = small(provider, session, window=1000, tools=[tool("echo", echo)], keep_tokens=1)
    await session.add_messages([Message.user("before"), Message.assistant("yes")])
    events = await read(agent_session.run(HELLO))
    (told,) = [event.outcome for event in events if isinstance(event, SessionCompacted)]
    assert told.status is CompactionStatus.DONE
    assert told == agent_session.last_compaction
    assert [message.text.rpartition("\n")[2] for message in provider.contexts[2]] == [
        *("They said hello.", "hello", "", "nothing")
    ]
    assert await agent_session.context_tokens() == 50


# --- summaries that fail ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", FAILING, ids=[one.__name__ for one in FAILING])
async def test_a_summary_that_fails_lets_the_turn_go_on_and_is_not_tried_at_every_step(
    session: Session, fails: Callable[[Sequence[Message]], Any]
) -> None:
    tried = 0

    async def summarize(messages: Sequence[Message]) -> Any:
        nonlocal tried
        tried += 1
        return await fails(messages)

    def answer(_: list[Message]) -> Message | str:
        return "finished" if len(model.asked) % 10 == 0 else calls("echo", arguments=f'{{"say": "{"y" * 300}"}}')

    model = SmallModel(answer, window=10_000)
    agent_session = small(
        model,
        session,
        window=1000,
        tools=[tool("echo", echo)],
        summarizer=summarize,
        compaction_timeout_s=0.01,
    )
    for turn in range(3):
        events = await read(agent_session.run(Message.user(f"question {turn}")))
        assert isinstance(events[-1], TurnFinished)
        outcomes = [event.outcome.status for event in events if isinstance(event, SessionCompacted)]
        assert outcomes == [CompactionStatus.FAILED]
    assert tried == 3  # once in each turn
    assert await compactions(session) == []
    await assert_sound(session, model)


# --- overflow --------------------------------------------------------------------------------------------------------


async def test_an_overflow_is_compacted_and_asked_once_more(session: Session) -> None:
    provider = ScriptedProvider([calls("echo"), ContextOverflow("too large"), "They said hello.", "done"])
    agent_session = small(provider, session, window=100_000, tools=[tool("echo", echo)], keep_tokens=2)
    await session.add_messages([Message.user("before"), Message.assistant("yes")])
    events = await read(agent_session.run(HELLO))
    assert [event.outcome.status for event in events if isinstance(event, SessionCompacted)] == [CompactionStatus.DONE]
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["do", "ne"]
    assert [compaction.reason for compaction in await compactions(session)] == ["overflow"]
    assert len(provider.contexts[3]) < len(provider.contexts[1])
    assert texts(session)[-1] == "done"
    await assert_legal(session, provider)


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        ([ContextOverflow("a"), "They said hello.", ContextOverflow("b")], 4),
        ([ContextOverflow("b"), RuntimeError("no summary")], 3),
        ([ContextOverflow("b"), " "], 3),
    ],
    ids=["it does not help", "no summary", "an empty summary"],
)
async def test_an_overflow_that_cannot_be_helped_reaches_the_reader_with_what_was_produced(
    session: Session, script: list[str | Exception], asked: int
) -> None:
    provider = ScriptedProvider([costing(calls("echo"), 10), *script, "never"])
    agent_session = small(provider, session, window=100_000, tools=[tool("echo", echo)], keep_tokens=2)
    await session.add_messages([Message.user("before"), Message.assistant("yes")])
    with pytest.raises(ContextOverflow, match="b") as caught:
        await agent_session.reply(HELLO)
    assert len(provider.contexts) == asked
    assert [message.role for message in caught.value.messages] == [Role.ASSISTANT, Role.TOOL_RESULT]
    assert caught.value.usage.total == 10
    assert roles(session)[-1] == "tool_result"
    await assert_legal(session, provider)


async def test_an_overflow_with_nothing_to_compact_reaches_the_reader(session: Session) -> None:
    provider = ScriptedProvider([ContextOverflow("too large")])
    with pytest.raises(ContextOverflow, match="too large"):
        await small(provider, session, window=100_000).reply(HELLO)
    assert texts(session) == ["hello"]


@pytest.mark.parametrize("characters_per_token", [4, 1.5, 1])
@pytest.mark.parametrize("messages", [40, 400])
async def test_a_history_that_no_request_can_hold_is_summarized_in_portions(
    session: Session, characters_per_token: float, messages: int
) -> None:
    """An imported session, or one that is given a smaller model: the summary's own request overflows as well."""
    for number in range(messages // 2):
        session.extend([Message.user(f"question {number} " + "x" * 400), Message.assistant("y" * 400)])
    await session.saved()
    model = SmallModel(lambda _: "done", window=3000, characters_per_token=characters_per_token)
    agent_session = small(model, session, window=3000)
    await agent_session.reply(Message.user("question now"))
    assert texts(session)[-1] == "done"
    assert max(model.sizes) <= 3000
    assert model.summaries > 1
    await assert_sound(session, model)


async def test_one_message_that_no_request_can_hold_does_not_end_the_session_for_good(session: Session) -> None:
    call = ToolCall("a", "echo", "{}")
    session.extend([Message.user("show me"), Message.assistant("", (call,)), Message.tool_result(call, "z" * 500_000)])
    session.extend([Message.assistant("there it is"), Message.user("thanks"), Message.assistant("welcome")])
    await session.saved()
    model = SmallModel(lambda _: "done", window=3000)
    await small(model, session, window=3000, keep_tokens=5).reply(Message.user("question now"))
    assert max(model.sizes) <= 3000
    assert model.refused < 30
    assert texts(session)[-1] == "done"


# --- what others do meanwhile ----------------------------------------------------------------------------------------


async def test_nobody_compacts_while_a_tool_runs(session: Session) -> None:
    outcomes: list[CompactionStatus] = []

    async def compact(_: dict[str, Any]) -> str:
        outcomes.append((await agent_session.compact(keep_tokens=1)).status)
        return "tried"

    provider = ScriptedProvider([calls("compact"), "done"])
    agent_session = small(provider, session, window=1000, tools=[tool("compact", compact)])
    await session.add_messages([Message.user("before"), Message.assistant("yes")])
    await agent_session.reply(HELLO)
    assert outcomes == [CompactionStatus.SKIPPED]
    assert await compactions(session) == []


@pytest.mark.parametrize("max_tokens", [None, 50])
async def test_what_is_said_in_between_does_not_hide_the_turns_own_steps(
    session: Session, max_tokens: int | None
) -> None:
    async def interject(_: dict[str, Any]) -> str:
        session.append(Message.user("by the way " + "z" * 200))
        return "result"

    provider = ScriptedProvider([calls("interject"), calls("interject", prefix="b"), "done"])
    agent = Agent(provider, tools=[tool("interject", interject)], max_context_tokens=max_tokens)
    await agent.reply(HELLO, session=session)
    last = provider.contexts[-1]
    assert [message.text for message in last if message.text == "hello"] == ["hello"]
    assert [message.text for message in last if message.is_tool_result] == ["result", "result"]
    assert any(message.text.startswith("by the way") for message in last)
    await assert_legal(session, provider)
