"""Setting, listing, pausing and deleting the reminders of a chat: the same for people, models, HTTP and settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec

from miniclaw_sessions.agent.reminders.agenda import Agenda
from miniclaw_sessions.agent.reminders.records import (
    TIMEZONE,
    Reminder,
    reminder_in,
    reminders_in,
    removed,
    stored,
    zone_name_in,
)
from miniclaw_sessions.agent.reminders.times import When, after, next_time, read, shown, zone_of
from miniclaw_sessions.config import ReminderSettings, ScheduleSettings
from miniclaw_sessions.core.protocol.entries import COMMAND
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import (
    ConfigError,
    DuplicateMessage,
    InvalidKey,
    InvalidReminder,
    LeafMoved,
    TranscriptNotKept,
)

if TYPE_CHECKING:
    from miniclaw_sessions.core.manager import SessionManager

MAX_TEXT = 2_000
"""Characters of a reminder's text."""

Change = Callable[[list[Reminder]], tuple[Mapping[str, Any], str]]
"""From the reminders that there are, the metadata to set, and the reply; called again if another process was first."""


class Mark(msgspec.Struct, frozen=True):
    """The command that asks for a change: it is obeyed once, however often it is delivered.

    Attributes:
        key: the command's message id.
        data: the data of its entry (`COMMAND`), from the reply to it.
    """

    key: str
    data: Callable[[str], dict[str, Any]]


