"""The agenda: which reminders of all chats are due, without a look at all chats.

For each hour in which something is due there is a session of the reserved channel `reminders`, or several where there
is much; on a shared store they are those of all gateways together. Their metadata has an item for each reminder: its
chat, its time, and which gateway is saying it. A gateway takes items by a commit that demands that nothing came
between, so that of several gateways one has them. The truth about a reminder is in its chat's session; an item only
says where to look, and may be out of date.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from miniclaw_sessions.core.protocol.json_values import in_utc
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import (
    InvalidKey,
    LeafMoved,
    SessionDeleted,
    SessionHeld,
    SessionsError,
    SessionUnavailable,
    StoreUnavailable,
)
from miniclaw_sessions.log import get_logger

if TYPE_CHECKING:
    from miniclaw_sessions.core.manager import SessionManager

log = get_logger(__name__)

CHANNEL = "reminders"
"""The channel of the agenda's sessions; lists of sessions leave it out unless they name it."""

LEASE_S = 30.0
"""Seconds after which what a gateway has taken is another's, if it has shown no sign of life since."""

LOOK_S = 60.0
"""Seconds between two looks for hours that are not over, beside the current one."""

ROOM = 1_000
"""How many items a session has; the next one of the hour takes more, so that no chat can fill an hour."""

_HOUR = "%Y-%m-%dT%H"
_HOUR_OF = re.compile(r"\d{4}-\d\d-\d\dT\d\d(?:\.\d+)?", re.ASCII)
_HOUR_LENGTH = 13
_ITEM_BYTES = 500  # at most
_LATE = timedelta(minutes=2)  # what is set just then may still come to the hour before
_KEPT_FOR = timedelta(hours=1)
_RENEW_S = 21_600.0


class Item(msgspec.Struct, frozen=True):
    """What the agenda has of one reminder.

    Attributes:
        session_id: its chat.
        at: when it is due, UTC.
        asks: whether a model answers it.
        taken_by: the gateway that is saying it; empty: none.
        beat: counts the signs of life of that gateway.
    """

    session_id: str
    at: datetime
    asks: bool = False
    taken_by: str = ""
    beat: int = 0

    @property
    def text(self) -> str:
        """The value of the metadata: one text, because all values of a session are checked with each change."""
        return f"{self.at.isoformat()} {self.asks:d} {self.taken_by or '-'} {self.beat} {self.session_id}"

    def free(self) -> Item:
        """The same, taken by no gateway."""
        return Item(self.session_id, self.at, self.asks)

    @classmethod
    def read(cls, value: Any) -> Item | None:
        """From its text; None: it is none."""
        return _read(value) if isinstance(value, str) else None


class Place(msgspec.Struct, frozen=True):
    """Where an item is.

    Attributes:
        hour: the chat id of the agenda's session: the hour, and from the second session of an hour on its number.
        reminder_id: whose item it is.
    """

    hour: str
    reminder_id: str


