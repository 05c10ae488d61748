"""An operation: name, method and path, the shapes of request and reply, and a handler.

The fields of a request are found by their names: those in the path's braces, `body`, and those of `HEADERS`; every
other field is a query parameter. A field of type `Upload` takes the body as it comes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_type_hints

import msgspec
import orjson

from miniclaw_sessions.service.api.context import Scope
from miniclaw_sessions.service.api.error_table import invalid
from miniclaw_sessions.service.api.wrong_field import wrong_field

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context

IDEMPOTENCY_KEY = "idempotency_key"
IF_MATCH = "if_match"
LAST_EVENT_ID = "last_event_id"
HEADERS = {
    IDEMPOTENCY_KEY: "Idempotency-Key",
    IF_MATCH: "If-Match",
    LAST_EVENT_ID: "Last-Event-ID",
    "retry_count": "x-stainless-retry-count",
    "client_chat": "X-Conversation-Id",
    "client_task": "X-Conversation-Task",
    "open_webui_chat": "X-OpenWebUI-Chat-Id",
}
"""The fields of requests that are headers, and what these are called."""

FILLED_IN = frozenset({"client_chat", "client_task", "open_webui_chat"})
"""Those that programs make of a template: an empty one is as if it was left out."""

MAX_IDEMPOTENCY_KEY_LENGTH = 255
BODY = "body"
PIECE_BYTES = 65_536
"""About how much of a long reply is made at a time."""

SMALL_REPLY_BYTES = 262_144
"""What any number of readers may hold at a time."""

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R")
T = TypeVar("T")
Upload = AsyncIterator[bytes]
"""A request's body of any size, piece by piece."""


@dataclass(frozen=True)
class Stream:
    """A reply that is made while it is sent; closing `chunks` ends what makes it.

    Attributes:
        chunks: its bytes, an async generator.
        media_type: what they are.
        file_name: what a browser calls the file that it saves.
    """

    chunks: AsyncGenerator[bytes, None]
    media_type: str = "application/json"
    file_name: str | None = None


