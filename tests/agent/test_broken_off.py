"""Requests that are stopped or fail in the middle are paid for: by an estimate that says that it is one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import AgentSession
from miniclaw_sessions.agent.budgets import Budgets
from miniclaw_sessions.agent.model_request import ReplyLimits
from miniclaw_sessions.agent.provider import ModelEvent, Provider, ReasoningDelta, Reply, TextDelta
from miniclaw_sessions.agent.providers.wrappers import Priced, WithFallback
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.config import BudgetSettings, PriceSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.manager.reading import read_transcript
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import Message, Role, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import BudgetSpent, ModelError
from miniclaw_sessions.statistics import UsageRow

pytestmark = pytest.mark.anyio

ASKED = Message.user("x" * 400)
SAID = "word" * 10
TOKENS = 110
"""A hundred that were sent, and ten that were said."""


class Breaking:
    """A model that says something, and then fails, ends, or goes on for ever."""

    name, model = "test", "breaking"

    def __init__(self, then: Exception | Message | None, *, said: str = SAID) -> None:
        self.heard = anyio.Event()
        self._then = then
        self._said = said

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        del messages, tools
        if self._said:
            yield TextDelta(self._said)
        self.heard.set()
        if isinstance(self._then, Exception):
            raise self._then
        if self._then is None:
            await anyio.sleep_forever()
        else:
            yield Reply(self._then)


class Thinking(Breaking):
    """A model that thinks before it says something."""

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        yield ReasoningDelta(SAID)
        async for event in super().generate(messages, tools):
            yield event


class Silent(Breaking):
    """A model that ends without a reply."""

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        del messages, tools
        yield TextDelta(self._said)


async def used(manager: SessionManager) -> UsageRow:
    return (await manager.usage()).total


async def stop(agent: Agent, session: Session, model: Breaking) -> None:
    """Ask, and stop once a word was heard."""
    async with anyio.create_task_group() as tasks:

        async def stop_it() -> None:
            await model.heard.wait()
            session.stop_turn()

        tasks.start_soon(stop_it)
        await agent.answer(ASKED, session=session)


async def test_whoever_stops_in_time_has_used_up_his_budget_all_the_same(tmp_path: Path) -> None:
    model = Breaking(None)
    async with SessionManager(tmp_path) as manager:
        settings = BudgetSettings(unit="tokens", chat_day=TOKENS, channel_day=10_000)
        budgets = Budgets(settings, manager)
        agent = Agent(model, budgets=budgets)
        session = await manager.get_or_create("telegram", 1)
        assert [one.spent for one in await budgets.of(session)] == [0] * 4
        await stop(agent, session, model)
        assert [one.spent for one in await budgets.of(session)] == [TOKENS] * 4, "the channel's as well, at once"
        kept = session.messages()[-1]
        assert (kept.text, kept.usage and kept.usage.is_estimated) == (SAID, True)
        with pytest.raises(BudgetSpent):
            await agent.reply(Message.user("and?"), session=session)
    async with SessionManager(tmp_path) as manager:
        row = await used(manager)
        assert (row.replies, row.estimated, row.input_tokens, row.output_tokens) == (1, 1, 100, 10)


@pytest.mark.parametrize(
    ("model", "limits"),
    [
        (Breaking(ModelError("broken off")), None),
        (Breaking(OSError("gone")), None),
        (Silent(None), None),
        (Breaking(None), ReplyLimits(timeout_s=0.01)),
        (Breaking(None, said=SAID), ReplyLimits(max_bytes=39)),
    ],
    ids=["fails", "breaks", "ends", "takes too long", "says too much"],
)
@pytest.mark.parametrize("store", ["sqlite:", "none:"])
async def test_what_fails_in_the_middle_is_paid_for_in_money_as_well(
    tmp_path: Path, model: Breaking, limits: ReplyLimits | None, store: str
) -> None:
    dear: Provider = WithFallback(Priced(model, {"breaking": PriceSettings(input=10_000, output=1_000)}), model)
    async with SessionManager(tmp_path, store=store) as manager:
        budgets = Budgets(BudgetSettings(chat_day=0.5), manager)
        agent = Agent(dear, budgets=budgets, limits=limits)
        session = await manager.get_or_create("telegram", 1)
        with pytest.raises(ModelError) as failed:
            await agent.reply(ASKED, session=session)
        assert failed.value.usage.total == TOKENS
        with pytest.raises(BudgetSpent):
            await agent.answer(None, session=session)
        assert [message.text for message in session.messages()] == [ASKED.text], "it can be asked again"
        if store != "none:":
            fork = await session.fork()
            assert [message.text for message in fork.messages()] == [ASKED.text]
        before = await used(manager)
        assert (before.replies, before.estimated, before.total_tokens, before.unpriced) == (1, 1, TOKENS, 0)
        assert before.cost == pytest.approx(1.01)
    async with SessionManager(tmp_path, store=store) as manager:
        assert await used(manager) == before


@pytest.mark.parametrize("said", ["", SAID])
async def test_what_a_stopped_turn_has_thought_is_paid_for_and_not_said(tmp_path: Path, said: str) -> None:
    model = Thinking(None, said=said)
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 1)
        await stop(Agent(model), session, model)
        assert session.messages()[-1].text == said
        row = await used(manager)
        assert (row.estimated, row.input_tokens, row.output_tokens) == (1, 100, 20 if said else 10)


async def test_a_turn_that_is_cancelled_has_cost_what_was_sent(tmp_path: Path) -> None:
    model = Breaking(None, said="")
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: Agent(model).answer(ASKED, session=session))
            await model.heard.wait()
            tasks.cancel_scope.cancel()
        row = await used(manager)
        assert (row.estimated, row.input_tokens, row.output_tokens) == (1, 100, 0)


@pytest.mark.parametrize("then", [None, ModelError("broken off")], ids=["stopped", "failed"])
async def test_an_estimate_is_made_by_the_counter_of_contexts(tmp_path: Path, then: Exception | None) -> None:
    model = Breaking(then)
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 1)
        agent_session = AgentSession(Agent(model), session, context_window=100_000, count=lambda _: 7)
        async with anyio.create_task_group() as tasks:

            async def stop_it() -> None:
                await model.heard.wait()
                session.stop_turn()

            tasks.start_soon(stop_it)
            with suppress(ModelError):
                async with agent_session.run(ASKED) as events:
                    [_ async for _ in events]
        row = await used(manager)
        assert (row.estimated, row.input_tokens, row.output_tokens) == (1, 7, 7)


async def test_what_is_refused_before_a_word_was_said_costs_nothing(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 1)
        with pytest.raises(ModelError):
            await Agent(Breaking(ModelError("401"), said="")).reply(ASKED, session=session)
        assert (await used(manager)).replies == 0
        entries = [entry async for entry in read_transcript(manager, session.session_id)]
        assert [type(entry) for entry in entries] == [MessageEntry]


async def test_a_reply_that_cannot_be_kept_costs_what_its_service_says(tmp_path: Path) -> None:
    nothing = Message(Role.ASSISTANT, " ", usage=Usage(7, 2))
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 1)
        with pytest.raises(ModelError, match="answered nothing"):
            await Agent(Breaking(nothing)).reply(ASKED, session=session)
        row = await used(manager)
        assert (row.replies, row.estimated, row.total_tokens) == (1, 0, 9)


@pytest.mark.parametrize("is_late", [True, False], ids=["too late", "empty"])
async def test_a_summary_that_comes_to_nothing_is_paid_for(tmp_path: Path, *, is_late: bool) -> None:
    empty = Message(Role.ASSISTANT, " ", usage=Usage(70, 7))
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", 1)
        await session.add_messages([ASKED, Message.assistant("yes")] * 2)
        agent = Agent(Breaking(None if is_late else empty))
        agent_session = AgentSession(agent, session, context_window=100_000, compaction_timeout_s=0.01)
        assert (await agent_session.compact(keep_tokens=1)).status.value == "failed"
        row = await used(manager)
        assert (row.replies, row.estimated) == (1, is_late)
        assert row.total_tokens > 100 if is_late else row.total_tokens == 77