class Reminders:
    """The reminders of all chats of a manager.

    Args:
        manager: whose sessions.
        settings: their bounds.
        schedules: those of the settings, by name.
        networks: the names of the chat networks that the settings connect, and that can be spoken to first.
        answering: the names of networks that take nothing but answers.

    Raises:
        ConfigError: a schedule's chat or time is none, or a time zone is.

    Attributes:
        settings: see above.
        schedules: see above.
        agenda: what is due.
        on_set: called when a reminder was set or changed here.
    """

    def __init__(
        self,
        manager: SessionManager,
        settings: ReminderSettings | None = None,
        schedules: Mapping[str, ScheduleSettings] | None = None,
        *,
        networks: Collection[str] = (),
        answering: Collection[str] = (),
    ) -> None:
        self.settings = settings or ReminderSettings()
        self.schedules = schedules or {}
        _check(self.settings, self.schedules, manager.clock.now())
        self.agenda = Agenda(manager)
        self.on_set: Callable[[], None] = lambda: None
        self._manager = manager
        self._networks = networks
        self._answering = answering
        self._clock = manager.clock

    def __repr__(self) -> str:
        return f"<Reminders of {self._manager!r}>"

    def zone(self, session: Session) -> ZoneInfo:
        """The time zone of a chat: the one that it has chosen, else that of the settings."""
        for name in (zone_name_in(session), self.settings.timezone):
            if name:
                try:
                    return zone_of(name)
                except InvalidReminder:  # any program may write metadata
                    continue
        return zone_of("UTC")

    def is_network(self, channel: str) -> bool:
        """Whether a channel is a chat network that can be spoken to first."""
        return channel in self._networks

    def list(self, session: Session) -> list[Reminder]:
        """Those of a chat, in the order of their numbers."""
        return reminders_in(session)

    async def set(
        self,
        session: Session,
        words: str,
        *,
        asks: bool = False,
        mark: Mark | None = None,
        chat: SessionKey | None = None,
    ) -> tuple[Reminder, str]:
        """Set a reminder.

        Args:
            session: of the chat.
            words: its time and its text, as `times.read` has them.
            asks: whether a model is to answer the text, in place of the text being said.
            mark: the command that asks for it; None: no command does.
            chat: the chat in which it is said, where it is another one that is linked with the session's.

        Returns:
            The reminder, and the sentence about it for people.

        Raises:
            InvalidReminder: there is no time, or no text, or there are too many; or the network only takes answers.
            DuplicateMessage: the command was obeyed before.
            StoreError: it cannot be saved.
        """
        if (chat or session.key).channel in self._answering:
            raise InvalidReminder("this network lets me only answer; set the reminder in another chat of yours")
        when, text = read(words, self._clock.now(), self.zone(session))
        if not text:
            raise InvalidReminder("say also what it is about, such as: /remind 20m tea")
        if len(text) > MAX_TEXT:
            raise InvalidReminder(f"a reminder has at most {MAX_TEXT:,} characters; write a shorter one")
        new_id = self._clock.new_id()
        made: list[Reminder] = []

        def change(known: list[Reminder]) -> tuple[Mapping[str, Any], str]:
            self._check_room(known)
            number = max((one.number for one in known), default=0) + 1
            made[:] = [self._new(session, when, chat, text=text, id=new_id, number=number, asks=asks)]
            return stored(made[0]), f"Reminder {self.described(session, made[0])}\n/reminders lists them."

        self._check_room(reminders_in(session))  # else what is refused would fill the agenda
        await self.agenda.add(new_id, session.session_id, when.at, asks=asks)  # what is only there does no harm
        reply = await self._change(session, change, mark)
        self.on_set()
        return made[0], reply

    def _check_room(self, known: Collection[Reminder]) -> None:
        """Raise InvalidReminder where a chat has as many reminders as it may have."""
        if len(known) >= self.settings.max_per_chat:
            raise InvalidReminder(f"this chat has {len(known)} reminders already; delete one: /reminders")

    async def pause(self, session: Session, number: int, *, paused: bool, mark: Mark | None = None) -> str:
        """Let a reminder say nothing until it is resumed, or resume it; the sentence about it for people.

        Raises:
            InvalidReminder: the chat has no such reminder, or its time has passed meanwhile.
            DuplicateMessage, StoreError: as for `set`.
        """
        chosen = _numbered(reminders_in(session), number)
        if not paused:
            await self.agenda.add(chosen.id, session.session_id, self._resumed(session, chosen).at, asks=chosen.asks)

        def change(known: list[Reminder]) -> tuple[Mapping[str, Any], str]:
            now = _numbered(known, number)
            after_it = msgspec.structs.replace(now if paused else self._resumed(session, now), paused=paused)
            return stored(after_it), f"Reminder {self.described(session, after_it)}"

        reply = await self._change(session, change, mark)
        self.on_set()
        return reply

    def _resumed(self, session: Session, reminder: Reminder) -> Reminder:
        """With its next time from now on."""
        now = self._clock.now()
        if reminder.at > now:
            return reminder
        at = next_time(reminder.when, now, self.zone_of(session, reminder))
        if at is None:
            raise InvalidReminder(f"the time of reminder {reminder.number} has passed; delete it, and set another one")
        return msgspec.structs.replace(reminder, at=at)

    async def delete(self, session: Session, number: int, *, mark: Mark | None = None) -> str:
        """Delete a reminder; the sentence about it for people.

        Raises:
            InvalidReminder: the chat has no such reminder, or it is one of the settings.
            DuplicateMessage, StoreError: as for `set`.
        """

        def change(known: list[Reminder]) -> tuple[Mapping[str, Any], str]:
            chosen = _numbered(known, number)
            if chosen.schedule in self.schedules:
                raise InvalidReminder(f"reminder {number} is one of the settings, and would come back; pause it")
            return removed(chosen), f"Reminder {number} is deleted."

        return await self._change(session, change, mark)

    async def choose_zone(self, session: Session, name: str, *, mark: Mark | None = None) -> str:
        """Let the chat have another time zone; what comes again by its clock moves with it.

        Args:
            session: of the chat.
            name: the IANA name; empty: only say which one it is.
            mark: as for `set`.

        Raises:
            InvalidReminder: there is no such zone.
            DuplicateMessage, StoreError: as for `set`.
        """
        if not name:
            return f"The time here is {self.now_in(session)}. /timezone Europe/Berlin changes the time zone."
        zone, now = zone_of(name), self._clock.now()
        moved = [
            msgspec.structs.replace(one, at=after(one.cron, now, zone))
            for one in reminders_in(session)
            if one.cron and not self._own_zone(one)
        ]
        for one in moved:
            await self.agenda.add(one.id, session.session_id, one.at, asks=one.asks)

        def change(known: list[Reminder]) -> tuple[Mapping[str, Any], str]:
            there = {one.id: one for one in known}
            changes: dict[str, Any] = {TIMEZONE: name}
            for one in moved:
                if one.id in there:
                    changes |= stored(msgspec.structs.replace(there[one.id], at=one.at))
            return changes, f"The time here is now {shown(now, zone)} ({name})."

        reply = await self._change(session, change, mark)
        self.on_set()
        return reply

    async def advance(self, session: Session, said: Reminder) -> None:
        """A reminder was said, or is not said any more: let it come again, or remove it.

        The session has it first: however the agenda fails then, it is not said again, and its item stays to be tried.

        Raises:
            StoreError: it cannot be saved; it is said again then.
            SessionLimit, StoreError: it is saved, and the agenda cannot have its next time.
        """
        at = next_time(said.when, self._clock.now(), self.zone_of(session, said))

        def change(known: list[Reminder]) -> tuple[Mapping[str, Any], str]:
            current = next((one for one in known if one.id == said.id), None)
            if current is None or current.at != said.at:  # it was deleted or moved meanwhile
                return {}, ""
            return (removed(current) if at is None else stored(msgspec.structs.replace(current, at=at))), ""

        await self._change(session, change, None)
        if (current := reminder_in(session, said.id)) is not None:
            await self.agenda.add(current.id, session.session_id, current.at, asks=current.asks)

    async def adopt_schedule(self, name: str) -> None:
        """Give a chat what the settings have for it; what is there and is the same goes on, or stays paused.

        Args:
            name: of the settings' table.

        Raises:
            SnapshotUnreadable, SessionLimit: the chat's session cannot be had.
            StoreError: it cannot be saved.
        """
        schedule = self.schedules[name]
        key = SessionKey.parse(schedule.chat)
        session = await self._manager.get_or_create(key.channel, key.chat_id)
        wanted_id, now, zone = f"settings.{name}", self._clock.now(), self._zone_of_schedule(session, schedule)
        known = reminder_in(session, wanted_id)
        when = _when(schedule, now, zone)
        text = schedule.text or schedule.prompt or f"the open points of {name}"
        if known is not None and (known.cron, known.every_s, known.text) == (when.cron, when.every_s, text):
            await self.agenda.add(wanted_id, session.session_id, known.at, asks=known.asks)
            return
        await self.agenda.add(wanted_id, session.session_id, when.at, asks=not schedule.text)
        fields: dict[str, Any] = {"id": wanted_id, "schedule": name, "asks": not schedule.text, "text": text}

        def change(found: list[Reminder]) -> tuple[Mapping[str, Any], str]:
            number = max((one.number for one in found if one.id != wanted_id), default=0) + 1
            return stored(self._new(session, when, number=number, **fields)), ""

        await self._change(session, change, None)

    # --- for people --------------------------------------------------------------------------------------------------

    def described(self, session: Session, reminder: Reminder) -> str:
        """One line about a reminder."""
        again = ""
        if reminder.cron:
            again = f", then by the cron expression {reminder.cron}"
        elif reminder.every_s:
            again = f", then every {_span(reminder.every_s)}"
        state = " (paused)" if reminder.paused else ""
        at = shown(reminder.at, self.zone_of(session, reminder))
        return f"{reminder.number}: {at}{again}{state}: {reminder.text}"

    def now_in(self, session: Session) -> str:
        """The time in a chat, with its zone's name."""
        zone = self.zone(session)
        return f"{shown(self._clock.now(), zone)} ({zone.key})"

    # --- times -------------------------------------------------------------------------------------------------------

    def zone_of(self, session: Session, reminder: Reminder) -> ZoneInfo:
        """The zone of a reminder: that of the settings' table, if it names one, else the chat's."""
        schedule = self.schedules.get(reminder.schedule)
        return self.zone(session) if schedule is None else self._zone_of_schedule(session, schedule)

    def _zone_of_schedule(self, session: Session, schedule: ScheduleSettings) -> ZoneInfo:
        return zone_of(schedule.timezone) if schedule.timezone else self.zone(session)

    def _own_zone(self, reminder: Reminder) -> bool:
        schedule = self.schedules.get(reminder.schedule)
        return schedule is not None and bool(schedule.timezone)

    # --- saving ------------------------------------------------------------------------------------------------------

    def _new(self, session: Session, when: When, chat: SessionKey | None = None, **fields: Any) -> Reminder:
        own = chat or session.key
        if own != session.key:
            fields |= {"channel": own.channel, "chat_id": own.chat_id}
        return Reminder(
            session_id=session.session_id,
            at=when.at,
            cron=when.cron,
            every_s=when.every_s,
            network=self.is_network(own.channel),
            **fields,
        )

    async def _change(self, session: Session, change: Change, mark: Mark | None) -> str:
        """Change what a session has, in one commit that demands that nothing came between; the reply for people."""
        while True:
            if mark is not None and (known := await session.journal.find_by_key(mark.key)) is not None:
                raise DuplicateMessage(session.session_id, mark.key, known.id)
            changes, reply = change(reminders_in(session))
            if not changes:
                return reply
            unit = session.unit()
            unit.add_own_metadata(changes)
            if mark is not None:
                with suppress(TranscriptNotKept):  # without a transcript a repeated delivery could not find the entry
                    unit.add_custom(COMMAND, mark.data(reply), idempotency_key=mark.key)
            with suppress(LeafMoved):  # another process was first: it is looked at again
                await unit.save(if_sequence=session.last_sequence)
                return reply


