"""The dispatcher: takes what all channels hand over and lets the assistant answer it.

    async with Dispatcher(manager, assistant) as dispatcher:
        dispatcher.serve(channel)  # a network: it gets every event
        delivery = dispatcher.ask(incoming)  # or a caller that waits, and reads the outcome of its message

Within a chat, messages are answered in the order in which they came; chats are answered at the same time. How much may
wait is bounded, and a message beyond the bound gets BUSY. A message that is delivered twice is answered once. A message
that waits is only in memory: its channel gets `Accepted` when the store has it, and should keep it until then.
`/stop`, said in any chat, stops the answer that is under way there, and answers nothing of what waits behind it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.attachments import unseen_files
from miniclaw_sessions.agent.earlier_turns import reworded
from miniclaw_sessions.agent.events import AgentEvent, MessageAccepted, TurnEnd
from miniclaw_sessions.agent.reminders.reminders import Reminders
from miniclaw_sessions.channels.asked import note_asked, shown_in
from miniclaw_sessions.channels.base import (
    Accepted,
    Answered,
    Channel,
    Incoming,
    Last,
    NotAnswered,
    Obeyed,
    Outgoing,
    Progress,
    Reason,
    Watch,
    without_words,
)
from miniclaw_sessions.channels.commands import (
    COMMANDS,
    CommandCall,
    Question,
    answer_about_link,
    command_in,
    earlier_answer,
    failed,
    is_stop,
    message_or_approval,
    open_question,
)
from miniclaw_sessions.channels.contained import ending_only_itself, reason_of
from miniclaw_sessions.channels.delivered import is_noted, note_of, taken
from miniclaw_sessions.channels.delivery import Delivery, TurnPublisher
from miniclaw_sessions.channels.linking import Conversation, Linking
from miniclaw_sessions.channels.own_chats import OwnChats
from miniclaw_sessions.config import ChannelSettings
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.persistence.own_task import HeldOpen
from miniclaw_sessions.core.protocol.entries import MessageEntry
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.turn import Opening
from miniclaw_sessions.errors import (
    ChatBusy,
    DuplicateMessage,
    InvalidKey,
    ManagerClosed,
    MessageStopped,
    MessageUnderWay,
    SessionsError,
    TooManyTurns,
    TurnCutOff,
)
from miniclaw_sessions.files.transfer.linked import Chat
from miniclaw_sessions.log import get_logger, in_request
from miniclaw_sessions.statistics import ChannelState

log = get_logger(__name__)

SEND_TIMEOUT_S = 30.0
"""How long a channel may take to send something."""

BACKOFF_S = (1.0, 60.0)
"""How long it takes until a channel that failed is started again: at first, doubled each time, and at most."""

LAST_WORDS_S = 5.0
"""How long a channel may take to send that its answers were cut off; a busy machine needs a while to save that."""

_NOT_ENTERED = "the dispatcher is used within `async with Dispatcher(...) as dispatcher`"
_REFUSALS = 64  # sent at the same time, by one channel; it is not listened to until some of them are out
_OF_A_CHAT = 16  # of those, with words; else a person who floods while his network takes nothing would hold up all


class Dispatcher:
    """Lets the assistant answer what the channels hand over; an async context manager.

    Leaving the block waits until all channels have ended and everything is answered; see `cut_off` and `finished`.

    Args:
        manager: whose sessions the chats are.
        assistant: who answers.
        limits: how much may wait.
        backoff_s: how long a channel that failed is left alone, at first and at most.
        send_timeout_s: how long a channel may take to send something, unless it says so itself.
        last_words_s: how long a channel may take to send that an answer is cut off.
        watch: who counts what is handed over, and what becomes of it.
        reminders: what `/remind` sets; None: nothing is said at its time.

    Attributes:
        states: how each channel is, by its name.
    """

    def __init__(  # noqa: PLR0913 - options, each with a name and a default
        self,
        manager: SessionManager,
        assistant: Assistant,
        *,
        limits: ChannelSettings | None = None,
        backoff_s: tuple[float, float] = BACKOFF_S,
        send_timeout_s: float = SEND_TIMEOUT_S,
        last_words_s: float = LAST_WORDS_S,
        watch: Watch | None = None,
        reminders: Reminders | None = None,
    ) -> None:
        self._manager = manager
        self._assistant = assistant
        self._limits = limits or ChannelSettings()
        self._backoff_s = backoff_s
        self._send_timeout_s = send_timeout_s
        self._last_words_s = last_words_s
        self._watch = watch or Watch()
        self._linking = Linking(manager, self._announce)
        self._reminders = reminders
        self._chats: dict[str, deque[Delivery]] = {}
        self._under_way: set[Delivery] = set()
        self._refused: set[Delivery] = set()
        self._channels: list[Channel] = []
        self._listening: set[anyio.CancelScope] = set()
        self.states: dict[str, ChannelState] = {}
        self._held: HeldOpen[TaskGroup] | None = None
        self._tasks: TaskGroup | None = None
        self._cut_off_at = math.inf
        self._idle = anyio.Event()

    def __repr__(self) -> str:
        return f"<Dispatcher {self.running} messages in {len(self._chats)} chats>"

    @property
    def assistant(self) -> Assistant:
        """The default answerer, for messages that bring none."""
        return self._assistant

    @property
    def running(self) -> int:
        """How many messages wait or are being answered."""
        return len(self._under_way)

    async def __aenter__(self) -> Self:
        self._held = HeldOpen(self._opened(), name="dispatcher")
        self._tasks = await self._held.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held is None:
            raise ManagerClosed(_NOT_ENTERED)
        await self._held.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[TaskGroup]:
        try:
            async with anyio.create_task_group() as tasks:
                yield tasks
        finally:
            self._tasks = None
            for delivery in self._under_way:  # only if the dispatcher itself is cancelled
                if not delivery.is_over:  # else its reader would wait for ever
                    self._end(delivery, _cut_off(delivery))
            self._under_way.clear()
            self._chats.clear()
            self._idle.set()
            await self._close_channels()

    async def supervise(self) -> None:
        """Return when it is left; raise what one of its tasks has died of, as none does but by a defect of ours."""
        if self._held is not None:
            await self._held.watch()

    def serve(self, channel: Channel) -> None:
        """Listen to a channel, until it ends or the dispatcher stops.

        Raises:
            ManagerClosed: the dispatcher is stopping, or was not entered.
        """
        tasks = self._running_tasks()
        if self._cut_off_at < math.inf:
            raise ManagerClosed("the dispatcher is stopping and takes no further channels")
        scope = anyio.CancelScope()
        self._channels.append(channel)
        self._listening.add(scope)
        tasks.start_soon(self._listen, channel, scope, name=f"channel {channel.name}")

    def ask(self, incoming: Incoming) -> Delivery:
        """Hand a message over and follow what becomes of it: iterate over the result, and `abandon` it at the end.

        Args:
            incoming: what was said; it names its channel.

        Raises:
            ManagerClosed: the dispatcher has stopped, or was not entered.
        """
        self._running_tasks()
        if self._cut_off_at <= anyio.current_time():
            raise ManagerClosed("the program is stopping and takes no further messages")
        delivery = Delivery(incoming)
        self._take(incoming, delivery)
        return delivery

    def stop(self, session_id: str) -> bool:
        """Stop what is being answered in a chat, and what waits there; what was said by then is kept.

        Returns:
            False if nothing was under way.
        """
        chats = [chat for own, chat in self._chats.items() if session_id in (own, *chat[0].chats)]
        stopped = [delivery.stop() for chat in chats for delivery in chat]
        return any(stopped)

    def cut_off(self, at: float, *, last_words_s: float = math.inf) -> None:
        """Listen no more, and cut off what is still not answered at this time of the event loop.

        Args:
            at: the time, as `anyio.current_time` has it.
            last_words_s: how long sending that may take from now on, if that is less than before.
        """
        self._last_words_s = min(self._last_words_s, last_words_s)
        self._cut_off_at = min(self._cut_off_at, at)
        for scope in self._listening:
            scope.cancel()
        for delivery in (*self._under_way, *self._refused):
            delivery.cut_off(at, at + self._last_words_s)

    async def finished(self) -> None:
        """Wait until nothing is under way; finished answers are delivered and saved."""
        while self._under_way:
            if self._idle.is_set():
                self._idle = anyio.Event()
            await self._idle.wait()

    def _running_tasks(self) -> TaskGroup:
        if self._tasks is None:
            raise ManagerClosed(_NOT_ENTERED)
        return self._tasks

    async def _close_channels(self) -> None:
        """Let go of the connections of those channels that say how."""
        for channel in self._channels:
            try:
                with ending_only_itself(), anyio.move_on_after(self._last_words_s, shield=True):
                    await getattr(channel, "aclose", checkpoint)()
            except Exception as error:  # noqa: BLE001 - a channel's own code, and the error is logged
                log.debug("a channel was not closed", action="channel.not_closed", error_type=type(error).__name__)
        self._channels.clear()

    # --- taking ------------------------------------------------------------------------------------------------------

    async def _listen(self, channel: Channel, scope: anyio.CancelScope) -> None:
        """Take what a channel hands over; where it fails, try it again, each time after a longer while."""
        delay, longest = self._backoff_s
        refusals = anyio.Semaphore(_REFUSALS)
        tasks, is_attached = self._running_tasks(), False
        with scope:
            while True:
                self.states[channel.name] = "listening"
                try:
                    with ending_only_itself():
                        if not is_attached and hasattr(channel, "attach"):
                            channel.attach(OwnChats(self._manager, self._assistant, channel.name))
                        is_attached = True
                        async with aclosing(channel.receive()) as received:
                            async for incoming in received:
                                delay = self._backoff_s[0]
                                delivery = Delivery(incoming, channel)
                                if not self._take(incoming, delivery):
                                    refusals.acquire_nowait()
                                    self._refused.add(delivery)
                                    tasks.start_soon(self._refuse, channel, delivery, refusals, name="refusal")
                                async with refusals:  # there is room for one more refusal
                                    pass
                    break
                except Exception as error:  # noqa: BLE001 - a channel's own code; the others go on
                    self.states[channel.name] = "failed"
                    log.error(
                        "a channel failed and is started again",
                        action="channel.failed",
                        channel=channel.name,
                        error_type=type(error).__name__,
                        detail=reason_of(error),
                        retry_in_s=delay,
                    )
                await anyio.sleep(delay)
                delay = min(2 * delay, longest)
            self.states[channel.name] = "ended"
            log.info("a channel has ended", action="channel.ended", channel=channel.name)
        self._listening.discard(scope)

    def _take(self, incoming: Incoming, delivery: Delivery) -> bool:
        """Put a message behind those of its chat, or report its outcome at once.

        Does not wait, so that nothing can be lost here. Returns False if it is not to be answered.
        """
        delivery.answered_in = self._watch.taken(delivery.channel_name)
        try:
            key = SessionKey.of(delivery.channel_name, incoming.chat_id)
            delivery.session_id = key.session_id
        except InvalidKey as error:
            self._end(delivery, NotAnswered(incoming, Reason.FAILED, error))
            return False
        if (refused := self._refusal(incoming, key.session_id)) is not None:
            with_words = sum(
                one.session_id == key.session_id and one.channel is delivery.channel for one in self._refused
            )
            self._end(delivery, refused if with_words < _OF_A_CHAT else without_words(refused))
            return False
        self._under_way.add(delivery)
        delivery.cut_off(self._cut_off_at, self._cut_off_at + self._last_words_s)
        if key.session_id in self._chats:
            delivery.question = self._chats[key.session_id][0].standing
            self._chats[key.session_id].append(delivery)
        else:
            self._chats[key.session_id] = deque([delivery])
            with in_request(""):  # the task goes on with the messages of other requests
                self._running_tasks().start_soon(self._work, key, name=f"chat {key.session_id}")
        return True

    def _end(self, delivery: Delivery, last: Last) -> None:
        delivery.put(last)
        self._watch.ended(delivery.channel_name, last)

    def _refusal(self, incoming: Incoming, session_id: str) -> Last | None:
        """What becomes at once of a message that is not to be answered."""
        if is_stop(incoming.message):
            stopped = self.stop(session_id)
            return Obeyed(incoming, "" if stopped else "There is nothing to stop.", stopped)
        waiting = self._chats.get(session_id, ())
        if incoming.message_id is not None and any(one.incoming.message_id == incoming.message_id for one in waiting):
            again = MessageUnderWay("this message was delivered before, and its answer is on the way")
            return NotAnswered(incoming, Reason.DUPLICATE, again)
        if len(waiting) > self._limits.max_waiting_per_chat:
            busy = f"{len(waiting)} messages of this chat wait already; this one was not taken, try again later"
            return NotAnswered(incoming, Reason.BUSY, ChatBusy(busy))
        if len(self._under_way) >= self._limits.max_messages:
            return NotAnswered(incoming, Reason.BUSY, TooManyTurns("too many turns are under way; try again later"))
        return None

    async def _refuse(self, channel: Channel, delivery: Delivery, refusals: anyio.Semaphore) -> None:
        try:
            await self._send_all(channel, delivery)
        finally:
            self._refused.discard(delivery)
            refusals.release()

    # --- answering ---------------------------------------------------------------------------------------------------

    async def _work(self, key: SessionKey) -> None:
        """Answer the messages of one chat, one after the other, until there are no more."""
        waiting = self._chats[key.session_id]
        while waiting:
            delivery = waiting[0]
            async with anyio.create_task_group() as tasks:
                if delivery.channel is not None:
                    tasks.start_soon(self._send_all, delivery.channel, delivery, name="sending")
                publisher = TurnPublisher(self._manager.events.turns, key)
                last = await self._answer_in_time(delivery, key, publisher)
                if delivery.channel is None:
                    delivery.standing = None
                publisher.end(last)
                self._end(delivery, last)
            self._under_way.discard(waiting.popleft())
            self._idle.set()
        del self._chats[key.session_id]

    async def _answer_in_time(self, delivery: Delivery, key: SessionKey, publisher: TurnPublisher) -> Last:
        last: Last | None = None
        with delivery.answering, delivery.answered_in:
            async with anyio.create_task_group() as tasks:
                if delivery.channel is not None:
                    tasks.start_soon(self._show_typing, delivery.channel, delivery.incoming.chat_id, name="typing")
                last = await self._answer(delivery, key, publisher)
                tasks.cancel_scope.cancel()
        if last is not None:
            return last
        if delivery.is_stopped:
            error = MessageStopped("the chat was stopped before this message was answered; say it again")
            return NotAnswered(delivery.incoming, Reason.STOPPED, error)
        return _cut_off(delivery)

    async def _answer(self, delivery: Delivery, key: SessionKey, publisher: TurnPublisher) -> Last:
        """Let the assistant answer."""
        incoming = delivery.incoming

        def on_event(event: AgentEvent) -> None:
            if incoming.session is None:  # else no session of the manager can be followed
                publisher.publish(event)
            delivery.put(Accepted(incoming, event) if isinstance(event, MessageAccepted) else Progress(incoming, event))

        try:
            await checkpoint()  # whose time is over while it waits is not begun
            chat = await self._conversation(delivery, key)
            delivery.note = note_of(self._manager, chat.own, incoming, delivery.channel)
            if delivery.note is not None and await delivery.note.is_there():
                return taken(incoming)
        except Exception as error:  # noqa: BLE001 - every error belongs to this message
            return NotAnswered(incoming, Reason.FAILED, error)
        try:
            delivery.own, delivery.session, delivery.chats = chat.own, chat.session, chat.chats
            publisher.key = chat.session.key
            said, heard = chat.said, (incoming, delivery.heard_at)
            answer = partial(self._answer_at_its_end, delivery, chat, on_event)
            question = await self._question(delivery, chat)
            word, arguments = (incoming.obeys and command_in(incoming.message)) or ("", "")
            end: str | TurnEnd
            if word and (run := COMMANDS[word].run) is not None:
                agent, currency = self._assistant.agent, self._manager.settings.currency
                asked = chat.session, said, arguments, question
                call = CommandCall(*asked, agent, answer, currency, chat, self._linking, heard, self._reminders)
                end = await run(call)
            elif not (end := await answer_about_link(chat, self._linking, heard, question)):
                message = await message_or_approval(chat.session, said, question)
                if isinstance(message, Message) and said.replaces is not None:
                    end = await answer(reworded(chat.session, message, said.replaces))
                else:
                    end = await answer(message)
        except DuplicateMessage as error:
            return await self._answered_before(delivery, chat, error)
        except Exception as error:  # noqa: BLE001 - every error belongs to this message
            return failed(incoming, error)
        return Obeyed(incoming, end) if isinstance(end, str) else Answered(incoming, end, delivery.unseen)

    async def _conversation(self, delivery: Delivery, key: SessionKey) -> Conversation:
        """The session that answers, made if it may be; who names a session, as HTTP clients do, means that very one."""
        incoming = delivery.incoming
        if incoming.session is not None:
            own = incoming.session
        elif incoming.must_exist:
            own = await self._manager.find(key.session_id)
        else:
            own = await self._manager.get_or_create(key.channel, key.chat_id)
        if delivery.channel is None and not incoming.follows_links:
            return Conversation(own, own, incoming, frozenset((own.session_id,)))
        return await self._linking.conversation(own, incoming)

    async def _announce(self, chat: Chat, text: str, key: str) -> bool:
        """Say something in a chat of one of the channels here, unasked; whether it was said."""
        announce = next((getattr(one, "announce", None) for one in self._channels if one.name == chat.channel), None)
        if announce is None:
            return False
        try:
            with ending_only_itself(), anyio.fail_after(self._send_timeout_s):
                await announce(chat.chat_id, text, key)
        except Exception as error:  # noqa: BLE001 - a channel's own code; the question stays open
            kind = type(error).__name__
            log.warning(
                "a channel did not send what it was given",
                action="channel.send_failed",
                channel=chat.channel,
                session_id=chat.session_id,
                error_type=kind,
                detail=reason_of(error),
            )
            return False
        return True

    async def _answer_at_its_end(
        self,
        delivery: Delivery,
        chat: Conversation,
        on_event: Callable[[AgentEvent], None],
        said: Message | Opening | None,
    ) -> TurnEnd:
        """Let what is said be answered; where more of it follows, only keep it.

        Raises:
            DuplicateMessage: it is answered with what follows.
        """
        incoming, session, key = delivery.incoming, chat.session, chat.said.message_id
        if incoming.goes_on is not None and said is not None:
            async with session.turn(said, idempotency_key=key) as turn:
                # only the channel: followers of the session would see an answer begin here, and end in an error
                delivery.put(Accepted(incoming, MessageAccepted(turn.message)))
            if await incoming.goes_on():
                raise DuplicateMessage(session.session_id, key or "", turn.message.id)
        return await (incoming.answerer or self._assistant).answer(
            session, said, idempotency_key=key, on_event=on_event
        )

    async def _question(self, delivery: Delivery, chat: Conversation) -> Question:
        """What the person was asked here when he said this; so too for what waits behind it, unless that is known.

        Messages behind a repeated one are of unknown age: they answer no question.
        """
        key = chat.said.message_id
        standing = await open_question(chat.session)
        is_known = standing and key is not None and await chat.session.journal.find_by_key(key) is not None
        delivery.standing = () if is_known else standing
        for one in self._chats[delivery.session_id]:
            if one.question is None:
                one.question = delivery.standing
        return (delivery.question if delivery.channel is None else shown_in(chat.own, delivery.question)) or ()

    async def _answered_before(self, delivery: Delivery, chat: Conversation, error: DuplicateMessage) -> Last:
        """The answer that the message had, where its channel wants it again."""
        incoming = delivery.incoming
        session = chat.own if error.session_id == chat.own.session_id else chat.session
        is_redelivered = error.key in (incoming.message_id, chat.said.message_id)  # else it is a new wording
        if incoming.answer_again and is_redelivered:
            try:
                if delivery.note is not None and not await delivery.note.is_ours():
                    return taken(incoming)
                end = await earlier_answer(session, error.entry_id)
                unseen = await self._unseen_in(session, error.entry_id)
            except SessionsError as failure:
                return NotAnswered(incoming, Reason.FAILED, failure)
            if end is not None:
                return Obeyed(incoming, end) if isinstance(end, str) else Answered(incoming, end, unseen)
        return NotAnswered(incoming, Reason.DUPLICATE, error)

    async def _unseen_in(self, session: Session, entry_id: str) -> Sequence[str]:
        """As `Delivery.unseen`: an answer in other words than before is taken for another one, and sent twice."""
        entry = await session.tree.get_entry(entry_id)
        said = entry.message if isinstance(entry, MessageEntry) else Message.user("")
        return [file.name for file in unseen_files(self._assistant.agent.model_of(session), said)]

    # --- sending -----------------------------------------------------------------------------------------------------

    async def _send_all(self, channel: Channel, delivery: Delivery) -> None:
        """Send a channel every event, in order; after a failure, only those that matter."""
        is_reached, was_taken = True, False
        with delivery.sending:
            async for outgoing in delivery:
                if is_reached or not isinstance(outgoing, Progress):
                    was_taken = await self._send(channel, delivery, outgoing)
                    is_reached = was_taken and is_reached
            delivery.standing = None  # a yes before this was said to what had been asked earlier
            if was_taken and delivery.own is not None:
                await note_asked(delivery.own, outgoing)

    async def _show_typing(self, channel: Channel, chat_id: str) -> None:
        try:
            with ending_only_itself():
                async with channel.typing(chat_id):
                    await anyio.sleep_forever()
        except Exception as error:  # noqa: BLE001 - a channel's own code, and only an ornament
            log.debug("typing is not shown", action="channel.typing_failed", error_type=type(error).__name__)

    async def _send(self, channel: Channel, delivery: Delivery, outgoing: Outgoing) -> bool:
        """Send; what the channel does not take is in the session all the same. Returns whether it took it."""
        if delivery.note is None or not isinstance(outgoing, Last) or not is_noted(outgoing):
            return await self._put(channel, delivery, outgoing)
        is_reached = False
        async with delivery.note.sending():
            is_reached = await self._put(channel, delivery, outgoing)
        if is_reached:
            await delivery.note.write()
        return is_reached

    async def _put(self, channel: Channel, delivery: Delivery, outgoing: Outgoing) -> bool:
        try:
            patience_s = getattr(channel, "send_timeout_s", self._send_timeout_s)
            kind, why = TimeoutError.__name__, f"it took longer than {patience_s:g} s"
            with ending_only_itself(), anyio.move_on_after(patience_s):
                await channel.send(delivery.incoming.chat_id, outgoing)
                return True
        except Exception as error:  # noqa: BLE001 - a channel's own code; the chat goes on
            kind, why = type(error).__name__, reason_of(error)
        log.warning(
            "a channel did not send what it was given",
            action="channel.send_failed",
            channel=channel.name,
            session_id=delivery.session_id,
            told=type(outgoing).__name__,
            error_type=kind,
            detail=why,
        )
        return False


def _cut_off(delivery: Delivery) -> NotAnswered:
    return NotAnswered(delivery.incoming, Reason.CUT_OFF, TurnCutOff())
