"""A message on its way to its answer, and the stream of what becomes of it: to its reader, and to followers.

Event streams, the command line and followers get the events of an answer as JSON documents. `api.events` describes the
same documents for the interface's description; a test compares the two.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import anyio

from miniclaw_sessions.agent.events import (
    AgentEvent,
    MessageAccepted,
    ReplyFinished,
    SessionCompacted,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStopped,
    TurnSuspended,
)
from miniclaw_sessions.agent.provider import ReasoningDelta, TextDelta
from miniclaw_sessions.channels.base import (
    Accepted,
    Answered,
    Channel,
    Incoming,
    Last,
    NotAnswered,
    Outgoing,
    Progress,
    Reason,
    comes_again,
)
from miniclaw_sessions.channels.commands import Question
from miniclaw_sessions.channels.delivered import Note
from miniclaw_sessions.core.events.listeners import TYPING, Topic, TurnEvent
from miniclaw_sessions.core.protocol.encoding import message_document
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Usage
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import named, snake_case
from miniclaw_sessions.log import get_logger

log = get_logger(__name__)

MAX_UNREAD_CHARACTERS = 2**20
"""How much text waits for a slow reader; text beyond it does not come piece by piece; only the end does."""

_OF_AN_EVENT = 256  # characters that anything but text counts for

Document = dict[str, Any]


class Delivery:
    """One message; iterate over it once for what becomes of it, the last of which is a `Last`.

    Unread pieces of text become one. A reader who goes away calls `abandon`; the answer then goes on
    for a while, and is saved.

    Attributes:
        incoming: what was said.
        channel: the channel that gets the events; None: the iterating reader.
        heard_at: when it came, by the event loop's time.
        session_id: whose chat it is; empty where it cannot be one.
        chats: the ids of the own sessions of all chats that talk to the session, once it is there.
        own: the chat's own session, once it is there.
        session: the session that answers it, once it is there.
        note: the note that the channel's network has taken its outcome, once the session is there; None: none is made.
        answering: cancelled when the answer has taken too long.
        answered_in: a block around its answering: what happens there is seen as a part of what handed it over.
        sending: cancelled when the channel has taken too long to send what became of it.
        is_stopped: whether it was stopped before its turn began.
        question: what the person was asked when he said it, as soon as that is known.
        standing: what he is asked until this is answered, and its channel has sent the answer; None before and after.
        unseen: the names of the files in it that the model is not shown, as soon as that is known.
    """

    def __init__(self, incoming: Incoming, channel: Channel | None = None) -> None:
        self.incoming = incoming
        self.channel = channel
        self.heard_at = anyio.current_time()
        self.session_id = ""
        self.chats: Collection[str] = ()
        self.answering = anyio.CancelScope()
        self.answered_in: AbstractContextManager[None] = nullcontext()
        self.sending = anyio.CancelScope()
        self.own: Session | None = None
        self.session: Session | None = None
        self.note: Note | None = None
        self.is_stopped = False
        self.question: Question | None = None
        self.standing: Question | None = None
        self.unseen: Sequence[str] = ()
        self._unread: deque[Outgoing] = deque()
        self._unread_characters = 0
        self._last: Last | None = None
        self._is_accepted = False
        self._is_abandoned = False
        self._is_behind = False
        self._news = anyio.Event()

    def __repr__(self) -> str:
        return f"<Delivery in {self.session_id}, {len(self._unread)} events unread>"

    @property
    def channel_name(self) -> str:
        """In which channel's sessions the chat is kept."""
        return self.incoming.channel or ("" if self.channel is None else self.channel.name)

    @property
    def is_over(self) -> bool:
        """Whether it is known what became of it."""
        return self._last is not None

    # --- for its reader ----------------------------------------------------------------------------------------------

    def __aiter__(self) -> Delivery:
        return self

    async def __anext__(self) -> Outgoing:
        while not self._unread:
            if self._last is not None:
                raise StopAsyncIteration
            self._news = anyio.Event()
            await self._news.wait()
        first = self._unread.popleft()
        kind, text = _piece_in(first)
        texts = [text]
        while text and self._unread and _piece_in(self._unread[0])[0] is kind:
            texts.append(_piece_in(self._unread.popleft())[1])
        self._unread_characters -= sum(map(_weight, texts))
        return first if kind is None or len(texts) == 1 else Progress(self.incoming, kind("".join(texts)))

    def abandon(self, patience_s: float) -> None:
        """The reader is gone: the answer may take this many seconds, and is then cut off."""
        if self._last is None:
            self._is_abandoned = True
            self.cut_off(anyio.current_time() + patience_s, math.inf)
        self._unread.clear()
        self._unread_characters = 0

    # --- for the dispatcher ------------------------------------------------------------------------------------------

    def put(self, outgoing: Outgoing) -> None:
        """Give the reader an event; nothing is put behind a `Last`."""
        if isinstance(outgoing, Progress):
            if self._unread_characters > MAX_UNREAD_CHARACTERS:
                self._is_behind = True  # for good: what came later would be put together with what came before
            if self._is_abandoned or self._is_behind:
                return
        elif isinstance(outgoing, Last):
            self._last = outgoing
            if isinstance(outgoing, NotAnswered):
                self._log(outgoing)
        elif isinstance(outgoing, Accepted):
            self._is_accepted, self.unseen = True, outgoing.event.unseen
        self._unread_characters += _weight(_piece_in(outgoing)[1])
        self._unread.append(outgoing)
        self._news.set()

    def stop(self) -> bool:
        """Stop the answer; what was said by then is kept. Returns False if it has ended."""
        if self._last is not None:
            return False
        has_stopped = self.session is not None and self.session.stop_turn()
        if not (has_stopped and self._is_accepted):  # it was another one's turn, which this one waits for
            self.is_stopped = True  # the model was not asked yet
            self.answering.cancel()
        return True

    def cut_off(self, answer_at: float, send_at: float) -> None:
        """The answer may take until then, and sending it a little longer."""
        self.answering.deadline = min(self.answering.deadline, answer_at)
        self.sending.deadline = min(self.sending.deadline, send_at)

    def _log(self, last: NotAnswered) -> None:
        """Log a failure without a reader: a reader that still listens reports it itself."""
        facts = {"channel": self.channel_name, "session_id": self.session_id}
        if last.reason is Reason.CUT_OFF:
            log.warning("a turn was cut off", action="turn.cut_off", **facts)
        elif comes_again(last):  # which may be each second; the store's failure is logged already
            log.debug("a message waits to be delivered again", action="turn.failed", **facts)
        elif last.reason is Reason.FAILED and (self._is_abandoned or self.channel is not None):
            kind, detail = type(last.error).__name__, named(last.error)
            log.error("a message was not answered", action="turn.failed", error_type=kind, detail=detail, **facts)


