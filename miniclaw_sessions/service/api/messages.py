"""What was said, and anything else that is logged: read it a page at a time, append to it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import orjson
from msgspec import Meta

from miniclaw_sessions.core.history.window import Kept
from miniclaw_sessions.core.protocol.encoding import encode_entry, message_document
from miniclaw_sessions.core.protocol.entries import (
    METADATA,
    Custom,
    Entry,
    Label,
    MessageEntry,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
    moves_leaf,
)
from miniclaw_sessions.core.protocol.messages import Message, dated, message_from_dict, message_of
from miniclaw_sessions.errors import InvalidMessage, StoreCorrupt
from miniclaw_sessions.service.api.error_table import invalid
from miniclaw_sessions.service.api.operation import (
    PIECE_BYTES,
    Stream,
    checked_idempotency_key,
    document_in_pieces,
    large_reply,
    operation,
    shaped,
)
from miniclaw_sessions.service.api.request_keys import checked_key, key_in_use, stored_key
from miniclaw_sessions.service.api.sessions import (
    ONE,
    OneSession,
    checked_metadata,
    demanded_sequence,
    etag_at,
    etag_of,
)
from miniclaw_sessions.service.api.shapes import (
    MAX_MESSAGES_PER_REQUEST,
    AppendedEntry,
    AppendedReply,
    EncodedEntry,
    EntriesAppendedReply,
    EntriesReply,
    MessagesReply,
    NewCustom,
    NewEntries,
    NewEntry,
    NewLabel,
    NewMessage,
    NewMetadata,
    NewModelChange,
    NewSessionInfo,
    NewThinkingLevel,
    SaveTurn,
    TurnReply,
)

if TYPE_CHECKING:
    from miniclaw_sessions.core.session import Session
    from miniclaw_sessions.core.session.unit import Unit
    from miniclaw_sessions.service.api.context import Context

MAX_PAGE = 1000
Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
Sequence_ = Annotated[int, Meta(ge=0, le=2**53)]


# --- reading ---------------------------------------------------------------------------------------------------------


class ShowMessages(msgspec.Struct, frozen=True):
    """The newest messages; those of the branch before an entry's sequence; or those after one.

    Attributes:
        limit: at most this many.
        before: the newest ones before this sequence number, of the branch that the entry there is on.
        after: the oldest ones of the current branch after this sequence number; 0 begins at its root.
    """

    session_id: str
    limit: Limit = 50
    before: Sequence_ | None = None
    after: Sequence_ | None = None


@operation("GET", f"{ONE}/messages", ShowMessages, MessagesReply)
async def show_messages(context: Context, request: ShowMessages) -> Stream:
    """Messages, oldest first: the window, behind the summary of what was compacted.

    With `before` or `after`, a page of the whole branch, nothing compacted.
    """
    session = await context.find(request.session_id)
    if request.before is not None and request.after is not None:
        raise invalid("send before or after, not both", param="before")
    if request.before is not None or request.after is not None:
        return large_reply(context, "messages", partial(_page, session, request))
    # As they are kept, and decoded one by one while they are sent: readers that stall would each hold a copy of them.
    journal = session.journal
    kept = (one for one in journal.conversation.window.kept if one.sequence <= journal.final_sequence)
    shown: list[Message | Kept] = [*journal.summary(), *kept]
    documents = (_document(one) for one in shown[-request.limit :])
    is_cut = journal.kept_from > 0 or not journal.conversation.window_is_whole
    earlier = len(shown) > request.limit or (is_cut and journal.home.store.keeps_entries)
    about = {"earlier": earlier, "later": False}
    return Stream(document_in_pieces(about, "messages", map(msgspec.json.encode, documents)))


async def _page(session: Session, request: ShowMessages) -> tuple[dict[str, Any], Iterable[bytes]]:
    """The newest messages before a place, of the branch there; or the oldest of the current branch after one."""
    read = _read_after if request.before is None else _read_before
    page, earlier, later = await read(session, request)
    about = {"earlier": earlier, "later": later}
    return about, (msgspec.json.encode(entry_document(entry)) for entry in page)


_Page = tuple[list[MessageEntry], bool, bool]
"""Messages, oldest first, and whether there are earlier and later ones."""


async def _read_before(session: Session, request: ShowMessages) -> _Page:
    final, before = session.journal.final_sequence, request.before or 0
    found, newest = list[MessageEntry](), session.journal.conversation.window.kept[-1:]
    later = any(before <= one.sequence <= final for one in newest)
    async for entry in walk_back(session, min(before, final + 1)):
        if isinstance(entry, MessageEntry):
            if entry.sequence >= before:
                later = True
            elif len(found) == request.limit:
                return found[::-1], True, later
            else:
                found.append(entry)
    return found[::-1], False, later


async def _read_after(session: Session, request: ShowMessages) -> _Page:
    limit, after = request.limit, request.after or 0
    oldest: deque[MessageEntry] = deque(maxlen=limit + 1)  # of those behind the place, the newest first
    earlier = False
    async for entry in walk_in_place(session):
        if isinstance(entry, MessageEntry):
            if entry.sequence <= after:
                earlier = True
                break
            oldest.append(entry)
    page = list(oldest)[::-1]
    return page[:limit], earlier, len(page) > limit


_PLACE = ("id", "sequence")
"""What a message that stands in the session always has, and a summary never: a message may have a field `summary`."""


def _document(shown: Message | Kept) -> dict[str, Any]:
    if isinstance(shown, Kept):  # what `entry_document` makes of the entry, without reading it into a message
        return {"content": "", **orjson.loads(shown.encoded), "id": shown.id, "sequence": shown.sequence}
    document = {**message_document(shown), "summary": True}
    return {name: value for name, value in document.items() if name not in _PLACE}


def entry_document(entry: MessageEntry) -> dict[str, Any]:
    """A message with its entry's id and sequence, which win over fields of these names in the message."""
    return {**message_document(entry.message), "id": entry.id, "sequence": entry.sequence}


