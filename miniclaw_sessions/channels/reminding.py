"""Speaking first: what is due is said in its chat, by whichever gateway is there, once.

    async with Dispatcher(manager, assistant, reminders=reminders) as dispatcher:
        await Reminding(manager, dispatcher, reminders, channels).run()

A reminder is a message like any other: the dispatcher takes it in its turn among the chat's messages, under the key
`reminder:ID:TIME`, so that the session has it and its answer once. Then the chat's channel sends the answer, and only
then the session notes the reminder as said; last of all, the agenda has its next time in place of this one. A gateway
that dies in between has its place taken by another one, or by its own next start: what the session has is sent, and not
made again. So a reminder is never lost; it is shown twice only where a gateway dies between the network's reply and the
note of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from miniclaw_sessions.agent.agent import AgentEvent, MessageAccepted, TurnFinished
from miniclaw_sessions.agent.events import TurnEnd
from miniclaw_sessions.agent.reminders.agenda import Item, Place
from miniclaw_sessions.agent.reminders.records import Reminder, reminder_in
from miniclaw_sessions.agent.reminders.reminders import Reminders
from miniclaw_sessions.agent.reminders.times import shown
from miniclaw_sessions.channels.asked import note_asked
from miniclaw_sessions.channels.base import (
    ANNOUNCED,
    Answered,
    Answerer,
    Channel,
    Incoming,
    Last,
    NotAnswered,
    Reason,
    comes_again,
    command_note,
)
from miniclaw_sessions.channels.commands import open_question
from miniclaw_sessions.channels.contained import ending_only_itself
from miniclaw_sessions.channels.dispatcher import SEND_TIMEOUT_S, Dispatcher
from miniclaw_sessions.clock import sleep_unless
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import COMMAND, Custom, MessageEntry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message, Role, Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import Opening, begins_turn
from miniclaw_sessions.errors import (
    DuplicateMessage,
    InvalidKey,
    LeafMoved,
    NotArchived,
    SessionNotFound,
    SessionsError,
    TranscriptNotKept,
)
from miniclaw_sessions.files.transfer.linked import conversation_of
from miniclaw_sessions.log import get_logger

log = get_logger(__name__)

POLL_S = 1.0
"""Seconds between two looks: another gateway may have set something."""

TOGETHER = 8
"""How many reminders are said at the same time; the chats' own messages wait for none of the others."""

SILENT = "SILENT"
"""The answer of a model that has nothing to say about the open points."""

AUTHOR = "reminder"
"""The name of the message that stands in the session for a reminder that is due."""

_BEAT_S = 10.0
_HOLD_S = (2.0, 60.0)
_ON_TIME = timedelta(seconds=60)
_SETTING = timedelta(seconds=60)  # the agenda knows a reminder before its chat does
_PATIENCE = timedelta(hours=1)  # with a person who is being asked for a yes or no
_MAX_POINTS = 20_000
_POINTS = (
    "These are the open points of this chat. If there is something about them that the person should hear now, say it. "
    f"If not, answer {SILENT}, and nothing else.\n\n"
)


class Due(NamedTuple):
    """A reminder that is due.

    Attributes:
        place: of its item in the agenda.
        at: when that says that it is due.
        session: its chat's; None: it is gone, or the reminder is.
        reminder: as the session has it.
        own: the own session of the chat in which it is said; None: it is not said.
        waits: whether its chat is answering something else just now.
    """

    place: Place
    at: datetime
    session: Session | None = None
    reminder: Reminder | None = None
    own: Session | None = None
    waits: bool = False

    @property
    def session_id(self) -> str:
        """The chat's; empty: it is gone."""
        return "" if self.session is None else self.session.session_id

    @property
    def asks(self) -> bool:
        """Whether a model answers it."""
        return self.reminder is not None and self.reminder.asks


