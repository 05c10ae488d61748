"""Responses: a model's answers, kept in the tree of a session, so that one can be gone on from wherever it was given.

A response without `conversation` begins a session of channel `resp`, and the one that names it as the previous one goes
on behind it, in the same session: where that has gone on already, there are two branches. A response in a conversation
is the next turn of that session, also if others speak there. Who goes on from such a response without the conversation
gets a session of his own with a copy of that branch, because a conversation has one place where it goes on.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

import anyio
import msgspec
from msgspec import UNSET, Meta, UnsetType

from miniclaw_sessions.core.protocol.entries import SUSPENDED, Custom
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import (
    AgentError,
    EntryNotFound,
    InvalidKey,
    LeafMoved,
    ModelOverloaded,
    ModelTimeout,
    ModelUnavailable,
    OptionRefused,
    SessionDeleted,
    SessionNotFound,
    TurnCutOff,
)
from miniclaw_sessions.service.api.error_table import ANSWERING, RETRY_AFTER_S, RequestError, as_reply, as_request_error
from miniclaw_sessions.service.api.event_stream import EVENT_STREAM, HEARTBEAT, HEARTBEAT_S, until_last
from miniclaw_sessions.service.api.openai.conversations import REMEMBERED, find_conversation, is_repeated
from miniclaw_sessions.service.api.openai.items import items_of
from miniclaw_sessions.service.api.openai.response_events import EventWriter
from miniclaw_sessions.service.api.openai.response_input import not_taken
from miniclaw_sessions.service.api.openai.response_request import Place, Wanted, check_calls, place_of, read_request
from miniclaw_sessions.service.api.openai.shapes import (
    ATTEMPTS,
    EVENTS,
    MAX_PAGE,
    CreateResponse,
    ItemList,
    Response,
    ResponseDeleted,
    bad_request,
    code_of_failure,
    contended,
    in_openai_form,
    not_found,
)
from miniclaw_sessions.service.api.openai.stored_responses import (
    DELETED,
    StoredResponse,
    deleted_in,
    document_of,
    find_response,
    is_mark,
    response_id,
    responses_in,
    session_and_entry,
)
from miniclaw_sessions.service.api.operation import Stream, checked_idempotency_key, operation

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context
    from miniclaw_sessions.service.api.openai.response_request import ResponseEvent


ONE = "/v1/responses/{response_id}"
_STATUS_WAIT_S = HEARTBEAT_S
"""So long a stream may wait for the model's service, so that its refusal is a status; then it must show that it lives.
"""

CHANNEL = "resp"
"""The channel of sessions that hold responses and belong to no conversation."""

_NOT_FOUND = 404
_LOOKED_AT = 512  # entries at the end of a conversation among which a repeated request is looked for
_LATER = {"Retry-After": str(RETRY_AFTER_S)}


class Create(msgspec.Struct, frozen=True):
    """What is asked."""

    body: CreateResponse
    idempotency_key: str | None = None
    retry_count: str | None = None


class OneResponse(msgspec.Struct, frozen=True):
    """A response, by its id.

    Attributes:
        stream: refused where it is true: events are streamed once.
        starting_after: refused, as `stream`.
    """

    response_id: str
    stream: bool | None = None
    starting_after: int | None = None


class InputItems(msgspec.Struct, frozen=True):
    """A page of a response's input.

    Attributes:
        after: behind the item of this id.
        limit: at most this many.
        order: the newest first, or the oldest.
    """

    response_id: str
    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 20
    order: Literal["asc", "desc"] = "desc"


# --- creating --------------------------------------------------------------------------------------------------------


@operation(
    "POST",
    "/v1/responses",
    Create,
    Response,
    media_types=("application/json", EVENT_STREAM),
    events=EVENTS,
    errors=(*ANSWERING, "response_in_progress"),
    patient=True,
    openai=True,
)
async def create_response(context: Context, request: Create) -> Response | Stream:
    """Have the model answer, in a conversation, behind another response, or at the beginning of a new session.

    With `stream`, as the typed events of the `openai` package. The turn is finished and saved even if the client goes
    away, unless `store` is false: then nothing is kept.
    """
    key = checked_idempotency_key(request.idempotency_key)
    name = None if key is None else f"{context.caller.name} {key}"
    wanted = read_request(request.body, name, is_repeated=is_repeated(request.retry_count))
    try:
        context.responding().check(wanted)
    except OptionRefused as error:
        raise _refusal(error, wanted) from error
    place = await place_of_response(context, wanted)
    context.note(place.key.session_id)
    if place.made is not None:
        return Stream(_repeated_events(place.made), EVENT_STREAM) if wanted.stream else document_of(place.made)
    if wanted.stream:
        return Stream(_event_stream(context, wanted, place), EVENT_STREAM)
    last: ResponseEvent | None = None
    try:
        async with context.responding().respond(wanted, place) as events:
            async for event in events:
                last = event
    except Exception as error:
        raise _refusal(error, wanted) from error
    if last is None or last.kind != "ended":
        raise TurnCutOff
    return await _document(last)


def _refusal(error: Exception, wanted: Wanted) -> Exception:
    """The error as the client gets it, marked so that the package does not repeat a request that was accepted."""
    if isinstance(error, OptionRefused):
        return not_taken(place_of(error.option), str(error))
    if isinstance(error, SessionNotFound | SessionDeleted | EntryNotFound):  # deleted while the request waited
        return gone(wanted.previous) if wanted.previous else not_found("Conversation", wanted.conversation or "")
    if not isinstance(error, AgentError):
        return error
    is_paid = error.usage is not None and error.usage.total > 0
    if isinstance(error, _PASSING) and not is_paid:  # the package may ask again by its own rules
        return error
    refused = as_reply(error)  # which logs it
    headers = {**refused.headers, "x-should-retry": "false"}
    return RequestError(refused.status, refused.kind, refused.message, headers=headers, details=refused.details)


_PASSING = (ModelOverloaded, ModelTimeout, ModelUnavailable)


async def _document(event: ResponseEvent) -> Response:
    """The response when it is over, as it is stored."""
    found = await find_response(event.session, event.mark.id)
    if found is None:
        raise not_found("Response", response_id(event.session.session_id, event.mark.id))
    return document_of(found)


# --- streaming -------------------------------------------------------------------------------------------------------


async def _repeated_events(made: StoredResponse) -> AsyncGenerator[bytes, None]:
    """The events of a response that was made before, at once."""
    writer = EventWriter(made.mark.id)
    begun = StoredResponse(made.session_id, made.mark)
    yield b"".join([*writer.begun(document_of(begun, is_running=True)), *writer.ended(document_of(made))])


async def _event_stream(context: Context, wanted: Wanted, place: Place) -> AsyncGenerator[bytes, None]:
    """The events as they happen; what fails before the first is raised, so that it becomes a status."""
    newest: ResponseEvent | None = None
    writer: EventWriter | None = None
    is_sent = False
    try:
        async with context.responding().respond(wanted, place) as events:
            first: list[ResponseEvent] = []
            with anyio.move_on_after(_STATUS_WAIT_S):
                while not first or first[-1].kind == "begun":  # a service that refuses does so before anything else
                    first.append(await anext(events))
            if not first:
                is_sent = True
                yield HEARTBEAT
            async for event in until_last(events, lambda one: one.kind == "ended", first):
                is_sent = True
                if event is None:
                    yield HEARTBEAT
                    continue
                newest = event
                writer = writer or EventWriter(event.mark.id)
                if written := await _written(writer, event):
                    yield b"".join(written)
    except Exception as error:
        if not is_sent:
            raise _refusal(error, wanted) from error
        refused = in_openai_form(as_reply(_refusal(error, wanted)))
        writer = writer or EventWriter("")
        found = None if newest is None else await find_response(newest.session, newest.mark.id)
        if found is None:
            yield b"".join(writer.error(refused.kind, refused.message))
            return
        found.error = found.error or failure_of(error)
        yield b"".join(writer.ended(document_of(found)))


async def _written(writer: EventWriter, event: ResponseEvent) -> list[bytes]:
    match event.kind:
        case "begun":
            begun = StoredResponse(event.session.session_id, event.mark)
            return writer.begun(document_of(begun, is_running=True))
        case "answering":
            return []
        case "text":
            return writer.text(event.text)
        case "reasoning":
            return writer.reasoning(event.text)
        case "replied":
            return writer.replied()
        case _:
            return writer.ended(await _document(event))


def failure_of(error: Exception) -> dict[str, str]:
    """What a response says of why it failed."""
    if (refused := as_request_error(error)) is None:
        return {"code": "server_error", "message": "the answer failed; the daemon's log has the details"}
    return {"code": code_of_failure(refused), "message": refused.message}


# --- what is kept ----------------------------------------------------------------------------------------------------


@operation("GET", ONE, OneResponse, Response, openai=True)
async def retrieve_response(context: Context, request: OneResponse) -> Response:
    """A response that was kept, as it is now. Its events are streamed once, to the request that made it."""
    for name, value in (("stream", request.stream), ("starting_after", request.starting_after)):
        if value:
            raise not_taken(name, "events are streamed once, to the request that made it; retrieve it without")
    found, is_running = await settled(context, *await found_response(context, request.response_id))
    return document_of(found, is_running=is_running)


@operation("DELETE", ONE, OneResponse, ResponseDeleted, openai=True)
async def delete_response(context: Context, request: OneResponse) -> ResponseDeleted:
    """Forget a response. What was said stays while its conversation does, or another response of its session.

    The session goes with the last of them, if it belongs to no conversation.
    """
    session, found = await found_response(context, request.response_id)
    for _ in range(ATTEMPTS):
        sequence = session.last_sequence  # what comes behind it, and is acknowledged, does not go with this response
        left = [entry_id for entry_id in await responses_in(session) if entry_id != found.mark.id]
        with suppress(LeafMoved):
            if session.key.channel == CHANNEL and not left:
                if not await context.manager.delete(session.session_id, if_sequence=sequence):
                    raise not_found("Response", request.response_id)
                await context.manager.purge(session.session_id)
            else:
                unit = session.unit()
                unit.add_own_metadata({DELETED: [*deleted_in(session), found.mark.id]})
                await unit.save(if_sequence=sequence)
            return ResponseDeleted(id=found.id)
        session, found = await found_response(context, request.response_id)
    raise contended()


@operation("POST", f"{ONE}/cancel", OneResponse, Response, errors=("turn_taken",), patient=True, openai=True)
async def cancel_response(context: Context, request: OneResponse) -> Response:
    """Stop a response that is being made; what was said by then is kept. One that is over is given as it is."""
    session, found = await found_response(context, request.response_id)
    if context.responding().stop(found.mark.id):
        async with session.journal.between_turns():
            pass
        session, found = await found_response(context, request.response_id)
    else:
        found, is_elsewhere = await settled(context, session, found)
        if is_elsewhere:
            sentence = "Another gateway makes this response; cancel it there."
            raise RequestError(409, "turn_taken", sentence)
    return document_of(found)


@operation("GET", f"{ONE}/input_items", InputItems, ItemList, openai=True)
async def list_input_items(context: Context, request: InputItems) -> ItemList:
    """The items that a response's request brought; those of what it follows belong to the responses before it."""
    _, found = await found_response(context, request.response_id)
    items = [item for entry in found.inputs for item in items_of(entry)]
    if request.order == "desc":
        items.reverse()
    if request.after is not None:
        place = next((place for place, item in enumerate(items) if item["id"] == request.after), None)
        if place is None:
            raise not_found("Item", request.after)
        items = items[place + 1 :]
    return ItemList.holding(items[: request.limit], has_more=len(items) > request.limit)


