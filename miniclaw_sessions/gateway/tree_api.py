"""The routes over a session's tree (document 003): look at it, branch, label, fork, compact, and add what is no chat.

Like all handlers they hold no state and no policy, and reply to a change only after the store has committed it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from miniclaw_sessions.errors import InvalidMessage, StoreCorrupt
from miniclaw_sessions.gateway.documents import (
    compaction_document,
    context_document,
    encoded_children,
    message_document,
    session_document,
    tree_document,
)
from miniclaw_sessions.gateway.replies import RequestError, encoded_reply, json_reply
from miniclaw_sessions.gateway.requests import (
    Compact,
    Fork,
    GoTo,
    NewCustom,
    NewEntry,
    NewModelChange,
    NewSessionInfo,
    NewThinkingLevel,
    SaveTurn,
    SetLabel,
    entry_id_of,
    new_entry,
    query_number,
    read_json,
    shaped,
)
from miniclaw_sessions.gateway.sessions import ServedSessions, while_client_waits
from miniclaw_sessions.gateway.streaming import ByteStream, document_in_pieces
from miniclaw_sessions.history.compaction import count_tokens, tokens_of
from miniclaw_sessions.history.transcript import Transcript
from miniclaw_sessions.protocol.encoding import encode_entry
from miniclaw_sessions.protocol.entries import Custom, Entry, Label, LeafMove
from miniclaw_sessions.session import Session
from miniclaw_sessions.session.compacting import CompactionOutcome, CompactionStatus, Summarizer

MAX_BRANCH = 10_000
"""Entries of a branch in one reply."""


class TreeApi:
    """The tree of every session of one manager; `summarizer` makes the summaries that no client brings."""

    def __init__(self, sessions: ServedSessions, summarizer: Summarizer) -> None:
        self._sessions = sessions
        self._limits = sessions.limits
        self._summarizer = summarizer

    def routes(self) -> list[Route]:
        """Everything below one session that is about its tree."""
        one = "/v1/sessions/{session_id}"
        return [
            Route(f"{one}/tree", self.show_tree),
            Route(f"{one}/branch", self.show_branch),
            Route(f"{one}/branch", self.go_to, methods=["POST"]),
            Route(f"{one}/context", self.show_context),
            Route(f"{one}/entries/{{entry_id}}", self.show_entry),
            Route(f"{one}/entries", self.add_entry, methods=["POST"]),
            Route(f"{one}/labels", self.set_label, methods=["POST"]),
            Route(f"{one}/fork", self.fork_session, methods=["POST"]),
            Route(f"{one}/compact", self.compact_session, methods=["POST"]),
            Route(f"{one}/turns", self.save_turn, methods=["POST"]),
        ]

    # --- looking -----------------------------------------------------------------------------------------------------

    async def show_tree(self, request: Request) -> Response:
        """Who follows whom, and the labels; what was said is in the transcript."""
        session = await self._sessions.find(request)
        transcript = await while_client_waits(request, _shape_of(session))
        pieces = document_in_pieces(tree_document(transcript), "children", encoded_children(transcript), brackets=b"{}")
        return self._json(pieces)

    async def show_branch(self, request: Request) -> Response:
        """The newest entries of one branch, from the root to an entry."""
        session = await self._sessions.find(request)
        limit = query_number(request, "limit", default=1000, most=MAX_BRANCH)
        entry_id = request.query_params.get("entry_id")
        path = await while_client_waits(request, session.get_branch(entry_id, limit=limit + 1))
        entries = map(encode_entry, path[-limit:])
        return self._json(document_in_pieces({"truncated": len(path) > limit}, "entries", entries))

    async def show_entry(self, request: Request) -> Response:
        """One entry, as it is stored."""
        session = await self._sessions.find(request)
        entry_id = entry_id_of(request)
        try:
            entry = await self._sessions.in_time(session.get_entry(entry_id))
            return encoded_reply(encode_entry(entry))
        except InvalidMessage as error:  # the store's fault, and not the client's
            raise StoreCorrupt(f"entry {entry_id!r} of session {session.session_id} is damaged") from error

    async def show_context(self, request: Request) -> Response:
        """What may be sent to a model at the leaf."""
        session = await self._sessions.find(request)
        context = await while_client_waits(request, session.get_context())
        messages = (orjson.dumps(message_document(message)) for message in context.messages)
        return self._json(document_in_pieces(context_document(context), "messages", messages))

    def _json(self, pieces: AsyncGenerator[bytes, None]) -> Response:
        return ByteStream(pieces, "application/json", stall_s=self._limits.request_timeout_s)

    # --- changing ----------------------------------------------------------------------------------------------------

    async def add_entry(self, request: Request) -> Response:
        """Append a change of model or thinking level, a name, or anything else worth keeping."""
        session = await self._sessions.find(request)
        wanted = new_entry(await read_json(request, self._limits))
        entry_id = await self._sessions.in_time(_append(session, wanted))
        return json_reply({"id": entry_id}, status=201)

    async def go_to(self, request: Request) -> Response:
        """Go back to an entry, or to the root, with or without a summary of what is left."""
        session = await self._sessions.find(request)
        wanted = shaped(await read_json(request, self._limits), GoTo)
        await self._sessions.in_time(_move(session, wanted))
        return json_reply({"leaf_id": session.leaf_id, "session": session_document(session)})

    async def set_label(self, request: Request) -> Response:
        """Bookmark an entry, or remove its bookmark."""
        session = await self._sessions.find(request)
        wanted = shaped(await read_json(request, self._limits), SetLabel)
        entry_id = await self._sessions.in_time(session.set_label(wanted.entry_id, wanted.label))
        return json_reply({"id": entry_id}, status=201)

    async def fork_session(self, request: Request) -> Response:
        """A new session with the whole tree, or with one branch."""
        session = await self._sessions.find(request)
        wanted = shaped(await read_json(request, self._limits), Fork)
        if wanted.leaf_id is None:
            work = session.fork(wanted.session_id)
        else:
            work = session.create_branched_session(wanted.leaf_id, wanted.session_id)
        return json_reply(session_document(await while_client_waits(request, work)), status=201)

    async def compact_session(self, request: Request) -> Response:
        """Let a summary stand for the older part of the branch: the client's, or the model's."""
        session = await self._sessions.find(request)
        wanted = shaped(await read_json(request, self._limits), Compact)
        if wanted.summary is not None:
            outcome = await self._sessions.in_time(_compact_by_hand(session, wanted, wanted.summary))
        elif wanted.first_kept_entry_id is not None or wanted.tokens_before is not None:
            raise RequestError(422, "invalid_request", "this goes with a summary; send one", param="summary")
        else:
            work = session.compact(self._summarizer, keep_tokens=wanted.keep_tokens)
            outcome = await while_client_waits(request, work)
        return json_reply(compaction_document(outcome))

    async def save_turn(self, request: Request) -> Response:
        """Append what was said in one turn, all of it or nothing."""
        messages, usage = shaped(await read_json(request, self._limits), SaveTurn).turn()
        session = await self._sessions.find_or_create(request)
        await self._sessions.in_time(session.save_turn(messages, usage))
        return json_reply({"entries": len(messages), "leaf_id": session.leaf_id}, status=201)


def _append(session: Session, wanted: NewEntry) -> Coroutine[Any, Any, str]:
    match wanted:
        case NewModelChange():
            return session.append_model_change(wanted.provider, wanted.model_id)
        case NewThinkingLevel():
            return session.append_thinking_level_change(wanted.thinking_level)
        case NewSessionInfo():
            return session.append_session_info(wanted.name)
        case NewCustom():
            return session.append_custom_entry(wanted.custom_type, wanted.data)


async def _move(session: Session, wanted: GoTo) -> None:
    if wanted.summary:
        await session.branch_with_summary(wanted.entry_id, wanted.summary)
    else:
        await session.branch(wanted.entry_id)


async def _compact_by_hand(session: Session, wanted: Compact, summary: str) -> CompactionOutcome:
    if not summary.strip():
        raise RequestError(422, "invalid_request", "the summary is empty; say something", param="summary")
    before = wanted.tokens_before
    if before is None:
        before = tokens_of((await session.read_branch()).entries)
    entry_id = await session.append_compaction(summary, wanted.first_kept_entry_id, before)
    after = count_tokens((await session.get_context()).messages)
    return CompactionOutcome(status=CompactionStatus.DONE, entry_id=entry_id, tokens_before=before, tokens_after=after)


async def _shape_of(session: Session) -> Transcript:
    """The tree with entries that hold nothing: a transcript may be larger than the memory."""
    transcript = Transcript(session_id=session.session_id)
    async for entry in session.read_entries(transcript.problems):
        transcript.add(_without_content(entry))
    return transcript


def _without_content(entry: Entry) -> Entry:
    if isinstance(entry, LeafMove | Label):
        return entry
    kind = entry.custom_type if isinstance(entry, Custom) else ""  # which says whether it moves the leaf
    return Custom(id=entry.id, parent_id=entry.parent_id, timestamp=entry.timestamp, custom_type=kind)
