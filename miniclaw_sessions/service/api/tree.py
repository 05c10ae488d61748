"""A session's tree: look at it, go elsewhere in it, label, compact."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import orjson
from msgspec import Meta

from miniclaw_sessions.core.history.compaction import KEEP_TOKENS, count_tokens, tokens_of
from miniclaw_sessions.core.history.transcript import Transcript
from miniclaw_sessions.core.protocol.encoding import encode_entry, message_document
from miniclaw_sessions.core.protocol.entries import Custom, Entry, Label, LeafMove, moves_leaf
from miniclaw_sessions.service.api.error_table import RequestError, invalid
from miniclaw_sessions.service.api.messages import checked_entries, checked_message, walk_in_place
from miniclaw_sessions.service.api.operation import Stream, document_in_pieces, large_reply, operation
from miniclaw_sessions.service.api.request_keys import checked_key
from miniclaw_sessions.service.api.sessions import ONE, OneSession, session_reply
from miniclaw_sessions.service.api.shapes import (
    MAX_MESSAGES_PER_REQUEST,
    AppendedEntry,
    Body,
    Count,
    EncodedEntry,
    MessageDocument,
    NewEntry,
    Reply,
    SessionReply,
)

if TYPE_CHECKING:
    from miniclaw_sessions.core.session.unit import Unit
    from miniclaw_sessions.service.api.context import Context

MAX_BRANCH = 10_000
"""Entries of a branch in one reply."""


# --- shapes ----------------------------------------------------------------------------------------------------------


class TreeReply(Reply, kw_only=True):
    """Which entries follow which: `children` has, by the id of an entry, the ids of its followers."""

    session_id: str
    leaf_id: str | None
    labels: dict[str, str]
    problems: list[str]
    roots: list[str]
    children: dict[str, list[str]]


class BranchReply(Reply, kw_only=True):
    """The newest entries of a branch, from the root on; `truncated` says that earlier ones were left out."""

    truncated: bool
    entries: list[EncodedEntry]


class ContextReply(Reply, kw_only=True):
    """What may be sent to a model at the leaf, what is in force there, and what is wrong with the branch."""

    provider: str | None
    model: str | None
    thinking_level: str | None
    problems: list[str]
    messages: list[MessageDocument]


class MovedReply(Reply, kw_only=True):
    """Where the conversation goes on now; `entries` are those that were appended there, in order."""

    leaf_id: str | None
    session: SessionReply
    entries: list[AppendedEntry] = []


class EntryIdReply(Reply, kw_only=True):
    """The id of a new entry."""

    id: str


class CompactionReply(Reply, kw_only=True):
    """What became of a compaction: done, skipped, failed or aborted; `detail` says why."""

    status: str
    detail: str = ""
    entry_id: str | None = None
    tokens_before: int = 0
    tokens_after: int = 0


class GoTo(Body, kw_only=True):
    """Go back to an entry, null is the root, and append something there.

    Attributes:
        summary: what was left.
        then: messages, as one turn.
        entries: entries of any kind, as `POST .../entries` takes them.
    """

    entry_id: str | None
    summary: str | None = None
    then: Annotated[list[Any], Meta(max_length=MAX_MESSAGES_PER_REQUEST)] = []
    entries: Annotated[list[NewEntry], Meta(max_length=MAX_MESSAGES_PER_REQUEST)] = []


class Replace(Body, kw_only=True):
    """Go on without an entry of the current branch; what follows it there is appended again, as copies.

    Attributes:
        messages: what stands in its place.
        without: the ids of later entries that are left out, too.
    """

    entry_id: str
    messages: Annotated[list[Any], Meta(max_length=MAX_MESSAGES_PER_REQUEST)] = []
    without: Annotated[list[str], Meta(max_length=MAX_MESSAGES_PER_REQUEST)] = []


class SetLabel(Body, kw_only=True):
    """An empty label removes."""

    entry_id: str
    label: str


class Compact(Body, kw_only=True):
    """The fields after `keep_tokens` are for a summary that the client brings."""

    keep_tokens: Count = KEEP_TOKENS
    summary: str | None = None
    first_kept_entry_id: str | None = None
    tokens_before: Count | None = None


# --- looking ---------------------------------------------------------------------------------------------------------


@operation("GET", f"{ONE}/tree", OneSession, TreeReply, patient=True)
async def show_tree(context: Context, request: OneSession) -> Stream:
    """Which entries follow which, and the labels; the messages are in the transcript."""
    session = await context.find(request.session_id)
    transcript = Transcript(session_id=session.session_id)
    async for entry in session.tree.read_entries(transcript.problems, in_place=True):
        if isinstance(entry, LeafMove | Label):
            transcript.add(entry)
        else:  # without its content: the transcript may be larger than the memory
            kind = entry.custom_type if isinstance(entry, Custom) else ""  # which says whether it moves the leaf
            bare = Custom(id=entry.id, parent_id=entry.parent_id, timestamp=entry.timestamp, custom_type=kind)
            transcript.add(bare)
    about = {
        "session_id": transcript.session_id,
        "leaf_id": transcript.leaf_id,
        "labels": dict(transcript.labels),
        "problems": transcript.problems,
        "roots": _ids_of(transcript, None),
    }
    followed = ((entry.id, _ids_of(transcript, entry.id)) for entry in transcript.entries)
    pairs = (orjson.dumps(entry_id) + b":" + orjson.dumps(children) for entry_id, children in followed if children)
    return Stream(document_in_pieces(about, "children", pairs, brackets=b"{}"))


def _ids_of(transcript: Transcript, parent_id: str | None) -> list[str]:
    return [entry.id for entry in transcript.children(parent_id)]


class ShowBranch(msgspec.Struct, frozen=True):
    """The branch that ends at an entry, or at the leaf.

    Attributes:
        entry_id: where it ends; by default at the leaf.
        limit: at most this many of its newest entries.
    """

    session_id: str
    entry_id: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_BRANCH)] = 1000


@operation("GET", f"{ONE}/branch", ShowBranch, BranchReply, errors=("entry_not_found",), patient=True)
async def show_branch(context: Context, request: ShowBranch) -> Stream:
    """The newest entries of one branch, from the root to an entry; its first one's parent ends the page before."""
    session = await context.find(request.session_id)

    async def read() -> tuple[dict[str, Any], Iterable[bytes]]:
        newest: list[Entry] = []
        async for entry in walk_in_place(session, request.entry_id):
            newest.append(entry)
            if len(newest) > request.limit:
                break
        shown = newest[: request.limit]
        return {"truncated": len(newest) > request.limit}, map(encode_entry, reversed(shown))

    return large_reply(context, "entries", read)