# --- where a response is made ----------------------------------------------------------------------------------------


async def place_of_response(context: Context, wanted: Wanted) -> Place:
    """Where a response is made, and that what it follows is there.

    Args:
        context: whose sessions they are.
        wanted: what is asked for.

    Raises:
        RequestError: there is no such conversation (404), or no such response (400); or the request was made before,
            and its answer is on the way (409).
        NotPermitted: the caller may not make a session of responses.
    """
    source, found = None, None
    if wanted.conversation is not None:
        source = await find_conversation(context, wanted.conversation)
    elif wanted.previous is not None:
        source, found = await _previous(context, wanted.previous)
    else:
        check_calls((), wanted.messages, ())
    # A session of its own is another one each time, unless the client names its request.
    key = SessionKey.of(CHANNEL, secrets.token_hex(24) if wanted.key is None else wanted.digest[:48])
    if not wanted.stores:
        return Place(key, await _in_memory(key, source, found))
    if source is not None and (found is None or source.key.channel == CHANNEL):
        at, since = (UNSET, source.last_sequence - _LOOKED_AT) if found is None else (found.end, found.mark.sequence)
        return await _place_in(context, source, wanted, at, since=max(0, since))
    if wanted.key is not None:
        try:
            begun = await context.find(key.session_id)
        except SessionNotFound:
            pass
        else:
            return await _place_in(context, begun, wanted, UNSET, since=0)
    context.caller.permit(key)
    if source is not None and found is not None:
        await source.fork(key, leaf_id=found.end)
        return Place(key)
    return Place(key, is_new=True)


