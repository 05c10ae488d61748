"""The times of reminders: what people write, when that is, and when it comes again. Plain functions.

A time of day is the chat's own. Where daylight saving leaves it out, it is the next time that there is; where the clock
shows it twice, it is the first one. Cron expressions are those of Debian's cron, with five fields.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from miniclaw_sessions.errors import ConfigError, InvalidReminder, to_install

FURTHEST = timedelta(days=3_660)
"""A reminder is due within this time; beyond it a number was mistyped."""

SHORTEST_S = 60
"""Seconds between two times of a reminder that comes again, at least."""

MORNING = time(9)
"""The time of day where only a day is named."""

EXAMPLES = (
    "/remind 20m tea · /remind 18:30 call Ann · /remind tomorrow 9:00 the report · /remind 2026-12-24 12:00 the "
    "goose · /remind every weekday 8:30 stand-up · /remind every 2h drink · /remind cron 0 9 1 * * the rent"
)
"""What people may write, one of each kind."""

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
# A long s is an s to IGNORECASE, and no key of _UNITS.
_UNIT = r"(?-i:(?!\u017f))(?:s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?|w(?:eeks?)?)"
_SPAN = re.compile(rf"(?:in\s+)?((?:\d{{1,6}}\s*{_UNIT}\b[\s,]*|\d{{1,6}}{_UNIT}(?=\d))+)", re.IGNORECASE)
_PART = re.compile(rf"(\d{{1,6}})\s*({_UNIT})", re.IGNORECASE)
_CLOCK = r"(?:at\s+)?(?:(\d{1,2}):(\d{2})\s*([ap]m)?|(\d{1,2})\s*([ap]m))\b"
_TIME = re.compile(_CLOCK, re.IGNORECASE)
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAY = "(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*"
_WHICH_DAY = re.compile(rf"(?:on\s+)?(today|tomorrow|\d{{4}}-\d{{2}}-\d{{2}}|{_DAY})\b", re.IGNORECASE)
_EVERY = re.compile(rf"every\s+(day|weekday|weekend|{_DAY}(?:\s*,\s*{_DAY})*)\b", re.IGNORECASE)
_EVERY_SPAN = re.compile(rf"every\s+(\d{{0,6}})\s*({_UNIT})\b", re.IGNORECASE)
_CRON = re.compile(r"cron\s+((?:\S+\s+){4}\S+)", re.IGNORECASE)
_FIELDS = 5
_NOON = 12


class When(NamedTuple):
    """The time of a reminder.

    Attributes:
        at: when it is due next, UTC.
        cron: the cron expression by which it comes again, in the chat's time zone; empty: it does not.
        every_s: the seconds after which it comes again; 0: it does not.
    """

    at: datetime
    cron: str = ""
    every_s: int = 0


def zone_of(name: str) -> ZoneInfo:
    """The time zone of an IANA name, such as Europe/Berlin.

    Raises:
        InvalidReminder: there is no such zone.
    """
    try:
        return _zone(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidReminder("there is no time zone of this name; write one such as Europe/Berlin, or UTC") from None


@cache
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


# --- what people write -----------------------------------------------------------------------------------------------


def read(text: str, now: datetime, zone: ZoneInfo) -> tuple[When, str]:
    """The time at the beginning of what a person wrote, and the rest.

    Args:
        text: such as `20m tea` or `every weekday 8:30 stand-up`; see `EXAMPLES`.
        now: the time, UTC.
        zone: the chat's.

    Raises:
        InvalidReminder: it begins with no time, or with one that is past, or further away than ten years.
    """
    text = text.strip()
    for reading in (_cron, _every, _every_span, _span, _day, _time_of_day):
        if (found := reading(text, now, zone)) is not None:
            when, rest = found
            if when.at - now > FURTHEST:
                raise InvalidReminder("that is more than ten years from now; write a nearer time")
            return when, rest.strip()
    raise InvalidReminder(f"I do not understand the time. Write, for example: {EXAMPLES}")


Found = tuple[When, str] | None


def _span(text: str, now: datetime, _: ZoneInfo) -> Found:
    """`20m`, `1h30m`, `in 2 hours`."""
    if (found := _SPAN.match(text)) is None:
        return None
    seconds = sum(int(number) * _UNITS[unit[0].lower()] for number, unit in _PART.findall(found[1]))
    if seconds == 0:
        raise InvalidReminder("that is now; write a time from now on")
    return When(_later(now, seconds)), text[found.end() :]


def _every_span(text: str, now: datetime, _: ZoneInfo) -> Found:
    """`every 2h`."""
    if (found := _EVERY_SPAN.match(text)) is None:
        return None
    seconds = int(found[1] or 1) * _UNITS[found[2][0].lower()]
    if seconds < SHORTEST_S:
        raise InvalidReminder("that is more often than once a minute; write a longer time")
    return When(_later(now, seconds), every_s=seconds), text[found.end() :]


def _later(now: datetime, seconds: int) -> datetime:
    try:
        return now + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def _every(text: str, now: datetime, zone: ZoneInfo) -> Found:
    """`every weekday 8:30`."""
    if (found := _EVERY.match(text)) is None:
        return None
    days = found[1].lower()
    field = {"day": "*", "weekday": "1-5", "weekend": "6,0"}.get(days)
    if field is None:
        numbers = sorted({(_number_of_day(one) + 1) % 7 for one in re.split(r"\s*,\s*", days)})
        field = ",".join(map(str, numbers))
    at, rest = _time_in(text[found.end() :].lstrip(), MORNING)
    cron = f"{at.minute} {at.hour} * * {field}"
    return When(after(cron, now, zone), cron=cron), rest


def _cron(text: str, now: datetime, zone: ZoneInfo) -> Found:
    """`cron 0 9 1 * *`."""
    if (found := _CRON.match(text)) is None:
        return None
    cron = " ".join(found[1].split())
    return When(after(cron, now, zone), cron=cron), text[found.end() :]


def _day(text: str, now: datetime, zone: ZoneInfo) -> Found:
    """`tomorrow 9:00`, `friday`, `2026-12-24 12:00`."""
    if (found := _WHICH_DAY.match(text)) is None:
        return None
    word, today = found[1].lower(), now.astimezone(zone).date()
    at, rest = _time_in(text[found.end() :].lstrip(), MORNING)
    match word:
        case "today":
            day = today
        case "tomorrow":
            day = today + timedelta(days=1)
        case _ if word[0].isdigit():
            try:
                day = date.fromisoformat(word)
            except ValueError:
                raise InvalidReminder("there is no such day; write it as 2026-12-24") from None
        case _:
            day = today + timedelta(days=(_number_of_day(word) - today.weekday()) % 7)
            if instant(day, at, zone) <= now:
                day += timedelta(days=7)
    return When(_ahead(instant(day, at, zone), now)), rest


def _time_of_day(text: str, now: datetime, zone: ZoneInfo) -> Found:
    """`18:30`, `7pm`: today, or tomorrow where that is past."""
    if _TIME.match(text) is None:
        return None
    at, rest = _time_in(text, MORNING)
    today = now.astimezone(zone).date()
    due = instant(today, at, zone)
    return When(due if due > now else instant(today + timedelta(days=1), at, zone)), rest


def _time_in(text: str, otherwise: time) -> tuple[time, str]:
    """The time of day at the beginning of a text, and the rest."""
    if (found := _TIME.match(text)) is None:
        return otherwise, text
    hour, minute = int(found[1] or found[4]), int(found[2] or 0)
    if half := (found[3] or found[5] or "").lower():
        if not 1 <= hour <= _NOON:
            raise InvalidReminder("there is no such time of day; write it as 18:30 or 6:30pm")
        hour = hour % _NOON + (_NOON if half == "pm" else 0)
    try:
        return time(hour, minute), text[found.end() :]
    except ValueError:
        raise InvalidReminder("there is no such time of day; write it as 18:30 or 6:30pm") from None


def _number_of_day(word: str) -> int:
    """0 for Monday."""
    for number, name in enumerate(_DAYS):
        if name.startswith(word) or word == f"{name}s":
            return number
    raise InvalidReminder("there is no such day of the week; write monday, or mon")


def _ahead(due: datetime, now: datetime) -> datetime:
    if due <= now:
        raise InvalidReminder("that time is past; write a later one")
    return due


# --- when that is ----------------------------------------------------------------------------------------------------


def instant(day: date, at: time, zone: ZoneInfo) -> datetime:
    """When the clocks of a zone show this, UTC: the first of two times, or the next one where it is left out."""
    shown = datetime.combine(day, at)
    try:
        while True:
            due = shown.replace(tzinfo=zone).astimezone(UTC)
            if due.astimezone(zone).replace(tzinfo=None) == shown:
                return due
            shown += timedelta(minutes=1)
    except OverflowError:
        raise InvalidReminder("there is no such day; write a nearer one") from None


def after(cron: str, moment: datetime, zone: ZoneInfo) -> datetime:
    """The first time of a cron expression after a moment, UTC.

    Raises:
        InvalidReminder: it is no expression of five fields, or never comes.
        ConfigError: the package that reads it is not installed.
    """
    try:
        from cronsim import CronSim, CronSimError  # noqa: PLC0415 - the extra `daemon` has it
    except ImportError:
        raise ConfigError(f"cron expressions need the package cronsim: {to_install('daemon')}") from None
    if len(cron.split()) != _FIELDS:
        raise InvalidReminder("a cron expression has five fields: minute, hour, day, month, day of the week")
    try:
        for shown in CronSim(cron, moment.astimezone(zone)):
            if (due := shown.astimezone(UTC)) > moment:  # it is not in the hour that the clock shows twice
                return due
    except (CronSimError, OverflowError, ValueError):
        pass
    raise InvalidReminder("this cron expression cannot be read, or never comes; write such as: 30 8 * * 1-5")


def next_time(when: When, moment: datetime, zone: ZoneInfo) -> datetime | None:
    """When a reminder comes again, after its own time and a moment, UTC; None: it does not."""
    if when.cron:
        return after(when.cron, max(when.at, moment), zone)
    if not when.every_s:
        return None
    passed = max(0.0, (moment - when.at).total_seconds())
    return when.at + timedelta(seconds=when.every_s * (int(passed // when.every_s) + 1))


def shown(moment: datetime, zone: ZoneInfo) -> str:
    """A moment as the people of a chat read it."""
    return f"{moment.astimezone(zone):%a %-d %b %Y, %H:%M}"