class Reminding:
    """Says what is due.

    Args:
        manager: whose sessions.
        dispatcher: takes what is said.
        reminders: the reminders.
        channels: the chat networks that are connected here; those that have no `announce` only take answers.
        poll_s: seconds between two looks.
    """

    def __init__(
        self,
        manager: SessionManager,
        dispatcher: Dispatcher,
        reminders: Reminders,
        channels: Iterable[Channel] = (),
        *,
        poll_s: float = POLL_S,
    ) -> None:
        self._manager = manager
        self._dispatcher = dispatcher
        self._reminders = reminders
        self._agenda = reminders.agenda
        self._channels: Mapping[str, Any] = {one.name: one for one in channels if hasattr(one, "announce")}
        self._clock = manager.clock
        self._poll_s = poll_s
        self._news = anyio.Event()
        self._idle = anyio.Event()
        self._to_adopt = [*reminders.schedules]
        self._adopt_at = self._beat_at = 0.0
        self._saying = {asks: set[Place]() for asks in (False, True)}  # a slow model holds up no texts
        self._behind: set[Place] = set()  # those that wait for a chat's answer
        self._over: list[Place] = []
        self._given_up: list[Place] = []
        self._held: dict[Place, tuple[float, float]] = {}  # until when it is left alone, and for how long the last time

    def __repr__(self) -> str:
        return f"<Reminding, {len(self._channels)} channels>"

    async def run(self) -> None:
        """Say what is due, until it is cancelled; what it has taken and not said is then any gateway's."""
        self._reminders.on_set = self._look_now
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    self._news, idle, wait = anyio.Event(), self._idle, self._poll_s
                    with self._waiting():
                        wait = min(wait, await self._look(tasks))
                    if not self._is_busy:
                        idle.set()
                    await sleep_unless(self._clock, wait, self._news)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_BEAT_S), self._waiting():
                await self._agenda.remove(self._over)
                await self._agenda.give_back([*self._agenda.taken])

    async def finished(self) -> None:
        """Return when all that is due now was said, as far as it can be; while `run` runs."""
        if self._idle.is_set():
            self._idle = anyio.Event()
        idle = self._idle
        self._look_now()
        await idle.wait()

    @property
    def _is_busy(self) -> bool:
        return any(self._saying.values()) or bool(self._over) or bool(self._given_up)

    def _look_now(self) -> None:
        self._news.set()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """What the store does not do now is done later; it says itself what is wrong with it."""
        try:
            yield
        except SessionsError as error:
            log.debug("reminders wait", action="reminder.waits", error_type=type(error).__name__)

    async def _show_life(self) -> None:
        """Keep what this gateway is saying, which may take long, from being another one's."""
        if self._clock.monotonic() >= self._beat_at:
            await self._agenda.show_life()
            self._beat_at = self._clock.monotonic() + _BEAT_S

    # --- what is due -------------------------------------------------------------------------------------------------

    async def _look(self, tasks: TaskGroup) -> float:
        """Begin to say what is due now, as much as there is room for; the seconds until something else is."""
        await self._adopt_schedules()
        await self._settle()
        await self._show_life()
        items, wait = await self._agenda.due()
        chosen = await self._chosen(items)
        taken = set(await self._agenda.take({due.place: items[due.place] for due in chosen}))
        for due in chosen:
            if due.place not in taken:  # its hour cannot be written, or another gateway was first
                self._hold(due.place)
                continue
            self._saying[items[due.place].asks].add(due.place)
            if due.waits:
                self._behind.add(due.place)
            tasks.start_soon(self._work, due, name="reminder")
        held = (until - self._clock.monotonic() for place, (until, _) in self._held.items() if place in items)
        return max(0.0, min(wait, _BEAT_S if self._agenda.taken else wait, *held))

    async def _adopt_schedules(self) -> None:
        """Give the chats what the settings have for them, once; what cannot be given is tried again after a while."""
        if not self._to_adopt or self._clock.monotonic() < self._adopt_at:
            return
        for name in [*self._to_adopt]:
            try:
                await self._reminders.adopt_schedule(name)
            except Exception as error:  # noqa: BLE001 - one schedule's failure is not that of all others
                session_id, kind = self._reminders.schedules[name].chat, type(error).__name__
                log.warning("a schedule waits", action="reminder.waits", session_id=session_id, error_type=kind)
            else:
                self._to_adopt.remove(name)
        self._adopt_at = self._clock.monotonic() + _HOLD_S[1]

    async def _settle(self) -> None:
        """Note what is over, and what any gateway may try, in one commit each."""
        over, given_up = list(self._over), list(self._given_up)
        await self._agenda.remove(over)
        await self._agenda.give_back(given_up)
        self._over, self._given_up = self._over[len(over) :], self._given_up[len(given_up) :]

    async def _chosen(self, items: Mapping[Place, Item]) -> list[Due]:
        """Those that are said now, the earliest first; half of the room is kept for chats that are not answering."""
        now = self._clock.monotonic()
        self._held = {
            place: held for place, held in self._held.items() if place in items or place in self._agenda.taken
        }
        room = {asks: TOGETHER - len(saying) for asks, saying in self._saying.items()}
        behind = TOGETHER // 2 - len(self._behind)
        chosen = list[Due]()
        for place in sorted(items, key=lambda one: (items[one].at, one.reminder_id)):
            if not any(room.values()):
                break
            asks = items[place].asks
            if not room[asks] or now < self._held.get(place, (0.0, 0.0))[0]:
                continue
            due = await self._found_or_none(place, items[place])
            if due is None:
                self._hold(place)
            elif not due.waits or behind > 0:
                room[asks] -= 1
                behind -= due.waits
                chosen.append(due)
        return chosen

    def _hold(self, place: Place) -> None:
        """Leave it alone for a while, each time for longer."""
        first, longest = _HOLD_S
        delay = min(longest, max(first, 2 * self._held.get(place, (0.0, 0.0))[1]))
        self._held[place] = self._clock.monotonic() + delay, delay

    async def _work(self, due: Due) -> None:
        is_said = False
        try:
            is_said = await self._is_said(due)
        except Exception as error:  # noqa: BLE001 - one reminder's failure is not that of all others
            self._log("a reminder waits", due.session_id, error, action="reminder.waits")
        for saying in self._saying.values():
            saying.discard(due.place)
        self._behind.discard(due.place)
        if is_said:
            self._over.append(due.place)
        else:
            self._hold(due.place)
            self._given_up.append(due.place)
        self._look_now()

    async def _found_or_none(self, place: Place, item: Item) -> Due | None:
        """As `_found`; None also where that fails, which is a warning, once."""
        try:
            return await self._found(place, item)
        except Exception as error:  # noqa: BLE001 - one chat's failure is not that of all others
            if place not in self._held:
                self._log("a reminder waits", item.session_id, error, action="reminder.waits")
            return None

    async def _found(self, place: Place, item: Item) -> Due | None:
        """What an item is about; None: it is for another gateway, or its time has not come all the same."""
        session = await self._session(item.session_id)
        if session is None:
            return Due(place, item.at)
        reminder = reminder_in(session, place.reminder_id)
        if reminder is None:
            return None if self._clock.now() - item.at < _SETTING else Due(place, item.at)
        own = await self._own(session, reminder)
        was_parted = bool(reminder.channel) and own is session
        needs_network = self._reminders.is_network(own.key.channel) if was_parted else reminder.network
        if needs_network and own.key.channel not in self._channels:
            return None  # a gateway that is connected to the network says it
        conversation = await conversation_of(self._manager, own) or own
        if reminder.asks and self._clock.now() - item.at < _PATIENCE and await open_question(conversation):
            return None  # another question would take the place of the one that the person is being asked
        return Due(place, item.at, session, reminder, own, waits=conversation.journal.turn_lock.is_held)

    async def _own(self, session: Session, reminder: Reminder) -> Session:
        """The own session of the chat in which a reminder is said: where it was set, unless that was parted since.

        A chat that was parted could not delete it.
        """
        if not reminder.channel:
            return session
        own = await self._session(SessionKey(reminder.channel, reminder.chat_id).session_id)
        joined = None if own is None else await conversation_of(self._manager, own)
        return session if own is None or joined is None or joined.session_id != session.session_id else own

    async def _session(self, session_id: str) -> Session | None:
        """The chat's session, also from the archive; None: it was deleted."""
        try:
            return await self._manager.find(session_id)
        except InvalidKey:  # any program may write metadata
            return None
        except SessionNotFound:
            try:
                return await self._manager.restore(session_id)
            except NotArchived:
                return None

    # --- saying it ---------------------------------------------------------------------------------------------------

    async def _is_said(self, due: Due) -> bool:
        """Say a reminder; whether it is over, for this time."""
        session, reminder, own = due.session, due.reminder, due.own
        if session is None or reminder is None or own is None or reminder.paused:
            return True
        now = self._clock.now()
        if reminder.at != due.at:  # it was said, or moved: only its next time may be missing in the agenda
            await self._agenda.add(reminder.id, session.session_id, reminder.at, asks=reminder.asks)
            return True
        if reminder.at > now:  # the clock was set back just now
            return False
        if self._is_wanted(reminder, now) and not await self._say(due, session, reminder, own):
            return False
        await self._reminders.advance(session, reminder)
        return True

    def _is_wanted(self, reminder: Reminder, now: datetime) -> bool:
        """Whether it is said: not if it was missed by too much, nor if the settings do not have it any more."""
        settings, late = self._reminders.settings, now - reminder.at
        if reminder.schedule and reminder.schedule not in self._reminders.schedules:
            return False
        return late <= _ON_TIME or (settings.missed == "late" and late.total_seconds() <= settings.missed_within_s)

    async def _say(self, due: Due, session: Session, reminder: Reminder, own: Session) -> bool:
        """Let the session have it, and the channel send it; whether that is done."""
        answerer, asked = await self._answerer(session, reminder)
        if asked is None:
            return True
        incoming = Incoming(
            own.key.chat_id,
            Message(Role.USER, asked, name=AUTHOR),
            message_id=reminder.key,
            channel=own.key.channel,
            answerer=answerer,
            must_exist=True,
            answer_again=True,
            is_addressed=False,
            obeys=False,
            follows_links=True,
        )
        last = await self._last_of(incoming)
        if comes_again(last) or (isinstance(last, NotAnswered) and last.reason is Reason.BUSY):
            return False
        if isinstance(last, NotAnswered):
            if last.reason is Reason.FAILED:
                self._log("a reminder was not answered", due.session_id, last.error, action="reminder.failed")
            return True
        if isinstance(last, Answered) and _is_silent(reminder, last):
            return True
        if not await self._sent(due, own.key, last.text, reminder.key):
            return False
        if own.key.channel in self._channels:
            await note_asked(own, last)  # else a yes there would not answer it
        return True

    async def _last_of(self, incoming: Incoming) -> Last:
        delivery = self._dispatcher.ask(incoming)
        try:
            async for outgoing in delivery:
                if isinstance(outgoing, Last):
                    return outgoing
        finally:
            delivery.abandon(0.0)
        raise SessionsError("a message ended without an outcome")

    async def _sent(self, due: Due, chat: SessionKey, text: str, key: str) -> bool:
        """Let the channel say it, if it is connected; whether its network has confirmed that."""
        if (channel := self._channels.get(chat.channel)) is None or not text:
            return True
        with anyio.move_on_after(getattr(channel, "send_timeout_s", SEND_TIMEOUT_S)):
            try:
                with ending_only_itself():
                    await channel.announce(chat.chat_id, text, key)
            except Exception as error:  # noqa: BLE001 - a channel's own code; it is tried again
                sentence = "a reminder was not sent, and is sent again"
                self._log(sentence, due.session_id, error, action="reminder.not_sent")
            else:
                return True
        return False

    def _log(self, sentence: str, session_id: str, error: Exception, *, action: str) -> None:
        log.warning(sentence, action=action, session_id=session_id, error_type=type(error).__name__)

    async def _answerer(self, session: Session, reminder: Reminder) -> tuple[Answerer, str | None]:
        """Who answers a reminder, and the message in the session that stands for it; None: there is nothing to say."""
        schedule = self._reminders.schedules.get(reminder.schedule)
        zone = self._reminders.zone_of(session, reminder)
        text = reminder.text
        if schedule is not None and schedule.points_file:
            points = await to_thread.run_sync(_points, schedule.points_file)
            return _Looking(self._dispatcher.assistant), _POINTS + points if points else None
        if reminder.asks:
            return self._dispatcher.assistant, f"(It is {shown(self._clock.now(), zone)}.) {text}"
        said = f"Reminder: {text}"
        if self._clock.now() - reminder.at > _ON_TIME:
            said = f"Reminder, late, because I could not say it on {shown(reminder.at, zone)}: {text}"
        return _Saying(said), f"(A reminder is due: {text})"


