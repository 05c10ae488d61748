"""What Meta still has, as far as is known: what people said and is not over, and what was sent and may fail."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import anyio
import msgspec

from miniclaw_sessions.channels.whatsapp.messages import Fields
from miniclaw_sessions.channels.whatsapp.reading import Said
from miniclaw_sessions.core.protocol.messages import ImagePart

_REMEMBERED = 2_000  # of which something may still come


class Exchange:
    """A message that Meta has, as far as is known, and how far its answer is.

    Attributes:
        said: the message.
        is_over: whether the person has the answer, or no answer is due.
        is_under_way: whether it waits here, or is being answered.
        settled: set when neither is so any more.
        fetches: how often its file could not be had.
        sent: what was sent of the answer.
        is_patient: whether the person was sent word that it waits until something can be saved.
    """

    def __init__(self, said: Said) -> None:
        self.said = said
        self.is_over = False
        self.is_patient = False
        self.fetches = 0
        self.sent: list[Fields | ImagePart] = []
        self.begin()

    def begin(self) -> None:
        """It was delivered, and is handed over."""
        self.is_under_way = True
        self.settled = anyio.Event()

    def settle(self, *, is_over: bool) -> None:
        """It is over, or Meta delivers it again."""
        self.is_over, self.is_under_way = is_over, False
        if is_over:
            self.sent = []  # it may have pictures, and many messages are remembered
        self.settled.set()


class Outbound(msgspec.Struct):
    """A message that Meta has taken, until it is known that it arrived."""

    chat_id: str
    payload: Fields
    resent: int = 0


def forget(table: OrderedDict[str, Any], may_go: Callable[[Any], bool] = lambda _: True) -> None:
    """Leave only the newest, and those that may not go."""
    if len(table) > _REMEMBERED:
        for key in [key for key, one in table.items() if may_go(one)][: len(table) - _REMEMBERED]:
            del table[key]
