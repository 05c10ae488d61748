"""The channel of those who ask and wait: HTTP requests, each of which follows its own answer.

It knows nothing of HTTP itself: `ask` hands a message over and returns what becomes of it, as it happens. Whoever goes
away, or does not keep up, loses the events and nothing else: the turn goes on for a while and is saved (document 004,
section 10.3).
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, nullcontext

import anyio

from miniclaw_sessions.channels.base import Answered, Incoming, NotAnswered, Outgoing, Person, Reason, Withdrawn
from miniclaw_sessions.errors import ManagerClosed
from miniclaw_sessions.log import get_logger

log = get_logger(__name__)

_BUFFERED_EVENTS = 4096


class Asked:
    """One request on its way; iterate over it for what becomes of it, the last of which is `Answered` or `NotAnswered`.

    It ends early where it is read too slowly.
    """

    def __init__(self, incoming: Incoming) -> None:
        self.incoming = incoming
        self._sender, self._receiver = anyio.create_memory_object_stream[Outgoing](_BUFFERED_EVENTS)

    def __aiter__(self) -> Asked:
        return self

    async def __anext__(self) -> Outgoing:
        try:
            return await self._receiver.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    def put(self, outgoing: Outgoing) -> bool:
        """Hand something over; False when nobody takes it."""
        try:
            self._sender.send_nowait(outgoing)
        except (anyio.WouldBlock, anyio.ClosedResourceError):
            return False
        return True

    def end(self) -> None:
        """There is nothing more."""
        self._sender.close()

    def close(self) -> None:
        """Nobody listens any more."""
        self._sender.close()
        self._receiver.close()


class HttpChannel:
    """Hands requests over, and their answers back; `patience_s` is how long an answer goes on that nobody waits for."""

    name = "http"
    bot = Person()
    logs_failures = True

    def __init__(self, *, patience_s: float) -> None:
        self.patience_s = patience_s
        self._handed_over, self._to_receive = anyio.create_memory_object_stream[Incoming | Withdrawn](math.inf)
        self._asked: dict[int, Asked] = {}

    def __repr__(self) -> str:
        return f"<HttpChannel, {len(self._asked)} requests>"

    def ask(self, incoming: Incoming) -> Asked:
        """Hand a message over, and follow what becomes of it; `abandon` must be called at the end.

        Raises:
            ManagerClosed: nothing is taken any more.
        """
        try:
            self._handed_over.send_nowait(incoming)
        except anyio.ClosedResourceError:
            raise ManagerClosed("the program is stopping and takes no further messages") from None
        asked = self._asked[id(incoming)] = Asked(incoming)
        return asked

    def abandon(self, asked: Asked) -> None:
        """Nobody listens any more, or the end was seen; the answer may go on for `patience_s`."""
        asked.close()
        self._withdraw(asked)

    # --- as a channel ------------------------------------------------------------------------------------------------

    async def receive(self) -> AsyncGenerator[Incoming | Withdrawn, None]:
        """What is asked. Closing this closes the channel for good; who was not heard yet is told."""
        with self._handed_over, self._to_receive:
            try:
                async for one in self._to_receive:
                    yield one
            finally:
                self._refuse_the_rest()

    async def send(self, chat_id: str, outgoing: Outgoing) -> None:
        """Hand something to whom it concerns."""
        del chat_id
        is_last = isinstance(outgoing, Answered | NotAnswered)
        asked = self._asked.get(id(outgoing.incoming))
        is_taken = asked is not None and asked.put(outgoing)
        if asked is not None and (is_last or not is_taken):
            asked.end()  # who is this slow sees the stream end early
            self._withdraw(asked)
        if not is_taken and isinstance(outgoing, NotAnswered) and outgoing.reason is Reason.FAILED:
            sentence, kind = "a turn failed after its client had gone", type(outgoing.error).__name__
            log.warning(sentence, action="turn.failed", error_type=kind)

    def typing(self, chat_id: str) -> AbstractAsyncContextManager[None]:
        """A request that waits is sign enough."""
        del chat_id
        return nullcontext()

    def _refuse_the_rest(self) -> None:
        while True:
            try:
                one = self._to_receive.receive_nowait()
            except (anyio.WouldBlock, anyio.EndOfStream):
                return
            if isinstance(one, Incoming) and (asked := self._asked.pop(id(one), None)) is not None:
                asked.put(NotAnswered(one, Reason.CUT_OFF, ManagerClosed("the program is stopping")))
                asked.end()

    def _withdraw(self, asked: Asked) -> None:
        if self._asked.pop(id(asked.incoming), None) is None:
            return
        try:
            self._handed_over.send_nowait(Withdrawn(asked.incoming, self.patience_s))
        except anyio.ClosedResourceError:
            return  # everything has a deadline already