@operation("GET", f"{ONE}/context", OneSession, ContextReply, patient=True)
async def show_context(context: Context, request: OneSession) -> Stream:
    """What may be sent to a model at the leaf."""
    session = await context.find(request.session_id)

    async def read() -> tuple[dict[str, Any], Iterable[bytes]]:
        about = msgspec.structs.asdict(await session.get_context())
        messages = about.pop("messages")
        return about, (orjson.dumps(message_document(message)) for message in messages)

    return large_reply(context, "messages", read)


# --- changing --------------------------------------------------------------------------------------------------------


class GoToRequest(msgspec.Struct, frozen=True):
    """Where the conversation is to go on.

    Attributes:
        if_leaf: only if this entry is the leaf (empty: the root); not with a summary.
    """

    session_id: str
    body: GoTo
    if_leaf: str | None = None
    idempotency_key: str | None = None


@operation("POST", f"{ONE}/branch", GoToRequest, MovedReply, errors=("entry_not_found",))
async def go_to(context: Context, request: GoToRequest) -> MovedReply:
    """Go back to an entry, or to the root, and append something there, together with the move or not at all.

    What is appended is a summary of what is left, messages, or entries of any kind.
    """
    session = await context.find(request.session_id)
    wanted, tree = request.body, session.tree
    if (wanted.then and wanted.entries) or (wanted.summary and (wanted.then or wanted.entries)):
        param = "then" if wanted.then else "entries"
        raise invalid("send a summary, messages or entries, only one of them", param=param)
    if wanted.summary and request.if_leaf is not None:
        raise invalid("if_leaf does not go with a summary", param="if_leaf")
    key = checked_key("move", request.idempotency_key)
    if wanted.summary:
        summary_id = await tree.branch_with_summary(wanted.entry_id, wanted.summary, idempotency_key=key)
        appended = [await tree.get_entry(summary_id)]
    else:
        then = [checked_message(message) for message in wanted.then]
        made = await checked_entries(session, wanted.entries)

        def add(unit: Unit) -> None:
            unit.add_messages(then, continues=(place > 0 for place in range(len(then))))
            for kind, fields in made:
                unit.add(kind, **fields)

        appended = await tree.branch_with_entries(wanted.entry_id, add, if_leaf=request.if_leaf, idempotency_key=key)
    # not the session's leaf: others may have gone on from there
    leaf_id = next((entry.id for entry in reversed(appended) if moves_leaf(entry)), None)
    if leaf_id is None and wanted.entry_id is not None:
        place = await session.journal.reader.on_branch(wanted.entry_id)
        leaf_id = None if place is None else place.id
    entries = [AppendedEntry(id=entry.id, sequence=entry.sequence) for entry in appended]
    return MovedReply(leaf_id=leaf_id, session=session_reply(session), entries=entries)