async def walk_in_place(session: Session, entry_id: str | None = None) -> AsyncIterator[Entry]:
    """The entries of a branch that keep their places, newest first.

    By default of the branch that is the current one behind them: what is accepted only may have left it already.
    """
    journal = session.journal
    final = journal.final_sequence
    if entry_id is None and final != journal.last_sequence:
        entry_id = journal.final_leaf_id
        if entry_id is None:
            return
    async for entry in session.tree.walk(entry_id):
        if entry.sequence <= final:
            yield entry


async def walk_back(session: Session, place: int, entry_id: str | None = None) -> AsyncIterator[Entry]:
    """`walk_in_place`, of the branch that ends at a place; where nothing is there, of the one of an entry."""
    found = await session.tree.read_at([place])
    async for entry in walk_in_place(session, found[place].entry_id if place in found else entry_id):
        yield entry


class ShowEntries(msgspec.Struct, frozen=True):
    """A page of the transcript: after a sequence, or the newest ones before one.

    Attributes:
        limit: at most this many.
        after: those behind this sequence number; by default from the first on.
        before: the newest ones before this sequence number; one beyond the end begins there.
    """

    session_id: str
    limit: Limit = 100
    after: Sequence_ | None = None
    before: Sequence_ | None = None


@operation("GET", f"{ONE}/entries", ShowEntries, EntriesReply)
async def show_entries(context: Context, request: ShowEntries) -> Stream:
    """A page of everything that was logged, in the order of logging, oldest first; `before` walks backwards."""
    from miniclaw_sessions.core.stores.reading import readable  # noqa: PLC0415 - a client has these shapes, and no store

    session = await context.find(request.session_id)
    if request.before is not None and request.after is not None:
        raise invalid("send before or after, not both", param="before")
    after, limit = request.after or 0, request.limit
    if request.before is not None:
        before = min(request.before, session.journal.final_sequence + 1)
        after = max(before - 1 - limit, 0)
        limit = max(min(limit, before - 1 - after), 0)

    async def read() -> tuple[dict[str, Any], Iterable[bytes]]:
        found = await session.tree.read_after(after, limit + 1)  # what is in memory may be behind what others stored
        page = found[:limit]
        last = page[-1].sequence if page else after
        is_end, is_begin = len(found) <= limit, not (after and page)
        about = {"next": None if is_end else last, "previous": None if is_begin else after + 1}
        return about, map(encode_entry, readable(page))

    return large_reply(context, "entries", read)


