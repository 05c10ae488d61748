"""Server-sent events as they are written: each datum is one line."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from typing import TypeVar

import anyio

from miniclaw_sessions.errors import TurnCutOff

EVENT_STREAM = "text/event-stream"

HEARTBEAT = b": still here\n\n"
"""A comment that keeps an idle stream open: a proxy would close a silent one."""

HEARTBEAT_S = 15.0
"""How often it says that."""

T = TypeVar("T")


def encoded_event(kind: str, data: bytes, place: str | None = None) -> bytes:
    """One event.

    Args:
        kind: its name.
        data: what it says, in one line.
        place: its id, to resume behind it; None: it has none.
    """
    event = b"event: %s\ndata: %s\n\n" % (kind.encode(), data)
    return event if place is None else b"id: %s\n%s" % (place.encode(), event)


async def until_last(
    events: AsyncIterator[T], is_last: Callable[[T], bool], first: Iterable[T] = ()
) -> AsyncGenerator[T | None, None]:
    """Events up to the last one; None where nothing has come for `HEARTBEAT_S`.

    Args:
        events: a wait for the next one can be given up, and nothing is missed.
        is_last: whether nothing comes behind one.
        first: those that were taken from them already.

    Raises:
        TurnCutOff: they ended without a last one.
    """
    event: T | None = None
    for event in first:
        yield event
    while event is None or not is_last(event):
        event = None
        with anyio.move_on_after(HEARTBEAT_S):
            try:
                event = await anext(events)
            except StopAsyncIteration:
                raise TurnCutOff from None
        yield event
