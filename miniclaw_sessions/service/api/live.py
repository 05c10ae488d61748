"""Live: what happens in one session, and in all of them, as server-sent events that resume after a cut."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import msgspec

from miniclaw_sessions.core.events.listeners import PIECES, TEXT, THINKING, TurnEvent
from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.protocol.entries import Entry
from miniclaw_sessions.core.protocol.keys import SessionKey, of_channel
from miniclaw_sessions.errors import ManagerClosed
from miniclaw_sessions.printable import printable
from miniclaw_sessions.service.api import events
from miniclaw_sessions.service.api.chat import EVENTS as OF_AN_ANSWER
from miniclaw_sessions.service.api.error_table import invalid
from miniclaw_sessions.service.api.event_stream import EVENT_STREAM, HEARTBEAT, encoded_event
from miniclaw_sessions.service.api.messages import Sequence_
from miniclaw_sessions.service.api.operation import HEADERS, LAST_EVENT_ID, Stream, operation
from miniclaw_sessions.service.api.sessions import ONE

if TYPE_CHECKING:
    from miniclaw_sessions.core.events.feed import Event
    from miniclaw_sessions.service.api.context import Context

OF_A_SESSION: dict[str, type[msgspec.Struct]] = {
    "entry": events.EntryEvent,
    "typing": events.TypingEvent,
    **{name: shape for name, shape in OF_AN_ANSWER.items() if name != "obeyed"},
    "prose": events.ProseEvent,
    "gone": events.GoneEvent,
}
OF_ALL: dict[str, type[msgspec.Struct]] = {
    "ready": events.ReadyEvent,
    "session": events.SessionEvent,
    "created": events.CreatedEvent,
    "entries": events.EntriesEvent,
    "changed": events.ChangedEvent,
    "deleted": events.OfSessionEvent,
    "expired": events.OfSessionEvent,
    "turn_started": events.OfSessionEvent,
    "turn_ended": events.TurnEndedEvent,
}
_MAX_DIGITS = 16
_TOGETHER_S = 0.1
"""For how long further pieces of a text that is rendered are awaited: its reader draws each step of it."""
_GONE = encoded_event("gone", b"{}")


class FollowSession(msgspec.Struct, frozen=True):
    """Which session, and from where on; the header wins.

    Attributes:
        after: behind this sequence number; by default behind its newest entry.
        incarnation: which session of this name: another one that was made since is not taken for it.
        rendered: text of an answer comes as HTML, in events `prose` in place of `text`.
    """

    session_id: str
    after: Sequence_ | None = None
    incarnation: str | None = None
    rendered: bool = False
    last_event_id: str | None = None


@operation("GET", f"{ONE}/follow", FollowSession, Stream, media_types=(EVENT_STREAM,), events=OF_A_SESSION, reads=False)
async def follow_session(context: Context, request: FollowSession) -> Stream:
    """Each entry as it is acknowledged, whichever process has written it: server-sent events named `entry`.

    An event's `id` is the entry's sequence: a client that was cut off goes on behind it with `Last-Event-ID`, or
    `after`. Beside them come the events of an answer that is under way here, as of `POST /v1/chat`, without an id.
    When the session is deleted, or was while no client was connected, there is an event `gone`, and the stream ends.
    """
    after, last = request.after, request.last_event_id
    if last is not None:
        if not last.isdecimal() or len(last) > _MAX_DIGITS:
            raise invalid("the id of an event of one session is a sequence number", HEADERS[LAST_EVENT_ID])
        after = int(last)
    session = await context.find(request.session_id)
    is_another = request.incarnation not in (None, session.journal.incarnation)
    is_gone = is_another or (last is not None and int(last) > session.last_sequence)
    place = session.journal.committed_sequence if after is None else after
    shown = _Rendering() if request.rendered else _as_it_is

    async def encoded() -> AsyncGenerator[bytes, None]:
        if not is_gone:
            async with aclosing(context.manager.events.watch(request.session_id, after=place)) as watched:
                yield HEARTBEAT + b"id: %d\n\n" % place  # before anything happens: the status, and where it begins
                try:
                    async for batch in watched:
                        pieces = [
                            b"".join(shown(one))
                            if isinstance(one, TurnEvent)
                            else encoded_event("entry", encode_entry(one), str(one.sequence))
                            for one in batch
                        ]
                        if sent := b"".join(pieces) or (b"" if batch else HEARTBEAT):
                            yield sent
                        if request.rendered and batch and all(map(_is_piece, batch)):  # what is saved waits for nothing
                            await anyio.sleep(_TOGETHER_S)
                except ManagerClosed:
                    return  # the end of the stream without a word: follow it elsewhere
        yield _GONE

    return Stream(encoded(), EVENT_STREAM)


def _is_piece(one: Entry | TurnEvent) -> bool:
    return isinstance(one, TurnEvent) and one.kind in PIECES


def _as_it_is(event: TurnEvent) -> Iterator[bytes]:
    yield encoded_event(event.kind, msgspec.json.encode(event.data))


class _Rendering:
    """The events of answers for one reader who looks at them: each text as HTML that grows."""

    def __init__(self) -> None:
        from miniclaw_sessions.files.formats.html.growing import GrowingProse  # noqa: PLC0415 - heavy

        self._growing = GrowingProse()

    def __call__(self, event: TurnEvent) -> Iterator[bytes]:
        piece = self._growing.add(event.data["text"]) if event.kind == TEXT else self._growing.end()
        if piece.text or piece.opened is not None:
            document = events.ProseEvent(closed=piece.closed, open=piece.opened, text=piece.text)
            yield encoded_event("prose", msgspec.json.encode(document))
        if event.kind == THINKING:
            event = event._replace(data={"text": printable(event.data["text"], lines=True)})
        if event.kind != TEXT:
            yield from _as_it_is(event)


class FollowAll(msgspec.Struct, frozen=True):
    """Which sessions, from where on (the header wins), and how much of them.

    Attributes:
        channel: of this channel only.
        prefix: whose ids begin so, in any case.
        content: entries come whole.
        sessions: all sessions come first, unless the stream resumes with what was missed.
        after: behind the event of this `id`.
    """

    channel: str | None = None
    prefix: str | None = None
    content: bool = False
    sessions: bool = False
    after: str | None = None
    last_event_id: str | None = None


class Wanted(msgspec.Struct, frozen=True):
    """Which sessions a stream is about."""

    channel: str | None
    prefix: str | None

    def __call__(self, session_id: str, key: SessionKey | None) -> bool:
        """Whether it is one of them."""
        if self.prefix is not None and not session_id.casefold().startswith(self.prefix.casefold()):
            return False
        if self.channel is None:
            return True
        return of_channel(self.channel)(session_id) if key is None else key.channel == self.channel


@operation("GET", "/v1/events", FollowAll, Stream, media_types=(EVENT_STREAM,), events=OF_ALL, reads=False)
async def follow_all(context: Context, request: FollowAll) -> Stream:
    """What happens in all sessions: server-sent events, whose `id` is the place to go on from with `Last-Event-ID`.

    `ready` comes first: `resumed` says whether everything since then follows, nothing missing and nothing twice. Else
    (at first, after a restart, at another gateway, after long) read how things are, or have with `sessions` where each
    session ends. A client that keeps the last sequence of each session, leaves out what is not above it, and reads what
    lies between, has every entry once, also if anything breaks.
    """
    after = request.after if request.last_event_id is None else request.last_event_id
    wanted = Wanted(request.channel or None, request.prefix)
    watched = context.manager.events.watch_all(
        after=after, only=wanted, listed=request.sessions, content=request.content
    )

    async def encoded() -> AsyncGenerator[bytes, None]:
        async with aclosing(watched):
            try:
                async for happened in watched:
                    yield b"".join(map(_encoded, happened))
            except ManagerClosed:
                return

    return Stream(encoded(), EVENT_STREAM)


def _encoded(event: Event) -> bytes:
    """An event as it is sent; to many watchers the same bytes. A quiet one moves the cursor, and is a comment."""
    if event.encoded is None:
        if event.kind == "quiet":
            cursor = b"id: %s\n" % event.cursor.encode() if event.cursor else b""
            return HEARTBEAT + cursor + b"\n"
        event.encoded = encoded_event(event.kind, msgspec.json.encode(event.data), event.cursor or None)
    return event.encoded


OPERATIONS = (follow_session, follow_all)