class OneEntry(msgspec.Struct, frozen=True):
    """A request about one entry."""

    session_id: str
    entry_id: str


@operation("GET", f"{ONE}/entries/{{entry_id}}", OneEntry, EncodedEntry)
async def show_entry(context: Context, request: OneEntry) -> msgspec.Raw:
    """One entry, as it is stored."""
    session = await context.find(request.session_id)
    try:
        return msgspec.Raw(encode_entry(await session.tree.get_entry(request.entry_id)))
    except InvalidMessage as error:  # the store's fault, and not the client's
        raise StoreCorrupt(f"entry {request.entry_id!r} of session {session.session_id} is damaged") from error


@operation("GET", f"{ONE}/transcript", OneSession, Stream, media_types=("application/x-ndjson",))
async def show_transcript(context: Context, request: OneSession) -> Stream:
    """Every entry, one per line, oldest first."""
    from miniclaw_sessions.core.manager.reading import read_transcript  # noqa: PLC0415 - a client has no manager

    session = await context.find(request.session_id)  # one that does not exist is known before the reply begins

    async def lines() -> AsyncGenerator[bytes, None]:
        chunk = bytearray()
        async for entry in read_transcript(context.manager, session.session_id, in_place=True):
            chunk += encode_entry(entry) + b"\n"
            if len(chunk) >= PIECE_BYTES:
                yield bytes(chunk)
                chunk.clear()
        yield bytes(chunk)

    return Stream(lines(), "application/x-ndjson")


# --- appending -------------------------------------------------------------------------------------------------------


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What an append may demand of the place where it goes, else 409 `leaf_moved`, and nothing is appended.

    Attributes:
        if_leaf: only if this entry is the leaf; empty: the root.
        if_sequence: only if the newest entry has this sequence number.
    """

    session_id: str
    if_leaf: str | None = None
    if_sequence: Sequence_ | None = None
    if_match: str | None = None
    idempotency_key: str | None = None

    def of(self, session: Session) -> dict[str, Any]:
        """The arguments that say the same to `Unit.save`."""
        return {"if_leaf": self.if_leaf, "if_sequence": demanded_sequence(session, self.if_match, self.if_sequence)}


class AddMessages(Expected, frozen=True, kw_only=True):
    """A message; or `messages`, a list of them. A key stands for the whole request."""

    body: Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/OneOrMoreMessages"})]


@operation("POST", f"{ONE}/messages", AddMessages, AppendedReply, status=201)
async def add_messages(context: Context, request: AddMessages) -> AppendedReply:
    """Append one message or several as a unit, and reply when they are acknowledged; the session is made if needed."""
    key, incoming = checked_idempotency_key(request.idempotency_key), incoming_messages(request.body)
    session = await _wanted(context, request)
    messages, keys = [message for message, _ in incoming], [own or key for _, own in incoming]
    if key is not None and _is_list(request.body):
        for place, (message, own) in enumerate(incoming):
            keys[place] = own or await key_in_use(session, "messages", f"{key}:{place}", [message])
    unit = session.unit(has_one_key=False)
    await unit.look_up(key for key in keys if key is not None)
    entries = unit.add_messages(messages, idempotency_keys=keys)
    await unit.save(**request.of(session))
    made = unit.made
    leaf_id, etag = _end_of(session, made)
    new = {entry.id for entry in made}
    appended = []
    for entry in map(unit.as_stored, entries):
        appended.append(AppendedEntry(id=entry.id, sequence=entry.sequence, duplicate=entry.id not in new))
        new.discard(entry.id)  # two messages of one key are one entry: the second one is a duplicate
    return AppendedReply(entries=appended, leaf_id=leaf_id, etag=etag)


async def _wanted(context: Context, request: Expected) -> Session:
    """The session, created if it is missing, unless the request demands a state of it."""
    if request.if_match is not None:
        return await context.find(request.session_id)
    return await context.find_or_create(request.session_id)


def _end_of(session: Session, made: Sequence[Entry]) -> tuple[str | None, str]:
    """The leaf and the session's ETag right behind what was appended: what others say from there on is not in them."""
    if not made:
        return session.journal.final_leaf_id, etag_of(session)
    leaf_id = next((entry.id for entry in reversed(made) if moves_leaf(entry)), made[0].parent_id)
    return leaf_id, etag_at(session, made[-1].sequence)