@dataclass(frozen=True)
class Content:
    """A reply that is no JSON document of ours, and is there at once: a page, an image.

    Attributes:
        body: its bytes.
        media_type: what they are.
        etag: changes with the bytes; a client that has it already gets a 304.
        headers: further ones.
    """

    body: bytes
    media_type: str
    etag: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def tagged(cls, body: bytes, media_type: str, **headers: str) -> Content:
        """Content with a tag that is made of it."""
        return cls(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"', headers)


@dataclass(frozen=True)
class Operation(Generic[Q, R]):
    """One operation, as a row of the table.

    Attributes:
        name: what it is called in the client, in metrics and in the API's description.
        method, path: where it is over HTTP.
        request: the shape of the request.
        reply: the shape of the reply; `Stream` where it is no JSON document.
        handler: does it.
        scope: what is needed to ask for it.
        status: the HTTP status of the reply, or a function of the reply.
        statuses: where that is a function: every status, and what it says.
        media_types: what the reply may be, where it is no JSON document.
        events: where it is a stream of events: their names, and the shape of each one's data.
        errors: which errors it ends with, by their `type`, besides those that everything of its kind may end with
            (`openapi.errors_of`).
        reads: whether it only reads sessions, so that it needs no lock on the workspace.
        repeats: whether it is sent again, without a key, where its reply was lost: twice does what once does.
        accepts: the media types of an upload; by default a file as it is.
        patient: whether it takes as long as there is much to do, or a model is slow: it ends when its client goes away.
            Everything else has the server's time for a request.
        openai: whether it is one of OpenAI's (`api/openai`): parameters that it does not know are let through, and
            errors have the form and the status that the service gives them.
    """

    name: str
    method: str
    path: str
    request: type[Q]
    reply: Any
    handler: Callable[[Context, Q], Awaitable[R | Stream]] = field(repr=False)
    scope: Scope
    status: int | Callable[[Any], int] = 200
    statuses: Mapping[int, str] = field(default_factory=dict)
    media_types: tuple[str, ...] = ("application/json",)
    events: Mapping[str, type[msgspec.Struct]] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    accepts: tuple[str, ...] = ()
    reads: bool = False
    repeats: bool = False
    patient: bool = False
    openai: bool = False

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The types of the request's fields, by name."""
        return get_type_hints(self.request, include_extras=True)

    @cached_property
    def in_path(self) -> frozenset[str]:
        """The fields that stand in the path."""
        return frozenset(re.findall(r"{(\w+)}", self.path))

    @cached_property
    def in_query(self) -> tuple[str, ...]:
        """The fields that are query parameters."""
        return tuple(name for name in self.fields if name not in {*self.in_path, BODY, *HEADERS})

    @cached_property
    def in_headers(self) -> tuple[str, ...]:
        """The fields that are headers."""
        return tuple(name for name in self.fields if name in HEADERS)

    @cached_property
    def required(self) -> tuple[str, ...]:
        """The query parameters that cannot be left out."""
        known = {field.name: field.required for field in msgspec.structs.fields(self.request)}
        return tuple(name for name in self.in_query if known[name])

    @property
    def room(self) -> str:
        """The module that it is in: what belongs together."""
        return self.handler.__module__.rpartition(".")[2]

    @cached_property
    def uploads(self) -> bool:
        """Whether the body is taken piece by piece."""
        return self.fields.get(BODY) == Upload

    def status_of(self, reply: Any) -> int:
        """The HTTP status of a reply."""
        return self.status(reply) if callable(self.status) else self.status

    @property
    def about(self) -> str:
        """What it does, in one paragraph."""
        return (self.handler.__doc__ or "").strip()


async def in_one_piece(operation: Operation[Any, R], reply: Any) -> R:
    """What a handler has replied, put together where it is made in pieces."""
    if not isinstance(reply, Stream):
        return cast("R", reply)
    encoded = bytearray()
    async with aclosing(reply.chunks) as chunks:
        async for chunk in chunks:
            encoded += chunk
    decoded: R = msgspec.json.decode(encoded, type=operation.reply)
    return decoded


def operation(  # noqa: PLR0913 - one argument per column of the table
    method: str,
    path: str,
    request: type[Q],
    reply: type[R],
    *,
    status: int | Callable[[Any], int] = 200,
    scope: Scope | None = None,
    statuses: Mapping[int, str] | None = None,
    media_types: tuple[str, ...] = ("application/json",),
    events: Mapping[str, type[msgspec.Struct]] | None = None,
    errors: tuple[str, ...] = (),
    accepts: tuple[str, ...] = (),
    reads: bool | None = None,
    repeats: bool = False,
    patient: bool = False,
    openai: bool = False,
) -> Callable[[Callable[[Context, Q], Awaitable[R | Stream]]], Operation[Q, R]]:
    """Make an operation of a handler, which gives it its name.

    What is asked with GET only reads, and needs the scope `read`, unless it is said; everything else needs `write`.
    """
    only_reads = method == "GET" if reads is None else reads
    needed: Scope = scope or ("read" if method == "GET" else "write")

    def made(handler: Callable[[Context, Q], Awaitable[R | Stream]]) -> Operation[Q, R]:
        name = handler.__name__
        return Operation(
            name,
            method,
            path,
            request,
            reply,
            handler,
            needed,
            status=status,
            statuses=statuses or {},
            media_types=media_types,
            events=events or {},
            errors=errors,
            accepts=accepts,
            reads=only_reads,
            repeats=repeats or method == "GET",
            patient=patient,
            openai=openai,
        )

    return made


def shaped(data: Any, kind: type[T], *, strict: bool = True, name: str | None = None) -> T:
    """Parsed JSON as one of the shapes.

    Args:
        data: what came.
        kind: what it should be.
        strict: whether a text is no number, as in JSON; in a query everything is text.
        name: what it is called, where it is a single value.

    Raises:
        RequestError: a field is missing, unknown or of a wrong type (422).
    """
    try:
        return msgspec.convert(data, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise invalid(*wrong_field(error, data, kind, name)) from None


def checked_idempotency_key(key: Any) -> str | None:
    """An idempotency key, or None.

    Raises:
        RequestError: it is not a text of 1 to 255 characters.
    """
    if key is None or (isinstance(key, str) and 0 < len(key) <= MAX_IDEMPOTENCY_KEY_LENGTH):
        return key
    sentence = f"an idempotency key is a text of 1 to {MAX_IDEMPOTENCY_KEY_LENGTH} characters"
    raise invalid(sentence, param="idempotency_key")


async def document_in_pieces(
    fields: dict[str, Any], name: str, items: Iterable[bytes], *, brackets: bytes = b"[]"
) -> AsyncGenerator[bytes, None]:
    """A JSON document with one long field, made while it is sent: all at once would not fit, or keep others waiting.

    Args:
        fields: the other fields; at least one.
        name: the long field's.
        items: its items as JSON; in an object, with their keys.
        brackets: `[]` or `{}`.
    """
    piece = bytearray(orjson.dumps(fields)[:-1] + b',"%s":' % name.encode() + brackets[:1])
    comma = b""
    for item in items:
        piece += comma + item
        comma = b","
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece + brackets[1:] + b"}")


def large_reply(
    context: Context, name: str, read: Callable[[], Awaitable[tuple[dict[str, Any], Iterable[bytes]]]]
) -> Stream:
    """A JSON document with a field that may hold a whole session: few of them are in memory at a time.

    A small one is sent even while all places are taken, perhaps by readers on slow lines.

    Args:
        context: says how many.
        name: the field's.
        read: gives the other fields, and the items of this one as JSON; called when there is room.
    """

    async def pieces() -> AsyncGenerator[bytes, None]:
        if not context.large_replies.value:
            async with context.readings:
                fields, items = await read()
                small = all_if_small(items)
            if small is not None:
                yield b"".join([piece async for piece in document_in_pieces(fields, name, small)])
                return
            del fields, items  # nothing is held while it waits
        async with context.large_replies:
            fields, items = await read()
            async for piece in document_in_pieces(fields, name, items):
                yield piece

    return Stream(pieces())


def all_if_small(items: Iterable[bytes]) -> list[bytes] | None:
    """The items if they are a small reply together; else None, and not all of them were made."""
    room = SMALL_REPLY_BYTES
    small: list[bytes] = []
    for item in items:
        small.append(item)
        room -= len(item)
        if room < 0:
            return None
    return small
