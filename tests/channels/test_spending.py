"""`/model`, `/thinking` and `/usage` in a chat, and what it is told when its budget is spent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path

import anyio
import pytest

from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.budgets import Budgets
from miniclaw_sessions.agent.provider import ModelEvent, Provider, Reply
from miniclaw_sessions.agent.providers.wrappers import Thinking
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.channels.base import Incoming, Obeyed
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.config import BudgetSettings, SessionSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import ModelChange
from miniclaw_sessions.core.protocol.messages import Message, Role, Usage
from tests.channels.rooms import Room

pytestmark = pytest.mark.anyio


class Speaker:
    """Says its name, for a quarter."""

    name = "test"

    def __init__(self, model: str) -> None:
        self.model = model

    async def generate(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[ModelEvent, None]:
        del messages, tools
        yield Reply(Message(Role.ASSISTANT, f"I am {self.model}", usage=Usage(900, 100, cost=0.25)))


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[SessionManager]:
    settings = SessionSettings(store="memory:", currency="EUR")
    async with SessionManager(tmp_path / "w", settings=settings) as opened:
        yield opened


@pytest.fixture
async def dispatcher(manager: SessionManager, room: Room) -> AsyncIterator[Dispatcher]:
    models = {name: Speaker(name) for name in ("small", "large", "largest")}
    budgets = Budgets(BudgetSettings(chat_day=0.5, channel_day=7.5), manager, currency="EUR", clock=manager.clock)
    agent = Agent(models["small"], choices=models, budgets=budgets)
    async with Dispatcher(manager, Assistant(agent)) as made:
        made.serve(room)
        yield made
        made.cut_off(anyio.current_time())


@pytest.mark.usefixtures("dispatcher")
async def test_a_chat_changes_its_model_and_the_tree_says_so(room: Room, manager: SessionManager) -> None:
    said = ("hello", "/model", "/model LARGEST", "hello", "/model larg", "/model huge", "/model")
    answers = [one.text for one in await room.ended(*map(room.say, said))]
    assert answers == [
        "I am small",
        "small answers here. /model NAME changes that, to one of: small, large, largest",
        "From here on largest answers.",
        "I am largest",
        "Several models are called like this; choose one of: small, large, largest",
        "There is no such model; choose one of: small, large, largest",
        "largest answers here. /model NAME changes that, to one of: small, large, largest",
    ]
    transcript = await (await manager.get_or_create("room", 1)).tree.get_transcript()
    changes = [(one.provider, one.model_id) for one in transcript.entries if isinstance(one, ModelChange)]
    assert changes == [("test", "largest")]


async def test_a_chat_chooses_a_level_of_thinking_that_its_model_takes(room: Room, manager: SessionManager) -> None:
    models: dict[str, Provider] = {"small": Speaker("small"), "large": Thinking(Speaker("large"), ("low", "high"))}
    said = ("/thinking", "/model large", "/thinking", "/thinking High", "/thinking huge", "/new", "/thinking")
    async with Dispatcher(manager, Assistant(Agent(models["small"], choices=models))) as dispatcher:
        dispatcher.serve(room)
        answers = [one.text for one in await room.ended(*map(room.say, (*said, "/thinking default")))]
        dispatcher.cut_off(anyio.current_time())
    assert answers == [
        "small has no levels of thinking to choose from (model.thinking_levels).",
        "From here on large answers.",
        "large thinks at the level default here. /thinking LEVEL changes that, to one of: low, high, default",
        "From here on large thinks at the level high.",
        "large does not take the level huge; choose one of: low, high, default",
        "We begin anew.",
        "large thinks at the level high here. /thinking LEVEL changes that, to one of: low, high, default",
        "From here on large thinks as much as it does by default.",
    ]
    assert (await manager.get_or_create("room", 1)).chosen_level is None


@pytest.mark.usefixtures("dispatcher")
async def test_a_chat_is_told_what_it_has_used_and_when_nothing_is_left(room: Room) -> None:
    *_, usage, spent = await room.ended(*map(room.say, ("one", "two", "/usage", "three")))
    assert usage.text.splitlines() == [
        "Today: 2,000 tokens, 0.5000 EUR",
        "This month: 2,000 tokens, 0.5000 EUR",
        "Altogether: 2,000 tokens, 0.5000 EUR",
        "Budget of this chat for today: spent, 0.5000 EUR of 0.5000 EUR",
        "Budget of the channel room for today: not spent yet",
    ]
    assert spent.text.startswith("The budget of this chat for today is spent, 0.5000 EUR of 0.5000 EUR; it goes on at ")
    assert spent.text.endswith(" Your message is kept.")


async def test_without_budgets_too_a_chat_is_told_its_costs_in_their_currency(
    room: Room, manager: SessionManager
) -> None:
    async with Dispatcher(manager, Assistant(Agent(Speaker("small")))) as dispatcher:
        dispatcher.serve(room)
        *_, usage = await room.ended(*map(room.say, ("one", "/usage")))
        dispatcher.cut_off(anyio.current_time())
    assert usage.text.splitlines()[-1] == "Altogether: 1,000 tokens, 0.2500 EUR"


async def test_the_model_that_a_person_has_chosen_stays_chosen_wherever_the_chat_goes(
    room: Room, manager: SessionManager
) -> None:
    """Behind `/new` too, on whatever branch: what was for one service must not go to another one."""
    models = {name: Speaker(name) for name in ("small", "large")}
    async with Dispatcher(manager, Assistant(Agent(models["small"], choices=models))) as dispatcher:
        dispatcher.serve(room)
        answers = []
        for number, text in enumerate(("/model large", "hello", "/new", "one", "two")):
            answers += await room.ended(room.say(text, message_id=str(number)))
        answers += await room.ended(room.hear(Incoming("1", Message.user("two!"), message_id="5", replaces="4")))
        answers += await room.ended(*map(room.say, ("three", "/new", "four", "/retry", "five")))
        dispatcher.cut_off(anyio.current_time())
    assert [one.text for one in answers if not isinstance(one, Obeyed)] == ["I am large"] * 8


async def test_the_model_that_was_chosen_is_known_after_a_restart_without_the_sessions_file(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("room", 1)
        await session.add_message(Message.user("one"))
        before = session.leaf_id
        session.update(model="large")
        session.clear()
        await session.add_message(Message.user("two"))
        await session.tree.branch(before)
    (file,) = [one async for one in anyio.Path(tmp_path).rglob("room_1.json")]
    await file.unlink()
    async with SessionManager(tmp_path) as manager:
        assert (await manager.get_or_create("room", 1)).chosen_model == "large"