class SaveTurnRequest(Expected, frozen=True, kw_only=True):
    """A turn; with a key, a repeated request appends nothing."""

    body: SaveTurn


@operation("POST", f"{ONE}/turns", SaveTurnRequest, TurnReply, status=201)
async def save_turn(context: Context, request: SaveTurnRequest) -> TurnReply:
    """Append what was said in one turn, all of it or nothing; a missing session is made."""
    body = request.body
    incoming = [_incoming_message(message) for message in body.messages]
    if any(key is not None for _, key in incoming):
        raise invalid("the messages of a turn have no idempotency keys; the turn has one", param="messages")
    messages = [message for message, _ in incoming]
    usage = None if body.usage is None else message_from_dict({"role": "assistant", "usage": body.usage}).usage
    key = checked_idempotency_key(request.idempotency_key)
    session = await _wanted(context, request)
    key = None if key is None else await key_in_use(session, "turn", key, messages)
    entries = await session.save_turn(messages, usage, idempotency_key=key, **request.of(session))
    leaf_id, etag = _end_of(session, entries)
    return TurnReply(entries=len(messages), leaf_id=leaf_id, duplicate=not entries, etag=etag)


class AppendEntries(Expected, frozen=True, kw_only=True):
    """One entry, or `entries`, a list of them (`NewEntries`) that are accepted together or not at all."""

    body: Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/OneOrMoreEntries"})]


@operation("POST", f"{ONE}/entries", AppendEntries, EntriesAppendedReply, status=201, errors=("entry_not_found",))
async def append_entries(context: Context, request: AppendEntries) -> EntriesAppendedReply:
    """Append entries of any kind as a unit, and reply when they are acknowledged."""
    key = checked_key("entries", request.idempotency_key)
    is_one = not isinstance(request.body.get("entries"), list)
    shape: Any = NewEntry if is_one else NewEntries  # a union is no type to mypy
    body = shaped(request.body, shape)
    wanted: list[NewEntry] = [body] if is_one else body.entries
    session = await context.find(request.session_id)
    made = await checked_entries(session, wanted)
    unit = session.unit()
    if not await unit.repeats(key):
        for kind, fields in made:
            unit.add(kind, **fields)
    await unit.save(**request.of(session))
    if (first := unit.known) is not None:  # the request came before, here or to another process
        # With the store `none` only the window's messages are read: the next ones may be of other requests.
        stored = await session.tree.read_after(first.sequence - 1, len(wanted)) if first.sequence else []
        last = first.sequence + len(wanted) - 1
        places = [(one.entry_id, one.sequence) for one in stored if one.sequence <= last]
        return _entries_appended(session, places or [(first.id, first.sequence)], unit)
    return _entries_appended(session, [(one.id, one.sequence) for one in unit.entries], unit)


def key_of_entries(key: str) -> str:
    """The key that a unit of entries is stored with."""
    return stored_key("entries", key)