def _points(path: str) -> str:
    """The open points in a file; empty: there are none."""
    try:
        with Path(path).expanduser().open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_POINTS).strip()
    except OSError:
        return ""


def _is_silent(reminder: Reminder, last: Answered) -> bool:
    return bool(reminder.schedule) and last.text.strip().strip(".") == SILENT


class _Saying:
    """Answers with a text, without a model.

    While the person is asked for a yes or no, the text stands beside the conversation: a message in it would be
    taken for the end of the question.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    async def answer(
        self,
        session: Session,
        message: Message | Opening | None,
        *,
        idempotency_key: str | None = None,
        on_event: Callable[[AgentEvent], None],
    ) -> TurnEnd:
        """As `Assistant.answer`."""
        key = idempotency_key or ""
        known = await session.journal.find_by_key(key)
        if known is not None and isinstance(await session.tree.get_entry(known.id), Custom):
            raise DuplicateMessage(session.session_id, key, known.id)
        reply = Message.assistant(self._text)
        if known is None and await open_question(session):
            unit = session.unit()
            unit.add_custom(COMMAND, command_note(ANNOUNCED, self._text), idempotency_key=key)
            await unit.save()
            return TurnFinished(reply, Usage())
        async with session.turn(message, idempotency_key=idempotency_key) as turn:
            on_event(MessageAccepted(turn.message))
            turn.append(reply)
        return TurnFinished(turn.said[-1], Usage())


class _Looking:
    """Lets the assistant look at something; where it has nothing to say, the conversation goes on without that."""

    def __init__(self, assistant: Answerer) -> None:
        self._assistant = assistant

    async def answer(
        self,
        session: Session,
        message: Message | Opening | None,
        *,
        idempotency_key: str | None = None,
        on_event: Callable[[AgentEvent], None],
    ) -> TurnEnd:
        """As `Assistant.answer`."""
        heard: list[MessageEntry] = []

        def on_heard(event: AgentEvent) -> None:
            if isinstance(event, MessageAccepted):
                heard.append(event.entry)
            on_event(event)

        end = await self._assistant.answer(session, message, idempotency_key=idempotency_key, on_event=on_heard)
        if heard and isinstance(end, TurnFinished) and end.message.text.strip().strip(".") == SILENT:
            await _leave_out(session, heard[0])
        return end


async def _leave_out(session: Session, heard: MessageEntry) -> None:
    """Let the conversation go on from before a message, unless something else was said since."""
    leaf, newest = session.leaf_id, next((one for one in reversed(session.entries()) if begins_turn(one)), None)
    if newest is not None and newest.id == heard.id:
        with suppress(LeafMoved, TranscriptNotKept):  # or the store keeps no other branch
            await session.tree.branch(heard.parent_id, if_leaf=leaf or "")
