"""The times of reminders: what people write, in the chat's zone, over daylight saving both ways."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from miniclaw_sessions.agent.reminders.times import When, after, instant, next_time, read, zone_of
from miniclaw_sessions.errors import InvalidReminder

MONDAY = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
BERLIN, LORD_HOWE = zone_of("Europe/Berlin"), zone_of("Australia/Lord_Howe")  # which moves by half an hour
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"])
MOMENTS = st.integers(946_684_800, 2_208_988_800).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))  # to 2040
LIKE_TIMES = st.lists(
    st.sampled_from(
        ["every", "cron", "in", "at", "day", "tomorrow", "2", "30", ":", "m", "h", "*", "/", "-", ",", " ", "9pm"]
    )
).map("".join)


@pytest.mark.parametrize(
    ("words", "at", "text"),
    [
        ("20m tea", "2026-03-02T08:20", "tea"),
        ("in 2 hours call Ann", "2026-03-02T10:00", "call Ann"),
        ("1h30m, tea", "2026-03-02T09:30", "tea"),
        ("2 minutes mince pies", "2026-03-02T08:02", "mince pies"),
        ("90 sec tea", "2026-03-02T08:01:30", "tea"),
        ("2w holidays", "2026-03-16T08:00", "holidays"),
        ("18:30 call", "2026-03-02T17:30", "call"),
        ("at 6:30pm call", "2026-03-02T17:30", "call"),
        ("7am run", "2026-03-03T06:00", "run"),
        ("12am sleep", "2026-03-02T23:00", "sleep"),
        ("tomorrow report", "2026-03-03T08:00", "report"),
        ("tomorrow 9:00 9 reports", "2026-03-03T08:00", "9 reports"),
        ("today 23:59 bed", "2026-03-02T22:59", "bed"),
        ("monday 8:00 past", "2026-03-09T07:00", "past"),
        ("on Fri 10:00 call", "2026-03-06T09:00", "call"),
        ("2026-12-24 12:00 goose", "2026-12-24T11:00", "goose"),
        ("every day 9:00 x", "2026-03-03T08:00", "x"),
        ("every weekday 8:30 x", "2026-03-03T07:30", "x"),
        ("every weekend x", "2026-03-07T08:00", "x"),
        ("every tue, thu 7:15 x", "2026-03-03T06:15", "x"),
        ("every sundays 7:15 x", "2026-03-08T06:15", "x"),
        ("every 2h x", "2026-03-02T10:00", "x"),
        ("every hour x", "2026-03-02T09:00", "x"),
        ("cron 0 9 1 * * rent", "2026-04-01T07:00", "rent"),
    ],
)
def test_what_people_write_is_a_time_of_their_chat_and_a_text(words: str, at: str, text: str) -> None:
    when, rest = read(words, MONDAY, BERLIN)
    assert (when.at, rest) == (datetime.fromisoformat(at).replace(tzinfo=UTC), text)
    assert bool(when.cron or when.every_s) == words.startswith(("every", "cron"))


@pytest.mark.parametrize(
    "words",
    [
        *(
            "",
            "tea",
            "0m tea",
            "5 apples",
            "every 5s x",
            "every 0m x",
            "every blue moon",
            "13pm x",
            "24:00 x",
            "9:61 x",
        ),
        *("2025-01-01 x", "2026-13-01 x", "9999-12-31 x", "999999w x", "every 999999w x", "cron * * * *", "someday x"),
        *("cron 0 9 30 2 * x", "cron @daily x y z a b", "cron 0 0 9 * * *", "in tea", "tomorrow 25:00 x", "²m x"),
        *("5\u017f tea", "in 3 \u017f tea", "every 90\u017f tea"),  # a long s, whose capital is S
    ],
)
def test_what_is_no_time_is_refused_with_a_sentence(words: str) -> None:
    if words == "cron 0 0 9 * * *":
        assert read(words, MONDAY, BERLIN)[0].cron == "0 0 9 * *"
        return
    with pytest.raises(InvalidReminder):
        read(words, MONDAY, BERLIN)


@settings(max_examples=60)
@given(st.text(max_size=60) | LIKE_TIMES, MOMENTS, ZONES)
@example("every 999999 weeks", MONDAY, "UTC")
def test_any_words_give_a_later_time_or_a_sentence(words: str, now: datetime, zone: str) -> None:
    try:
        when, _ = read(words, now, zone_of(zone))
    except InvalidReminder:
        return
    assert when.at > now
    assert when.at.tzinfo is UTC


@pytest.mark.parametrize(
    ("zone", "day", "at", "due"),
    [
        (BERLIN, date(2026, 3, 29), time(2, 30), "2026-03-29T01:00"),  # there is no 02:30: 03:00 is the next time
        (BERLIN, date(2026, 10, 25), time(2, 30), "2026-10-25T00:30"),  # there are two: the first one
        (LORD_HOWE, date(2026, 10, 4), time(2, 15), "2026-10-03T15:30"),  # there is no 02:15: 02:30
        (LORD_HOWE, date(2026, 4, 5), time(1, 45), "2026-04-04T14:45"),
    ],
)
def test_a_time_that_is_left_out_is_the_next_one_and_of_two_it_is_the_first(
    zone: object, day: date, at: time, due: str
) -> None:
    expected = datetime.fromisoformat(due).replace(tzinfo=UTC)
    assert instant(day, at, zone) == expected  # type: ignore[arg-type]
    cron = f"{at.minute} {at.hour} * * *"
    assert after(cron, expected - timedelta(hours=3), zone) == expected  # type: ignore[arg-type]
    following = after(cron, expected, zone)  # type: ignore[arg-type]
    assert timedelta(hours=22) < following - expected < timedelta(hours=26)


@given(st.integers(0, 23), st.integers(0, 59), MOMENTS, ZONES)
@example(2, 30, datetime(2026, 10, 25, 0, 45, tzinfo=UTC), "Europe/Berlin")  # between the two times
@example(2, 30, datetime(2026, 3, 29, 1, 0, tzinfo=UTC), "Europe/Berlin")
def test_a_daily_time_comes_once_on_each_day(hour: int, minute: int, now: datetime, zone_name: str) -> None:
    zone, found, moment = zone_of(zone_name), list[datetime](), now
    for _ in range(4):
        moment = after(f"{minute} {hour} * * *", moment, zone)
        found.append(moment)
    days = [one.astimezone(zone).date() for one in found]
    assert days == [days[0] + timedelta(days=number) for number in range(4)]
    for day, due in zip(days, found, strict=True):
        assert due == instant(day, time(hour, minute), zone)


def test_what_comes_every_minute_goes_on_through_the_hour_that_there_is_twice() -> None:
    moment, seen = datetime(2026, 10, 24, 23, 55, tzinfo=UTC), []
    for _ in range(24):
        moment = after("*/10 * * * *", moment, BERLIN)
        seen.append(moment)
    assert {second - first for first, second in pairwise(seen)} == {timedelta(minutes=10)}


@given(st.integers(60, 10**6), st.integers(0, 10**7))
def test_what_comes_every_so_often_keeps_its_beat(every_s: int, late_s: int) -> None:
    when = When(MONDAY, every_s=every_s)
    now = MONDAY + timedelta(seconds=late_s)
    following = next_time(when, now, BERLIN)
    assert following is not None
    assert now < following <= now + timedelta(seconds=every_s)
    assert (following - MONDAY).total_seconds() % every_s == 0
