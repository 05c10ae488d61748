"""Writing a session out in any format, as a stream: its length costs neither memory nor the event loop.

The entries are read a page at a time, and written by a thread, a few at a time. For a branch the transcript is read
twice: first for where each entry's parent stands, eight bytes for each, and then for what is on the way to the leaf.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import TypeVar

import msgspec
from anyio import from_thread, to_thread

from miniclaw_sessions.core.history.branch import shown_message
from miniclaw_sessions.core.history.context import ContextInParts, is_shown_as_user
from miniclaw_sessions.core.manager.reading import Reader, find
from miniclaw_sessions.core.protocol.entries import (
    OWN_METADATA,
    SOURCE,
    Entry,
    LeafMove,
    is_bookkeeping,
    moves_leaf,
    place_of_parent,
)
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.core.session.copying import PARENT_SESSION
from miniclaw_sessions.core.stores.reading import readable
from miniclaw_sessions.errors import ImportRefused
from miniclaw_sessions.files.formats.codec import Foreseeing, Format, PageWriter, SessionFacts, Writer
from miniclaw_sessions.files.transfer.linked import LINK, link_in

T = TypeVar("T")

PIECE_BYTES = 65_536
"""How much of a page is made in one go."""

AT_ONCE = 32
"""How many entries are written in one go, by a thread."""


async def export_session(manager: Reader, session_id: str, form: Format) -> AsyncIterator[bytes]:
    """A session in a format, piece by piece: its whole tree, or its current branch where the format has no tree.

    Args:
        manager: an open manager, or what `open_readonly` gives.
        session_id: which session.
        form: the format (`formats.registry`).

    Raises:
        SessionNotFound: there is no such session.
        ImportRefused: the format is only read.
        StoreUnavailable: the store cannot be read.
    """
    async with aclosing(pieces_of(await find(manager, session_id), form, manager.settings.currency)) as pieces:
        async for piece in pieces:
            yield piece


async def pieces_of(session: Session, form: Format, currency: str = "USD") -> AsyncGenerator[bytes, None]:
    """What `export_session` gives, of a session that is at hand.

    Args:
        session: which one.
        form: the format.
        currency: what its costs are in.

    Raises:
        ImportRefused: the format is only read.
        StoreUnavailable: the store cannot be read.
    """
    facts = msgspec.structs.replace(session_facts(session, form), currency=currency)
    if form.writer is not None:
        writer = form.writer(facts)
        places = await _Places.of_branch(session) if form.branch_only else None
        if isinstance(writer, Foreseeing):
            await _shown(writer, _entries(session, places))
        pieces = _written(writer, _entries(session, places))
    elif form.page is not None:
        pieces = _written_page(form.page(facts), session)
    elif form.message_writer is not None:
        pieces = _written_messages(form.message_writer(facts), session)
    else:
        raise ImportRefused(f"a session cannot be written as {form.name}: that format is only read")
    async with aclosing(pieces):
        async for piece in pieces:
            if piece:
                yield piece


async def _written(writer: Writer[Entry], entries: AsyncIterator[Entry]) -> AsyncGenerator[bytes, None]:
    yield await to_thread.run_sync(writer.begin)
    async for some in _some(entries):
        yield await to_thread.run_sync(_fed, writer.feed, some)
    yield await to_thread.run_sync(writer.finish)


async def _written_page(writer: PageWriter, session: Session) -> AsyncGenerator[bytes, None]:
    await _shown(writer, _entries(session, None))

    def read(after: int, limit: int) -> list[Entry]:
        return list(readable(from_thread.run(session.tree.read_after, after, limit)))  # the others were not shown to it

    async for piece in in_threads(writer.pieces(read), PIECE_BYTES):
        yield piece


async def in_threads(pieces: Iterator[bytes], size: int) -> AsyncIterator[bytes]:
    """What a blocking iterator gives, made in a thread; pieces are joined until they have `size` bytes."""

    def next_piece() -> bytes:
        gathered = bytearray()
        for piece in pieces:
            gathered += piece
            if len(gathered) >= size:
                break
        return bytes(gathered)

    while piece := await to_thread.run_sync(next_piece):
        yield piece


async def _shown(writer: Foreseeing, entries: AsyncIterator[Entry]) -> None:
    async for entry in entries:
        writer.foresee(entry)


async def _written_messages(writer: Writer[Message], session: Session) -> AsyncGenerator[bytes, None]:
    """The branch as a model may be sent it: results find their calls, and every call has its result."""
    places = await _Places.of_branch(session)
    context = ContextInParts(has_user=places.has_user)
    yield await to_thread.run_sync(writer.begin)
    async for some in _some(_entries(session, places)):
        shown = [message for entry in some if (message := shown_message(entry)) is not None]
        legal = (message for one in shown for message in context.add(one))
        yield await to_thread.run_sync(_fed, writer.feed, legal)
    yield await to_thread.run_sync(lambda: _fed(writer.feed, context.end()) + writer.finish())


def _fed(feed: Callable[[T], bytes], pieces: Iterable[T]) -> bytes:
    return b"".join(map(feed, pieces))


async def _some(entries: AsyncIterator[Entry]) -> AsyncIterator[list[Entry]]:
    """The entries, a few at a time."""
    some: list[Entry] = []
    async for entry in entries:
        some.append(entry)
        if len(some) >= AT_ONCE:
            yield some
            some = []
    yield some


# --- one branch, root first ------------------------------------------------------------------------------------------


class _Places:
    """Which entries of a transcript are on the way from the root to the leaf."""

    def __init__(self) -> None:
        self.has_user = False
        self._parents = array("q")  # by place
        self._is_on_branch = bytearray()

    @classmethod
    async def of_branch(cls, session: Session) -> _Places:
        """Those of the session's current branch."""
        places, leaf_id, leaf = cls(), session.leaf_id, 0
        if leaf_id is None:
            return places
        async for entry in session.tree.read_entries():
            while len(places._parents) < entry.sequence:  # what is missing or damaged followed the entry before it
                places._parents.append(len(places._parents) - 1)
            # what follows a move of the leaf is damaged, and followed the entry that it moved to
            place = (entry.target_sequence or 0) if isinstance(entry, LeafMove) else place_of_parent(entry)
            places._parents.append(place)
            if not places.has_user and (message := shown_message(entry)) is not None:
                places.has_user = is_shown_as_user(message)
            if entry.id == leaf_id:
                leaf = entry.sequence
                break
        places._is_on_branch = bytearray(leaf + 1)
        while 0 < leaf < len(places._parents):
            places._is_on_branch[leaf] = 1
            leaf = min(places._parents[leaf], leaf - 1)  # never in a circle
        return places

    def __contains__(self, place: int) -> bool:
        return place < len(self._is_on_branch) and self._is_on_branch[place] == 1


