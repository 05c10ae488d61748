"""The data of a stream's events, by kind, for the interface's description; other modules make the documents."""

from __future__ import annotations

from datetime import datetime

import msgspec

from miniclaw_sessions.service.api.shapes import EncodedEntry, MessageDocument, Reply, UsageReply


class AcceptedEvent(Reply, kw_only=True):
    """The message is acknowledged; it is this entry."""

    entry_id: str


class ThinkingEvent(Reply, kw_only=True):
    """A further piece of what the model shows of its thinking."""

    text: str


class TextEvent(Reply, kw_only=True):
    """A further piece of the answer's text."""

    text: str


class ProseEvent(Reply, kw_only=True):
    """A further piece of the answer's text as HTML, whose blocks are those of the saved message.

    Attributes:
        closed: blocks that are complete: they take the place of what was open.
        open: what is open behind them, and takes the same place; null: what was open goes on, and nothing has closed.
        text: further text for the end of what is open; in the last `pre` of it, where there is one.
    """

    closed: str
    open: str | None
    text: str


class ToolStartedEvent(Reply, kw_only=True):
    """The model calls a tool; `arguments` is its own JSON text."""

    id: str
    name: str
    arguments: str


class ToolFinishedEvent(Reply, kw_only=True):
    """A tool call has its result."""

    id: str
    name: str
    is_error: bool


class UsageEvent(Reply, kw_only=True):
    """What one reply of the model cost."""

    usage: UsageReply
    model: str | None


class CompactedEvent(Reply, kw_only=True):
    """The older part of the conversation was summarized, or could not be: `done`, `skipped`, `failed`, `aborted`."""

    status: str
    detail: str


class DoneEvent(Reply, kw_only=True):
    """The end: the whole answer, acknowledged, and what the turn cost."""

    message: MessageDocument
    usage: UsageReply


class StoppedEvent(DoneEvent, kw_only=True):
    """The end: a person stopped the answer, and this much of it is kept."""


class PendingCallRow(Reply, kw_only=True):
    """A tool call that waits for an answer from outside.

    Attributes:
        id: what `approvals` names it by; it is good for this question alone.
        call_id: the model's id of the call.
        name: the tool that would run.
        arguments: what it would be called with: JSON, as text.
        needs_approval: it waits for a person's yes or no, which `chat` takes in `approvals`.
    """

    id: str
    call_id: str
    name: str
    arguments: str
    reason: str
    needs_approval: bool


class ApprovalsReply(Reply, kw_only=True):
    """The calls that wait for a person's yes or no."""

    pending: list[PendingCallRow]


class SuspendedEvent(Reply, kw_only=True):
    """The end for now: tool calls wait, of which those that need one for a person's yes or no (`approvals`)."""

    pending: list[PendingCallRow]
    usage: UsageReply


class ObeyedEvent(Reply, kw_only=True):
    """The message was a command.

    `told` is the reply to the person; `stopped`: `/stop` stopped something; `failed`: it could not be done.
    """

    told: str
    stopped: bool
    failed: bool = False


class ErrorEvent(Reply, kw_only=True):
    """The end: what went wrong after the status was sent, as in an error document."""

    message: str
    type: str


class GoneEvent(Reply, kw_only=True):
    """The end: the session was deleted."""


class EntryEvent(Reply, kw_only=True):
    """An entry as it is stored (schema `Entry`)."""

    id: str
    type: str
    timestamp: datetime
    sequence: int


class TypingEvent(Reply, kw_only=True):
    """An answer begins."""


class ReadyEvent(Reply, kw_only=True):
    """The first: whether everything since the place asked for follows, and which sessions are answered just now."""

    resumed: bool
    turns: list[str]


class SessionEvent(Reply, kw_only=True):
    """A session that there is, and where it ends."""

    session_id: str
    incarnation: str
    last_sequence: int


class CreatedEvent(Reply, kw_only=True):
    """A new session."""

    session_id: str
    channel: str
    chat_id: str
    incarnation: str


class NewEntryRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A new entry; `entry` is all of it, where `content` was asked for."""

    id: str
    sequence: int
    type: str
    role: str | None = None
    entry: EncodedEntry | None = None


class EntriesEvent(Reply, kw_only=True):
    """New entries of a session, acknowledged; the newest one's sequence."""

    session_id: str
    sequence: int
    entries: list[NewEntryRow]


class ChangedEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Title, model or other metadata of a session are other ones."""

    session_id: str
    title: str | None = None


class OfSessionEvent(Reply, kw_only=True):
    """It happened to this session."""

    session_id: str


class TurnEndedEvent(Reply, kw_only=True):
    """An answer has ended: `done`, `stopped`, `suspended` or `error`."""

    session_id: str
    outcome: str