def _entries_appended(session: Session, places: Sequence[tuple[str, int]], unit: Unit) -> EntriesAppendedReply:
    is_known, (leaf_id, etag) = not unit.made, _end_of(session, unit.made)
    entries = [AppendedEntry(id=entry_id, sequence=place, duplicate=is_known) for entry_id, place in places]
    return EntriesAppendedReply(id=entries[-1].id, entries=entries, leaf_id=leaf_id, etag=etag)


async def checked_entries(session: Session, wanted: Sequence[NewEntry]) -> list[tuple[type[Entry], dict[str, Any]]]:
    """What `Unit.add` takes of new entries, in order.

    Raises:
        EntryNotFound: a label is for an entry that the session does not have.
        InvalidMessage: something is no message, or no metadata.
    """
    for target_id in dict.fromkeys(one.target_id for one in wanted if isinstance(one, NewLabel)):
        await session.tree.get_entry(target_id)
    now = session.journal.now()
    return [_made(one, now) for one in wanted]


def _made(wanted: NewEntry, now: datetime) -> tuple[type[Entry], dict[str, Any]]:  # noqa: PLR0911 - one for each kind
    match wanted:
        case NewMessage():
            return MessageEntry, {"message": dated(checked_message(wanted.message), now), "continues": wanted.continues}
        case NewModelChange():
            return ModelChange, {"provider": wanted.provider, "model_id": wanted.model_id}
        case NewThinkingLevel():
            return ThinkingLevelChange, {"thinking_level": wanted.thinking_level}
        case NewSessionInfo():
            return SessionInfo, {"name": wanted.name}
        case NewLabel():
            return Label, {"target_id": wanted.target_id, "label": wanted.label}
        case NewCustom():
            if wanted.custom_type == METADATA:
                raise InvalidMessage(f"custom_type {METADATA!r} is the session's own; change metadata with PATCH")
            return Custom, {"custom_type": wanted.custom_type, "data": wanted.data}
        case NewMetadata():
            return Custom, {"custom_type": METADATA, "data": checked_metadata(wanted.metadata)}


def incoming_messages(data: dict[str, Any]) -> list[tuple[Message, str | None]]:
    """The messages of a request, one or a list, each with its own idempotency key, if it has one.

    Raises:
        InvalidMessage: something is not a message.
        RequestError: the list is empty or too long.
    """
    if not _is_list(data):
        return [_incoming_message(data)]
    many = data["messages"]
    if len(data) > 1 or not 0 < len(many) <= MAX_MESSAGES_PER_REQUEST:
        sentence = f'"messages" must stand alone and hold 1 to {MAX_MESSAGES_PER_REQUEST} messages'
        raise invalid(sentence, param="messages")
    return [_incoming_message(one) for one in many]


def _is_list(data: dict[str, Any]) -> bool:
    return isinstance(data.get("messages"), list)


def _incoming_message(data: Any) -> tuple[Message, str | None]:
    if not isinstance(data, dict):
        return checked_message(data), None
    fields = dict(data)
    key = checked_idempotency_key(fields.pop("idempotency_key", None))
    return checked_message(fields), key


def checked_message(given: Any) -> Message:
    """A message from JSON, with a time that every reader can parse.

    Raises:
        InvalidMessage: it is no message, or its time lies outside of the years 1 to 9999 in UTC.
    """
    if not isinstance(given, dict):
        raise InvalidMessage("a message must be a JSON object with role and content")
    message = message_of(given)
    try:
        if message.timestamp is not None and message.timestamp.tzinfo is not None:
            message.timestamp.astimezone(UTC)
    except OverflowError:
        raise InvalidMessage("the timestamp is not within the years 1 to 9999 in UTC") from None
    return message


OPERATIONS = (
    show_messages,
    add_messages,
    show_transcript,
    show_entries,
    append_entries,
    show_entry,
    save_turn,
)
