"""What Telegram still has, as far as is known: each update with the messages that show its answer, and their albums.

An album is as many updates as it has pictures, and nothing says how many there are. So each picture is stored as it
comes, and only the one that no other follows for a while is answered; all of them are over when that one is.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import anyio

from miniclaw_sessions.clock import Clock, sleep_unless

if TYPE_CHECKING:
    import telegram

ALBUM_S = 2.5
"""So long a further picture of an album is waited for; while one is unconfirmed, Telegram is asked each second."""


class State(IntEnum):
    """How far the answer to an update is."""

    HEARD = 0
    KEPT = 1
    """The store has the message, or its sender knows that it may be forgotten."""
    OVER = 2
    """The person has the answer, or no answer is due."""


class Album:
    """The pictures that were sent together, as far as they came, by the ids of their messages.

    Attributes:
        is_admitted: whether one of them will be answered: the others belong to it.
    """

    def __init__(self) -> None:
        self.is_admitted = False
        self._pictures: dict[int, Exchange] = {}
        self._changed = anyio.Event()

    def add(self, message_id: int, exchange: Exchange) -> None:
        """One of them has come, and may have to be fetched yet."""
        if self._pictures.get(message_id) is not exchange:
            self._pictures[message_id] = exchange
            exchange.album, exchange.message_id = self, message_id
            self.change()

    def change(self) -> None:
        """It is known of one whether it is handed over."""
        self._changed.set()
        self._changed = anyio.Event()

    def behind(self, message_id: int) -> list[Exchange]:
        """Those that follow one, and are not over."""
        return [one for number, one in self._pictures.items() if number > message_id and one.state < State.OVER]

    async def goes_on(self, message_id: int, clock: Clock) -> bool:
        """Whether another one follows that is handed over, as is known when none has come for a while."""
        while True:
            behind = self.behind(message_id)
            if any(one.message is not None for one in behind):
                return True
            if behind:
                await self._changed.wait()
            elif not await sleep_unless(clock, ALBUM_S, self._changed):
                return False


class Exchange:
    """An update that Telegram still has, as far as is known, and the messages that show its answer.

    Attributes:
        state: how far it is.
        settled: set when that is more than heard, or when it must be delivered again.
        message: what was said; None: it was not handed over yet.
        album: what it is a picture of.
        message_id: that of the picture.
        text: the model's reply so far.
        is_verbatim: whether its answer is not the model's, and is shown to the letter, as what a person is to agree to.
        buttons: what stands below its answer, where that is a question.
        shown: the messages that show the answer, each with its part of the text.
        shown_at: when that was brought up to date, or the answer begun.
        heard_at: when it was handed over.
        is_patient: whether its sender was sent word that it waits until something can be saved.
        may_be_forgotten: whether Telegram was asked to forget it; it may have done so before it says so.
    """

    def __init__(self) -> None:
        self.is_patient = False
        self.may_be_forgotten = False
        self.message_id = 0
        self.album: Album | None = None
        self.begin()

    def begin(self) -> None:
        """Nothing is known of it but that Telegram has it: it is handed over when it is delivered."""
        self.state = State.HEARD
        self.settled = anyio.Event()
        self.message: telegram.Message | None = None
        self.text = ""
        self.is_verbatim = False
        self.buttons: dict[str, Any] | None = None
        self.shown: list[tuple[int, str]] = []
        self.shown_at = 0.0
        self.heard_at = 0.0

    @property
    def is_over(self) -> bool:
        """Whether Telegram may forget it: it is over, and so are the pictures that were answered in its place."""
        return self.state is State.OVER and not (self.album and self.album.behind(self.message_id))
