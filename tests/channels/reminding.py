"""Lives of gateways that say reminders in a room, in a time that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import anyio

from miniclaw_sessions import SessionManager, SessionSettings
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.budgets import Budgets
from miniclaw_sessions.agent.reminders.reminders import Reminders
from miniclaw_sessions.agent.reminders.tool import reminder_tool
from miniclaw_sessions.agent.tools import Tool
from miniclaw_sessions.channels.base import Outgoing
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.channels.reminding import Reminding
from miniclaw_sessions.config import BudgetSettings, ReminderSettings, ScheduleSettings
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.testing import FakeClock
from tests.channels.rooms import PATIENCE_S, Doors, Room

BEGINNING = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)  # a Monday


MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0


class Network(Room):
    """A room whose network refuses the next `refusals` reminders, and keeps the next `hangs` for ever."""

    refusals = 0
    hangs = 0

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock
        self.has_hung = anyio.Event()
        self.announced_in: list[str] = []
        self.shown: list[tuple[str, datetime]] = []
        """What people read, and when."""

    def texts(self) -> list[str]:
        return [text for text, _ in self.shown]

    async def send(self, chat_id: str, outgoing: Outgoing) -> None:
        if outgoing.text:
            self.shown.append((outgoing.text, self.clock.now()))
        await super().send(chat_id, outgoing)

    async def announce(self, chat_id: str, text: str, key: str) -> None:
        del key
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError("the network is not there")
        if self.hangs:
            self.hangs -= 1
            self.has_hung.set()
            await anyio.sleep_forever()
        self.announced_in.append(chat_id)
        self.shown.append((text, self.clock.now()))
        self._changes.note()


class Gateway(NamedTuple):
    """One life of a gateway that serves a room and says what is due."""

    clock: FakeClock
    room: Network
    manager: SessionManager
    reminders: Reminders
    model: Doors
    reminding: Reminding

    async def reply(self, text: str, message_id: str | None = None, *, chat_id: str = "1") -> str:
        """The reply to what a person says in a chat of the room."""
        return (await self.room.ended(self.room.say(text, chat_id, message_id=message_id)))[0].text

    async def after(self, seconds: float, step: float = 600.0) -> list[str]:
        """What the gateway says by itself while this time passes, in steps, with all that is due said after each."""
        before = len(self.room.texts())
        while seconds > 0:
            await self.clock.advance(min(step, seconds))
            seconds -= step
            with anyio.fail_after(PATIENCE_S):
                await self.reminding.finished()
        return self.room.texts()[before:]


class Lives:
    """The lives of gateways on one workspace."""

    def __init__(self, path: Path, clock: FakeClock) -> None:
        self.path = path
        self.clock = clock
        self.store = MemoryStore()
        self.rooms: list[Network] = []

    @asynccontextmanager
    async def gateway(
        self,
        settings: ReminderSettings | None = None,
        schedules: Mapping[str, ScheduleSettings] | None = None,
        *,
        tools: Sequence[Tool] = (),
        hears: bool = True,
        budget: BudgetSettings | None = None,
        max_sessions: int = 1_000,
    ) -> AsyncIterator[Gateway]:
        model = Doors()
        sessions = SessionSettings(flush_interval_s=HOUR, sweep_interval_s=DAY, ttl_days=2.0, max_sessions=max_sessions)
        manager = SessionManager(self.path, settings=sessions, store=self.store, clock=self.clock)
        reminders = Reminders(manager, settings, schedules, networks=["room"])
        budgets = None if budget is None else Budgets(budget, manager, clock=self.clock)
        agent = Agent(model, tools=[*tools, reminder_tool(reminders)], clock=self.clock, budgets=budgets)
        assistant = Assistant(agent)
        dispatcher = Dispatcher(manager, assistant, reminders=reminders, last_words_s=0.0)
        with closing(Network(self.clock)) as room:
            self.rooms.append(room)
            reminding = Reminding(manager, dispatcher, reminders, [room] if hears else [], poll_s=HOUR)
            async with manager, dispatcher:
                dispatcher.serve(room)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(reminding.run)
                    await reminding.finished()
                    yield Gateway(self.clock, room, manager, reminders, model, reminding)
                    tasks.cancel_scope.cancel()
                dispatcher.cut_off(anyio.current_time())