async def _place_in(context: Context, session: Session, wanted: Wanted, at: str | UnsetType, *, since: int) -> Place:
    """A place in a session that is there; where the request was made before, what became of it."""
    before = await _asked_before(session, wanted, since=since) if wanted.is_done_once else None
    if before is None:
        return Place(session.key, at=at)
    before, is_running = await settled(context, session, before)
    if is_running:
        raise under_way()
    is_deleted = before.mark.id in deleted_in(session)
    if before.is_over and before.error is None and not is_deleted:
        return Place(session.key, made=before)
    if wanted.conversation is None:  # all branches are alike
        return Place(session.key, at=before.mark.parent_id)
    return Place(session.key, again=None if is_deleted else before.mark)


def under_way() -> RequestError:
    """The error for a request that is being answered already."""
    return RequestError(409, "response_in_progress", "This request is being answered already.", headers=_LATER)


async def _asked_before(session: Session, wanted: Wanted, *, since: int) -> StoredResponse | None:
    """The response that the same request has begun.

    With a key it is known by that. Without, a conversation is looked at only for what was said last, and just now:
    people say the same thing again.
    """
    newest: Custom | None = None
    async for entry in session.tree.read_entries(after=since):
        if is_mark(entry):
            is_same = entry.data == wanted.mark
            if is_same or (wanted.key is None and wanted.conversation is not None):
                newest = entry if is_same else None
    found = None if newest is None else await find_response(session, newest.id)
    if found is not None and wanted.key is None and wanted.conversation is not None:
        ended_at = max((entry.timestamp for entry in found.outputs), default=found.mark.timestamp)
        is_last = session.leaf_id in (found.end, found.mark.parent_id)
        return found if is_last and session.journal.now() - ended_at <= REMEMBERED else None
    return found


