"""Responses: a model's answers, kept in the tree of a session, so that one can be gone on from wherever it was given.

A response without `conversation` begins a session of channel `resp`, and the one that names it as the previous one goes
on behind it, in the same session: where that has gone on already, there are two branches. A response in a conversation
is the next turn of that session, whoever else speaks there. Who goes on from such a response without the conversation
gets a session of his own with a copy of that branch, because a conversation has one place where it goes on.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Annotated, Literal

import anyio
import msgspec
from msgspec import UNSET, Meta, UnsetType

from miniclaw_sessions.api.chat import HEARTBEAT_S
from miniclaw_sessions.api.error_table import MODELS_FAULT, RETRY_AFTER_S, RequestError, as_reply, as_request_error
from miniclaw_sessions.api.openai.conversations import find_conversation
from miniclaw_sessions.api.openai.errors import bad_request, in_openai_form, not_found
from miniclaw_sessions.api.openai.items import items_of
from miniclaw_sessions.api.openai.response_events import EventWriter
from miniclaw_sessions.api.openai.response_request import (
    Wanted,
    check_calls,
    place_of,
    read_request,
    unsupported,
)
from miniclaw_sessions.api.openai.response_shapes import CreateResponse, Response, ResponseDeleted
from miniclaw_sessions.api.openai.shapes import MAX_PAGE, ItemList
from miniclaw_sessions.api.openai.stored_responses import (
    DELETED,
    StoredResponse,
    deleted_in,
    document_of,
    find_response,
    response_id,
    responses_in,
    session_and_entry,
)
from miniclaw_sessions.api.operation import HEARTBEAT, Stream, operation
from miniclaw_sessions.errors import InvalidKey, OptionRefused, SessionDeleted, SessionNotFound, TurnCutOff
from miniclaw_sessions.protocol.entries import METADATA, SUSPENDED, Custom
from miniclaw_sessions.protocol.keys import SessionKey
from miniclaw_sessions.session import Session

if TYPE_CHECKING:
    from miniclaw_sessions.api.context import Context, ResponseEvent

CHANNEL = "resp"
"""The channel of sessions that hold responses and belong to no conversation."""

ONE = "/v1/responses/{response_id}"
_STATUS_WAIT_S = 1.0


class Create(msgspec.Struct, frozen=True):
    """What is asked."""

    body: CreateResponse


class OneResponse(msgspec.Struct, frozen=True):
    """A response, by its id."""

    response_id: str
    stream: bool | None = None
    starting_after: int | None = None


class InputItems(msgspec.Struct, frozen=True):
    """A page of a response's input."""

    response_id: str
    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 20
    order: Literal["asc", "desc"] = "desc"


class _Place(msgspec.Struct, frozen=True):
    """Where a response is made.

    Attributes:
        key: the session.
        session: the session itself, where it belongs to no manager; it is gone with the answer.
        at: the entry that it follows; unset: the session's leaf.
    """

    key: SessionKey
    session: Session | None = None
    at: str | UnsetType = UNSET


# --- creating --------------------------------------------------------------------------------------------------------


@operation("POST", "/v1/responses", Create, Response, patient=True, openai=True)
async def create_response(context: Context, request: Create) -> Response | Stream:
    """Have the model answer, in a conversation, behind another response, or at the beginning of a new session.

    With `stream`, as the typed events of the `openai` package. The turn is finished and saved even if the client goes
    away, unless `store` is false: then nothing is kept.
    """
    wanted = read_request(request.body)
    place = await _place_of(context, wanted)
    context.note(place.key.session_id)
    if wanted.stream:
        return Stream(_told(context, wanted, place), "text/event-stream")
    last: ResponseEvent | None = None
    try:
        async with context.responding().respond(wanted, place.key, session=place.session, at=place.at) as events:
            async for event in events:
                last = event
    except Exception as error:
        raise _refusal(error) from error
    if last is None or last.kind != "ended":
        raise TurnCutOff
    return await _document(last)


