"""Session files: in from every format, out in every format, both as streams of any size.

Nothing is held: a file is read as fast as it can be stored, and written as fast as the client takes it. An
import that ends before it is complete, for any reason, leaves nothing of it behind.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from miniclaw_sessions.core.protocol.encoding import encode_entry
from miniclaw_sessions.core.protocol.json_values import parse_json
from miniclaw_sessions.core.protocol.keys import MAX_SESSION_ID_LENGTH, SessionKey
from miniclaw_sessions.errors import ImportRefused, InvalidMessage
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.api.operation import PIECE_BYTES, Stream, Upload, operation
from miniclaw_sessions.service.api.service import Nothing
from miniclaw_sessions.service.api.sessions import ONE, OneSession, session_reply
from miniclaw_sessions.service.api.shapes import Reply

if TYPE_CHECKING:
    from miniclaw_sessions.core.session import Session
    from miniclaw_sessions.files.formats.codec import Format
    from miniclaw_sessions.service.api.context import Context

DEFAULT_FORMAT = "jsonl"
JSON = "json"
"""For programs such as jq; it is only written."""

UNNAMED = "upload"
"""What an import is called that names neither itself nor its session."""

_MAX_FILE_NAME = 120
_MAX_PLACE = 8_192  # it stands in the address, percent-encoded, and a head may have 64 KiB
_TYPES = {
    ".jsonl": "application/x-ndjson",
    ".json": "application/json",
    ".md": "text/markdown; charset=utf-8",
    ".html": "text/html; charset=utf-8",
}
Name = Annotated[str, Meta(min_length=1, max_length=255)]


class FormatRow(Reply, kw_only=True):
    """One format of session files; `read` and `write` say whether it can be imported and exported."""

    name: str
    about: str
    suffix: str
    read: bool
    write: bool


class FormatsReply(Reply, kw_only=True):
    """Every format that there is."""

    formats: list[FormatRow]


class FindingRow(Reply, kw_only=True):
    """A piece of a file that was not as it should be; `outcome` says what became of it."""

    line: int
    outcome: str
    text: str


class ImportReply(Reply, kw_only=True):
    """What became of an imported file; what was set aside is counted and reported, not repeated."""

    session_id: str
    format: str
    title: str | None
    entries: int
    messages: int
    repaired: int
    set_aside: int
    findings: list[FindingRow]
    bytes_read: int
    dry_run: bool


class DamageReply(Reply, kw_only=True):
    """What of a session cannot be read, one sentence each: every export lacks it."""

    problems: list[str]


@operation("GET", "/v1/formats", Nothing, FormatsReply)
async def list_formats(context: Context, request: Nothing) -> FormatsReply:
    """Every format by its name, and whether it is read and written."""
    del context, request
    return FormatsReply(formats=format_rows())


def format_rows() -> list[FormatRow]:
    """The formats that this program knows; `json`, which is not a format of others, comes last."""
    from miniclaw_sessions.files.formats.registry import all_formats  # noqa: PLC0415 - loads every codec

    about = "one document: the session and its entries as stored, for programs such as jq; written by `export` only"
    return [
        *(
            FormatRow(name=one.name, about=one.about, suffix=one.suffix, read=one.is_read, write=one.is_written)
            for one in all_formats()
        ),
        FormatRow(name=JSON, about=about, suffix=".json", read=False, write=True),
    ]


class ImportSession(msgspec.Struct, frozen=True):
    """A file.

    Attributes:
        name: what it is called, without its suffix; a session that it does not name is called so.
        session_id: the new session's id; by default what the file says.
        format: the name of its format; by default it is recognized.
        dry_run: only read it, and report.
        update: a session that was made of this file before gets what it lacks of it; otherwise that is refused.
        place: a JSON object that is kept with the session (`metadata["session.followed"]`): where the file lies, and
            how far it was read, for a program that keeps up with it. A session that was kept up with, and was deleted,
            is not made again with it; one that has expired comes back if `modified` (nanoseconds since 1970) is later.
    """

    body: Upload
    name: Name = UNNAMED
    session_id: Annotated[str, Meta(min_length=1, max_length=MAX_SESSION_ID_LENGTH)] | None = None
    format: Name | None = None
    dry_run: bool = False
    update: bool = False
    place: Annotated[str, Meta(max_length=_MAX_PLACE)] | None = None


@operation(
    "POST",
    "/v1/import",
    ImportSession,
    ImportReply,
    status=lambda reply: 200 if reply.dry_run else 201,
    statuses={201: "A new session, or what one got with `update`.", 200: "A dry run: what it would become."},
    errors=(
        "import_refused",
        "session_exists",
        "session_not_found",
        "session_expired",
        "too_many_imports",
        "invalid_key",
    ),
    patient=True,
)
async def import_session(context: Context, request: ImportSession) -> ImportReply:
    """A new session from a file, or a report of what it would become."""
    from miniclaw_sessions.files.transfer.importing import import_stream  # noqa: PLC0415 - loads every format

    report = await import_stream(
        context.whole,
        request.body,
        name=request.name,
        key=None if request.session_id is None else SessionKey.parse(request.session_id),
        form=None if request.format is None else _format(request.format),
        dry_run=request.dry_run,
        update=request.update,
        place=None if request.place is None else _place(request.place),
        check=context.caller.permit,
    )
    context.note(report.session_id)
    findings = [FindingRow(line=one.line, outcome=one.outcome.value, text=one.text) for one in report.findings]
    return ImportReply.of(report, findings=findings)


def _place(text: str) -> dict[str, Any]:
    try:
        place = parse_json(text.encode("utf-8", "surrogatepass"))
    except InvalidMessage as error:
        raise RequestError(422, "invalid_request", f"place is no JSON object: {error}", param="place") from None
    if not isinstance(place, dict):
        raise RequestError(422, "invalid_request", "place is no JSON object", param="place")
    return place


class ExportSession(msgspec.Struct, frozen=True):
    """Which session, in which format.

    Attributes:
        format: its name; `/v1/formats` has all of them.
    """

    session_id: str
    format: Name = DEFAULT_FORMAT


@operation(
    "GET",
    f"{ONE}/export",
    ExportSession,
    Stream,
    media_types=("application/x-ndjson", "application/json", "text/markdown", "text/html", "application/octet-stream"),
    errors=("import_refused",),
    patient=True,
)
async def export_session(context: Context, request: ExportSession) -> Stream:
    """A session as a file; in the format `json`, one document of the session and its entries as they are stored."""
    session = await context.find(request.session_id)
    if request.format == JSON:
        return Stream(_as_json(context, session), _TYPES[".json"], file_name=file_name(session.session_id, ".json"))
    from miniclaw_sessions.files.transfer import exporting  # noqa: PLC0415 - loads every format

    form = _format_to_write(request.format)
    name = file_name(session.session_id, form.suffix)
    media_type = _TYPES.get(form.suffix, "application/octet-stream")

    async def written() -> AsyncGenerator[bytes, None]:
        async for chunk in exporting.export_session(context.manager, session.session_id, form):
            for start in range(0, len(chunk), PIECE_BYTES):  # a format without a tree is written in one
                yield chunk[start : start + PIECE_BYTES]

    return Stream(written(), media_type, file_name=name)


async def _as_json(context: Context, session: Session) -> AsyncGenerator[bytes, None]:
    chunk = bytearray(b'{"session":' + msgspec.json.encode(session_reply(session)) + b',"entries":[')
    separator = b""
    from miniclaw_sessions.core.manager.reading import read_transcript  # noqa: PLC0415 - a client has no manager

    async for entry in read_transcript(context.manager, session.session_id):
        chunk += separator + encode_entry(entry)
        separator = b","
        if len(chunk) >= PIECE_BYTES:
            yield bytes(chunk)
            chunk.clear()
    yield bytes(chunk) + b"]}\n"


def file_name(session_id: str, suffix: str) -> str:
    """What an exported file is called: safe in a header and on any disk, for any session id."""
    plain = re.sub(r"[^A-Za-z0-9@+=,._-]", "_", session_id)[:_MAX_FILE_NAME].lstrip(".-")
    return f"{plain or 'session'}{suffix}"


def _format_to_write(name: str) -> Format:
    from miniclaw_sessions.files.formats.registry import FAILED, all_formats, format_named  # noqa: PLC0415 - heavy

    with suppress(ImportRefused):
        if (form := format_named(name)).is_written:
            return form
    names = ", ".join([*(form.name for form in all_formats() if form.is_written), JSON])
    why = FAILED.get(name, f"nothing is written as {name!r}; there are {names}")
    raise RequestError(422, "import_refused", why, param="format")


def _format(name: str) -> Format:
    from miniclaw_sessions.files.formats.registry import format_named  # noqa: PLC0415 - heavy

    try:
        return format_named(name)
    except ImportRefused as error:
        raise RequestError(422, "import_refused", str(error), param="format") from None


@operation("GET", f"{ONE}/damage", OneSession, DamageReply, patient=True)
async def show_damage(context: Context, request: OneSession) -> DamageReply:
    """What of a session cannot be read, and is left out of every export."""
    problems: list[str] = []
    async for _ in (await context.find(request.session_id)).tree.read_entries(problems):
        pass
    return DamageReply(problems=context.without_paths(problems))


OPERATIONS = (list_formats, import_session, export_session, show_damage)
