"""OpenAI's Files: uploaded once, named by an id in what a model is asked, and deleted.

A file is a session of its own, in the channel `files`: it is encrypted, exported, counted, expires and is deleted as
every session is, and a token sees it that may see the session. Its bytes stand in one entry that no window holds, so
they are in memory only while they are asked for. What is asked with it keeps a copy: a file that is deleted stays
in the conversations that it was shown in.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta

from miniclaw_sessions.core.protocol.entries import OWN_METADATA, Custom
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.errors import InvalidKey, LeafMoved, SessionDeleted, SessionNotFound, SessionsError
from miniclaw_sessions.files.formats.attached import EVERY_KIND, UPLOADED, Attached, in_bytes, real_file, uploaded
from miniclaw_sessions.service.api.error_table import RequestError
from miniclaw_sessions.service.api.openai.conversations import is_repeated
from miniclaw_sessions.service.api.openai.form_data import Field, read_form
from miniclaw_sessions.service.api.openai.response_input import not_taken
from miniclaw_sessions.service.api.openai.shapes import bad_request, key_taken, not_found
from miniclaw_sessions.service.api.operation import Content, Upload, checked_idempotency_key, operation
from miniclaw_sessions.service.api.sessions import DeleteSession, delete_session
from miniclaw_sessions.service.api.shapes import Reply

if TYPE_CHECKING:
    from miniclaw_sessions.core.session import Session
    from miniclaw_sessions.service.api.context import Context

CHANNEL = "files"
ALL = "/v1/files"
ONE = f"{ALL}/{{file_id}}"

_ABOUT = OWN_METADATA + "file"
_PREFIX = "file-"
_ROOM = 65_536  # for what is around a file in its entry, and in a message that it is shown with
_DAY_S = 86_400
_UNKNOWN = "application/octet-stream"
_FOR_JOBS = {"batch": "nothing here runs batches", "fine-tune": "nothing here trains models"}
_MAX_PAGE = 1_000


class File(Reply, kw_only=True):
    """An uploaded file.

    Attributes:
        bytes: how many it has.
        expires_at: when it goes, unless it is used or kept before; null: it does not expire.
    """

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class FileList(Reply, kw_only=True):
    """A page of files; `last_id` is the `after` of the one that follows, where there are more."""

    object: Literal["list"] = "list"
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(Reply, kw_only=True):
    """What is left of a file."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class OneFile(msgspec.Struct, frozen=True):
    """A request about one file."""

    file_id: str


class About(msgspec.Struct, frozen=True):
    """What a file's session says of it."""

    filename: str
    purpose: str
    bytes: int


# --- uploading -------------------------------------------------------------------------------------------------------


class CreateFile(msgspec.Struct, frozen=True):
    """A form with `file` and `purpose`; with a key, a repeated request makes no second one."""

    body: Upload
    idempotency_key: str | None = None


@operation("POST", ALL, CreateFile, File, openai=True, patient=True, accepts=("multipart/form-data",))
async def create_file(context: Context, request: CreateFile) -> File:
    """Keep a file, and reply when it is acknowledged. It has at most what a message may have."""
    key = checked_idempotency_key(request.idempotency_key)
    file, purpose = await _file_of(context, request.body)
    digits = secrets.token_hex(16)
    if key is not None:  # always the same for a client's key
        digits = hashlib.sha256(f"{context.caller.name}\0{key}".encode()).hexdigest()[:32]
    session = await context.find_or_create(SessionKey.of(CHANNEL, digits).session_id)
    if not session.last_sequence:  # or else the key is known
        about = About(file.name, purpose, file.size)
        unit = session.unit()
        try:
            unit.add_own_metadata({_ABOUT: msgspec.to_builtins(about)})
            unit.add_metadata(title=file.name)
            unit.add(Custom, custom_type=UPLOADED, data=file.fields)
            await unit.save(if_sequence=0)
        except LeafMoved:  # a request with the same key was first
            pass
        except SessionsError:
            with suppress(LeafMoved):
                await context.manager.delete(session.session_id, if_sequence=0)  # a refused request makes nothing
            raise
    await session.saved()
    try:
        return _reply(context, session, _about(session))
    except msgspec.ValidationError:
        raise key_taken("a session that is no file") from None


async def _file_of(context: Context, body: Upload) -> tuple[Attached, str]:
    most = (context.whole.settings.max_message_bytes - _ROOM) * 3 // 4
    received = bytearray()
    async for piece in body:
        received += piece
        if len(received) > most + _ROOM:
            raise _too_large(most)
    form = read_form(bytes(received))
    file, purpose = form.get("file"), form.get("purpose", Field("", b"")).text
    for name in form:
        if name.partition("[")[0] == "expires_after":
            raise not_taken("expires_after", "a file expires as its session does (sessions.retention.files)")
    if file is None or not file.file_name:
        raise bad_request("Missing required parameter: 'file'.", "file", "missing_required_parameter")
    if not 0 < len(purpose) <= 64:  # noqa: PLR2004 - as the other names that clients give
        raise bad_request("Missing required parameter: 'purpose'.", "purpose", "missing_required_parameter")
    if (why := _FOR_JOBS.get(purpose)) is not None:
        raise not_taken("purpose", why)
    if not file.data:
        raise bad_request("Invalid 'file': it is empty.", "file")
    if len(file.data) > most:
        raise _too_large(most)
    whole = base64.b64encode(file.data).decode()
    return real_file(file.file_name, file.data) or Attached(file.file_name[:120], _UNKNOWN, whole), purpose


