"""What one chat, one schedule or one session of the agenda cannot do to the reminders of all others."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from miniclaw_sessions import SessionManager
from miniclaw_sessions.agent.reminders import agenda
from miniclaw_sessions.agent.reminders.agenda import CHANNEL, LEASE_S
from miniclaw_sessions.config import ScheduleSettings
from miniclaw_sessions.testing import FakeClock
from tests.channels.reminding import BEGINNING, DAY, HOUR, MINUTE, Lives
from tests.channels.rooms import PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.fixture
def lives(tmp_path: Path) -> Lives:
    return Lives(tmp_path / "w", FakeClock(BEGINNING))


async def test_a_chat_that_cannot_be_read_holds_up_no_other_one(lives: Lives) -> None:
    async with lives.gateway() as one:
        await one.reply("/remind 4d the contract ends")
        gone = anyio.Event()
        one.manager.events.ended.subscribe(lambda _: gone.set())
        await one.after(3 * DAY, step=DAY / 4)
        with anyio.fail_after(PATIENCE_S):
            await gone.wait()
        for file in (lives.path / "archive").glob("*room_1*"):
            file.write_bytes(bytes(10))
        await one.reply("/remind every day 9:00 drink", chat_id="2")
        with capture_logs() as logs:
            assert await one.after(2 * DAY, step=HOUR) == ["Reminder: drink"] * 2
        waiting = [line for line in logs if line["action"] == "reminder.waits"]
        assert [(line["session_id"], line["error_type"]) for line in waiting] == [("room_1", "ImportRefused")]


@pytest.mark.parametrize(
    ("chat_id", "metadata"),
    [
        ("x" * 300, {}),
        ("2026-03-02T07", {"x": "2026-03-02T08:00:00+00:00 0 - 0 nothing"}),
        ("2026-03-02T07", {"x": "2026-03-02T08:00:00+00:00 0 - 0 room_gone"}),
        ("2026-03-02T07", {"x": "2026-03-02T08:00:00+00:00 0 - 0 room_1", "full": "x" * 1_048_500}),
        ("2026-13-02T08", {"x": "2026-03-02T08:00:00+00:00 0 - 0 room_1"}),
    ],
)
async def test_what_another_program_writes_into_the_agenda_holds_up_nothing(
    lives: Lives, chat_id: str, metadata: dict[str, Any]
) -> None:
    async with lives.gateway() as one:
        await one.reply("/remind every day 8:30 drink")
        await one.manager.get_or_create(CHANNEL, chat_id, metadata=metadata)
        assert await one.after(2 * DAY, step=HOUR / 2) == ["Reminder: drink"] * 2


async def test_an_hour_that_must_not_be_deleted_holds_up_nothing(lives: Lives) -> None:
    async with lives.gateway() as one:
        await one.reply("/remind every day 8:30 drink")
        await one.manager.hold((await one.manager.list(channel=CHANNEL))[0].session_id, "a lawsuit")
        assert await one.after(2 * DAY, step=HOUR / 2) == ["Reminder: drink"] * 2


async def test_a_schedule_whose_chat_cannot_be_made_holds_up_no_other_one(lives: Lives) -> None:
    standup = ScheduleSettings(chat="room_1", cron="30 8 * * *", text="stand up")
    schedules = {"bins": ScheduleSettings(chat="room_2", cron="31 8 * * *", text="the bins"), "standup": standup}
    async with lives.gateway() as one:
        await one.reply("/remind 30m tea")
        for chat_id in ("3", "4"):
            await one.manager.get_or_create("room", chat_id)
    async with lives.gateway(schedules=schedules, max_sessions=4) as two:
        with capture_logs() as logs:
            assert sorted(await two.after(30 * MINUTE + 1)) == ["Reminder: stand up", "Reminder: tea"]
        assert {line["session_id"] for line in logs if line["action"] == "reminder.waits"} == {"room_2"}
        for session_id in ("room_3", "room_4"):
            await two.manager.delete(session_id)
        assert "the bins" in "".join(await two.after(DAY + HOUR))


# --- the agenda is full ----------------------------------------------------------------------------------------------


async def test_at_the_limit_of_sessions_what_comes_again_is_said_once_each_time(lives: Lives) -> None:
    async with lives.gateway(max_sessions=3) as one:
        await one.reply("/remind every day 8:05 drink")
        await one.manager.get_or_create("room", "2")
        assert await one.after(30 * MINUTE, step=MINUTE) == ["Reminder: drink"]
        assert "tea" in await one.reply("/remind 2h tea")
    async with lives.gateway(max_sessions=3) as two:
        assert await two.after(3 * HOUR, step=HOUR / 2) == ["Reminder: tea"]
        await two.manager.delete("room_2")
        assert await two.after(2 * DAY, step=HOUR / 12) == ["Reminder: drink"] * 2


async def test_an_hour_has_room_for_any_number_of_reminders(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agenda, "ROOM", 3)
    async with lives.gateway() as one:
        await one.reply("/remind every day 9:30 drink")
        for number in range(8):
            await one.reply(f"/remind tomorrow 9:30 {number}", chat_id="2")
        assert await one.after(2 * HOUR) == ["Reminder: drink"]
        assert len(await one.manager.list(channel=CHANNEL)) == 4  # of today, and three of tomorrow
        assert await one.after(DAY - HOUR / 2 - 30) == []
        assert sorted(await one.after(30)) == [*(f"Reminder: {number}" for number in range(8)), "Reminder: drink"]
        await one.after(12 * HOUR)
        assert len(await one.manager.list(channel=CHANNEL)) == 1


async def test_what_was_said_is_not_said_again_where_its_next_time_was_not_booked(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lives.gateway() as one:
        await one.reply("/remind every day 8:05 drink")
        is_booking = anyio.Event()

        async def hang(*_: object, **__: object) -> None:
            is_booking.set()
            await anyio.sleep_forever()

        monkeypatch.setattr(one.reminders.agenda, "add", hang)
        await one.clock.advance(5 * MINUTE)
        with anyio.fail_after(PATIENCE_S):
            await is_booking.wait()
        assert one.room.texts()[1:] == ["Reminder: drink"]
        one.reminders.agenda.taken.clear()  # it is killed: it gives nothing back
    async with lives.gateway() as two:
        assert await two.after(2 * LEASE_S, step=LEASE_S) == []
        assert await two.after(DAY) == ["Reminder: drink"]


async def test_a_reminder_that_two_hours_have_is_said_by_one_task(lives: Lives) -> None:
    at = BEGINNING + timedelta(minutes=1)
    async with SessionManager(lives.path, store=lives.store, clock=lives.clock) as manager:
        here, there = agenda.Agenda(manager), agenda.Agenda(manager)
        await here.add("settings.bins", "room_1", at)
        lives.clock.jump(2 * HOUR)  # no gateway ran; the next one gives the chat its schedule
        await here.add("settings.bins", "room_1", at)
        due, _ = await here.due()
        assert len(due) == 1
        assert await here.take(due) == [*due]
        assert await here.due() == await there.due() == ({}, LEASE_S)
