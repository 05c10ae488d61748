"""Sessions: list them, find one, make, change, clear, fork and delete it."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any
from weakref import WeakSet

import anyio
import msgspec
from msgspec import Meta, UnsetType

from miniclaw_sessions.core.protocol.entries import LeafMove
from miniclaw_sessions.core.protocol.keys import SessionKey, is_session_id
from miniclaw_sessions.errors import AmbiguousName, LeafMoved, SessionExists, SessionNotFound
from miniclaw_sessions.service.api.error_table import RETRY_AFTER_S, RequestError, invalid
from miniclaw_sessions.service.api.operation import Stream, document_in_pieces, operation
from miniclaw_sessions.service.api.request_keys import checked_key
from miniclaw_sessions.service.api.shapes import (
    CreateSession,
    DeletedReply,
    Fork,
    OpenedReply,
    ResolvedReply,
    SessionReply,
    SessionsReply,
    ShownReply,
    UpdateSession,
    UsageReply,
)
from miniclaw_sessions.statistics import SessionSummary

if TYPE_CHECKING:
    from collections.abc import Callable

    from miniclaw_sessions.core.session import Session
    from miniclaw_sessions.core.session.journal import Journal
    from miniclaw_sessions.core.stores.positions import IdPart, ListPosition
    from miniclaw_sessions.service.api.context import Context

MAX_PAGE = 1000
"""Sessions in one reply."""

MAX_NAME = 1024
CANDIDATES = 10
"""At most this many sessions are named where a text means several."""

ONE = "/v1/sessions/{session_id}"

_LOOKS, _LOOK_AGAIN_S = 100, 0.1  # for a fork that another request makes
_NEVER = -1
_EPOCH = datetime.fromtimestamp(0, UTC)
_MAX_PLACE_DIGITS = 18
_LATEST = datetime.max.replace(tzinfo=UTC) - _EPOCH
_called_new: WeakSet[Journal] = WeakSet()  # of several requests that come at once, one has made the session
_NOT_METADATA = frozenset({"self", "title", "agent_id", "model", "provider", "thinking_level"})


class OneSession(msgspec.Struct, frozen=True):
    """A request about one session."""

    session_id: str


# --- finding ---------------------------------------------------------------------------------------------------------


class ListSessions(msgspec.Struct, frozen=True):
    """A page.

    Attributes:
        channel: of this channel only.
        prefix: whose ids begin so, in any case.
        part: whose ids have this in them, in any case; `prefix` wins.
        limit: at most this many.
        after: behind the place that the page before calls `next`.
        last_words: have in each row how the newest message of a person or the model begins; and where there is no
            title, how the first one does: `first_words`; whether it waits for a yes or no: `waiting`; and with
            which other sessions it is linked: `linked`.
    """

    channel: str | None = None
    prefix: str | None = None
    part: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    after: str | None = None
    last_words: bool = False


@operation("GET", "/v1/sessions", ListSessions, SessionsReply)
async def list_sessions(context: Context, request: ListSessions) -> Stream:
    """A page of sessions, the most recently used first. Creates and renews nothing.

    The agenda of reminders, in the channel `reminders`, is only listed where that is asked for.
    """
    wanted = request.part if request.prefix is None else request.prefix
    page = await context.manager.list(
        channel=request.channel or None,
        only=_asked_for(request.channel)
        if wanted is None
        else _id_part(wanted, at_beginning=request.prefix is not None),
        limit=request.limit + 1,
        after=None if request.after is None else _parse_place(request.after),
        last_words=request.last_words,
    )
    place = _place(page[request.limit - 1]) if len(page) > request.limit else None
    shown = page[: request.limit]
    rows = map(msgspec.json.encode, await _with_links(context, shown) if request.last_words else shown)
    return Stream(document_in_pieces({"next": place}, "sessions", rows))


async def _with_links(context: Context, rows: list[SessionSummary]) -> list[SessionSummary]:
    """Rows of the list, each with the sessions that its chat is linked with."""
    from miniclaw_sessions.files.transfer.linked import link_of  # noqa: PLC0415 - a client has these shapes, and lists nothing

    sessions = await context.manager.source.load_listed([row.session_id for row in rows])
    found = {
        session_id: tuple(await _linked_with(context, session))
        for session_id, session in sessions.items()
        if link_of(session).chats
    }
    return [msgspec.structs.replace(row, linked=found.get(row.session_id, ())) for row in rows]


async def _linked_with(context: Context, session: Session) -> list[str]:
    from miniclaw_sessions.files.transfer.linked import linked_sessions  # noqa: PLC0415 - same

    ids = [one.session_id for one in await linked_sessions(context.manager, session)]
    return [one for one in ids if one != session.session_id]


class Resolve(msgspec.Struct, frozen=True):
    """A text that means a session.

    Attributes:
        name: a session id, or a unique beginning or part of one, or of a title.
    """

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]


@operation("GET", "/v1/resolve", Resolve, ResolvedReply, errors=("session_not_found", "ambiguous_name"))
async def resolve(context: Context, request: Resolve) -> ResolvedReply:
    """The one session that a text means: its id, else the beginning of one, else a part of one, else of a title.

    Raises:
        SessionNotFound: it means none.
        AmbiguousName: it means several.
    """
    if is_session_id(request.name):
        with suppress(SessionNotFound):
            session = await context.find(request.name)
            return ResolvedReply(session_id=session.session_id, title=session.title)
    rows = await _named(context, request.name)
    if not rows:
        raise SessionNotFound(request.name)
    if len(rows) > 1:
        raise AmbiguousName(request.name, [row.session_id for row in rows[:CANDIDATES]])
    return ResolvedReply(session_id=rows[0].session_id, title=rows[0].title)


async def _named(context: Context, name: str) -> list[SessionSummary]:
    """Sessions whose id begins with the text; else those whose id, else those whose title contains it."""
    for at_beginning in (True, False):
        rows = await context.manager.list(only=_id_part(name, at_beginning=at_beginning), limit=CANDIDATES + 1)
        if rows:
            return rows
    wanted, place, found = name.casefold(), None, list[SessionSummary]()
    while len(found) <= CANDIDATES and (page := await context.manager.list(limit=MAX_PAGE, after=place)):
        found += [row for row in page if wanted in (row.title or "").casefold()]
        place = _parse_place(_place(page[-1]))
    return found


def _asked_for(channel: str | None) -> Callable[[str], bool] | None:
    """Without a channel, all sessions but those of the agenda of reminders, which are no conversations."""
    if channel:
        return None
    from miniclaw_sessions.agent.reminders.agenda import CHANNEL  # noqa: PLC0415 - a client has these shapes, and no agent

    return lambda session_id: not session_id.startswith(f"{CHANNEL}_")


def _id_part(text: str, *, at_beginning: bool) -> IdPart:
    from miniclaw_sessions.core.stores.positions import IdPart  # noqa: PLC0415 - a client has these shapes, and lists nothing

    return IdPart(text, at_beginning)


class ShowSession(OneSession, frozen=True):
    """Which session.

    Attributes:
        session_id: its id.
        last_words: include how its newest words begin, and its first ones where it has no title, as in the list.
    """

    last_words: bool = False


@operation("GET", ONE, ShowSession, ShownReply)
async def show_session(context: Context, request: ShowSession) -> ShownReply:
    """One session; its time to live is not renewed."""
    session = await context.find(request.session_id)
    reply = ShownReply(**msgspec.structs.asdict(session_reply(session)))
    if request.last_words:
        from miniclaw_sessions.core.manager.summaries import (  # noqa: PLC0415 - a client has these shapes, and no manager
            calls_for_approval,
            words_of,
        )

        reply.last_words, reply.first_words = await words_of(session)
        reply.waiting = bool(await calls_for_approval(session))
        reply.linked = await _linked_with(context, session)
    return reply


# --- making and changing ---------------------------------------------------------------------------------------------


class CreateSessionRequest(msgspec.Struct, frozen=True):
    """A key, and what a new session is given."""

    body: CreateSession


@operation(
    "POST",
    "/v1/sessions",
    CreateSessionRequest,
    OpenedReply,
    status=lambda reply: 201 if reply.created else 200,
    statuses={201: "A new session.", 200: "It was there."},
    errors=("invalid_key",),
    repeats=True,
)
async def create_session(context: Context, request: CreateSessionRequest) -> OpenedReply:
    """The session of a key, made and saved if it is missing; renews its time to live. What is refused makes nothing."""
    wanted = request.body
    metadata = checked_metadata(wanted.metadata)
    context.note(SessionKey.of(wanted.channel, wanted.chat_id).session_id)
    is_missing = False
    try:
        await context.manager.get(wanted.channel, wanted.chat_id)
    except SessionNotFound:
        is_missing = True
    given = metadata if wanted.title is None else {"title": wanted.title, **metadata}
    session = await context.manager.get_or_create(
        wanted.channel, wanted.chat_id, agent_id=wanted.agent_id, metadata=given
    )
    is_new = is_missing and session.journal not in _called_new
    if is_missing:
        _called_new.add(session.journal)
        await session.saved()
    return OpenedReply(created=is_new, **msgspec.structs.asdict(session_reply(session)))


class UpdateSessionRequest(msgspec.Struct, frozen=True):
    """What is to change of a session."""

    session_id: str
    body: UpdateSession
    if_match: str | None = None
    idempotency_key: str | None = None


async def _check_level(context: Context, session: Session, wanted: UpdateSession) -> None:
    """Refuse a level of thinking by its name, where it is known which ones the session's model takes."""
    if not wanted.thinking_level or context.chats is None:
        return
    levels = await context.chats.thinking_levels()
    chosen = session.chosen_model if isinstance(wanted.model, UnsetType) else wanted.model
    model = chosen if chosen is not None and chosen in levels else next(iter(levels), "")
    if (taken := levels.get(model)) and wanted.thinking_level not in taken:
        sentence = f"{model} does not take the level of thinking {wanted.thinking_level!r}, but {', '.join(taken)}"
        raise invalid(sentence, param="thinking_level")