async def _place_of(context: Context, wanted: Wanted) -> _Place:
    """Where it is made, and that what it follows is there.

    Raises:
        RequestError: there is no such conversation (404), or no such response (400).
        NotPermitted: the caller may not make a session of responses.
    """
    new = SessionKey.of(CHANNEL, secrets.token_hex(24))
    source, found = None, None
    at: str | UnsetType = UNSET
    if wanted.conversation is not None:
        source = await find_conversation(context, wanted.conversation)
    elif wanted.previous is not None:
        source, found = await _previous(context, wanted.previous)
        at = found.end
    if source is None:
        check_calls((), wanted.messages, ())
        if wanted.stores:
            context.permit(new)
        return _Place(new, None if wanted.stores else Session.new(new.session_id))
    if not wanted.stores:
        return _Place(new, await _in_memory(source, new, at))
    if found is not None and source.key.channel != CHANNEL:
        context.permit(new)
        fork = await source.fork(new, leaf_id=found.end)
        return _Place(fork.key)
    return _Place(source.key, at=at)


async def _previous(context: Context, previous: str) -> tuple[Session, StoredResponse]:
    try:
        session, found = await _found(context, previous)
    except RequestError as error:
        if error.status != _NOT_FOUND:
            raise
        sentence = f"Previous response with id '{previous[:300]}' not found."
        raise bad_request(sentence, "previous_response_id", "previous_response_not_found") from None
    if not found.is_over and await _is_running(context, session, found):
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        sentence = "The previous response is still being made; wait for it, or cancel it."
        raise RequestError(409, "response_in_progress", sentence, param="previous_response_id", headers=headers)
    return session, found


_NOT_FOUND = 404


async def _in_memory(source: Session, key: SessionKey, at: str | UnsetType) -> Session:
    """A session that nobody keeps, with what a window shows of a branch."""
    messages, leaf = source.messages(), None
    if not isinstance(at, UnsetType):
        leaf = at
        target = await source.tree.get_entry(at)
        messages = (await source.journal.reader.window_at(target)).messages()
    suspension = await source.tree.get_suspension(leaf)
    session = Session.new(key.session_id, window=max(2, len(messages) + 1_000))
    session.extend(messages)
    if suspension is not None:
        await session.tree.append_custom_entry(SUSPENDED, suspension.data)
    return session


def _refusal(error: Exception) -> Exception:
    """The error as the client is told it; the package asks again after most, which would say everything twice."""
    if isinstance(error, OptionRefused):
        return unsupported(place_of(error.option), str(error))
    refused = as_request_error(error)
    if refused is None or refused.status != MODELS_FAULT:
        return error
    as_reply(error)  # logs it
    headers = {**refused.headers, "x-should-retry": "false"}
    return RequestError(refused.status, refused.kind, refused.message, headers=headers, details=refused.details)


async def _document(event: ResponseEvent) -> Response:
    """The response when it is over, as it is stored."""
    found = await find_response(event.session, event.mark.id)
    if found is None:
        raise not_found("Response", response_id(event.session.session_id, event.mark.id))
    return document_of(found)


# --- streaming -------------------------------------------------------------------------------------------------------


async def _told(context: Context, wanted: Wanted, place: _Place) -> AsyncGenerator[bytes, None]:
    """The events as they happen; what fails before the first is raised, so that it becomes a status."""
    told: ResponseEvent | None = None
    writer: EventWriter | None = None
    is_sent = False
    try:
        async with context.responding().respond(wanted, place.key, session=place.session, at=place.at) as events:
            with anyio.move_on_after(_STATUS_WAIT_S):
                told = await anext(events)
            if told is None:
                is_sent = True
                yield HEARTBEAT
            async for event in _with_heartbeats(events, told):
                if event is None:
                    yield HEARTBEAT
                    continue
                told, is_sent = event, True
                writer = writer or EventWriter(event.mark.id)
                yield b"".join(await _written(writer, event))
    except Exception as error:
        if not is_sent:
            raise _refusal(error) from error
        yield b"".join(await _failed(writer or EventWriter(""), told, error))


async def _with_heartbeats(
    events: AsyncIterator[ResponseEvent], first: ResponseEvent | None
) -> AsyncIterator[ResponseEvent | None]:
    if first is not None:
        yield first
    while first is None or first.kind != "ended":
        event: ResponseEvent | None = None
        with anyio.move_on_after(HEARTBEAT_S):
            try:
                event = await anext(events)
            except StopAsyncIteration:
                raise TurnCutOff from None
        yield event
        first = event


