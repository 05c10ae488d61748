"""The dispatcher: takes what all channels hand over and lets the assistant answer it.

    async with Dispatcher(manager, assistant) as dispatcher:
        dispatcher.serve(channel)

Within a chat, messages are answered in the order in which they came; chats are answered at the same time. How much may
wait is bounded, and who is beyond the bound is told so. A message that is delivered twice is answered once. A message
that waits is only in memory: its channel is told `Accepted` when the store has it, and should keep it until then.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectSendStream

from miniclaw_sessions.agent.events import TurnFinished, TurnSuspended
from miniclaw_sessions.channels.answering import Assistant
from miniclaw_sessions.channels.base import (
    Accepted,
    Answered,
    Channel,
    Incoming,
    NotAnswered,
    Outgoing,
    Progress,
    Reason,
    Withdrawn,
)
from miniclaw_sessions.config import ChannelSettings
from miniclaw_sessions.errors import (
    AgentError,
    ChatBusy,
    DuplicateMessage,
    InvalidKey,
    ManagerClosed,
    MessageUnderWay,
    TooManyTurns,
    TurnCutOff,
    named,
)
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.manager import SessionManager
from miniclaw_sessions.protocol.keys import SessionKey

log = get_logger(__name__)

SEND_TIMEOUT_S = 30.0
"""How long a channel may take to send something."""

BACKOFF_S = (1.0, 60.0)
"""How long it takes until a channel that failed is started again: at first, doubled each time, and at most."""

_REFUSALS = 64  # told at the same time, by one channel; then it is not listened to until some are told
_LAST_WORDS_S = 1.0  # for telling channels that their answers were cut off


class Dispatcher:
    """Lets the assistant answer what the channels hand over; an async context manager.

    Leaving the block waits until all channels have ended and everything is answered; see `cut_off` and `finished`.

    Args:
        manager: whose sessions the chats are.
        assistant: who answers.
        limits: how much may wait.
        backoff_s: how long a channel that failed is left alone, at first and at most.
        send_timeout_s: how long a channel may take to send something.
    """

    def __init__(
        self,
        manager: SessionManager,
        assistant: Assistant,
        *,
        limits: ChannelSettings | None = None,
        backoff_s: tuple[float, float] = BACKOFF_S,
        send_timeout_s: float = SEND_TIMEOUT_S,
    ) -> None:
        self._manager = manager
        self._assistant = assistant
        self._limits = limits or ChannelSettings()
        self._backoff_s = backoff_s
        self._send_timeout_s = send_timeout_s
        self._chats: dict[str, deque[_Delivery]] = {}
        self._under_way: dict[int, _Delivery] = {}
        self._refused: set[_Delivery] = set()
        self._listening: set[anyio.CancelScope] = set()
        self._tasks: TaskGroup | None = None
        self._cut_off_at = math.inf
        self._idle = anyio.Event()

    def __repr__(self) -> str:
        return f"<Dispatcher {self.running} messages in {len(self._chats)} chats>"

    @property
    def running(self) -> int:
        """How many messages wait or are being answered."""
        return len(self._under_way)

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = self._running_tasks()
        try:
            await tasks.__aexit__(kind, error, trace)
        finally:
            self._tasks = None

    def serve(self, channel: Channel) -> None:
        """Listen to a channel, until it ends or the dispatcher stops.

        Raises:
            ManagerClosed: the dispatcher is stopping, or was not entered.
        """
        tasks = self._running_tasks()
        if self._cut_off_at < math.inf:
            raise ManagerClosed("the dispatcher is stopping and takes no further channels")
        scope = anyio.CancelScope()
        self._listening.add(scope)
        tasks.start_soon(self._listen, channel, scope, name=f"channel {channel.name}")

    def cut_off(self, at: float) -> None:
        """Listen no more, and cut off what is still not answered at this time of the event loop."""
        self._cut_off_at = min(self._cut_off_at, at)
        for scope in self._listening:
            scope.cancel()
        for delivery in (*self._under_way.values(), *self._refused):
            delivery.cut_off(at, at + _LAST_WORDS_S)

    async def finished(self) -> None:
        """Wait until nothing is under way; what has finished is told and saved."""
        while self._under_way:
            if self._idle.is_set():
                self._idle = anyio.Event()
            await self._idle.wait()

    def _running_tasks(self) -> TaskGroup:
        if self._tasks is None:
            raise ManagerClosed("the dispatcher is used within `async with Dispatcher(...) as dispatcher`")
        return self._tasks

    # --- taking ------------------------------------------------------------------------------------------------------

    async def _listen(self, channel: Channel, scope: anyio.CancelScope) -> None:
        """Take what a channel hands over; where it fails, try it again, each time after a longer while."""
        delay, longest = self._backoff_s
        refusals = anyio.Semaphore(_REFUSALS)
        with scope:
            while True:
                try:
                    async with aclosing(channel.receive()) as received:
                        async for one in received:
                            delay = self._backoff_s[0]
                            self._take(channel, one, refusals)
                            async with refusals:  # there is room for telling one more
                                pass
                    break
                except Exception as error:  # noqa: BLE001 - a channel's own code; the others go on
                    sentence = "a channel failed and is started again"
                    facts = {"error_type": type(error).__name__, "retry_in_s": delay}
                    log.error(sentence, action="channel.failed", channel=channel.name, **facts)
                await anyio.sleep(delay)
                delay = min(2 * delay, longest)
            log.info("a channel has ended", action="channel.ended", channel=channel.name)
        self._listening.discard(scope)

    def _take(self, channel: Channel, one: Incoming | Withdrawn, refusals: anyio.Semaphore) -> None:
        """Put a message behind those of its chat, or refuse it. Does not wait, so that nothing can be lost here."""
        if isinstance(one, Withdrawn):
            if (withdrawn := self._under_way.get(id(one.incoming))) is not None:
                withdrawn.cut_off(anyio.current_time() + one.patience_s, math.inf)
            return
        delivery = _Delivery(channel, one)
        if (refused := self._refusal(delivery)) is None:
            self._put(delivery)
            return
        refusals.acquire_nowait()
        self._refused.add(delivery)
        self._running_tasks().start_soon(self._refuse, delivery, refused, refusals, name=f"refusal by {channel.name}")

    def _refusal(self, delivery: _Delivery) -> NotAnswered | None:
        """Why the message is not taken; and whose chat it is."""
        incoming = delivery.incoming
        try:
            delivery.session_id = SessionKey.of(delivery.key[0], delivery.key[1]).session_id
        except InvalidKey as error:
            return NotAnswered(incoming, Reason.FAILED, error)
        waiting = self._chats.get(delivery.session_id, ())
        if incoming.message_id is not None and any(one.incoming.message_id == incoming.message_id for one in waiting):
            again = MessageUnderWay("this message was delivered before, and its answer is on the way")
            return NotAnswered(incoming, Reason.DUPLICATE, again)
        if len(waiting) > self._limits.max_waiting_per_chat:
            busy = f"{len(waiting)} messages of this chat wait already; this one was not taken, try again later"
            return NotAnswered(incoming, Reason.BUSY, ChatBusy(busy))
        if len(self._under_way) >= self._limits.max_messages:
            return NotAnswered(incoming, Reason.BUSY, TooManyTurns("too many turns are under way; try again later"))
        return None

    def _put(self, delivery: _Delivery) -> None:
        session_id = delivery.session_id
        self._under_way[id(delivery.incoming)] = delivery
        delivery.cut_off(self._cut_off_at, self._cut_off_at + _LAST_WORDS_S)
        if session_id in self._chats:
            self._chats[session_id].append(delivery)
            return
        self._chats[session_id] = deque([delivery])
        self._running_tasks().start_soon(self._work, session_id, name=f"chat {session_id}")

    async def _refuse(self, delivery: _Delivery, refused: NotAnswered, refusals: anyio.Semaphore) -> None:
        try:
            with delivery.telling:
                await self._send(delivery, refused)
        finally:
            self._refused.discard(delivery)
            refusals.release()

    # --- answering ---------------------------------------------------------------------------------------------------

    async def _work(self, session_id: str) -> None:
        """Answer the messages of one chat, one after the other, until there are no more."""
        waiting = self._chats[session_id]
        try:
            while waiting:
                await self._deliver(waiting[0])
                self._forget(waiting.popleft())
        finally:
            del self._chats[session_id]
            for delivery in waiting:  # only if the dispatcher itself is cancelled
                self._forget(delivery)

    def _forget(self, delivery: _Delivery) -> None:
        del self._under_way[id(delivery.incoming)]
        self._idle.set()

    async def _deliver(self, delivery: _Delivery) -> None:
        """Answer one message and tell everything about it, in order; returns when it is told."""
        sender, receiver = anyio.create_memory_object_stream[Outgoing](math.inf)

        async def tell() -> None:
            with delivery.telling:
                async for outgoing in receiver:
                    if delivery.is_reached or not isinstance(outgoing, Progress):
                        await self._send(delivery, outgoing)

        with receiver:  # open until the end: what nobody listens to any more is dropped, and breaks nothing
            await self._answer_and_tell(delivery, sender, tell)

    async def _answer_and_tell(
        self,
        delivery: _Delivery,
        sender: MemoryObjectSendStream[Outgoing],
        tell: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell, name="telling")
            with sender:
                delivery.tell = sender.send_nowait
                last = await self._answer_in_time(delivery)
                if isinstance(last, NotAnswered):
                    _log(delivery, last)
                sender.send_nowait(last)

    async def _answer_in_time(self, delivery: _Delivery) -> Answered | NotAnswered:
        incoming = delivery.incoming
        error = TurnCutOff("the turn was cut off; its steps are saved")
        last: Answered | NotAnswered = NotAnswered(incoming, Reason.CUT_OFF, error)
        with delivery.answering:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._show_typing, delivery, name="typing")
                last = await self._answer(delivery)
                tasks.cancel_scope.cancel()
        return last

    async def _answer(self, delivery: _Delivery) -> Answered | NotAnswered:
        """Let the assistant answer; the result is believed when the turn is saved."""
        incoming, finished = delivery.incoming, None
        try:
            await checkpoint()  # whose time is over while it waits is not begun
            session = await self._manager.get_or_create(*delivery.key)
            async with self._assistant.answer(
                session,
                incoming.message,
                idempotency_key=incoming.message_id,
                on_accepted=lambda: delivery.tell(Accepted(incoming)),
            ) as events:
                async for event in events:
                    if isinstance(event, TurnFinished | TurnSuspended):
                        finished = event
                    else:
                        delivery.tell(Progress(incoming, event))
        except DuplicateMessage as error:
            return NotAnswered(incoming, Reason.DUPLICATE, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to this message
            return NotAnswered(incoming, Reason.FAILED, error)
        if finished is None:
            return NotAnswered(incoming, Reason.FAILED, AgentError("the agent ended its turn without a reply"))
        return Answered(incoming, finished)

    # --- telling -----------------------------------------------------------------------------------------------------

    async def _show_typing(self, delivery: _Delivery) -> None:
        try:
            async with delivery.channel.typing(delivery.incoming.chat_id):
                await anyio.sleep_forever()
        except Exception as error:  # noqa: BLE001 - a channel's own code, and only an ornament
            log.debug("typing is not shown", action="channel.typing_failed", error_type=type(error).__name__)

    async def _send(self, delivery: _Delivery, outgoing: Outgoing) -> None:
        """Send; what the channel does not take is in the session all the same."""
        try:
            with anyio.fail_after(self._send_timeout_s):
                await delivery.channel.send(delivery.incoming.chat_id, outgoing)
        except Exception as error:  # noqa: BLE001 - a channel's own code; the chat goes on
            delivery.is_reached = False
            log.warning(
                "a channel did not send what it was told",
                action="channel.send_failed",
                channel=delivery.channel.name,
                session_id=delivery.session_id,
                told=type(outgoing).__name__,
                error_type=type(error).__name__,
            )


def _log(delivery: _Delivery, last: NotAnswered) -> None:
    facts = {"channel": delivery.channel.name, "session_id": delivery.session_id}
    if last.reason is Reason.CUT_OFF:
        log.warning("a turn was cut off", action="turn.cut_off", **facts)
    elif last.reason is Reason.FAILED and not delivery.channel.logs_failures:
        kind = type(last.error).__name__
        log.error(
            "a message was not answered", action="turn.failed", error_type=kind, detail=named(last.error), **facts
        )


class _Delivery:
    """One message on its way, and how long it may take.

    Attributes:
        key: channel and chat, as the session's key is made of them.
        session_id: whose message it is; empty where the key is not one.
        answering: ends when the answer has taken too long.
        telling: ends when telling of it has taken too long.
        tell: puts something behind what the channel is told of this message.
        is_reached: whether everything could be sent until now; where not, only what matters is.
    """

    def __init__(self, channel: Channel, incoming: Incoming) -> None:
        self.channel = channel
        self.incoming = incoming
        self.key = (incoming.channel or channel.name, incoming.chat_id)
        self.session_id = ""
        self.answering = anyio.CancelScope()
        self.telling = anyio.CancelScope()
        self.tell: Callable[[Outgoing], None] = _too_early
        self.is_reached = True

    def cut_off(self, answer_at: float, tell_at: float) -> None:
        """The answer may take until then, and telling of it a little longer."""
        self.answering.deadline = min(self.answering.deadline, answer_at)
        self.telling.deadline = min(self.telling.deadline, tell_at)


def _too_early(outgoing: Outgoing) -> None:
    raise RuntimeError(f"{type(outgoing).__name__} is told before the delivery has begun")