@operation("PATCH", ONE, UpdateSessionRequest, SessionReply)
async def update_session(context: Context, request: UpdateSessionRequest) -> SessionReply:
    """Change title, model, level of thinking and other metadata; a level that the model does not take is refused."""
    session = await context.find(request.session_id)
    await _check_level(context, session, request.body)
    changes = {**request.body.changes(), **checked_metadata(request.body.metadata)}
    unit, demanded = session.unit(), demanded_sequence(session, request.if_match)
    if not await unit.repeats(checked_key("metadata", request.idempotency_key)):
        unit.add_metadata(**changes)
        if not unit and demanded not in (None, session.last_sequence):  # else nothing would be demanded of no change
            raise LeafMoved(f"session {session.session_id} went on meanwhile; look at it and try again")
    await unit.save(if_sequence=demanded)
    return session_reply(session)


class ClearSession(msgspec.Struct, frozen=True):
    """Which session."""

    session_id: str
    if_match: str | None = None
    idempotency_key: str | None = None


@operation("POST", f"{ONE}/clear", ClearSession, SessionReply)
async def clear_session(context: Context, request: ClearSession) -> SessionReply:
    """Empty the window; the transcript stays."""
    session = await context.find(request.session_id)
    unit = session.unit()
    if not await unit.repeats(checked_key("clear", request.idempotency_key)):
        unit.add(LeafMove, target_id=None)
    await unit.save(if_sequence=demanded_sequence(session, request.if_match))
    return session_reply(session)