def gone(previous: str) -> RequestError:
    """The error for a previous response that is not there."""
    sentence = f"Previous response with id '{previous[:300]}' not found."
    return bad_request(sentence, "previous_response_id", "previous_response_not_found")


async def _previous(context: Context, previous: str) -> tuple[Session, StoredResponse]:
    try:
        session, found = await found_response(context, previous)
    except RequestError as error:
        if error.status != _NOT_FOUND:
            raise
        raise gone(previous) from None
    found, is_running = await settled(context, session, found)
    if is_running:
        sentence = "The previous response is still being made; wait for it, or cancel it."
        raise RequestError(409, "response_in_progress", sentence, param="previous_response_id", headers=_LATER)
    return session, found


async def _in_memory(key: SessionKey, source: Session | None, found: StoredResponse | None) -> Session:
    """A session in memory only, with the window of what the response follows."""
    if source is None:
        return Session.new(key.session_id)
    leaf_id, messages = None, source.messages()
    if found is not None:
        leaf_id = found.end
        messages = (await source.journal.reader.window_at(await source.tree.get_entry(leaf_id))).messages()
    waiting = await source.tree.get_waiting(leaf_id)
    session = Session.new(key.session_id, window=len(messages) + 1_000)
    session.extend(messages)
    if waiting:
        await session.tree.append_custom_entry(SUSPENDED, {"calls": [{"id": call_id} for call_id in waiting]})
    return session


async def found_response(context: Context, given: str) -> tuple[Session, StoredResponse]:
    """A response and its session.

    Raises:
        RequestError: no response has this id, or it was deleted (404).
    """
    try:
        session_id, entry_id = session_and_entry(given) or ("", "")
        session = await context.find(session_id)
        found = await find_response(session, entry_id)
    except (SessionNotFound, SessionDeleted, InvalidKey):
        raise not_found("Response", given[:300]) from None
    if found is None or found.mark.id in deleted_in(session):
        raise not_found("Response", given[:300])
    return session, found


async def settled(context: Context, session: Session, found: StoredResponse) -> tuple[StoredResponse, bool]:
    """A response, and whether it is being made, in this process or in another one; if not, as it has ended.

    It may have ended while it was read, so where nothing makes it any more it is read once more.
    """
    if found.is_over:
        return found, False
    is_here = context.responses is not None and context.responses.is_running(found.mark.id)
    if is_here or await session.journal.home.ownership(session.journal).is_held():
        return found, True
    return await find_response(session, found.mark.id) or found, False


OPERATIONS = (create_response, retrieve_response, delete_response, cancel_response, list_input_items)
