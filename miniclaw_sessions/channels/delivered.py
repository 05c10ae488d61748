"""What a network has taken is noted in the chat's own session, so that no gateway sends it again.

It is for networks that show an answer twice that is sent twice (`Channel.shows_twice`). Who makes an answer sends it at
once, and writes the note when the network has confirmed it. A gateway that is given the message again waits for that
note. It sends the answer itself when the other one has shown no sign of life for a while. So an answer is shown twice
only where a gateway dies, or stands still for long, between the network's reply and the note of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio

from miniclaw_sessions.channels.base import Channel, Incoming, Last, NotAnswered, Reason, comes_again
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.protocol.entries import OWN_METADATA
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import LeafMoved, SessionsError

DELIVERED = OWN_METADATA + "delivered"
"""The metadata with the id of the message whose outcome was noted last; each note is an entry with a key of its own."""

SENDING = OWN_METADATA + "sending"
"""The metadata with the newest sign of life of a gateway that sends, and the message that it is about."""

BEAT_S = 10.0
"""Seconds between two signs of life, where sending takes long."""

PATIENCE_S = 30.0
"""Seconds without a sign of life after which another gateway sends."""

_LOOK_S = 1.0


def is_noted(last: Last) -> bool:
    """Whether a note is written when a network has taken this outcome: it is final, and no other one was."""
    is_duplicate = isinstance(last, NotAnswered) and last.reason is Reason.DUPLICATE
    return not (is_duplicate or comes_again(last))


def taken(incoming: Incoming) -> NotAnswered:
    """The outcome of a message that is delivered again, and of which the note is there."""
    return NotAnswered(incoming, Reason.DUPLICATE, SessionsError("the network has taken what became of this message"))


class Note:
    """The note that a network has taken the outcome of a message.

    Args:
        manager: whose session.
        session: the chat's own.
        message_id: of the message.
    """

    def __init__(self, manager: SessionManager, session: Session, message_id: str) -> None:
        self._manager = manager
        self._session = session
        self._message_id = message_id
        self._key = f"delivered:{message_id}"
        journal = session.journal
        self._is_alone = not journal.home.ownership(journal).is_contested

    async def is_there(self) -> bool:
        """Whether the network has it, as far as is known here.

        Raises:
            InvalidMessage: no message can have such an id.
            StoreUnavailable: the store cannot be read.
        """
        return await self._session.journal.find_by_key(self._key) is not None

    async def is_ours(self) -> bool:
        """Whether this gateway is to send an outcome that was made before; it waits for another one that does.

        Raises:
            StoreError: the store cannot be read or written.
        """
        clock = self._manager.clock
        seen, since = "", clock.monotonic()
        while not await self.is_there():
            if self._is_alone:
                return True
            if (sign := self._sign) != seen:
                seen, since = sign, clock.monotonic()
            elif clock.monotonic() - since >= PATIENCE_S:
                with suppress(LeafMoved):  # another gateway takes it
                    await self._show_life(if_sequence=self._session.last_sequence)
                    return True
            await clock.sleep(clock.jitter(_LOOK_S))
            self._session = await self._manager.find(self._session.session_id)
        return False

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Show the other gateways that this one sends, while the block lasts."""
        async with anyio.create_task_group() as tasks:
            if not self._is_alone:
                tasks.start_soon(self._keep_showing_life)
            yield
            tasks.cancel_scope.cancel()

    async def write(self) -> None:
        """Write it; where the store fails, the outcome may be sent again."""
        with suppress(SessionsError):
            unit = self._session.unit()
            unit.add_own_metadata({DELIVERED: self._message_id, SENDING: None}, idempotency_key=self._key)
            await unit.save()

    @property
    def _sign(self) -> str:
        sign = str(self._session.journal.conversation.state.metadata.get(SENDING, ""))
        return sign if sign.partition(" ")[2] == self._message_id else ""

    async def _keep_showing_life(self) -> None:
        while True:
            await self._manager.clock.sleep(BEAT_S)
            with suppress(SessionsError):
                await self._show_life()

    async def _show_life(self, *, if_sequence: int | None = None) -> None:
        unit = self._session.unit()
        unit.add_own_metadata({SENDING: f"{self._manager.clock.new_id()} {self._message_id}"})
        await unit.save(if_sequence=if_sequence)


def note_of(manager: SessionManager, own: Session, incoming: Incoming, channel: Channel | None) -> Note | None:
    """The note of a message in its chat's own session; None: its network shows an answer once in any case."""
    is_wanted = getattr(channel, "shows_twice", False) and incoming.answer_again and incoming.message_id is not None
    return Note(manager, own, incoming.message_id or "") if is_wanted else None