class ReplaceRequest(msgspec.Struct, frozen=True):
    """What the conversation is to go on without.

    Attributes:
        if_leaf: only if this entry is the leaf; by default what is said meanwhile follows, too.
    """

    session_id: str
    body: Replace
    if_leaf: str | None = None
    idempotency_key: str | None = None


@operation("POST", f"{ONE}/replace", ReplaceRequest, SessionReply, errors=("entry_not_found",), patient=True)
async def replace_entry(context: Context, request: ReplaceRequest) -> SessionReply:
    """Let messages stand in an entry's place, and append what follows it again, all of it or nothing.

    A copy names the entry that it is one of, and does not repeat its usage. The transcript keeps what was left.
    """
    session = await context.find(request.session_id)
    wanted = request.body
    messages = [checked_message(message) for message in wanted.messages]
    key = checked_key("replace", request.idempotency_key)
    await session.tree.replace(
        wanted.entry_id, messages, without=wanted.without, if_leaf=request.if_leaf, idempotency_key=key
    )
    return session_reply(session)


class SetLabelRequest(msgspec.Struct, frozen=True):
    """A bookmark."""

    session_id: str
    body: SetLabel
    idempotency_key: str | None = None


@operation("POST", f"{ONE}/labels", SetLabelRequest, EntryIdReply, status=201, errors=("entry_not_found",))
async def set_label(context: Context, request: SetLabelRequest) -> EntryIdReply:
    """Bookmark an entry, or remove its bookmark."""
    session = await context.find(request.session_id)
    key, wanted = checked_key("label", request.idempotency_key), request.body
    return EntryIdReply(id=await session.tree.set_label(wanted.entry_id, wanted.label, idempotency_key=key))


class CompactRequest(msgspec.Struct, frozen=True):
    """What is kept, and by whose summary."""

    session_id: str
    body: Compact


@operation(
    "POST",
    f"{ONE}/compact",
    CompactRequest,
    CompactionReply,
    errors=("entry_not_found", "unsafe_compaction", "no_model", "budget_spent"),
    patient=True,
)
async def compact_session(context: Context, request: CompactRequest) -> CompactionReply:
    """Let a summary stand for the older part of the branch: the client's, or the model's."""
    session = await context.find(request.session_id)
    wanted = request.body
    if wanted.summary is None:
        if wanted.first_kept_entry_id is not None or wanted.tokens_before is not None:
            raise invalid("this goes with a summary; send one", param="summary")
        if context.summarizer is None:
            sentence = "there is no model that could summarize; send a summary"
            raise RequestError(422, "no_model", sentence, param="summary")
        await context.may_spend(session)
        outcome = await session.compact(context.summarizer, keep_tokens=wanted.keep_tokens)
        return CompactionReply(**msgspec.to_builtins(outcome))
    if not wanted.summary.strip():
        raise invalid("the summary is empty; say something", param="summary")
    before = wanted.tokens_before
    if before is None:
        before = tokens_of((await session.tree.read_branch()).entries)
    entry_id = await session.tree.append_compaction(wanted.summary, wanted.first_kept_entry_id, before)
    after = count_tokens((await session.get_context()).messages)
    return CompactionReply(status="done", entry_id=entry_id, tokens_before=before, tokens_after=after)


OPERATIONS = (show_tree, show_branch, go_to, replace_entry, show_context, set_label, compact_session)
