"""Budgets: what may be spent in a chat and a channel is not gone beyond, and who speaks then is told so."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import AgentSession
from miniclaw_sessions.agent.budgets import FRESH_S, Budgets
from miniclaw_sessions.agent.provider import ModelEvent, Reply
from miniclaw_sessions.agent.tools import Tool, calculator_tool
from miniclaw_sessions.channels.base import Incoming, NotAnswered, Reason
from miniclaw_sessions.config import BudgetSettings, SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message, Role, ToolCall, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import BudgetSpent
from miniclaw_sessions.testing import FakeClock

pytestmark = pytest.mark.anyio

HELLO = Message.user("hello")


class Costly:
    """Each reply costs one, and a hundred tokens."""

    name, model = "test", "costly"

    def __init__(self, *, calls: bool = False) -> None:
        self.asked = 0
        self._calls = calls

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        del messages, tools
        self.asked += 1
        calls = (ToolCall(f"c{self.asked}", "calculator", '{"expression": "1"}'),) if self._calls else None
        yield Reply(Message(Role.ASSISTANT, "well", tool_calls=calls, usage=Usage(90, 10, cost=1.0)))


def agent_with(model: Costly, manager: SessionManager, **settings: Any) -> Agent:
    budgets = Budgets(BudgetSettings(**settings), manager, currency="EUR", clock=manager.clock)
    return Agent(model, tools=[calculator_tool()], budgets=budgets)


async def test_a_chat_is_answered_until_its_budget_is_spent_and_again_the_next_day(tmp_path: Path) -> None:
    clock, model = FakeClock(), Costly()
    async with SessionManager(tmp_path, clock=clock) as manager:
        agent = agent_with(model, manager, chat_day=2.0)
        session, other = await manager.get_or_create("telegram", 1), await manager.get_or_create("telegram", 2)
        for _ in range(2):
            await agent.reply(HELLO, session=session)
        with pytest.raises(BudgetSpent, match=r"this chat for today is spent, 2.0000 EUR of 2.0000 EUR; .* 00:00 UTC"):
            await agent.reply(Message.user("and now?"), session=session)
        assert model.asked == 2
        assert session.messages()[-1].text == "and now?", "it is kept"
        await agent.reply(HELLO, session=other)
        await clock.advance(timedelta(days=1).total_seconds())
        await agent.reply(HELLO, session=session)
    async with SessionManager(tmp_path, clock=clock) as manager:
        session = await manager.get_or_create("telegram", 1)
        agent = agent_with(model, manager, chat_month=3.0)
        with pytest.raises(BudgetSpent, match=r"this chat for this month is spent, 3\.0000"):
            await agent.reply(HELLO, session=session)


async def test_a_channel_has_a_budget_over_all_its_chats(tmp_path: Path) -> None:
    clock, model = FakeClock(), Costly()
    async with SessionManager(tmp_path, clock=clock) as manager:
        agent = agent_with(model, manager, unit="tokens", channel_day=300)
        for chat in range(3):
            await agent.reply(HELLO, session=await manager.get_or_create("telegram", chat))
        last = await manager.get_or_create("telegram", 9)
        for _ in range(2):
            with pytest.raises(BudgetSpent, match="the channel telegram for today is spent; it goes on"):
                await agent.reply(HELLO, session=last)
            await clock.advance(FRESH_S + 1)
        await agent.reply(HELLO, session=await manager.get_or_create("slack", 1))
        assert model.asked == 4


async def test_what_was_spent_in_a_channel_stays_spent_when_chats_are_deleted_or_expire(tmp_path: Path) -> None:
    clock, model = FakeClock(), Costly()
    settings = SessionSettings(ttl_days=2, sweep_interval_s=1e9, flush_interval_s=1e9)
    async with SessionManager(tmp_path, settings=settings, clock=clock) as manager:
        agent = agent_with(model, manager, channel_day=2.0, channel_month=4.0)
        for _ in range(2):
            session = await manager.get_or_create("telegram", 1)
            await agent.reply(HELLO, session=session)
            assert await manager.delete(session.session_id)
            await clock.advance(FRESH_S + 1)
        session = await manager.get_or_create("telegram", 1)
        with pytest.raises(BudgetSpent, match="the channel telegram for today is spent; it"):
            await agent.reply(HELLO, session=session)
        for chat in range(2, 4):
            await clock.advance(timedelta(days=4).total_seconds())
            await agent.reply(HELLO, session=await manager.get_or_create("telegram", chat))
        await clock.advance(timedelta(days=4).total_seconds())
        assert len((await manager.sweep()).sessions) == 3
        with pytest.raises(BudgetSpent, match="the channel telegram for this month is spent; it"):
            await agent.reply(HELLO, session=await manager.get_or_create("telegram", 9))
        await clock.advance(timedelta(days=31).total_seconds())
        await agent.reply(HELLO, session=await manager.get_or_create("telegram", 9))
        assert model.asked == 5


async def test_a_channel_looks_again_only_at_the_accounts_that_were_used_since(tmp_path: Path) -> None:
    clock = FakeClock()
    paid = Message(Role.ASSISTANT, "well", usage=Usage(90, 10))
    async with SessionManager(tmp_path, clock=clock) as manager:
        budgets = Budgets(BudgetSettings(unit="tokens", channel_day=10_000), manager, clock=clock)
        sessions = [await manager.get_or_create("telegram", chat) for chat in range(5)]
        for session in sessions:
            await session.add_message(paid)
        looked = list[str]()
        load = manager.source.load_listed

        async def noted(session_ids: Sequence[str]) -> dict[str, Session]:
            looked.extend(session_ids)
            return await load(session_ids)

        manager.source.load_listed = noted  # type: ignore[method-assign]
        assert (await budgets.of(sessions[0]))[2].spent == 500
        assert len(looked) == 5
        for _ in range(2):  # those that were used shortly before the first look are looked at again
            await clock.advance(3600)
            await budgets.of(sessions[0])
        looked.clear()
        await clock.advance(FRESH_S + 1)
        await sessions[3].add_message(paid)
        assert [one.spent for one in await budgets.of(sessions[0])][2:] == [600, 600]
        assert looked == ["telegram_3"]


async def test_a_turn_that_goes_on_and_on_ends_with_its_budget(tmp_path: Path) -> None:
    model = Costly(calls=True)
    async with SessionManager(tmp_path) as manager:
        agent = agent_with(model, manager, chat_day=3.0)
        session = await manager.get_or_create("telegram", 1)
        with pytest.raises(BudgetSpent):
            await agent.reply(HELLO, session=session)
        assert (model.asked, session.messages()[-1].is_tool_result) == (3, True)


async def test_a_summary_counts_for_the_channel_at_once_and_is_not_made_when_nothing_is_left(
    tmp_path: Path,
) -> None:
    async def summarize(messages: Sequence[Message]) -> Message:
        asked.append(len(messages))
        return Message(Role.COMPACTION_SUMMARY, "" if len(asked) == 1 else "they greeted", usage=Usage(150))

    asked: list[int] = []
    async with SessionManager(tmp_path) as manager:
        agent = agent_with(Costly(), manager, unit="tokens", channel_day=400)
        session = await manager.get_or_create("telegram", 1)
        agent_session = AgentSession(agent, session, context_window=100_000, summarizer=summarize)
        await agent_session.reply(HELLO)
        statuses = [(await agent_session.compact(keep_tokens=1)).status.value for _ in range(2)]
        assert statuses == ["failed", "done"], "100 for the reply, and 150 for each of these, also for the first"
        await session.add_message(HELLO)
        outcome = await agent_session.compact(keep_tokens=0)
        assert (outcome.status.value, outcome.detail) == ("failed", "the summary could not be made: BudgetSpent")
        assert len(asked) == 2


def test_whoever_speaks_is_told_until_when() -> None:
    error = BudgetSpent("the budget of this chat for today is spent; it goes on at 2026-03-02 00:00 UTC")
    told = NotAnswered(Incoming("1", HELLO), Reason.FAILED, error).text
    assert told == (
        "The budget of this chat for today is spent; it goes on at 2026-03-02 00:00 UTC. Your message is kept."
    )


async def test_of_fifty_turns_at_once_each_token_is_counted_and_the_next_one_is_refused(tmp_path: Path) -> None:
    """In fifty chats all have begun before one is paid for; in one chat they come one after the other."""
    model, all_asked = Costly(), anyio.Event()
    generate = model.generate

    async def together(messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        if model.asked + 1 == 50:
            all_asked.set()
        async for event in generate(messages, tools):
            await all_asked.wait()
            yield event

    model.generate = together  # type: ignore[method-assign]
    async with SessionManager(tmp_path) as manager:
        agent = agent_with(model, manager, unit="tokens", channel_day=1_000, chat_day=1_000)
        refused = 0

        async def ask(chat: int) -> None:
            nonlocal refused
            try:
                await agent.reply(HELLO, session=await manager.get_or_create("telegram", chat))
            except BudgetSpent:
                refused += 1

        async with anyio.create_task_group() as tasks:
            for chat in range(50):
                tasks.start_soon(ask, chat)
        assert (model.asked, refused) == (50, 0)
        assert agent.budgets is not None
        spent = await agent.budgets.of(await manager.get_or_create("telegram", 51))
        assert [one.spent for one in spent if one.spans_chats] == [5_000, 5_000]
        await ask(51)
        assert (model.asked, refused) == (50, 1)

        async def ask_elsewhere() -> None:
            nonlocal refused
            try:
                await agent.reply(HELLO, session=await manager.get_or_create("slack", 1))
            except BudgetSpent:
                refused += 1

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(ask_elsewhere)
        assert (model.asked, refused) == (60, 41)
