"""Sessions as lines of a list: their numbers, and how what was said in them begins and ends."""

from __future__ import annotations

from itertools import islice
from weakref import WeakKeyDictionary

from miniclaw_sessions.core.history.first_words import first_words
from miniclaw_sessions.core.history.pairing import open_calls
from miniclaw_sessions.core.persistence.losses import Loss
from miniclaw_sessions.core.protocol.entries import MessageEntry, WaitingCall
from miniclaw_sessions.core.protocol.messages import Role, ToolCall
from miniclaw_sessions.core.session import Journal, Session
from miniclaw_sessions.core.stores.reading import readable
from miniclaw_sessions.statistics import SessionSummary

BEGINNING = 20
"""How many of its first entries are searched for what a session without a name is about."""

LABELS = 10
"""The labels of one session that a row of a list has."""

_NOT_BY_HAND = ("<", "# AGENTS.md", "/")  # what agents put before what was said; their commands
_FIRST_WORDS: WeakKeyDictionary[Journal, str] = WeakKeyDictionary()  # they stay what they are


def summarize(session: Session, loss: Loss | None) -> SessionSummary:
    """A session as one line of a list, with what was lost of it."""
    return SessionSummary(
        session_id=session.session_id,
        channel=session.key.channel,
        chat_id=session.key.chat_id,
        title=session.title,
        messages=len(session),
        message_count=session.message_count,
        entries=session.last_sequence,
        created_at=session.created_at,
        updated_at=session.updated_at,
        last_accessed=session.last_accessed,
        dirty=session.journal.checkpoint.is_dirty,
        lost=0 if loss is None else loss.messages,
        pinned=session.metadata.get("pinned") is True,
        labels=_labels_in(session.metadata.get("labels")),
    )


def _labels_in(value: object) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str))[:LABELS] if isinstance(value, list) else ()


async def words_of(session: Session) -> tuple[str | None, str | None]:
    """A session's `last_words` and `first_words`, as a row of a list has them; at most `BEGINNING` entries are read."""
    newest = reversed(session.journal.conversation.window.kept)
    last = next((one for one in newest if one.role in (Role.USER, Role.ASSISTANT)), None)
    return None if last is None else first_words(last.entry), await _first_words(session)


async def calls_for_approval(session: Session) -> list[tuple[ToolCall, WaitingCall]]:
    """The tool calls that wait for a person's yes or no. Nothing is read unless the newest calls lack an answer."""
    if not (calls := open_calls(session.messages())):
        return []
    waiting = await session.tree.get_waiting()
    return [(call, waiting[call.id]) for call in calls if call.id in waiting and waiting[call.id].needs_approval]


async def _first_words(session: Session) -> str | None:
    """The first words of a session without a title; None if it has a title, or no message."""
    journal = session.journal
    if session.title and not session.title.isspace():
        return None
    if (known := _FIRST_WORDS.get(journal)) is not None:
        return known
    if len(session) == session.message_count:  # the memory has all of them
        kept = islice(journal.conversation.window.kept, BEGINNING)
        questions = [one.entry for one in kept if one.role is Role.USER]
    else:
        beginning = readable(await session.tree.read_after(0, BEGINNING))
        questions = [one for one in beginning if isinstance(one, MessageEntry) and one.message.is_user]
    said = [first_words(one) for one in questions]
    by_hand = next((words for words in said if not words.startswith(_NOT_BY_HAND)), None)
    if by_hand is not None:
        _FIRST_WORDS[journal] = by_hand
    return by_hand or next(iter(said), None)
