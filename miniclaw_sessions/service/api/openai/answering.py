"""How a request for an answer goes: checked, placed, answered whole or as a stream, in the form of one of the APIs.

The model's answer is a response in each of them (`stored_responses`). A form says how it looks on the line.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from miniclaw_sessions.errors import (
    AgentError,
    EntryNotFound,
    ModelOverloaded,
    ModelTimeout,
    ModelUnavailable,
    OptionRefused,
    SessionDeleted,
    SessionNotFound,
    TurnCutOff,
)
from miniclaw_sessions.service.api.error_table import RequestError, as_reply, as_request_error
from miniclaw_sessions.service.api.event_stream import EVENT_STREAM, HEARTBEAT, HEARTBEAT_S, until_last
from miniclaw_sessions.service.api.openai.response_input import not_taken
from miniclaw_sessions.service.api.openai.response_place import place_of_response
from miniclaw_sessions.service.api.openai.shapes import (
    Response,
    code_of_failure,
    in_openai_form,
    not_found,
)
from miniclaw_sessions.service.api.openai.stored_responses import (
    StoredResponse,
    document_of,
    find_response,
    response_id,
)
from miniclaw_sessions.service.api.operation import Stream

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context
    from miniclaw_sessions.service.api.openai.response_request import Place, ResponseEvent, Wanted

_STATUS_WAIT_S = HEARTBEAT_S
"""So long a stream may wait for the model's service, so that its refusal is a status; then it must show that it lives.
"""

_PASSING = (ModelOverloaded, ModelTimeout, ModelUnavailable)


class Writer(Protocol):
    """Makes the bytes of a stream; what its methods return is sent in the order of the calls."""

    def begun(self, response: Response) -> list[bytes]:
        """The response has begun."""
        ...

    def text(self, delta: str) -> list[bytes]:
        """A piece of the reply's text."""
        ...

    def reasoning(self, delta: str) -> list[bytes]:
        """A piece of what the model thinks."""
        ...

    def replied(self) -> list[bytes]:
        """The reply is complete; another one may follow."""
        ...

    def ended(self, response: Response) -> list[bytes]:
        """The response is over, and stored."""
        ...

    def error(self, code: str, message: str) -> list[bytes]:
        """The answer failed before the response began."""
        ...


@dataclass(frozen=True)
class Form:
    """How an API asks for an answer, and shows it.

    Attributes:
        document: the reply, made of the response that is stored.
        writer: what writes the stream of one request, given the id of the entry that the response begins with.
        parameter: the name that the API has for an option of the model's.
        gone: the error where the session that was to be gone on in was deleted meanwhile.
        in_its_words: an error with the API's own names for parameters.
    """

    document: Callable[[Response], Any]
    writer: Callable[[str], Writer]
    parameter: Callable[[str], str]
    gone: Callable[[Wanted], RequestError]
    in_its_words: Callable[[RequestError], RequestError] = lambda error: error

    def refusal(self, error: Exception, wanted: Wanted) -> Exception:
        """The error as the client gets it, marked so that the package does not repeat a request that was accepted."""
        if isinstance(error, OptionRefused):
            return not_taken(self.parameter(error.option), str(error))
        if isinstance(error, SessionNotFound | SessionDeleted | EntryNotFound):  # deleted while the request waited
            return self.gone(wanted)
        if isinstance(error, RequestError):
            return self.in_its_words(error)
        if not isinstance(error, AgentError):
            return error
        is_paid = error.usage is not None and error.usage.total > 0
        if isinstance(error, _PASSING) and not is_paid:  # the package may ask again by its own rules
            return error
        refused = as_reply(error)  # which logs it
        headers = {**refused.headers, "x-should-retry": "false"}
        return RequestError(refused.status, refused.kind, refused.message, headers=headers, details=refused.details)


async def answer(context: Context, wanted: Wanted, form: Form) -> Any:
    """Have the model answer, or find the answer that the same request had before.

    Returns:
        The form's document, or a `Stream` where that is wanted.
    """
    try:
        context.responding().check(wanted)
        place = await place_of_response(context, wanted)
    except (OptionRefused, RequestError) as error:
        raise form.refusal(error, wanted) from error
    context.note(place.key.session_id)
    if place.made is not None:
        made = place.made
        return Stream(_repeated(made, form), EVENT_STREAM) if wanted.stream else form.document(document_of(made))
    if wanted.stream:
        return Stream(_streamed(context, wanted, place, form), EVENT_STREAM)
    last: ResponseEvent | None = None
    try:
        async with context.responding().respond(wanted, place) as events:
            async for event in events:
                last = event
    except Exception as error:
        raise form.refusal(error, wanted) from error
    if last is None or last.kind != "ended":
        raise TurnCutOff
    return form.document(await _document(last))


async def _document(event: ResponseEvent) -> Response:
    """The response when it is over, as it is stored."""
    found = await find_response(event.session, event.mark.id)
    if found is None:
        raise not_found("Response", response_id(event.session.session_id, event.mark.id))
    return document_of(found)


# --- streaming -------------------------------------------------------------------------------------------------------


async def _repeated(made: StoredResponse, form: Form) -> AsyncGenerator[bytes, None]:
    """The events of a response that was made before, at once."""
    writer = form.writer(made.mark.id)
    begun = StoredResponse(made.session_id, made.mark)
    yield b"".join([*writer.begun(document_of(begun, is_running=True)), *writer.ended(document_of(made))])


async def _streamed(context: Context, wanted: Wanted, place: Place, form: Form) -> AsyncGenerator[bytes, None]:
    """The events as they happen; what fails before the first is raised, so that it becomes a status."""
    newest: ResponseEvent | None = None
    writer: Writer | None = None
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
                writer = writer or form.writer(event.mark.id)
                if written := await _written(writer, event):
                    yield b"".join(written)
    except Exception as error:
        if not is_sent:
            raise form.refusal(error, wanted) from error
        refused = in_openai_form(as_reply(form.refusal(error, wanted)))
        writer = writer or form.writer("")
        found = None if newest is None else await find_response(newest.session, newest.mark.id)
        if found is None:
            yield b"".join(writer.error(refused.kind, refused.message))
            return
        found.error = found.error or failure_of(error)
        yield b"".join(writer.ended(document_of(found)))


async def _written(writer: Writer, event: ResponseEvent) -> list[bytes]:
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