class ForkRequest(msgspec.Struct, frozen=True):
    """What is copied, and where to."""

    session_id: str
    body: Fork
    idempotency_key: str | None = None


@operation(
    "POST",
    f"{ONE}/fork",
    ForkRequest,
    SessionReply,
    status=201,
    errors=("session_exists", "entry_not_found", "conflict"),
    patient=True,
)
async def fork_session(context: Context, request: ForkRequest) -> SessionReply:
    """A new session with the whole tree, or with one branch.

    Repeated with the same key it gives the same session, unless the new session's id was named.
    """
    session = await context.find(request.session_id)
    target, leaf_id = request.body.session_id, request.body.leaf_id
    if target is not None:
        context.caller.permit(SessionKey.parse(target))
    if target is None and request.idempotency_key is not None:
        return await _fork_of_key(context, session, request.idempotency_key, leaf_id)
    fork = await session.fork(target, leaf_id=leaf_id)
    context.made = fork.session_id
    return session_reply(fork)


async def _fork_of_key(context: Context, session: Session, idempotency_key: str, leaf_id: str | None) -> SessionReply:
    """The fork that a key stands for. Another request that makes it is waited for.

    Raises:
        RequestError: the other request takes long (409).
        SessionExists: a session that is no fork of this one has the name.
    """
    from miniclaw_sessions.core.session.copying import MAX_CHAT_ID, PARENT_SESSION  # noqa: PLC0415 - a client never forks

    named = f"{session.statistics().incarnation} {idempotency_key}"
    suffix = hashlib.sha256(named.encode()).hexdigest()[:12]
    target = SessionKey.of(session.key.channel, f"{session.key.chat_id[:MAX_CHAT_ID]}.fork-{suffix}").session_id
    for _ in range(_LOOKS):
        made = None
        with suppress(SessionNotFound):
            made = await context.manager.find(target)
        if made is not None and made.metadata.get(PARENT_SESSION) == session.session_id:
            return session_reply(made)
        try:
            fork = await session.fork(target, leaf_id=leaf_id)
        except SessionExists:
            if made is not None:
                raise
            await anyio.sleep(_LOOK_AGAIN_S)
        else:
            context.made = fork.session_id
            return session_reply(fork)
    sentence = "another request with this Idempotency-Key makes the fork; try again later"
    raise RequestError(409, "conflict", sentence, headers={"Retry-After": str(RETRY_AFTER_S)})