async def _written(writer: EventWriter, event: ResponseEvent) -> list[bytes]:
    match event.kind:
        case "begun":
            begun = StoredResponse(event.session.session_id, event.mark)
            return writer.begun(document_of(begun, is_running=True))
        case "text":
            return writer.text(event.text)
        case "replied":
            return writer.replied()
        case _:
            return writer.ended(await _document(event))


async def _failed(writer: EventWriter, event: ResponseEvent | None, error: Exception) -> list[bytes]:
    """What is told of a failure when the status is sent already."""
    refused = in_openai_form(as_reply(error))
    found = None if event is None else await find_response(event.session, event.mark.id)
    if found is None:
        return writer.error(refused.kind, refused.message)
    found.error = found.error or failure_of(error)
    return writer.ended(document_of(found))


def failure_of(error: Exception) -> dict[str, str]:
    """What a response says of why it failed."""
    refused = as_request_error(error)
    message = "the answer failed; the daemon's log has the details" if refused is None else refused.message
    return {"code": "server_error", "message": message}


# --- what is kept ----------------------------------------------------------------------------------------------------


@operation("GET", ONE, OneResponse, Response, openai=True)
async def retrieve_response(context: Context, request: OneResponse) -> Response:
    """A response that was kept, as it is now. Its events are told once, to whoever made it."""
    for name, value in (("stream", request.stream), ("starting_after", request.starting_after)):
        if value:
            raise unsupported(name, "events are told once, to whoever asked for the response; retrieve it without")
    session, found = await _found(context, request.response_id)
    return document_of(found, is_running=await _is_running(context, session, found))


@operation("DELETE", ONE, OneResponse, ResponseDeleted, openai=True)
async def delete_response(context: Context, request: OneResponse) -> ResponseDeleted:
    """Forget a response. What was said stays while its conversation does, or another response of its session.

    The session goes with the last of them, if it belongs to no conversation.
    """
    session, found = await _found(context, request.response_id)
    left = [entry_id for entry_id in await responses_in(session) if entry_id != found.mark.id]
    if session.key.channel == CHANNEL and not left:
        await context.manager.delete(session.session_id)
    else:
        unit = session.unit()
        unit.add(Custom, custom_type=METADATA, data={DELETED: [*deleted_in(session), found.mark.id]})
        await unit.save()
    return ResponseDeleted(id=found.id)


@operation("POST", f"{ONE}/cancel", OneResponse, Response, patient=True, openai=True)
async def cancel_response(context: Context, request: OneResponse) -> Response:
    """Stop a response that is being made; what was said by then is kept. One that is over is given as it is."""
    session, found = await _found(context, request.response_id)
    if context.responding().stop(found.mark.id):
        async with session.journal.between_turns():
            pass
        session, found = await _found(context, request.response_id)
    elif await _is_running(context, session, found):
        sentence = "Another gateway makes this response; cancel it there."
        raise RequestError(409, "turn_taken", sentence)
    return document_of(found)


@operation("GET", f"{ONE}/input_items", InputItems, ItemList, openai=True)
async def list_input_items(context: Context, request: InputItems) -> ItemList:
    """The items that a response's request brought; those of what it follows belong to the responses before it."""
    _, found = await _found(context, request.response_id)
    items = [item for entry in found.inputs for item in items_of(entry)]
    if request.order == "desc":
        items.reverse()
    if request.after is not None:
        place = next((place for place, item in enumerate(items) if item["id"] == request.after), None)
        if place is None:
            raise not_found("Item", request.after)
        items = items[place + 1 :]
    return ItemList.holding(items[: request.limit], has_more=len(items) > request.limit)


async def _found(context: Context, given: str) -> tuple[Session, StoredResponse]:
    """A response and its session.

    Raises:
        RequestError: there is none with this id, or it was deleted (404).
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


async def _is_running(context: Context, session: Session, found: StoredResponse) -> bool:
    """Whether somebody is at work on it, in this process or in another one."""
    if found.is_over:
        return False
    if context.responses is not None and context.responses.is_running(found.mark.id):
        return True
    store = session.journal.home.store
    stored = await store.head(session.session_id) if store.shared else None
    return stored is not None and stored.turn is not None and not stored.turn.is_over


OPERATIONS = (create_response, retrieve_response, delete_response, cancel_response, list_input_items)