async def _entries(session: Session, places: _Places | None) -> AsyncIterator[Entry]:
    """The entries of a branch, or all of them but for what another import says again."""
    async for entry in session.tree.read_entries():
        if places is None:
            if not is_bookkeeping(entry):
                yield entry
        elif entry.sequence in places and moves_leaf(entry) and not isinstance(entry, LeafMove):
            yield entry


# --- the session as a whole ------------------------------------------------------------------------------------------


def session_facts(session: Session, form: Format) -> SessionFacts:
    """What a format's writer gets to know of a session; with the header of its file, if that was of this format."""
    metadata = {name: value for name, value in session.metadata.items() if not name.startswith(OWN_METADATA)}
    if LINK in metadata and not form.is_read:  # people read it
        chats = [chat.session_id for chat in link_in(metadata).chats]
        del metadata[LINK]
        metadata |= {"Linked with, now or earlier": ", ".join(chats)} if chats else {}
    known = session.metadata.get(SOURCE)
    known = known if isinstance(known, dict) else {}
    source = known if known.get("format") == form.name else {}
    header = source.get("header")
    return SessionFacts(
        format=form.name,
        source_id=str(source.get("id") or session.session_id),
        title=session.title,
        created_at=session.created_at,
        updated_at=session.updated_at,
        parent_session=source.get("parent_session") or session.metadata.get(PARENT_SESSION),
        header=header if isinstance(header, dict) else {},
        metadata=metadata,
        source={} if source else known,
        session_id=session.session_id,
        channel=session.key.channel,
        chat_id=session.key.chat_id,
        leaf_id=session.leaf_id,
    )