class Agenda:
    """What is due when, in all sessions of a manager.

    Args:
        manager: whose sessions.
    """

    def __init__(self, manager: SessionManager) -> None:
        self._manager = manager
        self._clock = manager.clock
        self._owner = self._clock.new_id()
        self._hours: set[str] = set()  # that are past or current, and not known to be over
        self._troubled: set[str] = set()
        self._look_at = self._renew_at = 0.0
        self._seen: dict[Place, tuple[Item, float]] = {}  # what others have taken, and since when it looks so
        self.taken: dict[Place, Item] = {}

    def __repr__(self) -> str:
        return f"<Agenda, {len(self.taken)} taken>"

    async def add(self, reminder_id: str, session_id: str, at: datetime, *, asks: bool = False) -> None:
        """Have a reminder of a chat found when it is due; returns when that is acknowledged.

        Raises:
            SessionLimit: there are too many sessions for one more, and no hour that has begun has room.
            StoreError: it cannot be written.
        """
        hour = max(at, self._clock.now()).astimezone(UTC).strftime(_HOUR)
        while True:
            session = await self._with_room(hour, reminder_id)
            known = _items(session).get(reminder_id)
            if known is not None and known.at == at:
                return
            try:
                await self._put(session, {reminder_id: Item(session_id, at, asks)})
            except (SessionDeleted, LeafMoved):  # it was over just then, or another gateway was first
                continue
            return

    async def due(self) -> tuple[dict[Place, Item], float]:
        """What is due and not taken; and the seconds until something else is, at most until the hour ends.

        Raises:
            StoreError: the store cannot be read.
        """
        now = self._clock.now()
        await self._look()
        wait = 3_600.0 - (now.minute * 60 + now.second + now.microsecond / 1e6)
        begun = await self._begun()
        found, taken = dict[tuple[str, Item], tuple[Place, Item]](), set[tuple[str, Item]]()
        for hour, session in sorted(begun.items()):
            items = _items(session)
            for reminder_id, item in items.items():
                if item.at > now:
                    wait = min(wait, (item.at - now).total_seconds())
                    continue
                place, what = Place(hour, reminder_id), (reminder_id, item.free())
                if self._is_free(place, item):
                    found.setdefault(what, (place, item))  # where two places have it, two tasks would say it
                else:
                    wait = min(wait, LEASE_S)
                    taken.add(what)
            if not items and now - 2 * _KEPT_FOR > _beginning_of(hour):
                await self._close(session)
        self._seen = {place: seen for place, seen in self._seen.items() if place.hour in begun}
        return dict(found[what] for what in found if what not in taken), wait

    async def take(self, wanted: Mapping[Place, Item]) -> list[Place]:
        """Take items for this gateway, and return those that it has now; the others are another's, or gone.

        Raises:
            StoreError: it cannot be written.
        """
        mine = list[Place]()
        for hour in {place.hour for place in wanted}:
            with self._apart(hour), suppress(SessionDeleted, LeafMoved):  # another gateway was first: see the next look
                session = await self._session(hour)
                items = {} if session is None else _items(session)
                free = [
                    place for place in wanted if place.hour == hour and items.get(place.reminder_id) == wanted[place]
                ]
                taken = {
                    place: msgspec.structs.replace(wanted[place], taken_by=self._owner, beat=wanted[place].beat + 1)
                    for place in free
                }
                if session is not None and taken:
                    await self._put(session, {place.reminder_id: item for place, item in taken.items()})
                    self.taken |= taken
                    mine += free
        return mine

    async def show_life(self) -> None:
        """Say of all that this gateway has taken that it is still at it.

        Raises:
            StoreError: it cannot be written.
        """
        for hour in {place.hour for place in self.taken}:
            with self._apart(hour):
                await self._show_life_in(hour)

    async def _show_life_in(self, hour: str) -> None:
        while (session := await self._session(hour)) is not None:
            known = _items(session)
            beats = {
                place: msgspec.structs.replace(item, beat=item.beat + 1)
                for place, item in self.taken.items()
                if place.hour == hour and known.get(place.reminder_id) == item
            }
            if not beats:
                break
            with suppress(LeafMoved):
                await self._put(session, {place.reminder_id: item for place, item in beats.items()})
                self.taken |= {place: item for place, item in beats.items() if place in self.taken}
                break

    async def remove(self, places: Iterable[Place]) -> None:
        """These are over.

        Raises:
            StoreError: it cannot be written.
        """
        await self._settle(places, is_over=True)

    async def give_back(self, places: Iterable[Place]) -> None:
        """These are to be said by any gateway, at its next look.

        Raises:
            StoreError: it cannot be written; then they are another's when their time is up.
        """
        await self._settle(places, is_over=False)

    async def _settle(self, places: Iterable[Place], *, is_over: bool) -> None:
        wanted = list(places)
        for hour in {place.hour for place in wanted}:
            with self._apart(hour):
                await self._settle_in(hour, [place.reminder_id for place in wanted if place.hour == hour], is_over)
        for place in wanted:
            self.taken.pop(place, None)

    async def _settle_in(self, hour: str, reminder_ids: Iterable[str], is_over: bool) -> None:
        while (session := await self._session(hour)) is not None:
            known = {one: item for one, item in _items(session).items() if item.taken_by == self._owner}
            mine = {one: known[one] for one in reminder_ids if one in known}
            with suppress(LeafMoved):
                await self._put(session, {one: None if is_over else item.free() for one, item in mine.items()})
                break

    # --- the sessions ------------------------------------------------------------------------------------------------

    async def _begun(self) -> dict[str, Session]:
        """The sessions of the hours that have begun, and are not known to be over."""
        now, found = self._clock.now(), dict[str, Session]()
        for hour in {now.strftime(_HOUR), (now - _LATE).strftime(_HOUR)}:
            for part in _parts(hour):
                if (session := await self._session(part)) is None:
                    break
                found[part] = session
        known = self._hours - {*found}
        for hour in known:
            if (session := await self._session(hour)) is not None:
                found[hour] = session
        self._hours = self._hours - known | {*found}
        return found

    async def _with_room(self, hour: str, reminder_id: str) -> Session:
        """The session that takes an item; where none can be made, one of an hour that has begun, which is looked at."""
        try:
            return await self._first_with_room(hour, reminder_id)
        except SessionsError:
            begun = sorted((await self._begun()).items(), reverse=True)
            for _, session in sorted(begun, key=lambda one: reminder_id not in _items(one[1])):
                if self._has_room(session, reminder_id):
                    return session
            raise

    async def _first_with_room(self, hour: str, reminder_id: str) -> Session:
        parts = _parts(hour)
        while True:
            session = await self._manager.get_or_create(CHANNEL, next(parts))
            if self._has_room(session, reminder_id):
                return session

    def _has_room(self, session: Session, reminder_id: str) -> bool:
        known, limit = _items(session), self._manager.settings.max_metadata_bytes // _ITEM_BYTES
        return reminder_id in known or len(known) < min(ROOM, max(1, limit))

    async def _session(self, hour: str) -> Session | None:
        """The session of an hour; None: it is not there, or it alone cannot be read."""
        journal = None
        with self._apart(hour):
            journal = await self._manager.source.load(SessionKey.of(CHANNEL, hour).session_id)
        return None if journal is None else Session.of(journal)

    @contextmanager
    def _apart(self, hour: str) -> Iterator[None]:
        """What fails with one session of the agenda is a warning, once, and holds up no other one."""
        try:
            yield
        except SessionsError as error:
            if isinstance(error, StoreUnavailable) and not isinstance(error, SessionUnavailable):
                raise  # what is over must not be forgotten
            if hour not in self._troubled:
                sentence, kind = "an hour of the agenda cannot be used; its reminders wait", type(error).__name__
                log.warning(sentence, action="reminder.waits", hour=hour, error_type=kind)
            self._troubled.add(hour)

    async def _put(self, session: Session, changes: Mapping[str, Item | None]) -> None:
        """Change items, provided that no other gateway was first."""
        if not changes:
            return
        unit = session.unit()
        unit.add_metadata(**{name: None if item is None else item.text for name, item in changes.items()})
        await unit.save(if_sequence=session.last_sequence)

    def _is_free(self, place: Place, item: Item) -> bool:
        """Whether no gateway has it, or the one that had it shows no sign of life; the wall clock has no say in it."""
        if place in self.taken or not item.taken_by:
            return place not in self.taken
        now = self._clock.monotonic()
        seen, since = self._seen.get(place, (None, now))
        if seen != item:
            self._seen[place] = (item, now)
            return False
        return now - since >= LEASE_S

    async def _look(self) -> None:
        """Learn which hours there are; and let those in which something waits not expire meanwhile."""
        if self._clock.monotonic() < self._look_at:
            return
        this = self._clock.now().strftime(_HOUR)
        hours = [_hour_of(one.session_id) for one in await self._manager.source.newest(channel=CHANNEL)]
        self._hours |= {hour for hour in hours if hour and hour[:_HOUR_LENGTH] <= this}
        if self._clock.monotonic() >= self._renew_at:
            for hour in filter(None, hours):
                session = await self._session(hour)
                if session is not None and _items(session):  # of a begun one, too: it may have those that found no room
                    await self._manager.get_or_create(CHANNEL, hour)
            self._renew_at = self._clock.monotonic() + _RENEW_S
        self._look_at = self._clock.monotonic() + LOOK_S

    async def _close(self, session: Session) -> None:
        """Delete an hour that is over, unless something came just now."""
        hour = session.key.chat_id
        with self._apart(hour), suppress(LeafMoved, SessionHeld):
            await self._manager.delete(session.session_id, if_sequence=session.last_sequence)
            self._hours.discard(hour)


def _hour_of(session_id: str) -> str:
    """The hour of a session of the agenda; empty: another program made it, as any may in this channel."""
    try:
        hour = SessionKey.parse(session_id).chat_id
        _beginning_of(hour)
    except (InvalidKey, ValueError):
        return ""
    return hour if _HOUR_OF.fullmatch(hour) else ""


def _parts(hour: str) -> Iterator[str]:
    """The chat ids of the sessions of an hour, without end."""
    yield hour
    for number in count(2):
        yield f"{hour}.{number}"


def _beginning_of(hour: str) -> datetime:
    return datetime.strptime(hour[:_HOUR_LENGTH], _HOUR).replace(tzinfo=UTC)


def _items(session: Session) -> dict[str, Item]:
    known: Mapping[str, Any] = session.journal.conversation.state.metadata
    found = {name: Item.read(value) for name, value in known.items()}
    return {name: item for name, item in found.items() if item is not None}


@lru_cache(maxsize=10_000)
def _read(text: str) -> Item | None:
    try:
        at, asks, taken_by, beat, session_id = text.split(" ", 4)
        return Item(session_id, in_utc(datetime.fromisoformat(at)), asks == "1", taken_by.strip("-"), int(beat))
    except ValueError:  # any program may write metadata
        return None
