"""Where a response is made: behind another one, in a conversation, or at the beginning of a new session.

A response without `conversation` begins a session of channel `resp`, and the one that names it as the previous one goes
on behind it, in the same session: where that has gone on already, there are two branches. A response in a conversation
is the next turn of that session, also if others speak there. Who goes on from such a response without the conversation
gets a session of his own with a copy of that branch, because a conversation has one place where it goes on.
"""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from miniclaw_sessions.core.history.branch import Branch, resolve
from miniclaw_sessions.core.protocol.entries import SUSPENDED
from miniclaw_sessions.core.protocol.keys import SessionKey
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import InvalidKey, SessionDeleted, SessionNotFound
from miniclaw_sessions.service.api.error_table import RETRY_AFTER_S, RequestError
from miniclaw_sessions.service.api.openai.conversations import find_conversation
from miniclaw_sessions.service.api.openai.response_request import Place, Wanted, check_calls
from miniclaw_sessions.service.api.openai.shapes import bad_request, not_found
from miniclaw_sessions.service.api.openai.stored_responses import (
    REMEMBERED,
    StoredResponse,
    deleted_in,
    find_response,
    is_mark,
    session_and_entry,
)

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.context import Context

CHANNEL = "resp"
"""The channel of sessions that hold responses and belong to no conversation."""

_NOT_FOUND = 404
_LOOKED_AT = 512  # entries at the end of a conversation among which a repeated request is looked for
_LATER = {"Retry-After": str(RETRY_AFTER_S)}


async def place_of_response(context: Context, wanted: Wanted) -> Place:
    """Where a response is made, and that what it follows is there.

    Args:
        context: whose sessions they are.
        wanted: what is asked for.

    Raises:
        RequestError: there is no such conversation (404), or no such response (400); or the request was made before,
            and its answer is on the way (409).
        NotPermitted: the caller may not make a session of responses.
    """
    source, found = await _followed(context, wanted)
    if source is None:
        check_calls((), wanted.messages, ())
    # A session of its own is another one each time, unless the client names its request.
    key = SessionKey.of(CHANNEL, secrets.token_hex(24) if wanted.key is None else wanted.digest[:48])
    if not wanted.stores:
        return Place(key, await _in_memory(key, source, found))
    if source is not None and (found is None or source.key.channel == CHANNEL):
        if found is not None:
            return await _place_in(context, source, wanted, found.end, since=found.mark.sequence)
        return await _place_in(context, source, wanted, UNSET, since=max(0, source.last_sequence - _LOOKED_AT))
    at: str | UnsetType | None = UNSET if wanted.beginning is None else None
    key = wanted.beginning or key
    if wanted.key is not None or wanted.beginning is not None:
        begun = await session_of_key(context, key)
        if begun is not None:
            return await _place_in(context, begun, wanted, at, since=0)
    context.caller.permit(key)
    if source is not None and found is not None:
        await source.fork(key, leaf_id=found.end)
        return Place(key)
    return Place(key, at=at, is_new=True)


async def branch_before(context: Context, wanted: Wanted) -> Branch:
    """What a response would follow, as far as a model is shown it.

    Raises:
        RequestError: as for `place_of_response`.
        StoreUnavailable: the store cannot be read.
    """
    source, found = await _followed(context, wanted)
    if source is None:
        return Branch()
    async with context.readings:
        return resolve(await source.tree.get_branch(None if found is None else found.end))


async def _followed(context: Context, wanted: Wanted) -> tuple[Session | None, StoredResponse | None]:
    if wanted.conversation is not None:
        return await find_conversation(context, wanted.conversation), None
    if wanted.previous is not None:
        return await _previous(context, wanted.previous)
    return None, None


async def session_of_key(context: Context, key: SessionKey) -> Session | None:
    """The caller's session with this key, or None."""
    try:
        return await context.find(key.session_id)
    except SessionNotFound:
        return None


async def _place_in(
    context: Context, session: Session, wanted: Wanted, at: str | UnsetType | None, *, since: int
) -> Place:
    """A place in a session that is there; where the request was made before, what became of it."""
    if not wanted.is_done_once:
        made = await _kept_unseen(context, session, wanted, since=since)
        return Place(session.key, at=at) if made is None else Place(session.key, made=made)
    before = await _asked_before(session, wanted, since=since)
    if before is None:
        return Place(session.key, at=at)
    before, is_running = await settled(context, session, before)
    if is_running:
        raise under_way()
    is_deleted = before.mark.id in deleted_in(session)
    if before.is_over and before.error is None and not is_deleted:
        return Place(session.key, made=before)
    if wanted.conversation is None:  # all branches are alike
        return Place(session.key, at=before.mark.parent_id)
    return Place(session.key, again=None if is_deleted else before.mark)


