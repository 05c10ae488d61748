"""Titles by the model: one request behind the first answer, which is counted, and harms nothing when it fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.budgets import Budgets
from miniclaw_sessions.agent.provider import ModelEvent, Reply
from miniclaw_sessions.agent.titles import ASKED, Titles
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.config import BudgetSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.messages import Message, Role, Usage
from miniclaw_sessions.core.protocol.options import Options
from miniclaw_sessions.errors import ModelError
from tests.channels.rooms import Room

pytestmark = pytest.mark.anyio


class Speaker:
    """Answers, and gives titles; its title can be made to fail, and waits for what a test does meanwhile."""

    name, model = "test", "speaker"

    def __init__(self, title: str = '**"Trains to Sintra."**\nor so', *, fails: bool = False) -> None:
        self.title, self.fails = title, fails
        self.asked: list[Sequence[Message]] = []
        self.options: list[Options] = []
        self.was_asked, self.may_go_on = anyio.Event(), anyio.Event()
        self.may_go_on.set()

    def with_options(self, options: Options) -> Speaker:
        self.options.append(options)
        return self

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        del tools
        if "title" not in messages[-1].text:
            yield Reply(Message(Role.ASSISTANT, "every 20 minutes", usage=Usage(10)))
            return
        self.asked.append(messages)
        self.was_asked.set()
        await self.may_go_on.wait()
        if self.fails:
            raise ModelError("it is unwell")
        yield Reply(Message(Role.ASSISTANT, self.title, usage=Usage(100, cost=0.5)))


@pytest.fixture
def room() -> Iterator[Room]:
    made = Room()
    yield made
    made.close()


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncGenerator[SessionManager, None]:
    async with SessionManager(tmp_path) as opened:
        yield opened


async def test_a_session_is_titled_once_behind_its_first_answer_and_the_budget_counts_it(
    manager: SessionManager, room: Room
) -> None:
    speaker = Speaker()
    agent = Agent(speaker, budgets=Budgets(BudgetSettings(unit="tokens", chat_day=110), manager))
    titled = anyio.Event()
    manager.events.commits.subscribe(lambda _: titled.set() if session.title else None)
    session = await manager.get_or_create("room", 1)
    async with Dispatcher(manager, Assistant(agent)) as dispatcher, anyio.create_task_group() as tasks:
        dispatcher.serve(room)
        tasks.start_soon(Titles(agent, manager).run)
        assert [one.text for one in await room.ended(room.say("how do trains run?"))] == ["every 20 minutes"]
        with anyio.fail_after(10):
            await titled.wait()
        (spent,) = await room.ended(room.say("and back?"))
        assert "budget" in spent.text
        dispatcher.cut_off(anyio.current_time())
        tasks.cancel_scope.cancel()
    assert session.title == "Trains to Sintra"
    assert (len(speaker.asked), speaker.options[0].max_output_tokens) == (1, 400)
    assert "how do trains run?" in speaker.asked[0][-1].text
    assert session.total_usage.total == 110


@pytest.mark.parametrize("fails", [True, False])
async def test_a_persons_title_stands_and_no_session_is_asked_about_twice(
    manager: SessionManager, *, fails: bool
) -> None:
    speaker = Speaker(fails=fails)
    titles = Titles(Agent(speaker), manager)
    session = await manager.get_or_create("room", 1)
    await session.add_message(Message.user("how do trains run?"))
    speaker.may_go_on = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(titles.give, session.session_id)
        await speaker.was_asked.wait()
        assert session.journal.committed_sequence == session.last_sequence, "a kill now asks no second time"
        assert session.metadata[ASKED] is True
        session.update(title="my own")
        speaker.may_go_on.set()
    await titles.give(session.session_id)
    session.update(title=None)
    await titles.give(session.session_id)
    assert (session.title, len(speaker.asked)) == (None, 1)
    await titles.give("room_missing")


async def test_a_reply_that_is_no_title_leaves_the_first_words(manager: SessionManager) -> None:
    session = await manager.get_or_create("room", 1)
    await session.add_message(Message.user("hello"))
    await Titles(Agent(Speaker("  \n\n")), manager).give(session.session_id)
    assert session.title is None
    other = await manager.get_or_create("room", 2)
    await other.add_message(Message.user("hello"))
    await Titles(Agent(Speaker("word " * 40)), manager).give(other.session_id)
    assert other.title is not None
    assert (len(other.title), other.title[-1]) == (80, "…")
