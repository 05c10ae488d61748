"""Server-sent events, as a daemon writes them: each datum is one line."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import NamedTuple

MAX_REPLY_BYTES = 536_870_912
"""A reply that is held as a whole may be this long; one that is taken piece by piece has no end."""


class RequestFailed(Exception):
    """A request was not answered: the connection broke, or what came is not HTTP."""


class ServerSentEvent(NamedTuple):
    """One event.

    Attributes:
        kind: its name.
        data: what it says; empty where it only says from where on the stream can be resumed.
        place: its id, to resume behind it; None: it has none.
    """

    kind: str
    data: bytes = b""
    place: str | None = None


async def server_sent_events(pieces: AsyncIterator[bytes]) -> AsyncGenerator[ServerSentEvent, None]:
    """The events in a text/event-stream.

    Raises:
        RequestFailed: one is longer than `MAX_REPLY_BYTES`.
    """
    kind, data, place, rest = "message", b"", None, bytearray()
    async for piece in pieces:
        rest += piece
        if b"\n" not in piece:
            if len(rest) > MAX_REPLY_BYTES:
                raise RequestFailed(f"an event is longer than {MAX_REPLY_BYTES} bytes")
            continue
        *lines, last = rest.split(b"\n")
        rest = last
        for line in lines:
            name, _, value = bytes(line.rstrip(b"\r")).partition(b": ")  # a line without a name is a comment
            if name == b"event":
                kind = value.decode(errors="replace")
            elif name == b"data":
                data = value
            elif name == b"id":
                place = value.decode(errors="replace")
            elif not name and not value and (data or place is not None):
                yield ServerSentEvent(kind, data, place)
                kind, data, place = "message", b"", None
