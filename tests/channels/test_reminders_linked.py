"""Reminders and schedules of chats that are one conversation: said where they were set, and answered there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest

from miniclaw_sessions import Message, SessionManager, SessionSettings, ToolCall
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.reminders.reminders import Reminders
from miniclaw_sessions.agent.reminders.tool import reminder_tool
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.channels.reminding import Reminding
from miniclaw_sessions.config import ScheduleSettings
from miniclaw_sessions.testing import FakeClock
from tests.channels.houses import House
from tests.channels.reminding import BEGINNING, DAY, HOUR, MINUTE
from tests.channels.rooms import PATIENCE_S, Doors, deleting_tool

pytestmark = pytest.mark.anyio


class Home(NamedTuple):
    """A house that says what is due; its model's tool notes in `made` what it was called with."""

    house: House
    clock: FakeClock
    reminding: Reminding
    made: list[dict[str, Any]]

    async def after(self, seconds: float) -> tuple[list[str], list[str]]:
        """What it says in red and in blue by itself while this time passes."""
        red, blue = (network.announced for network in (self.house.red, self.house.blue))
        before = len(red), len(blue)
        await self.clock.advance(seconds)
        with anyio.fail_after(PATIENCE_S):
            await self.reminding.finished()
        return [text for _, text in red[before[0] :]], [text for _, text in blue[before[1] :]]


@asynccontextmanager
async def linked(path: Path, model: Doors, **schedules: ScheduleSettings) -> AsyncIterator[Home]:
    """A home whose chat in blue has joined the conversation of that in red."""
    clock, made, settings = FakeClock(BEGINNING), list[dict[str, Any]](), SessionSettings(store="memory:")
    async with AsyncExitStack() as stack:
        manager = await stack.enter_async_context(SessionManager(path / "w", settings=settings, clock=clock))
        reminders = Reminders(manager, None, schedules, networks=["red", "blue"])
        assistant = Assistant(Agent(model, tools=[deleting_tool(made), reminder_tool(reminders)], clock=clock))
        dispatcher = Dispatcher(manager, assistant, backoff_s=(0.0, 0.0), reminders=reminders)
        house = House(manager, await stack.enter_async_context(dispatcher), model)
        for close in (house.red.close, house.blue.close):
            stack.callback(close)
        stack.callback(dispatcher.cut_off, 0.0)
        reminding = Reminding(manager, dispatcher, reminders, [house.red, house.blue], poll_s=HOUR)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(reminding.run)
        await reminding.finished()
        await house.link()
        yield Home(house, clock, reminding, made)


async def test_a_chat_that_is_linked_hears_what_it_has_set(tmp_path: Path, model: Doors) -> None:
    async with linked(tmp_path, model) as home:
        await home.house.blue.ask("/remind 20m tea")
        await home.house.red.ask("/remind 30m more tea")
        assert await home.after(HOUR) == (["Reminder: more tea"], ["Reminder: tea"])
        assert sorted((await home.house.said("red"))[1::2]) == ["Reminder: more tea", "Reminder: tea"]


async def test_a_model_that_is_asked_in_a_linked_chat_reminds_there(tmp_path: Path, model: Doors) -> None:
    for name in ("red", "blue"):
        arguments = f'{{"action": "set", "when": "20m", "text": "tea of {name}"}}'
        model.replies[f"remind {name}"] = Message.assistant("", (ToolCall("c1", "reminders", arguments),))
    async with linked(tmp_path, model) as home:
        await home.house.blue.ask("remind blue")
        await home.house.red.ask("remind red")
        assert await home.after(HOUR) == (["Reminder: tea of red"], ["Reminder: tea of blue"])


async def test_what_a_linked_chat_is_asked_at_its_time_is_answered_there(tmp_path: Path, model: Doors) -> None:
    asked = "(It is Mon 2 Mar 2026, 09:00.) tidy up"
    model.replies[asked] = Message.assistant("", (ToolCall("c1", "delete", "{}"),))
    tidy = ScheduleSettings(chat="blue_1", cron="0 9 * * *", prompt="tidy up")
    async with linked(tmp_path, model, tidy=tidy) as home:
        red, (question,) = await home.after(HOUR)
        assert red == []
        assert "delete" in question
        assert await home.house.blue.ask("yes") == "echo: deleted"
        assert home.made == [{}]
        assert await home.house.said("blue") == []


async def test_no_chat_that_was_parted_hears_what_it_cannot_delete(tmp_path: Path, model: Doors) -> None:
    async with linked(tmp_path, model) as home:
        await home.house.blue.ask("/remind every day 9:00 drink")
        assert await home.after(HOUR + MINUTE) == ([], ["Reminder: drink"])
        await home.house.blue.ask("/unlink")
        assert await home.after(DAY) == (["Reminder: drink"], [])
        assert await home.house.red.ask("/reminders delete 1") == "Reminder 1 is deleted."
        assert await home.after(DAY) == ([], [])
