"""Chatting: a message in, the answer out, at once or as a stream of events; and stopping it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import anyio
import msgspec

from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.errors import InvalidMessage, TurnCutOff
from miniclaw_sessions.service.api.attaching import with_real_files
from miniclaw_sessions.service.api.error_table import ANSWERING, as_reply, invalid
from miniclaw_sessions.service.api.event_stream import EVENT_STREAM, HEARTBEAT, encoded_event, until_last
from miniclaw_sessions.service.api.events import (
    AcceptedEvent,
    ApprovalsReply,
    CompactedEvent,
    DoneEvent,
    ErrorEvent,
    ObeyedEvent,
    PendingCallRow,
    StoppedEvent,
    SuspendedEvent,
    TextEvent,
    ThinkingEvent,
    ToolFinishedEvent,
    ToolStartedEvent,
    UsageEvent,
)
from miniclaw_sessions.service.api.messages import checked_message
from miniclaw_sessions.service.api.operation import Stream, checked_idempotency_key, operation
from miniclaw_sessions.service.api.sessions import ONE, OneSession
from miniclaw_sessions.service.api.shapes import ChatEvent, ChatReply, ChatRequest, StoppedReply

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context

EVENTS: dict[str, type[msgspec.Struct]] = {
    "accepted": AcceptedEvent,
    "thinking": ThinkingEvent,
    "text": TextEvent,
    "tool_started": ToolStartedEvent,
    "tool_finished": ToolFinishedEvent,
    "usage": UsageEvent,
    "compacted": CompactedEvent,
    "done": DoneEvent,
    "stopped": StoppedEvent,
    "suspended": SuspendedEvent,
    "obeyed": ObeyedEvent,
    "error": ErrorEvent,
}
"""The events of a stream, in about this order; each of the last five ends it."""

_STATUS_WAIT_S = 1.0
_ENDS = ("done", "stopped", "suspended", "obeyed")


class Chat(msgspec.Struct, frozen=True):
    """What is said; a key in the body wins over the header's."""

    body: ChatRequest
    idempotency_key: str | None = None


@operation(
    "POST",
    "/v1/chat",
    Chat,
    ChatReply,
    status=lambda reply: 200 if reply.suspended is msgspec.UNSET else 202,
    statuses={200: "The answer, saved; or with `stream` its events.", 202: "It waits for an approval."},
    events=EVENTS,
    errors=("invalid_key", *ANSWERING),
    patient=True,
)
async def chat(context: Context, request: Chat) -> ChatReply | Stream:
    """Say something and wait for the answer, or with `stream` follow it as server-sent events.

    The turn is finished and saved even if the client goes away.
    """
    given = request.body.idempotency_key
    key = checked_idempotency_key(request.idempotency_key if given is None else given)
    author = request.body.author or context.caller.name
    body = await _with_uploaded(context, request.body)
    wanted = msgspec.structs.replace(body, idempotency_key=key, author=author)
    session_id = SessionKey.of(wanted.channel, wanted.chat_id).session_id
    context.note(session_id)
    if wanted.stream:
        return Stream(_event_stream(context, wanted), EVENT_STREAM)
    async with context.answering().ask(wanted) as events:
        async for event in events:
            data = event.data
            match event.kind:
                case "obeyed":
                    return ChatReply(told=data["told"], stopped=data["stopped"], session_id=session_id)
                case "suspended":
                    return ChatReply(suspended=data, session_id=session_id)
                case "stopped":
                    return ChatReply(reply=data["message"], usage=data["usage"], stopped=True, session_id=session_id)
                case "done":
                    return ChatReply(reply=data["message"], usage=data["usage"], session_id=session_id)
    raise TurnCutOff


async def _with_uploaded(context: Context, body: ChatRequest) -> ChatRequest:
    """The request with the uploaded files that its message names."""
    if not isinstance(body.message, dict):
        return body
    from miniclaw_sessions.service.api.openai.uploaded_files import with_uploaded  # noqa: PLC0415 - a client has these shapes

    (message,) = await with_uploaded(context, [body.message])
    return msgspec.structs.replace(body, message=message)


def user_message(request: ChatRequest) -> Message | None:
    """The message as a value; None where a turn is to go on.

    Raises:
        InvalidMessage: it is not a user's message, or not one that could be appended.
        RequestError: there is not one of a message, `resume` and `approvals`, but none or several; or a file in it
            is of no kind that models are shown.
    """
    asked_for = (request.message is not msgspec.UNSET) + request.resume + (request.approvals is not msgspec.UNSET)
    if asked_for != 1:
        sentence = "send a message, or resume, or approvals" if asked_for else "Object missing required field `message`"
        raise invalid(sentence, "message" if asked_for else None)
    if isinstance(request.message, msgspec.UnsetType):
        return None
    if isinstance(request.message, str):
        return Message.user(request.message)
    message = checked_message({"role": "user", **request.message})
    if not message.is_user:
        raise InvalidMessage("only a user's message can be answered; add others with POST .../messages")
    return with_real_files(message)


async def _event_stream(context: Context, wanted: ChatRequest) -> AsyncGenerator[bytes, None]:
    """The events as they happen; what fails at once is raised before the first, so that it becomes a status."""
    async with context.answering().ask(wanted) as events:
        first: list[ChatEvent] = []
        with anyio.move_on_after(_STATUS_WAIT_S):
            while not first or first[-1].kind == "accepted":
                first.append(await anext(events))
        yield b"".join(map(_encoded, first)) or HEARTBEAT
        if first and first[-1].kind in _ENDS:
            return
        try:
            async for event in until_last(events, lambda one: one.kind in _ENDS):
                yield HEARTBEAT if event is None else _encoded(event)
        except Exception as error:  # noqa: BLE001 - the status is sent; what is left is an event
            refused = as_reply(error)
            yield _encoded(ChatEvent("error", {"message": refused.message, "type": refused.kind, **refused.details}))


def _encoded(event: ChatEvent) -> bytes:
    return encoded_event(event.kind, msgspec.json.encode(event.data))


@operation("POST", f"{ONE}/stop", OneSession, StoppedReply)
async def stop_turn(context: Context, request: OneSession) -> StoppedReply:
    """Stop the turn under way in a session, of any client; what was said so far is kept."""
    session = await context.find(request.session_id)
    stopped = session.stop_turn() if context.chats is None else context.chats.stop(session)
    return StoppedReply(stopped=stopped)


@operation("GET", f"{ONE}/approvals", OneSession, ApprovalsReply)
async def list_approvals(context: Context, request: OneSession) -> ApprovalsReply:
    """The tool calls of a session that wait for a person's yes or no; `chat` takes it in `approvals`."""
    from miniclaw_sessions.core.manager.summaries import calls_for_approval  # noqa: PLC0415 - a client has these shapes, and no store

    session = await context.find(request.session_id)
    calls = await calls_for_approval(session)
    return ApprovalsReply(pending=[PendingCallRow(**waiting.document_of(call)) for call, waiting in calls])


OPERATIONS = (chat, stop_turn, list_approvals)