def _too_large(most: int) -> RequestError:
    return RequestError(413, "body_too_large", f"A file may have at most {most} bytes here.", param="file")


# --- showing ---------------------------------------------------------------------------------------------------------


class ListFiles(msgspec.Struct, frozen=True):
    """A page of files, those used last first.

    Attributes:
        purpose: only those that were uploaded for it.
        limit: at most this many.
        after: behind the file of this id.
        order: the newest first; another one is refused.
    """

    purpose: str | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 100
    after: str | None = None
    order: Literal["asc", "desc"] = "desc"


@operation("GET", ALL, ListFiles, FileList, openai=True)
async def list_files(context: Context, request: ListFiles) -> FileList:
    """The files that were uploaded, without their bytes."""
    from miniclaw_sessions.core.stores.positions import ListPosition  # noqa: PLC0415 - a client lists nothing

    if request.order != "desc":
        raise not_taken("order", "the files are listed in one order, those used last first")
    place, found, limit = None, list[File](), min(request.limit, _MAX_PAGE)
    if request.after is not None:
        behind, _ = await _find(context, request.after)
        place = ListPosition(behind.last_accessed, behind.session_id)
    while len(found) <= limit and (page := await context.manager.list(channel=CHANNEL, limit=_MAX_PAGE, after=place)):
        place = ListPosition(page[-1].last_accessed, page[-1].session_id)
        for row in page:
            with suppress(RequestError):  # it is gone, or no file
                session, about = await _find(context, _id_of(row.session_id))
                if request.purpose in (None, about.purpose):
                    found.append(_reply(context, session, about))
            if len(found) > limit:
                break
    data = found[:limit]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return FileList(data=data, first_id=first, last_id=last, has_more=len(found) > limit)


@operation("GET", ONE, OneFile, File, openai=True)
async def retrieve_file(context: Context, request: OneFile) -> File:
    """What is known of a file."""
    return _reply(context, *await _find(context, request.file_id))


@operation("GET", f"{ONE}/content", OneFile, Content, media_types=(_UNKNOWN, *sorted(EVERY_KIND)), openai=True)
async def retrieve_file_content(context: Context, request: OneFile) -> Content:
    """The bytes of a file, as they were uploaded."""
    file = await uploaded_file(context, request.file_id)
    data = None if file is None else in_bytes(file)
    if file is None or data is None:
        raise not_found("File", request.file_id[:300])
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='', errors='replace')}",
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    return Content.tagged(data, file.media_type if file.media_type in EVERY_KIND else _UNKNOWN, **headers)


class DeleteFile(OneFile, frozen=True):
    """Which file, and how often the client has asked already."""

    retry_count: str | None = None


@operation("DELETE", ONE, DeleteFile, FileDeleted, openai=True)
async def delete_file(context: Context, request: DeleteFile) -> FileDeleted:
    """Forget a file. Conversations in which it was shown keep their copy of it."""
    try:
        session, _ = await _find(context, request.file_id)
        await delete_session.handler(context, DeleteSession(session.session_id))
    except (RequestError, SessionNotFound, SessionDeleted):
        if not is_repeated(request.retry_count):
            raise not_found("File", request.file_id[:300]) from None
    return FileDeleted(id=request.file_id)


async def uploaded_file(context: Context, file_id: str) -> Attached | None:
    """A file with its bytes; None: the caller has none of this id."""
    try:
        session, _ = await _find(context, file_id)
    except RequestError:
        return None
    async for entry in session.tree.read_entries():
        if isinstance(entry, Custom) and (file := uploaded(entry.custom_type, entry.data)) is not None:
            return file
    return None


async def _find(context: Context, file_id: str) -> tuple[Session, About]:
    digits = file_id.removeprefix(_PREFIX)
    try:
        session = await context.find(SessionKey.of(CHANNEL, digits).session_id)
        return session, _about(session)
    except (SessionNotFound, SessionDeleted, InvalidKey, msgspec.ValidationError):
        raise not_found("File", file_id[:300]) from None


def _about(session: Session) -> About:
    return msgspec.convert(session.metadata.get(_ABOUT), About)


def _id_of(session_id: str) -> str:
    return _PREFIX + session_id.removeprefix(f"{CHANNEL}_")


def _reply(context: Context, session: Session, about: About) -> File:
    settings = context.whole.settings
    own = settings.retention.get(CHANNEL)
    days = settings.ttl_days if own is None or own.ttl_days is None else own.ttl_days
    used = int(session.last_accessed.timestamp())
    return File(
        id=_id_of(session.session_id),
        bytes=about.bytes,
        created_at=int(session.created_at.timestamp()),
        expires_at=used + int(days * _DAY_S) if days else None,
        filename=about.filename,
        purpose=about.purpose,
    )


OPERATIONS = (create_file, list_files, retrieve_file, retrieve_file_content, delete_file)