def _piece_in(outgoing: Outgoing) -> tuple[type[TextDelta | ReasoningDelta] | None, str]:
    """Of what it is a piece, and its text; None and nothing where it is none."""
    match outgoing:
        case Progress(event=TextDelta(text=text) | ReasoningDelta(text=text) as event):
            return type(event), text
        case _:
            return None, ""


def _weight(text: str) -> int:
    return len(text) or _OF_AN_EVENT


# --- for followers, as documents -------------------------------------------------------------------------------------


class TurnPublisher:
    """Publishes one answer to those who follow its session, or watch all sessions.

    Args:
        turns: the topic that the events go to.
        key: the session's key.

    Attributes:
        key: it may be known later.
    """

    def __init__(self, turns: Topic[TurnEvent], key: SessionKey) -> None:
        self._turns = turns
        self.key = key
        self._has_begun = False

    def publish(self, event: AgentEvent) -> None:
        """Publish an event of the turn; its message is acknowledged before the first one."""
        if isinstance(event, MessageAccepted):
            self._has_begun = True
            self._publish(TYPING, {})
        self._publish(*event_document(event))

    def end(self, last: Last) -> None:
        """Publish how the answer ended, if it has begun."""
        if not self._has_begun:
            return
        if isinstance(last, Answered):
            self._publish(*event_document(last.event))
        elif isinstance(last, NotAnswered):
            failure = {"message": last.text, "type": snake_case(type(last.error).__name__)}
            self._publish("error", failure)

    def _publish(self, kind: str, data: Document) -> None:
        self._turns.publish(TurnEvent(self.key, kind, data))


def event_document(event: AgentEvent) -> tuple[str, Document]:  # noqa: C901, PLR0911 - one for each kind of event
    """An event's name and its data.

    The names: accepted, thinking, text, tool_started, tool_finished, usage, compacted; at the end suspended, stopped or
    done.
    """
    match event:
        case MessageAccepted(entry=entry):
            return "accepted", {"entry_id": entry.id}
        case ReasoningDelta(text=text):
            return "thinking", {"text": text}
        case TextDelta(text=text):
            return "text", {"text": text}
        case ToolStarted(call=call):
            return "tool_started", {"id": call.id, "name": call.name, "arguments": call.arguments}
        case ToolFinished(call=call):
            return "tool_finished", {"id": call.id, "name": call.name, "is_error": event.result.is_error}
        case ReplyFinished(message=message):
            return "usage", {"usage": _usage_document(message.usage or Usage()), "model": message.model}
        case SessionCompacted(outcome=outcome):
            return "compacted", {"status": outcome.status.value, "detail": outcome.detail}
        case TurnSuspended(pending=pending, usage=usage):
            calls = [one.waiting.document_of(one.call) for one in pending]
            return "suspended", {"pending": calls, "usage": _usage_document(usage)}
        case TurnStopped(message=message, usage=usage):
            return "stopped", {"message": message_document(message), "usage": _usage_document(usage)}
        case TurnFinished(message=message, usage=usage):
            return "done", {"message": message_document(message), "usage": _usage_document(usage)}


def _usage_document(usage: Usage) -> Document:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "total_tokens": usage.total,
        "cost": usage.cost,
    }
