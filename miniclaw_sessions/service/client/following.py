"""Following one session, or all of them, over any number of connections: each goes on where the one before broke off.

What is followed is never missed and never given twice, because every session numbers its own entries: what comes with a
number that was seen is left out, and what lies between two numbers is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.errors import (
    ManagerClosed,
    SessionNotFound,
    SessionsError,
    StoreUnavailable,
    Unreachable,
)
from miniclaw_sessions.service.api import live, messages
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.api.operation import Operation
from miniclaw_sessions.service.api.shapes import EntriesReply
from miniclaw_sessions.service.client.events import ServerSentEvent, server_sent_events
from miniclaw_sessions.service.client.transport import LocalTransport, Transport

PATIENCE_S = 300.0
"""How long a daemon that does not answer is waited for by those who follow."""

CONNECTED = "connected"
"""What is said whenever there is a new connection; no daemon says it."""

_PAGE = 100
_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_GONE = frozenset({"deleted", "expired"})
_FOR_NOW = (Unreachable, ManagerClosed, StoreUnavailable)
_NO_DAEMON = "what answers is no daemon of this version"
_TOO_MANY = frozenset({"too_many_connections", "timeout", "too_many_requests"})


def _is_for_now(error: SessionsError) -> bool:
    return isinstance(error, _FOR_NOW) or (isinstance(error, RequestError) and error.kind in _TOO_MANY)


async def resumed(
    transport: Transport, operation: Operation[Any, Any], ask: Callable[[str | None], msgspec.Struct]
) -> AsyncGenerator[ServerSentEvent, None]:
    """The events of a stream that is asked for again, behind the newest place, whenever it breaks off.

    Args:
        transport: to the daemon; in this process nothing breaks off.
        operation: what is streamed.
        ask: the request that goes on behind a place; None: at the beginning.

    Raises:
        Unreachable: the daemon has stopped, and did not come back within `PATIENCE_S`.
        SessionsError: as the operation raises.
    """
    place: str | None = None
    was_there = False
    loop, pause_s = asyncio.get_running_loop(), _PAUSE_S
    give_up = loop.time() + PATIENCE_S
    while True:
        failure: SessionsError = Unreachable("the events broke off: their daemon is stopping")
        was_heard = False
        try:
            async with transport.stream(operation, ask(place)) as pieces:
                was_there = True
                yield ServerSentEvent(CONNECTED)
                async for event in server_sent_events(pieces):
                    was_heard = True
                    place = event.place or place
                    yield event
        except SessionNotFound:
            if was_there:  # it was deleted while the client was not connected
                return
            raise
        except SessionsError as error:
            if not _is_for_now(error):
                raise
            failure = error
        if was_heard:  # the patience begins with the break: a session may have been quiet for days before
            give_up, pause_s = loop.time() + PATIENCE_S, _PAUSE_S
        if isinstance(transport, LocalTransport) or loop.time() + pause_s > give_up:
            raise failure
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class _Entries(msgspec.Struct):
    """New entries; of which some may come whole."""

    session_id: str
    sequence: int
    entries: list[dict[str, Any]]


_SHAPES: dict[str, type[msgspec.Struct]] = {**live.OF_ALL, "entries": _Entries}


def said_by(event: ServerSentEvent, shape: type[msgspec.Struct] | None = None) -> dict[str, Any]:
    """What an event says.

    Args:
        event: one with data.
        shape: what it must have at least; None: it is not known.

    Raises:
        SessionsError: no daemon of this version says that.
    """
    try:
        if shape is not None:
            msgspec.json.decode(event.data, type=shape)
        data: dict[str, Any] = msgspec.json.decode(event.data, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise SessionsError(f"an event {event.kind!r} cannot be understood ({error}); {_NO_DAEMON}") from error
    return data


class SessionEvent(NamedTuple):
    """Something that happened in a session.

    Attributes:
        kind: `entry`; or the name of an event of `GET /v1/events`: `created`, `changed`, `deleted`, `expired`,
            `turn_started`, `turn_ended`.
        session_id: in which session.
        entry: the entry that the store has acknowledged, of the kind `entry`.
        data: its further fields.
    """

    kind: str
    session_id: str
    entry: Entry | None = None
    data: Mapping[str, Any] = MappingProxyType({})


class End(msgspec.Struct):
    """How far a session was followed: which one of its name, and up to which sequence."""

    incarnation: str
    sequence: int


class SessionEvents:
    """What happens in all sessions, each entry once and in its session's order; iterate over it once.

    Attributes:
        ends: how far each session was followed; with it a later call goes on, also after this program was killed, if
            it was kept together with what came of the events. It is a plain dictionary of `End`, as JSON has them too.
    """

    def __init__(
        self, transport: Transport, *, channel: str | None, prefix: str | None, ends: dict[str, End] | None
    ) -> None:
        self.ends: dict[str, End] = {} if ends is None else ends
        self._transport = transport
        self._channel = channel
        self._prefix = prefix
        self._is_based = ends is not None  # else it begins with what comes from now on
        self._listed: set[str] = set()
        self._events = self._follow()

    def __aiter__(self) -> AsyncIterator[SessionEvent]:
        return self._events

    async def close(self) -> None:
        """Follow no more."""
        await self._events.aclose()

    async def _follow(self) -> AsyncGenerator[SessionEvent, None]:
        def ask(place: str | None) -> live.FollowAll:
            return live.FollowAll(
                channel=self._channel, prefix=self._prefix, content=True, sessions=True, last_event_id=place
            )

        kinds = {"session": self._session, "ready": self._ready, "created": self._created, "entries": self._entries}
        async with aclosing(resumed(self._transport, live.follow_all, ask)) as events:
            async for event in events:
                if event.kind == CONNECTED:
                    self._listed.clear()
                if not event.data:
                    continue
                data = said_by(event, _SHAPES.get(event.kind))
                async with aclosing(kinds.get(event.kind, self._other)(event.kind, data)) as happened:
                    async for one in happened:
                        yield one

    async def _session(self, _: str, data: dict[str, Any]) -> AsyncGenerator[SessionEvent, None]:
        """One of all sessions: where it ends."""
        session_id, last = data["session_id"], data["last_sequence"]
        self._listed.add(session_id)
        if self._is_based:
            async for made in self._created("created", data):
                yield made
            async for made in self._entries("entries", {"session_id": session_id, "sequence": last, "entries": []}):
                yield made
        else:
            self.ends[session_id] = End(data["incarnation"], last)

    async def _ready(self, _: str, data: dict[str, Any]) -> AsyncGenerator[SessionEvent, None]:
        """All sessions are listed now, unless nothing was missed."""
        if self._is_based and not data["resumed"]:
            for gone in self.ends.keys() - self._listed:
                del self.ends[gone]
                yield SessionEvent("deleted", gone)
        self._is_based = True

    async def _created(self, _: str, data: dict[str, Any]) -> AsyncGenerator[SessionEvent, None]:
        """There is a session of this incarnation."""
        session_id, incarnation = data["session_id"], data["incarnation"]
        end = self.ends.get(session_id)
        if end is not None and end.incarnation in ("", incarnation):
            end.incarnation = incarnation
            return
        if end is not None:
            yield SessionEvent("deleted", session_id)
        self.ends[session_id] = End(incarnation, 0)
        yield SessionEvent("created", session_id)

    async def _other(self, kind: str, data: dict[str, Any]) -> AsyncGenerator[SessionEvent, None]:
        if not isinstance(session_id := data.get("session_id"), str):
            return  # a later daemon's, of something else
        if kind in _GONE:
            self.ends.pop(session_id, None)
        yield SessionEvent(kind, session_id, None, data)

    async def _entries(self, _: str, data: dict[str, Any]) -> AsyncGenerator[SessionEvent, None]:
        """The entries up to a sequence that were not given yet: those that came with the event, and others read."""
        session_id, last, described = data["session_id"], data["sequence"], data["entries"]
        end = self.ends.setdefault(session_id, End("", 0))
        for one in described:
            if one.get("sequence") == end.sequence + 1 and "entry" in one:
                end.sequence += 1
                yield SessionEvent("entry", session_id, decode_entry(msgspec.json.encode(one["entry"])))
        while end.sequence < last:
            page = await self._page(session_id, end.sequence)
            if page is None:  # it is being made, or deleted: there will be word of it
                return
            for encoded in page.entries:
                entry = decode_entry(bytes(encoded))
                if entry.sequence <= end.sequence:
                    raise SessionsError(f"the entries of session {session_id} come in no order; {_NO_DAEMON}")
                end.sequence = entry.sequence
                yield SessionEvent("entry", session_id, entry)
            if page.next is None or not page.entries:
                end.sequence = max(end.sequence, last)  # what is missing is damaged

    async def _page(self, session_id: str, after: int) -> EntriesReply | None:
        """Entries behind a place; the fewer at a time, the more often the connection breaks. None: no such session."""
        loop, limit, pause_s = asyncio.get_running_loop(), _PAGE, _PAUSE_S
        give_up = loop.time() + PATIENCE_S
        while True:
            try:
                wanted = messages.ShowEntries(session_id, after=after, limit=limit)
                return await self._transport.call(messages.show_entries, wanted)
            except SessionNotFound:
                return None
            except SessionsError as error:
                if not _is_for_now(error) or loop.time() + pause_s > give_up:
                    raise
            await asyncio.sleep(pause_s)
            limit, pause_s = max(1, limit // 4), min(2 * pause_s, _LONGEST_PAUSE_S)
