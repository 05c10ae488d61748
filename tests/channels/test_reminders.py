"""Reminders as a chat sees them: set, listed, paused, deleted, and said once, in a time that the test moves."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.agent.reminders.agenda import CHANNEL, LEASE_S
from miniclaw_sessions.agent.reminders.reminders import Reminders
from miniclaw_sessions.channels.base import Incoming
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.channels.reminding import _POINTS, TOGETHER
from miniclaw_sessions.config import BudgetSettings, ReminderSettings, ScheduleSettings
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.messages import ToolCall, Usage
from miniclaw_sessions.errors import ConfigError, InvalidReminder
from miniclaw_sessions.testing import FakeClock
from tests.channels.reminding import BEGINNING, DAY, HOUR, MINUTE, Lives
from tests.channels.rooms import PATIENCE_S, Room, deleting_tool

pytestmark = pytest.mark.anyio


@pytest.fixture
def lives(tmp_path: Path) -> Lives:
    return Lives(tmp_path / "w", FakeClock(BEGINNING))


# --- what people do --------------------------------------------------------------------------------------------------


async def test_a_reminder_is_said_once_and_not_before_its_time(lives: Lives) -> None:
    async with lives.gateway() as one:
        assert await one.reply("/remind 20m tea") == "Reminder 1: Mon 2 Mar 2026, 08:20: tea\n/reminders lists them."
        assert await one.after(19 * MINUTE + 59) == []
        assert await one.after(2) == ["Reminder: tea"]
        assert await one.after(DAY) == []
        assert "no reminders" in await one.reply("/reminders")
        session = await one.manager.get("room", "1")
        assert [message.text for message in session.messages()] == ["(A reminder is due: tea)", "Reminder: tea"]


async def test_people_list_pause_resume_and_delete(lives: Lives) -> None:
    async with lives.gateway() as one:
        await one.reply("/remind every day 9:00 stretch")
        await one.reply("/remind tomorrow 12:00 lunch with Ann")
        listed = (await one.reply("/reminders")).splitlines()
        assert listed[1:] == [
            "1: Mon 2 Mar 2026, 09:00, then by the cron expression 0 9 * * *: stretch",
            "2: Tue 3 Mar 2026, 12:00: lunch with Ann",
        ]
        assert "(paused)" in await one.reply("/reminders pause 1")
        assert await one.after(DAY) == []
        assert "Wed 4 Mar 2026, 09:00" not in await one.reply("/reminders resume 1")  # it is 08:00 on Tuesday
        assert await one.after(2 * HOUR) == ["Reminder: stretch"]
        assert await one.reply("/reminders delete 2") == "Reminder 2 is deleted."
        assert await one.after(20 * HOUR) == []


@pytest.mark.parametrize(
    ("said", "reply"),
    [
        ("/remind soon tea", "I do not understand the time"),
        ("/remind 20m", "Say also what it is about"),
        ("/remind today 7:00 tea", "That time is past"),
        ("/remind 99999w tea", "That is more than ten years from now"),
        ("/remind cron 61 * * * * tea", "This cron expression cannot be read"),
        ("/remind 2026-02-30 tea", "There is no such day"),
        ("/remind 25:00 tea", "There is no such time of day"),
        ("/remind 1m " + "x" * 2_001, "A reminder has at most 2,000 characters"),
        ("/reminders delete 7", "There is no reminder 7 here"),
        ("/reminders burn 7", "Write /reminders"),
        ("/timezone Mars/Base", "There is no time zone of this name"),
        ("/timezone ../../etc/passwd", "There is no time zone of this name"),
    ],
)
async def test_what_cannot_be_meant_gets_a_sentence(lives: Lives, said: str, reply: str) -> None:
    async with lives.gateway() as one:
        assert (await one.reply(said)).startswith(reply)
        assert "no reminders" in await one.reply("/reminders")


async def test_a_command_that_is_delivered_again_is_obeyed_once(lives: Lives) -> None:
    async with lives.gateway() as one:
        await one.reply("/remind 20m tea", message_id="7")
        assert await one.reply("/remind 20m tea", message_id="7") == ""
        assert await one.after(HOUR) == ["Reminder: tea"]


async def test_a_chat_has_a_bound(lives: Lives) -> None:
    async with lives.gateway(ReminderSettings(max_per_chat=2)) as one:
        for _ in range(2):
            await one.reply("/remind 1h tea")
        assert "2 reminders already" in await one.reply("/remind 2h tea")
        assert len(await one.manager.list(channel=CHANNEL)) == 1  # what is refused leaves nothing there


async def test_a_network_that_only_takes_answers_gets_no_reminder(manager: SessionManager) -> None:
    reminders = Reminders(manager, answering=["email"])
    with pytest.raises(InvalidReminder, match="only answer"):
        await reminders.set(await manager.get_or_create("email", "ann"), "20m tea")


async def test_without_reminders_the_command_says_so(dispatcher: Dispatcher, room: Room) -> None:
    del dispatcher
    (last,) = await room.ended(room.say("/remind 20m tea"))
    assert last.text == "Reminders are switched off here."


# --- the chat's own time ---------------------------------------------------------------------------------------------


async def test_times_of_day_are_those_of_the_chat_and_move_with_it(lives: Lives) -> None:
    async with lives.gateway() as one:
        assert "UTC" in await one.reply("/timezone")
        await one.reply("/remind every day 12:00 lunch")
        assert "09:00 (Europe/Berlin)" in await one.reply("/timezone Europe/Berlin")
        assert "Mon 2 Mar 2026, 12:00" in await one.reply("/reminders")
        assert await one.after(3 * HOUR - 1) == []
        assert await one.after(2) == ["Reminder: lunch"]


@pytest.mark.parametrize(
    ("day", "due"),
    [
        (datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 3, 29, 1, 0, tzinfo=UTC)),  # there is no 02:30
        (datetime(2026, 10, 24, 12, tzinfo=UTC), datetime(2026, 10, 25, 0, 30, tzinfo=UTC)),  # there are two
    ],
)
@pytest.mark.parametrize("words", ["every day 2:30", "tomorrow 2:30"])
async def test_where_daylight_saving_begins_or_ends_it_is_said_once(
    tmp_path: Path, day: datetime, due: datetime, words: str
) -> None:
    lives = Lives(tmp_path / "w", FakeClock(day))
    async with lives.gateway(ReminderSettings(timezone="Europe/Berlin")) as one:
        await one.reply(f"/remind {words} check")
        assert await one.after((due - day).total_seconds() - 1) == []
        assert await one.after(2) == ["Reminder: check"]
        assert await one.after(5 * HOUR) == []


# --- gateways come and go --------------------------------------------------------------------------------------------


async def test_what_was_missed_is_said_late_and_once(lives: Lives) -> None:
    async with lives.gateway() as one:
        await one.reply("/remind 20m tea")
        await one.reply("/remind every 2h drink")
    await lives.clock.advance(9 * HOUR)
    async with lives.gateway() as two:
        assert sorted(two.room.texts()) == [
            "Reminder, late, because I could not say it on Mon 2 Mar 2026, 08:20: tea",
            "Reminder, late, because I could not say it on Mon 2 Mar 2026, 10:00: drink",
        ]
        assert await two.after(HOUR) == ["Reminder: drink"]  # at 18:00, as if nothing had been


@pytest.mark.parametrize("settings", [ReminderSettings(missed="skip"), ReminderSettings(missed_within_s=HOUR)])
async def test_what_was_missed_is_left_out_where_the_settings_say_so(lives: Lives, settings: ReminderSettings) -> None:
    async with lives.gateway(settings) as one:
        await one.reply("/remind 20m tea")
        await one.reply("/remind every day 8:30 drink")
    await lives.clock.advance(2 * HOUR)
    async with lives.gateway(settings) as two:
        assert two.room.texts() == []
        assert await two.after(DAY) == ["Reminder: drink"]


async def test_what_the_network_did_not_take_is_sent_again_and_stands_in_the_session_once(lives: Lives) -> None:
    async with lives.gateway() as one:
        await one.reply("/remind 20m tea")
        one.room.refusals = 3
        with capture_logs() as logs:
            assert await one.after(30 * MINUTE) == ["Reminder: tea"]
        assert [line["action"] for line in logs].count("reminder.not_sent") == 3
        assert "tea" not in str(logs)
        session = await one.manager.get("room", "1")
        assert session.message_count == 2


async def test_what_was_kept_and_not_sent_is_sent_by_the_next_life(lives: Lives) -> None:
    async with lives.gateway() as one:
        await one.reply("/remind 20m tea")
        one.room.hangs = 1
        await one.clock.advance(20 * MINUTE)
        await one.room.has_hung.wait()
        assert (await one.manager.get("room", "1")).message_count == 2
        one.reminders.agenda.taken.clear()  # it is killed: it gives nothing back
    async with lives.gateway() as two:
        assert await two.after(LEASE_S - 2) == []  # the one before may still be at it
        assert await two.after(4) == ["Reminder: tea"]
        assert (await two.manager.get("room", "1")).message_count == 2
        assert await two.after(HOUR) == []


async def test_a_gateway_without_the_network_leaves_its_reminders_alone(lives: Lives) -> None:
    async with lives.gateway(hears=False) as one:
        await one.reply("/remind 20m tea")
        assert await one.after(HOUR) == []
    async with lives.gateway() as two:
        assert len(two.room.texts()) == 1


async def test_a_clock_that_is_set_back_lets_nothing_be_said_twice(lives: Lives) -> None:
    async with lives.gateway() as one:
        await one.reply("/remind every 2h drink")
        assert await one.after(2 * HOUR) == ["Reminder: drink"]
        one.clock.jump(-HOUR)
        assert await one.after(2 * HOUR) == []  # it is due at 12:00, and it is 11:00
        assert await one.after(HOUR) == ["Reminder: drink"]


# --- sessions --------------------------------------------------------------------------------------------------------


async def test_the_reminders_of_a_deleted_session_say_nothing(lives: Lives) -> None:
    async with lives.gateway() as one:
        await one.reply("/remind 20m tea")
        await one.manager.delete("room_1")
        assert await one.after(HOUR) == []
        assert [row.session_id for row in await one.manager.list(channel="room")] == []


async def test_a_fork_says_nothing(lives: Lives) -> None:
    async with lives.gateway() as one:
        await one.reply("/remind 20m tea")
        fork = await (await one.manager.get("room", "1")).fork()
        assert one.reminders.list(fork) == []
        assert await one.after(HOUR) == ["Reminder: tea"]


async def test_an_expired_session_comes_back_for_its_reminder(lives: Lives) -> None:
    async with lives.gateway() as one:
        await one.reply("/remind 4d the contract ends")
        gone = anyio.Event()
        one.manager.events.ended.subscribe(lambda ended: gone.set() if ended.session_id == "room_1" else None)
        assert await one.after(3 * DAY, step=DAY / 4) == []  # a sweep that is late by a step is not so by a day
        with anyio.fail_after(PATIENCE_S):
            await gone.wait()
        assert await one.manager.list(channel="room") == []
        assert await one.after(DAY, step=DAY) == ["Reminder: the contract ends"]


async def test_what_found_no_session_of_its_own_hour_does_not_expire(lives: Lives) -> None:
    async with lives.gateway(max_sessions=3) as one:
        await one.manager.get_or_create("room", "2")
        await one.reply("/remind 5m x")
        await one.reply("/remind 5d tea")  # no session can be made: it stands in the one of this hour
        said = await one.after(6 * DAY, step=DAY / 4)
    assert [text for text in said if text.endswith(" tea")], said


async def test_what_waits_for_its_network_does_not_expire(lives: Lives) -> None:
    async with lives.gateway() as one:
        await one.reply("/remind every day 9:00 drink")
    async with lives.gateway(hears=False) as two:
        assert await two.after(4 * DAY, step=DAY / 4) == []
    async with lives.gateway() as three:
        said = await three.after(3 * DAY, step=DAY / 4)
    assert said[-3:] == ["Reminder: drink"] * 3


async def test_a_session_of_another_program_in_the_agendas_channel_stays(lives: Lives) -> None:
    async with lives.gateway() as one:
        session = await one.manager.get_or_create(CHANNEL, "2026-03-01T07 my notes")
        await session.add_message(Message.user("hello"))
        await one.after(5 * HOUR)
        assert await one.manager.find(session.session_id)


@pytest.mark.parametrize("many", [1, 8, 20])
async def test_an_hour_that_cannot_be_written_holds_up_no_other(lives: Lives, many: int) -> None:
    async with lives.gateway() as one:
        await one.reply("/remind every day 8:30 drink")
        items = {f"x{number}": "2026-03-02T08:00:00+00:00 0 - 0 room_1" for number in range(many)}
        full = "x" * (1_048_540 - 60 * many)  # no item can be taken: the session has no room for that
        await one.manager.get_or_create(CHANNEL, "2026-03-02T07", metadata={**items, "full": full})
        assert await one.after(2 * DAY, step=HOUR / 2) == ["Reminder: drink"] * 2


async def test_chats_that_are_answering_hold_up_no_reminder_of_another_one(lives: Lives) -> None:
    async with lives.gateway() as one:
        busy = [f"busy{number}" for number in range(12)]
        for chat_id in busy:
            await one.reply("/remind 5m tea", chat_id=chat_id)
        await one.reply("/remind 6m mine", chat_id="quiet")
        one.model.close(*busy)
        for chat_id in busy:
            one.room.say(chat_id, chat_id)
        await one.model.was_asked(*busy)
        await one.clock.advance(6 * MINUTE)
        await one.room.until(lambda: "Reminder: mine" in one.room.texts())
        one.model.open(*busy)
        await one.after(HOUR)
        assert one.room.texts().count("Reminder: tea") == len(busy)


async def test_the_agenda_leaves_nothing_behind(lives: Lives) -> None:
    async with lives.gateway() as one:
        await one.reply("/remind 20m tea")
        assert len(await one.manager.list(channel=CHANNEL)) == 1
        await one.after(4 * HOUR)
        assert await one.manager.list(channel=CHANNEL) == []


async def test_a_question_stays_open_when_a_reminder_is_said(lives: Lives) -> None:
    made: list[dict[str, Any]] = []
    async with lives.gateway(tools=[deleting_tool(made)]) as one:
        one.model.replies["delete it"] = Message.assistant("", (ToolCall("c1", "delete", "{}"),))
        await one.reply("/remind 20m tea")
        assert "delete" in await one.reply("delete it")
        assert await one.after(21 * MINUTE) == ["Reminder: tea"]
        await one.reply("yes")
        assert made == [{}]


# --- models ----------------------------------------------------------------------------------------------------------


def calling(**arguments: Any) -> Message:
    return Message.assistant("", (ToolCall("c1", "reminders", msgspec.json.encode(arguments).decode()),))


async def test_a_model_sets_lists_and_deletes(lives: Lives) -> None:
    async with lives.gateway() as one:
        one.model.replies |= {
            "remind me": calling(action="set", when="in 20m", text="tea"),
            "ask later": calling(action="set", when="every day 9:00", text="how is the weather?", ask=True),
            "which": calling(action="list"),
            "not that": calling(action="delete", number=1),
            "nonsense": calling(action="burn"),
        }
        assert "08:20: tea" in await one.reply("remind me")
        await one.reply("ask later")
        assert "1: Mon 2 Mar 2026, 08:20: tea" in await one.reply("which")
        assert "Reminder 1 is deleted" in await one.reply("not that")
        assert "one of set, list and delete" in await one.reply("nonsense")
        (said,) = await one.after(2 * HOUR)
        assert said == "echo: (It is Mon 2 Mar 2026, 09:00.) how is the weather?"


async def test_schedules_of_the_settings_are_said_and_asked(lives: Lives, tmp_path: Path) -> None:
    points = tmp_path / "points.md"
    schedules = {
        "standup": ScheduleSettings(chat="room_1", cron="30 8 * * 1-5", text="stand up", timezone="Europe/London"),
        "weather": ScheduleSettings(chat="room_1", cron="0 9 * * *", prompt="how is the weather?"),
        "look": ScheduleSettings(chat="room_1", every_s=HOUR, points_file=str(points)),
    }
    async with lives.gateway(schedules=schedules) as one:
        assert await one.after(HOUR) == [
            "Reminder: stand up",
            "echo: (It is Mon 2 Mar 2026, 09:00.) how is the weather?",
        ]
        assert len(one.model.asked) == 1  # there are no open points
        points.write_text("- call Ann back")
        session = await one.manager.get("room", "1")
        before = session.messages()
        one.model.replies[_POINTS + "- call Ann back"] = Message.assistant("SILENT.")
        assert await one.after(HOUR) == []
        assert len(one.model.asked) == 2
        assert session.messages() == before
        one.model.replies.clear()
        (said,) = await one.after(HOUR)
        assert said.endswith("- call Ann back")
        assert "would come back" in await one.reply("/reminders delete 1")
        assert "(paused)" in await one.reply("/reminders pause 1")
    async with lives.gateway(schedules={"standup": schedules["standup"]}) as two:
        assert await two.after(2 * DAY) == []  # that one is paused, and the others are in no settings
        assert "(paused)" in await two.reply("/reminders")


async def test_what_was_answered_meanwhile_stays_where_the_heartbeat_is_silent(lives: Lives, tmp_path: Path) -> None:
    points = tmp_path / "points.md"
    points.write_text("- call Ann back")
    schedules = {"look": ScheduleSettings(chat="room_1", every_s=HOUR, points_file=str(points))}
    async with lives.gateway(schedules=schedules) as one:
        one.model.replies[_POINTS + "- call Ann back"] = Message.assistant("SILENT")
        session = await one.manager.get("room", "1")
        async with session.turn(
            Message.user("book the flight")
        ) as turn:  # as another chat does that has joined the conversation
            await one.clock.advance(HOUR)
            await anyio.wait_all_tasks_blocked()
            turn.append(Message.assistant("it is booked"))
        await one.reminding.finished()
        assert len(one.model.asked) == 1
        assert [message.text for message in session.messages()] == ["book the flight", "it is booked"]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"chat": "room_1", "cron": "0 9 * *", "text": "x"}, "five fields"),
        ({"chat": "../x", "cron": "0 9 * * *", "text": "x"}, "schedules.bad"),
        ({"chat": "room_1", "cron": "0 9 * * *", "text": "x", "timezone": "Mars"}, "time zone"),
    ],
)
async def test_a_schedule_that_cannot_be_meant_is_refused(
    manager: SessionManager, wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Reminders(manager, schedules={"bad": ScheduleSettings(**wrong)})


async def test_what_the_model_does_not_answer_is_logged_and_asked_at_the_next_time(lives: Lives) -> None:
    schedules = {"ask": ScheduleSettings(chat="room_1", every_s=HOUR, prompt="how is the weather?")}

    def fail() -> None:
        raise RuntimeError

    async with lives.gateway(schedules=schedules) as one:
        one.model.on_asked = fail
        with capture_logs() as logs:
            assert await one.after(2 * HOUR + 1) == []
        assert [line["action"] for line in logs].count("reminder.failed") == 2


async def test_a_budget_that_is_spent_holds_for_prompts_and_not_for_texts(lives: Lives) -> None:
    schedules = {
        "ask": ScheduleSettings(chat="room_1", every_s=HOUR, prompt="how is the weather?"),
        "say": ScheduleSettings(chat="room_1", every_s=HOUR, text="drink"),
    }
    async with lives.gateway(schedules=schedules, budget=BudgetSettings(unit="tokens", chat_day=5)) as one:
        asked = "(It is Mon 2 Mar 2026, 09:00.) how is the weather?"
        one.model.replies[asked] = msgspec.structs.replace(Message.assistant("rain"), usage=Usage(4, 4))
        with capture_logs() as logs:
            assert sorted(await one.after(2 * HOUR + 1)) == ["Reminder: drink", "Reminder: drink", "rain"]
        assert one.model.asked == [asked]
        assert [line["error_type"] for line in logs if line["action"] == "reminder.failed"] == ["BudgetSpent"]


# --- many ------------------------------------------------------------------------------------------------------------


async def test_a_person_does_not_wait_for_the_reminders_of_all_others(lives: Lives) -> None:
    async with lives.gateway() as one:
        for number in range(12 * TOGETHER):
            session = await one.manager.get_or_create("room", f"chat {number}")
            await one.reminders.set(session, "1h drink")
        lives.clock.jump(HOUR)
        asked: list[Incoming] = []

        async def ask_in_the_middle() -> None:
            await one.room.until(lambda: len(one.room.texts()) > TOGETHER)
            asked.append(one.room.say("hello", "me"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_in_the_middle)
            await one.clock.advance(1)
            await one.room.until(lambda: len(one.room.texts()) == 12 * TOGETHER + 1)
        place = one.room.texts().index("echo: hello")
        assert place < 6 * TOGETHER


# --- whatever happens ------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("once"), st.integers(1, 300)),
        st.tuples(st.just("every"), st.integers(1, 120)),
        st.tuples(st.just("pass"), st.integers(1, 200)),
        st.tuples(st.just("jump"), st.integers(-120, 120)),
        st.tuples(st.just("refuse"), st.integers(1, 3)),
        st.tuples(st.sampled_from(["kill in the middle", "kill", "stop"]), st.just(0)),
    ),
    max_size=12,
)


class Things:
    """What was set, with the moment when it is due first."""

    def __init__(self) -> None:
        self.due: dict[str, datetime] = {}
        self.repeats: set[str] = set()

    def words(self, kind: str, minutes: int, now: datetime) -> str:
        """The command for one more."""
        name = f"thing {len(self.due)}."
        self.due[name] = now + timedelta(minutes=minutes)
        if kind == "every":
            self.repeats.add(name)
        return f"/remind {'every ' if kind == 'every' else ''}{minutes}m {name}"


async def live(lives: Lives, things: Things, steps: list[tuple[str, int]]) -> None:
    """One life of a gateway: it takes its steps until it ends."""
    async with lives.gateway(ReminderSettings(missed_within_s=10 * 365 * DAY)) as one:
        while steps:
            kind, number = steps.pop(0)
            match kind:
                case "once" | "every":
                    await one.reply(things.words(kind, number, one.clock.now()))
                case "pass":
                    await one.after(number * MINUTE)
                case "jump":
                    one.clock.jump(number * MINUTE)
                case "refuse":
                    one.room.refusals = number
                case "kill in the middle":
                    one.room.hangs = 1
                    await one.clock.advance(HOUR)  # if something is due by then, it is kept, and not sent
                    one.reminders.agenda.taken.clear()
                    return
                case "kill":
                    one.reminders.agenda.taken.clear()
                    return
                case "stop":
                    return


@hypothesis_settings(max_examples=25, deadline=None)
@given(steps=STEPS)
@example(steps=[("once", 1), ("jump", 1), ("once", 1), ("jump", -1)])  # set back while the first one is being said
def test_each_is_said_once_and_not_before_its_time(steps: list[tuple[str, int]]) -> None:
    async def try_them() -> None:
        with tempfile.TemporaryDirectory() as directory:
            lives, things, left = Lives(Path(directory) / "w", FakeClock(BEGINNING)), Things(), [*steps]
            while left:
                await live(lives, things, left)
            last = max(things.due.values(), default=BEGINNING) - lives.clock.now()
            lives.clock.jump(max(0.0, last.total_seconds()) + 1)
            await live(lives, things, [("pass", 2)])  # longer than a lease
            shown = [one for room in lives.rooms for one in room.shown if one[0].startswith(("Reminder:", "Reminder,"))]
            for name, due in things.due.items():
                times = [at for text, at in shown if text.endswith(name)]
                assert all(at >= due for at in times)
                assert len(times) == 1 or (name in things.repeats and times)
            async with lives.gateway() as one:
                if things.due:
                    session = await one.manager.get("room", "1")
                    kept = [entry async for entry in session.tree.read_entries() if isinstance(entry, MessageEntry)]
                    keys = [entry.idempotency_key for entry in kept if entry.idempotency_key]
                    assert len(keys) == len(set(keys)) == len(shown)

    anyio.run(try_them)