NOT_PURGED = (
    "the store's log, if it has one, may have its words until it is used again for something else; the next deletion "
    "with `everywhere`, or the next sweep that deletes, empties it"
)
"""The reply where a session was deleted, and no more was asked for."""


class DeleteSession(msgspec.Struct, frozen=True):
    """Which session; with a key a repeated request is answered as the first was.

    Attributes:
        everywhere: leave its words in no file of the workspace but those that the reply names.
    """

    session_id: str
    everywhere: bool = True
    idempotency_key: str | None = None
    if_match: str | None = None


@operation("DELETE", ONE, DeleteSession, DeletedReply, errors=("session_held",))
async def delete_session(context: Context, request: DeleteSession) -> DeletedReply:
    """Forget a session, its transcript, its archived and its damaged copies; reply what may still hold its words."""
    if not context.was_deleted(request.session_id, request.idempotency_key):
        demanded = None
        if request.if_match is not None:
            demanded = demanded_sequence(await context.find(request.session_id), request.if_match)
        if not await context.manager.delete(request.session_id, if_sequence=demanded):
            raise SessionNotFound(request.session_id)
        context.note_deletion(request.session_id, request.idempotency_key)
    remains = await context.manager.purge(request.session_id) if request.everywhere else [NOT_PURGED]
    return DeletedReply(deleted=True, remains=context.without_paths(remains))


# --- replies ---------------------------------------------------------------------------------------------------------


def session_reply(session: Session) -> SessionReply:
    """Everything about a session but its messages."""
    return SessionReply.of(
        session.statistics(),
        session,
        session.key,
        agent_id=session.metadata.get("agent_id"),
        entries=session.journal.final_sequence,
        leaf_id=session.journal.final_leaf_id,
        etag=etag_of(session),
        chosen_model=session.chosen_model,
        chosen_level=session.chosen_level,
        usage=UsageReply.of(session.total_usage, total_tokens=session.total_usage.total),
        metadata=dict(session.metadata),
    )


def etag_of(session: Session) -> str:
    """What changes with every entry of a session, and when another one takes its place.

    It counts what is acknowledged: the place of anything else may become that of another entry, of this process or of
    another one. So while there is anything else, it is known by its id.
    """
    waits = session.journal.newest_waiting
    return etag_at(session, f"{session.journal.committed_sequence}{'' if waits is None else '.' + waits}")


def etag_at(session: Session, place: int | str) -> str:
    """The ETag that a session has when the entry at a place is its newest one."""
    return f'"{session.journal.incarnation}.{place}"'


def demanded_sequence(session: Session, if_match: str | None, if_sequence: int | None = None) -> int | None:
    """The last sequence number that a session must have by the demands of a request; None: any.

    Args:
        session: as it is now.
        if_match: ETags of the session, one of which must be its own; `*`: any.
        if_sequence: the number itself, where it is demanded as such.
    """
    if if_match is None or if_match.strip() == "*":
        return if_sequence
    if etag_of(session) not in [tag.strip() for tag in if_match.split(",")]:
        return _NEVER
    return session.last_sequence if if_sequence in (None, session.last_sequence) else _NEVER


def checked_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Free metadata, which must not use the names of real fields."""
    if taken := sorted(_NOT_METADATA & metadata.keys()):
        raise invalid(f"{taken[0]!r} is not free metadata", param=f"metadata.{taken[0]}")
    return metadata


def _place(summary: SessionSummary) -> str:
    """Where a session stands in the list: a place that stays when others are used or deleted between two pages."""
    return f"{(summary.last_accessed - _EPOCH) // timedelta(microseconds=1)}.{summary.session_id}"


def _parse_place(text: str) -> ListPosition:
    from miniclaw_sessions.core.stores.positions import ListPosition  # noqa: PLC0415 - a client lists nothing

    number, _, session_id = text.partition(".")
    if not (number.isascii() and number.isdigit() and len(number) <= _MAX_PLACE_DIGITS):
        raise invalid("after must be what the page before calls next", param="after")
    return ListPosition(_EPOCH + min(timedelta(microseconds=int(number)), _LATEST), session_id)


OPERATIONS = (
    list_sessions,
    resolve,
    create_session,
    show_session,
    update_session,
    delete_session,
    clear_session,
    fork_session,
)
