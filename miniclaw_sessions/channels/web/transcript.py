"""What a visitor sees of his chat: what he and the assistant said, as HTML, and the answer while it grows.

He sees neither what the model thinks, nor its tool calls and their results, nor what anything costs. The HTML is that
of the daemon's own page: all that anybody wrote is escaped there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import anyio
import msgspec

from miniclaw_sessions.channels.base import ANNOUNCED, REPLY
from miniclaw_sessions.channels.own_chats import OwnChats
from miniclaw_sessions.channels.reminding import AUTHOR
from miniclaw_sessions.core.events.listeners import ENDS, PIECES, TEXT, TYPING, TurnEvent
from miniclaw_sessions.core.manager.summaries import calls_for_approval
from miniclaw_sessions.core.protocol.entries import COMMAND, Custom, Entry, LeafMove, MessageEntry
from miniclaw_sessions.core.protocol.messages import Message
from miniclaw_sessions.core.session import Session
from miniclaw_sessions.errors import EntryNotFound, ManagerClosed, SessionNotFound, TranscriptNotKept

PAGE = 30
"""How many messages are shown at first, and with each look further back."""

STILL_HERE = b"\n"
"""A line without content: a proxy would close a silent stream."""

_MOST_READ = 1_000  # entries of one page; an answer with a thousand tool calls is shown with the next one
_TOGETHER_S = 0.08  # so long further pieces of a text are awaited: its reader draws each step of it

Document = dict[str, Any]


async def page_of(session: Session, behind: str | None = None) -> Document:
    """The newest messages of a chat, or those before it.

    Args:
        session: the chat's.
        behind: where the page before this one said that it goes on; None: at the newest message.

    Returns:
        `rows`, the oldest first; `behind`, null where there is nothing before them.

    Raises:
        EntryNotFound: the session has no such entry.
        StoreUnavailable: the store cannot be read.
    """
    rows: list[Document] = []
    read = 0
    async for entry in _walk(session, behind):
        if len(rows) == PAGE or read == _MOST_READ:
            return {"rows": rows[::-1], "behind": entry.id}
        read += 1
        if (row := _row(entry)) is not None:
            rows.append(row)
    return {"rows": rows[::-1], "behind": None}


async def _walk(session: Session, behind: str | None) -> AsyncIterator[Entry]:
    async for entry in session.tree.walk(behind):
        if entry.sequence <= session.journal.committed_sequence:
            yield entry


def _row(entry: Entry) -> Document | None:
    """A message as a visitor sees it; None: he does not."""
    from miniclaw_sessions.files.formats.html.articles import words  # noqa: PLC0415 - heavy

    message = _message(entry)
    html = "" if message is None else words(message)
    who = "visitor" if message is not None and message.is_user else "assistant"
    return {"id": entry.id, "who": who, "key": entry.idempotency_key, "html": html} if html else None


def _message(entry: Entry) -> Message | None:
    """What an entry says to the visitor; None: nothing, such as the message that stands for a due reminder."""
    match entry:
        case MessageEntry(message=message) if message.is_assistant or (message.is_user and message.name != AUTHOR):
            return message
        case Custom(custom_type=str(kind), data={"word": str(word), **said}) if (kind, word) == (COMMAND, ANNOUNCED):
            return Message.assistant(str(said.get(REPLY, "")))
    return None


async def follow(chats: OwnChats, chat_id: str) -> AsyncGenerator[bytes, None]:
    """All that a visitor sees of his chat, from now on, as lines of JSON.

    `page` is what there is (`page_of`), and comes again when the conversation goes on elsewhere; `row` a further
    message; `typing` an answer that begins, `prose` a piece of it (`html.growing.Piece`), `end` its end, with `failed`
    where it has one; `asks` the calls that wait for the visitor's yes or no. It ends when the daemon does, or when the
    chat is deleted.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    try:
        async with aclosing(chats.awaited(chat_id)) as awaited:
            nothing = _line("page", rows=[], behind=None)
            async for session in awaited:
                if session is None:
                    yield nothing
                    nothing = STILL_HERE
                    continue
                async with aclosing(_happening(chats, chat_id, session)) as happening:
                    async for lines in happening:
                        yield lines
    except (ManagerClosed, SessionNotFound, TranscriptNotKept):
        return  # without a transcript each further request shows what there is by then


async def _happening(chats: OwnChats, chat_id: str, session: Session) -> AsyncGenerator[bytes, None]:
    place = session.journal.committed_sequence
    yield await _whole(session)
    shown = _Shown()
    async with aclosing(chats.watch(chat_id, place)) as watched:
        async for batch in watched:
            lines = b"".join(line for one in batch for line in shown.lines(one))
            if any(isinstance(one, LeafMove) for one in batch):
                lines += await _whole(await chats.find(chat_id) or session)
            elif any(isinstance(one, TurnEvent) and one.kind in ENDS for one in batch):
                lines += await _asked(await chats.find(chat_id) or session)
            if lines or not batch:
                yield lines or STILL_HERE
            if batch and all(isinstance(one, TurnEvent) and one.kind in PIECES for one in batch):
                await anyio.sleep(_TOGETHER_S)  # what is saved waits for nothing


async def _whole(session: Session) -> bytes:
    try:
        page = await page_of(session)
    except EntryNotFound:  # it was deleted meanwhile
        page = {"rows": [], "behind": None}
    return _line("page", **page) + await _asked(session)


async def _asked(session: Session) -> bytes:
    """The calls that wait for the visitor; none are an answer too: he may have said yes in another tab."""
    calls = [waiting.document_of(call) for call, waiting in await calls_for_approval(session)]
    return _line("asks", calls=[{name: call[name] for name in ("id", "name", "arguments", "reason")} for call in calls])


class _Shown:
    """What happens, as one reader sees it."""

    def __init__(self) -> None:
        from miniclaw_sessions.files.formats.html.growing import GrowingProse  # noqa: PLC0415 - heavy

        self._growing = GrowingProse()

    def lines(self, one: Entry | TurnEvent) -> Iterator[bytes]:
        """The lines for it."""
        if not isinstance(one, TurnEvent):
            if (row := _row(one)) is not None:
                yield _line("row", **row)
            return
        piece = self._growing.add(one.data["text"]) if one.kind == TEXT else self._growing.end()
        if piece.text or piece.opened is not None:
            yield _line("prose", closed=piece.closed, open=piece.opened, text=piece.text)
        if one.kind == TYPING:
            yield _line("typing")
        elif one.kind in ENDS:
            yield _line("end", failed=one.data["message"] if one.kind == "error" else None)


def _line(kind: str, **fields: Any) -> bytes:
    return msgspec.json.encode({"kind": kind, **fields}) + b"\n"