async def _kept_unseen(context: Context, session: Session, wanted: Wanted, *, since: int) -> StoredResponse | None:
    """The answer to the same request of which its client has seen nothing.

    Where it is still being made, it is waited for: a client that sends a request again without a mark takes no refusal.
    """
    unseen, same = context.responding().unseen, (session.session_id, wanted.digest)
    if not unseen.may_be(*same):
        return None
    before = await _asked_before(session, wanted, since=since)
    if before is not None and not before.is_over:
        if context.responding().is_running(before.mark.id):
            async with session.journal.between_turns():
                pass
        before = await find_response(session, before.mark.id)  # it may have ended while it was read, too
    if before is None or not before.is_over or before.error is not None or before.mark.id in deleted_in(session):
        return None
    age = session.journal.now() - _ended_at(before)
    if not unseen.is_unseen(*same, before.mark.id, age):
        return None
    unseen.given(*same, before.mark.id)
    return before


def _ended_at(found: StoredResponse) -> datetime:
    return max((entry.timestamp for entry in found.outputs), default=found.mark.timestamp)


def under_way() -> RequestError:
    """The error for a request that is being answered already."""
    return RequestError(409, "response_in_progress", "This request is being answered already.", headers=_LATER)


async def _asked_before(session: Session, wanted: Wanted, *, since: int) -> StoredResponse | None:
    """The response that the same request has begun.

    With a key it is known by that. Without, a conversation is looked at only for what was said last, and just now, and
    a session that others begin in too only for what was said just now: people say the same thing again. A model may
    take longer than that: a client that sends no mark has given up waiting.
    """
    leaves, newest = {session.leaf_id}, None  # its answer may come while it is read
    async for entry in session.tree.read_entries(after=since):
        if is_mark(entry):
            is_same = entry.data in (wanted.mark, wanted.as_beginning)
            if is_same or (wanted.key is None and wanted.conversation is not None):
                newest = entry if is_same else None
    found = None if newest is None else await find_response(session, newest.id)
    is_shared = wanted.conversation is not None or wanted.beginning is not None
    if found is not None and wanted.key is None and (is_shared or not wanted.is_repeated):
        leaves.add(session.leaf_id)
        is_last = wanted.conversation is None or not leaves.isdisjoint((found.end, found.mark.parent_id))
        is_recent = session.journal.now() - _ended_at(found) <= REMEMBERED
        return found if is_last and (is_recent or not (found.is_over or wanted.is_done_once)) else None
    return found


def gone(previous: str) -> RequestError:
    """The error for a previous response that is not there."""
    sentence = f"Previous response with id '{previous[:300]}' not found."
    return bad_request(sentence, "previous_response_id", "previous_response_not_found")


async def _previous(context: Context, previous: str) -> tuple[Session, StoredResponse]:
    try:
        session, found = await found_response(context, previous)
    except RequestError as error:
        if error.status != _NOT_FOUND:
            raise
        raise gone(previous) from None
    found, is_running = await settled(context, session, found)
    if is_running:
        sentence = "The previous response is still being made; wait for it, or cancel it."
        raise RequestError(409, "response_in_progress", sentence, param="previous_response_id", headers=_LATER)
    return session, found


async def _in_memory(key: SessionKey, source: Session | None, found: StoredResponse | None) -> Session:
    """A session in memory only, with the window of what the response follows."""
    if source is None:
        return Session.new(key.session_id)
    leaf_id, messages = None, source.messages()
    if found is not None:
        leaf_id = found.end
        messages = (await source.journal.reader.window_at(await source.tree.get_entry(leaf_id))).messages()
    waiting = await source.tree.get_waiting(leaf_id)
    session = Session.new(key.session_id, window=len(messages) + 1_000)
    session.extend(messages)
    if waiting:
        await session.tree.append_custom_entry(SUSPENDED, {"calls": [{"id": call_id} for call_id in waiting]})
    return session


async def found_response(context: Context, given: str) -> tuple[Session, StoredResponse]:
    """A response and its session.

    Raises:
        RequestError: no response has this id, or it was deleted (404).
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


async def settled(context: Context, session: Session, found: StoredResponse) -> tuple[StoredResponse, bool]:
    """A response, and whether it is being made, in this process or in another one; if not, as it has ended.

    It may have ended while it was read, so where nothing makes it any more it is read once more.
    """
    if found.is_over:
        return found, False
    is_here = context.responses is not None and context.responses.is_running(found.mark.id)
    if is_here or await session.journal.home.ownership(session.journal).is_held():
        return found, True
    return await find_response(session, found.mark.id) or found, False
