"""`/v1/responses`: a model's answers, kept in the tree of a session, each found again by its id."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from miniclaw_sessions.errors import LeafMoved
from miniclaw_sessions.service.api.error_table import ANSWERING, RequestError
from miniclaw_sessions.service.api.event_stream import EVENT_STREAM
from miniclaw_sessions.service.api.openai.answering import Form, answer
from miniclaw_sessions.service.api.openai.conversations import is_repeated
from miniclaw_sessions.service.api.openai.items import items_of
from miniclaw_sessions.service.api.openai.response_events import EventWriter
from miniclaw_sessions.service.api.openai.response_input import not_taken
from miniclaw_sessions.service.api.openai.response_place import CHANNEL, found_response, gone, settled
from miniclaw_sessions.service.api.openai.response_request import Wanted, place_of, read_request
from miniclaw_sessions.service.api.openai.shapes import (
    ATTEMPTS,
    EVENTS,
    MAX_PAGE,
    CreateResponse,
    ItemList,
    Response,
    ResponseDeleted,
    contended,
    not_found,
)
from miniclaw_sessions.service.api.openai.stored_responses import DELETED, deleted_in, document_of, responses_in
from miniclaw_sessions.service.api.openai.uploaded_files import with_own_files
from miniclaw_sessions.service.api.operation import Stream, checked_idempotency_key, operation

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context


ONE = "/v1/responses/{response_id}"


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


def _gone(wanted: Wanted) -> RequestError:
    return gone(wanted.previous) if wanted.previous else not_found("Conversation", wanted.conversation or "")


_FORM = Form(lambda response: response, EventWriter, place_of, _gone)


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
    body = await with_own_files(context, request.body)
    wanted = read_request(body, name, is_repeated=is_repeated(request.retry_count))
    reply: Response | Stream = await answer(context, wanted, _FORM)
    return reply


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


OPERATIONS = (create_response, retrieve_response, delete_response, cancel_response, list_input_items)