def _check(settings: ReminderSettings, schedules: Mapping[str, ScheduleSettings], now: datetime) -> None:
    """Raise ConfigError where a setting cannot be meant; the text names it."""
    name = "reminders.timezone"
    try:
        zone = zone_of(settings.timezone)
        for schedule_name, schedule in schedules.items():
            name = f"[schedules.{schedule_name}]"
            SessionKey.parse(schedule.chat)
            _when(schedule, now, zone_of(schedule.timezone) if schedule.timezone else zone)
    except (InvalidReminder, InvalidKey) as error:
        raise ConfigError(f"{name} is wrong: {error}") from None


def _numbered(reminders: list[Reminder], number: int) -> Reminder:
    """The reminder of a number.

    Raises:
        InvalidReminder: there is no such reminder.
    """
    for one in reminders:
        if one.number == number:
            return one
    raise InvalidReminder(f"there is no reminder {number} here; /reminders lists them")


def _when(schedule: ScheduleSettings, now: datetime, zone: ZoneInfo) -> When:
    if schedule.cron:
        return When(after(schedule.cron, now, zone), cron=schedule.cron)
    every_s = int(schedule.every_s or 0)
    return When(now + timedelta(seconds=every_s), every_s=every_s)


def _span(seconds: int) -> str:
    for unit, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds % unit == 0:
            count = seconds // unit
            return name if count == 1 else f"{count} {name}s"
    return f"{seconds} seconds"
